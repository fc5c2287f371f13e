"""Plans written as a CDI spec: what every container gets once, and what comes with each device.

Belongs here: how each operation of a plan looks in a spec, and the spec's order. Does not belong here: which operations
there are (nvinject.core.planner), the document's form (nvinject.formats.cdi) and files. A spec is written before any
container exists, so what depends on an image becomes a hook; every hook has an explicit environment, because runc
would otherwise give it the container's (CVE-2025-23266). What cannot be said in a spec is listed in docs/cdi.md.
"""

from nvinject.core.plan import (
    AllowDevice,
    BindDevice,
    BindFile,
    CreateSymlink,
    DecideCompat,
    DecideLimits,
    MaskDirectory,
    SetEnvironment,
    UpdateLoaderCache,
)
from nvinject.core.planner import DRIVER_PROC, PROFILE_DIRECTORY
from nvinject.formats import cdi
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvinject.core.plan import Operation, Plan

CREATE_SYMLINKS = "create-symlinks"
ENABLE_CUDA_COMPAT = "enable-cuda-compat"
UPDATE_LDCACHE = "update-ldcache"
DISABLE_DEVICE_NODE_MODIFICATION = "disable-device-node-modification"
UPDATE_APPLICATION_PROFILE = "update-application-profile"
APPLY_MEMORY_LIMITS = "apply-cuda-memory-limits"

# The order in which they run: the loader cache after links and the choice of CUDA libraries.
HOOKS = (
    CREATE_SYMLINKS,
    ENABLE_CUDA_COMPAT,
    UPDATE_LDCACHE,
    DISABLE_DEVICE_NODE_MODIFICATION,
    UPDATE_APPLICATION_PROFILE,
    APPLY_MEMORY_LIMITS,
)
# Others change the container's file system, and run at STAGE.
STAGES = {APPLY_MEMORY_LIMITS: "createRuntime"}
OPTIONAL_HOOKS = frozenset({APPLY_MEMORY_LIMITS})  # only where they are enabled by name
STAGE = "createContainer"
ALL = "all"

# A runtime of ours or of the original that meets the container later finds nothing left to do.
ENVIRONMENT = ("NVIDIA_VISIBLE_DEVICES=void",)
HOOK_ENVIRONMENT = ("NVIDIA_CTK_DEBUG=false",)

_COVERS = {DRIVER_PROC: DISABLE_DEVICE_NODE_MODIFICATION, PROFILE_DIRECTORY: UPDATE_APPLICATION_PROFILE}
_MOUNT_OPTIONS = ("rbind", "rprivate")


class HookSettings(Record):
    """The program that runs as hook, and which hooks are wanted.

    `words` come before the hook's name in its arguments: the program's name, and `hook` where it needs that.
    """

    path: str
    words: tuple[str, ...]
    disabled: frozenset[str] = frozenset()
    enabled: frozenset[str] = frozenset()
    ldconfig_path: str = ""

    def wants(self, name: str) -> bool:
        """Tell whether a hook is written: switched on by name, or not switched off by name or altogether."""
        return name in self.enabled or not (name in OPTIONAL_HOOKS or {name, "all"} & self.disabled)


class DevicePlan(Record):
    """A device's name and the plan for a container that gets it alone."""

    name: str
    plan: "Plan"
    annotations: tuple[tuple[str, str], ...] = ()
    environment: tuple[str, ...] = ()


def make_spec(
    kind: str,
    common: "Plan",
    devices: tuple[DevicePlan, ...],
    hooks: HookSettings,
    *,
    all_device: bool = True,
    additional_groups: bool = True,
    annotations: tuple[tuple[str, str], ...] = (),
) -> cdi.Spec:
    """Return the spec of the lowest version that can hold it.

    `common` is the plan for a container without device; a device's edits are what its own plan has beyond that.
    `additional_groups` adds the groups of nodes that not everybody may open. Raises CdiError for names that cannot be.
    """
    writer = _Writer(hooks, additional_groups=additional_groups)
    shared = set(common.operations)
    covers = [one for device in devices for one in device.plan.operations if isinstance(one, MaskDirectory)]
    common_edits = writer.edits([*common.operations, *covers], ENVIRONMENT)
    made: dict[tuple[int, tuple[str, ...]], cdi.Edits] = {}  # the names of one device share its plan
    own = []
    for device in devices:
        key = (id(device.plan), device.environment)
        if key not in made:
            mine = [one for one in device.plan.operations if not (isinstance(one, MaskDirectory) or one in shared)]
            made[key] = _without(writer.edits(mine, device.environment), common_edits)
        own.append(cdi.Device(name=device.name, edits=made[key], annotations=device.annotations))
    if all_device and all(device.name != ALL for device in own):
        own.append(cdi.Device(name=ALL, edits=merge([device.edits for device in own])))
    draft = cdi.Spec(
        version=cdi.BASELINE_VERSION,
        kind=kind,
        devices=tuple(sorted(own, key=lambda device: device.name)),
        edits=common_edits,
        annotations=annotations,
    )
    spec = draft.replace(version=cdi.needed_version(draft)[0])
    cdi.check(spec)
    return spec


class _Writer:
    """Turns operations into edits."""

    def __init__(self, hooks: HookSettings, *, additional_groups: bool) -> None:
        self.hooks = hooks
        self.additional_groups = additional_groups

    def edits(self, operations: "Iterable[Operation]", environment: tuple[str, ...] = ()) -> cdi.Edits:
        """Return the edits that do the operations, each once and in the order of paths."""
        listed = tuple(operations)
        access = {(one.major, one.minor): one.access for one in listed if isinstance(one, AllowDevice)}
        nodes = [one for one in listed if isinstance(one, BindDevice)]
        groups = {one.gid for one in nodes if one.gid and one.mode & 0o006 != 0o006}
        return arrange(
            cdi.Edits(
                env=(*environment, *(f"{one.name}={one.value}" for one in listed if isinstance(one, SetEnvironment))),
                device_nodes=tuple(_node(one, access.get((one.major, one.minor), "")) for one in nodes),
                hooks=self._hooks(listed),
                mounts=tuple(_mount(one) for one in listed if isinstance(one, BindFile) and not _is_in_proc(one)),
                additional_gids=tuple(sorted(groups)) if self.additional_groups else (),
            )
        )

    def _hooks(self, operations: "tuple[Operation, ...]") -> tuple[cdi.HookEdit, ...]:
        wanted: dict[str, tuple[str, ...]] = {}
        links = [one for one in operations if isinstance(one, CreateSymlink)]
        if links:
            pairs = dict.fromkeys(f"{one.target}::{one.link}" for one in links)
            wanted[CREATE_SYMLINKS] = tuple(word for pair in pairs for word in ("--link", pair))
        for one in operations:
            if isinstance(one, DecideCompat):
                wanted[ENABLE_CUDA_COMPAT] = _versions(one)
            elif isinstance(one, DecideLimits):
                wanted[APPLY_MEMORY_LIMITS] = () if one.driver_root == "/" else ("--driver-root", one.driver_root)
            elif isinstance(one, UpdateLoaderCache):
                wanted[UPDATE_LDCACHE] = self._loader_words(one)
            elif isinstance(one, MaskDirectory):
                wanted[_COVERS[one.target]] = ()
        return tuple(self._hook(name, wanted[name]) for name in HOOKS if name in wanted and self.hooks.wants(name))

    def _loader_words(self, operation: UpdateLoaderCache) -> tuple[str, ...]:
        program = ("--ldconfig-path", self.hooks.ldconfig_path) if self.hooks.ldconfig_path else ()
        return (*program, *(word for directory in operation.directories for word in ("--folder", directory)))

    def _hook(self, name: str, words: tuple[str, ...]) -> cdi.HookEdit:
        stage = STAGES.get(name, STAGE)
        return cdi.HookEdit(
            hook_name=stage, path=self.hooks.path, args=(*self.hooks.words, name, *words), env=HOOK_ENVIRONMENT
        )


def _versions(operation: DecideCompat) -> tuple[str, ...]:
    given = (
        ("--host-driver-version", operation.driver_version),
        ("--host-cuda-version", operation.cuda_version),
        ("--cuda-compat-container-root", operation.directory),
    )
    return tuple(f"{name}={value}" for name, value in given if value)


def _node(operation: BindDevice, access: str) -> cdi.NodeEdit:
    return cdi.NodeEdit(
        path=operation.target,
        host_path="" if operation.source == operation.target else operation.source,
        major=operation.major,
        minor=operation.minor,
        file_mode=operation.mode,
        permissions=access,
        gid=operation.gid or None,
    )


def _mount(operation: BindFile) -> cdi.MountEdit:
    return cdi.MountEdit(
        host_path=operation.source, container_path=operation.target, options=(*operation.flags, *_MOUNT_OPTIONS)
    )


def _is_in_proc(operation: BindFile) -> bool:
    # Runtimes refuse mounts below /proc (runc: "cannot be mounted because it is inside /proc").
    return operation.target.startswith("/proc/")


def _without(edits: cdi.Edits, common: cdi.Edits) -> cdi.Edits:
    """Return the edits less those that every container gets anyway."""
    kept = edits.replace(
        env=tuple(one for one in edits.env if one not in common.env),
        device_nodes=tuple(one for one in edits.device_nodes if one not in common.device_nodes),
        hooks=tuple(one for one in edits.hooks if one not in common.hooks),
        mounts=tuple(one for one in edits.mounts if one not in common.mounts),
    )
    return edits if kept.is_empty() else kept


def merge(several: "list[cdi.Edits]") -> cdi.Edits:
    """Return the edits of several devices as those of one."""
    return arrange(
        cdi.Edits(
            env=tuple(one for edits in several for one in edits.env),
            device_nodes=tuple(one for edits in several for one in edits.device_nodes),
            net_devices=tuple(one for edits in several for one in edits.net_devices),
            hooks=tuple(one for edits in several for one in edits.hooks),
            mounts=tuple(one for edits in several for one in edits.mounts),
            additional_gids=tuple(sorted({one for edits in several for one in edits.additional_gids})),
        )
    )


def arrange(edits: cdi.Edits) -> cdi.Edits:
    """Return the edits with each thing once, and nodes and mounts in the order of their depth and path."""
    return edits.replace(
        env=tuple(dict.fromkeys(edits.env)),
        device_nodes=tuple(sorted(dict.fromkeys(edits.device_nodes), key=lambda node: by_depth(node.path))),
        net_devices=tuple(dict.fromkeys(edits.net_devices)),
        hooks=tuple(dict.fromkeys(edits.hooks)),
        mounts=tuple(sorted(dict.fromkeys(edits.mounts), key=lambda mount: by_depth(mount.container_path))),
    )


def by_depth(path: str) -> tuple[int, str]:
    """Return what paths are sorted by: parents before what lies in them, then by name."""
    return len([part for part in path.split("/") if part]), path
