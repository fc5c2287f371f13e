"""The multi-process service (MPS): whether its control daemon runs.

Belongs here: looking at its pipe directory. Does not belong here: finding that directory for a container (files.py) and
what follows (core). The daemon is not talked to: clients connect to its pipe `control`, its pid file names its process.
"""

from nvinject.core.catalog import MPS, MPS_CONTROL, MPS_PID_FILE, SOCKETS
from nvinject.host.files import socket_paths
from nvinject.host.root import Root

PID_SIZE = 64  # bytes, more than any process id and a newline


def pipe_directory(directories: tuple[tuple[str, str], ...]) -> str:
    """Return where the daemon's pipes should be; `directories` are those that variables name."""
    row = next(row for row in SOCKETS if row.name == MPS)
    return socket_paths(row, dict(directories))[0]


def find_fault(root: Root, proc: Root, directory: str) -> str:
    """Return why no daemon serves a pipe directory, "" where one does as far as can be seen from outside."""
    if not root.exists(directory):
        return f"{root.host_path(directory)} is missing"
    control = f"{directory}/{MPS_CONTROL}"
    if not root.exists(control):
        return f"{root.host_path(control)} is missing"
    # The usual directory is below /tmp, where anybody can make what lies in it.
    pid = (root.read_start(f"{directory}/{MPS_PID_FILE}", PID_SIZE) or b"").decode("ascii", "replace").strip()
    # An empty or absent file says nothing, nor does a folder that stands for /proc and has no processes.
    if pid.isascii() and pid.isdecimal() and proc.exists("/1") and not proc.exists(f"/{int(pid)}"):
        return f"{root.host_path(directory)}/{MPS_PID_FILE} names process {pid}, which has ended"
    return ""
