"""The plan: an ordered tuple of operations on a container, each with the reason why it is there.

Belongs here: the operations and how they are told to a person. Does not belong here: deciding which there are
(planner.py) or doing them (nvinject.render). An operation names what the container shall see; it never names a GPU
model, a mode or an engine. Paths of the container are absolute inside its root file system; sources are absolute on the
host, roots already applied.
"""

from nvinject.record import Record


class Operation(Record):
    """Base of all operations; `reason` is a short clause for people."""

    reason: str

    def describe(self) -> str:
        """Return one line for people: what is done, to what."""
        raise NotImplementedError


class BindFile(Operation):
    """Show a file, directory or socket of the host at a place of the container.

    `flags` are mount attributes by their names in mount(8): ro, nosuid, nodev, noexec. The bind is private. `source` is
    never inside the container's root file system.
    """

    source: str
    target: str
    flags: tuple[str, ...]

    def describe(self) -> str:
        """Return target and flags, and the source where it is another path."""
        origin = "" if self.source == self.target else f" from {self.source}"
        return f"bind {self.target}{origin} ({','.join(self.flags)})"


class BindDevice(Operation):
    """Show a character device of the host in the container; its number must be major:minor when it is bound.

    `uid` and `gid` are the owners on the host.
    """

    source: str
    target: str
    major: int
    minor: int
    mode: int
    flags: tuple[str, ...]
    uid: int = 0
    gid: int = 0

    def describe(self) -> str:
        """Return node and number, and the host's node where it is another path."""
        origin = "" if self.source == self.target else f" from {self.source}"
        return f"device {self.target}{origin} ({self.major}:{self.minor})"


class MakeNode(Operation):
    """Make a device node on the host, below the device root `root`, before anything of it is shown to a container.

    The one operation that changes the host; the planner has it only where the node's configuration allows it.
    """

    root: str
    path: str
    major: int
    minor: int
    mode: int
    uid: int = 0
    gid: int = 0

    def describe(self) -> str:
        """Return node and number."""
        place = self.path if self.root == "/" else self.root.rstrip("/") + self.path
        return f"make {place} ({self.major}:{self.minor}) on the host"


class AllowDevice(Operation):
    """Let the container open a character device; `access` is a subset of `rwm`."""

    major: int
    minor: int
    access: str

    def describe(self) -> str:
        """Return the rule as the kernel writes it."""
        return f"allow c {self.major}:{self.minor} {self.access}"


class SetEnvironment(Operation):
    """Set a variable of the container's process, unless that has it already and nothing `replaces` it.

    Only for containers whose process does not exist yet: the planner has it for no others.
    """

    name: str
    value: str
    replaces: bool = False

    def describe(self) -> str:
        """Return the variable as it stands in an environment."""
        return f"set {self.name}={self.value}"


class LimitMemory(Operation):
    """Limit what the container's cgroup may take of a GPU's memory; `gpu` is its bus address, as sysfs writes it.

    `soft` is what others cannot take away, `hard` what cannot be exceeded (0: no limit), both in bytes.
    """

    gpu: str
    soft: int
    hard: int

    def describe(self) -> str:
        """Return the GPU and both amounts."""
        most = f"at most {self.hard >> 20} MiB" if self.hard else "no limit"
        return f"limit memory of {self.gpu}: {most}, {self.soft >> 20} MiB for sure"


class MaskDirectory(Operation):
    """Cover a directory of the container's procfs or /etc with a small file system holding only `files`.

    `files` are (relative name, content, mode). Later operations may bind more below `target`; that is why the mount is
    writable until the container starts.
    """

    target: str
    mode: int
    files: tuple[tuple[str, str, int], ...]
    flags: tuple[str, ...]

    def describe(self) -> str:
        """Return target and names."""
        return f"cover {self.target} with {', '.join(name for name, _, _ in self.files) or 'nothing'}"


class WriteFile(Operation):
    """Write a small file of the container, in place of what is there; for its own tools, not for a program to wait on.

    Where the container's file system cannot be written to, it is left out.
    """

    target: str
    content: str
    mode: int

    def describe(self) -> str:
        """Return the file's path and what it holds."""
        return f"write {self.target} ({', '.join(self.content.split())})"


class CreateSymlink(Operation):
    """Create a symbolic link in the container; an existing file of that name stays unless `force`."""

    link: str
    target: str
    force: bool = False

    def describe(self) -> str:
        """Return link and target."""
        return f"link {self.link} -> {self.target}"


class LoaderLibrary(Record):
    """A library that the loader cache shall know: its SONAME, its path in the container, its word size."""

    soname: str
    path: str
    bits: int = 64


class DecideCompat(Operation):
    """When the container starts, decide whether the image's own CUDA libraries come before the host's.

    For images that are not known yet; the loader cache that is updated afterwards heeds the decision. `driver_version`
    is "" where the CUDA version alone decides; `directory` is where images keep such libraries ("": where most do);
    `models` are names of the container's GPUs where these are known.
    """

    driver_version: str
    cuda_version: str = ""
    directory: str = ""
    models: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return what the image's libraries are compared with."""
        host = f"driver {self.driver_version}" if self.driver_version else f"CUDA {self.cuda_version}"
        return f"decide at start whether CUDA libraries of the image go before those of {host}"


class DecideLimits(Operation):
    """When the container starts, limit memory of its GPUs as its environment says; for containers not known yet."""

    driver_root: str

    def describe(self) -> str:
        """Return what decides."""
        return "limit memory at start as the container's environment says"


class UpdateLoaderCache(Operation):
    """Make the dynamic loader of the container find libraries, without running anything of the image.

    `compat_directory` is a directory of the image that comes before all others ("" where there is none);
    `musl_path_file` is the path list of musl's loader, for images without glibc ("" otherwise).
    """

    directories: tuple[str, ...]
    libraries: tuple[LoaderLibrary, ...]
    compat_directory: str = ""
    musl_path_file: str = ""

    def describe(self) -> str:
        """Return how many libraries are added and where."""
        return f"loader cache: {len(self.libraries)} libraries in {', '.join(self.directories)}"


class Plan(Record):
    """What will be done to one container: operations in order, and notes for people that change nothing.

    `warnings` are what a container asked for and does not get, and what is wrong with the host's own lists, told
    wherever it is started.
    """

    operations: tuple[Operation, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
