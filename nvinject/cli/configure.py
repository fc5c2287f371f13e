"""nvinject runtime configure: tells docker, containerd, CRI-O or podman about the runtime, and takes it back.

Belongs here: options, defaults of each engine, what is printed. Does not belong here: the edits (nvinject.engines).
Options and defaults are those of `nvidia-ctk runtime configure`; --undo, --state-dir and --json are ours, as is podman.
"""

import os
import sys

from nvinject.cli.cdioptions import parse_flag
from nvinject.cli.messages import debug, inform, is_quiet
from nvinject.engines import containerd, crio, docker, ocihook, podman, rancher, undo
from nvinject.engines.edit import SOURCE_COMMAND, SOURCE_FILE, Edit, Options
from nvinject.engines.files import Change, carry_out, remove_directories
from nvinject.errors import HostError, NvinjectError, UsageError, printable
from nvinject.linux.signals import Undisturbed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

ENGINES = ("docker", "containerd", "crio", "podman")
RUNTIME_NAME = "nvidia"
RUNTIME_PROGRAM = "nvidia-container-runtime"
RUNTIME_DIRECTORY = "/usr/bin"
HOOK_PATH = "/usr/bin/nvidia-container-runtime-hook"
COMMAND_SECONDS = 60

DESCRIPTION = """\
Makes an engine know nvidia-container-runtime as a runtime called nvidia. Only the lines that say so change: comments,
order, mode, owner, SELinux label and symbolic links of the files stay. A second run changes nothing, --undo brings back
what was. k3s and rke2 are recognised (--runtime containerd).
"""

EPILOG = """\
examples:
  nvinject runtime configure --runtime docker --dry-run          show the lines that would change
  nvinject runtime configure --runtime docker --set-as-default   then: systemctl restart docker
  nvinject runtime configure --runtime containerd --cdi.enabled
  nvinject runtime configure --runtime containerd --undo         as if it had never been

files:
  docker      /etc/docker/daemon.json
  containerd  /etc/containerd/conf.d/99-nvidia.toml, and an import of it in /etc/containerd/config.toml
  crio        /etc/crio/crio.conf.d/99-nvidia.toml
  podman      /etc/containers/containers.conf.d/99-nvidia.conf
  the way back: /var/lib/nvinject/configure (without root: $XDG_STATE_HOME/nvinject/configure)
"""


def parser() -> "argparse.ArgumentParser":
    """Return the command's options."""
    from nvinject.cli.parsers import new_parser

    options = new_parser("nvinject runtime configure", DESCRIPTION, EPILOG, allow_abbrev=False)
    add_target_options(options)
    runtime = options.add_argument_group("the runtime")
    runtime.add_argument(
        "--nvidia-runtime-name", metavar="NAME", default=RUNTIME_NAME, help=f"its name (default: {RUNTIME_NAME})"
    )
    runtime.add_argument(
        "--nvidia-runtime-path",
        "--runtime-path",
        metavar="PATH",
        help=f"its program (default: {RUNTIME_PROGRAM} for docker, else the one on PATH or in {RUNTIME_DIRECTORY})",
    )
    _add_flag(runtime, "--nvidia-set-as-default", "--set-as-default", help="make it the runtime of all containers")
    _add_flag(
        runtime,
        "--cdi.enabled",
        "--cdi.enable",
        "--enable-cdi",
        help="also turn CDI on; other features that are on stay on",
    )
    result = options.add_argument_group("the result")
    _add_flag(result, "--dry-run", help="print the difference and change nothing")
    result.add_argument("--undo", action="store_true", help="bring the files back to what they were")
    result.add_argument("--json", action="store_true", help="print what was done as JSON")
    result.add_argument("--state-dir", metavar="DIR", default="", help="keep the way back here")
    return options


def add_target_options(options: "argparse.ArgumentParser") -> None:
    """Teach a parser which engine and which of its files are meant."""
    target = options.add_argument_group("the engine")
    target.add_argument("--runtime", metavar="ENGINE", default="docker", help=f"{', '.join(ENGINES)} (default: docker)")
    target.add_argument("--config", metavar="FILE", help="its configuration (default: see below)")
    target.add_argument(
        "--drop-in-config", metavar="FILE", help="the drop-in to write; an empty one: edit --config itself"
    )
    target.add_argument(
        "--config-source",
        metavar="SOURCE",
        default=SOURCE_FILE,
        help="file, or command: where options of other runtimes are read, which ours takes over (default: file)",
    )
    target.add_argument("--executable-path", metavar="PATH", default="", help="the engine to ask (--config-source)")
    target.add_argument(
        "--config-mode", metavar="MODE", default="", help="config-file, or oci-hook: write a hook file instead (old)"
    )
    target.add_argument("--oci-hook-path", metavar="FILE", default="", help="that file (default: standard output)")
    target.add_argument(
        "--nvidia-runtime-hook-path", metavar="PATH", default=HOOK_PATH, help=f"its program (default: {HOOK_PATH})"
    )


def _add_flag(group: "argparse._ArgumentGroup", *names: str, help: str) -> None:  # noqa: A002 - argparse's word
    """Add a switch that may have a value, as the original's have: --dry-run, --dry-run=false."""
    group.add_argument(
        *names, nargs="?", const=True, default=False, type=_parse_switch, metavar="true|false", help=help
    )


def _parse_switch(text: str) -> bool:
    import argparse

    try:
        return parse_flag(text, "value")
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from error


def main(arguments: "list[str]", *, as_original: bool = False) -> int:
    """Configure an engine or take it back; as the original, a dry run prints whole files instead of differences."""
    parsed = parser().parse_args(arguments)
    if parsed.runtime not in ENGINES:
        raise UsageError(f"unrecognized runtime '{printable(parsed.runtime)}'", f"use one of {', '.join(ENGINES)}")
    if parsed.config_mode in {"oci-hook", "hook"}:
        return write_hook(parsed)
    if parsed.config_mode not in {"", "config-file", "config"}:
        raise UsageError(f"unknown --config-mode {parsed.config_mode}", "use config-file or oci-hook")
    options, notes = read_options(parsed)
    debug(f"engine {parsed.runtime}: {options.config}{f', drop-in {options.drop_in}' if options.drop_in else ''}")
    debug(f"runtime {options.name}: {options.path}")

    def plan() -> Edit:
        return plan_edit(parsed.runtime, options)

    edit, more = perform(plan, parsed, parsed.runtime, options.config)
    notes += edit.notes + more
    report(edit.changes, notes, service_of(parsed.runtime, options), parsed, as_original=as_original)
    return 0


def perform(
    plan: "Callable[[], Edit]", parsed: "argparse.Namespace", engine: str, config: str
) -> tuple[Edit, tuple[str, ...]]:
    """Carry out a plan or the way back, unless it shall only be shown; returns the changes and notes."""
    directory = parsed.state_dir or undo.state_directory(os.environ)
    if parsed.dry_run:
        return (undo_edit(undo.load_history(directory, engine, config), engine) if parsed.undo else plan()), ()
    with undo.Lock(directory):
        history = undo.load_history(directory, engine, config)
        if not parsed.undo:
            edit = plan()
            return edit, configure(history, edit.changes)
        edit = undo_edit(history, engine)
        with Undisturbed():
            carry_out(edit.changes)
            remove_directories(history.directories)
            undo.save_history(history.replace(files=(), directories=()))
        return edit, ()


def undo_edit(history: undo.History, engine: str) -> Edit:
    """Return the changes that lead back."""
    if not history.files:
        return Edit(changes=(), notes=("nothing to undo: this command has not changed it",))
    changes, notes = undo.undo_changes(history, VALIDATORS[engine])
    return Edit(changes=changes, notes=notes)


def configure(history: undo.History, changes: tuple[Change, ...]) -> tuple[str, ...]:
    """Make the changes, with the way back kept first; returns notes. All or nothing, signals or not."""
    after, notes = undo.with_changes(history, changes)
    if after == history:
        return notes
    with Undisturbed():
        undo.save_history(after)
        try:
            made = carry_out(changes)
        except NvinjectError:
            undo.save_history(history)
            raise
        if made:
            undo.save_history(after.replace(directories=(*after.directories, *made)))
    return notes


def read_options(parsed: "argparse.Namespace") -> "tuple[Options, tuple[str, ...]]":
    """Return the options with each engine's defaults, and a note for each one that means nothing to the engine."""
    engine = parsed.runtime
    notes = []
    if parsed.config_source not in {SOURCE_FILE, SOURCE_COMMAND}:
        raise UsageError(f"unrecognized --config-source {parsed.config_source}", "use file or command")
    source = parsed.config_source
    if engine in {"docker", "podman"} and source == SOURCE_COMMAND:
        notes.append(f"{engine} has no command that prints its configuration: the file is read")
        source = SOURCE_FILE
    if parsed.executable_path and source == SOURCE_FILE:
        notes.append("--executable-path matters with --config-source=command only")
    if engine == "docker" and parsed.drop_in_config:
        raise UsageError("runtime docker does not support drop-in configs", "leave --drop-in-config out")
    path, more = find_program(parsed)
    config = parsed.config or default_config(engine)
    return (
        Options(
            config=os.path.abspath(config),
            drop_in=choose_drop_in(parsed),
            name=parsed.nvidia_runtime_name,
            path=path,
            set_as_default=parsed.nvidia_set_as_default,
            cdi=getattr(parsed, "cdi.enabled"),
            source=source,
            executable=parsed.executable_path,
        ),
        (*notes, *more),
    )


def default_config(engine: str) -> str:
    """Return the main configuration file of an engine; containerd's may be that of k3s or rke2."""
    if engine == "containerd" and not os.path.exists(containerd.DEFAULT_CONFIG):
        return rancher.find_config() or containerd.DEFAULT_CONFIG
    modules = {"docker": docker, "containerd": containerd, "crio": crio, "podman": podman}
    config: str = modules[engine].DEFAULT_CONFIG
    return config


def choose_drop_in(parsed: "argparse.Namespace") -> str:
    """Return the drop-in file, "" for none; for podman a --config of one's own is edited itself."""
    given: str | None = parsed.drop_in_config
    if given is None:
        defaults = {"containerd": containerd.DEFAULT_DROP_IN, "crio": crio.DEFAULT_DROP_IN}
        own = podman.DEFAULT_DROP_IN if parsed.config is None else ""
        return defaults.get(parsed.runtime, own if parsed.runtime == "podman" else "")
    if given and not os.path.isabs(given):
        raise UsageError(f"--drop-in-config {printable(given)} is not absolute", "give the whole path")
    return os.path.normpath(given) if given else ""


def find_program(parsed: "argparse.Namespace") -> tuple[str, tuple[str, ...]]:
    """Return the program of the runtime, and a note if it is not there."""
    import shutil

    name: str = parsed.nvidia_runtime_name
    if not name or not name.isprintable() or " " in name or "/" in name:
        raise UsageError(f"{printable(name)!r} cannot be the name of a runtime", "use a word such as nvidia")
    given: str | None = parsed.nvidia_runtime_path
    if parsed.runtime == "docker":
        path = given or RUNTIME_PROGRAM
    else:
        path = given or shutil.which(RUNTIME_PROGRAM) or f"{RUNTIME_DIRECTORY}/{RUNTIME_PROGRAM}"
        if not os.path.isabs(path):
            raise UsageError(
                f"the NVIDIA runtime path {printable(path)} is not absolute", f"{parsed.runtime} needs the whole path"
            )
    if parsed.undo or shutil.which(path):
        return path, ()
    return path, (f"there is no program {path} yet: nvinject install --links makes it",)


def plan_edit(engine: str, options: Options) -> Edit:
    """Return the changes for an engine."""
    if engine == "docker":
        return docker.plan_edit(options)
    if engine == "podman":
        return podman.plan_edit(options)
    module: Callable[..., Edit] = containerd.plan_edit if engine == "containerd" else crio.plan_edit
    return module(options, run_command)


def _is_json(_path: str, content: bytes) -> bool:
    return docker.is_valid(content)


def _is_toml(_path: str, content: bytes) -> bool:
    from nvinject.formats.tomlscan import EditError, parse

    try:
        parse(content.decode("utf-8-sig"))
    except (EditError, UnicodeDecodeError):
        return False
    return True


HOOK_RECORD = "oci-hook"
# Whether an engine could read the content of a file.
VALIDATORS = {
    "docker": _is_json,
    "containerd": _is_toml,
    "crio": _is_toml,
    "podman": _is_toml,
    HOOK_RECORD: _is_json,
}


def run_command(program: str, arguments: tuple[str, ...]) -> str:
    """Return what an engine's own program prints. Raises HostError."""
    import subprocess

    command = " ".join((program, *arguments))
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=COMMAND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no answer in {COMMAND_SECONDS} seconds"
        raise HostError(f"cannot run {command}: {reason}", "use --config-source=file or --executable-path") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise HostError(f"{command} failed: {last}", "use --config-source=file")
    return done.stdout


def write_hook(parsed: "argparse.Namespace") -> int:
    """Write the OCI hook file, or print it."""
    program: str = parsed.nvidia_runtime_hook_path
    if not os.path.isabs(program):
        raise UsageError(f"the hook path {printable(program)} is not absolute", "give the whole path")
    if not parsed.oci_hook_path:
        sys.stdout.write(ocihook.format_hook(program))
        return 0
    path = os.path.abspath(parsed.oci_hook_path)
    edit, notes = perform(lambda: ocihook.plan_edit(path, program), parsed, HOOK_RECORD, path)
    report(edit.changes, edit.notes + notes, "", parsed)
    return 0


def service_of(engine: str, options: Options) -> str:
    """Return the service to restart, "" for podman, which reads its files each time."""
    if engine == "containerd":
        return containerd.service_of(options.config)
    return {"docker": docker.SERVICE, "crio": crio.SERVICE}.get(engine, "")


def report(
    changes: tuple[Change, ...],
    notes: tuple[str, ...],
    service: str,
    parsed: "argparse.Namespace",
    *,
    as_original: bool = False,
) -> None:
    """Print what was done, or would be."""
    changed = [change for change in changes if change.before != change.after]
    for note in notes:
        inform(f"note: {note}")
    for change in changes:
        debug(f"{change.path}: {action_of(change)}")
    if parsed.json:
        import json

        files = [{"path": change.path, "action": action_of(change)} for change in changes]
        restart = service if changed and service else None
        document = {"dryRun": bool(parsed.dry_run), "files": files, "restart": restart, "notes": list(notes)}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    if parsed.dry_run and as_original:
        for change in changes:
            sys.stdout.write((change.after or b"").decode() + "\n")
        return
    if parsed.dry_run:
        from nvinject.cli.diff import format_diff, wants_colour

        for change in changed:
            sys.stdout.write(format_diff(change.path, change.before, change.after, colour=wants_colour()))
        sys.stdout.write("dry run: nothing was changed\n" if changed else "nothing to change\n")
    elif not is_quiet():
        sys.stdout.write(describe_result(changed, service))


def describe_result(changed: "list[Change]", service: str) -> str:
    """Return what was done, and what is left to do, as lines."""
    if not changed:
        return "nothing to change\n"
    lines = [
        f"Removed {change.path}" if change.after is None else f"Wrote updated config to {change.path}"
        for change in changed
    ]
    if service:
        lines.append(f"It takes effect when {service} has been restarted: systemctl restart {service}")
    return "".join(f"{line}\n" for line in lines)


def action_of(change: Change) -> str:
    """Return what happens to a file, in one word."""
    if change.before == change.after:
        return "unchanged"
    if change.before is None:
        return "created"
    return "removed" if change.after is None else "changed"
