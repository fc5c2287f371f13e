"""What the kernel does on a real machine and a lane cannot: show /proc/driver in a container's new procfs.

Belongs here: an OCI prestart hook that binds the machine's /proc/driver into the container, standing on its own because
it runs as `python -IS kernelhook.py [root]`. Does not belong here: anything that an injector does.
"""

import ctypes
import json
import os
import sys
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND = 4096
MOVE_MOUNT_F_EMPTY_PATH = 4
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
AT_FDCWD = -100
# Both calls came after the numbers were made the same on every architecture.
SYS_OPEN_TREE = 428
SYS_MOVE_MOUNT = 429

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def main(root: str = "/", state_text: str | None = None) -> int:
    """Bind <root>/proc/driver onto the container that the state on stdin names; returns the exit status."""
    try:
        state = json.loads(sys.stdin.read() if state_text is None else state_text)
        show_driver(state, f"{root.rstrip('/')}/proc/driver")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"nvfakes kernel-hook: {error}", file=sys.stderr)
        return 1
    return 0


def show_driver(state: dict[str, Any], source: str) -> None:
    """Enter the container's mount namespace and bind the folder over its /proc/driver."""
    process = int(state["pid"])
    target = _target(state, process)
    try:
        clone = _check(
            _libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(source), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), source
        )
    except OSError:
        clone = -1  # an ordinary user: the path is still there in the container's namespace, before its root changes
    _enter(process)
    if not os.path.isdir(target):
        return  # a container without procfs
    if clone >= 0:
        _check(
            _libc.syscall(SYS_MOVE_MOUNT, clone, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH), target
        )
    else:
        _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(MS_BIND), None), target)


def _target(state: dict[str, Any], process: int) -> str:
    """Return where the container's /proc/driver is: below its rootfs, or at / if the runtime has changed the root."""
    own, other = os.stat("/"), os.stat(f"/proc/{process}/root")
    if (own.st_dev, own.st_ino) != (other.st_dev, other.st_ino):
        return "/proc/driver"
    bundle = state["bundle"]
    with open(os.path.join(bundle, "config.json"), encoding="utf-8") as file:
        path = str(json.load(file)["root"]["path"])
    return os.path.realpath(os.path.join(bundle, path)) + "/proc/driver"


def _enter(process: int) -> None:
    descriptors = {kind: os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt")}
    try:
        _check(_libc.setns(descriptors["mnt"], CLONE_NEWNS), "mount namespace")
    except OSError:
        # Only the owner of the container's user namespace may enter the other one, after joining it.
        _check(_libc.setns(descriptors["user"], CLONE_NEWUSER), "user namespace")
        _check(_libc.setns(descriptors["mnt"], CLONE_NEWNS), "mount namespace")
    finally:
        for fd in descriptors.values():
            os.close(fd)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
