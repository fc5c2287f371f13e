"""A CDI spec for another root: paths that begin with one folder made to begin with another.

Belongs here: which fields of a spec are paths of the host, which of the container, and replacing their beginning. Does
not belong here: files. A spec that was made inside a driver container is moved to what the host calls the same folder.
"""

import os

from nvinject.formats import cdi
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Arguments of hooks of these stages are paths of the container.
_IN_CONTAINER = ("createContainer", "startContainer")


class Move(Record):
    """The folder that paths begin with and the one that they shall begin with."""

    source: str
    target: str

    def path(self, path: str) -> str:
        """Return a path moved, if it begins with the folder: `/driver` begins `/driver/x` and not `/driver-2`."""
        source = self.source.rstrip("/")
        if path != source and not path.startswith(f"{source}/"):
            return path
        moved = os.path.normpath(f"{self.target or '/'}/{path[len(source) :].lstrip('/')}")
        return moved[1:] if moved.startswith("//") else moved  # normpath keeps two slashes, as POSIX allows

    def word(self, word: str) -> str:
        """Return an argument of a hook moved; both halves of a link `target::link` are paths."""
        first, separator, second = word.partition("::")
        return f"{self.path(first)}{separator}{self.path(second)}" if separator else self.path(word)


def move_host_paths(spec: cdi.Spec, move: Move) -> cdi.Spec:
    """Return the spec with every path of the host moved; the version is raised where that needs it."""
    return _with_needed_version(_each_edits(spec, lambda edits: _move_host(edits, move)))


def move_container_paths(spec: cdi.Spec, move: Move) -> cdi.Spec:
    """Return the spec with every path of the container moved."""
    return _with_needed_version(_each_edits(spec, lambda edits: _move_container(edits, move)))


def _each_edits(spec: cdi.Spec, change: "Callable[[cdi.Edits], cdi.Edits]") -> cdi.Spec:
    devices = tuple(device.replace(edits=change(device.edits)) for device in spec.devices)
    return spec.replace(edits=change(spec.edits), devices=devices)


def _with_needed_version(spec: cdi.Spec) -> cdi.Spec:
    needed = cdi.needed_version(spec)[0]
    declared = spec.version.removeprefix("v")
    if cdi.VERSIONS.index(declared) < cdi.VERSIONS.index(needed):
        return spec.replace(version=needed)
    return spec


def _move_host(edits: cdi.Edits, move: Move) -> cdi.Edits:
    return edits.replace(
        device_nodes=tuple(
            node.replace(host_path=move.path(node.host_path or node.path)) for node in edits.device_nodes
        ),
        mounts=tuple(mount.replace(host_path=move.path(mount.host_path)) for mount in edits.mounts),
        hooks=tuple(_move_hook_of_host(hook, move) for hook in edits.hooks),
    )


def _move_hook_of_host(hook: cdi.HookEdit, move: Move) -> cdi.HookEdit:
    args = hook.args if hook.hook_name in _IN_CONTAINER else tuple(move.word(word) for word in hook.args)
    return hook.replace(path=hook.path if hook.hook_name == "startContainer" else move.path(hook.path), args=args)


def _move_container(edits: cdi.Edits, move: Move) -> cdi.Edits:
    return edits.replace(
        # The node of the host is still the one under the old name.
        device_nodes=tuple(node.replace(path=move.path(node.path)) for node in edits.device_nodes),
        mounts=tuple(mount.replace(container_path=move.path(mount.container_path)) for mount in edits.mounts),
        hooks=tuple(_move_hook_of_container(hook, move) for hook in edits.hooks),
    )


def _move_hook_of_container(hook: cdi.HookEdit, move: Move) -> cdi.HookEdit:
    if hook.hook_name not in _IN_CONTAINER:
        return hook
    path = move.path(hook.path) if hook.hook_name == "startContainer" else hook.path
    return hook.replace(path=path, args=tuple(move.word(word) for word in hook.args))
