"""CDI edits as LXC configuration: what an engine of OCI containers would do, said in LXC's own settings.

Belongs here: how each kind of edit looks to LXC, and which has no form there. Does not belong here: the syntax
(nvinject.formats.lxc) and which devices are asked for (nvinject.host.registry). A device node is bound from the host,
because an unprivileged container can have none in another way. A hook of the stage createContainer becomes a hook
`mount`, which LXC calls at the same point: in the container's namespaces, its mounts done, its root not yet changed.
"""

import os
import shlex
import stat

from nvinject.errors import HostError, InputError
from nvinject.formats import cdi
from nvinject.formats.lxc import LxcError, MountEntry, format_line, format_mount_entry
from nvinject.render.cdi import by_depth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# The settings of cgroup v1 and v2; LXC heeds those of the hierarchy that it runs on, as its own common.conf has both.
RULE_KEYS = ("lxc.cgroup.devices.allow", "lxc.cgroup2.devices.allow")
NODE_OPTIONS = ("bind", "create=file", "nosuid", "noexec")
STAGE = "createContainer"
# LXC hands a hook to `sh -c`, with the container's name and more words behind it, which `:` takes. A hook of CDI wants
# the container's state on standard input instead; `root` in it is crun's addition, which CDI's hooks know.
STATE = (
    """printf '{"ociVersion":"1.0.2","id":"%s","status":"creating","bundle":"%s","root":"%s"}' """
    '"$LXC_NAME" "$LXC_ROOTFS_MOUNT" "$LXC_ROOTFS_MOUNT"'
)
REMEDY = "make the spec anew: nvinject cdi refresh"


def format_edits(edits: cdi.Edits, settle: "Callable[[str], str]") -> tuple[str, ...]:
    """Return the lines that give a container what the edits say.

    `settle` returns a path of the container without the links of its root file system: LXC mounts nothing below a link.
    Raises HostError for a node or a mount's source that the host lacks, and InputError for what LXC has no setting for.
    """
    _refuse_unknown(edits)
    entries: list[MountEntry] = []
    rules: list[str] = []
    for node in edits.device_nodes:
        entry, rule = _place_node(node)
        entries.append(entry)
        rules += [rule] if rule else []
    entries += [_place_mount(mount) for mount in edits.mounts]
    entries = [entry.replace(target=settle(entry.target)) for entry in entries]
    # The last of several at one place counts, as in a config.json; a parent comes before what lies in it.
    latest = {entry.target: entry for entry in entries}
    variables = {variable.partition("=")[0]: variable for variable in edits.env}
    try:
        return (
            *(format_line(key, rule) for rule in dict.fromkeys(rules) for key in RULE_KEYS),
            *(format_mount_entry(entry) for entry in sorted(latest.values(), key=lambda one: by_depth(one.target))),
            *(format_line("lxc.environment", variable) for variable in variables.values()),
            *_format_groups(edits.additional_gids),
            *(format_line("lxc.hook.mount", _hook_command(hook)) for hook in dict.fromkeys(edits.hooks)),
        )
    except LxcError as error:
        raise InputError(str(error), "the CDI spec holds what LXC cannot be told; change it there") from error


def _refuse_unknown(edits: cdi.Edits) -> None:
    """Raise InputError for edits that would be lost."""
    stages = [hook.hook_name for hook in edits.hooks if hook.hook_name != STAGE]
    lost = [f"a hook of the stage {stage}" for stage in dict.fromkeys(stages)]
    lost += ["intelRdt"] if edits.intel_rdt is not None else []
    lost += ["netDevices"] if edits.net_devices else []
    if lost:
        raise InputError(f"LXC has no setting for {', '.join(lost)} of a CDI spec", "use a spec or device without it")


def _place_node(node: cdi.NodeEdit) -> tuple[MountEntry, str]:
    """Return the entry that shows a node and the rule that lets it be opened ("" for a FIFO, which needs none)."""
    source = node.host_path or node.path
    status = _look_at(source, "device node")
    kind = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}.get(stat.S_IFMT(status.st_mode), "")
    number = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if not kind or (node.type and node.type.replace("u", "c") != kind):
        raise HostError(f"{source} is no device node of the kind that its CDI device needs", REMEDY)
    if node.major and (node.major, node.minor) != number:
        wanted = f"{node.major}:{node.minor}"
        raise HostError(f"{source} is device {number[0]}:{number[1]}, but its CDI device says {wanted}", REMEDY)
    rule = "" if kind == "p" else f"{kind} {number[0]}:{number[1]} {node.permissions or 'rwm'}"
    return MountEntry(source=source, target=node.path, options=NODE_OPTIONS), rule


def _place_mount(mount: cdi.MountEdit) -> MountEntry:
    """Return the entry of a mount, which also makes the place where it goes."""
    binds = bool({"bind", "rbind"} & set(mount.options))
    if not binds and mount.type not in {"", "none", "bind"}:
        options = (*mount.options, "create=dir")
        return MountEntry(source=mount.host_path, target=mount.container_path, options=options, fstype=mount.type)
    is_directory = stat.S_ISDIR(_look_at(mount.host_path, "mount source").st_mode)
    options = (*(() if binds else ("bind",)), *mount.options, "create=dir" if is_directory else "create=file")
    return MountEntry(source=mount.host_path, target=mount.container_path, options=options)


def _look_at(path: str, what: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise HostError(f"the {what} {path} of a CDI device cannot be looked at: {error.strerror}", REMEDY) from error


def _format_groups(groups: tuple[int, ...]) -> tuple[str, ...]:
    """Return the line of groups; LXC heeds it where ids are not mapped, in other containers a group is another one."""
    listed = ",".join(str(group) for group in dict.fromkeys(groups) if group)
    return (format_line("lxc.init.groups", listed),) if listed else ()


def _hook_command(hook: cdi.HookEdit) -> str:
    """Return the command that runs a hook as a runtime would: state on standard input, its own environment alone."""
    limit = ("/usr/bin/timeout", str(hook.timeout)) if hook.timeout else ()
    words = ("/usr/bin/env", "-i", *(hook.env or ()), *limit, hook.path, *hook.args[1:])
    return f"{STATE} | {shlex.join(words)} || exit; :"
