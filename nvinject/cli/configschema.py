"""What each key of config.toml means, in words: for people's commands only, so that the hook never imports it.

Belongs here: defaults, choices and help of the keys that nvinject.config lists with their types; a test holds both
lists to each other. Does not belong here: reading a file, and what a setting leads to.
"""

import os

from nvinject.config import KEYS
from nvinject.core.catalog import MPS_DIRECTORY, MPS_LOG_VARIABLE, MPS_PIPE_VARIABLE, OPTIONAL_PARTS
from nvinject.core.mode import MODES
from nvinject.core.policy import AUTO_LAYOUT, LAYOUTS, ON_MISSING, REFUSE
from nvinject.formats.tomltext import format_value
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ACTIVE, COMMENTED, OMITTED = "active", "commented", "omitted"
SUSE_USER = "root:video"


class Help(Record):
    """What is said about a key.

    `shown` is how a new file has it: as a line, as a comment with the value `display`, or not at all. `unused` says why
    nvinject has no use for it, if it has none; the original's programs do.
    """

    text: str
    default: "Any" = ""
    choices: tuple[str, ...] = ()
    shown: str = OMITTED
    display: "Any" = None
    unused: str = ""


_NO_TOOL = "nvinject does the tool's work itself"
_NO_SPEC = "mode jit-cdi edits config.json without a spec in between"
HELP = {
    "disable-require": Help(
        default=False,
        shown=ACTIVE,
        text="Start containers whatever they require: NVIDIA_REQUIRE_* is not looked at, as if each container had set "
        "NVIDIA_DISABLE_REQUIRE.",
    ),
    "swarm-resource": Help(
        shown=COMMENTED,
        display="DOCKER_RESOURCE_GPU",
        text="Variables, separated by commas, that name a container's GPUs in place of NVIDIA_VISIBLE_DEVICES where "
        "they are set. docker swarm makes them of generic resources.",
    ),
    "accept-nvidia-visible-devices-envvar-when-unprivileged": Help(
        default=True,
        shown=COMMENTED,
        display=True,
        text="Let any container ask for GPUs by its environment. With false only privileged ones may (those with "
        "CAP_SYS_ADMIN): then an image's own NVIDIA_VISIBLE_DEVICES cannot get around a scheduler.",
    ),
    "accept-nvidia-visible-devices-as-volume-mounts": Help(
        default=False,
        shown=COMMENTED,
        display=False,
        text="Let containers ask for GPUs by mounts of /dev/null below /var/run/nvidia-container-devices, which a "
        "device plug-in can make and an image cannot.",
    ),
    "supported-driver-capabilities": Help(
        default="compat32,compute,display,graphics,ngx,utility,video",
        shown=ACTIVE,
        text="The driver capabilities that containers may have, separated by commas; `all` stands for every one.",
    ),
    "nvidia-container-cli.root": Help(
        shown=COMMENTED,
        display="/run/nvidia/driver",
        text="The directory that holds the driver's files, if that is not the root of the host: a driver container's "
        "file system, for example. Empty means /.",
    ),
    "nvidia-container-cli.path": Help(
        shown=COMMENTED,
        display="/usr/bin/nvidia-container-cli",
        unused=_NO_TOOL,
        text="The original's command line tool.",
    ),
    "nvidia-container-cli.environment": Help(
        default=[], shown=ACTIVE, unused=_NO_TOOL, text="Variables (NAME=VALUE) for the original's command line tool."
    ),
    "nvidia-container-cli.debug": Help(
        shown=COMMENTED,
        display="/var/log/nvidia-container-toolkit.log",
        text="A file to which the hook writes what it does, step by step.",
    ),
    "nvidia-container-cli.ldcache": Help(
        shown=COMMENTED,
        display="/etc/ld.so.cache",
        text="The loader cache in which the driver's libraries are looked up, if it is not etc/ld.so.cache of the "
        "driver root.",
    ),
    "nvidia-container-cli.load-kmods": Help(
        default=True,
        shown=ACTIVE,
        unused="a container's start loads no modules; nvinject system create-device-nodes does",
        text="Load the driver's kernel modules where they are missing.",
    ),
    "nvidia-container-cli.no-pivot": Help(
        default=False, unused=_NO_TOOL, text="Handed to the original's command line tool."
    ),
    "nvidia-container-cli.no-cgroups": Help(
        default=False,
        shown=COMMENTED,
        display=False,
        text="Leave the container's device rules alone: for engines that run without root, which cannot change them.",
    ),
    "nvidia-container-cli.user": Help(
        shown=COMMENTED,
        display=SUSE_USER,
        unused=_NO_TOOL,
        text="User and group that the original's command line tool runs as.",
    ),
    "nvidia-container-cli.ldconfig": Help(
        default="@/sbin/ldconfig",
        shown=ACTIVE,
        text="The program that brings a container's loader cache up to date. `@` means the host's; without it the "
        "container's own would be run as root, which features.allow-ldconfig-from-container must allow. nvinject "
        "writes the cache itself.",
    ),
    "nvidia-container-runtime.debug": Help(
        default="/dev/null",
        shown=COMMENTED,
        display="/var/log/nvidia-container-runtime.log",
        text="A file to which nvidia-container-runtime writes what it does; /dev/null or empty: none.",
    ),
    "nvidia-container-runtime.log-level": Help(
        default="info",
        shown=ACTIVE,
        choices=("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace"),
        unused="all of it is written",
        text="How much is written to that file.",
    ),
    "nvidia-container-runtime.runtimes": Help(
        default=["runc", "crun"],
        shown=ACTIVE,
        text="The runtimes that do the work, names or paths; the first one that is there is taken.",
    ),
    "nvidia-container-runtime.mode": Help(
        default="auto",
        shown=ACTIVE,
        choices=tuple(MODES),
        text="How nvidia-container-runtime gives GPUs to a container: jit-cdi edits its config.json, cdi takes CDI "
        "specs from files, legacy adds the prestart hook, csv follows the lists of a Tegra system, auto chooses.",
    ),
    "nvidia-container-runtime.modes.cdi.default-kind": Help(
        default="nvidia.com/gpu",
        shown=ACTIVE,
        text="The kind of devices that are named without one in mode cdi: NVIDIA_VISIBLE_DEVICES=0 then means "
        "nvidia.com/gpu=0.",
    ),
    "nvidia-container-runtime.modes.cdi.annotation-prefixes": Help(
        default=["cdi.k8s.io/"],
        shown=ACTIVE,
        text="Annotations whose key begins so name CDI devices.",
    ),
    "nvidia-container-runtime.modes.cdi.spec-dirs": Help(
        default=["/etc/cdi", "/var/run/cdi"],
        shown=ACTIVE,
        text="Where CDI specs are read; a later directory wins.",
    ),
    "nvidia-container-runtime.modes.csv.mount-spec-path": Help(
        default="/etc/nvidia-container-runtime/host-files-for-container.d",
        shown=ACTIVE,
        text="The directory with the CSV lists of a Tegra system.",
    ),
    "nvidia-container-runtime.modes.csv.compat-container-root": Help(
        text="Where a Tegra image has its CUDA compatibility libraries; empty means /usr/local/cuda/compat_orin.",
    ),
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags": Help(
        default=[],
        text="Switches of `nvinject cdi generate --feature-flag` for modes jit-cdi and csv, where one has a meaning: "
        "disable-ipc-discoverer leaves the sockets of daemons out, disable-multiple-csv-devices serves the GPUs of a "
        "Tegra system as one.",
    ),
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks": Help(
        default=[], unused=_NO_SPEC, text="Hooks to leave out of what is generated on the way; `all` for every one."
    ),
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode": Help(
        default="ldconfig",
        shown=ACTIVE,
        choices=("ldconfig", "mount", "disabled", "hook"),
        text="What becomes of newer CUDA libraries that an image brings: ldconfig and hook put them before the "
        "driver's in the loader's order where they fit the driver, mount is carried out as ldconfig, disabled "
        "leaves them out.",
    ),
    "nvidia-container-runtime-hook.path": Help(
        default="nvidia-container-runtime-hook",
        shown=ACTIVE,
        text="The hook that mode legacy adds; a name is looked up on PATH.",
    ),
    "nvidia-container-runtime-hook.skip-mode-detection": Help(
        default=False,
        shown=ACTIVE,
        text="Let the hook work whatever the mode; otherwise it refuses where the mode is cdi or csv.",
    ),
    "nvidia-ctk.path": Help(
        default="nvidia-ctk",
        shown=ACTIVE,
        unused="specs call the hook program that nvinject cdi generate finds or is given",
        text="The program that hooks of generated specs call; a name is looked up on PATH.",
    ),
    "features.allow-cuda-compat-libs-from-container": Help(
        default=False, text="Take an unknown cuda-compat-mode as mount instead of as disabled."
    ),
    "features.allow-ldconfig-from-container": Help(
        default=False,
        text="Allow a nvidia-container-cli.ldconfig that does not begin with `@`. Images then run code as root.",
    ),
    "features.allow-unknown-oci-spec-fields": Help(
        default=False,
        unused="fields that nobody knows are always kept",
        text="Accept a config.json with fields that the OCI specification does not have.",
    ),
    "features.disable-cuda-compat-lib-hook": Help(
        default=False, text='With cuda-compat-mode = "hook", leave the CUDA libraries that an image brings out.'
    ),
    "features.disable-imex-channel-creation": Help(
        default=False,
        text="Make no nodes of IMEX channels while a container starts, whatever nvinject.create-imex-channels says.",
    ),
    "features.ignore-imex-channel-requests": Help(
        default=False, text="Take no notice of NVIDIA_IMEX_CHANNELS and of mounts that ask for channels."
    ),
    "features.no-additional-gids-for-device-nodes": Help(
        default=False, text="Do not add the groups of device nodes to the container's process."
    ),
    "nvinject.dev-root": Help(
        text="Device nodes are looked for below this directory. Empty: the driver root if it holds dev/nvidiactl, "
        "else /."
    ),
    "nvinject.proc-root": Help(default="/proc", text="Stands for /proc where the driver is looked at."),
    "nvinject.sys-root": Help(default="/sys", text="Stands for /sys where the driver is looked at."),
    "nvinject.nvml-timeout": Help(
        default=10, text="Seconds that the driver's management library (NVML) may take, from 1 to 600."
    ),
    "nvinject.write-rootfs": Help(
        default=True,
        text="Let nvidia-container-runtime put links and the loader cache into a container's own file system where "
        "that is writable; with false they are mounted.",
    ),
    "nvinject.library-layout": Help(
        default=AUTO_LAYOUT,
        choices=LAYOUTS,
        text="Where containers have the driver's libraries and programs. image: in the image's own library folder "
        "(/usr/lib/TRIPLET or /usr/lib64) and in /usr/bin. host: where the host has them. nvidia: in "
        "/usr/local/nvidia/lib64 and /usr/local/nvidia/bin, which join PATH, LD_LIBRARY_PATH and ld.so.conf.d. auto: "
        "image for the hook and for mode jit, host for CDI specs.",
    ),
    "nvinject.leave-out": Help(
        default=[],
        text="Parts of the driver that no container gets, whatever its capabilities, of these: "
        f"{', '.join(OPTIONAL_PARTS)}.",
    ),
    "nvinject.missing-extras": Help(
        default=REFUSE,
        choices=ON_MISSING,
        text="What becomes of a container with NVIDIA_GDS, NVIDIA_MOFED, NVIDIA_GDRCOPY or NVIDIA_NVSWITCH=enabled on "
        "a host without such devices: it is refused, or starts without them and with a warning.",
    ),
    "nvinject.mps-pipe-directory": Help(
        text="The pipe directory of the host's multi-process service (MPS), below the driver root. Empty: "
        f"{MPS_PIPE_VARIABLE} of the hook's own environment, else {MPS_DIRECTORY} unless it is another user's."
    ),
    "nvinject.mps-log-directory": Help(
        text=f"Its log directory. Empty: {MPS_LOG_VARIABLE} of the hook's own environment, else /var/log/nvidia-mps."
    ),
    "nvinject.missing-memory-limits": Help(
        default=REFUSE,
        choices=ON_MISSING,
        text="What becomes of a container whose limits of GPU memory (NVIDIA_MEMORY_LIMIT, NVIDIA_GPU_MEMORY_LIMIT, "
        "NVIDIA_GPU_MEMORY_REQUEST) neither the multi-process service nor the driver can keep.",
    ),
    "nvinject.create-imex-channels": Help(
        default=False,
        text="Let a container's start make the node of an IMEX channel that is asked for and missing, on the host, as "
        "nvidia-modprobe would. With false such a container is refused.",
    ),
}


def kinds() -> "dict[str, str]":
    """Return the type of each key, in words."""
    return {key: kind for key, kind, _ in KEYS}


def host_defaults(root: str = "/") -> "dict[str, Any]":
    """Return the defaults that depend on the host: Debian's and SUSE's ways to have ldconfig and device groups."""
    found: dict[str, Any] = {key: entry.default for key, entry in HELP.items()}
    if os.path.exists(os.path.join(root, "sbin/ldconfig.real")):
        found["nvidia-container-cli.ldconfig"] = "@/sbin/ldconfig.real"
    if {"suse", "opensuse"} & set(_similar_systems(os.path.join(root, "etc/os-release"))):
        found["nvidia-container-cli.user"] = SUSE_USER
    return found


def _similar_systems(path: str) -> list[str]:
    """Return the words of ID_LIKE in os-release(5)."""
    try:
        with open(path, errors="replace") as file:
            lines = [line.partition("=") for line in file]
    except OSError:
        return []
    return [word for name, _, value in lines if name == "ID_LIKE" for word in value.strip().strip("\"'").split()]


def format_default(root: str = "/", *, documented: bool = False) -> str:
    """Return the text of a new config.toml, the original's; documented, with help above each key, and with ours."""
    defaults = host_defaults(root)
    tables: dict[str, list[str]] = {}
    for key in sorted(HELP, key=lambda key: (key.count(".") > 0, key.rpartition(".")[0], key)):
        table, _, name = key.rpartition(".")
        line = _default_line(key, name, defaults[key], documented=documented)
        if line:
            tables.setdefault(table, []).append(line)
    if "nvidia-container-runtime.modes.cdi" in tables:
        tables["nvidia-container-runtime.modes"] = []
    order = sorted(tables, key=lambda table: table.split("."))
    parts = [(f"[{table}]\n" if table else "") + "".join(tables[table]) for table in order]
    return "\n".join(parts)


def _default_line(key: str, name: str, default: "Any", *, documented: bool) -> str:
    entry = HELP[key]
    if entry.shown == OMITTED and not documented:
        return ""
    value = default if entry.shown != COMMENTED else entry.display
    commented = entry.shown != ACTIVE and not (key == "nvidia-container-cli.user" and default == entry.display)
    line = f"{'#' if commented else ''}{name} = {format_value(value)}\n"
    if not documented:
        return line
    import textwrap

    words = entry.text + (f" One of {', '.join(entry.choices)}." if entry.choices else "")
    return textwrap.fill(words, 100, initial_indent="# ", subsequent_indent="# ") + "\n" + line
