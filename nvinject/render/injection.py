"""CDI edits put into a container's specification (config.json), as the reference library does it.

Belongs here: what each kind of edit changes in the document. Does not belong here: which devices are asked for and
where they are defined (nvinject.host.registry), other changes of config.json. Two differences from version 1.1.0 of the
reference library: a variable that the container has already is replaced, as newer versions do; that one left both, and
programs took the first. And a node that lies elsewhere on the host is bound in containers with a user namespace, where
no runtime can make it.
"""

import os
import stat

from nvinject.errors import HostError, InputError
from nvinject.formats import cdi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Document = dict[str, Any]

# Those that the hook binds nodes with.
_NODE_OPTIONS = ("rbind", "ro", "nosuid", "noexec", "rprivate")
_KINDS = ((stat.S_IFCHR, "c"), (stat.S_IFBLK, "b"), (stat.S_IFIFO, "p"))


def collect_edits(devices: "Iterable[tuple[str, cdi.Spec, cdi.Device]]") -> cdi.Edits:
    """Return the edits of several (path of spec file, spec, device): those of a file once, before its first device."""
    several: list[cdi.Edits] = []
    seen: set[str] = set()
    for path, spec, device in devices:
        if path not in seen:
            seen.add(path)
            several.append(spec.edits)
        several.append(device.edits)
    rdts = [edits.intel_rdt for edits in several if edits.intel_rdt is not None]
    return cdi.Edits(
        env=tuple(one for edits in several for one in edits.env),
        device_nodes=tuple(one for edits in several for one in edits.device_nodes),
        net_devices=tuple(one for edits in several for one in edits.net_devices),
        hooks=tuple(one for edits in several for one in edits.hooks),
        mounts=tuple(one for edits in several for one in edits.mounts),
        intel_rdt=rdts[-1] if rdts else None,
        additional_gids=tuple(one for edits in several for one in edits.additional_gids),
    )


def apply_edits(document: "Document", edits: cdi.Edits) -> None:
    """Change a config.json that was read; raises HostError for a missing node and InputError for a malformed document.

    What the edits do not touch stays as it is, unknown fields too.
    """
    process = _object(document, "process")
    _set_variables(process, edits.env)
    owner = _object(process, "user") if process.get("user") else {}
    bound = tuple(node for node in edits.device_nodes if _must_be_bound(document, node))
    for node in edits.device_nodes:
        _add_node(document, node, owner, makes=node not in bound)
    for interface in edits.net_devices:
        _object(_object(document, "linux"), "netDevices")[interface.host_interface_name] = {"name": interface.name}
    _add_mounts(document, (*edits.mounts, *(_bind_of(node) for node in bound)))
    for hook in edits.hooks:
        _list(_object(document, "hooks"), hook.hook_name).append(_hook(hook))
    if edits.intel_rdt is not None:
        _object(document, "linux")["intelRdt"] = cdi.format_edits(cdi.Edits(intel_rdt=edits.intel_rdt))["intelRdt"]
    for gid in edits.additional_gids:
        gids = _list(_object(process, "user"), "additionalGids")
        if gid and gid not in gids:
            gids.append(gid)


def _object(holder: "Document", name: str) -> "Document":
    value = holder.get(name)
    if value is None:
        value = holder[name] = {}
    if not isinstance(value, dict):
        raise InputError(f"{name} in config.json is no object", "the runtime needs a valid config.json")
    return value


def _list(holder: "Document", name: str) -> "list[Any]":
    value = holder.get(name)
    if value is None:
        value = holder[name] = []
    if not isinstance(value, list):
        raise InputError(f"{name} in config.json is no list", "the runtime needs a valid config.json")
    return value


def _set_variables(process: "Document", variables: tuple[str, ...]) -> None:
    if not variables:
        return
    entries = _list(process, "env")
    for variable in variables:
        name = variable.partition("=")[0]
        places = [place for place, entry in enumerate(entries) if str(entry).partition("=")[0] == name]
        if places:
            entries[places[0]] = variable
            for place in reversed(places[1:]):
                del entries[place]
        else:
            entries.append(variable)


def _must_be_bound(document: "Document", node: cdi.NodeEdit) -> bool:
    """Tell whether a runtime could not make a node: in a user namespace it binds what the host has at the same path."""
    if node.host_path in {"", node.path}:
        return False
    namespaces = _list(_object(document, "linux"), "namespaces") if "linux" in document else []
    return any(isinstance(one, dict) and one.get("type") == "user" for one in namespaces)


def _bind_of(node: cdi.NodeEdit) -> cdi.MountEdit:
    return cdi.MountEdit(host_path=node.host_path, container_path=node.path, type="bind", options=_NODE_OPTIONS)


def _add_node(document: "Document", node: cdi.NodeEdit, owner: "Document", *, makes: bool) -> None:
    kind, major, minor = _identify(node)
    linux = _object(document, "linux")
    devices = _list(linux, "devices")
    devices[:] = [known for known in devices if not (isinstance(known, dict) and known.get("path") == node.path)]
    if makes:
        devices.append(_node_entry(node, (kind, major, minor), owner))
    if kind in {"b", "c"}:
        rule = {"allow": True, "type": kind, "major": major, "minor": minor, "access": node.permissions or "rwm"}
        _list(_object(linux, "resources"), "devices").append(rule)


def _node_entry(node: cdi.NodeEdit, identity: tuple[str, int, int], owner: "Document") -> "Document":
    kind, major, minor = identity
    entry: Document = {"path": node.path, "type": kind}
    if kind != "p":
        entry.update(major=major, minor=minor)
    if node.file_mode is not None:
        entry["fileMode"] = node.file_mode
    for name, value in (("uid", node.uid), ("gid", node.gid)):
        chosen = value if value is not None else owner.get(name) or None
        if chosen is not None:
            entry[name] = chosen
    return entry


def _identify(node: cdi.NodeEdit) -> tuple[str, int, int]:
    """Return kind and number of a node: as the spec says, else as the host has it."""
    source = node.host_path or node.path
    if node.type and (node.type == "p" or node.major):
        return node.type, node.major, node.minor
    try:
        status = os.lstat(source)
    except OSError as error:
        raise HostError(
            f"the device node {source} of a CDI device cannot be looked at: {error.strerror}",
            "make the spec anew: nvinject cdi refresh",
        ) from error
    kind = next((letter for form, letter in _KINDS if stat.S_IFMT(status.st_mode) == form), "")
    if not kind or (node.type and node.type != kind):
        raise HostError(f"{source} is no device node of the kind that its CDI device needs", "nvinject cdi validate")
    if node.major or kind == "p":
        return kind, node.major, node.minor
    return kind, os.major(status.st_rdev), os.minor(status.st_rdev)


def _add_mounts(document: "Document", mounts: tuple[cdi.MountEdit, ...]) -> None:
    if not mounts:
        return
    entries = _list(document, "mounts")
    for mount in mounts:
        entries[:] = [entry for entry in entries if entry.get("destination") != mount.container_path]
        entry: Document = {"destination": mount.container_path, "source": mount.host_path}
        if mount.type:
            entry["type"] = mount.type
        if mount.options:
            entry["options"] = list(mount.options)
        entries.append(entry)
    # A mount would hide those below it that came earlier; the sort keeps the order among equals.
    entries.sort(key=lambda entry: len([part for part in str(entry.get("destination")).split("/") if part]))


def _hook(hook: cdi.HookEdit) -> "Document":
    entry: Document = {"path": hook.path}
    if hook.args:
        entry["args"] = list(hook.args)
    if hook.env is not None:
        entry["env"] = list(hook.env)
    if hook.timeout is not None:
        entry["timeout"] = hook.timeout
    return entry
