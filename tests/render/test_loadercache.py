"""The loader cache of an image: the same as the real ldconfig's, safe from hostile images, undone without a trace."""

import errno
import os
import resource
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from nvinject import leanos
from nvinject.core.plan import LoaderLibrary, UpdateLoaderCache
from nvinject.errors import ContainerError
from nvinject.formats.elf import EM_AARCH64
from nvinject.formats.ldcache import Cache, Entry, format_cache, parse_cache
from nvinject.render import loaderpaths
from nvinject.render.loadercache import musl_path, update
from nvinject.render.loaderpaths import configured_directories, read_own, read_regular
from nvinject.render.replacement import Replacement
from tests.formats.elfbuilder import build_elf

from .trees import MACHINE, TRIPLET, Tree, shown

LIB = f"/usr/lib/{TRIPLET}"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "root").mkdir()
    return Tree(tmp_path / "root")


def run(tree: Tree, operation: UpdateLoaderCache) -> Replacement:
    root_fd = os.open(tree.root, os.O_PATH | os.O_DIRECTORY)
    try:
        return update(root_fd, operation)
    finally:
        os.close(root_fd)


def injection(*paths: str, **changes: object) -> UpdateLoaderCache:
    """An operation that injects libraries whose file names are their SONAMEs."""
    libraries = tuple(LoaderLibrary(soname=path.rpartition("/")[2], path=path) for path in paths)
    directories = tuple(dict.fromkeys(path.rpartition("/")[0] for path in paths))
    return UpdateLoaderCache(reason="a test", directories=directories, libraries=libraries).replace(**changes)


# --- the same as the real ldconfig


def debian(tree: Tree, *, merged: bool = True) -> None:
    tree.text("/etc/debian_version", "12.0\n")
    tree.text("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    tree.text("/etc/ld.so.conf.d/libc.conf", "# libc default configuration\n/usr/local/lib\n")
    tree.text(
        f"/etc/ld.so.conf.d/{TRIPLET}.conf",
        f"# Multiarch support\n/usr/local/lib/{TRIPLET}\n/lib/{TRIPLET}\n/usr/lib/{TRIPLET}\n",
    )
    (tree.root / "usr/lib").mkdir(parents=True, exist_ok=True)
    if merged:
        tree.link("/lib", "usr/lib")
    tree.versioned(f"/lib/{TRIPLET}", "libz", "1.2.13")
    tree.versioned(LIB, "libpng16", "16.39.0", development=True)
    tree.versioned(LIB, "libstdc++", "6.0.30")
    tree.text(f"{LIB}/libstdc++.so.6.0.30-gdb.py", "import gdb\n")
    tree.library(f"{LIB}/libcap-ng.so.0.0.0", "libcap-ng.so.0")
    tree.link(f"{LIB}/libcap-ng.so.0", "libcap-ng.so.0.0.0")
    tree.versioned("/usr/local/lib", "libown", "3.1")


def debian_split(tree: Tree) -> None:
    debian(tree, merged=False)
    tree.versioned("/lib", "libroot", "1.0")


def lib64(tree: Tree, *, merged: bool = True) -> None:
    tree.text("/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n")
    tree.text("/etc/ld.so.conf.d/mariadb.conf", "/usr/lib64/mariadb/\n")
    (tree.root / "usr/lib64").mkdir(parents=True)
    (tree.root / "usr/lib").mkdir(parents=True)
    if merged:
        tree.link("/lib64", "usr/lib64")
        tree.link("/lib", "usr/lib")
    tree.versioned("/lib64", "libz", "1.2.11")
    tree.versioned("/usr/lib64", "libssl", "1.1.1k")
    tree.link("/usr/lib64/libssl.so.1.1", "libssl.so.1.1.1k")
    tree.versioned("/usr/lib64/mariadb", "libmariadb", "3")


def lib64_split(tree: Tree) -> None:
    lib64(tree, merged=False)


def old_glibc_names(tree: Tree) -> None:
    debian(tree)
    tree.library(f"/lib/{TRIPLET}/libc-2.31.so", "libc.so.6")
    tree.link(f"/lib/{TRIPLET}/libc.so.6", "libc-2.31.so")
    tree.library(f"/lib/{TRIPLET}/ld-2.31.so", "ld-linux.so.2")
    tree.link(f"/lib/{TRIPLET}/ld-linux.so.2", "ld-2.31.so")


def hardware(tree: Tree) -> None:
    debian(tree)
    for level in ("x86-64-v2", "x86-64-v3"):
        tree.versioned(f"{LIB}/glibc-hwcaps/{level}", "libz", "1.2.13")
        tree.versioned(f"{LIB}/glibc-hwcaps/{level}", "libfast", "2.0")
    tree.versioned(f"{LIB}/glibc-hwcaps/a:b", "libz", "1.2.13")
    tree.versioned(f"{LIB}/glibc-hwcaps/.hidden", "libz", "1.2.13")
    tree.text(f"{LIB}/glibc-hwcaps/README", "no directory\n")
    tree.versioned("/usr/local/lib/glibc-hwcaps/x86-64-v4", "libown", "3.1")


def rubbish(tree: Tree) -> None:
    debian(tree)
    tree.text(f"{LIB}/libc.so", "/* GNU ld script */\nGROUP ( /lib/libc.so.6 )\n")
    tree.text(f"{LIB}/libtext.so.1", "no library\n" * 20)
    tree.text(f"{LIB}/libempty.so.1", "")
    tree.path(f"{LIB}/libcut.so.1").write_bytes(build_elf()[:70])
    tree.path(f"{LIB}/libforeign.so.1").write_bytes(build_elf(machine=8))
    tree.path(f"{LIB}/libstatic.so.1").write_bytes(build_elf(dynamic=False))
    tree.path(f"{LIB}/libprogram.so.1").write_bytes(build_elf(kind=2))
    (tree.root / f"usr/lib/{TRIPLET}/libdirectory.so.1").mkdir()
    os.mkfifo(tree.path(f"{LIB}/libfifo.so.1"))
    tree.link(f"{LIB}/libgone.so.1", "libgone.so.1.0")
    tree.link(f"{LIB}/libloop.so.1", "libloop.so.1")
    tree.link(f"{LIB}/libtodirectory.so.1", "libdirectory.so.1")
    tree.library(f"{LIB}/libnosoname.so", None)
    tree.library(f"{LIB}/nolibrary.so.1")
    tree.library(f"{LIB}/ld.so.1")


def links(tree: Tree) -> None:
    debian(tree)
    tree.library("/usr/lib/blas/libblas.so.3.11", "libblas.so.3")
    tree.link(f"/etc/alternatives/libblas.so.3-{TRIPLET}", "/usr/lib/blas/libblas.so.3.11")
    tree.link(f"{LIB}/libblas.so.3", f"/etc/alternatives/libblas.so.3-{TRIPLET}")
    tree.library(f"{LIB}/libdeep.so.4.5.6", "libdeep.so.4")
    tree.link(f"{LIB}/libdeep.so.4.5", "libdeep.so.4.5.6")
    tree.link(f"{LIB}/libdeep.so.4", "libdeep.so.4.5")
    tree.link(f"{LIB}/libdeep.so", "libdeep.so.4")
    tree.link(f"{LIB}/libother.so", "libdeep.so.4")
    tree.library("/opt/real/liboptional.so.2.0", "liboptional.so.2")
    tree.link(f"{LIB}/liboptional.so.2", "../../../opt/real/liboptional.so.2.0")


def both_word_sizes(tree: Tree) -> None:
    debian(tree)
    other = "i386-linux-gnu" if MACHINE == "x86_64" else "arm-linux-gnueabihf"
    tree.text(f"/etc/ld.so.conf.d/{other}.conf", f"/usr/lib/{other}\n")
    tree.versioned(f"/usr/lib/{other}", "libz", "1.2.13", bits=32)


def shadowed(tree: Tree) -> None:
    debian(tree)
    tree.text("/etc/ld.so.conf.d/00-user.conf", "/opt/user/lib\n")
    tree.versioned("/opt/user/lib", "libz", "1.3.1")
    tree.versioned("/opt/user/lib", "libown", "3.0")


def configuration(tree: Tree) -> None:
    debian(tree)
    tree.text(
        "/etc/ld.so.conf",
        "# first\n  /opt/a/lib///\t# with comment\nhwcap 0 nosegneg\n"
        "include /etc/ld.so.conf.d/*.conf /etc/more/?.conf\n"
        "/opt/missing\n/opt/b/lib\n/opt/a/lib\n",
    )
    tree.text("/etc/more/a.conf", "include nested/*.conf\n/opt/c/lib\n")
    tree.text("/etc/more/ab.conf", "/opt/never/lib\n")
    tree.text("/etc/more/nested/x.conf", "/opt/d/lib\n")
    tree.text("/etc/more/nested/.hidden.conf", "/opt/never/lib\n")
    for letter in ("a", "b", "c", "d", "never"):
        tree.versioned(f"/opt/{letter}/lib", f"lib{letter}", "1.0")
        tree.versioned(f"/opt/{letter}/lib", "libshared", "2.0")


def nothing(tree: Tree) -> None:
    """Change nothing."""


def upgrade(tree: Tree) -> None:
    """What an image's later layers do without running ldconfig."""
    (tree.root / f"usr/lib/{TRIPLET}/libpng16.so.16.39.0").unlink()
    (tree.root / f"usr/lib/{TRIPLET}/libpng16.so.16").unlink()
    (tree.root / f"usr/lib/{TRIPLET}/libpng16.so").unlink()
    (tree.root / "usr/local/lib/libown.so.3.1").unlink()
    (tree.root / f"usr/lib/{TRIPLET}/libcap-ng.so.0.0.0").unlink()
    (tree.root / f"usr/lib/{TRIPLET}/libcap-ng.so.0").unlink()
    tree.versioned(LIB, "libcap-ng", "0.0.1")
    tree.text("/etc/ld.so.conf.d/000_cuda.conf", "/usr/local/cuda/lib64\n")
    tree.versioned("/usr/local/cuda/lib64", "libcudart", "12.4.127", development=True)
    tree.versioned("/usr/local/cuda/lib64", "libz", "1.2.99")
    tree.versioned(LIB, "libnew", "1.0")
    tree.versioned(f"{LIB}/glibc-hwcaps/x86-64-v3", "libnew", "1.0")


def no_cache(tree: Tree) -> None:
    tree.cache().unlink()


def no_configuration(tree: Tree) -> None:
    (tree.root / "etc/ld.so.conf").unlink()
    tree.cache().unlink()


def broken_cache(tree: Tree) -> None:
    tree.cache().write_bytes(tree.cache().read_bytes()[:100])


CASES: dict[str, tuple[Callable[[Tree], None], tuple[str, ...], Callable[[Tree], None]]] = {
    # name: build the tree, options of the ldconfig that writes its cache, what happens afterwards
    "debian": (debian, (), nothing),
    "debian split usr": (debian_split, (), nothing),
    "lib64": (lib64, (), nothing),
    "lib64 split usr": (lib64_split, (), nothing),
    "old glibc": (old_glibc_names, (), nothing),
    "hardware": (hardware, (), nothing),
    "rubbish": (rubbish, (), nothing),
    "links": (links, (), nothing),
    "both word sizes": (both_word_sizes, (), nothing),
    "shadowed": (shadowed, (), nothing),
    "configuration": (configuration, (), nothing),
    "old layout": (debian, ("-c", "old"), nothing),
    "old layout, hardware": (hardware, ("-c", "old"), nothing),
    "both layouts": (hardware, ("-c", "compat"), nothing),
    "upgraded": (debian, (), upgrade),
    "upgraded split usr": (debian_split, (), upgrade),
    "upgraded hardware": (hardware, (), upgrade),
    "old layout, upgraded": (debian, ("-c", "old"), upgrade),
    "no cache": (debian, (), no_cache),
    "no cache, hardware": (hardware, (), no_cache),
    "no cache, rubbish": (rubbish, (), no_cache),
    "no cache, links": (links, (), no_cache),
    "no cache, lib64": (lib64, (), no_cache),
    "no cache, configuration": (configuration, (), no_cache),
    "no configuration": (debian, (), no_configuration),
    "broken cache": (debian, (), broken_cache),
}


def defaults_in_configuration(tree: Tree, *first: str) -> None:
    """Make the real ldconfig search `first` and our default directories, whatever is compiled into it."""
    is_debian = (tree.root / "etc/debian_version").exists()
    names = [f"/lib/{TRIPLET}", LIB, "/lib", "/usr/lib"] if is_debian else ["/lib", "/usr/lib", "/lib64", "/usr/lib64"]
    with tree.path("/etc/ld.so.conf").open("a") as file:
        file.write("".join(f"{name}\n" for name in (*first, *names)))


@pytest.mark.parametrize("case", CASES)
def test_equals_ldconfig(tree: Tree, tmp_path: Path, case: str) -> None:
    build, options, change = CASES[case]
    build(tree)
    original = tree.copy(tmp_path / "original")
    defaults_in_configuration(original)
    original.ldconfig(*options)
    tree.path("/etc/ld.so.cache").write_bytes(original.cache().read_bytes())
    change(tree)
    judge = tree.copy(tmp_path / "judge")
    defaults_in_configuration(judge)
    judge.ldconfig("-X")  # without making or removing links, as we do

    before = tree.names()
    run(tree, injection()).commit()
    assert sorted(shown(tree.cache())) == sorted(shown(judge.cache()))
    assert shown(tree.cache()) == shown(judge.cache())
    changed = {path for path, kept in tree.names().items() if before.get(path) != kept}
    assert changed <= {str(tree.cache()), str(tree.root / "etc")}


@pytest.mark.parametrize("case", CASES)
def test_injected_libraries_equal_ldconfig(tree: Tree, tmp_path: Path, case: str) -> None:
    build, options, change = CASES[case]
    build(tree)
    directory = LIB if (tree.root / "etc/debian_version").exists() else "/usr/lib64"
    original = tree.copy(tmp_path / "original")
    defaults_in_configuration(original)
    original.ldconfig(*options)
    tree.path("/etc/ld.so.cache").write_bytes(original.cache().read_bytes())
    change(tree)
    tree.library(f"{directory}/libcuda.so.570.1", "libcuda.so.1")
    tree.link(f"{directory}/libcuda.so.1", "libcuda.so.570.1")
    tree.link(f"{directory}/libcuda.so", "libcuda.so.1")
    tree.library(f"{directory}/libnvidia-ml.so.570.1", "libnvidia-ml.so.1")
    tree.link(f"{directory}/libnvidia-ml.so.1", "libnvidia-ml.so.570.1")
    judge = tree.copy(tmp_path / "judge")
    defaults_in_configuration(judge, directory)
    judge.ldconfig("-X")

    run(tree, injection(f"{directory}/libcuda.so.1", f"{directory}/libnvidia-ml.so.1")).commit()
    ours = resolved(tree)
    assert ours == resolved(judge)
    assert [name for name, _ in ours if "cuda.so" in name] == ["libcuda.so.1", "libcuda.so"]


def resolved(tree: Tree) -> list[tuple[str, str]]:
    """Return what is shown, directories by one path: injected libraries keep that of the plan, others the image's."""
    found = []
    for line in shown(tree.cache()):
        name, _, path = line.partition(" => ")
        directory, _, file = path.rpartition("/")
        where = os.path.realpath(f"{tree.root}{directory}").removeprefix(os.path.realpath(tree.root))
        found.append((name.partition(" ")[0] if "libcuda" in name else name, f"{where}/{file}"))
    return found


def test_result_is_stable(tree: Tree) -> None:
    hardware(tree)
    operation = injection(f"{LIB}/libcuda.so.1")
    run(tree, operation).commit()
    first = tree.cache().read_bytes()
    run(tree, operation).commit()
    assert tree.cache().read_bytes() == first


def entries(tree: Tree) -> list[tuple[str, str]]:
    return [(entry.soname, entry.path) for entry in parse_cache(tree.cache().read_bytes()).entries]


# --- where we differ from ldconfig on purpose


def test_a_missing_soname_link_is_not_made(tree: Tree) -> None:
    tree.text("/etc/ld.so.conf", "/opt/lib\n")
    tree.library("/opt/lib/libx.so.1.2", "libx.so.1")
    tree.library("/opt/lib/libx.so.1.10", "libx.so.1")
    run(tree, injection()).commit()
    assert entries(tree) == [("libx.so.1", "/opt/lib/libx.so.1.10")]
    assert not (tree.root / "opt/lib/libx.so.1").exists()


def test_entries_of_other_directories_stay_while_their_files_do(tree: Tree) -> None:
    tree.library("/opt/lib/libkept.so.1")
    tree.library("/opt/lib/libnotentered.so.1")
    names = ["libgone.so.1", "libdangling.so.1", "libkept.so.1"]
    tree.link("/opt/lib/libdangling.so.1", "/usr/lib/nothing.so")
    rows = [Entry(soname=name, path=f"/opt/lib/{name}", flags=0x303) for name in names]
    rows += [Entry(soname="libelsewhere.so.1", path="/srv/libelsewhere.so.1", flags=0x303)]
    rows += [Entry(soname="librelative.so.1", path="librelative.so.1", flags=0x303)]
    tree.path("/etc/ld.so.cache").write_bytes(format_cache(Cache(entries=tuple(rows))))
    run(tree, injection()).commit()
    assert entries(tree) == [("libkept.so.1", "/opt/lib/libkept.so.1")]


def test_order_of_what_was_there_stays(tree: Tree) -> None:
    tree.text("/etc/ld.so.conf", "/opt/a\n/opt/b\n/opt/c\n")
    for letter in "abc":
        tree.library(f"/opt/{letter}/libx.so.1")
    rows = [Entry(soname="libx.so.1", path=f"/opt/{letter}/libx.so.1", flags=0x303) for letter in "ca"]
    tree.path("/etc/ld.so.cache").write_bytes(format_cache(Cache(entries=tuple(rows))))
    run(tree, injection()).commit()
    paths = [path for _, path in entries(tree)]
    assert [path for path in paths if "/b/" not in path] == ["/opt/c/libx.so.1", "/opt/a/libx.so.1"]
    assert len(paths) == 3


def test_an_unsorted_cache_is_sorted(tree: Tree) -> None:
    tree.text("/etc/ld.so.conf", "/opt/lib\n")
    names = [f"lib{number}.so" for number in (3, 10, 1, 7, 2, 8)]
    for name in names:
        tree.library(f"/opt/lib/{name}")
    rows = [Entry(soname=name, path=f"/opt/lib/{name}", flags=0x303) for name in names]
    tree.path("/etc/ld.so.cache").write_bytes(format_cache(Cache(entries=tuple(rows))))
    run(tree, injection("/usr/lib64/lib5.so", "/usr/lib64/lib9.so")).commit()
    assert [soname for soname, _ in entries(tree)] == [f"lib{number}.so" for number in (10, 9, 8, 7, 5, 3, 2, 1)]


def test_compat_directory_comes_first(tree: Tree) -> None:
    debian(tree)
    tree.text("/etc/ld.so.conf.d/zz-cuda.conf", "/usr/local/cuda/compat\n")
    tree.library("/usr/local/cuda/compat/libcuda.so.1")
    run(tree, injection(f"{LIB}/libcuda.so.1")).commit()
    assert [path for name, path in entries(tree) if name == "libcuda.so.1"] == [
        f"{LIB}/libcuda.so.1",
        "/usr/local/cuda/compat/libcuda.so.1",
    ]
    run(tree, injection(f"{LIB}/libcuda.so.1", compat_directory="/usr/local/cuda/compat")).commit()
    assert [path for name, path in entries(tree) if name == "libcuda.so.1"] == [
        "/usr/local/cuda/compat/libcuda.so.1",
        f"{LIB}/libcuda.so.1",
    ]


def test_user_directories_stay_before_injected_libraries(tree: Tree) -> None:
    shadowed(tree)
    tree.library("/opt/user/lib/libcuda.so.1")
    run(tree, injection(f"{LIB}/libcuda.so.1")).commit()
    assert next(path for name, path in entries(tree) if name == "libcuda.so.1") == "/opt/user/lib/libcuda.so.1"


def test_injected_libraries_replace_entries_of_their_directory(tree: Tree) -> None:
    debian(tree)
    tree.versioned(LIB, "libcuda", "1")
    run(tree, injection()).commit()
    assert ("libcuda.so.1", f"/lib/{TRIPLET}/libcuda.so.1") in entries(tree)
    run(tree, injection(f"{LIB}/libcuda.so.1")).commit()
    assert [path for name, path in entries(tree) if name == "libcuda.so.1"] == [f"{LIB}/libcuda.so.1"]


def test_both_word_sizes_are_injected(tree: Tree) -> None:
    operation = injection("/usr/lib64/libcuda.so.1")
    small = LoaderLibrary(soname="libcuda.so.1", path="/usr/lib/libcuda.so.1", bits=32)
    run(tree, operation.replace(libraries=(*operation.libraries, small))).commit()
    flags = {entry.path: entry.flags for entry in parse_cache(tree.cache().read_bytes()).entries}
    wide, narrow = {"x86_64": (0x303, 0x003), "aarch64": (0xA03, 0x903)}[MACHINE]
    assert flags == {"/usr/lib64/libcuda.so.1": wide, "/usr/lib/libcuda.so.1": narrow}


def test_another_machine(tree: Tree) -> None:
    tree.path("/usr/lib64/liba.so.1").write_bytes(build_elf(machine=EM_AARCH64, soname="liba.so.1"))
    tree.path("/usr/lib64/libforeign.so.1").write_bytes(build_elf(soname="libforeign.so.1"))
    root_fd = os.open(tree.root, os.O_PATH | os.O_DIRECTORY)
    update(root_fd, injection("/usr/lib64/libcuda.so.1"), machine="aarch64").commit()
    os.close(root_fd)
    cache = parse_cache(tree.cache().read_bytes())
    assert [(entry.soname, entry.flags) for entry in cache.entries] == [("libcuda.so.1", 0xA03), ("liba.so.1", 0xA03)]


def test_os_versions_as_the_image_has_them(tree: Tree) -> None:
    tree.text("/etc/ld.so.conf", "/opt/lib\n")
    data = build_elf(machine={"x86_64": 62, "aarch64": 183}[MACHINE], soname="libnew.so.1", abi=(0, 3, 2, 0))
    tree.path("/opt/lib/libnew.so.1").write_bytes(data)
    tree.library("/opt/lib/libold.so.1")
    run(tree, injection()).commit()
    assert [entry.os_version for entry in parse_cache(tree.cache().read_bytes()).entries] == [0, 0]
    old = Entry(soname="libold.so.1", path="/opt/lib/libold.so.1", flags=0x303, os_version=0x020600)
    tree.cache().write_bytes(format_cache(Cache(entries=(old,))))
    run(tree, injection()).commit()
    assert [entry.os_version for entry in parse_cache(tree.cache().read_bytes()).entries] == [0x020600, 0x030200]


def test_extensions_stay(tree: Tree) -> None:
    hardware(tree)
    run(tree, injection()).commit()
    cache = parse_cache(tree.cache().read_bytes())
    assert cache.hwcaps == ("x86-64-v2", "x86-64-v3", "x86-64-v4")
    assert cache.generator.startswith("nvinject ")
    changed = cache.replace(sections=((7, 0, b"unknown"),), generator="ldconfig of a test")
    tree.cache().write_bytes(format_cache(changed))
    for _ in range(2):
        run(tree, injection()).commit()
    again = parse_cache(tree.cache().read_bytes())
    assert again.sections == ((7, 0, b"unknown"),)
    assert again.generator == f"ldconfig of a test, updated by {cache.generator}"
    assert again.entries == cache.entries


def test_old_hardware_directories_as_the_image_has_them(tree: Tree) -> None:
    tree.text("/etc/ld.so.conf", "/opt/lib\n")
    for name in ("libx.so.1", "haswell/libx.so.1", "haswell/liby.so.1"):
        tree.library(f"/opt/lib/{name}")
    run(tree, injection()).commit()
    assert entries(tree) == [("libx.so.1", "/opt/lib/libx.so.1")]
    rows = (Entry(soname="libx.so.1", path="/opt/lib/haswell/libx.so.1", flags=0x303, hwcap=1 << 50),)
    tree.cache().write_bytes(format_cache(Cache(entries=rows)))
    run(tree, injection()).commit()
    hwcaps = {entry.path: entry.hwcap for entry in parse_cache(tree.cache().read_bytes()).entries}
    assert hwcaps == {
        "/opt/lib/libx.so.1": 0,
        "/opt/lib/haswell/libx.so.1": 1 << 50,
        "/opt/lib/haswell/liby.so.1": 1 << 50,
    }


def test_known_libraries_are_not_opened(tree: Tree) -> None:
    old_glibc_names(tree)
    run(tree, injection()).commit()
    before = entries(tree)
    for path in (tree.root / "usr/lib" / TRIPLET).iterdir():
        if path.is_file() and not path.is_symlink():
            path.write_bytes(b"whoever opens this drops it")
    run(tree, injection()).commit()
    assert entries(tree) == before


# --- hostile images


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = outside / "secret"
    secret.write_text("/outside/lib\n")
    before = (secret.stat().st_ino, secret.stat().st_mtime_ns, secret.read_bytes())
    yield secret
    assert (secret.stat().st_ino, secret.stat().st_mtime_ns, secret.read_bytes()) == before
    assert [path.name for path in outside.iterdir()] == ["secret"]


def up(tree: Tree) -> str:
    return "../" * 30 + str(tree.root.parent / "outside").lstrip("/")


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize(
    "plant",
    [
        lambda tree: tree.link("/etc/ld.so.cache", f"{tree.root.parent}/outside/secret"),
        lambda tree: tree.link("/etc/ld.so.cache", f"{up(tree)}/secret"),
        lambda tree: tree.link("/etc/ld.so.conf", f"{tree.root.parent}/outside/secret"),
        lambda tree: tree.link("/etc/ld.so.conf.d", f"{up(tree)}"),
        lambda tree: tree.text("/etc/ld.so.conf", f"include {tree.root.parent}/outside/*\n"),
        lambda tree: tree.text("/etc/ld.so.conf", f"include {up(tree)}/*\n{tree.root.parent}/outside\n"),
        lambda tree: tree.link("/etc", f"{tree.root.parent}/outside"),
        lambda tree: tree.link("/etc", "/proc/self/root/tmp"),
        lambda tree: os.mkfifo(tree.path("/etc/ld.so.conf")),
        lambda tree: os.mkfifo(tree.path("/etc/ld.so.cache")),
        lambda tree: tree.path("/etc/ld.so.conf/x").mkdir(),
        lambda tree: tree.text("/etc/ld.so.conf", "include /etc/ld.so.conf\n/usr/lib64\n" * 50),
        lambda tree: tree.text("/etc/ld.so.conf", "include /etc/*.conf /etc/*/*/../../*.conf\n" * 50),
        lambda tree: tree.link("/etc/ld.so.conf", "ld.so.conf"),
        lambda tree: tree.link("/usr/lib64", "lib64"),
        lambda tree: tree.text("/etc/ld.so.conf", "/usr/lib64\0/x\n" + "/" * 5000 + "a" * 5000 + "\n"),
        lambda tree: tree.path("/etc/ld.so.cache").write_bytes(os.urandom(5000)),
        lambda tree: tree.path("/etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1" + b"\xff" * 500),
    ],
)
def test_hostile_images(tree: Tree, plant: Callable[[Tree], object]) -> None:
    (tree.root / "usr").mkdir()
    plant(tree)
    before = tree.names()
    try:
        replacement = run(tree, injection("/usr/lib64/libcuda.so.1"))
    except ContainerError:
        assert tree.names() == before
        return
    replacement.undo()
    assert tree.names() == before


def sparse(tree: Tree, path: str) -> None:
    with tree.path(path).open("wb") as file:
        file.truncate(2 << 30)


@pytest.mark.parametrize("path", ["/etc/ld.so.conf", "/etc/ld.so.cache", "/usr/lib64/libbig.so.1"])
def test_huge_files_are_not_read(tree: Tree, path: str) -> None:
    sparse(tree, path)
    run(tree, injection("/usr/lib64/libcuda.so.1")).commit()
    assert entries(tree) == [("libcuda.so.1", "/usr/lib64/libcuda.so.1")]


@pytest.mark.parametrize("path", ["/etc/ld.so.conf", "/etc/ld.so.cache", "/usr/lib64/libnode.so.1"])
def test_devices_are_not_opened(tree: Tree, path: str) -> None:
    try:
        os.mknod(tree.path(path), stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except OSError as error:
        pytest.skip(f"cannot make a device node here: {error.strerror}")
    run(tree, injection("/usr/lib64/libcuda.so.1")).commit()
    assert entries(tree) == [("libcuda.so.1", "/usr/lib64/libcuda.so.1")]


def test_hostile_sonames_do_not_enter(tree: Tree) -> None:
    for number, soname in enumerate(["", "../../etc/passwd", "/x", "a/b"]):
        tree.library(f"/usr/lib64/lib{number}.so.1", None if soname == "" else soname)
    run(tree, injection()).commit()
    assert entries(tree) == [("lib0.so.1", "/usr/lib64/lib0.so.1")]


def test_thousands_of_directories_in_a_cache(tree: Tree) -> None:
    rows = tuple(Entry(soname="libx.so.1", path=f"/d{number}/libx.so.1", flags=0x303) for number in range(5000))
    tree.path("/etc/ld.so.cache").write_bytes(format_cache(Cache(entries=rows)))
    run(tree, injection()).commit()
    assert entries(tree) == []


def large_directory(tree: Tree, *names: str) -> None:
    for name in (*names, *(f"f{number}" for number in range(500))):
        tree.text(f"/large/{name}", "")


@pytest.mark.parametrize(
    "plant",
    [
        lambda tree, link: tree.link(f"/links/{link}", "/large"),
        lambda tree, link: tree.link(f"/configured/{link}/glibc-hwcaps", "/large"),
        lambda tree, link: tree.link(f"/old/{link}", "/large"),
    ],
    ids=["include", "hardware", "cache"],
)
def test_links_to_a_large_directory_do_not_multiply_the_work(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Tree, int], None]
) -> None:
    """Some bytes of an image for each link, and a second of a container's start (of whoever waits for it)."""
    monkeypatch.setattr(loaderpaths, "MAXIMUM_NAMES", 5000)
    large_directory(tree)
    for link in range(100):
        plant(tree, link)
    configured = "".join(f"/configured/{link}\n" for link in range(100))
    tree.text("/etc/ld.so.conf", f"include /links/*/x*\n{configured}")
    rows = tuple(Entry(soname="libx.so.1", path=f"/old/{link}/libx.so.1", flags=0x303) for link in range(100))
    tree.path("/etc/ld.so.cache").write_bytes(format_cache(Cache(entries=rows)))
    listed = count_listed(monkeypatch)
    run(tree, injection("/usr/lib64/libcuda.so.1")).commit()
    assert entries(tree) == [("libcuda.so.1", "/usr/lib64/libcuda.so.1")]
    assert 500 <= len(listed) <= 6000


def count_listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the names that directories are read for put into the list."""
    listed: list[str] = []
    scandir = os.scandir

    class Entries:
        def __init__(self, fd: int) -> None:
            self.entries = scandir(fd)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.entries.close()

        def __iter__(self) -> "Iterator[os.DirEntry[str]]":
            for entry in self.entries:
                listed.append(entry.name)
                yield entry

    monkeypatch.setattr(leanos, "scandir", Entries)
    return listed


def test_patterns_for_many_names_come_to_an_end(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is as much work as it is long, for each name."""
    monkeypatch.setattr(loaderpaths, "MAXIMUM_NAMES", 5000)
    large_directory(tree, "x.conf")
    tree.text("/large/x.conf", "/found\n")
    tree.text("/etc/ld.so.conf", "include /large/*.conf\n" * 100)
    root_fd = os.open(tree.root, os.O_PATH | os.O_DIRECTORY)
    assert configured_directories(root_fd) == ("/found",) * 2  # 2 * 501 * (1 + 6) names and the rest of the effort
    os.close(root_fd)


def test_links_that_take_long_to_follow_are_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each path leads through 38 links with hundreds of components: a millisecond, for some bytes of an image."""
    monkeypatch.setattr(loaderpaths, "MAXIMUM_SECONDS", 0.05)
    tree.path("/d/x").mkdir(parents=True)
    for number in range(38):
        tree.link(f"/d/{number}", "x/../" * 700 + str(number + 1))
    tree.path("/d/38").mkdir()
    tree.text("/etc/ld.so.conf", "/d/0\n" * 20000)
    with pytest.raises(ContainerError, match=r"take more than 0\.05 seconds to look through") as caught:
        run(tree, injection("/usr/lib64/libcuda.so.1"))
    assert "/etc/ld.so.conf" in caught.value.hint
    assert not tree.path("/etc/ld.so.cache").exists()


def test_files_of_procfs_are_not_read() -> None:
    """To read them can do something; what they say is no content of an image."""
    root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    assert read_regular(root_fd, "/proc/version", 100) == b""
    assert read_own(root_fd, "/proc/version", 100) == b""
    assert read_own(root_fd, "/etc/mtab", 100) in {None, b""}  # mostly a link to procfs
    os.close(root_fd)


def test_what_is_written_again_is_the_images_own(tree: Tree) -> None:
    tree.text("/etc/other", "/opt/lib\n")
    tree.link("/etc/list", "other")
    root_fd = os.open(tree.root, os.O_PATH | os.O_DIRECTORY)
    assert read_own(root_fd, "/etc/list", 100) == read_own(root_fd, "/etc/other", 100) == b"/opt/lib\n"
    assert read_own(root_fd, "/etc/list", 3) is None
    assert read_own(root_fd, "/etc/none", 100) is None
    os.close(root_fd)


def test_rows_that_point_to_no_hardware_name(tree: Tree) -> None:
    tree.library("/usr/lib64/libx.so.1")
    rows = tuple(
        Entry(soname="libx.so.1", path=f"/{where}/libx.so.1", flags=0x303, hwcap=1 << 62 | 5)
        for where in ("usr/lib64", "opt")
    )
    tree.path("/etc/ld.so.cache").write_bytes(format_cache(Cache(entries=rows)))
    run(tree, injection()).commit()
    assert [entry.hwcap for entry in parse_cache(tree.cache().read_bytes()).entries] == [0]


# --- writing, undoing, committing


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_commit_leaves_a_world_readable_cache_and_nothing_else(tree: Tree) -> None:
    debian(tree)
    tree.text("/etc/ld.so.cache", "old")
    (tree.root / "etc/ld.so.cache").chmod(0o600)
    held = open_descriptors()
    names = set(tree.names())
    previous = os.umask(0o077)
    try:
        run(tree, injection(f"{LIB}/libcuda.so.1")).commit()
    finally:
        os.umask(previous)
    assert set(tree.names()) == names
    assert stat.S_IMODE(tree.cache().stat().st_mode) == 0o644
    assert open_descriptors() == held


@pytest.mark.parametrize("old", ["file", "link", "dangling", "none", "no etc", "fifo"])
@pytest.mark.parametrize("calls", [("undo",), ("undo", "undo", "commit"), ("__call__",)])
def test_undo_restores_everything(tree: Tree, old: str, calls: tuple[str, ...]) -> None:
    if old != "no etc":
        tree.text("/etc/ld.so.conf", "/opt\n")
    if old == "file":
        tree.text("/etc/ld.so.cache", "whatever it was")
    elif old in ("link", "dangling"):
        tree.link("/etc/ld.so.cache", "../var/cache")
        if old == "link":
            tree.text("/var/cache", "whatever it was")
    elif old == "fifo":
        os.mkfifo(tree.cache())
    before, held = tree.names(), open_descriptors()
    replacement = run(tree, injection("/usr/lib64/libcuda.so.1"))
    assert tree.cache().is_file()
    assert not tree.cache().is_symlink()
    for call in calls:
        getattr(replacement, call)()
    assert tree.names() == before
    assert open_descriptors() == held


def test_commit_makes_undo_harmless(tree: Tree) -> None:
    replacement = run(tree, injection("/usr/lib64/libcuda.so.1"))
    replacement.commit()
    written = tree.names()
    replacement.undo()
    replacement.commit()
    assert tree.names() == written


def test_a_directory_in_place_of_the_cache_is_an_error(tree: Tree) -> None:
    tree.path("/etc/ld.so.cache/x").mkdir()
    before, held = tree.names(), open_descriptors()
    with pytest.raises(ContainerError, match=r"cannot write /etc/ld\.so\.cache of the container: Is a directory"):
        run(tree, injection("/usr/lib64/libcuda.so.1"))
    assert tree.names() == before
    assert open_descriptors() == held


def test_a_file_in_place_of_etc_is_an_error(tree: Tree) -> None:
    tree.text("/etc", "no directory")
    before, held = tree.names(), open_descriptors()
    with pytest.raises(ContainerError, match="Not a directory"):
        run(tree, injection("/usr/lib64/libcuda.so.1"))
    assert tree.names() == before
    assert open_descriptors() == held


def test_a_full_file_system_leaves_nothing(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    # A module imported under the limit would leave cut byte code behind, for every later start to trip over.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before, held = tree.names(), open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))  # the nearest to a full file system without mounting one
    try:
        with pytest.raises(ContainerError, match=os.strerror(errno.EFBIG)):
            run(tree, injection("/usr/lib64/libcuda.so.1"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert tree.names() == before
    assert open_descriptors() == held


def test_a_root_that_cannot_be_written() -> None:
    root_fd = os.open("/proc/self/fdinfo", os.O_PATH | os.O_DIRECTORY)
    try:
        with pytest.raises(ContainerError, match=r"cannot write /etc/ld\.so\.cache of the container"):
            update(root_fd, injection("/usr/lib64/libcuda.so.1"))
    finally:
        os.close(root_fd)


def test_the_new_cache_belongs_to_the_owner_of_the_old_one(tree: Tree) -> None:
    tree.text("/etc/ld.so.cache", "old")
    try:
        os.chown(tree.cache(), 12345, 23456)
    except OSError as error:
        pytest.skip(f"cannot give a file away here: {error.strerror}")
    run(tree, injection()).commit()
    assert (tree.cache().stat().st_uid, tree.cache().stat().st_gid) == (12345, 23456)


# --- musl

MUSL = "/etc/ld-musl-x86_64.path"

MUSL_FILES = [
    (None, "", "/lib\n/usr/local/lib\n/usr/lib\n/usr/lib64\n"),
    (b"", "", "/usr/lib64\n"),
    (b"/lib:/usr/lib\n/opt/lib", "", "/lib\n/usr/lib\n/opt/lib\n/usr/lib64\n"),
    (b"/usr/lib64\n/lib\n", "", "/usr/lib64\n/lib\n"),
    (b"/lib\n", "/compat", "/compat\n/lib\n/usr/lib64\n"),
    (b"/l\xffb\n", "", "/l\udcffb\n/usr/lib64\n"),
]


@pytest.mark.parametrize(("existing", "compat", "expected"), MUSL_FILES)
def test_the_path_file_of_musl(existing: bytes | None, compat: str, expected: str) -> None:
    operation = injection("/usr/lib64/libcuda.so.1", compat_directory=compat, musl_path_file=MUSL)
    assert musl_path(existing, operation).decode("utf-8", "surrogateescape") == expected


@pytest.mark.parametrize("existing", [None, "/lib\n"])
def test_musl_gets_its_path_file_and_no_cache(tree: Tree, existing: str | None) -> None:
    if existing is not None:
        tree.text(MUSL, existing)
    before = tree.names()
    replacement = run(tree, injection("/usr/lib64/libcuda.so.1", musl_path_file=MUSL))
    assert "/usr/lib64" in (tree.root / MUSL.lstrip("/")).read_text().split("\n")
    assert not tree.cache().exists()
    replacement.undo()
    assert tree.names() == before
