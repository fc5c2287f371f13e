"""Changing a machine while programs run on it: the process that carries changes out, and asking it.

Belongs here: one process per lane that listens on an abstract socket, the words that it understands, and their
senders. Does not belong here: what a verb does to a machine (verbs.py) and to a lane (lane.py). NVML asks the same
process when a program creates MIG instances or sets a mode: its words begin with "nvml".
"""

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from nvfakes import uevent, verbs
from nvfakes.errors import FakeError, VerbError
from nvfakes.lane import Lane
from nvfakes.machine import Machine

PREFIX = "nvfakes/"
_LARGEST = 65536
# NVML's result codes for what can go wrong.
_OK, _INVALID, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _IN_USE, _NO_ROOM = 0, 2, 3, 4, 6, 19, 23
_CODES = {
    "no such profile": _INVALID, "no such instance": _NOT_FOUND, "in use": _IN_USE,
    "no room for another such instance": _NO_ROOM,
}  # fmt: skip


def address(process: int) -> str:
    """Return the name of the socket of the lane whose first process this is."""
    return f"{PREFIX}{process}"


def start(lane: Lane, holder: int) -> None:
    """Start the process that carries out changes of this lane, for as long as the holder lives.

    It is not this process's child, so that a command which waits for its children never meets it.
    """
    try:
        server = listen(holder)
    except OSError:
        return  # a machine of another process namespace has this number: this one cannot be changed
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                serve(lane, holder, detach(server))
        finally:
            os._exit(0)
    server.close()
    os.waitpid(child, 0)


def listen(holder: int) -> socket.socket:
    """Return the socket at which a lane's changes are asked for."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(f"\0{address(holder)}")
    server.listen()
    return server


def detach(server: socket.socket) -> socket.socket:
    """Let go of everything else that was inherited: whoever waits for the command's output must see its end."""
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    kept = os.dup2(server.fileno(), 3)
    os.closerange(4, 4096)
    return socket.socket(fileno=kept)


def serve(lane: Lane, holder: int, server: socket.socket) -> None:
    """Carry out what is asked for, until the holder is gone."""
    try:
        watched = os.pidfd_open(holder)
    except OSError:
        return
    poll = select.poll()
    poll.register(server, select.POLLIN)
    poll.register(watched, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if watched in ready:
            return
        with contextlib.suppress(OSError), server.accept()[0] as client:
            client.settimeout(10)
            client.sendall(_serve_one(lane, client))


def _serve_one(lane: Lane, client: socket.socket) -> bytes:
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    try:
        words = client.recv(_LARGEST).decode().split("\n")[0]
        if words.startswith("nvml "):
            return f"{_nvml(lane, words.split(' ')[1:], privileged=uid in {0, os.getuid()})}\n".encode()
        request = json.loads(words)
        if request[0] != "status" and uid not in {0, os.getuid()}:
            raise VerbError("only the machine's owner may change it")
        return json.dumps({"result": _carry_out(lane, request)}).encode()
    except (FakeError, ValueError, LookupError, TypeError, OSError) as error:
        return json.dumps({"error": str(error)}).encode()


_VERBS: dict[str, Callable[..., Machine]] = {
    "unplug": verbs.unplug,
    "plug": verbs.plug,
    "unload": verbs.unload,
    "load": verbs.load,
    "upgrade": verbs.upgrade,
    "slow": verbs.slow,
    "remove": verbs.remove,
    "restore": verbs.restore,
    "break": verbs.break_file,
    "health": verbs.health,
    "mig": verbs.mig_layout,
    "mig_off": lambda machine, which: verbs.mig_mode(machine, verbs.find_gpu(machine, which), enabled=False),
    "answer": lambda machine, which, key, value: verbs.answer(machine, verbs.find_gpu(machine, which), key, value),
}


def _carry_out(lane: Lane, request: Sequence[Any]) -> Any:
    verb, *arguments = request
    if verb == "status":
        return {"machine": lane.machine.name, "lane": lane.name, "root": lane.root, "stage": lane.stage}
    if verb not in _VERBS:
        raise VerbError(f"{verb}: no such verb")
    before = lane.machine
    lane.change(_VERBS[verb](before, *arguments))
    if verb in {"plug", "unplug"}:
        gpu = before.gpus[verbs.find_gpu(before, str(arguments[0]))]
        uevent.send("add" if verb == "plug" else "remove", gpu)
    return None


def _nvml(lane: Lane, words: Sequence[str], *, privileged: bool) -> str:
    """Carry out what the NVML library asks for; returns its result code and, after it, a number."""
    if not privileged:
        return f"{_NO_PERMISSION} 0"
    try:
        number = _nvml_change(lane, words[0], words[1:])
    except VerbError as error:
        return f"{_CODES.get(str(error), _NOT_SUPPORTED)} 0"
    except (ValueError, LookupError):
        return f"{_INVALID} 0"
    return f"{_OK} {number}"


def _nvml_change(lane: Lane, verb: str, words: Sequence[str]) -> int:
    machine, place = lane.machine, int(words[0])
    number = 0
    match verb:
        case "set":
            machine = verbs.set_answer(machine, place, words[1], words[2])
        case "limits":
            machine = verbs.limit_memory(machine, place, " ".join(words[3:]), int(words[1]), int(words[2]))
        case "mig-mode":
            machine = verbs.mig_mode(machine, place, enabled=words[1] == "1")
        case "create-gi":
            start = int(words[2]) if len(words) > 2 else None
            machine, number = verbs.create_instance(machine, place, int(words[1]), start)
        case "destroy-gi":
            machine = verbs.destroy_instance(machine, place, int(words[1]))
        case "create-ci":
            machine, number = verbs.create_compute(machine, place, int(words[1]), int(words[2]))
        case "destroy-ci":
            machine = verbs.destroy_compute(machine, place, int(words[1]), int(words[2]))
        case _:
            raise VerbError("no such verb")
    lane.change(machine)
    return number


def running() -> list[int]:
    """Return the machines that run on this host, each by its first process."""
    with open("/proc/net/unix", encoding="utf-8") as file:
        names = {line.split()[-1] for line in file}
    found = (name.removeprefix(f"@{PREFIX}") for name in names if name.startswith(f"@{PREFIX}"))
    return sorted(int(name) for name in found if name.isdigit())


def ask(process: int, *request: Any) -> Any:
    """Ask a running machine for a change, and return what it answers; raises VerbError with its refusal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(30)
        try:
            client.connect(f"\0{address(process)}")
        except OSError:
            raise VerbError(f"no machine runs as process {process}; nvfakes ps lists those that do") from None
        client.sendall(json.dumps(request).encode() + b"\n")
        answer = b""
        while part := client.recv(_LARGEST):
            answer += part
    reply = json.loads(answer or b"{}")
    if "error" in reply:
        raise VerbError(reply["error"])
    return reply.get("result")
