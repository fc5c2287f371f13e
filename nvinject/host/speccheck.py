"""Whether CDI specs fit this host: files, nodes and hooks are there, and the driver is the one they were made for.

Belongs here: looking at the host for one spec after the other. Does not belong here: the form of a spec
(nvinject.formats.cdi) and conflicts between files (registry.py).
"""

import os
import stat

from nvinject.formats import cdi
from nvinject.host.libraries import library_prefix
from nvinject.host.registry import SpecFile
from nvinject.record import Record

ERROR = "error"
WARNING = "warning"
VERSION_FLAG = "--host-driver-version="
STAMP_PREFIX = "# nvinject: "
VERSION_ANNOTATION = "nvinject.driver-version"
DEVICES_ANNOTATION = "nvinject.devices"


class Finding(Record):
    """Something that is wrong with a spec; `where` is a place in it, `remedy` what mends it."""

    path: str
    severity: str
    where: str
    problem: str
    remedy: str = ""


class HostState(Record):
    """What specs are compared with: the loaded driver's version and the devices ("" and () where there are none)."""

    driver_version: str = ""
    devices: tuple[str, ...] = ()


def check_file(file: SpecFile, host: HostState) -> list[Finding]:
    """Return everything that is wrong with one file."""
    if file.spec is None:
        return [Finding(path=file.path, severity=ERROR, where="", problem=file.error, remedy="make the spec anew")]
    found = check_permissions(file.path)
    for where, edits in file.spec.every_edits():
        for number, hook in enumerate(edits.hooks):
            found += check_hook(file.path, f"{where}.hooks[{number}]", hook)
        for number, mount in enumerate(edits.mounts):
            found += check_mount(file.path, f"{where}.mounts[{number}]", mount)
        for number, node in enumerate(edits.device_nodes):
            found += check_node(file.path, f"{where}.deviceNodes[{number}]", node)
    return found + check_age(file, host)


def check_permissions(path: str) -> list[Finding]:
    """Return what is wrong with the file itself: engines without root must read it, and only root may change it."""
    status = os.stat(path)
    found = []
    if not status.st_mode & stat.S_IROTH:
        found.append(
            Finding(
                path=path,
                severity=WARNING,
                where="",
                problem=f"has mode {stat.S_IMODE(status.st_mode):04o}: engines of ordinary users cannot read it",
                remedy=f"chmod 0644 {path}",
            )
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        found.append(
            Finding(
                path=path,
                severity=ERROR,
                where="",
                problem=f"has mode {stat.S_IMODE(status.st_mode):04o}: others can change what runs as root",
                remedy=f"chmod 0644 {path}",
            )
        )
    return found


def check_hook(path: str, where: str, hook: cdi.HookEdit) -> list[Finding]:
    """Return what is wrong with a hook."""
    found = []
    if hook.env is None:
        found.append(
            Finding(
                path=path,
                severity=ERROR,
                where=where,
                problem="has no env: runc starts it with the container's environment (CVE-2025-23266)",
                remedy="make the spec anew, or give the hook an env",
            )
        )
    remedy = "make the spec anew with the right --nvidia-cdi-hook-path"
    problem = ""
    if not hook.path.startswith("/"):
        problem = f"path {hook.path} is relative"
    elif hook.hook_name == "startContainer":
        return found  # a path of the container
    elif not os.path.exists(hook.path):
        problem = f"{hook.path} does not exist"
    elif not os.access(hook.path, os.X_OK) or os.path.isdir(hook.path):
        problem = f"{hook.path} is no program"
    if problem:
        found.append(Finding(path=path, severity=ERROR, where=where, problem=problem, remedy=remedy))
    return found


def check_mount(path: str, where: str, mount: cdi.MountEdit) -> list[Finding]:
    """Return what is wrong with a mount: its source is missing, or a path is relative."""
    problem = ""
    is_bind = mount.type in {"", "bind"} or any(option in {"bind", "rbind"} for option in mount.options)
    if not mount.container_path.startswith("/"):
        problem = f"containerPath {mount.container_path} is relative"
    elif is_bind and not mount.host_path.startswith("/"):
        problem = f"hostPath {mount.host_path} is relative"
    elif is_bind and not os.path.lexists(mount.host_path):
        problem = f"{mount.host_path} does not exist"
    elif is_bind and not os.path.exists(mount.host_path):
        problem = f"{mount.host_path} is a link that leads nowhere"
    remedy = "make the spec anew: the driver may have been updated"
    return [Finding(path=path, severity=ERROR, where=where, problem=problem, remedy=remedy)] if problem else []


def check_node(path: str, where: str, node: cdi.NodeEdit) -> list[Finding]:
    """Return what is wrong with a device node: it is missing, no device, or has another number."""
    source = node.host_path or node.path
    try:
        status = os.lstat(source)
    except OSError:
        problem = f"{source} does not exist"
    else:
        kinds = {"c": stat.S_ISCHR, "u": stat.S_ISCHR, "b": stat.S_ISBLK, "p": stat.S_ISFIFO}
        wanted = [kinds[node.type]] if node.type else list(kinds.values())
        number = (os.major(status.st_rdev), os.minor(status.st_rdev))
        problem = ""
        if not any(is_kind(status.st_mode) for is_kind in wanted):
            problem = f"{source} is no device node"
        elif node.major and (node.major, node.minor) != number:
            problem = f"{source} is device {number[0]}:{number[1]}, the spec says {node.major}:{node.minor}"
    remedy = "make the spec anew, or the node with nvidia-modprobe"
    return [Finding(path=path, severity=ERROR, where=where, problem=problem, remedy=remedy)] if problem else []


def check_age(file: SpecFile, host: HostState) -> list[Finding]:
    """Return whether the driver or the devices are others than when the spec was made."""
    assert file.spec is not None
    version, devices = read_stamp(file)
    found = []
    if version and host.driver_version and version != host.driver_version:
        found.append(
            Finding(
                path=file.path,
                severity=ERROR,
                where="",
                problem=f"was made for driver {version}, the loaded driver is {host.driver_version}",
                remedy="nvinject cdi refresh",
            )
        )
    gone = [device for device in devices if device not in host.devices]
    new = [device for device in host.devices if device not in devices]
    if devices and version and (gone or new):
        words = [f"{', '.join(gone)} is gone"] if gone else []
        words += [f"{', '.join(new)} is new"] if new else []
        found.append(
            Finding(
                path=file.path,
                severity=ERROR if gone else WARNING,
                where=".devices",
                problem=" and ".join(words),
                remedy="nvinject cdi refresh",
            )
        )
    return found


def read_stamp(file: SpecFile) -> tuple[str, tuple[str, ...]]:
    """Return driver version and devices from which a spec was made, as far as it tells.

    Our stamp tells both. Without one, the version is what the hook enable-cuda-compat is told, or the end of the name
    of the CUDA library.
    """
    assert file.spec is not None
    for line in file.text.splitlines()[:5]:
        if line.startswith(STAMP_PREFIX):
            return _parse_stamp(line.removeprefix(STAMP_PREFIX))
    annotations = dict(file.spec.annotations)
    if VERSION_ANNOTATION in annotations:
        devices = annotations.get(DEVICES_ANNOTATION, "")
        return annotations[VERSION_ANNOTATION], tuple(device for device in devices.split(",") if device)
    return version_of(file.spec), ()


def _parse_stamp(text: str) -> tuple[str, tuple[str, ...]]:
    from nvinject.formats.jsonio import JSONError, loads

    try:
        values = loads(text)
        return str(values["driver"]), tuple(str(device) for device in values["devices"])
    except (JSONError, KeyError, TypeError):
        return "", ()


def version_of(spec: cdi.Spec) -> str:
    """Return the driver version that a spec is for, "" where nothing tells."""
    for _, edits in spec.every_edits():
        for hook in edits.hooks:
            for word in hook.args:
                if word.startswith(VERSION_FLAG):
                    return word.removeprefix(VERSION_FLAG)
        for mount in edits.mounts:
            name = mount.host_path.rpartition("/")[2]
            if library_prefix(name) == "libcuda.so" and name.count(".") >= 3:
                return name.removeprefix("libcuda.so.")
    return ""
