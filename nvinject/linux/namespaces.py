"""Entering the namespaces of another process through its /proc directory.

Belongs here: comparing, joining, becoming the mapped root. Does not belong here: what is done inside.
"""

import errno

from nvinject import leanos as os
from nvinject.linux import syscalls
from nvinject.linux.const import CLONE_NEWNS, CLONE_NEWUSER

_IDENTITY_MAP = ["0", "0", "4294967295"]  # uid_map of the first user namespace


def open_namespace(proc_fd: int, kind: str) -> int:
    """Open a namespace ("mnt", "user") of the process whose /proc directory is `proc_fd`."""
    return os.open(f"ns/{kind}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)


def is_ours(namespace_fd: int, kind: str) -> bool:
    """Tell whether the calling process is in that namespace."""
    return os.path.samestat(os.fstat(namespace_fd), os.stat(f"/proc/self/ns/{kind}"))


def read_id_map(proc_fd: int, name: str) -> "list[list[str]]":
    """Return the lines of `uid_map` or `gid_map`, each as [first inside, first outside, count]."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    try:
        text = os.read(fd, 65536)
    finally:
        os.close(fd)
    return [line.split() for line in text.decode("ascii").splitlines()]


def in_first_user_namespace(proc_fd: int) -> bool:
    """Tell whether the process sees every user id as it is, as only the first user namespace does."""
    return read_id_map(proc_fd, "uid_map") == [_IDENTITY_MAP]


def enter_user_namespace(namespace_fd: int, proc_fd: int) -> None:
    """Join a user namespace and become its root where user id 0 is mapped; the process must have one thread."""
    root_user = _maps_zero(read_id_map(proc_fd, "uid_map"))
    root_group = _maps_zero(read_id_map(proc_fd, "gid_map"))
    syscalls.setns(namespace_fd, CLONE_NEWUSER)
    if root_group:
        try:
            os.setgroups(())
        except OSError as error:
            if error.errno != errno.EPERM:  # user_namespaces(7): /proc/pid/setgroups may say deny
                raise
        os.setresgid(0, 0, 0)
    if root_user:
        os.setresuid(0, 0, 0)


def enter_mount_namespace(namespace_fd: int) -> None:
    """Join a mount namespace; root and current directory become its root."""
    syscalls.setns(namespace_fd, CLONE_NEWNS)


def _maps_zero(lines: "list[list[str]]") -> bool:
    return any(line[0] == "0" for line in lines)
