"""The layout of an image: where a container keeps libraries, and whether it brings CUDA libraries of its own.

Belongs here: looking at an image's files, always through a file descriptor of its root so that no link leads out of it.
Does not belong here: what is done with the answer (planner.py). The image is untrusted: whatever cannot be read counts
as absent.
"""

import os
import stat

from nvinject.core.model import ContainerLayout
from nvinject.core.version import parse_version
from nvinject.linux.inroot import open_in_root

COMPAT_DIRECTORY = "/usr/local/cuda/compat"
COMPAT_PREFIX = "libcuda.so."

# Machine as uname(2) names it: Debian's triplet, that of its 32-bit variant, and musl's name for it.
_TRIPLETS = {
    "x86_64": ("x86_64-linux-gnu", "i386-linux-gnu", "x86_64"),
    "aarch64": ("aarch64-linux-gnu", "", "aarch64"),
    "ppc64le": ("powerpc64le-linux-gnu", "", "powerpc64le"),
}


def observe_layout(root_fd: int, machine: str = "") -> ContainerLayout:
    """Return the layout of the image below an opened root directory; `machine` is this host's unless given.

    The rules are the original's (driver-files.md, section 3).
    """
    name = machine or os.uname().machine
    triplet, triplet32, musl = _TRIPLETS.get(name, ("", "", name))
    is_debian = bool(triplet) and _exists(root_fd, "/etc/debian_version")
    compat_directory, compat_version = _find_compat(root_fd)
    return ContainerLayout(
        library_directory=f"/usr/lib/{triplet}" if is_debian else "/usr/lib64",
        library32_directory=_debian32(triplet32) if is_debian else _other32(root_fd),
        musl_path_file=_musl_path_file(root_fd, musl),
        compat_directory=compat_directory,
        compat_version=compat_version,
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


def _find_compat(root_fd: int) -> tuple[str, str]:
    """Return the link-free directory of the image's CUDA compatibility libraries and the newest driver they are for."""
    try:
        directory = open_in_root(root_fd, COMPAT_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return "", ""
    try:
        names = [name for name in os.listdir(directory) if name.startswith(COMPAT_PREFIX)]
        versions = [name.removeprefix(COMPAT_PREFIX) for name in names if _is_file(directory, name)]
        path = _path_below(root_fd, directory)
    except OSError:
        return "", ""
    finally:
        os.close(directory)
    usable = [version for version in versions if "." in version and _is_version(version)]
    return (path, max(usable, key=parse_version)) if usable and path else ("", "")


def _is_file(directory_fd: int, name: str) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)


def _is_version(text: str) -> bool:
    try:
        parse_version(text)
    except ValueError:
        return False
    return True


def _path_below(root_fd: int, descriptor: int) -> str:
    root = os.readlink(f"/proc/self/fd/{root_fd}").rstrip("/")
    found = os.readlink(f"/proc/self/fd/{descriptor}")
    return found[len(root) :] if found.startswith(root + "/") else ""


def _exists(root_fd: int, path: str) -> bool:
    return _stat(root_fd, path) is not None


def _stat(root_fd: int, path: str) -> "os.stat_result | None":
    try:
        descriptor = open_in_root(root_fd, path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)
