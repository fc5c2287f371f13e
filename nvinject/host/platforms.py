"""Platforms: hosts that tell themselves what containers get, and are looked at in a way of their own.

Belongs here: recognising such a host at the price of two system calls, because every container with a GPU pays it. Does
not belong here: looking at it, which is the platform's own module, imported only where the platform is met.
"""

from nvinject import leanos as os
from nvinject.core.policy import Policy, Roots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.host.tegra import Tegra

TEGRA_RELEASE = "/etc/nv_tegra_release"  # below the driver root; written by NVIDIA's Linux for Tegra
SOC_FAMILY = "/devices/soc0/family"  # below the sys root; the kernel's own word


def find_platform(policy: Policy) -> "Tegra | None":
    """Return this host's platform, None for a host whose driver is looked at as usual. Raises HostError."""
    if not says_tegra(policy.roots):
        return None
    from nvinject.host.tegra import recognise

    return recognise(policy)


def choose_platform(policy: Policy) -> "Tegra | None":
    """Return the platform that nvidia-container-runtime.mode leads to: with csv always, with auto where it is one."""
    if policy.mode == "csv":
        from nvinject.host.tegra import look

        return look(policy)
    return find_platform(policy) if policy.mode == "auto" else None


def says_tegra(roots: Roots) -> bool:
    """Tell whether a host says of itself that it is a Tegra system."""
    try:
        os.stat(roots.driver.rstrip("/") + TEGRA_RELEASE)
    except OSError:
        return read_family(roots.sys.rstrip("/") + SOC_FAMILY).lower().startswith("tegra")
    return True


def read_family(path: str) -> str:
    """Return what the kernel says of the system on chip, "" where it says nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 64).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
