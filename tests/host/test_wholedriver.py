"""The rest of the driver: libraries that no row names, modules of the X server, display nodes."""

from nvinject.core.catalog import WHOLE_DRIVER
from nvinject.core.model import DisplayLink
from nvinject.core.policy import Policy
from nvinject.host.inventory import discover
from nvinject.host.wholedriver import complete_inventory
from tests.formats.elfbuilder import build_elf

from .machine import LIBRARY_DIRECTORY, VERSION, HostTree


def policy_with_sys(tree: HostTree) -> Policy:
    (tree.base / "sys").mkdir()
    return tree.policy.replace(roots=tree.policy.roots.replace(sys=str(tree.base / "sys")))


def add_extras(tree: HostTree) -> None:
    """Write what the catalogue does not know, and what only looks like it."""
    for name, soname in (
        (f"{LIBRARY_DIRECTORY}/vdpau/libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1"),
        (f"{LIBRARY_DIRECTORY}/libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1"),
        (f"{LIBRARY_DIRECTORY}/libnvidia-present.so.{VERSION}", f"libnvidia-present.so.{VERSION}"),
        (f"{LIBRARY_DIRECTORY}/libnvidia-old.so.470.1", "libnvidia-old.so.1"),
        (f"{LIBRARY_DIRECTORY}/libcrypto.so.1.1", "libcrypto.so.1.1"),
        (f"{LIBRARY_DIRECTORY}/nvidia/xorg/libglxserver_nvidia.so.{VERSION}", ""),
        (f"{LIBRARY_DIRECTORY}/nvidia/xorg/nvidia_drv.so", ""),
    ):
        tree.write(name, build_elf(soname=soname, bits=64, machine=62))
    tree.write(f"{LIBRARY_DIRECTORY}/libnvidia-text.so.{VERSION}", "no library")
    tree.link(f"{LIBRARY_DIRECTORY}/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
    tree.link(f"{LIBRARY_DIRECTORY}/libnvidia-ml.so", "libnvidia-ml.so.1")
    tree.link(f"{LIBRARY_DIRECTORY}/libnvidia-cfg.so", "/opt/other/libnvidia-cfg.so")


def test_the_rest_is_found_beside_the_known(tree: HostTree) -> None:
    tree.add_everything()
    add_extras(tree)
    policy = policy_with_sys(tree)
    inventory = discover(policy, ("compute", WHOLE_DRIVER), environ_path="/usr/bin", nvml=False)
    whole = complete_inventory(inventory)
    more = whole.driver.libraries[len(inventory.driver.libraries) :]
    assert [(library.soname, library.is_module) for library in more] == [
        ("libGLX_nvidia.so.0", False),
        ("libnvidia-api.so.1", False),
        ("libnvidia-cfg.so.1", False),
        ("libnvidia-egl-gbm.so.1", False),
        ("libnvidia-encode.so.1", False),
        (f"libnvidia-glcore.so.{VERSION}", False),
        ("libnvidia-ml.so.1", False),
        (f"libnvidia-present.so.{VERSION}", False),
        ("libvdpau_nvidia.so.1", False),
        ("nvidia_drv.so", True),
        ("libglxserver_nvidia.so", True),
    ]
    links = {library.soname: library.plain_link for library in whole.driver.libraries if library.plain_link}
    assert links == {"libnvidia-ml.so.1": "libnvidia-ml.so.1"}


def test_display_nodes_belong_to_their_gpu(tree: HostTree) -> None:
    tree.add_everything()
    policy = policy_with_sys(tree)
    for number in (0, 1):
        for name, minor in ((f"card{number + 1}", number + 1), (f"renderD{number + 128}", number + 128)):
            (tree.base / f"sys/bus/pci/devices/0000:1{number + 7}:00.0/drm/{name}").mkdir(parents=True)
            tree.add_node(f"/dev/dri/{name}", 226, minor)
        tree.link(f"/dev/dri/by-path/pci-0000:1{number + 7}:00.0-card", f"../card{number + 1}")
    tree.link("/dev/dri/by-path/pci-0000:19:00.0-card", "../card9")
    (tree.base / "sys/bus/pci/devices/0000:17:00.0/drm/controlD64").mkdir()
    whole = complete_inventory(discover(policy, ("compute",), environ_path="/usr/bin", nvml=False))
    assert [[node.path for node in gpu.display_nodes] for gpu in whole.gpus] == [
        ["/dev/dri/card1", "/dev/dri/renderD128"],
        ["/dev/dri/card2", "/dev/dri/renderD129"],
    ]
    assert whole.gpus[0].display_links == (
        DisplayLink(path="/dev/dri/by-path/pci-0000:17:00.0-card", target="../card1"),
    )
