"""Discovery on small hosts: what a working machine gives, and one error for each way in which it can be broken."""

import os
import sys
from collections.abc import Callable

import pytest

from nvinject.core.model import DeviceNode, ImexHost
from nvinject.core.policy import DRIVER_CAPABILITIES, Policy, Roots
from nvinject.errors import HostError
from nvinject.host.imex import look_at_channels
from nvinject.host.inventory import discover
from nvinject.host.root import Root

from .machine import LIBRARY_DIRECTORY, PARAMS, VERSION, HostTree, gpu_uuid, write

COMPUTE = ("compute", "utility")
SEARCH_PATH = "/usr/local/bin:/usr/bin"


def test_working_machine(tree: HostTree) -> None:
    """Everything is found, in fixed orders, with paths that do not show the roots."""
    tree.add_everything()
    tree.add_socket("/run/nvidia-persistenced/socket")
    inventory = discover(tree.policy, COMPUTE, environ_path=SEARCH_PATH, nvml=False)
    driver = inventory.driver
    assert driver.version == VERSION
    assert [(library.soname, library.bits) for library in driver.libraries] == [
        ("libnvidia-ml.so.1", 64),
        ("libnvidia-cfg.so.1", 64),
        ("libcuda.so.1", 64),
        ("libcudadebugger.so.1", 64),
        ("libnvidia-nvvm.so.4", 64),
    ]
    assert driver.libraries[2].path == f"{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}"
    assert [(file.name, file.path) for file in driver.binaries] == [
        ("nvidia-smi", "/usr/bin/nvidia-smi"),
        ("nvidia-debugdump", "/usr/bin/nvidia-debugdump"),
        ("nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-control"),
    ]
    assert [(file.name, file.path) for file in driver.firmware] == [
        ("gsp_ga10x.bin", f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"),
        ("gsp_tu10x.bin", f"/usr/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"),
    ]
    assert [(file.name, file.path) for file in driver.sockets] == [
        ("nvidia-persistenced", "/run/nvidia-persistenced/socket")
    ]
    assert [node.path for node in driver.control_nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    assert dict(driver.proc_files)["params"] == PARAMS.replace("Files: 1", "Files: 0")
    assert list(dict(driver.proc_files)) == ["params", "version", "registry"]
    assert ("nvidia-uvm", 511) in inventory.majors
    assert [(gpu.index, gpu.minor, gpu.uuid, gpu.bus_id) for gpu in inventory.gpus] == [
        (0, 0, gpu_uuid(0), "0000:17:00.0"),
        (1, 1, gpu_uuid(1), "0000:18:00.0"),
    ]
    assert inventory.gpus[0].proc_directory == "/proc/driver/nvidia/gpus/0000:17:00.0"
    assert inventory.gpus[0].node == DeviceNode(path="/dev/nvidia0", major=195, minor=0)
    assert inventory.roots == Roots(driver=str(tree.root), dev=str(tree.root), proc=str(tree.proc))
    assert inventory.notes == ()


def test_capabilities_choose(tree: HostTree) -> None:
    """Graphics brings its own libraries and no compute files."""
    tree.add_everything()
    tree.write("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "{}")
    inventory = discover(tree.policy, ("display",), environ_path=SEARCH_PATH, nvml=False)
    assert [library.soname for library in inventory.driver.libraries] == [
        f"libnvidia-glcore.so.{VERSION}",
        "libGLX_nvidia.so.0",
    ]
    assert inventory.driver.binaries == ()
    assert [node.path for node in inventory.driver.control_nodes] == ["/dev/nvidiactl", "/dev/nvidia-modeset"]
    assert [file.name for file in inventory.driver.configuration] == ["glvnd/egl_vendor.d/10_nvidia.json"]


def test_no_gpu_is_no_error(tree: HostTree) -> None:
    """A loaded driver without GPUs (all given to virtual machines) is a host with an empty list."""
    tree.add_driver()
    tree.add_module()
    tree.add_control_nodes()
    assert discover(tree.policy, COMPUTE, environ_path="", nvml=False).gpus == ()


def test_device_root(tree: HostTree) -> None:
    """Without configuration the driver root's own /dev counts, if it has the control node; else the host's."""
    tree.add_everything()
    elsewhere = HostTree(tree.base / "root")
    elsewhere.add_everything()
    policy = tree.policy.replace(roots=tree.policy.roots.replace(dev=str(elsewhere.root)))
    inventory = discover(policy, COMPUTE, environ_path="", nvml=False)
    assert inventory.roots.dev == str(elsewhere.root)


def add_skew(tree: HostTree) -> None:
    tree.add_driver("580.20")
    tree.add_module("580.10")
    tree.add_control_nodes()


def add_broken_version(tree: HostTree) -> None:
    tree.add_everything()
    write(tree.proc, "/driver/nvidia/version", "NVRM version: none\n")


def add_other_driver_files(tree: HostTree) -> None:
    tree.add_everything()
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (tree.root / f"{LIBRARY_DIRECTORY}/{name}.{VERSION}".lstrip("/")).unlink()


def without_control_node(tree: HostTree) -> None:
    tree.add_everything()
    (tree.root / "dev/nvidiactl").unlink()


def with_wrong_control_node(tree: HostTree) -> None:
    tree.add_everything()
    tree.add_node("/dev/nvidiactl", 195, 254)


def with_file_as_control_node(tree: HostTree) -> None:
    tree.add_everything()
    (tree.root / "dev/nvidiactl").unlink()
    tree.write("/dev/nvidiactl")


def with_unreadable_version(tree: HostTree) -> None:
    tree.add_driver()
    (tree.proc / "driver/nvidia/version").mkdir(parents=True)


BROKEN: list[tuple[Callable[[HostTree], None], str, str]] = [
    (
        lambda _: None,
        (
            "there is no NVIDIA driver: neither {proc}/driver/nvidia/version nor libnvidia-ml.so.1 or libcuda.so.1 in "
            "{root}/etc/ld.so.cache, {root}"
        ),
        "install the driver on the host, or set nvidia-container-cli.root",
    ),
    (
        HostTree.add_driver,
        (
            f"the NVIDIA kernel module is not loaded: libraries {VERSION} are in {{root}}, but "
            "{proc}/driver/nvidia/version is missing"
        ),
        "run modprobe nvidia",
    ),
    (
        add_skew,
        "the driver's parts differ in version: kernel module 580.10, libraries 580.20",
        "reload the kernel module (rmmod and modprobe nvidia) or reboot",
    ),
    (
        HostTree.add_module,
        (
            f"the kernel module {VERSION} is loaded, but libnvidia-ml.so.1 or libcuda.so.1 of that version is not in "
            "{root}/etc/ld.so.cache, {root}"
        ),
        "install the driver's libraries",
    ),
    (
        add_other_driver_files,
        f"the kernel module {VERSION} is loaded, but libnvidia-ml.so.1 or libcuda.so.1 of that version is not in ",
        "install the driver's libraries",
    ),
    (
        add_broken_version,
        "{proc}/driver/nvidia/version: line 1: no driver version: 'NVRM version: none'",
        "the driver writes this file",
    ),
    (
        with_unreadable_version,
        "cannot read {proc}/driver/nvidia/version: Is a directory",
        "",
    ),
    (
        without_control_node,
        "the control device of the driver cannot be used: {root}/dev/nvidiactl is missing",
        "run nvidia-modprobe -c 255 as root",
    ),
    (
        with_wrong_control_node,
        (
            "the control device of the driver cannot be used: {root}/dev/nvidiactl is device 195:254, the driver's is "
            "195:255"
        ),
        "run nvidia-modprobe -c 255 as root",
    ),
    (
        with_file_as_control_node,
        (
            "the control device of the driver cannot be used: {root}/dev/nvidiactl is a regular file, not a character "
            "device"
        ),
        "run nvidia-modprobe -c 255 as root",
    ),
]


@pytest.mark.parametrize(("build", "message", "hint"), BROKEN)
def test_broken_machine(tree: HostTree, build: Callable[[HostTree], None], message: str, hint: str) -> None:
    """Each fault has its own words and its own remedy."""
    build(tree)
    # Without a node of its own the driver root would make the search fall back to this machine's /dev.
    policy = tree.policy.replace(roots=tree.policy.roots.replace(dev=str(tree.root)))
    with pytest.raises(HostError) as caught:
        discover(policy, COMPUTE, environ_path=SEARCH_PATH, nvml=False)
    assert caught.value.message.startswith(message.format(root=tree.root, proc=tree.proc))
    assert caught.value.hint.startswith(hint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "start"),
    [
        ("driver", "driver root {path} does not exist; nvidia-container-cli.root must name a directory"),
        ("dev", "device root {path} does not exist; nvinject.dev-root must name a directory"),
        ("proc", "proc root {path} does not exist; nvinject.proc-root must name a directory"),
    ],
)
def test_missing_root(tree: HostTree, field: str, start: str) -> None:
    """A root that is not there is named with the key that says it."""
    path = str(tree.base / "nowhere")
    policy = Policy(roots=tree.policy.roots.replace(**{field: path}))
    with pytest.raises(HostError) as caught:
        discover(policy, COMPUTE, environ_path="", nvml=False)
    assert str(caught.value) == start.format(path=path)


def test_optional_nodes_are_notes(tree: HostTree) -> None:
    """Compute without unified memory is told, not refused; a node of another number is taken."""
    tree.add_everything()
    (tree.root / "dev/nvidia-uvm-tools").unlink()
    tree.add_node("/dev/nvidia-uvm", 235, 0)
    inventory = discover(tree.policy, COMPUTE, environ_path="", nvml=False)
    assert [(node.path, node.major) for node in inventory.driver.control_nodes] == [
        ("/dev/nvidiactl", 195),
        ("/dev/nvidia-uvm", 235),
    ]
    root = tree.root
    assert inventory.notes == (
        f"{root}/dev/nvidia-uvm is device 235:0, the driver's is 511:0; taken as it is",
        (
            f"{root}/dev/nvidia-uvm-tools is missing (events of unified memory, for profilers); "
            "run nvidia-modprobe -u -c 0 as root"
        ),
    )


def test_mig_management_and_imex(tree: HostTree) -> None:
    """The nodes that manage MIG and the IMEX channels are looked for only when they are asked for."""
    tree.add_everything()
    for name, minor in (("config", 1), ("monitor", 2)):
        write(tree.proc, f"/driver/nvidia/capabilities/mig/{name}", f"DeviceFileMinor: {minor}\n")
        tree.add_node(f"/dev/nvidia-caps/nvidia-cap{minor}", 237, minor)
    write(tree.proc, "/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu0/gi0/access 3\n")
    tree.add_node("/dev/nvidia-caps-imex-channels/channel7", 238, 7)
    quiet = discover(tree.policy, COMPUTE, environ_path="", nvml=False)
    assert (quiet.mig_config_node, quiet.mig_capabilities, quiet.imex_nodes) == (None, (), ())
    asked = discover(
        tree.policy, COMPUTE, environ_path="", nvml=False, mig_management=True, imex_channels=("7", "8", "x")
    )
    assert asked.mig_config_node == DeviceNode(path="/dev/nvidia-caps/nvidia-cap1", major=237, minor=1)
    assert asked.mig_monitor_node == DeviceNode(path="/dev/nvidia-caps/nvidia-cap2", major=237, minor=2)
    assert [(line.name, line.minor) for line in asked.mig_capabilities] == [
        ("config", 1),
        ("monitor", 2),
        ("gpu0/gi0/access", 3),
    ]
    assert [node.path for node in asked.imex_nodes] == ["/dev/nvidia-caps-imex-channels/channel7"]
    assert asked.notes == (f"{tree.root}/dev/nvidia-caps-imex-channels/channel8 is missing",)
    assert asked.imex.there == ("channel7",)
    assert "nvidia-caps-imex-channels is not in /proc/devices" in asked.imex.obstacle


MAJORS = (("nvidia", 195), ("nvidia-caps-imex-channels", 238))


def channels(tree: HostTree, *missing: str, strict: bool = True) -> ImexHost:
    with Root(str(tree.root)) as dev, Root(str(tree.proc)) as proc:
        return look_at_channels(dev, proc, MAJORS, missing, strict=strict)


# texts of params, channel that is asked for, what stands in the way
OBSTACLES = [
    ("ModifyDeviceFiles: 0\nDeviceFileMode: 438\n", "3", "ModifyDeviceFiles is 0"),
    ("ModifyDeviceFiles: 1\nImexChannelCount: 4\n", "4", "the driver has 4 channels (ImexChannelCount), channel 4"),
    ("ModifyDeviceFiles: 1\nImexChannelCount: 4\n", "3", ""),
    ("ModifyDeviceFiles: 1\nImexChannelCount: x\n", "2047", ""),
    ("ModifyDeviceFiles: 1\n", "2048", "the driver has 2048 channels (ImexChannelCount), channel 2048"),
    ("ModifyDeviceFiles: 1\nImexChannelCount: 0\n", "0", "the driver has 0 channels (ImexChannelCount), channel 0"),
    ("", "1", ""),
]


@pytest.mark.parametrize(("params", "channel", "obstacle"), OBSTACLES)
def test_what_stands_in_the_way_of_a_channel(tree: HostTree, params: str, channel: str, obstacle: str) -> None:
    """A node is wanted with the driver's own mode, unless the driver or the kernel has a say against it."""
    write(tree.proc, "/driver/nvidia/params", params + "DeviceFileMode: 432\nDeviceFileGID: 44\n")
    for number in (10, 2):
        tree.add_node(f"/dev/nvidia-caps-imex-channels/channel{number}", 238, number)
    found = channels(tree, channel)
    assert found.there == ("channel2", "channel10")
    assert obstacle in found.obstacle if obstacle else not found.obstacle
    assert [(node.path.rpartition("/")[2], node.major, node.minor, node.mode, node.gid) for node in found.wanted] == (
        [] if obstacle else [(f"channel{channel}", 238, int(channel), 0o660, 44)]
    )
    assert "user namespace" in channels(tree, channel, strict=False).obstacle


def test_node_sets_that_are_asked_for(tree: HostTree) -> None:
    """A set without nodes says where they were looked for, and its files do not count."""
    tree.add_everything()
    tree.add_node("/dev/nvidia-fs0", 240, 0)
    tree.write("/etc/cufile.json", "{}")
    found = discover(tree.policy, COMPUTE, environ_path="", nvml=False, extras=("gds", "gdrcopy")).node_sets
    assert [(one.name, [node.path for node in one.nodes], one.files) for one in found] == [
        ("gds", ["/dev/nvidia-fs0"], ("/etc/cufile.json",)),
        ("gdrcopy", [], ()),
    ]
    assert found[1].searched == f"{tree.root}/dev/gdrdrv"


def test_parts_that_the_node_leaves_out(tree: HostTree) -> None:
    tree.add_everything()
    tree.add_socket("/run/nvidia-persistenced/socket")
    full = discover(tree.policy, COMPUTE, environ_path="", nvml=False).driver
    assert full.firmware
    assert "nvidia-persistenced" in {one.name for one in full.sockets}
    policy = tree.policy.replace(leave_out=("gsp-firmware", "nvidia-persistenced"))
    less = discover(policy, COMPUTE, environ_path="", nvml=False).driver
    assert less.firmware == ()
    assert "nvidia-persistenced" not in {one.name for one in less.sockets}


def test_nothing_stays_open_and_pynvml_stays_out(tree: HostTree) -> None:
    """Discovery without NVML neither imports its module nor leaves descriptors, on success and on failure."""
    tree.add_everything()
    before = sorted(os.listdir("/proc/self/fd"))
    loaded = set(sys.modules)
    discover(tree.policy, DRIVER_CAPABILITIES, environ_path=SEARCH_PATH, nvml=False)
    assert "pynvml" not in set(sys.modules) - loaded
    (tree.root / "dev/nvidiactl").unlink()
    with pytest.raises(HostError):
        discover(
            tree.policy.replace(roots=tree.policy.roots.replace(dev=str(tree.root))),
            COMPUTE,
            environ_path="",
            nvml=False,
        )
    assert sorted(os.listdir("/proc/self/fd")) == before
