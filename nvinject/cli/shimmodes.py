"""The three ways in which the runtime shim serves a container: a plan, a registry's devices, the prestart hook.

Belongs here: the steps of each way, and what is undone when one fails. Does not belong here: which way it is
(core.mode), and the steps themselves. Requirements of the image hold in each of them.
"""

import stat
import sys

from nvinject import leanos as os
from nvinject.cli.hook import environment
from nvinject.core.mode import plain_devices, qualify
from nvinject.core.policy import WARN
from nvinject.core.request import make_request, read_extras, read_limited, read_requirements
from nvinject.core.sources import ContainerSpec
from nvinject.errors import ContainerError, HostError, RequestError
from nvinject.formats.oci import rootfs_path
from nvinject.leanos import close_quietly
from nvinject.linux.inroot import ignore_absence
from nvinject.render import bundle as bundles
from nvinject.render import oci

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvinject.cli.ocicall import Call
    from nvinject.cli.shimlog import ShimLog
    from nvinject.cli.standby import Standby
    from nvinject.core.model import Inventory
    from nvinject.core.plan import DecideCompat, LimitMemory, Operation, Plan
    from nvinject.core.policy import Policy
    from nvinject.core.request import ContainerRequest
    from nvinject.core.sources import Asked
    from nvinject.formats.oci import Spec
    from nvinject.render.journal import Journal
    from nvinject.render.planfile import HookPlan
    from nvinject.render.rundirectory import RunDirectory

HOOK_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CONFIG_VARIABLES = ("NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME")
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class Shim:
    """One create: the container's document, and everything that was made for it."""

    def __init__(
        self,
        call: "Call",
        document: "dict[str, Any]",
        spec: "Spec",
        policy: "Policy",
        log: "ShimLog",
        *,
        bundle: str,
        low_level: str,
    ) -> None:
        """Keep what all ways need; nothing is done yet."""
        self.call = call
        self.document = document
        self.spec = spec
        self.policy = policy
        self.log = log
        self.bundle = bundle
        self.low_level = low_level
        self.asked = ContainerSpec(environment=spec.environment, mounts=spec.mounts, privileged=spec.privileged)
        self.folder: RunDirectory | None = None
        self.standby: Standby | None = None

    def restore(self, data: bytes) -> None:
        """Put the engine's own config.json back and remove what was generated."""
        bundles.replace_file(os.path.join(self.bundle, bundles.CONFIG), data)
        self.forget()

    def forget(self) -> None:
        """Remove what was generated."""
        if self.standby is not None:
            self.standby.close()
            self.standby = None
        if self.folder is not None:
            self.folder.remove()
            self.folder = None

    # -- the prestart hook ---------------------------------------------------------------------------------------------

    def use_hook(self) -> None:
        """Leave the work to a prestart hook; one that the engine has put there gives way to it."""
        oci.remove_hooks(self.document)
        path, words = self.policy.hook_path, ["prestart"]
        environ = environment()
        variables = [f"{name}={environ[name]}" for name in CONFIG_VARIABLES if environ.get(name)]
        if not path.startswith("/"):
            path, words = find_launcher(), ["hook", "-legacy", "prestart"]
        oci.add_hook(self.document, "prestart", path, tuple(words), (HOOK_PATH, *variables))
        bundles.write_config(self.bundle, self.document)

    # -- the registry --------------------------------------------------------------------------------------------------

    def use_registry(self, asked: "Asked") -> None:
        """Apply the edits that the host's CDI specs have for the devices."""
        from nvinject.host.registry import read_registry, resolve
        from nvinject.render.injection import apply_edits, collect_edits

        names = qualify(asked.devices, self.policy.cdi_default_kind)
        extras, warnings = read_extras(self.asked, self.policy)
        registry = read_registry(self.policy.cdi_spec_dirs)
        if extras and self.policy.missing_extras == WARN:
            lacking = [name for name in extras if name.endswith("=all") and name not in registry.devices()]
            warnings += tuple(f"no CDI spec defines {name}; the container does without" for name in lacking)
            extras = tuple(name for name in extras if name not in lacking)
        for warning in warnings:
            self.log.warn(warning)
        definitions = resolve(registry, tuple(dict.fromkeys((*names, *extras))))
        self.check_requirements(names)
        oci.remove_hooks(self.document)
        self.limit_registered(names)
        apply_edits(self.document, collect_edits((one.file.path, one.spec, one.device) for one in definitions))
        bundles.write_config(self.bundle, self.document)

    def check_requirements(self, names: tuple[str, ...]) -> None:
        """Raise RequirementError if the host does not satisfy the image; one that requires nothing needs no driver."""
        requirements = read_requirements(self.asked, self.policy)
        if not requirements:
            return
        from nvinject.cli.discovery import discover_host
        from nvinject.core.planner import NVML_ATTRIBUTES
        from nvinject.core.requirements import check, collect_facts, needed_attributes
        from nvinject.core.selection import select

        needed = needed_attributes(requirements)
        inventory = discover_host(
            self.policy, ("utility",), environment(), nvml=bool(needed & NVML_ATTRIBUTES), version="driver" in needed
        )
        try:
            gpus = select(tuple(name.partition("=")[2] for name in names), inventory.gpus).gpus
        except RequestError:
            gpus = inventory.gpus  # names of a registry's own choosing: all GPUs have to satisfy the image
        check(requirements, collect_facts(inventory.driver, gpus))

    # -- a plan --------------------------------------------------------------------------------------------------------

    def use_plan(self, asked: "Asked") -> None:
        """Discover, plan, and write the plan into config.json."""
        from nvinject.cli.discovery import discover_for

        request = make_request(asked.replace(devices=plain_devices(asked.devices)), self.asked, self.policy)
        for warning in request.warnings:
            self.log.warn(warning)
        policy = self.policy
        if policy.jit_feature_flags:
            from nvinject.core.catalog import NO_SOCKETS_FLAG, SOCKET_NAMES

            if NO_SOCKETS_FLAG in policy.jit_feature_flags:
                policy = policy.replace(leave_out=(*policy.leave_out, *SOCKET_NAMES))
        inventory = discover_for(request, policy, environment())
        root_fd = self.open_rootfs()
        try:
            plan = self.make_plan(inventory, request, root_fd)
            made = self.make_host_nodes(plan)
            try:
                self.write(plan, root_fd)
            except Exception:
                for problem in made.undo() if made is not None else ():
                    self.log.warn(f"could not undo: {problem}")
                self.forget()
                raise
        finally:
            if root_fd >= 0:
                close_quietly(root_fd)

    def open_rootfs(self) -> int:
        """Open the root file system; -1 where it is not there yet, as with runtimes that mount it themselves."""
        path = rootfs_path(self.spec, self.bundle)
        try:
            root_fd = os.open(path, _DIRECTORY)
        except OSError as error:
            ignore_absence(error)
            self.log.write(f"the root file system {path} cannot be seen: {error.strerror}")
            return -1
        if os.listdir(f"/proc/self/fd/{root_fd}"):
            return root_fd
        self.log.write(f"the root file system {path} is not mounted yet")
        os.close(root_fd)
        return -1

    def make_plan(self, inventory: "Inventory", request: "ContainerRequest", root_fd: int) -> "Plan":
        """Return the plan for the image, or for any image where that cannot be seen."""
        from nvinject.cli.discovery import compat_place
        from nvinject.core import planner
        from nvinject.core.model import UNKNOWN_IMAGE
        from nvinject.host.layout import observe_layout

        layout = observe_layout(root_fd, compat=compat_place(inventory)) if root_fd >= 0 else UNKNOWN_IMAGE
        plan = planner.plan(inventory, request, self.policy, layout)
        for note in plan.notes:
            self.log.write(f"note: {note}")
        for warning in plan.warnings:
            self.log.warn(warning)
        return plan

    def make_host_nodes(self, plan: "Plan") -> "Journal | None":
        """Make the device nodes that the plan wants on the host; returns what takes them back."""
        from nvinject.core.plan import MakeNode

        nodes = tuple(one for one in plan.operations if isinstance(one, MakeNode))
        if not nodes:
            return None
        from nvinject.render.hostnodes import make_nodes

        return make_nodes(nodes, self.log.write)

    def write(self, plan: "Plan", root_fd: int) -> None:
        """Carry the plan out: generated files, the container's file system, config.json, in this order."""
        from nvinject.core.plan import DecideCompat, LimitMemory, MakeNode
        from nvinject.render.rootfs import check_targets, without_present

        decision = next((one for one in plan.operations if isinstance(one, DecideCompat)), None)
        operations = tuple(one for one in plan.operations if not isinstance(one, (DecideCompat, LimitMemory, MakeNode)))
        limits = tuple(one for one in plan.operations if isinstance(one, LimitMemory))
        traits = oci.read_traits(
            self.document,
            nested=in_user_namespace(),
            write_rootfs=self.policy.write_rootfs,
            add_groups=not self.policy.features.no_additional_gids_for_device_nodes,
        )
        plan = plan.replace(operations=operations)
        if root_fd >= 0:
            plan = without_present(plan, root_fd)
        division = oci.divide(plan, traits, rootfs_known=root_fd >= 0)
        if root_fd >= 0:
            check_targets(division.document, traits.covers, root_fd)
        if division.hook and not traits.mounts_proc:
            raise ContainerError(
                "config.json mounts no procfs on /proc, below which the driver's part has to be covered",
                "mount proc on /proc, or take CAP_MKNOD from the container",
            )
        for operation in division.dropped:
            self.log.write(f"left out, nothing in the container depends on it: {operation.describe()}")
        generated = oci.generate(division, self.make_cache(division, root_fd))
        launcher = find_launcher() if division.hook or limits else ""
        oci.remove_hooks(self.document, launcher)
        if generated or division.hook:
            self.generate(generated, traits.label)
        oci.write_plan(self.document, division, traits, self.folder.path if self.folder else "")
        if division.hook:
            division = self.add_hook(division, traits, decision, root_fd, launcher)
        if limits:
            self.add_limits(limits, launcher)
        self.finish(division, root_fd)

    def make_cache(self, division: oci.Division, root_fd: int) -> "bytes | None":
        """Return the loader cache that has to be mounted, None if none has."""
        from nvinject.core.plan import UpdateLoaderCache

        for operation in division.document:
            if isinstance(operation, UpdateLoaderCache):
                from nvinject.render.loadercache import compute

                return compute(root_fd, operation)
        return None

    def generate(self, files: "tuple[oci.GeneratedFile, ...]", label: str) -> None:
        """Make the container's run directory and sweep those of containers that are gone."""
        from nvinject.render.rundirectory import RunDirectory, choose_base, state_directory, sweep

        base = choose_base(environment())
        for name in sweep(base):
            self.log.write(f"removed what was left of container {name}")
        folder = RunDirectory(base, self.call.identifier)
        folder.make(self.bundle, state_directory(self.low_level, self.call.root, self.call.identifier, environment()))
        self.folder = folder  # ours, to be removed where something fails from here on
        folder.fill(files, label)

    def add_hook(
        self, division: oci.Division, traits: oci.Traits, decision: "DecideCompat | None", root_fd: int, launcher: str
    ) -> oci.Division:
        """Add the one hook, and leave in the run directory what it has to do; returns what is left to do here.

        Where something can stand by for the hook, it also writes a loader cache that takes time, while the runtime is
        at work.
        """
        from nvinject.render.planfile import FILE, HookPlan, format_plan_file
        from nvinject.render.rootfs import split_slow

        assert self.folder is not None
        status = os.fstat(root_fd) if root_fd >= 0 else None
        plan = HookPlan(
            operations=division.hook,
            root=(status.st_dev, status.st_ino) if status is not None else (0, 0),
            driver_version=decision.driver_version if decision is not None else "",
            cuda_version=decision.cuda_version if decision is not None else "",
            compat_directory=decision.directory if decision is not None else "",
            compat_mode=self.policy.cuda_compat_mode,
            models=decision.models if decision is not None else (),
            debug=self.policy.runtime_debug,
        )
        path = launcher
        words: tuple[str, ...] = (oci.HOOK_COMMAND, self.folder.path)
        # In a user namespace the hook is another user, and its work is not for one who is the host's root.
        if root_fd >= 0 and not traits.bind_devices and os.access(launcher + oci.HOOK_SCRIPT, os.X_OK):
            path, words = launcher + oci.HOOK_SCRIPT, (self.folder.path,)
            at_once, slow = split_slow(division.rootfs, root_fd)
            self.standby = self.make_standby(self.folder.path, slow, plan, root_fd)
            if self.standby is not None:
                plan = plan.replace(operations=(*slow, *division.hook))
                division = division.replace(rootfs=at_once)
        self.folder.fill([oci.GeneratedFile(path=FILE, content=format_plan_file(plan), mode=0o644)], "")
        oci.add_hook(self.document, "createContainer", path, words, oci.HOOK_ENVIRONMENT)
        return division

    def make_standby(
        self, folder: str, rootfs: "tuple[Operation, ...]", plan: "HookPlan", root_fd: int
    ) -> "Standby | None":
        """Return what stands by for the hook; without it the hook is slower, and that is all."""
        from nvinject.cli.standby import Standby

        try:
            return Standby(folder, rootfs, plan, root_fd)
        except OSError as error:
            self.log.write(f"the hook will do its work itself: {error}")
            return None

    def stand_by(self) -> None:
        """Start what does the hook's work: the last step before this process becomes the low-level runtime."""
        if self.standby is not None:
            try:
                self.standby.start(as_child=self.call.command == "create")
            except (AttributeError, OSError) as error:  # a Python that was built without pidfd_open(2)
                self.log.write(f"the hook will do its work itself: {error}")
                self.standby.close()

    def add_limits(self, limits: "tuple[LimitMemory, ...]", launcher: str) -> None:
        """Have the limits of memory set when the container's cgroup is there."""
        from nvinject.cli.memorylimits import STAGE, hook_words

        words = hook_words(limits, self.policy.roots.driver)
        oci.add_hook(self.document, STAGE, launcher, words, oci.HOOK_ENVIRONMENT)

    def limit_registered(self, names: tuple[str, ...]) -> None:
        """Keep the limits of memory of a container whose devices a registry has.

        Raises RequestError where it cannot be told which GPUs these are.
        """
        from nvinject.cli.discovery import discover_for
        from nvinject.core.memorylimits import plan_limits
        from nvinject.core.model import UNKNOWN_IMAGE
        from nvinject.core.plan import LimitMemory, SetEnvironment
        from nvinject.core.selection import select

        request = read_limited(self.asked, tuple(name.partition("=")[2] for name in names))
        if request is None:
            return
        inventory = discover_for(request, self.policy, environment())
        operations, warnings = plan_limits(
            inventory, request, self.policy, UNKNOWN_IMAGE, select(request.devices, inventory.gpus)
        )
        for warning in warnings:
            self.log.warn(warning)
        for operation in operations:
            if isinstance(operation, SetEnvironment):
                oci.set_variable(self.document, operation)
        limits = tuple(one for one in operations if isinstance(one, LimitMemory))
        if limits:
            self.add_limits(limits, find_launcher())

    def finish(self, division: oci.Division, root_fd: int) -> None:
        """Change the container's file system and put config.json in place: both or neither."""
        if self.folder is not None and self.call.command == "run" and not self.call.detached:
            # The low-level runtime deletes such a container itself, without a call that we would see.
            path = find_program("rm")
            oci.add_hook(self.document, "poststop", path, ("-rf", "--", self.folder.path), (HOOK_PATH,))
        if not division.rootfs:
            bundles.write_config(self.bundle, self.document)
            return
        from nvinject.render.rootfs import write_rootfs

        journal = write_rootfs(division.rootfs, root_fd, self.log.write)
        try:
            bundles.write_config(self.bundle, self.document)
        except Exception:
            for problem in journal.undo():
                self.log.warn(f"could not undo: {problem}")
            raise
        for problem in journal.commit():
            self.log.warn(f"left behind in the container: {problem}")


def in_user_namespace() -> bool:
    """Tell whether this process is in a user namespace other than the first, where nodes cannot be made."""
    from nvinject.host.nodes import in_initial_user_namespace

    return not in_initial_user_namespace()


def find_launcher() -> str:
    """Return the launcher that runs us, which is the only safe way to start a hook; raises HostError without one."""
    path = os.path.abspath(sys.argv[0])
    try:
        with open(path, "rb") as file:
            head = file.read(512)
            path = os.readlink(f"/proc/self/fd/{file.fileno()}")  # behind links
        isolated = head.partition(b"\n")[0].endswith(b" -IS") and stat.S_IMODE(os.stat(path).st_mode) & 0o111
    except OSError:
        isolated = 0
    if not isolated:
        raise HostError(
            f"{path} cannot be started as a hook: it is not the isolated launcher",
            "run nvinject install --links and let the engine use PREFIX/bin/nvidia-container-runtime",
        )
    return path


def find_program(name: str) -> str:
    """Return the path of a program of the system; raises HostError."""
    for directory in ("/usr/bin", "/bin", "/run/current-system/sw/bin"):
        path = f"{directory}/{name}"
        if os.access(path, os.X_OK):
            return path
    raise HostError(f"{name} is neither in /usr/bin nor in /bin", "use create and start instead of run")
