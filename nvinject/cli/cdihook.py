"""nvinject hook create-symlinks, update-ldcache and so on: what specs of CDI have a runtime call (nvidia-cdi-hook).

Belongs here: arguments, the container's root file system, and which operations a hook means. Does not belong here: how
they are done (nvinject.render). Such a hook runs at the stage createContainer: in the container's mount namespace,
before the root is changed, as whoever runs the runtime. A hook that this version does not know does nothing, so that a
newer spec never stops a container.
"""

import os
import sys

from nvinject.errors import ContainerError, InputError, NvinjectError, UsageError, printable
from nvinject.leanos import close_quietly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvinject.core.plan import Operation

HELP = """\
usage: nvidia-cdi-hook [--debug] [--quiet] HOOK [OPTION ...]
       nvinject hook HOOK [OPTION ...]

Hooks that CDI specs name; a runtime calls them at the stage createContainer, with the container's state on standard
input. An unknown hook is a warning and nothing else.

  create-symlinks                    --link TARGET::LINK ...
  update-ldcache                     --folder DIR ... [--ldconfig-path PATH, which is ignored]
  enable-cuda-compat                 [--host-driver-version V] [--host-cuda-version V]
                                     [--cuda-compat-container-root DIR]
  disable-device-node-modification   hides GPUs that the container has no node of, and keeps it from making nodes
  update-application-profile         tells EGL which GPUs there are
  chmod                              --mode OCTAL --path PATH ...
  apply-cuda-memory-limits           [--gpu-id UUID ...] [--driver-root DIR]; at the stage createRuntime: has the driver
                                     keep what the container's NVIDIA_GPU_MEMORY_LIMIT and its like say

Each takes --container-spec FILE, the state in place of standard input. --debug tells each step, --quiet nothing but
errors; NVIDIA_CTK_DEBUG and NVIDIA_CTK_QUIET in the environment do the same.

example:
  echo '{"bundle": "/run/bundle"}' | nvidia-cdi-hook create-symlinks --link libcuda.so.1::/usr/lib64/libcuda.so
"""

COMPAT_ROOT = "/usr/local/cuda/compat"

# hook, its options; a name ending in * may be repeated and is split at commas
OPTIONS = {
    "create-symlinks": ("link*",),
    "update-ldcache": ("folder*", "ldconfig-path"),
    "enable-cuda-compat": ("host-driver-version", "host-cuda-version", "cuda-compat-container-root"),
    "disable-device-node-modification": (),
    "update-application-profile": (),
    "chmod": ("path*", "mode"),
    "apply-cuda-memory-limits": ("gpu-id*", "limit*", "driver-root"),
    "noop": (),
}
COMMON_OPTIONS = ("container-spec",)

# A spec whose hooks have no env has runc start them with the container's environment (CVE-2025-23266). By then the
# loader has heeded these; nothing is done for a container that sets them.
FORBIDDEN_PREFIXES = ("LD_", "PYTHON")
FORBIDDEN = ("GCONV_PATH", "LOCPATH", "GLIBC_TUNABLES")


class Call:
    """A hook's options, its root file system and its way to tell what it does.

    `root_fd` is for looking and for mounts, `writable_fd` for making files: another mount of the same root file system.
    """

    def __init__(self, options: "dict[str, list[str]]", root_fd: int, log: "Callable[[str], None]") -> None:
        """Keep what every hook needs."""
        from nvinject.render.inside import open_writable
        from nvinject.render.journal import Journal

        self.options = options
        self.root_fd = root_fd
        self.writable_fd = open_writable(root_fd)
        self.log = log
        self.journal = Journal()

    def close(self) -> None:
        """Let go of the root file system; by now everything is done, or taken back."""
        close_quietly(self.root_fd)
        close_quietly(self.writable_fd)

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of an option."""
        return self.options.get(name, [default])[-1]

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the values of an option, each once."""
        return tuple(dict.fromkeys(self.options.get(name, ())))

    def apply(self, operations: "tuple[Operation, ...]") -> None:
        """Do operations below the root, all or none."""
        from nvinject.render.inside import apply_here

        if operations:
            for warning in apply_here(operations, self.root_fd, self.log):
                warn(warning)


def is_hook(word: str) -> bool:
    """Tell whether a word names one of these hooks."""
    return word in OPTIONS


def main(arguments: "list[str]") -> int:
    """Run one hook; returns 0, or raises an NvinjectError."""
    words, debug = read_globals(arguments)
    if words[:1] in (["-h"], ["--help"], ["help"]):
        sys.stdout.write(HELP)
        return 0
    if words[:1] in (["--version"], ["-v"]):
        from nvinject import __version__

        sys.stdout.write(f"NVIDIA CDI Hook version {__version__} (nvinject)\n")
        return 0
    if not words:
        warn("No CDI hook specified")
        return 0
    name, *rest = words
    if not is_hook(name):
        warn(f"Unsupported CDI hook: {name}")
        return 0
    options = read_options(name, rest)
    if name != "noop":
        refuse_foreign_environment()
        run(name, options, debug=debug)
    return 0


def read_globals(arguments: "list[str]") -> "tuple[list[str], bool]":
    """Return the words from the hook's name on, and whether to log."""
    debug = _is_set("NVIDIA_CTK_DEBUG", "NVIDIA_CDI_DEBUG")
    words = list(arguments)
    while words and words[0].startswith("-"):
        flag, _, value = words[0].lstrip("-").partition("=")
        if flag in {"debug", "d"}:
            debug = value not in {"0", "f", "F", "false", "FALSE", "False"}
        elif flag in {"quiet", "q"}:
            os.environ["NVIDIA_CTK_QUIET"] = value or "true"
        else:
            break
        words.pop(0)
    return words, debug and not is_quiet()


def is_quiet() -> bool:
    """Say whether nothing but errors shall be told."""
    return _is_set("NVIDIA_CTK_QUIET", "NVIDIA_CDI_QUIET")


def _is_set(*names: str) -> bool:
    # The first that is there counts, even if it is empty: the second one is the original's older name.
    given = next((os.environ[name] for name in names if name in os.environ), "")
    return given in {"1", "t", "T", "true", "TRUE", "True"}


def read_options(name: str, words: "list[str]") -> "dict[str, list[str]]":
    """Return the values of a hook's options; raises UsageError for one that it does not have."""
    known = {option.rstrip("*"): option.endswith("*") for option in (*OPTIONS[name], *COMMON_OPTIONS)}
    found: dict[str, list[str]] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or option not in known:
            raise UsageError(f"the hook {name} has no option {word}", f"it has {', '.join(known)}")
        if not equals:
            if not rest:
                raise UsageError(f"--{option} needs a value", "nvidia-cdi-hook --help lists the options")
            value = rest.pop(0)
        values = [part for part in value.split(",") if part] if known[option] else [value]
        found.setdefault(option, []).extend(values)
    return found


def refuse_foreign_environment() -> None:
    """Refuse to go on in an environment that an image could have made; raises ContainerError."""
    found = [name for name in os.environ if name.startswith(FORBIDDEN_PREFIXES) or name in FORBIDDEN]
    if found:
        raise ContainerError(
            f"the hook was started with {', '.join(sorted(found))}, which the container may have set",
            "its spec gives the hook no env: make the spec anew (nvinject cdi validate names it)",
        )


def run(name: str, options: "dict[str, list[str]]", *, debug: bool) -> None:
    """Find the root file system and do what the hook is for."""
    if name == "apply-cuda-memory-limits":
        from nvinject.cli.limithook import apply_limits_of_state  # needs no root file system, unlike the others

        apply_limits_of_state(options)
        return
    work = {
        "create-symlinks": create_symlinks,
        "update-ldcache": update_loader_cache,
        "enable-cuda-compat": enable_cuda_compat,
        "disable-device-node-modification": cover_driver_proc,
        "update-application-profile": cover_profile,
        "chmod": change_modes,
    }[name]
    if name in {"create-symlinks", "update-ldcache", "chmod"} and not any(options.values()):
        return
    root_fd = open_root(read_state(options.get("container-spec", ["-"])[-1]))
    call = Call(options, root_fd, tell if debug else ignore)
    try:
        work(call)
        for problem in call.journal.commit():
            warn(f"left behind in the container: {problem}")
    except BaseException as error:
        for problem in call.journal.undo():
            warn(f"could not undo: {problem}")
        if isinstance(error, NvinjectError):
            raise type(error)(f"{name}: {error.message}", error.hint) from error
        raise
    finally:
        call.close()


def tell(message: str) -> None:
    """Write one step to standard error."""
    sys.stderr.write(f"nvinject: {printable(message)}\n")


def ignore(_: str) -> None:
    """Write nothing."""


def warn(message: str) -> None:
    """Write a warning to standard error."""
    if not is_quiet():
        sys.stderr.write(f"nvinject: warning: {printable(message)}\n")


def read_state(source: str) -> bytes:
    """Return the container's state from a file, `-` or nothing being standard input; raises InputError."""
    from nvinject.cli.hook import read_all

    if source in {"", "-"}:
        return read_all(0, "standard input")
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"cannot open {source}: {error.strerror}", "--container-spec names the state") from error
    try:
        return read_all(descriptor, source)
    finally:
        os.close(descriptor)


def open_root(state: bytes) -> int:
    """Open the container's root file system; raises InputError and ContainerError.

    With user namespaces this process may not be able to reach the paths that the state gives. runc starts a hook with
    the root file system as its working directory, so that is taken then, if it can be one.
    """
    from nvinject.cli.createcontainer import read_places
    from nvinject.render.hooks import is_container_root
    from nvinject.render.inside import find_root

    places = read_places(state)
    try:
        root_fd = find_root(places, (0, 0))
    except ContainerError:
        root_fd = find_root((".",), (0, 0))
        if not is_container_root(root_fd):
            os.close(root_fd)
            raise
    if os.path.samestat(os.fstat(root_fd), os.stat("/")):
        os.close(root_fd)
        raise ContainerError("the container's root file system is the host's", "root.path in config.json is wrong")
    return root_fd


def create_symlinks(call: Call) -> None:
    """Make the links; those below /dev are a convenience, and a file system that takes none is a warning there."""
    from nvinject.core.plan import CreateSymlink
    from nvinject.render.hooks import is_needed

    needed: list[CreateSymlink] = []
    conveniences: list[CreateSymlink] = []
    for pair in call.texts("link"):
        parts = pair.split("::")
        if len(parts) != 2 or not all(parts):
            raise UsageError(f"invalid symlink specification: {pair}", "write TARGET::LINK")
        link = CreateSymlink(target=parts[0], link=parts[1], force=True, reason="a CDI spec asks for it")
        if is_needed(call.root_fd, link):
            (conveniences if link.link.startswith("/dev/") else needed).append(link)
    call.apply(tuple(needed))
    for link in conveniences:
        try:
            call.apply((link,))
        except ContainerError as error:
            warn(str(error))


def update_loader_cache(call: Call) -> None:
    """Make the image's loader find the libraries of the folders."""
    from nvinject.core.plan import UpdateLoaderCache
    from nvinject.host.layout import observe_layout
    from nvinject.render.hooks import remember_folders, remembered_compat

    folders = call.texts("folder")
    layout = observe_layout(call.root_fd)
    if not layout.musl_path_file:
        problem = remember_folders(call.writable_fd, folders, os.uname().machine, call.journal)
        if problem:
            warn(problem)
    operation = UpdateLoaderCache(
        directories=folders,
        libraries=(),
        compat_directory=remembered_compat(call.root_fd),
        musl_path_file=layout.musl_path_file,
        reason="a CDI spec asks for it",
    )
    call.apply((operation,))


def enable_cuda_compat(call: Call) -> None:
    """Decide whether the image's own CUDA libraries come first, and note it for update-ldcache."""
    from nvinject.core.compat import choose_compat
    from nvinject.host.layout import observe_layout
    from nvinject.render.hooks import device_minors, remember_compat

    driver, cuda = call.text("host-driver-version"), call.text("host-cuda-version")
    if not driver and not cuda:
        return
    layout = observe_layout(call.root_fd, compat=call.text("cuda-compat-container-root", COMPAT_ROOT))
    models: tuple[str, ...] = ()
    if layout.compat_directory:
        minors = device_minors(call.root_fd, "/dev", "nvidia")
        models = tuple(gpu.model for gpu in find_inventory().gpus if gpu.minor in minors)
    choice = choose_compat(
        layout.compat_directory,
        layout.compat_version,
        driver,
        "ldconfig",
        note=layout.compat_note,
        cuda_version=cuda,
        models=models,
    )
    if choice.reason:
        call.log(f"CUDA compatibility: {choice.reason}")
    remember_compat(call.writable_fd, choice.directory, call.journal)


def cover_driver_proc(call: Call) -> None:
    """Cover the driver's procfs in the container but for the GPUs that it has nodes of.

    A container whose /proc is something else is refused, as by the other hooks: once it mounts a procfs there, nothing
    of the driver's would be covered.
    """
    from nvinject.core.planner import DRIVER_PROC, plan_visible_proc
    from nvinject.render.hooks import device_minors, is_in_procfs

    inventory = find_inventory()
    if not inventory.driver.proc_files:
        call.log("the driver is not loaded: nothing to cover")
        return
    if not is_in_procfs(call.root_fd, DRIVER_PROC):
        call.log(f"the container has no {DRIVER_PROC}: nothing to cover")
        return
    gpus = device_minors(call.root_fd, "/dev", "nvidia")
    capabilities = device_minors(call.root_fd, "/dev/nvidia-caps", "nvidia-cap")
    call.apply(plan_visible_proc(inventory, gpus, capabilities))


def find_inventory() -> "Inventory":
    """Return what the host's procfs says of the driver and its GPUs, and nothing that would need a search."""
    from nvinject.core.model import Driver, Inventory
    from nvinject.core.policy import Roots
    from nvinject.host import driver, gpus
    from nvinject.host.root import Root

    with Root("/proc") as proc, Root("/") as dev:
        majors = driver.read_majors(proc)
        nodes = gpus.Nodes(dev, majors, strict=False)
        config, monitor = None, None
        # Only root may read what manages MIG; a hook in a user namespace is somebody else, as is the container then.
        if os.access(f"/proc{gpus.CAPABILITIES}/mig/config", os.R_OK):
            config, monitor, _ = gpus.find_mig_management(proc, nodes)
        return Inventory(
            driver=Driver(version="", proc_files=driver.read_proc_files(proc)),
            roots=Roots(dev="/"),
            gpus=gpus.find_gpus(proc, nodes),
            mig_config_node=config,
            mig_monitor_node=monitor,
        )


def cover_profile(call: Call) -> None:
    """Tell EGL which GPUs the container has; one without GPUs is told nothing."""
    from nvinject.core.planner import application_profile
    from nvinject.render.hooks import device_minors

    minors = device_minors(call.root_fd, "/dev", "nvidia")
    if any(minor > 63 for minor in minors):
        warn("GPUs with minors above 63 are unknown to EGL")
    if minors:
        call.apply((application_profile(minors),))


def change_modes(call: Call) -> None:
    """Set the mode of paths that are there."""
    from nvinject.render.hooks import change_mode

    mode = call.text("mode")
    if not mode or mode.strip("01234567"):
        raise UsageError(f"--mode {mode} is no octal number" if mode else "--mode is missing", "write such as 755")
    problems = [change_mode(call.writable_fd, path, int(mode, 8)) for path in call.texts("path")]
    told = [problem for problem in problems if problem]
    if told:
        raise ContainerError(f"cannot change modes: {'; '.join(told)}", "the image must be mended")


if TYPE_CHECKING:
    from nvinject.core.model import Inventory
