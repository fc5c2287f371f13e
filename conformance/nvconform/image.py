"""Root file systems of containers: small images of several families, and what a case lays over them.

Belongs here: making a file tree, also a hostile one, and generating the shared objects that stand in for libraries of
an image. Does not belong here: config.json (bundle.py). Everything is written below one directory, and no link of the
tree is followed while writing.
"""

import json
import os
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvconform import ldconfig
from nvconform.case import Container

PROBE_DIRECTORY = ".probe"
BASE_DIRECTORIES = ("dev", "proc", "sys", "tmp", "run", "etc", "root", "var", PROBE_DIRECTORY)
MERGED_USR = ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64")
MERGED_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "/run"}
SPLIT_USR = ("bin", "sbin", "lib", "usr/bin", "usr/sbin", "usr/lib")

FAMILY_FILES: dict[str, dict[str, str]] = {
    "deb": {"etc/debian_version": "12.8\n", "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n"},
    "rpm": {
        "etc/redhat-release": "Red Hat Enterprise Linux release 9.4\n",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\n",
    },
    "musl": {
        "etc/alpine-release": "3.20.3\n",
        "lib/ld-musl-x86_64.so.1": "",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\n",
    },
    "empty": {},
}
FAMILY_DIRECTORIES = {"deb": ("usr/lib/x86_64-linux-gnu",), "rpm": (), "musl": (), "empty": ()}


class Image:
    """One root file system on disk, written path by path."""

    def __init__(self, root: Path, substitutions: Mapping[str, str]) -> None:
        """Take the directory and what `${name}` stands for in link targets and file contents."""
        self.root = root
        self.substitutions = substitutions

    def build(self, container: Container, busybox: Path) -> None:
        """Write the image of a case: family, then removals and additions."""
        self._write_family(container.image, busybox)
        for path in container.remove:
            self._remove(path)
        for path in container.directories:
            self.path(path).mkdir(parents=True, exist_ok=True)
        for path, content in container.files.items():
            self._write_file(path, content)
        for path, soname in container.libraries.items():
            noted = isinstance(soname, Mapping)
            data = shared_object(soname["soname"], soname["note"]) if noted else shared_object(soname)
            self._write(path, data, 0o755)
        for path, target in container.links.items():
            self._remove(path)
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            self.path(path).symlink_to(self.substitute(target))
        for path in container.fifos:
            self._remove(path)
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(self.path(path), 0o644)
        if container.loader_cache:
            ldconfig.write_cache(self.root)
        self._make_mount_points(container)

    def path(self, inside: str) -> Path:
        """Return the place on disk of a path of the image."""
        return self.root / inside.lstrip("/")

    def substitute(self, text: str) -> str:
        """Return text with `${name}` replaced."""
        for name, value in self.substitutions.items():
            text = text.replace(f"${{{name}}}", value)
        return text

    def _write_family(self, family: str, busybox: Path) -> None:
        merged = family in {"deb", "rpm"}
        for path in (*BASE_DIRECTORIES, *(MERGED_USR if merged else SPLIT_USR), *FAMILY_DIRECTORIES[family]):
            self.path(path).mkdir(parents=True, exist_ok=True)
        if merged:
            for link, target in MERGED_LINKS.items():
                self.path(link).symlink_to(target)
        for path, content in FAMILY_FILES[family].items():
            self._write(path, content.encode(), 0o644)
        # A hard link keeps a case cheap; the image of another file system gets a copy.
        try:
            self.path(f"{PROBE_DIRECTORY}/busybox").hardlink_to(busybox)
        except OSError:
            shutil.copy2(busybox, self.path(f"{PROBE_DIRECTORY}/busybox"))

    def _write_file(self, path: str, content: Any) -> None:
        if isinstance(content, str):
            self._write(path, self.substitute(content).encode(), 0o644)
            return
        mode = int(content.get("mode", "0644"), 8)
        if "copy" in content:
            self._write(path, Path(content["copy"]).read_bytes(), mode)
        else:
            self._write(path, self.substitute(content.get("text", "")).encode(), mode)
        if "megabytes" in content:
            os.truncate(self.path(path), int(content["megabytes"]) << 20)

    def _write(self, path: str, content: bytes, mode: int) -> None:
        target = self.path(path)
        if target.is_symlink():
            target.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)

    def _remove(self, path: str) -> None:
        target = self.path(path)
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.is_dir():
            shutil.rmtree(target)

    def _make_mount_points(self, container: Container) -> None:
        # Otherwise the runtime makes them, and they would look like changes of the image.
        for mount in container.mounts:
            target = self.path(self._inside(str(mount["destination"])))
            if target.exists() or target.is_symlink():
                continue
            if Path(str(mount["source"])).is_dir():
                target.mkdir(parents=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()

    def _inside(self, path: str) -> str:
        return path.replace("/var/run/", "/run/") if self.path("var/run").is_symlink() else path


def shared_object(soname: str, note: Mapping[str, Any] | None = None) -> bytes:
    """Return a minimal 64-bit shared object whose dynamic section holds a SONAME: enough for ldconfig and injectors.

    `note` becomes the description of a section .note.cuda.fwd_compatibility, as CUDA's own libraries have it.
    """
    strings = b"\0" + soname.encode() + b"\0"
    header_size, program_size, section_size = 64, 56, 64
    dynamic_offset = header_size + 2 * program_size
    entries = [(14, 1), (5, 0), (10, len(strings)), (0, 0)]  # SONAME, STRTAB, STRSZ, NULL
    strings_offset = dynamic_offset + 16 * len(entries)
    entries[1] = (5, strings_offset)
    total = strings_offset + len(strings)
    machine = 183 if os.uname().machine == "aarch64" else 62
    notes, table = (b"", b"") if note is None else _noted(note, total)
    sections = (total + len(notes), section_size, 3, 2) if note is not None else (0, section_size, 0, 0)
    header = struct.pack(
        "<4sBBBBB7xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, 0),
        *(3, machine, 1, 0, header_size, sections[0], 0),
        *(header_size, program_size, 2, *sections[1:]),
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, total, total, 4096)
    size = 16 * len(entries)
    dynamic = struct.pack("<IIQQQQQQ", 2, 4, dynamic_offset, dynamic_offset, dynamic_offset, size, size, 8)
    body = b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)
    return header + load + dynamic + body + strings + notes + table


def _noted(note: Mapping[str, Any], offset: int) -> tuple[bytes, bytes]:
    """Return what follows a file's other content: note, names, and the table of an empty section and both."""
    owner = b"NVIDIA Corporation\0"
    text = json.dumps(note).encode()
    content = struct.pack("<3I", len(owner), len(text), 1) + owner
    content = content.ljust((len(content) + 3) // 4 * 4, b"\0") + text
    content = content.ljust((len(content) + 7) // 8 * 8, b"\0")
    names = b"\0.note.cuda.fwd_compatibility\0.shstrtab\0"
    rows = [
        (0, 0, 0, 0),
        (1, 7, offset, len(content)),
        (names.index(b".shstrtab"), 3, offset + len(content), len(names)),
    ]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, size, 0, 0, 4, 0) for name, kind, at, size in rows
    )
    return content + names, table
