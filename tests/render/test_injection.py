"""CDI edits in a config.json: what each kind changes, and what stays."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from nvinject.errors import HostError, InputError
from nvinject.formats.cdi import Device, Edits, HookEdit, MountEdit, NetworkEdit, NodeEdit, RdtEdit, Spec
from nvinject.render.injection import apply_edits, collect_edits

BASE: dict[str, Any] = {
    "ociVersion": "1.0.2",
    "x-unknown": {"kept": True},
    "process": {"env": ["PATH=/bin", "A=1", "A=2"], "user": {"uid": 0, "gid": 0}},
    "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/a/b", "source": "/x"}],
    "linux": {"devices": [{"path": "/dev/null2", "type": "c"}], "resources": {"devices": [{"allow": False}]}},
}
NULL = NodeEdit(path="/dev/null2", host_path="/dev/null", permissions="rw", file_mode=0o666)


def applied(edits: Edits, **process: Any) -> dict[str, Any]:
    document = copy.deepcopy(BASE)
    document["process"].update(process)
    apply_edits(document, edits)
    assert document["x-unknown"] == {"kept": True}
    return document


def test_variables_replace_what_is_there() -> None:
    assert applied(Edits(env=("A=3", "B=1", "B=2")))["process"]["env"] == ["PATH=/bin", "A=3", "B=2"]


def test_a_node_takes_its_number_from_the_host_and_gets_a_rule() -> None:
    linux = applied(Edits(device_nodes=(NULL,)))["linux"]
    assert linux["devices"] == [{"path": "/dev/null2", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666}]
    assert linux["resources"]["devices"] == [
        {"allow": False},
        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"},
    ]


@pytest.mark.parametrize(("host_path", "namespace", "bound"), [
    ("/driver/dev/null2", "user", True),
    ("/driver/dev/null2", "mount", False),
    ("/dev/null2", "user", False),
    ("", "user", False),
])  # fmt: skip
def test_a_node_that_lies_elsewhere_is_bound_in_user_namespaces(host_path: str, namespace: str, bound: bool) -> None:
    """runc would bind the host's node of the same path, and no runtime can make one there; the rule stays."""
    node = NodeEdit(path="/dev/null2", host_path=host_path, type="c", major=1, minor=3, permissions="rw")
    document = copy.deepcopy(BASE)
    document["linux"]["namespaces"] = [{"type": namespace}]
    apply_edits(document, Edits(device_nodes=(node,)))
    options = ["rbind", "ro", "nosuid", "noexec", "rprivate"]
    mount = {"destination": "/dev/null2", "source": host_path, "type": "bind", "options": options}
    assert (mount in document["mounts"]) is bound
    assert [one["path"] for one in document["linux"]["devices"]] == ([] if bound else ["/dev/null2"])
    assert document["linux"]["resources"]["devices"][-1]["access"] == "rw"


OWNERS: list[tuple[dict[str, int], dict[str, int], dict[str, int]]] = [
    ({"uid": 1000, "gid": 100}, {}, {"uid": 1000, "gid": 100}),
    ({"uid": 1000, "gid": 100}, {"gid": 44}, {"uid": 1000, "gid": 44}),
    ({"uid": 0, "gid": 0}, {}, {}),
    ({"uid": 1000, "gid": 100}, {"uid": 0, "gid": 0}, {"uid": 0, "gid": 0}),
]


@pytest.mark.parametrize(("user", "given", "expected"), OWNERS)
def test_nodes_belong_to_the_process_unless_the_spec_says_otherwise(
    user: dict[str, int], given: dict[str, int], expected: dict[str, int]
) -> None:
    devices = applied(Edits(device_nodes=(NULL.replace(**given),)), user=user)["linux"]["devices"]
    assert {name: devices[0][name] for name in ("uid", "gid") if name in devices[0]} == expected


def test_a_spec_that_says_everything_needs_no_node_on_the_host() -> None:
    node = NodeEdit(path="/dev/x", host_path="/nowhere", type="b", major=8, minor=1)
    assert applied(Edits(device_nodes=(node,)))["linux"]["resources"]["devices"][-1]["access"] == "rwm"


def test_a_pipe_has_no_number_and_no_rule(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    node = NodeEdit(path="/dev/pipe", host_path=str(tmp_path / "pipe"))
    linux = applied(Edits(device_nodes=(node,)))["linux"]
    assert linux["devices"][-1] == {"path": "/dev/pipe", "type": "p"}
    assert linux["resources"]["devices"] == [{"allow": False}]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (NodeEdit(path="/dev/nowhere"), "/dev/nowhere.*No such file"),
        (NodeEdit(path="/etc/passwd"), "is no device node"),
        (NodeEdit(path="/dev/null", type="b"), "is no device node of the kind"),
    ],
)
def test_nodes_that_the_host_lacks(node: NodeEdit, message: str) -> None:
    with pytest.raises(HostError, match=message):
        applied(Edits(device_nodes=(node,)))


def test_mounts_replace_and_go_below_their_parents() -> None:
    mounts = (
        MountEdit(host_path="/y", container_path="/a/b", options=("ro", "rbind")),
        MountEdit(host_path="/z", container_path="/c", type="bind"),
    )
    assert applied(Edits(mounts=mounts))["mounts"] == [
        {"destination": "/proc", "type": "proc"},
        {"destination": "/c", "source": "/z", "type": "bind"},
        {"destination": "/a/b", "source": "/y", "options": ["ro", "rbind"]},
    ]


def test_hooks_groups_interfaces_and_rdt_are_added() -> None:
    document = applied(
        Edits(
            hooks=(HookEdit(hook_name="createContainer", path="/h", args=("h",), env=("A=1",), timeout=3),),
            net_devices=(NetworkEdit(host_interface_name="eth1", name="net0"),),
            intel_rdt=RdtEdit(clos_id="gpu"),
            additional_gids=(0, 44, 44),
        )
    )
    assert document["hooks"] == {"createContainer": [{"path": "/h", "args": ["h"], "env": ["A=1"], "timeout": 3}]}
    assert document["process"]["user"]["additionalGids"] == [44]
    assert document["linux"]["netDevices"] == {"eth1": {"name": "net0"}}
    assert document["linux"]["intelRdt"] == {"closID": "gpu"}


def test_nothing_is_added_for_nothing() -> None:
    assert applied(Edits()) == BASE


@pytest.mark.parametrize(("name", "value"), [("process", []), ("mounts", {}), ("hooks", "x")])
def test_a_malformed_document_is_refused(name: str, value: Any) -> None:
    document = {**copy.deepcopy(BASE), name: value}
    edits = Edits(
        mounts=(MountEdit(host_path="/y", container_path="/y"),), hooks=(HookEdit(hook_name="poststop", path="/h"),)
    )
    with pytest.raises(InputError, match=f"{name} in config.json"):
        apply_edits(document, edits)


def test_the_edits_of_a_file_come_once_and_first() -> None:
    def spec(kind: str) -> Spec:
        return Spec(version="0.5.0", kind=kind, devices=(), edits=Edits(env=(f"SPEC={kind}",)))

    def device(name: str) -> Device:
        return Device(name=name, edits=Edits(env=(f"DEVICE={name}",)))

    first, second = spec("a/a"), spec("b/b")
    edits = collect_edits((("/1", first, device("0")), ("/2", second, device("1")), ("/1", first, device("2"))))
    assert edits.env == ("SPEC=a/a", "DEVICE=0", "SPEC=b/b", "DEVICE=1", "DEVICE=2")
