"""nvinject hook: what a runtime calls while it creates a container.

Belongs here: the order of the steps and the reading of files that only the hook reads. Does not belong here: any
decision (core), any change of the container (render). A container that asks for no GPU leaves before configuration,
driver or NVML are looked at (design.md, decision 7), and before their modules are imported.
"""

import os
import sys
import time

from nvinject.core.request import ContainerSpec, might_ask
from nvinject.errors import ConfigurationError, InputError, RequestError, UsageError
from nvinject.formats.oci import parse_spec, parse_state, rootfs_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from nvinject.core.policy import Policy
    from nvinject.core.request import ContainerRequest
    from nvinject.formats.oci import Spec, State

HELP = """\
usage: nvinject hook (prestart | createRuntime | poststart | poststop) [-config FILE] [-debug] [-legacy]

Reads the OCI state of a created container on standard input and injects the GPUs that its config.json asks for.
Runtimes call it; under the name nvidia-container-runtime-hook it is what docker's --gpus looks for.

  -config FILE   read this configuration; it must exist (default: $NVIDIA_CTK_CONFIG_FILE_PATH, then
                 /etc/nvidia-container-runtime/config.toml, then the defaults)
  -debug         write each step to standard error
  -legacy        work whatever nvidia-container-runtime.mode says: the runtime shim has chosen this hook

example:
  echo '{"pid": 4711, "bundle": "/run/bundle"}' | nvinject hook prestart
"""

WORKING_STAGES = ("prestart", "createRuntime")
IDLE_STAGES = ("poststart", "poststop")
MAXIMUM_INPUT = 64 << 20  # bytes; a config.json of a big pod has some hundred kilobytes


def main(arguments: "list[str]") -> int:
    """Run one stage of the hook; returns 0, or raises an NvinjectError."""
    stage, config, debug, legacy = parse_arguments(arguments)
    if stage == "help":
        sys.stdout.write(HELP)
    elif stage in WORKING_STAGES:
        inject(read_standard_input(), dict(os.environ), config=config, debug=debug, legacy=legacy)
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
    if stage not in ("help", *WORKING_STAGES, *IDLE_STAGES):
        what = f"unknown stage {stage!r}" if stage else "no stage given"
        raise UsageError(what, f"use one of {', '.join((*WORKING_STAGES, *IDLE_STAGES))}")
    return stage, config, debug, legacy


def read_standard_input() -> bytes:
    """Return all of standard input, at most MAXIMUM_INPUT bytes."""
    return read_all(0, "standard input")


def read_all(descriptor: int, name: str) -> bytes:
    """Return everything that can be read from a descriptor; raises InputError above MAXIMUM_INPUT bytes."""
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(descriptor, 1 << 20):
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
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
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
        os.close(descriptor)


def inject(
    state_data: bytes, environ: "Mapping[str, str]", *, config: str = "", debug: bool = False, legacy: bool = False
) -> None:
    """Do the whole work for one container, or nothing at all for one that asks for no GPU.

    `legacy` says that the runtime shim has chosen the hook, so that the configured mode does not matter.
    """
    state = parse_state(state_data)
    spec = read_spec(f"{state.bundle}/config.json")
    asked = ContainerSpec(environment=spec.environment, mounts=spec.mounts, privileged=spec.privileged)

    from nvinject.config import find_config, swarm_names_without_parsing

    path, required = (config, True) if config else find_config(environ)
    if not might_ask(asked, swarm_names_without_parsing(path)):
        return

    from nvinject.config import load_policy
    from nvinject.core.request import gate_warning, read_request

    try:
        policy, warnings = load_policy(path, required)
    except ConfigurationError as error:
        if might_ask(asked):
            raise
        # Only an unreadable swarm-resource line made us look; such a container never depends on us.
        sys.stderr.write(f"nvinject: warning: {error}\n")
        return
    request = read_request(asked, policy)
    with Log(policy.debug, echo=debug) as log:
        for warning in warnings:
            log.warn(warning)
        if request is None:
            ignored = gate_warning(asked, policy)
            if ignored:
                log.warn(ignored)
            return
        for warning in request.warnings:
            log.warn(warning)
        if not legacy:
            check_mode(policy)
        try:
            inject_request(state, spec, request, policy, environ, log)
        except Exception as error:
            log.write(f"failed: {error}")
            raise


def check_mode(policy: "Policy") -> None:
    """Refuse where the node's configuration says that containers get GPUs in another way (request.md, section 5)."""
    if policy.mode in {"auto", "legacy"} or policy.skip_mode_detection:
        return
    raise RequestError(
        f"the hook was called directly, but nvidia-container-runtime.mode is {policy.mode!r}",
        "let the engine use the runtime or CDI, or set nvidia-container-runtime-hook.skip-mode-detection = true",
    )


def inject_request(
    state: "State",
    spec: "Spec",
    request: "ContainerRequest",
    policy: "Policy",
    environ: "Mapping[str, str]",
    log: "Log",
) -> None:
    """Discover, plan and apply for a container that asks for GPUs."""
    from nvinject.cli.discovery import discover_for
    from nvinject.core import planner
    from nvinject.host.layout import observe_layout
    from nvinject.render.namespaces import apply, open_container

    log.write(f"request: devices {','.join(request.devices)}; capabilities {','.join(request.capabilities)}")
    inventory = discover_for(request, policy, environ)
    container = open_container(state.pid, rootfs_path(spec, state.bundle))
    layout = observe_layout(container.root_fd)
    plan = planner.plan(inventory, request, policy, layout)
    for note in plan.notes:
        log.write(f"note: {note}")
    for warning in apply(plan, container, no_cgroups=policy.no_cgroups, log=log.write):
        log.warn(warning)
    log.write("done")


class Log:
    """The debug log: steps go to the configured file, warnings also to standard error.

    A log that cannot be written never stops a container; it says so once on standard error.
    """

    def __init__(self, path: str, *, echo: bool, title: str = "prestart") -> None:
        """Open the file for appending, unless there is none to write."""
        self._echo = echo
        self._title = title
        self._descriptor = -1
        if path and path != "/dev/null":
            try:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                sys.stderr.write(f"nvinject: warning: cannot write the log {path}: {error.strerror}\n")

    def __enter__(self) -> "Self":
        """Start with the process, so that lines of several containers can be told apart."""
        self.write(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def write(self, message: str) -> None:
        """Write one step."""
        if self._echo:
            sys.stderr.write(f"nvinject: {message}\n")
        if self._descriptor >= 0:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            line = f"{stamp} nvinject[{os.getpid()}]: {message}\n"
            os.write(self._descriptor, line.encode(errors="surrogateescape"))

    def warn(self, message: str) -> None:
        """Write one step that the operator should know of even without a log."""
        self.write(f"warning: {message}")
        if not self._echo:
            sys.stderr.write(f"nvinject: warning: {message}\n")
