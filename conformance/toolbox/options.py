"""The original's options of nvidia-container-cli and nvidia-ctk system, and how each can be seen at work.

Belongs here: one row for one option or variable. Does not belong here: running them (test_compat.py).
"""

from dataclasses import dataclass

SAME, DIFFERENT, REFUSED = "same", "different", "refused"


@dataclass(frozen=True)
class Option:
    """An option: what makes its work visible, and what is to be said about it.

    `line` is a command with `@` where the option goes; the run without it must come out otherwise, unless `idle` says
    that there is no work for it here. `before` prepares the machine for both runs. `why` tells how it differs from the
    original; for a refused one it is what the message must contain.
    """

    program: str
    name: str
    line: str
    given: str
    why: str = ""
    idle: bool = False
    refused: bool = False
    before: str = ""

    @property
    def verdict(self) -> str:
        """Return the word for the table."""
        return REFUSED if self.refused else DIFFERENT if self.why else SAME


CLI = "nvidia-container-cli"
CONFIGURE = f"{CLI} -d $T/log configure --no-cgroups"
NO_LDCONFIG = "no ldconfig runs: nvinject writes the loader cache itself"
CACHE = """$PYTHON -c 'from nvfakes.ldcache import Cache, Entry, render; import sys
one = Entry(soname="libcuda.so.1", path="/usr/lib/x86_64-linux-gnu/libcuda.so.1", flags=0x303)
sys.stdout.buffer.write(render(Cache((one,))))' >$T/cache"""
COMPAT = "mkdir -p $R/usr/local/cuda/compat; touch $R/usr/local/cuda/compat/libcuda.so.580.65.06"
NO_TOOLS = "rm -f /dev/nvidia-uvm-tools"
NO_CHANNEL = "rm -rf /dev/nvidia-caps-imex-channels"


def general(name: str, line: str, given: str, **more: "str | bool") -> Option:
    """Return an option that stands before the command."""
    return Option(CLI, name, line, given, **more)  # type: ignore[arg-type]


def listing(name: str, given: str, line: str = "list -d 0 @", **more: "str | bool") -> Option:
    """Return an option of `list`."""
    return Option(f"{CLI} list", name, f"{CLI} {line}", given, **more)  # type: ignore[arg-type]


def configure(name: str, given: str, line: str = "-d 0 @", **more: "str | bool") -> Option:
    """Return an option of `configure`."""
    return Option(f"{CLI} configure", name, f"{CONFIGURE} {line} $R", given, **more)  # type: ignore[arg-type]


OPTIONS = (
    general("--debug, -d", f"{CLI} @ configure --no-cgroups -d 0 $R", "--debug $T/log", why="lines have another form"),
    general(
        "--load-kmods, -k",
        f"{CLI} @ list -d 0",
        "-k",
        before=NO_TOOLS,
        why="modules are loaded by the kernel's own program (/proc/sys/kernel/modprobe); MIG nodes are made for all "
        "instances that exist; GPU nodes get the driver's minors, not consecutive ones",
    ),
    general("--no-pivot, -n", f"{CLI} @ {'configure --no-cgroups -d 0 $R'}", "-n", idle=True, why=NO_LDCONFIG),
    general(
        "--user, -u",
        f"{CLI} @ info",
        "--user=65534:65534",
        before="chmod 600 /dev/nvidia0",
        why="without it the driver library is loaded by the caller's own user, not by the overflow user",
    ),
    general("--root, -r", f"{CLI} @ list -l", "--root $T/root", before="mkdir -p $T/root"),
    general(
        "--ldcache, -l",
        f"{CLI} @ list -l",
        "--ldcache $T/cache",
        before=CACHE,
        why="where it leads to no driver library, the usual directories are searched",
    ),
    general(
        "--no-create-imex-channels",
        f"{CLI} -k @ list -d 0 --imex-channel=0",
        "--no-create-imex-channels",
        before=NO_CHANNEL,
    ),
    general("--help, -?", f"{CLI} @", "--help"),
    general("--usage", f"{CLI} @", "--usage", why="prints the help"),
    general("--version, -V", f"{CLI} @", "--version", why="the same seven labels; nothing was compiled"),
    general("$NVC_DEBUG_FILE", f"@ {CLI} configure --no-cgroups -d 0 $R", "NVC_DEBUG_FILE=$T/log", why="as --debug"),
    general(
        "$NVC_INSECURE_MODE",
        f"@ {CLI} configure --no-cgroups -d 0 $R",
        "NVC_INSECURE_MODE=1",
        idle=True,
        why=NO_LDCONFIG,
    ),
    general(
        "$PATH",
        f"env @ $PREFIX/bin/{CLI} list -b",
        "PATH=$T/bin:/usr/bin",
        before="mkdir -p $T/bin; cp /usr/bin/nvidia-smi $T/bin/",
        why="the usual directories are searched after it, so an unset one is no error",
    ),
    general("$CUDA_MPS_PIPE_DIRECTORY", f"@ {CLI} list -i", "CUDA_MPS_PIPE_DIRECTORY=$T/mps", before="mkdir -p $T/mps"),
    Option(f"{CLI} info", "--csv", f"{CLI} info @", "--csv"),
    listing(
        "--device, -d",
        "-d 1",
        line="list @ -b",
        why="on a host without GPU a named device is unknown, not ignored; MIG-GPU-<uuid>/<gi>/<ci> is known as well",
    ),
    listing("--libraries, -l", "-l"),
    listing("--binaries, -b", "-b"),
    listing("--ipcs, -i", "-i"),
    listing("--firmwares, -f", "-f"),
    listing("--compat32", "--compat32", line="list -l @"),
    listing("--mig-config", "--mig-config all"),
    listing("--mig-monitor", "--mig-monitor all"),
    listing("--imex-channel", "--imex-channel 0"),
    listing("--no-persistenced", "--no-persistenced", line="list -i @"),
    listing("--no-fabricmanager", "--no-fabricmanager", line="list -i @"),
    listing("--no-gsp-firmware", "--no-gsp-firmware", line="list -f @"),
    configure(
        "--pid, -p",
        "--pid $pid",
        before="unshare --mount sleep 20 & pid=$!; sleep 0.3",
        why="without it our own namespaces are meant, which are the parent's",
    ),
    configure("--device, -d", "-d 0", line="@", why="as in list"),
    configure(
        "--require, -r",
        "--require 'cuda>=99'",
        why="must be well-formed to its end; the message shows every alternative with the observed values",
    ),
    configure("--ldconfig, -l", "--ldconfig @/sbin/ldconfig", idle=True, why=NO_LDCONFIG),
    configure("--compute, -c", "-c", why="brings /etc/OpenCL/vendors/nvidia.icd too"),
    configure("--utility, -u", "-u"),
    configure("--video, -v", "-v", why="brings /etc/OpenCL/vendors/nvidia.icd too"),
    configure("--graphics, -g", "-g", why="brings the configuration files of GLVND, EGL and Vulkan too"),
    configure("--display, -D", "-D", why="brings the configuration files of GLVND, EGL and Vulkan too"),
    configure("--ngx, -n", "-n"),
    configure("--compat32", "--compat32", line="-d 0 -c @"),
    configure("--mig-config", "--mig-config all"),
    configure("--mig-monitor", "--mig-monitor all"),
    configure(
        "--imex-channel",
        "--imex-channel 0",
        why="a channel without a node is refused; only --load-kmods makes nodes",
    ),
    Option(
        f"{CLI} configure",
        "--no-cgroups",
        f"{CLI} configure @ --pid $pid -d 0 $R; cat $group/devices.list",
        "--no-cgroups",
        before="group=/sys/fs/cgroup/devices/nvinject-compat-$$; mkdir -p $group; unshare --mount sleep 20 & pid=$!; "
        "sleep 0.3; echo 'a *:* rwm' >$group/devices.deny; echo $pid >$group/cgroup.procs",
    ),
    configure("--no-devbind", "--no-devbind"),
    configure("--no-persistenced", "--no-persistenced", line="-u @"),
    configure("--no-fabricmanager", "--no-fabricmanager", line="-u @"),
    configure("--no-gsp-firmware", "--no-gsp-firmware"),
    configure("--no-cntlibs", "--no-cntlibs", line="-d 0 -c @", before=COMPAT),
    configure(
        "--cuda-compat-mode",
        "--cuda-compat-mode=disabled",
        line="-d 0 -c @",
        before=COMPAT,
        why="mount is carried out as ldconfig: nothing of an image is ever mounted",
    ),
)

CTK = "nvidia-ctk system"
MODPROBE = """printf '#!/bin/sh\\necho "$@"\\n' >$T/modprobe; chmod +x $T/modprobe
mount --bind $T/modprobe $(cat /proc/sys/kernel/modprobe 2>/dev/null || echo /sbin/modprobe)"""
NODES = "rm -f /dev/nvidia-uvm*"


def nodes(name: str, given: str, line: str = "--control-devices @", **more: "str | bool") -> Option:
    """Return an option of `create-device-nodes`."""
    return Option(f"{CTK} create-device-nodes", name, f"{CTK} create-device-nodes {line}", given, **more)  # type: ignore[arg-type]


def links(name: str, given: str, line: str = "--dev-char-path $T/char @", **more: "str | bool") -> Option:
    """Return an option of `create-dev-char-symlinks`."""
    return Option(f"{CTK} create-dev-char-symlinks", name, f"{CTK} create-dev-char-symlinks {line}", given, **more)  # type: ignore[arg-type]


SYSTEM_OPTIONS = (
    nodes("--root, --driver-root", "--root /nowhere", line="--load-kernel-modules --dry-run @"),
    nodes("--dev-root", "--dev-root $T/root", before=f"{NODES}; mkdir -p $T/root; mount -t tmpfs -o dev none $T/root"),
    nodes(
        "--control-devices",
        "--control-devices",
        line="@",
        before=NODES,
        why="owner and mode are those of the driver's parameters; a node of another number is told, exit code 1",
    ),
    nodes(
        "--load-kernel-modules",
        "--load-kernel-modules",
        before=MODPROBE,
        why="by the program in /proc/sys/kernel/modprobe",
    ),
    nodes("--dry-run", "--dry-run", before=NODES),
    links("--dev-char-path", "--dev-char-path $T/other", line="@ --dry-run"),
    links("--driver-root", "--driver-root /nowhere", line="--create-all --load-kernel-modules --dry-run @"),
    links("--create-all", "--create-all", before=NODES),
    links("--load-kernel-modules", "--load-kernel-modules", line="--create-all --dry-run @"),
    links(
        "--create-device-nodes", "--create-device-nodes", line="--dev-char-path $T/char --create-all @", before=NODES
    ),
    links("--dry-run", "--dry-run"),
)
