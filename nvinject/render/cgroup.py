"""Device rules of a running container: finding its cgroup, allowing devices, taking that back.

Belongs here: which cgroup of which version governs the container, and the journal of what was changed. Does not belong
here: which devices (the plan), the kernel's formats (nvinject.linux). Everything happens in our own namespaces.
"""

import errno

from nvinject import leanos as os
from nvinject.core.plan import AllowDevice
from nvinject.errors import ContainerError
from nvinject.formats.mountinfo import parse_mountinfo
from nvinject.linux import cgroup, namespaces
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvinject.formats.mountinfo import Mount

_NO_RIGHTS = (errno.EACCES, errno.ENOENT, errno.EPERM, errno.EROFS)


class DeviceCgroup(Record):
    """The cgroup that governs device access: version 1 or 2 of the interface, directory in our mount namespace."""

    version: int
    path: str


class NoDeviceCgroupError(Exception):
    """There is no cgroup whose device rules we could change; the text says why."""


def find_device_cgroup(membership: str, mounts: "tuple[Mount, ...]") -> DeviceCgroup:
    """Choose from the text of /proc/<pid>/cgroup and our own mounts; cgroups(7) has the format.

    The devices controller of version 1 wins where it is mounted, as it does for the runtimes; the unified hierarchy is
    taken without it. Raises NoDeviceCgroupError.
    """
    reason = "the container is in no cgroup that has device rules"
    for version, group in _hierarchies(membership):
        if group.startswith("/.."):
            reason = f"the container's cgroup {group} is outside of this cgroup namespace"
            continue
        for mount in mounts:
            inside = _below(mount.root, group) if _shows(mount, version) else None
            if inside is not None:
                return DeviceCgroup(version=version, path=mount.mount_point.rstrip("/") + inside)
        reason = f"no mount of cgroup version {version} shows the container's cgroup {group}"
    raise NoDeviceCgroupError(reason)


def _shows(mount: "Mount", version: int) -> bool:
    if version == 1:
        return mount.fstype == "cgroup" and "devices" in mount.super_options
    return mount.fstype == "cgroup2"


def _hierarchies(membership: str) -> "list[tuple[int, str]]":
    """Return version and cgroup of the hierarchies that may hold device rules, version 1 first."""
    found: list[tuple[int, str]] = []
    for line in membership.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if "devices" in controllers.split(","):
            found.insert(0, (1, group))
        elif hierarchy == "0" and not controllers:
            found.append((2, group))
    return found


def _below(root: str, group: str) -> "str | None":
    """Return `group` relative to a mount's root, with a leading slash; None if it is not below it."""
    if root == "/":
        return group if group != "/" else ""
    if group == root:
        return ""
    return group[len(root) :] if group.startswith(root + "/") else None


class DeviceRules:
    """The rules of one container's cgroup, with what was changed, so that it can be taken back."""

    def __init__(self, proc_fd: int) -> None:
        """Remember the container by its /proc directory; opens nothing yet."""
        self._proc_fd = proc_fd
        self._cgroup_fd = -1
        self._changes: list[tuple[str, Callable[[], None]]] = []
        self._held: list[int] = []

    def allow(self, operations: "tuple[AllowDevice, ...]", log: "Callable[[str], None]") -> "tuple[str, ...]":
        """Allow all the devices; returns warnings. Raises ContainerError with everything taken back.

        A container in a user namespace whose cgroup we may not change gets a warning: its runtime has the same rights
        as we, so it could not forbid the devices either.
        """
        step = operations[0].describe()
        try:
            group = find_device_cgroup(_read_membership(self._proc_fd), _own_mounts())
            log(f"device rules: cgroup version {group.version}, {group.path}")
            self._cgroup_fd = os.open(group.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if group.version == 2:
                step = f"device program of {group.path}"
                self._rewrite_programs(operations, log)
            else:
                present = cgroup.read_device_list(self._cgroup_fd)
                for operation in operations:
                    step = operation.describe()
                    self._allow_in_list(operation, present, log)
        except (NoDeviceCgroupError, OSError, ValueError) as error:
            problems = self.undo()
            if self._may_be_skipped(error) and not problems:
                return (f"device rules are left as they are: {_reason(error)}",)
            raise _failure(step, error, problems) from error
        return ()

    def undo(self) -> "tuple[str, ...]":
        """Take every change back, the last one first; returns what could not be taken back and why."""
        problems = []
        while self._changes:
            what, take_back = self._changes.pop()
            try:
                take_back()
            except OSError as error:
                problems.append(f"{what} ({error.strerror})")
        return tuple(problems)

    def close(self) -> None:
        """Close what is held; the changes stay."""
        for held in (*self._held, self._cgroup_fd):
            if held >= 0:
                os.close_quietly(held)
        self._held, self._cgroup_fd, self._changes = [], -1, []

    def _allow_in_list(self, operation: AllowDevice, present: str, log: "Callable[[str], None]") -> None:
        missing = cgroup.missing_access(present, operation.major, operation.minor, operation.access)
        if not missing:
            log(f"{operation.describe()}: allowed already")
            return
        log(f"{operation.describe()} [{operation.reason}]")
        rule = f"c {operation.major}:{operation.minor} {missing}"
        # Noted before: the call can report an error after the kernel took the rule; what was missing may be denied.
        self._changes.append((f"device rule {rule}", lambda: cgroup.deny_device(self._cgroup_fd, rule)))
        cgroup.allow_device(self._cgroup_fd, rule)

    def _rewrite_programs(self, operations: "tuple[AllowDevice, ...]", log: "Callable[[str], None]") -> None:
        from nvinject.linux import devicebpf  # hosts with version 1 do without

        flags, identifiers = devicebpf.query_programs(self._cgroup_fd)
        if not identifiers:
            log("no device program is attached to the cgroup: every device is allowed already")
        rules = tuple((operation.major, operation.minor, operation.access) for operation in operations)
        for identifier in identifiers:
            log(f"put {len(rules)} rules before device program {identifier}")
            self._rewrite_program(identifier, rules, flags)

    def _rewrite_program(self, identifier: int, rules: "tuple[tuple[int, int, str], ...]", flags: int) -> None:
        from nvinject.linux import devicebpf

        old_fd = devicebpf.open_program(identifier)
        self._held.append(old_fd)
        new_fd = _load(devicebpf.prepend_rules(devicebpf.read_instructions(old_fd), rules))
        self._held.append(new_fd)
        devicebpf.replace_program(self._cgroup_fd, old_fd, new_fd, flags)
        self._changes.append(
            (
                f"device program {identifier}",
                lambda: devicebpf.replace_program(self._cgroup_fd, new_fd, old_fd, flags),
            )
        )

    def _may_be_skipped(self, error: Exception) -> bool:
        lacking = isinstance(error, NoDeviceCgroupError) or (isinstance(error, OSError) and error.errno in _NO_RIGHTS)
        return lacking and not namespaces.in_first_user_namespace(self._proc_fd)


def _load(instructions: bytes) -> int:
    from nvinject.linux import devicebpf

    try:
        return devicebpf.load_program(instructions)
    except PermissionError:
        return _load_unlimited(instructions)  # kernels before 5.11 charge programs to RLIMIT_MEMLOCK


def _load_unlimited(instructions: bytes) -> int:
    import resource

    from nvinject.linux import devicebpf

    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError as error:  # setrlimit's word for EPERM
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), "device program") from error
    try:
        return devicebpf.load_program(instructions)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)


def _read_membership(proc_fd: int) -> str:
    fd = os.open("cgroup", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    return _read_text(fd)


def _own_mounts() -> "tuple[Mount, ...]":
    text = _read_text(os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC))
    # A host has hundreds of mounts, one for each container among them: only cgroups are parsed.
    return parse_mountinfo("\n".join(line for line in text.split("\n") if " - cgroup" in line))


def _read_text(fd: int) -> str:
    with os.fdopen(fd, "rb") as file:
        return os.fsdecode(file.read())


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return str(error)


def _failure(step: str, error: Exception, problems: "tuple[str, ...]") -> ContainerError:
    left = f"; could not undo: {', '.join(problems)}" if problems else ""
    hint = "set nvidia-container-cli.no-cgroups = true where the runtime itself allows the devices"
    return ContainerError(f"cannot apply {step}: {_reason(error)}{left}", hint)
