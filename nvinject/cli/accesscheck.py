"""Whether running containers may use the GPUs that they have: device rules of their cgroups, and of systemd's units.

Belongs here: finding such containers and reading their rules. Does not belong here: what follows for a person
(core.servicediagnosis). Needs root: other users' processes are closed to us, and then there is nothing to tell.
"""

import os
import stat

from nvinject.core.servicediagnosis import Access, unit_allows
from nvinject.formats.devicefilter import UnknownInstructionError, allows
from nvinject.formats.mountinfo import Mount, MountInfoError, parse_mountinfo
from nvinject.host.enginefiles import read_text
from nvinject.linux import cgroup, devicebpf
from nvinject.render.cgroup import DeviceCgroup, NoDeviceCgroupError, find_device_cgroup

ACCESS = "rw"
UNIT_DIRECTORIES = ("/run/systemd/transient", "/run/systemd/system.control", "/etc/systemd/system.control")

Node = tuple[str, int, int]


def check_containers(classes: tuple[tuple[str, int], ...]) -> tuple[Access, ...]:
    """Return the access of every running container that has GPU nodes."""
    try:
        mounts = parse_mountinfo(read_text("/proc/self/mountinfo"))
    except MountInfoError:
        return ()
    found = []
    for pid in find_container_processes():
        nodes = find_nodes(pid)
        if nodes:
            found.append(check_container(pid, nodes, mounts, classes))
    return tuple(found)


def find_container_processes() -> list[int]:
    """Return one process of each mount namespace other than ours, the one with the lowest id."""
    seen = {_namespace("self")}
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        namespace = _namespace(str(pid))
        if namespace and namespace not in seen:
            seen.add(namespace)
            found.append(pid)
    return found


def _namespace(process: str) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/mnt")
    except OSError:
        return ""


def find_nodes(pid: int) -> list[Node]:
    """Return the driver's nodes in a container's /dev; none where its /dev is the host's."""
    directory = f"/proc/{pid}/root/dev"
    found: list[Node] = []
    try:
        if os.path.samestat(os.stat(directory), os.stat("/dev")):
            return []
        for name in sorted(os.listdir(directory)):
            status = os.lstat(f"{directory}/{name}")
            if name.startswith("nvidia") and stat.S_ISCHR(status.st_mode):
                found.append((f"/dev/{name}", os.major(status.st_rdev), os.minor(status.st_rdev)))
    except OSError:
        return []  # it has ended, or is not ours to look at
    return found


def check_container(
    pid: int, nodes: list[Node], mounts: tuple[Mount, ...], classes: tuple[tuple[str, int], ...]
) -> Access:
    """Return what the rules of a container's cgroup and unit say about its nodes."""
    try:
        group = find_device_cgroup(read_text(f"/proc/{pid}/cgroup"), mounts)
    except NoDeviceCgroupError:
        return Access(name=f"of process {pid}")
    denied = [path for path, major, minor in nodes if not is_allowed(group, mounts, major, minor)]
    own = own_group(group.path)
    unit, lines = read_unit(own)
    fleeting = [path for path, major, minor in nodes if not unit_allows(lines, path, major, minor, classes)]
    return Access(name=name_of(own, pid), denied=tuple(denied), unit=unit, fleeting=tuple(fleeting))


def own_group(group: str) -> str:
    """Return the cgroup that is the container's: crun puts its processes into one called container below the unit's."""
    above, _, last = group.rpartition("/")
    return above if last == "container" and above.endswith(".scope") else group


def name_of(group: str, pid: int) -> str:
    """Return how people know a container: the start of the id in its cgroup's name."""
    last = group.rpartition("/")[2].removesuffix(".scope").rpartition("-")[2]
    return last[:12] if last else f"of process {pid}"


def is_allowed(group: DeviceCgroup, mounts: tuple[Mount, ...], major: int, minor: int) -> bool:
    """Say whether a cgroup lets a device be opened; what cannot be read counts as allowed."""
    try:
        if group.version == 1:
            return _list_allows(group.path, major, minor)
        ends = {mount.mount_point.rstrip("/") for mount in mounts if mount.fstype == "cgroup2"}
        path = group.path
        while path not in ends and path.count("/") > 1:
            if not _programs_allow(path, major, minor):
                return False
            path = path.rpartition("/")[0]
    except (OSError, UnknownInstructionError):
        return True
    return True


def _list_allows(path: str, major: int, minor: int) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return not cgroup.missing_access(cgroup.read_device_list(descriptor), major, minor, ACCESS)
    finally:
        os.close(descriptor)


def _programs_allow(path: str, major: int, minor: int) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _, identifiers = devicebpf.query_programs(descriptor)
    finally:
        os.close(descriptor)
    for identifier in identifiers:
        program = devicebpf.open_program(identifier)
        try:
            if not allows(devicebpf.read_instructions(program), ACCESS, major, minor):
                return False
        finally:
            os.close(program)
    return True


def read_unit(group: str) -> tuple[str, tuple[str, ...]]:
    """Return the systemd unit of a cgroup and the values of its DeviceAllow= lines ("" and none for no unit)."""
    unit = group.rpartition("/")[2]
    if not unit.endswith((".scope", ".service")):
        return "", ()
    lines: list[str] = []
    for directory in UNIT_DIRECTORIES:
        files = [f"{directory}/{unit}", *list_files(f"{directory}/{unit}.d")]
        for path in files:
            for line in read_text(path).splitlines():
                key, separator, value = line.partition("=")
                if separator and key.strip() == "DeviceAllow":
                    lines.append(value.strip())
    return unit, tuple(lines)


def list_files(directory: str) -> list[str]:
    """Return the paths of a directory's files in order, none where there is no such directory."""
    try:
        return [f"{directory}/{name}" for name in sorted(os.listdir(directory))]
    except OSError:
        return []
