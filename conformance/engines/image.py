"""Images for engines that reach no registry: tars made of the host's own busybox, dynamic loader and C library.

Belongs here: what stands in an image. Does not belong here: how an engine imports it. Two families differ in what an
injector has to look at: `deb` keeps its libraries where the host's loader looks by itself, `rpm` where only the loader
cache leads.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

# The C library's parts, and what was split from it before glibc 2.34; programs may still name them.
C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
DIRECTORIES = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "var")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
FAMILIES = {
    "deb": {"etc/debian_version": b"12.8\n"},
    "rpm": {"etc/redhat-release": b"Red Hat Enterprise Linux release 9.4\n"},
}
SECONDS = 20


class ImageError(Exception):
    """The host lacks something that the image is made of."""


def build_image(family: str) -> bytes:
    """Return the tar of an image with busybox as its shell and a C library for dynamically linked programs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in (*DIRECTORIES, f"usr/lib/{triplet()}"):
            add(archive, name, tarfile.DIRTYPE, mode=0o755)
        for name, target in (LINKS | {"usr/bin/sh": "busybox"}).items():
            add(archive, name, tarfile.SYMTYPE, link=target)
        add(archive, "etc/passwd", content=b"root:x:0:0:root:/root:/bin/sh\n")
        for name, content in FAMILIES[family].items():
            add(archive, name, content=content)
        for name, path in programs():
            add(archive, name, content=path.read_bytes(), mode=0o755)
    return buffer.getvalue()


def build_archive(layer: bytes, name: str) -> bytes:
    """Return an OCI archive of an image with one layer, as `ctr image import` reads it; its process sleeps."""
    blobs: dict[str, bytes] = {}

    def store(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layers = [store("layer.v1.tar", layer)]
    settings = {"Cmd": ["/usr/bin/busybox", "sleep", "1000"], "Env": ["PATH=/usr/bin"]}
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [one["digest"] for one in layers]},
    }
    described = store("config.v1+json", json.dumps(config).encode())
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}
    entry = store("manifest.v1+json", json.dumps({**manifest, "config": described, "layers": layers}).encode())
    entry["annotations"] = {"io.containerd.image.name": name}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        add(archive, "oci-layout", content=b'{"imageLayoutVersion":"1.0.0"}')
        add(archive, "index.json", content=json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        for digest, content in blobs.items():
            add(archive, f"blobs/sha256/{digest}", content=content)
    return buffer.getvalue()


def programs() -> Iterator[tuple[str, Path]]:
    """Yield name in the image and file on the host of everything that is executed or loaded."""
    yield "usr/bin/busybox", find_busybox()
    loader, libraries = find_c_library()
    # The loader's path is written into every program; on Debian it is the same with and without the merged /usr.
    yield f"usr{loader}" if not str(loader).startswith("/usr/") else str(loader)[1:], loader.resolve()
    for path in libraries:
        yield f"usr/lib/{triplet()}/{path.name}", path.resolve()


def find_busybox() -> Path:
    """Return a statically linked busybox: it must run before anything is injected."""
    found = shutil.which("busybox")
    if found is None:
        raise ImageError("busybox is missing; install busybox-static")
    listed = subprocess.run([find("ldd"), found], capture_output=True, text=True, check=False, timeout=SECONDS)
    if "=>" in listed.stdout:
        raise ImageError(f"{found} is dynamically linked; install busybox-static")
    return Path(found)


def find_c_library() -> tuple[Path, list[Path]]:
    """Return the loader and the parts of the C library, as ldd lists them for a program of the host."""
    listed = subprocess.run([find("ldd"), find("ls")], capture_output=True, text=True, check=True, timeout=SECONDS)
    words = listed.stdout.split()
    loader = next((Path(word) for word in words if "/ld-linux" in word or "/ld64" in word), None)
    library = next((Path(word) for word in words if word.endswith("/libc.so.6")), None)
    if loader is None or library is None:
        raise ImageError("ldd shows no glibc on this machine; the image needs its loader and C library")
    return loader, [path for name in C_LIBRARY if (path := library.with_name(name)).exists()]


def find(program: str) -> str:
    """Return the path of a program that is always there with glibc and coreutils."""
    found = shutil.which(program)
    if found is None:
        raise ImageError(f"{program} is missing")
    return found


def triplet() -> str:
    """Return Debian's name for the directory of this machine's libraries."""
    return f"{os.uname().machine}-linux-gnu"


def add(
    archive: tarfile.TarFile,
    name: str,
    kind: bytes = tarfile.REGTYPE,
    *,
    content: bytes = b"",
    mode: int = 0o644,
    link: str = "",
) -> None:
    """Add one entry, owned by root."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.size = kind, mode, link, len(content)
    archive.addfile(entry, io.BytesIO(content))
