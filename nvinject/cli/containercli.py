"""nvidia-container-cli: the original's command line for what a host has and for one container.

Belongs here: its options, its commands, its form of errors. Does not belong here: what is listed (containerlist.py) and
how a container is changed (containerconfigure.py). Scripts, enroot and apptainer call it, so output and options are the
original's; where one differs, docs/compat.md says so.
"""

import os
import sys

from nvinject.cli.argp import Flag, Words, format_options, parse
from nvinject.errors import (
    ConfigurationError,
    ContainerError,
    HostError,
    InputError,
    NvinjectError,
    RequestError,
    RequirementError,
    UsageError,
)
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvinject.core.policy import Policy

NAME = "nvidia-container-cli"
DEBUG_VARIABLE = "NVC_DEBUG_FILE"


class CliError(NvinjectError):
    """A failure with the stage that the original would name."""

    exit_code = 1

    def __init__(self, stage: str, message: str, hint: str = "") -> None:
        """Keep the stage beside message and hint."""
        super().__init__(message, hint)
        self.stage = stage


# What a kind of error is called where nothing more is known.
STAGES: tuple[tuple[type[NvinjectError], str], ...] = (
    (RequirementError, "requirement error"),
    (InputError, "requirement error"),
    (RequestError, "device error"),
    (ConfigurationError, "initialization error"),
    (HostError, "detection error"),
    (ContainerError, "mount error"),
)

_DEVICE = Flag(name="device", letter="d", argument="ID", help="device UUID, index, bus id or all; may be repeated")
_SHARED = (
    Flag(name="mig-config", argument="ID", help="let the container manage MIG; only all"),
    Flag(name="mig-monitor", argument="ID", help="let the container watch MIG; only all"),
    Flag(name="imex-channel", argument="CHANNEL", help="IMEX channel; may be repeated"),
    Flag(name="no-persistenced", help="leave the socket of nvidia-persistenced out"),
    Flag(name="no-fabricmanager", help="leave the socket of nvidia-fabricmanager out"),
    Flag(name="no-gsp-firmware", help="leave the firmware out"),
)

GLOBAL_FLAGS = (
    Flag(name="debug", letter="d", argument="FILE", help="write each step to this file"),
    Flag(name="load-kmods", letter="k", help="load kernel modules and make device nodes first"),
    Flag(name="no-pivot", letter="n", help="accepted: no ldconfig runs, so nothing is pivoted"),
    Flag(name="user", letter="u", argument="UID[:GID]", optional=True, help="load the driver library as this user"),
    Flag(name="root", letter="r", argument="PATH", help="driver root (default: /)"),
    Flag(name="ldcache", letter="l", argument="FILE", help="loader cache below the driver root"),
    Flag(name="no-create-imex-channels", help="with --load-kmods: make no nodes of IMEX channels"),
    Flag(name="version", letter="V", help="print the version"),
)
INFO_FLAGS = (Flag(name="csv", help="print comma-separated values"),)
LIST_FLAGS = (
    _DEVICE,
    Flag(name="libraries", letter="l", help="list libraries"),
    Flag(name="binaries", letter="b", help="list programs"),
    Flag(name="ipcs", letter="i", help="list sockets"),
    Flag(name="firmwares", letter="f", help="list firmware"),
    Flag(name="compat32", help="with --libraries: list 32-bit libraries too"),
    *_SHARED,
)
CONFIGURE_FLAGS = (
    Flag(name="pid", letter="p", argument="PID", help="the container's first process (default: our own namespaces)"),
    _DEVICE,
    Flag(name="require", letter="r", argument="EXPR", help="what the host must satisfy; may be repeated"),
    Flag(name="ldconfig", letter="l", argument="PATH", help="accepted: the loader cache is written without ldconfig"),
    Flag(name="compute", letter="c", help="driver capability compute"),
    Flag(name="utility", letter="u", help="driver capability utility"),
    Flag(name="video", letter="v", help="driver capability video"),
    Flag(name="graphics", letter="g", help="driver capability graphics"),
    Flag(name="display", letter="D", help="driver capability display"),
    Flag(name="ngx", letter="n", help="driver capability ngx"),
    Flag(name="compat32", help="32-bit libraries too"),
    Flag(name="no-cgroups", help="leave the device rules of the container's cgroup alone"),
    Flag(name="no-devbind", help="show no device nodes"),
    Flag(name="no-cntlibs", help="ignore CUDA libraries of the image"),
    Flag(name="cuda-compat-mode", argument="MODE", help="mount, ldconfig or disabled"),
    *_SHARED,
)

COMMANDS: dict[str, tuple[tuple[Flag, ...], str, str]] = {
    "info": (INFO_FLAGS, "", "tell what driver and GPUs the host has"),
    "list": (LIST_FLAGS, "", "list the paths of the driver's parts"),
    "configure": (CONFIGURE_FLAGS, " ROOTFS", "put GPUs into a container"),
}

EXAMPLES = """\
examples:
  nvidia-container-cli info --csv
  nvidia-container-cli list --libraries
  nvidia-container-cli configure --pid 4711 --device all --compute --utility /run/bundle/rootfs
"""


class Settings(Record):
    """The global options: where to look, with whose rights, and what to do first."""

    policy: "Policy"
    environ: "Mapping[str, str]"
    debug: str = ""
    load_kmods: bool = False
    create_imex_channels: bool = True
    identity: tuple[int, int] | None = None


def main(arguments: "list[str]") -> int:
    """Run one command; returns 0, or 1 with one line on standard error."""
    try:
        return run(arguments, os.environ)
    except UsageError as error:
        sys.stderr.write(f"{error}\nTry '{NAME} --help' for more information.\n")
    except NvinjectError as error:
        stage = error.stage if isinstance(error, CliError) else stage_of(error)
        sys.stderr.write(f"{NAME}: {stage}: {error}\n")
    return 1


def stage_of(error: NvinjectError) -> str:
    """Return what the original calls a failure of this kind."""
    return next((stage for kind, stage in STAGES if isinstance(error, kind)), "input error")


def run(arguments: "list[str]", environ: "Mapping[str, str]") -> int:
    """Read the words before the command, then those behind it, and do what they say."""
    line = read_line(arguments, GLOBAL_FLAGS, NAME, in_order=True)
    if line.has("help") or line.has("usage"):
        sys.stdout.write(format_usage())
        return 0
    if line.has("version"):
        sys.stdout.write(format_version())
        return 0
    command = line.rest[0] if line.rest else ""
    if command not in COMMANDS:
        what = f"unknown command '{command}'" if command else "a command is missing"
        raise UsageError(f"{NAME}: {what}; use one of {', '.join(COMMANDS)}")
    words = read_line(line.rest[1:], COMMANDS[command][0], f"{NAME} {command}", in_order=False)
    if words.has("help") or words.has("usage"):
        sys.stdout.write(format_command_usage(command))
        return 0
    settings = read_settings(line, environ)
    if command == "configure":
        from nvinject.cli.containerconfigure import configure

        configure(words, settings)
        return 0
    if words.rest:
        raise UsageError(f"{NAME} {command}: unexpected argument '{words.rest[0]}'")
    from nvinject.cli import containerlist

    show = containerlist.show_info if command == "info" else containerlist.show_list
    sys.stdout.write(show(words, settings, line.rest[1:]))
    return 0


def read_line(arguments: "tuple[str, ...] | list[str]", flags: tuple[Flag, ...], name: str, *, in_order: bool) -> Words:
    """Return the words as options; raises UsageError that begins with the program's name, as argp's do."""
    try:
        return parse(arguments, flags, in_order=in_order)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}") from error


def read_settings(line: Words, environ: "Mapping[str, str]") -> Settings:
    """Return the global options; what only nvinject has (other roots, time limit) comes from config.toml."""
    from nvinject.config import load_policy
    from nvinject.configfile import find_config
    from nvinject.core.policy import Policy

    node, _ = load_policy(*find_config(environ))
    root = line.last("root") or "/"
    if not root.startswith("/"):
        raise CliError("input error", f"invalid driver root {root!r}", "give an absolute path")
    policy = Policy(
        roots=node.roots.replace(driver=os.path.normpath(root)),
        ldcache=line.last("ldcache") or "",
        nvml_timeout=node.nvml_timeout,
    )
    return Settings(
        policy=policy,
        environ=environ,
        debug=line.last("debug") or environ.get(DEBUG_VARIABLE, ""),
        load_kmods=line.has("load-kmods"),
        create_imex_channels=not line.has("no-create-imex-channels"),
        identity=read_identity(line.last("user")) if line.has("user") else None,
    )


def read_identity(text: str | None) -> tuple[int, int]:
    """Return user and group of `UID[:GID]`, names or numbers; the caller's own where nothing is given.

    Raises CliError for an account that nobody knows.
    """
    import grp
    import pwd

    if text is None:
        return os.geteuid(), os.getegid()
    user, separator, group = text.partition(":")
    try:
        uid = int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
        if separator:
            return uid, int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
        return uid, pwd.getpwuid(uid).pw_gid
    except (KeyError, OverflowError) as error:
        raise CliError("input error", f"invalid user or group {text!r}", "name an account of this host") from error


def format_usage() -> str:
    """Return the help of the program as a whole."""
    lines = [f"usage: {NAME} [OPTION...] COMMAND [ARG...]\n\nLooks at a host's GPUs and puts them into containers.\n\n"]
    lines += [f"  {name:<10} {words}\n" for name, (_, _, words) in COMMANDS.items()]
    return "".join([*lines, "\n", format_options(GLOBAL_FLAGS), "\n", EXAMPLES])


def format_command_usage(command: str) -> str:
    """Return the help of one command."""
    flags, operands, words = COMMANDS[command]
    return f"usage: {NAME} {command} [OPTION...]{operands}\n\n{words}\n\n{format_options(flags)}"


def format_version() -> str:
    """Return seven lines with the original's labels."""
    import platform

    from nvinject import __version__

    lines = (
        ("cli-version", __version__),
        ("lib-version", __version__),
        ("build date", "unknown"),
        ("build revision", f"nvinject {__version__}"),
        ("build compiler", f"{platform.python_implementation()} {platform.python_version()}"),
        ("build platform", os.uname().machine),
        ("build flags", "none"),
    )
    return "".join(f"{label}: {value}\n" for label, value in lines)
