"""The hook's work for a container that asks for GPUs: configuration, request, discovery, plan, and doing it.

Belongs here: the order of these steps. Does not belong here: any decision (core), any change of the container (render),
and the way out for containers without GPUs (hook.py).
"""

import sys

from nvinject.cli.debuglog import Log
from nvinject.config import load_policy
from nvinject.core.request import ignored_warning, read_request
from nvinject.core.sources import ContainerSpec, might_ask
from nvinject.errors import ConfigurationError, NvinjectError, RequestError
from nvinject.formats.oci import rootfs_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nvinject.core.model import Inventory
    from nvinject.core.plan import LimitMemory
    from nvinject.core.policy import Policy
    from nvinject.core.request import ContainerRequest
    from nvinject.formats.oci import Spec, State


def serve(
    state: "State",
    spec: "Spec",
    asked: ContainerSpec,
    settings: tuple[str, bool],
    environ: "Mapping[str, str]",
    *,
    debug: bool,
    legacy: bool,
) -> None:
    """Inject what a container asks for; `settings` are the path of config.toml and whether it must exist."""
    try:
        policy, warnings = load_policy(*settings)
    except ConfigurationError as error:
        if might_ask(asked):
            raise
        # Only an unreadable swarm-resource line made us look; such a container never depends on us.
        sys.stderr.write(f"nvinject: warning: {error}\n")
        return
    request = read_request(asked, policy)
    with Log(policy.debug, echo=debug) as log:
        for warning in warnings:
            log.warn(warning)
        if request is None:
            ignored = ignored_warning(asked, policy)
            if ignored:
                log.warn(ignored)
            return
        for warning in request.warnings:
            log.warn(warning)
        if not legacy:
            check_mode(policy)
        try:
            inject_request(state, spec, request, policy, environ, log)
        except Exception as error:
            log.write(f"failed: {error}")
            raise


def check_mode(policy: "Policy") -> None:
    """Refuse where the node's configuration, or its platform, says that containers get GPUs in another way."""
    if policy.mode == "legacy" or policy.skip_mode_detection:
        return
    if policy.mode == "auto":
        from nvinject.host.platforms import find_platform

        platform = find_platform(policy)
        if platform is not None and not platform.serves_hook:
            raise RequestError(
                f"the hook was called directly, but this is a {platform.title} system ({platform.evidence()}), "
                f"whose containers are served in mode {platform.mode}",
                "let the engine use the runtime (docker run --runtime nvidia) or CDI, or set "
                "nvidia-container-runtime-hook.skip-mode-detection = true",
            )
        return
    raise RequestError(
        f"the hook was called directly, but nvidia-container-runtime.mode is {policy.mode!r}",
        "let the engine use the runtime or CDI, or set nvidia-container-runtime-hook.skip-mode-detection = true",
    )


def inject_request(
    state: "State",
    spec: "Spec",
    request: "ContainerRequest",
    policy: "Policy",
    environ: "Mapping[str, str]",
    log: "Log",
) -> None:
    """Discover, plan and apply for a container that asks for GPUs."""
    from nvinject.cli.discovery import compat_place, discover_for
    from nvinject.core import planner
    from nvinject.core.plan import LimitMemory
    from nvinject.host.layout import observe_layout
    from nvinject.render.namespaces import apply, open_container

    log.write(f"request: devices {','.join(request.devices)}; capabilities {','.join(request.capabilities)}")
    # Whatever the mode that led here: a platform is what it is.
    inventory = discover_for(request, policy.replace(mode="auto"), environ)
    container = open_container(state.pid, rootfs_path(spec, state.bundle))
    layout = observe_layout(container.root_fd, compat=compat_place(inventory), created=True)
    plan = planner.plan(inventory, request, policy, layout)
    for note in plan.notes:
        log.write(f"note: {note}")
    for warning in plan.warnings:
        log.warn(warning)
    limits = tuple(one for one in plan.operations if isinstance(one, LimitMemory))
    take_back = limit_memory(limits, state.pid, inventory, policy, log) if limits else None
    steps = log.write if log.is_kept else None
    try:
        # A hook's last work, but where limits of memory may have to be taken back: that loads a library of the host,
        # for which the process must not be in the container's mount namespace.
        for warning in apply(plan, container, no_cgroups=policy.no_cgroups, log=steps, ends_here=not limits):
            log.warn(warning)
    except Exception:
        if take_back is not None:
            take_back()
        raise
    log.write("done")


def limit_memory(
    limits: "tuple[LimitMemory, ...]", pid: int, inventory: "Inventory", policy: "Policy", log: "Log"
) -> "Callable[[], None]":
    """Set the limits of memory of a plan; returns what takes them back, which logs its own failure."""
    from nvinject.cli.memorylimits import limit_container

    undo = limit_container(limits, pid, inventory, policy, log.write)

    def take_back() -> None:
        try:
            undo()
        except NvinjectError as error:
            log.warn(f"could not undo the limits of memory: {error.message}")

    return take_back
