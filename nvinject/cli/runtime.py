"""nvinject runtime: an OCI runtime in front of another one, which edits config.json before a container is created.

Belongs here: the order of the steps for one call, and the way out to the low-level runtime. Does not belong here: which
devices and which mode (core.mode), what becomes of config.json (shimmodes.py). A container that asks for no GPU is
passed on byte for byte before configuration or driver are looked at.
"""

import sys

from nvinject import leanos as os
from nvinject.cli.hook import environment, read_config
from nvinject.cli.lowlevel import become, find_low_level, run_and_wait
from nvinject.cli.ocicall import CREATING, parse_call
from nvinject.cli.shimlog import EngineLog, ShimLog
from nvinject.configfile import find_config, swarm_names_without_parsing
from nvinject.core.mode import CDI, LEGACY, find_asked, might_name_devices, names_own_devices, resolve_mode
from nvinject.core.policy import DEFAULT_RUNTIMES
from nvinject.core.request import foreign_warning, ignored_warning
from nvinject.core.sources import ContainerSpec, might_ask
from nvinject.errors import ConfigurationError, NvinjectError, UsageError
from nvinject.formats.oci import load_document, read_annotations, read_document, read_leniently

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nvinject.cli.ocicall import Call
    from nvinject.cli.shimmodes import Shim
    from nvinject.core.policy import Policy
    from nvinject.core.sources import Asked

    Undo = Callable[[], None]

HELP = """\
usage: nvinject runtime [--as NAME] [--low-level PATH] [--] RUNTIME-ARGUMENTS
       nvinject runtime configure [OPTION ...]

An OCI runtime in front of runc, crun or another one, for the engines that know it as nvidia-container-runtime. For
create and run it edits the container's config.json so that the container gets the GPUs that it asks for; every other
call is passed on untouched.

  --as NAME         behave as called by this name: nvidia-container-runtime.cdi and .legacy choose the mode
  --low-level PATH  the runtime that does the work (default: nvidia-container-runtime.runtimes in config.toml)

examples:
  nvinject install --prefix /usr/local --links     makes nvidia-container-runtime, its quick launcher
  nvinject runtime configure --runtime docker      makes docker know it; configure --help tells about other engines
  nvidia-container-runtime create --bundle /run/bundle ID
"""

NAME = "nvidia-container-runtime"
SUFFIXES = {f"{NAME}.cdi": "cdi", f"{NAME}.legacy": "legacy"}
SPECIFICATION = "1.2.0"  # of the OCI runtime, as far as this file's neighbours know it


def main(arguments: "list[str]") -> int:
    """Serve one call of an engine; returns only for --help, otherwise becomes the low-level runtime or raises."""
    if arguments[:1] == ["configure"]:  # no command of an OCI runtime: it tells engines about us
        from nvinject.cli.configure import main as configure

        return configure(arguments[1:])
    name, low_level, words = parse_own(arguments)
    if words is None:
        sys.stdout.write(HELP)
        return 0
    engine = EngineLog(parse_call(()))
    undo: Undo = _nothing
    try:
        call = parse_call(words)
        engine = EngineLog(call)
        low_level = low_level or find_low_level(configured_runtimes(environment()), environment())
        if call.version:
            print_version()
        elif call.command in CREATING:
            undo = prepare(call, engine, name=name, low_level=low_level)
        elif call.command == "delete":
            folders = generated_for(call.identifier)
            if folders:
                return delete(low_level, words, folders)
        become(low_level, words)
    except NvinjectError as error:
        undo()
        engine.write("error", str(error))
        raise
    except Exception:  # no memory, no descriptors: main tells
        undo()
        raise


def _nothing() -> None:
    pass


def generated_for(identifier: str) -> "list[str]":
    """Return the run directories of a container; the quick launcher knows these places as well."""
    if not identifier or "/" in identifier or identifier in {".", ".."}:
        return []
    from nvinject.render.rundirectory import candidate_bases, is_own

    bases = [base for base in candidate_bases(environment()) if os.path.isdir(f"{base}/{identifier}") and is_own(base)]
    return [f"{base}/{identifier}" for base in bases]


def delete(low_level: str, words: tuple[str, ...], folders: "list[str]") -> int:
    """Let the low-level runtime delete a container, then remove what was generated for it; returns its exit code."""
    from nvinject.render.rundirectory import living, remove_tree

    code = run_and_wait(low_level, words)
    if code == 0:
        # Another engine's container of this id may still have its record, and uses the folder.
        for folder in folders:
            try:
                if not living(folder):
                    remove_tree(folder)
            except OSError as error:  # the container has gone all the same; the next create sweeps
                sys.stderr.write(f"nvinject: warning: cannot remove {folder}: {error.strerror}\n")
    return code


def parse_own(arguments: "list[str]") -> "tuple[str, str, tuple[str, ...] | None]":
    """Return the name that we are called by, the low-level runtime if it is given, and the engine's own words.

    No words at all (None) mean that help is asked for. Our options come before the engine's and end at `--`.
    """
    name, low_level = NAME, ""
    rest = list(arguments)
    if rest in (["-h"], ["--help"]):
        return name, low_level, None
    while rest and rest[0] in {"--as", "--low-level"}:
        option = rest.pop(0)
        if not rest:
            raise UsageError(f"{option} needs a value", "nvinject runtime --help shows how")
        if option == "--as":
            name = rest.pop(0)
        else:
            low_level = rest.pop(0)
    if rest[:1] == ["--"]:
        del rest[0]
    return name, low_level, tuple(rest)


def configured_runtimes(environ: "Mapping[str, str]") -> tuple[str, ...]:
    """Return the names of low-level runtimes in config.toml, those of the defaults where it cannot be read.

    Most calls are about containers without GPU: a mistake in the file is told when it matters, at create.
    """
    from nvinject.config import load_policy

    try:
        policy, _ = load_policy(find_config(environ)[0], required=False)
    except ConfigurationError:
        return DEFAULT_RUNTIMES
    return policy.runtimes


def print_version() -> None:
    """Print our own version; the low-level runtime's follows after an empty line."""
    from nvinject import __version__

    sys.stdout.write(f"NVIDIA Container Runtime version {__version__} (nvinject)\nspec: {SPECIFICATION}\n\n")


def prepare(call: "Call", engine: EngineLog, *, name: str, low_level: str) -> "Undo":
    """Edit the bundle's config.json if the container asks for GPUs; returns what undoes it should the runtime fail.

    Raises NvinjectError with everything as it was.
    """
    bundle = os.path.abspath(call.bundle or ".")
    path = f"{bundle}/config.json"
    data = read_config(path)
    document = load_document(data, path)
    annotations = read_annotations(document)
    loose = read_leniently(document)
    asked = ContainerSpec(environment=loose.environment, mounts=loose.mounts, privileged=loose.privileged)

    config = find_config(environment())[0]
    if not (might_ask(asked, swarm_names_without_parsing(config)) or might_name_devices(annotations)):
        return _nothing
    policy = load(config, name, certain=might_ask(asked) or names_own_devices(annotations))
    if policy is None:
        return _nothing
    with ShimLog(policy.runtime_debug, engine) as log:
        devices = find_asked(asked, annotations, policy)
        if devices is None:
            ignored = ignored_warning(asked, policy)
            if ignored:
                log.warn(ignored)
            return _nothing
        mode = resolve_mode(devices, policy)
        log.write(f"mode {mode}: devices {','.join(devices.devices)} ({devices.source}), bundle {bundle}")
        if mode == CDI and devices.foreign:
            log.warn(foreign_warning(devices))  # a plan has it among its request's warnings

        from nvinject.cli.shimmodes import Shim

        shim = Shim(call, document, read_document(document, path), policy, log, bundle=bundle, low_level=low_level)
        edit(shim, mode, devices, log)
        return lambda: shim.restore(data)


def edit(shim: "Shim", mode: str, devices: "Asked", log: ShimLog) -> None:
    """Write config.json in a mode, and start what the mode needs beside it."""
    try:
        if mode == LEGACY:
            shim.use_hook()
        elif mode == CDI:
            shim.use_registry(devices)
        else:
            shim.use_plan(devices)
    except Exception as error:
        log.write(f"failed: {error}")
        raise
    log.write("config.json is written")
    shim.stand_by()


def load(config: str, name: str, *, certain: bool) -> "Policy | None":
    """Return the policy, with the mode that our name stands for; None if a broken file is no matter to the container.

    It is none where nothing but another setting of the broken file could make the container ask for GPUs.
    """
    from nvinject.config import load_policy

    try:
        policy, warnings = load_policy(config, required=False)
    except ConfigurationError as error:
        if certain:
            raise
        sys.stderr.write(f"nvinject: warning: {error}\n")
        return None
    for warning in warnings:
        sys.stderr.write(f"nvinject: warning: {warning}\n")
    mode = SUFFIXES.get(name.rpartition("/")[2])
    return policy.replace(mode=mode) if mode else policy
