"""Device nodes that a container's start makes on the host, and taking them back when the start fails.

Belongs here: the order, the inverse, and what a failure is called. Does not belong here: which nodes (core.planner,
where the node's configuration allows any) and how one is made (devicenodes.py).
"""

import os

from nvinject.core.model import DeviceNode
from nvinject.core.plan import MakeNode
from nvinject.errors import HostError
from nvinject.render import devicenodes
from nvinject.render.journal import Journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def make_nodes(operations: "Iterable[MakeNode]", log: "Callable[[str], None]") -> Journal:
    """Make all nodes or none; returns the journal that can take them back. Raises HostError."""
    journal = Journal()
    for operation in operations:
        log(f"{operation.describe()} [{operation.reason}]")
        try:
            _make(operation, journal)
        except OSError as error:
            problems = journal.undo()
            left = f"; could not undo: {', '.join(problems)}" if problems else ""
            raise HostError(
                f"cannot {operation.describe()}: {error.strerror}{left}", "make it on the host before, as root"
            ) from error
    return journal


def _make(operation: MakeNode, journal: Journal) -> None:
    node = DeviceNode(
        path=operation.path,
        major=operation.major,
        minor=operation.minor,
        mode=operation.mode,
        uid=operation.uid,
        gid=operation.gid,
    )
    root_fd = os.open(operation.root, _DIRECTORY)
    try:
        devicenodes.make_node(root_fd, node)
    except FileExistsError:
        # Another container's start was faster; the node is then not ours to take back.
        if devicenodes.state_of_node(root_fd, node)[0] != devicenodes.THERE:
            raise
    else:
        journal.record(operation.describe(), lambda: _remove(operation.root, node))
    finally:
        os.close(root_fd)


def _remove(root: str, node: DeviceNode) -> None:
    root_fd = os.open(root, _DIRECTORY)
    try:
        devicenodes.remove_node(root_fd, node)
    finally:
        os.close(root_fd)
