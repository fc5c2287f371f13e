"""A driver root: the machine's driver files copied to where a distribution keeps them.

Belongs here: which files those are, and laying them out. Does not belong here: what an injector makes of them. Copies
and not binds, so that every lane can have them. Standard library only.
"""

import contextlib
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nvconform import ldconfig
from nvconform.case import Driver

LIBRARY_NAMES = re.compile(r"lib(cuda|nv|.*nvidia).*\.so(\..*)?")
USELESS_CACHE = b"glibc-ld.so.cache1.1" + b"\0" * 28
MACHINE_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
FIRMWARE = "usr/lib/firmware/nvidia"


class DriverRoot:
    """The copy of one case; `named` finds its files by their names."""

    def __init__(self, place: Path, driver: Driver, machine_root: Path, sets: Mapping[str, Any]) -> None:
        """Name everything; nothing is written yet."""
        self.path = place / driver.root.strip("/")
        self.driver = driver
        self.machine_root = machine_root
        self.sets = sets

    def build(self) -> None:
        """Write the whole root."""
        for source, target in self._files():
            path = self._below(target)
            path.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                path.symlink_to(source.readlink())
            elif stat.S_ISSOCK(source.lstat().st_mode):
                _make_socket(path)
            else:
                shutil.copy2(source, path)
        for link, text in self.driver.links.items():
            self._below(link).parent.mkdir(parents=True, exist_ok=True)
            self._below(link).symlink_to(text)
        if self.driver.nodes:
            self._make_nodes()
        self._write_loader_cache()

    def named(self, name: str) -> Iterator[Path]:
        """Yield the files with a name."""
        for folder, _, names in os.walk(self.path):
            if name in names:
                yield Path(folder, name)

    def _below(self, path: str) -> Path:
        return self.path / path.lstrip("/")

    def _files(self) -> Iterator[tuple[Path, str]]:
        """Yield each file of the machine's driver and its place in this root."""
        for folder in MACHINE_LIBRARIES:
            with contextlib.suppress(OSError):
                for entry in sorted((self.machine_root / folder).iterdir()):
                    if LIBRARY_NAMES.fullmatch(entry.name) and not entry.is_dir():
                        yield entry, f"{self.driver.libraries}/{entry.name}"
        firmware = self.machine_root / FIRMWARE
        for entry in sorted(firmware.glob("*/*.bin")):
            yield entry, f"{self.driver.firmware}/nvidia/{entry.parent.name}/{entry.name}"
        for capability in self.sets["capabilities"].values():
            moved = [(f"/usr/bin/{name}", f"{self.driver.programs}/{name}") for name in capability.get("binaries", ())]
            kept = [*capability.get("sockets", ()), *capability.get("configuration", ())]
            for source, target in (*moved, *((path, path) for path in kept)):
                path = self.machine_root / source.lstrip("/")
                if path.exists() and not self._below(target).exists():
                    yield path, target

    def _make_nodes(self) -> None:
        for source in sorted((self.machine_root / "dev").glob("nvidia*")):
            status = source.lstat()
            if stat.S_ISCHR(status.st_mode):
                path = self._below(f"/dev/{source.name}")
                path.parent.mkdir(exist_ok=True)
                os.mknod(path, status.st_mode, status.st_rdev)
                path.chmod(stat.S_IMODE(status.st_mode))

    def _write_loader_cache(self) -> None:
        cache = self._below("/etc/ld.so.cache")
        cache.parent.mkdir(parents=True, exist_ok=True)
        if self.driver.loader_cache == "useless":
            cache.write_bytes(USELESS_CACHE)
        elif self.driver.loader_cache == "made":
            self._below("/etc/ld.so.conf").write_text(f"{self.driver.libraries}\n")
            ldconfig.write_cache(self.path)


def _make_socket(path: Path) -> None:
    """Bind a socket through its folder's descriptor, because a socket's address holds only 108 bytes."""
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(f"/proc/self/fd/{parent}/{path.name}")
    finally:
        os.close(parent)
