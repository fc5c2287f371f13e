"""Compiling the C programs once per host into a cache.

Belongs here: the compiler's command lines and the cache. Does not belong here: anything about one machine (image.py).
The results must load with any C library since 2011 or so: they are linked against stand-ins for the C library whose
symbols have no version, so that the loader takes whatever version the container's own C library has.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from nvfakes.errors import FakeError

SOURCES = Path(__file__).parent
BRANCHES = (535, 550, 560, 999)
# The first branch with symbols of a known time that 560 does not have: limits of memory came with CUDA 13.4.
NEWEST_KNOWN = 615
LIBRARY_SOURCES = (
    "data.c", "lifecycle.c", "device.c", "system.c", "mig.c", "board.c", "errors.c", "links.c", "fields.c",
    "processes.c", "events.c", "table.c", "settings.c",
)  # fmt: skip
DXCORE_SOURCES = ("data.c", "dxcore.c")
DXCORE_SYMBOLS = ("D3DKMTEnumAdapters2", "D3DKMTEnumAdapters3", "D3DKMTQueryAdapterInfo")
CUDA_SOURCES = ("data.c", "lifecycle.c", "device.c", "links.c", "cuda.c")

_LIBC = (
    "open", "close", "read", "usleep", "nanosleep", "__errno_location", "memcpy", "memset",
    "socket", "connect", "write", "getenv",
)  # fmt: skip
_SMI_LIBC = ("printf", "puts", "putchar", "strstr", "strcmp", "exit")
_SMI_LIBDL = ("dlopen", "dlsym")
_FLAGS = (
    "-std=gnu11", "-O1", "-Wall", "-Wextra", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-fvisibility=hidden",
    "-fno-asynchronous-unwind-tables", "-nostdlib", "-Wl,--build-id=none", "-Wl,-z,noexecstack",
    "-Wl,--hash-style=both",
)  # fmt: skip


def cache_directory() -> Path:
    """Return the directory in which compiled files are kept, making it if need be."""
    home = os.environ.get("HOME")
    wishes = [os.environ.get("XDG_CACHE_HOME", ""), f"{home}/.cache" if home else "", "/var/cache"]
    problem = "no directory for it"
    for wish in wishes:
        if not wish.startswith("/"):
            continue
        directory = Path(wish) / "nvfakes"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = str(error)
            continue
        if os.access(directory, os.W_OK):
            return directory
    raise FakeError(f"no cache can be made: {problem}; set XDG_CACHE_HOME to a directory that can be written")


def symbols(branch: int, library_name: str = "nvml") -> list[str]:
    """Return the names that a library of a driver branch exports; of branches before 535 no list is known."""
    file = {"nvml": "symbols.txt", "cuda": "cuda_symbols.txt"}[library_name]
    lines = (SOURCES / file).read_text(encoding="utf-8").split("\n")
    pairs = [line.split() for line in lines if line]
    return [name for name, since in pairs if (int(since) if since.isdigit() else 560) <= max(branch, BRANCHES[0])]


def variant(branch: int) -> int:
    """Return which of the built libraries serves a driver branch."""
    if branch < 550:
        return 535
    if branch < 560:
        return 550
    return 560 if branch < NEWEST_KNOWN else 999


def library(branch: int) -> bytes:
    """Return the NVML library for a driver branch, without any machine's data."""
    return _built(f"libnvidia-ml-{variant(branch)}.so", partial(_compile_nvml, branch=variant(branch)))


def cuda_library(branch: int) -> bytes:
    """Return the libcuda for a driver branch, without any machine's data."""
    return _built(f"libcuda-{variant(branch)}.so", partial(_compile_cuda, branch=variant(branch)))


def dxcore_library() -> bytes:
    """Return the libdxcore of a Linux below Windows, without any machine's data."""
    return _built("libdxcore.so", _compile_dxcore)


def nvidia_smi() -> bytes:
    """Return the nvidia-smi program."""
    return _built("nvidia-smi", _compile_smi)


def _built(name: str, compile_into: Callable[[str, Path, Path], None]) -> bytes:
    """Return a compiled file, compiling it the first time; `compile_into` takes compiler, scratch folder and target."""
    compiler = shutil.which(os.environ.get("CC") or "gcc") or shutil.which("cc")
    directory = cache_directory() / "compiled" / _key(compiler or "")
    if not (directory / name).exists():
        if compiler is None:
            raise FakeError("no C compiler is installed, and the fake NVML library is built on first use: install gcc")
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix="building-") as scratch:
            work = Path(scratch)
            _stand_in(compiler, work, "libc.so.6", (*_LIBC, *_SMI_LIBC))
            compile_into(compiler, work, work / name)
            (work / name).rename(directory / name)  # so that nobody ever sees half of it
    return (directory / name).read_bytes()


def _key(compiler: str) -> str:
    """Return a name for what the sources and the compiler would give."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in {".c", ".h", ".txt", ".py"}:
            digest.update(path.name.encode() + path.read_bytes())
    if compiler:
        status = os.stat(compiler)
        digest.update(f"{os.path.realpath(compiler)} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _compile_smi(compiler: str, work: Path, target: Path) -> None:
    _stand_in(compiler, work, "libdl.so.2", _SMI_LIBDL)
    _run(
        compiler, *_FLAGS, "-fPIE", "-pie", "-nostartfiles", "-o", str(target), str(SOURCES / "nvidia_smi.c"),
        str(work / "libdl.so.2"), str(work / "libc.so.6"),
    )  # fmt: skip


def _stand_in(compiler: str, work: Path, soname: str, names: tuple[str, ...]) -> None:
    source = work / f"{soname}.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in names), encoding="utf-8")
    _run(
        compiler, "-shared", "-nostdlib", "-fno-builtin", "-w", f"-Wl,-soname,{soname}", "-o", str(work / soname),
        str(source),
    )  # fmt: skip


def _compile_nvml(compiler: str, work: Path, target: Path, branch: int) -> None:
    names = symbols(branch)
    refusal = "static int stub(void) { int s = enter(); return s ? s : NOT_SUPPORTED; }\n"
    stubs = _write_stubs(work / f"stubs-{branch}.c", names, refusal)
    _link(compiler, work, "libnvidia-ml.so.1", names, (*LIBRARY_SOURCES, str(stubs)), target)


def _compile_cuda(compiler: str, work: Path, target: Path, branch: int) -> None:
    names = symbols(branch, "cuda")
    table = "".join(f'    {{"{name}", (int (*)(void))(unsigned long){name}}},\n' for name in names)
    stubs = _write_stubs(work / f"cuda-stubs-{branch}.c", names, "static int stub(void) { return 801; }\n")
    with stubs.open("a", encoding="utf-8") as file:
        file.write(
            "const struct { const char *name; int (*function)(void); } exported[] = {\n" + table + "    {0, 0},\n};\n"
        )
    _link(compiler, work, "libcuda.so.1", names, (*CUDA_SOURCES, str(stubs)), target)


def _compile_dxcore(compiler: str, work: Path, target: Path) -> None:
    _link(compiler, work, "libdxcore.so", DXCORE_SYMBOLS, DXCORE_SOURCES, target)


def _write_stubs(path: Path, names: Sequence[str], refusal: str) -> Path:
    """Write a weak function for every name, which the library's own functions replace."""
    lines = [f"__attribute__((weak)) API {name}(void) {{ return stub(); }}\n" for name in names]
    path.write_text('#include "fake.h"\n' + refusal + "".join(lines), encoding="utf-8")
    return path


def _link(compiler: str, work: Path, soname: str, names: Sequence[str], sources: Sequence[str], target: Path) -> None:
    script = work / f"{target.name}.exports"
    script.write_text("{ global:\n" + "".join(f"{name};\n" for name in names) + "local: *; };\n", encoding="utf-8")
    _run(
        compiler, *_FLAGS, "-fPIC", "-shared", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}",
        "-Wl,-z,defs", "-I", str(SOURCES), "-o", str(target),
        *(str(SOURCES / name) for name in sources), str(work / "libc.so.6"),
    )  # fmt: skip


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
        raise FakeError(f"{command[0]} failed: {lines[0]}")
