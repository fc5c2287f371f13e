"""Moving paths of a spec: which begin with a root, and which side of the container they belong to."""

import pytest

from nvinject.formats.cdi import Device, Edits, HookEdit, MountEdit, NodeEdit, Spec
from nvinject.render.rerooting import Move, move_container_paths, move_host_paths

PATHS = [
    ("/driver", "/", "/driver/dev/nvidia0", "/dev/nvidia0"),
    ("/driver/", "/", "/driver", "/"),
    ("/driver", "/", "/driver-2/x", "/driver-2/x"),
    ("/", "/driver", "/dev/nvidia0", "/driver/dev/nvidia0"),
    ("", "/driver", "/dev/nvidia0", "/driver/dev/nvidia0"),
    ("/", "", "/dev", "/dev"),
    ("/a", "/b/../c/", "/a/x", "/c/x"),
    ("/a", "/b", "relative", "relative"),
]


@pytest.mark.parametrize(("source", "target", "path", "expected"), PATHS)
def test_paths_move_at_component_boundaries(source: str, target: str, path: str, expected: str) -> None:
    """/driver begins /driver/x and not /driver-2."""
    assert Move(source=source, target=target).path(path) == expected


def hook(stage: str, *args: str) -> HookEdit:
    return HookEdit(hook_name=stage, path="/a/hook", args=args)


EDITS = Edits(
    env=("A=/a/x",),
    device_nodes=(NodeEdit(path="/a/dev"), NodeEdit(path="/dev/x", host_path="/a/dev/x")),
    mounts=(MountEdit(host_path="/a/lib", container_path="/a/lib"),),
    hooks=(
        hook("createContainer", "--link", "/a/x::/a/y", "/a"),
        hook("startContainer", "/a/z"),
        hook("poststop", "/a/z", "/b"),
    ),
)
SPEC = Spec(version="0.3.0", kind="a/b", devices=(Device(name="x", edits=EDITS),), edits=EDITS)


def test_host_side() -> None:
    """Nodes, sources, hooks and the arguments of hooks that run outside; the version rises where hostPath needs it."""
    moved = move_host_paths(SPEC, Move(source="/a", target="/m"))
    assert moved.version == "0.5.0"
    for edits in (moved.edits, moved.devices[0].edits):
        assert [(node.path, node.host_path) for node in edits.device_nodes] == [
            ("/a/dev", "/m/dev"),
            ("/dev/x", "/m/dev/x"),
        ]
        assert edits.mounts == (MountEdit(host_path="/m/lib", container_path="/a/lib"),)
        assert [one.path for one in edits.hooks] == ["/m/hook", "/a/hook", "/m/hook"]
        assert [one.args for one in edits.hooks] == [("--link", "/a/x::/a/y", "/a"), ("/a/z",), ("/m/z", "/b")]
        assert edits.env == ("A=/a/x",)


def test_container_side() -> None:
    """Nodes, destinations, and everything of hooks that names what lies in the container."""
    moved = move_container_paths(SPEC, Move(source="/a", target="/m"))
    assert moved.version == "0.5.0"
    edits = moved.edits
    assert [(node.path, node.host_path) for node in edits.device_nodes] == [("/m/dev", ""), ("/dev/x", "/a/dev/x")]
    assert edits.mounts == (MountEdit(host_path="/a/lib", container_path="/m/lib"),)
    assert [one.path for one in edits.hooks] == ["/a/hook", "/m/hook", "/a/hook"]
    assert [one.args for one in edits.hooks] == [("--link", "/m/x::/m/y", "/m"), ("/m/z",), ("/a/z", "/b")]


def test_a_version_that_is_high_enough_stays() -> None:
    """The declared version is the author's."""
    assert move_host_paths(SPEC.replace(version="v1.0.0"), Move(source="/a", target="/m")).version == "v1.0.0"
