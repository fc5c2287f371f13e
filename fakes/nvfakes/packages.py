"""Real driver files: Debian's non-free driver packages, fetched when something needs them and kept in a cache.

Belongs here: which packages make up a driver branch, asking apt for them without touching the machine's own apt state,
unpacking. Does not belong here: what is done with the files. Nothing is installed, no maintainer script runs, and no
mirror's address stands in this project: it comes from the machine's own apt sources.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nvfakes.errors import FakeError

MARKER = "unpacked"  # written last, so a tree with it is whole
LAYOUT = "merged"  # part of the cache's name; change it when trees are laid out in another way
MERGED = ("bin", "lib", "lib32", "lib64", "sbin")
UPDATE_SECONDS = 180
DOWNLOAD_SECONDS = 900
UNPACK_SECONDS = 300


class PackagesError(FakeError):
    """The packages cannot be had; the message is one line that says why and what would help."""


class NoSourceError(PackagesError):
    """This machine has no apt or no apt source of a Debian archive: nothing could be fetched here at any time."""


@dataclass(frozen=True)
class DriverFiles:
    """An unpacked driver: the directory that stands for /, and the version that its files carry."""

    root: Path
    version: str


@dataclass(frozen=True)
class Branch:
    """A driver branch: the Debian release that has it and its packages; the first must exist and tells the version."""

    suite: str
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """One Debian archive of the machine: its URI as apt writes it, and the lines that say which keys sign it."""

    uri: str
    signed_by: str = ""


# The packages without version in their names serve the release's main branch.
MAIN_PACKAGES = (
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-smi",
    "libcudadebugger1",
    "libegl-nvidia0",
    "libgl1-nvidia-glvnd-glx",
    "libgles-nvidia1",
    "libgles-nvidia2",
    "libglx-nvidia0",
    "libnvcuvid1",
    "libnvidia-allocator1",
    "libnvidia-api1",
    "libnvidia-cfg1",
    "libnvidia-egl-gbm1",
    "libnvidia-eglcore",
    "libnvidia-encode1",
    "libnvidia-fbc1",
    "libnvidia-glcore",
    "libnvidia-glvkspirv",
    "libnvidia-gpucomp",
    "libnvidia-ngx1",
    "libnvidia-nvvm4",
    "libnvidia-opticalflow1",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler1",
    "libnvidia-rtcore",
    "libnvoptix1",
    "nvidia-alternative",
    "nvidia-cuda-mps",
    "nvidia-driver-bin",
    "nvidia-egl-common",
    "nvidia-egl-icd",
    "nvidia-modprobe",
    "nvidia-opencl-common",
    "nvidia-opencl-icd",
    "nvidia-persistenced",
    "nvidia-vdpau-driver",
    "nvidia-vulkan-common",
    "nvidia-vulkan-icd",
    "xserver-xorg-video-nvidia",
    "firmware-nvidia-gsp",
    "libcuda1:i386",
    "libnvidia-ml1:i386",
    "libnvidia-ptxjitcompiler1:i386",
    "libnvidia-allocator1:i386",
    "libnvcuvid1:i386",
    "libnvidia-encode1:i386",
    "libnvidia-gpucomp:i386",
)

TESLA_470_PACKAGES = (
    "libnvidia-tesla-470-cuda1",
    "libnvidia-tesla-470-ml1",
    "nvidia-tesla-470-smi",
    "libegl-nvidia-tesla-470-0",
    "libgles-nvidia-tesla-470-1",
    "libgles-nvidia-tesla-470-2",
    "libglx-nvidia-tesla-470-0",
    "libnvidia-tesla-470-allocator1",
    "libnvidia-tesla-470-cbl",
    "libnvidia-tesla-470-cfg1",
    "libnvidia-tesla-470-compiler",
    "libnvidia-tesla-470-eglcore",
    "libnvidia-tesla-470-encode1",
    "libnvidia-tesla-470-fbc1",
    "libnvidia-tesla-470-glcore",
    "libnvidia-tesla-470-glvkspirv",
    "libnvidia-tesla-470-ifr1",
    "libnvidia-tesla-470-ngx1",
    "libnvidia-tesla-470-nvcuvid1",
    "libnvidia-tesla-470-nvoptix1",
    "libnvidia-tesla-470-nvvm4",
    "libnvidia-tesla-470-opticalflow1",
    "libnvidia-tesla-470-ptxjitcompiler1",
    "libnvidia-tesla-470-rtcore",
    "nvidia-tesla-470-alternative",
    "nvidia-tesla-470-driver-bin",
    "nvidia-tesla-470-opencl-icd",
    "nvidia-tesla-470-vdpau-driver",
    "nvidia-tesla-470-vulkan-icd",
    "xserver-xorg-video-nvidia-tesla-470",
    "libnvidia-tesla-470-cuda1:i386",
    "libnvidia-tesla-470-ptxjitcompiler1:i386",
)

BRANCHES = {
    "470": Branch("bookworm", TESLA_470_PACKAGES),
    "535": Branch("bookworm", MAIN_PACKAGES),
    "550": Branch("trixie", MAIN_PACKAGES),
}


def fetch(branch: str, cache: Path | None = None) -> DriverFiles:
    """Return the unpacked driver files of a branch, from the cache or, the first time, from the machine's mirror.

    The tree is shared by everybody who asks for it: copy what you want to change. Raises PackagesError.
    """
    if branch not in BRANCHES:
        raise PackagesError(f"no driver branch {branch!r}; known are {', '.join(BRANCHES)}")
    folder = (cache or default_cache()) / f"{branch}-{fingerprint(BRANCHES[branch])}"
    with locked(folder):
        marker = folder / MARKER
        if not marker.exists():
            version = unpack_branch(BRANCHES[branch], folder)
            marker.write_text(version + "\n")
        return DriverFiles(root=folder / "root", version=marker.read_text().strip())


def default_cache() -> Path:
    """Return the folder for fetched drivers below the user's cache folder (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "nvfakes" / "drivers"


def fingerprint(branch: Branch) -> str:
    """Return a short name of a list of packages, so that a changed list is fetched anew."""
    return hashlib.sha256(" ".join((LAYOUT, branch.suite, *branch.packages)).encode()).hexdigest()[:12]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against other processes that want the same driver."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise PackagesError(f"cannot use the cache folder {folder}: {error.strerror}; set XDG_CACHE_HOME") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpack_branch(branch: Branch, folder: Path) -> str:
    """Fetch and unpack every package that the release has; returns the driver's version."""
    for program in ("apt-get", "apt-cache", "apt-config", "dpkg"):
        if shutil.which(program) is None:
            raise NoSourceError(f"{program} is missing: driver packages can be fetched on Debian only")
    apt = Apt.prepare(folder / "apt", branch.suite, find_sources(Path("/etc/apt")))
    available = apt.find_packages(branch.packages)
    if branch.packages[0] not in available:
        raise PackagesError(
            f"Debian {branch.suite} has no package {branch.packages[0]} for {architecture()} in its non-free section"
        )
    total = sum(size for _, size in available.values())
    say(f"fetching {len(available)} driver packages of Debian {branch.suite}, {total / 2**20:.0f} MiB")
    debs, root = folder / "debs", folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    debs.mkdir(exist_ok=True)
    root.mkdir()
    for number, (name, (version, size)) in enumerate(available.items(), 1):
        say(f"[{number}/{len(available)}] {name} {version}, {size / 2**20:.1f} MiB")
        for deb in apt.download(name, debs):
            run(["dpkg", "-x", str(deb), str(root)], seconds=UNPACK_SECONDS)
            deb.unlink()
    shutil.rmtree(debs)
    merge_usr(root)
    # Debian's version is the driver's plus a revision: 535.261.03-1, 470.256.02-1~deb12u1.
    return available[branch.packages[0]][0].rpartition("-")[0]


def merge_usr(root: Path) -> None:
    """Make /lib and its like links into /usr, as on every installed Debian since 12; no package holds these links."""
    for name in MERGED:
        outer, inner = root / name, root / "usr" / name
        if outer.is_dir():
            shutil.copytree(outer, inner, symlinks=True, dirs_exist_ok=True, copy_function=shutil.move)
            shutil.rmtree(outer)
        if inner.is_dir():
            outer.symlink_to(f"usr/{name}")


class Apt:
    """Calls of apt with folders of its own: the machine's lists, caches and hooks are neither read nor written."""

    def __init__(self, folder: Path) -> None:
        """Use the configuration that stands in the folder."""
        self._environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf"), "LC_ALL": "C.UTF-8"}

    @classmethod
    def prepare(cls, folder: Path, suite: str, sources: list[Source]) -> "Apt":
        """Write a configuration for the suite's non-free section; fetch its lists from the first source that has it."""
        failures = []
        for source in sources:
            shutil.rmtree(folder, ignore_errors=True)
            for name in ("lists/partial", "cache/archives/partial", "sources", "parts"):
                (folder / name).mkdir(parents=True)
            (folder / "status").touch()
            (folder / "sources" / "driver.sources").write_text(format_source(source, suite))
            (folder / "apt.conf").write_text(format_configuration(folder))
            apt = cls(folder)
            try:
                apt.run(["apt-get", "-qq", "update"], seconds=UPDATE_SECONDS)
            except PackagesError as error:
                failures.append(str(error))
            else:
                return apt
        if not failures:
            raise NoSourceError(
                "no apt source of a Debian archive in /etc/apt/sources.list or /etc/apt/sources.list.d; "
                "driver packages come from the mirror that is named there"
            )
        raise PackagesError(f"none of the machine's apt sources serves Debian {suite}: {'; '.join(failures)}")

    def run(self, command: list[str], *, seconds: int, folder: Path | None = None) -> str:
        """Run a program of apt with this configuration; returns its output."""
        return run(command, seconds=seconds, folder=folder, environment=self._environment)

    def find_packages(self, names: tuple[str, ...]) -> dict[str, tuple[str, int]]:
        """Return version and size in bytes of each package that exists, in the given order."""
        found = {}
        for name in names:
            with contextlib.suppress(PackagesError):
                text = self.run(["apt-cache", "show", "--no-all-versions", name], seconds=60)
                fields = dict(re.findall(r"^(Version|Size): (\S+)$", text, re.MULTILINE))
                if fields:
                    found[name] = (fields["Version"], int(fields["Size"]))
        return found

    def download(self, name: str, folder: Path) -> list[Path]:
        """Download one package, verified by apt against the signed release; returns the files."""
        for old in folder.glob("*.deb"):
            old.unlink()
        self.run(["apt-get", "-qq", "download", name], seconds=DOWNLOAD_SECONDS, folder=folder)
        return sorted(folder.glob("*.deb"))


def find_sources(folder: Path) -> list[Source]:
    """Return the machine's sources that may be Debian archives, each URI once; sources.list(5) tells both formats.

    Security and backport suites are left out: their archives hold other suites.
    """
    found: dict[str, Source] = {}
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for path in filter(Path.is_file, lists):
        for source in parse_list(path.read_text(errors="replace")):
            found.setdefault(source.uri, source)
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for source in parse_stanzas(path.read_text(errors="replace")):
            found.setdefault(source.uri, source)
    return list(found.values())


def parse_list(text: str) -> Iterator[Source]:
    """Yield the sources of a one-line-style file."""
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)", line.partition("#")[0])
        if match is None:
            continue
        options, uri, suite, components = match.groups()
        if "main" in components.split() and is_release(suite):
            keys = re.search(r"signed-by=(\S+)", options or "", re.IGNORECASE)
            yield Source(uri, f"Signed-By: {keys[1].replace(',', ' ')}\n" if keys else "")


def parse_stanzas(text: str) -> Iterator[Source]:
    """Yield the sources of a deb822-style file."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", plain):
        fields = {
            name.lower(): value
            for name, value in re.findall(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE)
        }
        if fields.get("enabled", "yes").strip().lower() == "no" or "deb" not in fields.get("types", "").split():
            continue
        if "main" not in fields.get("components", "").split():
            continue
        if not any(is_release(suite) for suite in fields.get("suites", "").split()):
            continue
        keys = f"Signed-By: {fields['signed-by'].rstrip()}\n" if "signed-by" in fields else ""
        for uri in fields.get("uris", "").split():
            yield Source(uri, keys)


def is_release(suite: str) -> bool:
    """Tell whether the suite is a release itself: bookworm, but not bookworm-updates or bookworm-security."""
    return re.fullmatch(r"[a-z]+", suite) is not None


def format_source(source: Source, suite: str) -> str:
    """Return the stanza for the suite's non-free and contrib sections; firmware has its own section since bookworm."""
    return (
        f"Types: deb\nURIs: {source.uri}\nSuites: {suite}\nComponents: non-free non-free-firmware contrib\n"
        f"{source.signed_by}"
    )


def format_configuration(folder: Path) -> str:
    """Return an apt.conf with every folder ours; how the machine reaches the network (proxies, certificates) is kept.

    apt reads the file that APT_CONFIG names before all others, so that `Dir::Etc::parts` here keeps the machine's own
    parts, and the hooks in them, from being read at all (apt.conf(5)).
    """
    acquire = [
        line
        for line in run(["apt-config", "dump"], seconds=60).splitlines()
        if re.match(r"Acquire::(?:http|https|ftp|Retries|ForceIPv)", line)
    ]
    settings = {
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": str(folder / "parts"),
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(folder / "sources"),
        "Dir::State": str(folder),
        "Dir::State::lists": str(folder / "lists"),
        "Dir::State::status": str(folder / "status"),
        "Dir::Cache": str(folder / "cache"),
        # As root apt would fetch as the user _apt, who cannot reach a cache folder below root's home.
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        # Otherwise an unreachable mirror is a warning, and the missing packages look as if there were none.
        "APT::Update::Error-Mode": "any",
    }
    own = [f'{name} "{value}";' for name, value in settings.items()]
    foreign = ["i386"] if architecture() == "amd64" else []
    own += [f'APT::Architectures:: "{name}";' for name in (architecture(), *foreign)]
    return "\n".join([*acquire, *own]) + "\n"


def architecture() -> str:
    """Return Debian's name for this machine's architecture."""
    return run(["dpkg", "--print-architecture"], seconds=60).strip()


def run(
    command: list[str], *, seconds: int, folder: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    """Run a program and return its output; raises PackagesError with the last thing it complained of."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise PackagesError(f"{command[0]} did not finish within {seconds} s") from error
    except OSError as error:
        raise PackagesError(f"cannot run {command[0]}: {error.strerror}") from error
    complaints = [line for line in done.stderr.splitlines() if line.startswith(("E:", "dpkg"))]
    if done.returncode != 0:
        last = (complaints or done.stderr.splitlines() or ["no message"])[0]
        raise PackagesError(f"{' '.join(command[:3])} failed with exit code {done.returncode}: {last}")
    return done.stdout


def say(message: str) -> None:
    """Tell somebody who waits how far it is; standard output belongs to the caller."""
    print(f"nvfakes: {message}", file=sys.stderr, flush=True)
