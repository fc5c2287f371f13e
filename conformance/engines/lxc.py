"""LXC on a declared machine: a container's folder, and lxc-execute in a mount namespace of its own.

Belongs here: settings, the call, and what a call leaves behind. Does not belong here: what containers are asked. LXC's
hook of the kind `mount` runs as the container's own root, so everything that it needs lies where every user may go.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

CALL_SECONDS = 120
HOOK = Path("/usr/share/lxc/hooks/nvidia")
FIRST_ID, IDS = 100000, 65536
ORDINARY_USER = 65534
# What the hook and the interpreter need, and where the container's root can read it.
MODULES = ("nvinject", "pynvml")
# procfs can be mounted in a user namespace only where another one is wholly to be seen, which a declared machine's is
# not. LXC takes no hybrid view of the cgroups. newuidmap asks /etc/subuid also for root, whose ranges LXC wants.
BEFORE = """\
set -e
mkdir -p /run/nvconform-proc /run/nvconform-sys
mount -t proc proc /run/nvconform-proc; mount -t sysfs sys /run/nvconform-sys
if [ "$UNIFIED" ]; then umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup
else umount /sys/fs/cgroup/unified 2>/dev/null || true; fi
echo root:{first}:{ids} >>/etc/subuid; echo root:{first}:{ids} >>/etc/subgid
"""
# An ordinary user of LXC: a name with ranges of ids, and a cgroup of its own in each hierarchy, as a login gives it.
USER_ID = 4242
AS_USER = """\
echo lxcuser:x:{user}:{user}::/:/bin/sh >>/etc/passwd; echo lxcuser:x:{user}: >>/etc/group
echo lxcuser:{first}:{ids} >>/etc/subuid; echo lxcuser:{first}:{ids} >>/etc/subgid
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then set -- /sys/fs/cgroup; else set -- /sys/fs/cgroup/*/; fi
for hierarchy; do
    own="$hierarchy"/{cgroup}; mkdir -p $own
    for name in cpus mems; do [ ! -e $own/cpuset.$name ] || cat $hierarchy/cpuset.$name >$own/cpuset.$name; done
    chown -R {user}:{user} $own; echo $$ >$own/cgroup.procs
done
"""
LOGIN = ("setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", "env")
# A container as LXC's own templates make it, but for the network: nothing may be opened that is not allowed. The bind
# does what the kernel of a machine with the driver does: it shows the driver in each procfs.
SETTINGS = """\
lxc.uts.name = {name}
lxc.rootfs.path = dir:{folder}/rootfs
lxc.net.0.type = empty
lxc.mount.auto = proc:mixed
lxc.mount.entry = /proc/driver proc/driver none rbind,create=dir,optional 0 0
lxc.cgroup.devices.deny = a
lxc.cgroup2.devices.deny = a
lxc.cgroup.devices.allow = c 1:3 rwm
lxc.cgroup2.devices.allow = c 1:3 rwm
lxc.init.cmd = /usr/bin/busybox sleep 100
"""
MAPPED = f"lxc.idmap = u 0 {FIRST_ID} {IDS}\nlxc.idmap = g 0 {FIRST_ID} {IDS}\n"


class LxcError(Exception):
    """LXC cannot be tried here."""


@dataclass(frozen=True)
class Outcome:
    """What a container printed, and what LXC wrote into its log."""

    code: int
    out: str
    err: str
    log: str


def find_missing() -> str:
    """Return why LXC cannot be tried here, "" where it can."""
    for program, package in (("lxc-execute", "lxc"), ("newuidmap", "uidmap"), ("cc", "gcc and libc6-dev")):
        if shutil.which(program) is None:
            return f"{program} is missing; install {package}"
    return "" if HOOK.is_file() else f"{HOOK} is missing; LXC's packages bring it"


def find_interpreter() -> str:
    """Return an interpreter that the root of an unprivileged container can start; raises LxcError."""
    candidates = (sys.executable, "/usr/bin/python3")
    for candidate in candidates:
        with contextlib.suppress(OSError):
            tried = subprocess.run(
                [candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                user=ORDINARY_USER,
                group=ORDINARY_USER,
                extra_groups=[],
                capture_output=True,
                timeout=CALL_SECONDS,
                check=False,
            )
            if tried.returncode == 0:
                return candidate
    raise LxcError(f"an ordinary user can start none of {', '.join(candidates)} with Python 3.11 or newer")


@dataclass
class Lxc:
    """Containers of LXC on one machine; all of them and nvinject lie in `folder`."""

    machine: str
    archive: bytes
    folder: Path = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        """Install nvinject where everybody can run it."""
        self.folder = Path(tempfile.mkdtemp(prefix="nvconform-lxc-", dir="/tmp"))
        self.folder.chmod(0o755)
        modules = self.folder / "modules"
        modules.mkdir()
        for name in MODULES:
            source = Path(__import__(name).__file__ or "")
            if source.name == "__init__.py":
                shutil.copytree(source.parent, modules / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, modules / source.name)
        done = subprocess.run(
            [find_interpreter(), "-m", "nvinject", "install", "--prefix", str(self.folder / "prefix"), "--links"],
            env={"PYTHONPATH": str(modules)},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=CALL_SECONDS,
        )
        if done.returncode != 0:
            raise LxcError(done.stderr)

    def make_container(self, settings: str, *, mapped: bool = True, rootfs: str = "rootfs") -> Path:
        """Write root file system and configuration of a new container; returns its folder."""
        self.count += 1
        place = self.folder / f"{self.folder.name[-8:]}-{self.count}"
        place.mkdir()
        with tarfile.open(fileobj=BytesIO(self.archive)) as archive:
            archive.extractall(place / rootfs, filter="fully_trusted")
        if mapped:
            for directory, names, files in os.walk(place / rootfs):
                for name in (*names, *files, "."):
                    os.chown(os.path.join(directory, name), FIRST_ID, FIRST_ID, follow_symlinks=False)
        # With -l DEBUG, LXC's hook has nvidia-container-cli write its steps here. LXC itself notes only the first ten
        # pieces of a hook's output, and a mkdir that fails would use up four of them.
        (place / "hook").mkdir()
        os.chown(place / "hook", FIRST_ID, FIRST_ID)
        text = SETTINGS.format(name=place.name, folder=place) + (MAPPED if mapped else "") + settings
        (place / "config").write_text(text)
        return place

    def on_machine(self, script: str, *, unified: bool = False) -> "subprocess.CompletedProcess[str]":
        """Run a shell script on the machine, ready for LXC."""
        begin = BEFORE.format(first=FIRST_ID, ids=IDS)
        start = [sys.executable, "-m", "nvfakes", "run", "--lane", "root", self.machine, "--", "unshare", "--mount"]
        return subprocess.run(
            [*start, "sh", "-c", begin + script],
            capture_output=True,
            text=True,
            check=False,
            timeout=CALL_SECONDS,
            env={
                "PATH": f"{self.folder}/prefix/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": str(Path.home()),
                "NVIDIA_CTK_CONFIG_FILE_PATH": str(self.config()),
                "UNIFIED": "1" if unified else "",
            },
        )

    def config(self) -> Path:
        """Return a config.toml without settings."""
        path = self.folder / "config.toml"
        path.touch()
        return path

    def execute(
        self, place: Path, script: str, *, before: str = "true", unified: bool = False, by_user: bool = False
    ) -> Outcome:
        """Start a container for a script of its shell, after a script of the host's; as root or as an ordinary user."""
        log = place / "log"
        log.unlink(missing_ok=True)
        start = ["lxc-execute", "-n", place.name, "-P", str(self.folder), "-l", "DEBUG", "-o", str(log)]
        if by_user:
            os.chown(place, USER_ID, USER_ID)
            start = [*LOGIN, f"HOME={place}", *start]
            before += "\n" + AS_USER.format(user=USER_ID, first=FIRST_ID, ids=IDS, cgroup=self.cgroup)
        call = shlex.join([*start, "--", "/bin/sh", "-c", script])
        done = self.on_machine(f"{before}\nexec timeout 60 {call}", unified=unified)
        return Outcome(done.returncode, done.stdout, done.stderr, log.read_text() if log.exists() else "")

    @property
    def cgroup(self) -> str:
        """The name of the ordinary user's cgroups."""
        return f"nvconform-user-{self.folder.name[-8:]}"

    def close(self) -> None:
        """Remove containers, nvinject and what LXC leaves of its cgroups."""
        for own in (*Path("/sys/fs/cgroup").glob(f"*/{self.cgroup}"), Path("/sys/fs/cgroup", self.cgroup)):
            for folder, _, _ in os.walk(own, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        for name in ("lxc.pivot", f"lxc.payload.{self.folder.name[-8:]}-*", f"lxc.monitor.{self.folder.name[-8:]}-*"):
            for found in (*Path("/sys/fs/cgroup").glob(f"*/{name}"), *Path("/sys/fs/cgroup").glob(name)):
                with contextlib.suppress(OSError):
                    found.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)
