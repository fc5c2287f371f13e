"""The devices controller of cgroup v1: reading and writing its three files.

Belongs here: the files and the format of a rule. Does not belong here: which cgroup, which rules, when to undo.
"""

from nvinject import leanos as os


def read_device_list(cgroup_fd: int) -> str:
    """Return devices.list: one rule a line, `a *:* rwm` alone where everything is allowed."""
    fd = os.open("devices.list", os.O_RDONLY | os.O_CLOEXEC, dir_fd=cgroup_fd)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode("ascii", "replace")


def allow_device(cgroup_fd: int, rule: str) -> None:
    """Add a rule such as `c 195:0 rw`."""
    _write(cgroup_fd, "devices.allow", rule)


def deny_device(cgroup_fd: int, rule: str) -> None:
    """Take a rule such as `c 195:0 rw` away."""
    _write(cgroup_fd, "devices.deny", rule)


def missing_access(device_list: str, major: int, minor: int, access: str) -> str:
    """Return the letters of `access` that devices.list does not grant to the character device yet."""
    missing = access
    for line in device_list.splitlines():
        kind, _, rest = line.partition(" ")
        numbers, _, letters = rest.partition(" ")
        rule_major, _, rule_minor = numbers.partition(":")
        if kind in ("a", "c") and rule_major in ("*", str(major)) and rule_minor in ("*", str(minor)):
            missing = "".join(letter for letter in missing if letter not in letters)
    return missing


def _write(cgroup_fd: int, name: str, rule: str) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup_fd)
    try:
        os.write(fd, rule.encode("ascii"))
    finally:
        os.close(fd)
