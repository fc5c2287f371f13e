"""nvidia-container-cli configure: puts GPUs into a container, with a request that options make.

Belongs here: options to request, and the order of the steps. Does not belong here: decisions (core.planner) and changes
(render.namespaces); they are the hook's own. Without --pid the container is our own surroundings: a mount namespace
that the caller has made, with the root file system at ROOTFS.
"""

import os

from nvinject.cli import containerlist
from nvinject.cli.containercli import CliError, Settings
from nvinject.cli.debuglog import Log
from nvinject.core import catalog, planner
from nvinject.core.model import Inventory
from nvinject.core.plan import BindDevice, Plan, UpdateLoaderCache
from nvinject.core.policy import DRIVER_CAPABILITIES, Policy
from nvinject.core.request import ContainerRequest
from nvinject.errors import ContainerError, HostError, NvinjectError, RequirementError, UsageError
from nvinject.host.layout import observe_layout
from nvinject.render.namespaces import Container, apply, open_container, open_surroundings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.cli.argp import Words

MAXIMUM_REQUIREMENTS = 32
COMPAT_MODES = ("mount", "ldconfig", "disabled")


def configure(words: "Words", settings: Settings) -> None:
    """Discover, plan and apply; raises CliError and other NvinjectErrors with nothing changed."""
    rootfs = read_rootfs(words)
    request = read_request(words)
    managing = containerlist.read_management(words)
    settings = settings.replace(
        policy=settings.policy.replace(
            cuda_compat_mode=read_compat_mode(words), ldconfig=words.last("ldconfig") or settings.policy.ldconfig
        )
    )
    pid = read_pid(words)
    containerlist.prepare(settings, request.imex_channels)
    with Log(settings.debug, echo=False, title="nvidia-container-cli configure") as log:
        try:
            work(request, settings, words, log, pid=pid, rootfs=rootfs, managing=managing)
        except NvinjectError as error:
            log.write(f"failed: {error}")
            raise


def work(
    request: ContainerRequest,
    settings: Settings,
    words: "Words",
    log: Log,
    *,
    pid: int | None,
    rootfs: str,
    managing: tuple[str, ...],
) -> None:
    """Open the container, find what it asks for, and put it there."""
    container = open_target(pid, rootfs)
    log.write(f"request: devices {','.join(request.devices)}; capabilities {','.join(request.capabilities)}")
    inventory = containerlist.find_inventory(
        settings,
        request.capabilities,
        nvml=planner.needs_nvml(request),
        mig=bool(managing),
        channels=request.imex_channels,
        request=request,
    )
    containerlist.select_devices(request.devices, inventory.gpus, managing)
    inventory = containerlist.without_parts(inventory, words)
    # As with the original, a daemon's directory lies where the host has it; nothing is known of the process to be.
    request = request.replace(mps=catalog.daemon_directories(settings.environ))
    plan = make_plan(inventory, request, settings.policy, container)
    for note in plan.notes:
        log.write(f"note: {note}")
    for warning in plan.warnings:
        log.warn(warning)
    if words.has("no-devbind"):
        plan = without_nodes(plan)
    try:
        warnings = apply(plan, container, no_cgroups=words.has("no-cgroups"), log=log.write if log.is_kept else None)
    except ContainerError as error:
        raise CliError(stage_of_failure(plan, error), error.message, error.hint) from error
    for warning in warnings:
        log.warn(warning)
    log.write("done")


def make_plan(inventory: Inventory, request: ContainerRequest, policy: Policy, container: Container) -> Plan:
    """Return the plan; raises CliError with the original's words for what fails."""
    try:
        return planner.plan(inventory, request, policy, observe_layout(container.root_fd, created=True))
    except HostError as error:
        raise CliError("mount error", error.message, error.hint) from error
    except RequirementError as error:
        raise CliError("requirement error", f"unsatisfied condition: {error.message}", error.hint) from error


def open_target(pid: int | None, rootfs: str) -> Container:
    """Open the container of a process, or our own surroundings."""
    try:
        return open_surroundings(rootfs) if pid is None else open_container(pid, rootfs)
    except ContainerError as error:
        raise CliError("container error", error.message, error.hint) from error


def stage_of_failure(plan: Plan, error: ContainerError) -> str:
    """Return what the original calls the step that failed: the loader cache, or anything before it."""
    caches = [operation.describe() for operation in plan.operations if isinstance(operation, UpdateLoaderCache)]
    return "ldcache error" if any(text in error.message for text in caches) else "mount error"


def without_nodes(plan: Plan) -> Plan:
    """Return the plan without device nodes; the right to open them stays."""
    return plan.replace(
        operations=tuple(operation for operation in plan.operations if not isinstance(operation, BindDevice))
    )


def read_rootfs(words: "Words") -> str:
    """Return the root file system's path; raises UsageError unless there is one, CliError for one that cannot be."""
    if len(words.rest) != 1:
        what = "too many arguments" if words.rest else "ROOTFS is missing"
        raise UsageError(f"nvidia-container-cli configure: {what}")
    rootfs = words.rest[0]
    if not rootfs.startswith("/") or os.path.normpath(rootfs).strip("/") == "":
        raise CliError("input error", "invalid rootfs directory", "give an absolute path other than /")
    return rootfs


def read_pid(words: "Words") -> int | None:
    """Return the process of the container, None for our own surroundings."""
    text = words.last("pid")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 31):
        raise CliError("input error", f"invalid pid {text!r}", "give the process id of the container's first process")
    return int(text)


def read_request(words: "Words") -> ContainerRequest:
    """Return the request that the options make."""
    requirements = words.every("require")
    if len(requirements) > MAXIMUM_REQUIREMENTS:
        raise CliError("input error", "too many requirements", f"at most {MAXIMUM_REQUIREMENTS} are taken")
    managing = containerlist.read_management(words)
    return ContainerRequest(
        devices=containerlist.read_tokens(words.every("device")),
        capabilities=tuple(name for name in DRIVER_CAPABILITIES if words.has(name)),
        requirements=tuple(
            (f"--require[{number}]" if len(requirements) > 1 else "--require", text)
            for number, text in enumerate(requirements, 1)
        ),
        mig_config="all" if "config" in managing else "",
        mig_monitor="all" if "monitor" in managing else "",
        imex_channels=containerlist.read_channels(words.every("imex-channel")),
        source="the command line",
    )


def read_compat_mode(words: "Words") -> str:
    """Return how CUDA libraries of the image are treated: as asked, else `mount`, the original's default."""
    asked = tuple(dict.fromkeys(words.every("cuda-compat-mode")))
    unknown = [mode for mode in asked if mode not in COMPAT_MODES]
    if unknown:
        raise CliError(
            "input error", f"invalid cuda-compat-mode {unknown[0]!r}", f"use one of {', '.join(COMPAT_MODES)}"
        )
    if "disabled" in asked or words.has("no-cntlibs"):
        return "disabled"
    if len(asked) > 1:
        raise CliError("input error", "only one cuda-compat-mode can be specified at a time")
    return asked[0] if asked else "mount"
