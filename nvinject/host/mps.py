"""The multi-process service (MPS): whether its control daemon runs.

Belongs here: looking at its pipe directory. Does not belong here: finding that directory for a container (files.py) and
what follows (core). The daemon is not talked to: clients connect to its pipe `control`, its pid file names its process.
"""

from nvinject.core.catalog import MPS, MPS_CONTROL, MPS_PID_FILE, MPS_PIPE_VARIABLE, SOCKETS
from nvinject.host.files import is_anothers, socket_paths
from nvinject.host.root import Root

PID_SIZE = 64  # bytes, more than any process id and a newline


def pipe_directory(directories: tuple[tuple[str, str], ...]) -> str:
    """Return where the daemon's pipes should be; `directories` are (variable, absolute path) pairs that name some."""
    row = next(row for row in SOCKETS if row.name == MPS)
    return socket_paths(row, dict(directories))[0]


def find_fault(root: Root, proc: Root, directories: tuple[tuple[str, str], ...]) -> str:
    """Return why no daemon serves containers, "" where one does as far as can be seen from outside.

    `directories` are (variable, absolute path) pairs, as for `pipe_directory`.
    """
    directory = pipe_directory(directories)
    status = root.stat(directory)
    if status is None:
        return f"{root.host_path(directory)} is missing"
    if MPS_PIPE_VARIABLE not in dict(directories) and is_anothers(status):
        owned = f"{root.host_path(directory)} belongs to user {status.st_uid}"
        return f"{owned}, and is shown to containers only where nvinject.mps-pipe-directory names it"
    control = f"{directory}/{MPS_CONTROL}"
    if not root.exists(control):
        return f"{root.host_path(control)} is missing"
    # The usual directory is below /tmp, where anybody can make what lies in it.
    pid = (root.read_start(f"{directory}/{MPS_PID_FILE}", PID_SIZE) or b"").decode("ascii", "replace").strip()
    # An empty or absent file says nothing, nor does a folder that stands for /proc and has no processes.
    if pid.isascii() and pid.isdecimal() and proc.exists("/1") and not proc.exists(f"/{int(pid)}"):
        return f"{root.host_path(directory)}/{MPS_PID_FILE} names process {pid}, which has ended"
    return ""
