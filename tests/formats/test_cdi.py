"""CDI specs: what is accepted, what is refused and where, versions, and reading back what was written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats import cdi

from .cdischema import load_validator

EDITS: dict[str, Any] = {"deviceNodes": [{"path": "/dev/nvidia0"}]}


def document(**changes: Any) -> dict[str, Any]:
    base = {"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": [{"name": "gpu0", "containerEdits": EDITS}]}
    return {**base, **changes}


def with_edits(**edits: Any) -> dict[str, Any]:
    return document(containerEdits=edits, cdiVersion="1.1.0")


VALIDATOR = load_validator()

ACCEPTED = [
    ("the least", document()),
    ("a leading v", document(cdiVersion="v0.3.0")),
    ("null stands for nothing", document(containerEdits=None, annotations=None)),
    ("a class with a dot", document(cdiVersion="0.6.0", kind="nvidia.com/gpu.coherent")),
    ("one letter", document(kind="n/g")),
    ("a hook without environment", with_edits(hooks=[{"hookName": "poststop", "path": "bin/hook"}])),
    ("a network interface", with_edits(netDevices=[{"hostInterfaceName": "eth1", "name": "net0"}])),
]


@pytest.mark.parametrize(("title", "value"), ACCEPTED, ids=[title for title, _ in ACCEPTED])
def test_specs_that_are_accepted(title: str, value: dict[str, Any]) -> None:
    assert cdi.parse(cdi.format_spec(cdi.parse(value))) == cdi.parse(value)


REFUSED = [
    ([], ".", "an object is needed, this is a list"),
    (document(cdiVersion=None), ".cdiVersion", "is missing or empty"),
    (document(cdiVersion=0.5), ".cdiVersion", "a string is needed, this is a number"),
    (document(cdiVersion="9.9.9"), ".cdiVersion", "unknown version '9.9.9'"),
    (document(kind="nvidia.com"), ".kind", "not of the form vendor/class"),
    (document(kind="/gpu"), ".kind", "the vendor is empty"),
    (document(kind="1nvidia/gpu"), ".kind", "does not start with a letter"),
    (document(kind="nvidia.com/gpu-"), ".kind", "does not start and end with a letter or digit"),
    (document(kind="nvidia.com/g/u"), ".kind", "has the character '/'"),
    (document(devices=[]), ".devices", "there is no device"),
    (document(devices={}), ".devices", "a list is needed, this is an object"),
    (document(devices=[3]), ".devices[0]", "an object is needed, this is a number"),
    (document(devices=[{"name": "a", "containerEdits": {}}]), ".devices[0].containerEdits", "changes nothing"),
    (document(devices=[{"name": "a b", "containerEdits": EDITS}]), ".devices[0].name", "has the character ' '"),
    (document(devices=[{"containerEdits": EDITS}]), ".devices[0].name", "is missing or empty"),
    (
        document(devices=[{"name": "a", "containerEdits": EDITS}] * 2),
        ".devices[1].name",
        "a device 'a' is there already",
    ),
    (document(vendor="x"), ".vendor", "unknown field"),
    (document(annotations={"a": 1}), ".annotations.a", "name and value have to be strings"),
    (with_edits(mounts=[{"hostPath": "/a"}]), ".containerEdits.mounts[0].containerPath", "is missing or empty"),
    (with_edits(mounts=[{"hostPath": "/a", "containerPath": "/a", "options": "ro"}]), ".options", "a list is needed"),
    (with_edits(env=["A=1", "=2"]), ".containerEdits.env[1]", "not of the form NAME=value"),
    (with_edits(deviceNodes=[{"path": "/d", "type": "x"}]), ".deviceNodes[0].type", "none of b, c, u, p"),
    (with_edits(deviceNodes=[{"path": "/d", "permissions": "rx"}]), ".permissions", "other letters"),
    (with_edits(deviceNodes=[{"path": "/d", "major": True}]), ".major", "an integer is needed, this is a boolean"),
    (with_edits(deviceNodes=[{"path": "/d", "uid": -1}]), ".uid", "-1 is out of range"),
    (with_edits(hooks=[{"hookName": "later", "path": "/h"}]), ".hooks[0].hookName", "none of prestart"),
    (with_edits(hooks=[{"hookName": "prestart", "path": "/h", "timeout": 1 << 32}]), ".timeout", "out of range"),
    (with_edits(hooks=[{"hookName": "prestart", "path": "/h", "env": ["x"]}]), ".env[0]", "NAME=value"),
    (with_edits(netDevices=[{"hostInterfaceName": x, "name": "n"} for x in "ab"]), ".netDevices", "the same name"),
    (with_edits(intelRdt={"closID": ".."}), ".intelRdt.closID", "cannot name a directory"),
    (with_edits(intelRdt={"enableMonitoring": 1}), ".enableMonitoring", "a boolean is needed"),
    (with_edits(additionalGids=["video"]), ".additionalGids[0]", "an integer is needed, this is a string"),
]


@pytest.mark.parametrize(("value", "where", "reason"), REFUSED)
def test_refuses_and_says_where(value: Any, where: str, reason: str) -> None:
    with pytest.raises(cdi.CdiError) as caught:
        cdi.parse(value)
    assert caught.value.where.endswith(where)
    assert reason in caught.value.reason


NEEDED = [
    ("0.3.0", document()),
    ("0.4.0", document(containerEdits={"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]})),
    ("0.5.0", document(devices=[{"name": "0", "containerEdits": EDITS}])),
    ("0.5.0", document(containerEdits={"deviceNodes": [{"path": "/d", "hostPath": "/e"}]})),
    ("0.6.0", document(annotations={"a": "b"})),
    ("0.6.0", document(devices=[{"name": "a", "annotations": {"a": "b"}, "containerEdits": EDITS}])),
    ("0.6.0", document(kind="nvidia.com/gpu.coherent")),
    ("0.7.0", document(containerEdits={"additionalGids": [44]})),
    ("0.7.0", document(containerEdits={"intelRdt": {"closID": "a"}})),
    ("1.1.0", document(containerEdits={"intelRdt": {"schemata": ["L3:0=f"]}})),
    ("1.1.0", document(containerEdits={"netDevices": [{"hostInterfaceName": "a", "name": "b"}]})),
]


@pytest.mark.parametrize(("version", "value"), NEEDED)
def test_lowest_version(version: str, value: dict[str, Any]) -> None:
    spec = cdi.parse({**value, "cdiVersion": version})
    assert cdi.needed_version(spec)[0] == version
    lower = cdi.VERSIONS[cdi.VERSIONS.index(version) - 1]
    if version == cdi.BASELINE_VERSION:
        assert cdi.parse({**value, "cdiVersion": lower}).version == lower
    else:
        with pytest.raises(cdi.CdiError, match=f"too low.*needs {version}"):
            cdi.parse({**value, "cdiVersion": lower})


NAMES = [
    ("nvidia.com/gpu=0", ("nvidia.com", "gpu", "0")),
    ("nvidia.com/gpu=MIG-1:2.x", ("nvidia.com", "gpu", "MIG-1:2.x")),
    ("a/b=c", ("a", "b", "c")),
    ("nvidia.com/gpu", "not of the form vendor/class=device"),
    ("gpu=0", "not of the form vendor/class"),
    ("nvidia.com/gpu=", "the device name is empty"),
    ("nvidia.com/gpu=a=b", "has the character '='"),
    ("nvidia.com/gpu=:0", "does not start and end"),
    ("nvidia.com/güu=0", "has the character 'ü'"),
]


@pytest.mark.parametrize(("text", "expected"), NAMES)
def test_qualified_names(text: str, expected: tuple[str, str, str] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(cdi.CdiError, match=expected):
            cdi.parse_name(text)
    else:
        name = cdi.parse_name(text)
        assert (name.vendor, name.device_class, name.device) == expected
        assert str(name) == text


texts = st.text(max_size=12)
filled = st.text(min_size=1, max_size=12)
variables = st.builds("{}={}".format, st.text("ABC_", min_size=1, max_size=4), texts)
names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,8}[A-Za-z0-9])?", fullmatch=True)
kinds = st.from_regex(r"[a-z]([a-z0-9_.-]{0,6}[a-z0-9])?/[a-z]([a-z0-9_.-]{0,6}[a-z0-9])?", fullmatch=True)
uint32 = st.integers(0, 2**32 - 1)
annotations = st.dictionaries(texts, texts, max_size=2).map(lambda pairs: tuple(sorted(pairs.items())))


def tuples(values: st.SearchStrategy[Any], min_size: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, min_size=min_size, max_size=3).map(tuple)


nodes = st.builds(
    cdi.NodeEdit,
    path=filled,
    host_path=texts,
    type=st.sampled_from(cdi.NODE_TYPES),
    major=st.integers(0, 511),
    minor=st.integers(0, 1 << 20),
    file_mode=st.none() | uint32,
    permissions=st.sampled_from(("", "r", "rw", "rwm")),
    uid=st.none() | uint32,
    gid=st.none() | uint32,
)
hooks = st.builds(
    cdi.HookEdit,
    hook_name=st.sampled_from(cdi.HOOK_NAMES),
    path=filled,
    args=tuples(texts),
    env=st.none() | tuples(variables, min_size=1),
    timeout=st.none() | uint32,
)
mounts = st.builds(cdi.MountEdit, host_path=filled, container_path=filled, options=tuples(texts), type=texts)
rdts = st.builds(
    cdi.RdtEdit, clos_id=st.text("abc", max_size=4), schemata=tuples(texts), enable_monitoring=st.booleans()
)
edits = st.builds(
    cdi.Edits,
    env=tuples(variables),
    device_nodes=tuples(nodes),
    net_devices=tuples(st.builds(cdi.NetworkEdit, host_interface_name=filled, name=filled)).filter(
        lambda found: len({device.name for device in found}) == len(found)
    ),
    hooks=tuples(hooks),
    mounts=tuples(mounts),
    intel_rdt=st.none() | rdts,
    additional_gids=tuples(uint32),
)
devices = st.builds(
    cdi.Device, name=names, edits=edits.filter(lambda found: not found.is_empty()), annotations=annotations
)
specs = st.builds(
    cdi.Spec,
    version=st.just("1.1.0"),
    kind=kinds,
    devices=st.lists(devices, min_size=1, max_size=3, unique_by=lambda device: device.name).map(tuple),
    edits=edits,
    annotations=annotations,
)


@given(specs)
def test_reads_back_what_it_writes(spec: cdi.Spec) -> None:
    needed, _ = cdi.needed_version(spec)
    lowest = spec.replace(version=needed)
    written = cdi.format_spec(lowest)
    assert cdi.parse(written) == lowest
    assert cdi.parse(json.loads(json.dumps(written))) == lowest
    assert list(VALIDATOR.iter_errors(written)) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("name", "kind", "devices", "path", "containerEdits", "env")), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(json_values)
def test_refuses_anything_else_with_its_own_error(value: Any) -> None:
    with pytest.raises(cdi.CdiError):
        cdi.parse(value)


@given(specs, st.data())
def test_one_damaged_field_is_refused_or_valid_by_schema(spec: cdi.Spec, data: st.DataObject) -> None:
    written = cdi.format_spec(spec)
    holder = data.draw(st.sampled_from([written, *written["devices"], written["devices"][0]["containerEdits"]]))
    holder[data.draw(st.sampled_from(sorted(holder) or ["env"]))] = data.draw(json_values)
    try:
        cdi.parse(written)
    except cdi.CdiError:
        return
    # What we accept, the schema accepts too, but for null, which Go's readers take for nothing.
    assert all("None is not of type" in error.message for error in VALIDATOR.iter_errors(written))
