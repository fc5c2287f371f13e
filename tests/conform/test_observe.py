"""Observations: mount tables, trees, paths inside a root, loader caches."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvconform import observe
from nvconform.image import shared_object
from tests.ldconfig import need_ldconfig

TABLE = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
40 27 0:40 /lib/a\\040b /run/rootfs/usr/a\\040b ro,nosuid,nodev,relatime - overlay over rw
41 27 0:41 / /run/rootfs/dev/x rw,noexec shared:5 master:3 - tmpfs tmpfs rw
"""
AFTER = f"{TABLE}50 27 0:50 /x /run/rootfs/etc/x ro - ext4 /dev/vda rw\n51 27 0:51 / /etc/y rw - tmpfs tmpfs rw\n"

PATHS = [
    ("/a/b", "a/b"),
    ("/../../a", "a"),
    ("/absolute/x", "target/x"),
    ("/climbing/x", "target/x"),
    ("/a/../b", "b"),
    ("/loop", None),
    ("/missing/deep/file", "missing/deep/file"),
]


def test_mounts_have_flags_and_propagation() -> None:
    _, first, second = observe.parse_mounts(TABLE)
    assert (first.target, first.root, first.flags) == ("/run/rootfs/usr/a b", "/lib/a b", "ro,nosuid,nodev")
    assert second.flags == "rw,noexec,shared,slave"


def test_new_mounts_are_named_from_inside_and_strays_are_marked() -> None:
    found = observe.new_mounts(TABLE, AFTER, "/run/rootfs")
    assert sorted(found) == ["/etc/x", "host:/etc/y"]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_paths_stay_inside(tmp_path: Path, path: str, expected: str | None) -> None:
    (tmp_path / "absolute").symlink_to("/target")
    (tmp_path / "climbing").symlink_to("../../../../target")
    (tmp_path / "loop").symlink_to("loop")
    found = observe.resolve(tmp_path, path)
    assert found.is_relative_to(tmp_path)
    if expected is not None:
        assert found == tmp_path / expected


@given(st.text("ab./", max_size=30), st.text("ab./", min_size=1, max_size=20))
def test_no_path_leads_out_of_a_root(path: str, target: str) -> None:
    root = Path("/nonexistent-root")
    assert observe.resolve(root, f"{path}/{target}").is_relative_to(root)
    assert ".." not in observe.resolve(root, f"{path}/{target}").parts


def test_trees_show_every_kind_of_change(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("same")
    (tmp_path / "changed").write_text("one")
    (tmp_path / "removed").mkdir()
    (tmp_path / "mode").write_text("")
    before = observe.tree(tmp_path)
    (tmp_path / "changed").write_text("two")
    (tmp_path / "removed").rmdir()
    (tmp_path / "mode").chmod(0o600)
    (tmp_path / "link").symlink_to("/outside")
    os.mkfifo(tmp_path / "fifo", 0o600)
    changes = observe.changes(before, observe.tree(tmp_path))
    assert sorted(changes) == ["/changed", "/fifo", "/link", "/mode", "/removed"]
    assert changes["/link"] == "link /outside"
    assert changes["/removed"] == "removed"


def test_links_are_not_followed_into_other_trees(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "up").symlink_to("..")
    assert observe.tree(tmp_path) == {
        "/inside": observe.describe(tmp_path / "inside"),
        "/inside/up": "link ..",
    }


def test_the_null_device_is_described() -> None:
    assert observe.describe(Path("/dev/null")).endswith("1:3")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_cache_is_read_as_the_hosts_ldconfig_reads_it(tmp_path: Path) -> None:
    need_ldconfig(tmp_path)
    from nvconform.case import Container
    from nvconform.image import Image

    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"")
    container = Container(libraries={"/usr/lib/libmine.so.1.2": "libmine.so.1"}, loader_cache=True)
    root = tmp_path / "root"
    root.mkdir()
    Image(root, {}).build(container, busybox)
    # ldconfig makes the SONAME link as well, which shows that it took the generated file for a library.
    entries = observe.loader_cache(root / "etc/ld.so.cache")
    assert [entry.split(" ")[0] for entry in entries] == ["libmine.so.1"]
    assert (root / "usr/lib/libmine.so.1").is_symlink()


def test_damaged_and_missing_caches_are_told_apart(tmp_path: Path) -> None:
    damaged = tmp_path / "cache"
    damaged.write_text("no cache")
    assert observe.loader_cache(tmp_path / "missing") == []
    assert observe.loader_cache(damaged)[0].startswith("unreadable")


def test_generated_libraries_are_elf_files_with_their_soname() -> None:
    data = shared_object("libx.so.7")
    assert data.startswith(b"\x7fELF\x02\x01\x01")
    assert b"\0libx.so.7\0" in data


def test_own_state_is_stable() -> None:
    assert observe.own_mounts() == observe.own_mounts()
    assert observe.own_descriptors() == observe.own_descriptors()
