"""Telling the host's listeners that a GPU has come or gone, as the kernel does.

Belongs here: the message and sending it. The kernel passes on a message of a process that administers the network
namespace; where it does not, nothing is sent.
"""

import contextlib
import socket
import struct

from nvfakes.machine import Gpu

NETLINK_KOBJECT_UEVENT = 15
_NLMSG_MIN_TYPE = 0x10
_NLM_F_REQUEST = 1


def message(action: str, gpu: Gpu) -> bytes:
    """Return the kernel's message about a PCI function."""
    path = f"/devices/pci0000:00/{gpu.bus}"
    model = gpu.model
    fields = (
        f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}", "SUBSYSTEM=pci",
        f"PCI_CLASS={model.pci_class:X}", f"PCI_ID=10DE:{model.device_id:04X}", f"PCI_SLOT_NAME={gpu.bus}",
    )  # fmt: skip
    return b"".join(field.encode() + b"\0" for field in fields)


def send(action: str, gpu: Gpu) -> None:
    """Send the message, if this process may."""
    text = message(action, gpu)
    # The kernel wants a netlink header (linux/netlink.h), takes it off, and adds its own sequence number at the end.
    header = struct.pack("=IHHII", 16 + len(text), _NLMSG_MIN_TYPE, _NLM_F_REQUEST, 0, 0)
    family, kind = socket.AF_NETLINK, socket.SOCK_RAW
    with contextlib.suppress(OSError), socket.socket(family, kind, NETLINK_KOBJECT_UEVENT) as link:
        link.sendto(header + text, (0, 0))
