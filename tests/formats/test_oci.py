"""State and config.json: what is taken, and one line for each thing that can be wrong."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.errors import InputError
from nvinject.formats.oci import Spec, State, parse_spec, parse_state, rootfs_path

STATES: list[tuple[str, State]] = [
    ('{"pid": 7, "bundle": "/b"}', State(pid=7, bundle="/b")),
    ('\n {"pid": 7, "bundle": "/b"} \n', State(pid=7, bundle="/b")),
    ('{"pid": 7, "bundlePath": "/old"}', State(pid=7, bundle="/old")),
    ('{"pid": 7, "bundle": "/b", "bundlePath": "/old"}', State(pid=7, bundle="/b")),
    ('{"pid": 7, "bundle": "", "bundlePath": "/old"}', State(pid=7, bundle="/old")),
    (
        '{"ociVersion": "1.0.2", "id": "c1", "status": "created", "pid": 7, "bundle": "/b", "root": "/b/r", "x": []}',
        State(pid=7, bundle="/b", id="c1", status="created", root="/b/r"),
    ),
    ('{"pid": 7, "bundle": "/b", "id": 3, "annotations": null}', State(pid=7, bundle="/b")),
]

BAD_STATES = [
    ("", "state is empty"),
    (" \n", "state is empty"),
    ("{", "state is not JSON: .* at line 1 column 2"),
    ("hello", "state is not JSON: Expecting value at line 1 column 1"),
    ("\xff", "state is not JSON"),
    ("[" * 100_000, "state is not JSON: The document is nested too deeply"),
    ("[]", "state is not a JSON object but an array"),
    ("null", "state is not a JSON object but null"),
    ("true", "state is not a JSON object but a boolean"),
    ('"x"', "state is not a JSON object but a string"),
    ("1.5", "state is not a JSON object but a number"),
    ('{"bundle": "/b"}', "state has no pid"),
    ('{"pid": null, "bundle": "/b"}', "state has no pid"),
    ('{"pid": 0, "bundle": "/b"}', "pid 0 in the container's state is not a positive integer"),
    ('{"pid": -1, "bundle": "/b"}', "pid -1 "),
    ('{"pid": true, "bundle": "/b"}', "pid True "),
    ('{"pid": 1.0, "bundle": "/b"}', "pid 1.0 "),
    ('{"pid": "12", "bundle": "/b"}', "pid '12' "),
    ('{"pid": "%s", "bundle": "/b"}' % ("9" * 90), r"pid '9+\.\.\. in"),
    ('{"pid": 7}', "state has no bundle"),
    ('{"pid": 7, "bundle": ""}', "state has no bundle"),
    ('{"pid": 7, "bundle": 3}', "bundle 3 in the container's state is not a path"),
]


@pytest.mark.parametrize(("text", "expected"), STATES)
def test_what_a_state_tells(text: str, expected: State) -> None:
    assert parse_state(text.encode()) == expected


@pytest.mark.parametrize(("text", "message"), BAD_STATES)
def test_a_state_that_is_refused_says_why(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_state(text.encode("latin-1"))
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def spec_with(**changes: Any) -> dict[str, Any]:
    """A minimal config.json with top-level members changed, or removed by None."""
    document: dict[str, Any] = {"ociVersion": "1.0.2", "process": {"cwd": "/"}, "root": {"path": "rootfs"}}
    document.update(changes)
    return {name: value for name, value in document.items() if value is not None}


def plain(**changes: Any) -> Spec:
    """The Spec of spec_with(), with fields changed."""
    return Spec(environment=(), mounts=(), privileged=False, root_path="rootfs").replace(**changes)


SPECS: list[tuple[dict[str, Any], Spec]] = [
    (spec_with(), plain()),
    (spec_with(unknown={"a": 1}, hostname=3, linux=[]), plain()),
    (spec_with(process={"env": ["A=1", "B", ""]}), plain(environment=("A=1", "B", ""))),
    (spec_with(process={"env": None, "cwd": "/"}), plain()),
    (spec_with(process={}), plain()),
    (
        spec_with(mounts=[{"source": "/dev/null", "destination": "/a"}, {"destination": "/proc"}, {}]),
        plain(mounts=(("/dev/null", "/a"), ("", "/proc"), ("", ""))),
    ),
    (spec_with(process={"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}), plain(privileged=True)),
    (spec_with(process={"capabilities": {"bounding": ["CAP_KILL"]}}), plain()),
    (spec_with(process={"capabilities": {"effective": ["CAP_SYS_ADMIN"]}}), plain()),
    (spec_with(process={"capabilities": ["CAP_KILL", "CAP_SYS_ADMIN"]}), plain(privileged=True)),
    (spec_with(process={"capabilities": "CAP_SYS_ADMIN"}), plain()),
    (spec_with(process={"capabilities": {"bounding": "CAP_SYS_ADMIN"}}), plain()),
    (spec_with(root={"path": "/r", "readonly": True}), plain(root_path="/r")),
]

BAD_SPECS: list[tuple[Any, str]] = [
    ([], "/b/config.json is not a JSON object but an array"),
    (spec_with(ociVersion=None), "ociVersion is missing in /b/config.json"),
    (spec_with(ociVersion=""), "ociVersion is missing in /b/config.json"),
    (spec_with(ociVersion=1), "ociVersion is not a string but a number in /b/config.json"),
    (spec_with(process=None), "process is missing in /b/config.json"),
    (spec_with(process=[1]), "process is not an object but an array in /b/config.json"),
    (spec_with(root=None), "root is missing in /b/config.json"),
    (spec_with(root="rootfs"), "root is not an object but a string in /b/config.json"),
    (spec_with(root={}), "root.path is missing in /b/config.json"),
    (spec_with(root={"readonly": True}), "root.path is missing in /b/config.json"),
    (spec_with(root={"path": 3}), "root.path is not a string but a number"),
    (spec_with(process={"env": "A=1"}), "process.env is not a list of strings in /b/config.json"),
    (spec_with(process={"env": ["A=1", 2]}), "process.env is not a list of strings"),
    (spec_with(mounts={}), "mounts is not a list of objects in /b/config.json"),
    (spec_with(mounts=["/a"]), "mounts is not a list of objects"),
    (spec_with(mounts=[{}, {"source": 1}]), r"mounts\[1\] has a source or destination that is no string"),
]


@pytest.mark.parametrize(("document", "expected"), SPECS)
def test_what_a_spec_tells(document: dict[str, Any], expected: Spec) -> None:
    assert parse_spec(json.dumps(document).encode(), "/b/config.json") == expected


@pytest.mark.parametrize(("document", "message"), BAD_SPECS)
def test_a_spec_that_is_refused_says_why(document: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_spec(json.dumps(document).encode(), "/b/config.json")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "/c is empty"),
        (b"\n", "/c is empty"),
        (b"{\n]", "/c is not JSON: .* at line 2 column 1"),
        (b"\xff", "/c is not JSON"),
    ],
)
def test_spec_that_is_no_json(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_spec(data, "/c")


@pytest.mark.parametrize(
    ("root_path", "bundle", "expected"),
    [
        ("rootfs", "/run/b", "/run/b/rootfs"),
        ("rootfs", "/run/b/", "/run/b/rootfs"),
        ("a/../rootfs", "/run/b", "/run/b/a/../rootfs"),
        ("/var/lib/rootfs", "/run/b", "/var/lib/rootfs"),
    ],
)
def test_a_relative_root_belongs_to_the_bundle(root_path: str, bundle: str, expected: str) -> None:
    assert rootfs_path(plain(root_path=root_path), bundle) == expected


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "pid",
                    "bundle",
                    "ociVersion",
                    "process",
                    "root",
                    "path",
                    "env",
                    "mounts",
                    "source",
                    "linux",
                    "uidMappings",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=15,
)


@given(ANY_JSON)
def test_nothing_but_input_errors(document: Any) -> None:
    data = json.dumps(document).encode()
    for parse in (parse_state, lambda data: parse_spec(data, "config.json")):
        try:
            parse(data)
        except InputError as error:
            assert error.exit_code == 3  # noqa: PT017  # most documents are refused, some are not
