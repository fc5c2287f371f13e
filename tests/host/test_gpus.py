"""GPUs, MIG devices and their nodes from procfs and the device root."""

import pytest

from nvinject.core.model import DeviceNode, Gpu
from nvinject.host.gpus import Nodes, find_gpus, parse_pci_address
from nvinject.host.root import Root

from .machine import HostTree, gpu_uuid, write

MAJORS = (("nvidia", 195), ("nvidia-caps", 237))


def find(
    tree: HostTree, majors: tuple[tuple[str, int], ...] = MAJORS, *, strict: bool = True
) -> tuple[tuple[Gpu, ...], list[str]]:
    """Return the GPUs of a tree and the notes."""
    with Root(str(tree.proc)) as proc, Root(str(tree.root)) as dev:
        nodes = Nodes(dev, majors, strict=strict)
        return find_gpus(proc, nodes), nodes.notes


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:17:00.0", "0000:17:00.0"),
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("10000:01:00.1", "10000:01:00.1"),
        ("0000:17", None),
        ("", None),
        ("wsl", None),
    ],
)
def test_pci_address(text: str, address: str | None) -> None:
    """An address is compared by its numbers, whatever its width and case."""
    parsed = parse_pci_address(text)
    assert (parsed and parsed.in_sysfs()) == address


def test_pci_order(tree: HostTree) -> None:
    """Indices follow PCI addresses as numbers; minors and the order of names do not matter."""
    tree.add_gpu(0, "10000:01:00.0")
    tree.add_gpu(1, "0000:ca:00.0")
    tree.add_gpu(2, "0000:3b:00.0")
    gpus, notes = find(tree)
    assert [(gpu.index, gpu.minor, gpu.bus_id) for gpu in gpus] == [
        (0, 2, "0000:3b:00.0"),
        (1, 1, "0000:ca:00.0"),
        (2, 0, "10000:01:00.0"),
    ]
    assert notes == []


def test_old_driver_names(tree: HostTree) -> None:
    """Old drivers wrote eight digits of domain; the folder keeps its name, the bus id is that of sysfs."""
    tree.add_gpu(0, "00000000:3B:00.0")
    gpus, _ = find(tree, (("nvidia-frontend", 195),))
    assert gpus[0].bus_id == "0000:3b:00.0"
    assert gpus[0].proc_directory == "/proc/driver/nvidia/gpus/00000000:3B:00.0"
    assert gpus[0].node == DeviceNode(path="/dev/nvidia0", major=195, minor=0)


def test_left_out(tree: HostTree) -> None:
    """Excluded GPUs have no index; a folder without information is told; a name that is no address is no GPU."""
    tree.add_gpu(0, "0000:17:00.0", extra="GPU Excluded:\t Yes\n", node=False)
    tree.add_gpu(1, "0000:18:00.0")
    (tree.proc / "driver/nvidia/gpus/0000:19:00.0").mkdir()
    write(tree.proc, "/driver/nvidia/gpus/other/information", "")
    gpus, notes = find(tree)
    assert [(gpu.index, gpu.minor) for gpu in gpus] == [(0, 1)]
    assert notes == [
        "the GPU at 0000:17:00.0 is excluded by the driver and is left out",
        "the GPU at 0000:19:00.0 has no information file and is left out",
    ]


def test_unknown_uuid(tree: HostTree) -> None:
    """Before its first use a GPU has no UUID yet."""
    tree.add_gpu(0, "0000:17:00.0", uuid="GPU-????????-????-????-????-????????????")
    assert find(tree)[0][0].uuid == ""


def test_faults_of_nodes_do_not_stop_discovery(tree: HostTree) -> None:
    """A missing or wrong node concerns only who gets the GPU: it is recorded with its GPU."""
    tree.add_gpu(0, "0000:17:00.0", node=False)
    tree.add_gpu(1, "0000:18:00.0")
    tree.add_node("/dev/nvidia1", 195, 7)
    tree.add_gpu(2, "0000:19:00.0", node=False)
    tree.link("/dev/nvidia2", "nvidia1")
    gpus, notes = find(tree)
    assert [gpu.node for gpu in gpus] == [None, None, None]
    assert [gpu.node_fault for gpu in gpus] == [
        f"{tree.root}/dev/nvidia0 is missing",
        f"{tree.root}/dev/nvidia1 is device 195:7, the driver's is 195:1",
        f"{tree.root}/dev/nvidia2 is a symbolic link, not a character device",
    ]
    assert notes == []


def test_in_a_user_namespace_nodes_are_taken_as_they_are(tree: HostTree) -> None:
    """Where nobody can make nodes a node of another number is used, with its own number and a note."""
    tree.add_gpu(0, "0000:17:00.0", node=False)
    tree.add_node("/dev/nvidia0", 1, 3)
    gpus, notes = find(tree, strict=False)
    assert gpus[0].node == DeviceNode(path="/dev/nvidia0", major=1, minor=3)
    assert notes == [f"{tree.root}/dev/nvidia0 is device 1:3, the driver's is 195:0; taken as it is"]


def test_mig_devices(tree: HostTree) -> None:
    """Slices are counted by GPU instance and compute instance, each with two capability files and two nodes."""
    tree.add_gpu(0, "0000:17:00.0")
    tree.add_gpu(1, "0000:18:00.0")
    management = tree.proc / "driver/nvidia/capabilities/mig/config"
    management.parent.mkdir(parents=True)
    management.touch()
    for gpu_instance, compute_instance in ((10, 0), (2, 0), (2, 1)):
        tree.add_mig(0, gpu_instance, compute_instance)
    gpus, notes = find(tree)
    assert [(mig.gpu_instance, mig.compute_instance) for mig in gpus[0].mig_devices] == [(2, 0), (2, 1), (10, 0)]
    first = gpus[0].mig_devices[0]
    assert first.capability_files == (
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access",
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access",
    )
    assert [(node.path, node.major, node.minor) for node in first.nodes] == [
        ("/dev/nvidia-caps/nvidia-cap21", 237, 21),
        ("/dev/nvidia-caps/nvidia-cap22", 237, 22),
    ]
    assert (first.index, first.uuid, first.node_fault) == (-1, "", "")
    assert [gpu.mig_capable for gpu in gpus] == [True, True]
    assert gpus[1].mig_devices == ()
    assert notes == []


def test_mig_without_nodes(tree: HostTree) -> None:
    """A driver without the nvidia-caps class has files only; with it, a missing node is the slice's fault."""
    tree.add_gpu(0, "0000:17:00.0")
    tree.add_mig(0, 1, 0, node=False)
    old = find(tree, (("nvidia", 195),))[0][0].mig_devices[0]
    assert (old.nodes, old.node_fault, len(old.capability_files)) == ((), "", 2)
    broken = find(tree)[0][0].mig_devices[0]
    caps = f"{tree.root}/dev/nvidia-caps"
    assert broken.nodes == ()
    assert broken.node_fault == f"{caps}/nvidia-cap12 is missing; {caps}/nvidia-cap13 is missing"


@pytest.mark.parametrize(
    ("uuid", "minor"),
    [(gpu_uuid(3), 3)],
)
def test_node_attributes(tree: HostTree, uuid: str, minor: int) -> None:
    """Mode and owner of a node are those of the host."""
    tree.add_gpu(minor, "0000:17:00.0", uuid=uuid)
    (tree.root / f"dev/nvidia{minor}").chmod(0o640)
    gpus, _ = find(tree)
    assert gpus[0].node is not None
    assert (gpus[0].node.mode, gpus[0].uuid) == (0o640, uuid)


NESTED = [
    ("ModifyDeviceFiles: 0\n", [0, 1], [1, 3]),
    ("ModifyDeviceFiles: 1\n", [0, 1, 2, 3], [0, 1, 2, 3]),
    ("", [0, 1, 2, 3], [0, 1, 2, 3]),
]


@pytest.mark.parametrize(("params", "indices", "minors"), NESTED)
def test_a_nested_node_has_the_gpus_whose_nodes_it_was_given(
    tree: HostTree, params: str, indices: list[int], minors: list[int]
) -> None:
    """Where the driver's libraries make no nodes, somebody else has decided; elsewhere a missing node is a fault."""
    for minor in range(4):
        tree.add_gpu(minor, f"0000:{0x17 + minor:02x}:00.0", node=minor in {1, 3})
    write(tree.proc, "/driver/nvidia/params", f"ResmanDebugLevel: 4294967295\n{params}")
    gpus, notes = find(tree)
    assert [gpu.index for gpu in gpus] == indices
    assert [gpu.minor for gpu in gpus] == minors
    expected = "the GPU at 0000:17:00.0 is left out: " if len(minors) == 2 else ""
    assert [note for note in notes if expected and note.startswith(expected)] == notes[:1]


def test_a_wrong_node_of_a_nested_node_is_a_fault(tree: HostTree) -> None:
    """Somebody gave it something, but the wrong thing."""
    tree.add_gpu(0, "0000:17:00.0", node=False)
    tree.write("/dev/nvidia0")
    write(tree.proc, "/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    gpus, _ = find(tree)
    assert "not a character device" in gpus[0].node_fault
