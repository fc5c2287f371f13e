"""Stub libraries and programs against the programs that read them."""

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from nvfakes import elf

MACHINE = elf.MACHINES.get(platform.machine(), elf.EM_X86_64)


@pytest.mark.parametrize(
    ("machine", "bits", "words"),
    [
        (elf.EM_X86_64, 64, ("ELF64", "X86-64")),
        (elf.EM_AARCH64, 64, ("ELF64", "AArch64")),
        (elf.EM_386, 32, ("ELF32", "Intel 80386")),
        (elf.EM_ARM, 32, ("ELF32", "ARM")),
    ],
)
@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf (binutils) is not installed")
def test_readelf_reads_a_library(tmp_path: Path, machine: int, bits: int, words: tuple[str, ...]) -> None:
    path = tmp_path / "libx.so.1.2"
    path.write_bytes(elf.shared_library("libx.so.1", machine=machine, bits=bits, abi_note=True))
    done = subprocess.run(["readelf", "-h", "-d", "-n", "-S", str(path)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    for word in (*words, "Library soname: [libx.so.1]", "Shared library: [libc.so.6]", "OS: Linux, ABI: 2.3.99"):
        assert word in done.stdout


def test_the_loader_takes_a_library(tmp_path: Path) -> None:
    path = tmp_path / "libx.so.1"
    path.write_bytes(elf.shared_library("libx.so.1", machine=MACHINE))
    assert ctypes.CDLL(str(path))


def test_a_program_exits(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(elf.program(MACHINE))
    path.chmod(0o755)
    assert subprocess.run([str(path)], check=False).returncode == 0
