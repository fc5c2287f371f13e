"""Platforms: hosts that tell themselves what containers get, and are looked at in a way of their own.

Belongs here: recognising such a host at the price of three system calls, because every container with a GPU pays it.
Does not belong here: looking at it, which is the platform's own module, imported only where the platform is met.
"""

from nvinject import leanos as os
from nvinject.core.policy import Policy, Roots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from nvinject.host.tegra import Tegra
    from nvinject.host.wsl import Wsl

    Platform: TypeAlias = Tegra | Wsl

TEGRA_RELEASE = "/etc/nv_tegra_release"  # below the driver root; written by NVIDIA's Linux for Tegra
WSL_LIBRARIES = "/usr/lib/wsl/lib"  # below the driver root; WSL 2 mounts what Windows brings for GPUs there
DXCORE = f"{WSL_LIBRARIES}/libdxcore.so"
DXG = "/dev/dxg"  # below the device root
SOC_FAMILY = "/devices/soc0/family"  # below the sys root; the kernel's own word


def find_platform(policy: Policy) -> "Platform | None":
    """Return this host's platform, None for a host whose driver is looked at as usual. Raises HostError."""
    if says_wsl(policy.roots):
        return find_wsl(policy)
    if not says_tegra(policy.roots):
        return None
    from nvinject.host.tegra import recognise

    return recognise(policy)


def choose_platform(policy: Policy) -> "Platform | None":
    """Return the platform that nvidia-container-runtime.mode leads to: with csv Tegra, with auto what the host is.

    The other modes are about how containers are changed, and leave a host no choice that has no driver of its own.
    """
    if policy.mode == "csv":
        from nvinject.host.tegra import look

        return look(policy)
    if policy.mode == "auto":
        return find_platform(policy)
    return find_wsl(policy) if says_wsl(policy.roots) else None


def find_wsl(policy: Policy) -> "Wsl":
    """Return this host as a system of WSL 2."""
    from nvinject.host.wsl import Wsl

    return Wsl(policy)


def says_wsl(roots: Roots) -> bool:
    """Tell whether a host gets its GPUs from Windows; one with the kernel module, as in a virtual machine, does not."""
    try:
        os.stat(roots.driver.rstrip("/") + WSL_LIBRARIES)
    except OSError:
        return False
    try:
        os.stat(roots.proc.rstrip("/") + "/driver/nvidia/version")
    except OSError:
        return True
    return False


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
