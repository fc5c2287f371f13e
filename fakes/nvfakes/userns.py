"""Becoming root of a new user namespace, with a range of ids where the system grants one.

Belongs here: the mapping of ids. Does not belong here: what is mounted there (lane.py).
"""

import os
import pwd
import subprocess
from pathlib import Path

from nvfakes import kernel
from nvfakes.errors import SandboxError

_IDENTITY_COUNT = 65536


def enter_user_namespace() -> None:
    """Become root of a new user namespace, with a range of ids where the system grants one, else with one id."""
    uid, gid = os.getuid(), os.getgid()
    mapper, go = _start_mapper(uid, gid)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
    except OSError as error:
        raise SandboxError(
            f"lane rootless needs user namespaces: {error.strerror}; sysctl kernel.unprivileged_userns_clone "
            "or user.max_user_namespaces may forbid them"
        ) from None
    finally:
        os.close(go)
        _, status = os.waitpid(mapper, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        _write_map("setgroups", "deny")
        _write_map("uid_map", f"0 {uid} 1")
        _write_map("gid_map", f"0 {gid} 1")


def _write_map(name: str, text: str) -> None:
    Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _start_mapper(uid: int, gid: int) -> tuple[int, int]:
    """Start a process that stays outside and maps ids once the returned descriptor is closed."""
    parent = os.getpid()
    ready, go = os.pipe()
    child = os.fork()
    if child:
        os.close(ready)
        return child, go
    try:
        os.close(go)
        os.read(ready, 1)
        os._exit(0 if _map_range(parent, uid, gid) else 1)
    finally:
        os._exit(1)


def _map_range(process: int, uid: int, gid: int) -> bool:
    if uid == 0:
        try:
            for name in ("uid_map", "gid_map"):
                count = min(_IDENTITY_COUNT, int(Path(f"/proc/self/{name}").read_text(encoding="ascii").split()[2]))
                Path(f"/proc/{process}/{name}").write_text(f"0 0 {count}", encoding="ascii")
        except OSError:
            return False
        return True
    commands = (
        ("newuidmap", uid, _subordinate("/etc/subuid", uid)),
        ("newgidmap", gid, _subordinate("/etc/subgid", uid)),
    )
    for program, own, granted in commands:
        if granted is None:
            return False
        words = [program, str(process), "0", str(own), "1", "1", *map(str, granted)]
        try:
            if subprocess.run(words, capture_output=True, check=False).returncode:
                return False
        except OSError:
            return False
    return True


def _subordinate(file: str, uid: int) -> tuple[int, int] | None:
    """Return (first, count) of the ids that a user may map, or None."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        names = {str(uid), pwd.getpwuid(uid).pw_name}
    except (OSError, KeyError):
        return None
    for line in lines:
        parts = line.split(":")
        if len(parts) == 3 and parts[0] in names:
            return int(parts[1]), int(parts[2])
    return None
