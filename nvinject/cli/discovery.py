"""Discovery for one request: what has to be looked for on this host so that the request can be served.

Belongs here: the step from a request to the arguments of nvinject.host.inventory or of the host's platform, shared by
commands that plan. Does not belong here: looking (host) and deciding (core).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvinject.core.model import Inventory
    from nvinject.core.policy import Policy
    from nvinject.core.request import ContainerRequest

DEFAULT_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def discover_for(request: "ContainerRequest", policy: "Policy", environ: "Mapping[str, str]") -> "Inventory":
    """Return what this host has for the request; raises HostError as discover does."""
    from nvinject.core import planner  # the shim needs DEFAULT_PATH for containers without GPUs too
    from nvinject.core.catalog import daemon_directories
    from nvinject.host.platforms import choose_platform

    platform = choose_platform(policy)
    if platform is not None:
        return platform.discover_for(request, facts=planner.needs_nvml(request))
    from nvinject.host.inventory import discover

    return discover(
        policy,
        request.capabilities,
        environ_path=search_path(environ),
        nvml=planner.needs_nvml(request),
        mig_management=bool(request.mig_config or request.mig_monitor),
        imex_channels=request.imex_channels,
        extras=request.extras,
        daemon_directories=daemon_directories(environ),
        mps=bool(request.mps or request.memory_sizes) and not request.mps_provided,
        memory_limits=bool(request.memory_sizes),
    )


def discover_host(
    policy: "Policy", capabilities: tuple[str, ...], environ: "Mapping[str, str]", *, nvml: bool, version: bool = False
) -> "Inventory":
    """Return what this host has for driver capabilities, whoever asks; raises HostError.

    `nvml` has NVML asked for what it alone knows, `version` tells that the driver's version is needed.
    """
    from nvinject.host.inventory import discover
    from nvinject.host.platforms import find_platform

    platform = find_platform(policy)
    if platform is not None:
        return platform.discover_all(facts=nvml or version)
    return discover(policy, capabilities, environ_path=search_path(environ), nvml=nvml)


def compat_place(inventory: "Inventory") -> str:
    """Return where images for this host have CUDA libraries of their own, "" where most images have them."""
    return "" if inventory.listing is None else inventory.listing.compat_directory


def search_path(environ: "Mapping[str, str]") -> str:
    """Return the directories in which the driver's programs are looked for: PATH, then the usual ones."""
    given = [entry for entry in environ.get("PATH", "").split(":") if entry.startswith("/")]
    return ":".join([*given, *(entry for entry in DEFAULT_PATH if entry not in given)])
