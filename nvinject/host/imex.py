"""IMEX channels that are asked for and have no node: what the host has instead, and whether a node could be made.

Belongs here: looking, once a channel is missing. Does not belong here: the channels that are there (gpus.py), whether
one is made (core.planner) and making it (render.hostnodes). Numbers and modes are those that nvidia-modprobe takes.
"""

from nvinject.core.catalog import IMEX_CLASS, IMEX_DIRECTORY, major_of
from nvinject.core.model import DeviceNode, ImexHost
from nvinject.core.nodesetup import NodeRules
from nvinject.formats import nvproc
from nvinject.host.driver import DRIVER_DIRECTORY, read_parsed
from nvinject.host.nodefacts import read_rules
from nvinject.host.root import Root

COUNT = "ImexChannelCount"  # a parameter of the kernel module; 0 switches channels off
USUAL_COUNT = 2048  # of a driver that does not say


def look_at_channels(
    dev: Root, proc: Root, majors: tuple[tuple[str, int], ...], missing: tuple[str, ...], *, strict: bool
) -> ImexHost:
    """Return what there is to say of channels that have no node; `strict` means that nodes can be made at all."""
    names = [name for name in dev.list_directory(IMEX_DIRECTORY) if name.removeprefix("channel").isdigit()]
    there = tuple(sorted(names, key=lambda name: int(name.removeprefix("channel"))))
    major = major_of((IMEX_CLASS,), majors, 0)
    rules = read_rules(proc)
    obstacle = find_obstacle(major, rules, read_count(proc), missing, strict=strict)
    if obstacle:
        return ImexHost(there=there, obstacle=obstacle)
    wanted = tuple(
        DeviceNode(
            path=f"{IMEX_DIRECTORY}/channel{channel}",
            major=major,
            minor=int(channel),
            mode=rules.mode,
            uid=rules.uid,
            gid=rules.gid,
        )
        for channel in missing
    )
    return ImexHost(there=there, wanted=wanted)


def find_obstacle(major: int, rules: NodeRules, count: int, missing: tuple[str, ...], *, strict: bool) -> str:
    """Return why the nodes of channels cannot be made, "" where they can."""
    if not major:
        return f"{IMEX_CLASS} is not in /proc/devices"
    if not strict:
        return "device nodes cannot be made in a user namespace"
    if not rules.modify:
        return "the driver's parameter ModifyDeviceFiles is 0"
    beyond = [channel for channel in missing if int(channel) >= count]
    return f"the driver has {count} channels ({COUNT}), channel {beyond[0]} is none of them" if beyond else ""


def read_count(proc: Root) -> int:
    """Return how many channels the driver has."""
    parameters = read_parsed(proc, f"{DRIVER_DIRECTORY}/params", nvproc.parse_params) or ()
    values = [one.value for one in parameters if one.name == COUNT]
    return int(values[-1]) if values and values[-1].isascii() and values[-1].isdecimal() else USUAL_COUNT
