"""nvinject hook: what a runtime calls while it creates a container.

Belongs here: the command line, the container's description, and leaving early. Does not belong here: what is done for a
container that asks for GPUs (injection.py). One that asks for none leaves before configuration, driver or NVML are
looked at, and before their modules are imported; that is why there is posix here in place of os, whose import takes a
sixth of the interpreter's own start.
"""

import posix
import sys

from nvinject.cli.main import is_cdi_hook
from nvinject.configfile import find_config, swarm_names_without_parsing
from nvinject.core.sources import ContainerSpec, might_ask
from nvinject.errors import InputError, UsageError
from nvinject.formats.oci import parse_spec, parse_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvinject.formats.oci import Spec

HELP = """\
usage: nvinject hook (prestart | createRuntime | poststart | poststop) [-config FILE] [-debug] [-version] [-legacy]

Reads the OCI state of a created container on standard input and injects the GPUs that its config.json asks for.
Runtimes call it; under the name nvidia-container-runtime-hook it is what docker's --gpus looks for.

  -config FILE   read this configuration; it must exist (default: $NVIDIA_CTK_CONFIG_FILE_PATH, then
                 /etc/nvidia-container-runtime/config.toml, then the defaults)
  -debug         write each step to standard error
  -version       print the version
  -legacy        work whatever nvidia-container-runtime.mode says: the runtime shim has chosen this hook

nvinject hook create-symlinks and its like are the hooks of CDI specs: see nvinject cdi-hook --help.

example:
  echo '{"pid": 4711, "bundle": "/run/bundle"}' | nvinject hook prestart
"""

WORKING_STAGES = ("prestart", "createRuntime")
IDLE_STAGES = ("poststart", "poststop")
PIECE = 1 << 16  # bytes; larger ones get a mapping of their own, 0.05 ms each
MAXIMUM_INPUT = 64 << 20  # bytes; a config.json of a big pod has some hundred kilobytes


def main(arguments: "list[str]") -> int:
    """Run one stage of the hook; returns 0, or raises an NvinjectError."""
    if is_cdi_hook(["hook", *arguments]):
        from nvinject.cli.cdihook import main as run_cdi_hook

        return run_cdi_hook(arguments)
    stage, config, debug, legacy = parse_arguments(arguments)
    if stage == "help":
        sys.stdout.write(HELP)
    elif stage == "version":
        from nvinject import __version__

        sys.stdout.write(f"NVIDIA Container Runtime Hook version {__version__} (nvinject)\n")
    elif stage in WORKING_STAGES:
        inject(read_standard_input(), environment(), config=config, debug=debug, legacy=legacy)
    return 0


def parse_arguments(arguments: "list[str]") -> "tuple[str, str, bool, bool]":
    """Return stage, configuration file, and the switches debug and legacy; flags as Go's flag package takes them."""
    stage, config, debug, legacy = "", "", False, False
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, _, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            stage = stage or word
        elif name in {"h", "help"}:
            stage = "help"
        elif name == "version":
            stage = "version"
        elif name == "debug":
            debug = value not in {"0", "f", "F", "false", "False", "FALSE"}
        elif name == "legacy":
            legacy = True
        elif name == "config":
            config = value or (words.pop(0) if words else "")
            if not config:
                raise UsageError("-config needs a file", "give its path after -config")
        else:
            raise UsageError(f"unknown option {word}", "nvinject hook --help lists the options")
    if stage not in ("help", "version", *WORKING_STAGES, *IDLE_STAGES):
        what = f"unknown stage {stage!r}" if stage else "no stage given"
        raise UsageError(what, f"use one of {', '.join((*WORKING_STAGES, *IDLE_STAGES))}")
    return stage, config, debug, legacy


def environment() -> "dict[str, str]":
    """Return this process's environment, as os.environ has it."""
    encoding = sys.getfilesystemencoding()
    return {
        name.decode(encoding, "surrogateescape"): value.decode(encoding, "surrogateescape")
        for name, value in posix.environ.items()
    }


def read_standard_input() -> bytes:
    """Return all of standard input, at most MAXIMUM_INPUT bytes."""
    return read_all(0, "standard input")


def read_all(descriptor: int, name: str) -> bytes:
    """Return everything that can be read from a descriptor; raises InputError above MAXIMUM_INPUT bytes."""
    chunks: list[bytes] = []
    size = 0
    while chunk := posix.read(descriptor, PIECE):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAXIMUM_INPUT:
            raise InputError(
                f"{name} has more than {MAXIMUM_INPUT >> 20} MiB", "it cannot be a container's description"
            )
    return b"".join(chunks)


def read_spec(path: str) -> "Spec":
    """Read a container's config.json; raises InputError that tells a missing bundle from an unreadable one."""
    return parse_spec(read_config(path), path)


def read_config(path: str) -> bytes:
    """Return the content of a container's config.json; raises InputError as read_spec does."""
    try:
        descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except FileNotFoundError as error:
        import os

        bundle = os.path.dirname(path)
        missing = path if os.path.isdir(bundle) else f"bundle {bundle}"
        raise InputError(f"{missing} does not exist", "the runtime names the bundle in the state") from error
    except OSError as error:
        raise InputError(f"cannot open {path}: {error.strerror}", "the hook must be able to read the bundle") from error
    try:
        return read_all(descriptor, path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "the hook must be able to read the bundle") from error
    finally:
        posix.close(descriptor)


def inject(
    state_data: bytes, environ: "Mapping[str, str]", *, config: str = "", debug: bool = False, legacy: bool = False
) -> None:
    """Do the whole work for one container, or nothing at all for one that asks for no GPU.

    `legacy` says that the runtime shim has chosen the hook, so that the configured mode does not matter.
    """
    state = parse_state(state_data)
    spec = read_spec(f"{state.bundle}/config.json")
    asked = ContainerSpec(environment=spec.environment, mounts=spec.mounts, privileged=spec.privileged)
    settings = (config, True) if config else find_config(environ)
    if might_ask(asked, swarm_names_without_parsing(settings[0])):
        from nvinject.cli.injection import serve

        serve(state, spec, asked, settings, environ, debug=debug, legacy=legacy)
