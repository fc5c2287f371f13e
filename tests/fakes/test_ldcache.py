"""The loader's cache against the host's own, and its order against glibc's rules."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvfakes import ldcache

NAMES = st.text(st.sampled_from("ab.0129-"), min_size=1, max_size=8)


def test_reads_and_writes_the_hosts_cache() -> None:
    path = Path("/etc/ld.so.cache")
    if not path.exists():
        pytest.skip("this host has no loader cache")
    cache = ldcache.parse(path.read_bytes())
    again = ldcache.parse(ldcache.render(cache))
    assert again == cache


def test_keeps_hwcap_names() -> None:
    cache = ldcache.Cache((ldcache.Entry("liba.so", "/lib/liba.so", ldcache.FLAG_X86_64, 0, 1 << 62),), ("x86-64-v3",))
    assert ldcache.parse(ldcache.render(cache)) == cache


@pytest.mark.parametrize("data", [b"", b"ld.so-1.7.0", ldcache.MAGIC])
def test_refuses_what_is_no_cache(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a loader cache"):
        ldcache.parse(data)


@pytest.mark.parametrize(
    ("first", "second"),
    [("liba.so.2", "liba.so.10"), ("liba.so", "liba.so.1"), ("liba.so", "libb.so"), ("liba", "lib1")],
)
def test_orders_numbers_by_value(first: str, second: str) -> None:
    assert ldcache.compare_names(first, second) < 0 < ldcache.compare_names(second, first)


@given(st.lists(NAMES, unique=True, max_size=6))
def test_rendering_keeps_every_entry(names: list[str]) -> None:
    entries = {ldcache.Entry(name, f"/lib/{name}", ldcache.FLAG_X86_64) for name in names}
    assert set(ldcache.parse(ldcache.render(ldcache.Cache(tuple(entries)))).entries) == entries


def test_adding_replaces_the_same_name() -> None:
    old = ldcache.Entry("libcuda.so.1", "/old/libcuda.so.1", ldcache.FLAG_X86_64)
    new = ldcache.Entry("libcuda.so.1", "/new/libcuda.so.1", ldcache.FLAG_X86_64)
    narrow = ldcache.Entry("libcuda.so.1", "/old32/libcuda.so.1", ldcache.FLAG_I386)
    assert set(ldcache.add(ldcache.Cache((old, narrow)), [new]).entries) == {new, narrow}
