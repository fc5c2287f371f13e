"""The library search: loader cache first, else directories; only the driver's version; links followed."""

import os
import shutil
from collections.abc import Callable

import pytest

from nvinject.core.catalog import LIBRARIES, libraries_for
from nvinject.core.policy import DRIVER_CAPABILITIES
from nvinject.formats.ldcache import Cache, Entry, format_cache
from nvinject.host.libraries import LibrarySearch, find_libraries, library_prefix
from nvinject.host.root import Root
from tests.formats.elfbuilder import build_elf

from .machine import I386, LIBRARY_DIRECTORY, VERSION, X86_64, HostTree

COMPUTE = ("compute", "utility")
DEBIAN = f"{LIBRARY_DIRECTORY}/nvidia/current"


def search(
    tree: HostTree,
    capabilities: tuple[str, ...] = COMPUTE,
    *,
    version: str = VERSION,
    sizes: tuple[int, ...] = (64,),
    machine: str = "x86_64",
    cache: str = "",
) -> LibrarySearch:
    """Search a tree."""
    with Root(str(tree.root)) as root:
        return find_libraries(root, version, libraries_for(capabilities), sizes=sizes, machine=machine, cache=cache)


def paths(found: LibrarySearch) -> dict[str, str]:
    """Return path by SONAME."""
    return {library.soname: library.path for library in found.libraries}


def usual(directory: str = LIBRARY_DIRECTORY) -> dict[str, str]:
    """Return what the usual tree holds for compute and utility."""
    return {
        soname: f"{directory}/{prefix}.{VERSION}"
        for prefix, soname in (
            ("libnvidia-ml.so", "libnvidia-ml.so.1"),
            ("libnvidia-cfg.so", "libnvidia-cfg.so.1"),
            ("libcuda.so", "libcuda.so.1"),
            ("libcudadebugger.so", "libcudadebugger.so.1"),
            ("libnvidia-nvvm.so", "libnvidia-nvvm.so.4"),
        )
    }


def test_cache_answers(tree: HostTree) -> None:
    """What the cache knows is taken from there, and no directory is looked at."""
    tree.add_driver()
    tree.write(f"{LIBRARY_DIRECTORY}/libnvidia-opencl.so.{VERSION}", build_elf(soname="libnvidia-opencl.so.1"))
    found = search(tree)
    assert paths(found) == usual()
    assert found.places == (f"{tree.root}/etc/ld.so.cache",)
    assert (found.has_witness, found.other_versions, found.notes) == (True, (), ())
    assert found.management_library == f"{LIBRARY_DIRECTORY}/libnvidia-ml.so.{VERSION}"


def test_configured_cache(tree: HostTree) -> None:
    """The configured cache replaces /etc/ld.so.cache."""
    tree.add_driver()
    tree.write("/etc/ld.so.cache", "useless")
    tree.write_cache("/var/cache/loader")
    found = search(tree, cache="/var/cache/loader")
    assert paths(found) == usual()
    assert found.places == (f"{tree.root}/var/cache/loader",)


def test_named_directories_come_before_the_cache(tree: HostTree) -> None:
    """A library that is there is taken from there, the others as usual; a directory that is not there is none."""
    tree.add_driver()
    own = f"/opt/driver/libcuda.so.{VERSION}"
    tree.write(own, build_elf(soname="libcuda.so.1"))
    with Root(str(tree.root)) as root:
        found = find_libraries(
            root, VERSION, libraries_for(COMPUTE), machine="x86_64", directories=("/opt/driver", "/opt/none")
        )
    assert paths(found) == {**usual(), "libcuda.so.1": own}


def remove_cache(tree: HostTree) -> None:
    (tree.root / "etc/ld.so.cache").unlink()


def damage_cache(tree: HostTree) -> None:
    tree.write("/etc/ld.so.cache", "no cache")


def empty_cache(tree: HostTree) -> None:
    tree.entries = [Entry(soname="libc.so.6", path="/lib/libc.so.6", flags=X86_64)]
    tree.write_cache()


def stale_cache(tree: HostTree) -> None:
    tree.entries = [Entry(soname="libcuda.so.1", path="/opt/old/libcuda.so.1", flags=X86_64)]
    tree.write_cache()


USELESS: list[tuple[Callable[[HostTree], None], str]] = [
    (remove_cache, ""),
    (damage_cache, "{root}/etc/ld.so.cache is of no use: no magic of a loader cache"),
    (empty_cache, ""),
    (stale_cache, ""),
]


@pytest.mark.parametrize(("spoil", "note"), USELESS)
@pytest.mark.parametrize(
    "directory",
    [
        LIBRARY_DIRECTORY,
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
        DEBIAN,
        f"{LIBRARY_DIRECTORY}/nvidia/tesla-470",
        "/usr/local/glibc/usr/lib",
        "/run/opengl-driver/lib",
    ],
)
def test_directories_are_searched_when_the_cache_is_of_no_use(
    tree: HostTree, directory: str, spoil: Callable[[HostTree], None], note: str
) -> None:
    """Every directory where distributions put the driver is found without a cache."""
    tree.add_driver()
    shutil.rmtree(tree.root / "usr/lib")
    (tree.root / "lib").unlink()
    for prefix, suffix in (
        ("libcuda.so", ".1"),
        ("libcudadebugger.so", ".1"),
        ("libnvidia-ml.so", ".1"),
        ("libnvidia-cfg.so", ".1"),
        ("libnvidia-nvvm.so", ".4"),
    ):
        tree.add_library(prefix, suffix, directory=directory)
    spoil(tree)
    found = search(tree)
    assert paths(found) == usual(directory)
    assert list(found.notes) == ([note.format(root=tree.root)] if note else [])


def test_vdpau_subdirectory(tree: HostTree) -> None:
    """Without a cache the subdirectory of the video driver is searched, too."""
    tree.add_library("libcuda.so", ".1")
    tree.add_library("libvdpau_nvidia.so", ".1", directory=f"{LIBRARY_DIRECTORY}/vdpau")
    assert paths(search(tree, ("video",)))["libvdpau_nvidia.so.1"] == (
        f"{LIBRARY_DIRECTORY}/vdpau/libvdpau_nvidia.so.{VERSION}"
    )


def test_links_of_alternatives(tree: HostTree) -> None:
    """Debian's chain of absolute links ends at the file, inside the driver root."""
    tree.write(f"{DEBIAN}/libcuda.so.{VERSION}", build_elf(soname="libcuda.so.1"))
    tree.link("/etc/alternatives/glx--libcuda.so.1", f"{DEBIAN}/libcuda.so.{VERSION}")
    tree.link(f"{LIBRARY_DIRECTORY}/libcuda.so.1", "/etc/alternatives/glx--libcuda.so.1")
    tree.entries = [Entry(soname="libcuda.so.1", path=f"{LIBRARY_DIRECTORY}/libcuda.so.1", flags=X86_64)]
    tree.write_cache()
    assert paths(search(tree)) == {"libcuda.so.1": f"{DEBIAN}/libcuda.so.{VERSION}"}


@pytest.mark.parametrize("names", [("libcuda.so.1", "libcuda.so"), ("libcuda.so", "libcuda.so.1")])
def test_development_link_is_no_soname(tree: HostTree, names: tuple[str, str]) -> None:
    """libcuda.so in the cache, before or after libcuda.so.1, does not become the SONAME."""
    tree.add_library("libcuda.so", ".1")
    tree.link(f"{LIBRARY_DIRECTORY}/libcuda.so", "libcuda.so.1")
    tree.entries = [Entry(soname=name, path=f"{LIBRARY_DIRECTORY}/{name}", flags=X86_64) for name in names]
    tree.write("/etc/ld.so.cache", format_cache(Cache(entries=tuple(tree.entries))))
    assert paths(search(tree)) == {"libcuda.so.1": f"{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}"}


def test_first_of_two_copies(tree: HostTree) -> None:
    """Of two copies of one version the one is taken that the host's loader would take."""
    tree.add_library("libcuda.so", ".1")
    tree.add_library("libcuda.so", ".1", directory="/usr/lib64")
    tree.write_cache()
    assert paths(search(tree)) == {"libcuda.so.1": f"{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}"}


@pytest.mark.parametrize("with_cache", [True, False])
def test_both_word_sizes(tree: HostTree, *, with_cache: bool) -> None:
    """32-bit variants are found with compat32 only, and never instead of the 64-bit ones."""
    tree.add_library("libcuda.so", ".1")
    tree.add_library("libnvidia-ml.so", ".1")
    tree.add_library("libcuda.so", ".1", directory="/usr/lib/i386-linux-gnu", bits=32)
    if with_cache:
        tree.write_cache()
    wide = [library.bits for library in search(tree).libraries]
    both = [(library.soname, library.bits, library.path) for library in search(tree, sizes=(64, 32)).libraries]
    assert wide == [64, 64]
    assert both == [
        ("libnvidia-ml.so.1", 64, f"{LIBRARY_DIRECTORY}/libnvidia-ml.so.{VERSION}"),
        ("libcuda.so.1", 64, f"{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}"),
        ("libcuda.so.1", 32, f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}"),
    ]


@pytest.mark.parametrize(
    ("machine", "flags", "elf_machine", "bits"),
    [
        ("x86_64", 0x0303, 62, 64),
        ("x86_64", 0x0003, 3, 32),
        ("aarch64", 0x0A03, 183, 64),
        ("aarch64", 0x0903, 40, 32),
        ("ppc64le", 0x0503, 21, 64),
    ],
)
def test_machines(tree: HostTree, machine: str, flags: int, elf_machine: int, bits: int) -> None:
    """Each machine knows its flags; a library of another machine is not taken."""
    file = f"/usr/lib64/libcuda.so.{VERSION}"
    tree.write(file, build_elf(soname="libcuda.so.1", bits=bits, machine=elf_machine))
    tree.entries = [Entry(soname="libcuda.so.1", path=file, flags=flags)]
    tree.write_cache()
    expected = [("libcuda.so.1", bits)]
    assert [(one.soname, one.bits) for one in search(tree, sizes=(64, 32), machine=machine).libraries] == expected
    remove_cache(tree)
    assert [(one.soname, one.bits) for one in search(tree, sizes=(64, 32), machine=machine).libraries] == expected
    other = "x86_64" if machine != "x86_64" else "aarch64"
    assert search(tree, sizes=(64, 32), machine=other).libraries == ()


def test_unknown_machine(tree: HostTree) -> None:
    """A machine without NVIDIA drivers is told."""
    assert search(tree, machine="riscv64").notes == ("no driver libraries are known for machine riscv64",)


def test_other_versions_are_remembered(tree: HostTree) -> None:
    """Files of another version do not count, but show that the driver was changed."""
    tree.add_driver("535.261.03")
    found = search(tree)
    assert (found.libraries, found.has_witness) == ((), False)
    assert dict(found.other_versions)["libcuda.so"] == "535.261.03"


def test_version_is_a_whole_suffix(tree: HostTree) -> None:
    """1570.133.20 does not end with version 570.133.20."""
    tree.add_library("libcuda.so", ".1", version=f"1{VERSION}")
    tree.write_cache()
    assert search(tree).libraries == ()


def test_what_is_no_library(tree: HostTree) -> None:
    """Folders, dangling links and other files under a library's name are not taken."""
    tree.add_library("libnvidia-ml.so", ".1")
    (tree.root / f"{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}".lstrip("/")).mkdir()
    tree.write(f"{LIBRARY_DIRECTORY}/libnvidia-cfg.so.{VERSION}", "a text, not a library")
    tree.link(f"{LIBRARY_DIRECTORY}/libnvidia-nvvm.so.{VERSION}", "nowhere")
    found = search(tree)
    assert list(paths(found)) == ["libnvidia-ml.so.1"]
    assert found.notes == (
        f"{tree.root}{LIBRARY_DIRECTORY}/libnvidia-cfg.so.{VERSION} is no usable library: no ELF magic",
    )


def test_links_out_of_the_root_lead_nowhere(tree: HostTree) -> None:
    """A link that climbs out of the driver root is resolved inside it, where nothing is."""
    outside = tree.base / f"libcuda.so.{VERSION}"
    outside.write_bytes(build_elf(soname="libcuda.so.1"))
    tree.link(f"{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}", f"../../../../libcuda.so.{VERSION}")
    tree.entries = [
        Entry(soname="libcuda.so.1", path=f"{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}", flags=X86_64),
        Entry(soname="libcuda.so.1", path=f"{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}", flags=I386),
    ]
    tree.write_cache()
    assert search(tree, sizes=(64, 32)).libraries == ()


def test_every_row_is_found(tree: HostTree) -> None:
    """A tree that holds every library of the catalogue gives every row, in the catalogue's order."""
    for row in LIBRARIES:
        tree.add_library(row.prefix, ".1")
    tree.write_cache()
    expected = [f"{row.prefix}.1" for row in LIBRARIES]
    assert list(paths(search(tree, DRIVER_CAPABILITIES))) == expected
    remove_cache(tree)
    assert list(paths(search(tree, DRIVER_CAPABILITIES))) == expected


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("libcuda.so.1", "libcuda.so"),
        ("libcuda.so", "libcuda.so"),
        (f"libnvidia-pkcs11-openssl3.so.{VERSION}", "libnvidia-pkcs11-openssl3.so"),
        ("libcuda.a", ""),
        (".so", ""),
        ("", ""),
    ],
)
def test_library_prefix(name: str, prefix: str) -> None:
    """A row is found by the part of a name up to .so."""
    assert library_prefix(name) == prefix


def test_this_machine_by_default(tree: HostTree) -> None:
    """Without a machine the one that runs is meant."""
    tree.add_driver()
    known = os.uname().machine == "x86_64"
    with Root(str(tree.root)) as root:
        assert bool(find_libraries(root, VERSION, libraries_for(COMPUTE)).libraries) == known
