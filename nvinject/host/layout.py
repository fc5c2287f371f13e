"""The layout of an image: where a container keeps libraries, and whether it brings CUDA libraries of its own.

Belongs here: looking at an image's files, always through a file descriptor of its root so that no link leads out of it.
Does not belong here: what is done with the answer (planner.py). The image is untrusted: whatever cannot be read counts
as absent, unless it is our own trouble (no memory, no descriptors).
"""

import stat

from nvinject import leanos as os
from nvinject.core.compat import choose_version
from nvinject.core.model import CompatNote, ContainerLayout
from nvinject.linux.inroot import ignore_absence, open_in_root

COMPAT_DIRECTORY = "/usr/local/cuda/compat"
COMPAT_PREFIX = "libcuda.so."
MOST_COMPAT_FILES = 1024  # of that prefix; real images have one or two

# Machine as uname(2) names it: Debian's triplet, that of its 32-bit variant, and musl's name for it.
_TRIPLETS = {
    "x86_64": ("x86_64-linux-gnu", "i386-linux-gnu", "x86_64"),
    "aarch64": ("aarch64-linux-gnu", "", "aarch64"),
    "ppc64le": ("powerpc64le-linux-gnu", "", "powerpc64le"),
}


def observe_layout(root_fd: int, machine: str = "", *, compat: str = "", created: bool = False) -> ContainerLayout:
    """Return the layout of the image below an opened root directory; `machine` is this host's unless given.

    `compat` is where CUDA compatibility libraries are looked for (COMPAT_DIRECTORY unless given); `created` says that
    the process exists already. The rules are the original's.
    """
    name = machine or os.uname().machine
    triplet, triplet32, musl = _TRIPLETS.get(name, ("", "", name))
    is_debian = bool(triplet) and _exists(root_fd, "/etc/debian_version")
    compat_directory, compat_version, compat_note = _find_compat(root_fd, compat or COMPAT_DIRECTORY)
    return ContainerLayout(
        library_directory=f"/usr/lib/{triplet}" if is_debian else "/usr/lib64",
        library32_directory=_debian32(triplet32) if is_debian else _other32(root_fd),
        musl_path_file=_musl_path_file(root_fd, musl),
        compat_directory=compat_directory,
        compat_version=compat_version,
        compat_note=compat_note,
        is_created=created,
    )


def _debian32(triplet32: str) -> str:
    return f"/usr/lib/{triplet32}" if triplet32 else ""


def _other32(root_fd: int) -> str:
    """Return the 32-bit directory where there are no triplets: /usr/lib32, or a /usr/lib that is not for 64 bits."""
    if not _exists(root_fd, "/usr/lib32"):
        plain = _stat(root_fd, "/usr/lib")
        wide = _stat(root_fd, "/usr/lib64")
        if plain is not None and (wide is None or (plain.st_dev, plain.st_ino) != (wide.st_dev, wide.st_ino)):
            return "/usr/lib"
    return "/usr/lib32"


def _musl_path_file(root_fd: int, machine: str) -> str:
    if _exists(root_fd, f"/lib/ld-musl-{machine}.so.1") or _exists(root_fd, "/etc/alpine-release"):
        return f"/etc/ld-musl-{machine}.path"
    return ""


def _find_compat(root_fd: int, place: str) -> tuple[str, str, CompatNote | None]:
    """Return the link-free directory of the image's CUDA libraries, the newest driver they are for, and their note."""
    try:
        directory = open_in_root(root_fd, place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        ignore_absence(error)
        return "", "", None
    try:
        names = [name for name in os.listdir(directory) if name.startswith(COMPAT_PREFIX)][:MOST_COMPAT_FILES]
        versions = [name.removeprefix(COMPAT_PREFIX) for name in names if _is_file(directory, name)]
        path = _path_below(root_fd, directory)
        newest = choose_version(tuple(versions))
        if not newest or not path:
            return "", "", None
        return path, newest, _read_note(directory, f"{COMPAT_PREFIX}{newest}")
    except OSError as error:
        ignore_absence(error)
        return "", "", None
    finally:
        os.close(directory)


def _read_note(directory_fd: int, name: str) -> CompatNote | None:
    """Return what a library says of itself; whoever swaps it for a link or a pipe meanwhile gets no note."""
    from nvinject.formats.compatnote import read_forward_note  # few images have such libraries

    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory_fd)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        note = read_forward_note(lambda offset, size: os.pread(descriptor, size, offset))
    finally:
        os.close(descriptor)
    return None if note is None else CompatNote(drivers=note.drivers, cuda_version=note.cuda_version)


def _is_file(directory_fd: int, name: str) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)


def _path_below(root_fd: int, descriptor: int) -> str:
    root = os.readlink(f"/proc/self/fd/{root_fd}").rstrip("/")
    found = os.readlink(f"/proc/self/fd/{descriptor}")
    return found[len(root) :] if found.startswith(root + "/") else ""


def _exists(root_fd: int, path: str) -> bool:
    return _stat(root_fd, path) is not None


def _stat(root_fd: int, path: str) -> "os.stat_result | None":
    try:
        descriptor = open_in_root(root_fd, path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        ignore_absence(error)
        return None
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)
