"""Operations on their way to the createContainer hook."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.core.plan import BindFile, CreateSymlink, LoaderLibrary, MaskDirectory, UpdateLoaderCache
from nvinject.errors import InputError
from nvinject.render.planfile import HookPlan, format_plan_file, parse_plan_file

texts = st.text(max_size=10)
paths = texts.map(lambda text: f"/{text}")
flags = st.lists(st.sampled_from(["ro", "nosuid"]), max_size=2).map(tuple)
operations = st.one_of(
    st.builds(lambda s, t, f: BindFile(reason="r", source=s, target=t, flags=f), paths, paths, flags),
    st.builds(lambda s, t, f: CreateSymlink(reason="r", link=s, target=t, force=f), paths, texts, st.booleans()),
    st.builds(
        lambda t, f: MaskDirectory(reason="r", target=t, mode=0o555, files=(("params", f, 0o444),), flags=()),
        paths,
        texts,
    ),
    st.builds(
        lambda d, s: UpdateLoaderCache(reason="r", directories=(d,), libraries=(LoaderLibrary(soname=s, path=d),)),
        paths,
        texts,
    ),
)


@given(st.lists(operations, max_size=4), st.tuples(st.integers(0), st.integers(0)), texts)
def test_what_is_written_is_read(listed: list[BindFile], root: tuple[int, int], text: str) -> None:
    plan = HookPlan(
        operations=tuple(listed), root=root, driver_version=text, compat_mode=text, models=(text,), debug=text
    )
    assert parse_plan_file(format_plan_file(plan), "/p") == plan


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"{}", b'{"operations": [{"operation": "AllowDevice"}], "root": [0, 0]}', b'{"root": [1]}'],
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="/p is not what the runtime shim wrote"):
        parse_plan_file(data, "/p")
