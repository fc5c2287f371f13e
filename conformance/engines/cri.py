"""A client of the Container Runtime Interface, as the kubelet is one: a pod with one container, its output, removal.

Belongs here: the few messages that this takes, and the calls in their order. Does not belong here: what a container is
asked (the tests). It runs on the Python of the tree that has containerd, by `python3 cri.py`, so it imports nothing of
ours; messages are written by the numbers of their fields (k8s.io/cri-api, pkg/apis/runtime/v1/api.proto), because no
package of Debian or PyPI has them compiled.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import grpc

SERVICE = "/runtime.v1.RuntimeService/"
SECONDS = 60
END_SECONDS = 30
NODE = 2  # enum NamespaceMode: the host's network, so that no CNI plug-in is needed
EXITED = 2  # enum ContainerState

# Field numbers, by message.
METADATA = {"name": 1, "uid": 2, "namespace": 3}
SANDBOX = {"metadata": 1, "log_directory": 3, "linux": 8}
CONTAINER = {"metadata": 1, "image": 2, "command": 3, "envs": 6, "annotations": 10, "log_path": 11, "cdi_devices": 17}


def encode(message: dict[int, Any]) -> bytes:
    """Return a message of protocol buffers: number of a field -> text, number, message, or a list of these."""
    result = b""
    for number, value in message.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int):
                result += varint(number << 3) + varint(item)
                continue
            data = encode(item) if isinstance(item, dict) else item.encode()
            result += varint(number << 3 | 2) + varint(len(data)) + data
    return result


def pair(entry: str) -> dict[int, str]:
    """Return the message for NAME=VALUE: a KeyValue, or an entry of a map."""
    name, _, value = entry.partition("=")
    return {1: name, 2: value}


def varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    result = b""
    while number > 0x7F:
        result += bytes([number & 0x7F | 0x80])
        number >>= 7
    return result + bytes([number])


def decode(data: bytes) -> dict[int, Any]:
    """Return the fields of a message; nested messages and texts stay bytes, the last of repeated ones counts."""
    found: dict[int, Any] = {}
    place = 0

    def read_varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(data):
        tag = read_varint()
        if tag & 7 == 0:
            found[tag >> 3] = read_varint()
        else:
            size = read_varint()
            found[tag >> 3] = data[place : place + size]
            place += size
    return found


class Client:
    """The runtime service of one containerd."""

    def __init__(self, socket: str) -> None:
        """Connect when the first call is made."""
        self.channel = grpc.insecure_channel(f"unix://{socket}")

    def call(self, name: str, message: dict[int, Any]) -> dict[int, Any]:
        """Make one call; raises grpc.RpcError."""
        method = self.channel.unary_unary(SERVICE + name, request_serializer=encode, response_deserializer=decode)
        answer: dict[int, Any] = method(message, timeout=SECONDS, wait_for_ready=True)
        return answer

    def run(self, wanted: argparse.Namespace) -> int:
        """Run a container to its end, and print what it printed; returns its exit code."""
        name = f"nvconform-{os.getpid()}"
        pod = {
            SANDBOX["metadata"]: {METADATA["name"]: name, METADATA["uid"]: name, METADATA["namespace"]: "nvconform"},
            SANDBOX["log_directory"]: wanted.logs,
            SANDBOX["linux"]: {1: wanted.cgroup, 2: {1: {1: NODE}}},
        }
        container = {
            CONTAINER["metadata"]: {1: "one"},
            CONTAINER["image"]: {1: wanted.image},
            CONTAINER["command"]: list(wanted.command),
            CONTAINER["envs"]: [pair(entry) for entry in wanted.env],
            CONTAINER["annotations"]: [pair(entry) for entry in wanted.annotation],
            CONTAINER["log_path"]: f"{name}.log",
            CONTAINER["cdi_devices"]: [{1: device} for device in wanted.device],
        }
        sandbox = self.call("RunPodSandbox", {1: pod, 2: wanted.handler})[1].decode()
        try:
            made = self.call("CreateContainer", {1: sandbox, 2: container, 3: pod})[1].decode()
            self.call("StartContainer", {1: made})
            code = self.wait(made)
            sys.stdout.write(output(Path(wanted.logs, f"{name}.log")))
            return code
        finally:
            self.call("StopPodSandbox", {1: sandbox})
            self.call("RemovePodSandbox", {1: sandbox})

    def wait(self, container: str) -> int:
        """Return the exit code once the container has ended."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            status = decode(self.call("ContainerStatus", {1: container})[1])
            if status.get(3) == EXITED:
                return int(status.get(7, 0))
            time.sleep(0.1)
        raise TimeoutError(f"{container} does not end")


def output(log: Path) -> str:
    """Return what a container printed; each line of its log begins with time, stream, and F for a full line."""
    lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
    return "".join(text + ("\n" if tag == "F" else "") for _, _, tag, text in lines)


def main() -> int:
    """Run one container; an error of the runtime is a line on standard error and exit code 1."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--socket", required=True)
    options.add_argument("--logs", required=True, help="folder for the output of containers")
    options.add_argument("--cgroup", default="/nvconform-cri")
    options.add_argument("--handler", default="", help="name of the runtime in containerd's configuration")
    options.add_argument("--device", action="append", default=[], help="name of a CDI device")
    options.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    options.add_argument("--annotation", action="append", default=[], metavar="NAME=VALUE")
    options.add_argument("image")
    options.add_argument("command", nargs=argparse.REMAINDER)
    wanted = options.parse_args()
    try:
        return Client(wanted.socket).run(wanted)
    except grpc.RpcError as error:
        sys.stderr.write(f"{error.details()}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
