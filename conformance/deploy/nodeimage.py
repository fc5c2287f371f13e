"""What the image of the node DaemonSet is built from where no registry is reached: this machine's own programs.

Belongs here: the base image and the build context. Does not belong here: building (docker does) and running.
"""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

from engines.image import add, find

from .freshroot import REPOSITORY

PYTHON = Path("/usr/bin/python3")
# Debian's slim image has all but the last two, which the Dockerfile installs where they are missing.
PROGRAMS = (
    *(
        "sh",
        "bash",
        "env",
        "chroot",
        "cp",
        "mv",
        "rm",
        "mkdir",
        "rmdir",
        "cat",
        "touch",
        "chmod",
        "ln",
        "ls",
        "readlink",
    ),
    *(
        "basename",
        "dirname",
        "sort",
        "head",
        "cut",
        "sha256sum",
        "sed",
        "grep",
        "find",
        "cmp",
        "ldd",
        "tar",
        "dpkg-deb",
    ),
    *("sleep", "patchelf"),
)
UNUSED = {"test", "idlelib", "lib2to3", "ensurepip", "__pycache__", "dist-packages"}
SECONDS = 30


class BaseError(Exception):
    """This machine lacks a program of the base image."""


def build_base() -> bytes:
    """Return the tar of a base image: programs, their libraries, Debian's Python; raises BaseError."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not PYTHON.exists():
        raise BaseError(f"not installed: {', '.join(missing or [str(PYTHON)])}")
    python = PYTHON.resolve()
    library = Path("/usr/lib") / python.name
    programs = {Path(find(name)) for name in PROGRAMS} | {python}
    modules = [path for path in library.rglob("*") if path.is_file() and not UNUSED & set(path.parts)]
    wanted = {path.resolve() for path in libraries([*programs, *(path for path in modules if path.suffix == ".so")])}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("dev", "etc", "proc", "sys", "usr", "usr/bin", "usr/lib", "tmp", "var"):
            add(archive, name, tarfile.DIRTYPE, mode=0o755)
        for name, target in {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/bin"}.items():
            add(archive, name, tarfile.SYMTYPE, link=target)
        for path in programs:
            add(archive, f"usr/bin/{path.name}", content=path.read_bytes(), mode=0o755)
        add(archive, "usr/bin/python3", tarfile.SYMTYPE, link=python.name)
        for path in modules:
            add(archive, str(path)[1:], content=path.read_bytes())
        for path in wanted:
            add(archive, str(path)[1:], content=path.read_bytes(), mode=0o755)
        for path in libraries([*programs, *(path for path in modules if path.suffix == ".so")]):
            merged = path if str(path).startswith("/usr/") else Path(f"/usr{path}")
            if merged != path.resolve():
                add(archive, str(merged)[1:], tarfile.SYMTYPE, link=str(path.resolve()))
    return buffer.getvalue()


def libraries(files: list[Path]) -> list[Path]:
    """Return the libraries and the loader that programs and libraries need, and the C library's parts by old names."""
    listed = subprocess.run(
        [find("ldd"), *map(str, files)], capture_output=True, text=True, check=False, timeout=SECONDS
    ).stdout.split()
    paths = sorted({Path(word) for word in listed if word.startswith("/") and ":" not in word})
    directory = next(path.parent for path in paths if path.name == "libc.so.6")
    return [*paths, *(directory / name for name in ("libdl.so.2", "libpthread.so.0", "librt.so.1"))]


def lay_out_context(folder: Path, package: Path) -> None:
    """Lay out what `docker build` is given: the package in dist, and the image's own files."""
    (folder / "dist").mkdir(parents=True)
    shutil.copy(package, folder / "dist")
    shutil.copytree(REPOSITORY / "deploy" / "kubernetes" / "image", folder / "deploy" / "kubernetes" / "image")
