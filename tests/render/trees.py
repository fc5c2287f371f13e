"""Trees of libraries for tests: small ELF files at real places, and what the real ldconfig makes of them."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.formats.elfbuilder import build_elf
from tests.ldconfig import find_ldconfig, write_cache

MACHINE = os.uname().machine
_NATIVE = {"x86_64": (62, 3), "aarch64": (183, 40)}
TRIPLET = f"{MACHINE}-linux-gnu"


class Tree:
    """A root file system below a directory of the test."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, path: str) -> Path:
        """Return where a path of the tree is on this machine, its directory made."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def library(self, path: str, soname: str | None = "", *, bits: int = 64) -> None:
        """Put a shared object; its SONAME is the file's name unless given, None for none."""
        native = _NATIVE[MACHINE]
        name = path.rpartition("/")[2] if soname == "" else soname
        self.path(path).write_bytes(build_elf(bits=bits, machine=native[bits == 32], soname=name))

    def versioned(self, directory: str, name: str, versions: str, *, bits: int = 64, development: bool = False) -> None:
        """Put NAME.so.VERSIONS with SONAME NAME.so.MAJOR, and the links that a package brings."""
        soname = f"{name}.so.{versions.partition('.')[0]}"
        file = f"{name}.so.{versions}"
        self.library(f"{directory}/{file}", soname, bits=bits)
        if file != soname:
            self.link(f"{directory}/{soname}", file)
        if development:
            self.link(f"{directory}/{name}.so", file)

    def link(self, path: str, target: str) -> None:
        """Put a symbolic link."""
        self.path(path).symlink_to(target)

    def text(self, path: str, content: str) -> None:
        """Put a text file."""
        self.path(path).write_text(content)

    def ldconfig(self, *options: str) -> None:
        """Let the real ldconfig write the tree's cache."""
        ldconfig()
        write_cache(self.root, *options)

    def copy(self, root: Path) -> "Tree":
        """Return a copy of the tree, links as links."""
        subprocess.run(["cp", "-a", str(self.root), str(root)], check=True)
        return Tree(root)

    def cache(self) -> "Path":
        """Return where the cache is."""
        return self.root / "etc/ld.so.cache"

    def names(self) -> dict[str, tuple[int, int, str | bytes]]:
        """Return everything below the root: inode, mode and content or target by path."""
        found: dict[str, tuple[int, int, str | bytes]] = {}
        for directory, directories, files in os.walk(self.root):
            for name in (*directories, *files):
                path = Path(directory) / name
                status = path.lstat()
                content: str | bytes = ""
                if path.is_symlink():
                    content = os.readlink(path)
                elif path.is_file() and status.st_size < 1 << 20:
                    content = path.read_bytes()
                found[str(path)] = (status.st_ino, status.st_mode, content)
        return found


def ldconfig() -> str:
    """Return the path of the real ldconfig, or skip where it would take our libraries for another machine's."""
    if MACHINE not in _NATIVE:
        pytest.skip(f"no small ELF files for {MACHINE}")
    return find_ldconfig()


def shown(cache: Path) -> list[str]:
    """Return the lines that the real ldconfig prints for a cache, without the first and the last."""
    command = [ldconfig(), "-p", "-C", str(cache)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={"LC_ALL": "C"})
    assert done.stderr == ""
    return [line.strip() for line in done.stdout.split("\n") if line.startswith("\t")]
