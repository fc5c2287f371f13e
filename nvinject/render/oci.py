"""A plan written into a container's config.json, so that the low-level runtime carries it out.

Belongs here: how each operation looks in the document, and which ones a document cannot hold. Does not belong here:
which operations there are (planner.py), files (bundle.py, rundirectory.py), the container's own file system
(rootfs.py). What a document cannot hold: mounts below /proc, which runtimes refuse; symbolic links; a loader cache that
the container's own ldconfig can still replace. docs/runtime.md says what becomes of them.
"""

from nvinject.core.plan import (
    AllowDevice,
    BindDevice,
    BindFile,
    CreateSymlink,
    MaskDirectory,
    Operation,
    Plan,
    SetEnvironment,
    UpdateLoaderCache,
    WriteFile,
)
from nvinject.core.sources import clean_path
from nvinject.errors import InputError
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]

CACHE = "/etc/ld.so.cache"
HOOK_COMMAND = "create-container"
HOOK_SCRIPT = "-create-container"  # ends the name of the script beside the launcher that is the same hook, quicker
HOOK_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
LEGACY_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
# The one hook of ours at createRuntime, whatever our launcher is called: it would set limits of an earlier create.
LIMIT_WORDS = ["cdi-hook", "apply-cuda-memory-limits"]
EARLY_STAGES = ("prestart", "createRuntime")

_HINT = "the runtime needs a config.json that follows the OCI runtime specification"


class Traits(Record):
    """What the document says about the container, as far as it decides how an operation is written.

    `bind_devices`: nodes cannot be made, only shown (user namespaces). `makes_nodes`: programs in the container could
    make device nodes. `writes_rootfs`: links and loader cache may be put into its file system before it starts.
    `destinations` are those of its mounts; `mounts_proc`: a procfs is on /proc. `adds_groups`: its process gets the
    groups of nodes that not everybody may open.
    """

    bind_devices: bool = False
    makes_nodes: bool = False
    writes_rootfs: bool = False
    destinations: tuple[str, ...] = ()
    mounts_proc: bool = True
    label: str = ""
    adds_groups: bool = False

    def covers(self, path: str) -> bool:
        """Tell whether the container mounts something on the path or above it, so that it does not show the image."""
        return any(path == destination or path.startswith(f"{destination}/") for destination in self.destinations)


class GeneratedFile(Record):
    """A file that the low-level runtime shall mount: its path below the run directory, its content and mode."""

    path: str
    content: bytes
    mode: int


class Division(Record):
    """The operations of a plan by who does them.

    `document`: the low-level runtime. `rootfs`: we, in the container's file system before it starts. `hook`: a
    createContainer hook. `dropped`: nobody, because nothing in the container depends on it.
    """

    document: tuple[Operation, ...] = ()
    rootfs: tuple[Operation, ...] = ()
    hook: tuple[Operation, ...] = ()
    dropped: tuple[Operation, ...] = ()


def read_traits(document: "Document", *, nested: bool, write_rootfs: bool, add_groups: bool = True) -> Traits:
    """Return the traits of a container; `nested` says that the runtime itself is in a user namespace.

    `add_groups` lets the process have the groups of nodes that not everybody may open.
    """
    linux = _object(document, "linux")
    kinds = [space.get("type") for space in _objects(linux, "namespaces")]
    mounts = _objects(document, "mounts")
    userns = nested or "user" in kinds
    root = document.get("root")
    readonly = isinstance(root, dict) and root.get("readonly") is True
    label = linux.get("mountLabel")
    return Traits(
        bind_devices=userns,
        # Runtimes let every container make nodes by their own default rules, so the capability alone decides; in a
        # user namespace the kernel forbids it whatever it holds.
        makes_nodes=not userns and "CAP_MKNOD" in _capabilities(document),
        writes_rootfs=write_rootfs and not readonly,
        destinations=tuple(_destination(mount) for mount in mounts),
        mounts_proc=any(_is_procfs(mount) for mount in mounts),
        label=label if isinstance(label, str) else "",
        # In a user namespace the host's group is another one, or none.
        adds_groups=add_groups and not userns,
    )


def _is_procfs(mount: "Document") -> bool:
    if _destination(mount) != "/proc":
        return False
    # A container in the host's process namespace gets the host's own procfs.
    return mount.get("type") == "proc" or (
        mount.get("source") == "/proc" and mount.get("type") in {"bind", "none", None}
    )


def _capabilities(document: "Document") -> tuple[str, ...]:
    found = _object(document, "process").get("capabilities")
    listed = found.get("bounding") if isinstance(found, dict) else found
    return tuple(str(name) for name in listed) if isinstance(listed, list) else ()


def divide(plan: Plan, traits: Traits, *, rootfs_known: bool = True) -> Division:
    """Say who does each operation of a plan, keeping the order.

    Where the root file system is not there yet (`rootfs_known` is false), links and loader cache need the hook.
    """
    parts: dict[str, list[Operation]] = {"document": [], "rootfs": [], "hook": [], "dropped": []}
    files = {operation.target: operation for operation in plan.operations if isinstance(operation, BindFile)}
    links = {operation.link: operation for operation in plan.operations if isinstance(operation, CreateSymlink)}
    for planned in plan.operations:
        operation = _with_links(planned, links) if isinstance(planned, UpdateLoaderCache) else planned
        part, written = _place(operation, traits, files, links, rootfs_known=rootfs_known)
        parts[part].append(written)
    return Division(**{name: tuple(found) for name, found in parts.items()})


def _place(
    operation: Operation,
    traits: Traits,
    files: dict[str, BindFile],
    links: dict[str, CreateSymlink],
    *,
    rootfs_known: bool,
) -> tuple[str, Operation]:
    """Return who does one operation, and as what: a link becomes a mount where it cannot be a link."""
    if isinstance(operation, (BindFile, MaskDirectory)) and operation.target.startswith("/proc/"):
        return ("hook" if traits.makes_nodes else "dropped"), operation
    if not isinstance(operation, (CreateSymlink, UpdateLoaderCache, WriteFile)):
        return "document", operation
    writable = traits.writes_rootfs and not traits.covers(_written_path(operation))
    if isinstance(operation, WriteFile) and not writable:
        return "dropped", operation
    if not rootfs_known or writable:
        return ("rootfs" if rootfs_known else "hook"), operation
    shown = follow(operation, files, links) if isinstance(operation, CreateSymlink) else None
    if shown is not None:
        return "document", shown.replace(target=_written_path(operation), reason=operation.reason)
    return ("hook" if isinstance(operation, CreateSymlink) else "document"), operation


def _written_path(operation: CreateSymlink | UpdateLoaderCache | WriteFile) -> str:
    """Return which file of the container an operation writes."""
    if isinstance(operation, CreateSymlink):
        return operation.link
    return operation.target if isinstance(operation, WriteFile) else operation.musl_path_file or CACHE


def _with_links(operation: UpdateLoaderCache, links: dict[str, CreateSymlink]) -> UpdateLoaderCache:
    """Return the operation with the links that ld(1) needs, which ldconfig enters under their own names.

    With the hook the cache is built when links and files are there to be looked at, here before that.
    """
    found = list(operation.libraries)
    for link in links:
        folder, _, name = link.rpartition("/")
        if name.endswith(".so"):
            found += [
                library.replace(soname=name, path=link)
                for library in operation.libraries
                if library.soname.startswith(f"{name}.") and library.path.rpartition("/")[0] == folder
            ]
    return operation.replace(libraries=tuple(found))


def follow(link: CreateSymlink, files: dict[str, BindFile], links: dict[str, CreateSymlink]) -> BindFile | None:
    """Return the mount that a link of the plan leads to, over other links of the plan; None if it leads elsewhere."""
    path = link.link
    for _ in range(8):
        step = links.get(path)
        if step is None:
            break
        path = clean_path(f"{path.rpartition('/')[0]}/{step.target}" if step.target[:1] != "/" else step.target)
    return files.get(path)


def generate(division: Division, cache: bytes | None) -> tuple[GeneratedFile, ...]:
    """Return the files that the document's mounts need; `cache` is the loader cache or the path file of musl."""
    found: list[GeneratedFile] = []
    for operation in division.document:
        if isinstance(operation, MaskDirectory):
            found += (
                GeneratedFile(path=f"{_name(operation.target)}/{name}", content=content.encode(), mode=mode)
                for name, content, mode in operation.files
            )
        elif isinstance(operation, UpdateLoaderCache) and cache is not None:
            found.append(GeneratedFile(path="ld.so.cache", content=cache, mode=0o644))
    return tuple(found)


def write_plan(document: "Document", division: Division, traits: Traits, run_directory: str) -> None:
    """Put the document's part of a plan into the document; raises InputError for one that is malformed.

    What it does not touch stays as it is, unknown fields too. A second call with the same plan changes nothing.
    """
    mounts: list[Document] = []
    linux = _made_object(document, "linux")
    for operation in division.document:
        if isinstance(operation, AllowDevice):
            _allow(linux, operation)
        elif isinstance(operation, SetEnvironment):
            set_variable(document, operation)
        elif isinstance(operation, BindDevice) and not traits.bind_devices:
            _add_device(linux, operation)
        elif isinstance(operation, (BindDevice, BindFile)):
            mounts.append(_bind(operation.source, operation.target, operation.flags))
        elif isinstance(operation, MaskDirectory):
            # The container must not change the host's folder, so it is read-only unlike the hook's tmpfs.
            flags = ("ro", *(flag for flag in operation.flags if flag != "ro"))
            mounts.append(_bind(f"{run_directory}/{_name(operation.target)}", operation.target, flags))
        elif isinstance(operation, UpdateLoaderCache):
            place = operation.musl_path_file or CACHE
            mounts.append(_bind(f"{run_directory}/ld.so.cache", place, ("ro", "nosuid", "nodev", "noexec")))
        else:
            raise TypeError(f"no way to write {type(operation).__name__} into config.json")
    _add_mounts(document, mounts)
    if traits.adds_groups:
        _add_groups(document, division)


def _add_groups(document: "Document", division: Division) -> None:
    """Give the container's process the groups of nodes that not everybody may open, as a CDI spec does."""
    nodes = [one for one in division.document if isinstance(one, BindDevice)]
    groups = sorted({one.gid for one in nodes if one.gid and one.mode & 0o006 != 0o006})
    if groups:
        listed = _made_list(_made_object(_made_object(document, "process"), "user"), "additionalGids")
        listed += [gid for gid in groups if gid not in listed]


def set_variable(document: "Document", operation: SetEnvironment) -> None:
    """Give the container's process a variable, unless it has it and shall keep it."""
    entries = _made_list(_made_object(document, "process"), "env")
    if operation.replaces:
        entries[:] = [one for one in entries if not (isinstance(one, str) and one.startswith(f"{operation.name}="))]
    if not any(isinstance(entry, str) and entry.startswith(f"{operation.name}=") for entry in entries):
        entries.append(f"{operation.name}={operation.value}")


def _allow(linux: "Document", operation: AllowDevice) -> None:
    rule = {
        "allow": True,
        "type": "c",
        "major": operation.major,
        "minor": operation.minor,
        "access": operation.access,
    }
    rules = _made_list(_made_object(linux, "resources"), "devices")
    if rule in rules:
        rules.remove(rule)
    rules.append(rule)


def _add_device(linux: "Document", operation: BindDevice) -> None:
    devices = _made_list(linux, "devices")
    devices[:] = [known for known in devices if not (isinstance(known, dict) and known.get("path") == operation.target)]
    devices.append(
        {
            "path": operation.target,
            "type": "c",
            "major": operation.major,
            "minor": operation.minor,
            "fileMode": operation.mode,
            "uid": operation.uid,
            "gid": operation.gid,
        }
    )


def _bind(source: str, target: str, flags: tuple[str, ...]) -> "Document":
    return {"destination": target, "type": "bind", "source": source, "options": ["rbind", *flags, "rprivate"]}


def _add_mounts(document: "Document", mounts: "list[Document]") -> None:
    """Append mounts, parents first; one that the container has at the same place gives way, as it would be hidden."""
    if not mounts:
        return
    entries = _made_list(document, "mounts")
    taken = {mount["destination"] for mount in mounts}
    entries[:] = [entry for entry in entries if not (isinstance(entry, dict) and _destination(entry) in taken)]
    entries += sorted(mounts, key=lambda mount: mount["destination"].count("/"))


def remove_hooks(document: "Document", launcher: str = "") -> int:
    """Take out the prestart hooks of the original and of ours, and `launcher`'s own; returns how many there were.

    Hooks of others stay, in their order.
    """
    stages = document.get("hooks")
    if not isinstance(stages, dict):
        return 0
    removed = 0
    for stage in (*EARLY_STAGES, "createContainer"):
        entries = stages.get(stage)
        if not isinstance(entries, list):
            continue
        kept = [entry for entry in entries if not _is_ours(entry, stage, launcher)]
        removed += len(entries) - len(kept)
        if kept:
            stages[stage] = kept
        elif entries:
            del stages[stage]
    if not stages:
        del document["hooks"]
    return removed


def _is_ours(entry: object, stage: str, launcher: str) -> bool:
    if not isinstance(entry, dict):
        return False
    path = str(entry.get("path", ""))
    found = entry.get("args")
    words = found if isinstance(found, list) else []
    second = words[1:2]
    if stage in EARLY_STAGES:
        name = path.rpartition("/")[2]
        return name in LEGACY_HOOKS or (name == "nvinject" and second == ["hook"]) or words[1:3] == LIMIT_WORDS
    return path == launcher + HOOK_SCRIPT or (path == launcher and second == [HOOK_COMMAND])


def add_hook(document: "Document", stage: str, path: str, words: tuple[str, ...], env: tuple[str, ...]) -> None:
    """Append a hook; its environment is explicit, for runc would else give it the container's (CVE-2025-23266)."""
    entry = {"path": path, "args": [path.rpartition("/")[2], *words], "env": list(env)}
    _made_list(_made_object(document, "hooks"), stage).append(entry)


def _name(target: str) -> str:
    return target.rpartition("/")[2]


def _destination(mount: "Document") -> str:
    return clean_path(f"/{mount.get('destination', '')}")


def _object(holder: "Document", name: str) -> "Document":
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _objects(holder: "Document", name: str) -> "list[Document]":
    value = holder.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _made_object(holder: "Document", name: str) -> "Document":
    if holder.get(name) is None:
        holder[name] = {}
    value = holder[name]
    if not isinstance(value, dict):
        raise InputError(f"{name} in config.json is not an object", _HINT)
    return value


def _made_list(holder: "Document", name: str) -> "list[Any]":
    if holder.get(name) is None:
        holder[name] = []
    value = holder[name]
    if not isinstance(value, list):
        raise InputError(f"{name} in config.json is not a list", _HINT)
    return value
