"""Expectations: short words expand to what the original was seen to do."""

from typing import Any

import pytest

from nvconform.case import Case, Container, Expectation, Injected, Less, More
from nvconform.casefile import load_sets
from nvconform.expect import Expander, View

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
ALL = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")

# Capabilities, then the numbers of libraries, binaries, device nodes that the original showed for two GPUs.
OBSERVED = [
    (("compute", "utility"), 11, 6, 5),
    (ALL, 27, 6, 6),
    (("utility",), 2, 4, 3),
    (("graphics",), 12, 0, 3),
    (("video",), 12, 0, 5),
    (("display",), 12, 0, 4),
    (("ngx",), 1, 0, 3),
    (("compat32", "compute"), 9, 2, 5),
]


def expand(injected: Injected, machine: str = "two-h100", image: str = "deb", **nodes: tuple[int, int, int]) -> View:
    case = Case("id", "title", "source", Expectation(injected=injected), machine=machine, container=Container(image))
    return Expander(case, injected, sets(), nodes, real_numbers=not nodes).expand()


def sets() -> dict[str, Any]:
    return load_sets()


@pytest.mark.parametrize(("capabilities", "libraries", "binaries", "nodes"), OBSERVED)
def test_capabilities_expand_to_the_observed_numbers(
    capabilities: tuple[str, ...], libraries: int, binaries: int, nodes: int
) -> None:
    view = expand(Injected(gpus=(0, 1), capabilities=capabilities))
    assert len([path for path in view.mounts if path.startswith(LIBRARIES)]) == libraries
    assert len([path for path in view.mounts if path.startswith("/usr/bin/")]) == binaries
    assert len(view.nodes) == nodes
    assert len(view.rules) == nodes


def test_one_gpu_in_all_its_places() -> None:
    view = expand(Injected(gpus=(1,), capabilities=("utility",)))
    assert view.nodes == {"/dev/nvidiactl": "195:255 0666", "/dev/nvidia1": "195:1 0666"}
    assert view.rules == ["c 195:255 rw", "c 195:1 rw"]
    assert view.mounts["/dev/nvidia1"] == "ro,nosuid,noexec nvidia1"
    assert view.mounts["/proc/driver/nvidia/gpus/0000:18:00.0"] == "ro,nosuid,nodev,noexec 0000:18:00.0"
    assert view.mounts["/proc/driver/nvidia"] == "rw,nosuid,nodev,noexec tmpfs"
    assert view.links == {
        f"{LIBRARIES}/libnvidia-ml.so.1": "libnvidia-ml.so.570.133.20",
        f"{LIBRARIES}/libnvidia-cfg.so.1": "libnvidia-cfg.so.570.133.20",
    }
    assert f"libnvidia-ml.so.1 (64) {LIBRARIES}/libnvidia-ml.so.1" in view.cache


def test_libraries_follow_the_image() -> None:
    view = expand(Injected(gpus=(0,)), image="rpm")
    assert "/usr/lib64/libcuda.so.570.133.20" in view.mounts
    assert view.links["/usr/lib64/libcuda.so"] == "libcuda.so.1"


def test_mig_devices_use_the_kernels_arithmetic() -> None:
    view = expand(Injected(gpus=(0,), capabilities=("ngx",), mig=("0/1/0", "0/2/0")), machine="mig-h100")
    assert [path for path in view.nodes if "caps" in path] == [
        f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (12, 13, 21, 22)
    ]
    assert "/proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access" in view.mounts


def test_mig_management_shows_the_folder_and_allows_every_capability() -> None:
    view = expand(Injected(gpus=(0, 1), mig_management=("config", "monitor")))
    assert view.mounts["/dev/nvidia-caps"] == "rw,nosuid,noexec nvidia-caps"
    assert len(view.rules) == 277


def test_numbers_come_from_the_machine_where_it_cannot_have_real_nodes() -> None:
    view = expand(Injected(gpus=(0,), capabilities=("ngx",)), nvidia0=(1, 3, 0o666), nvidiactl=(1, 3, 0o666))
    assert set(view.nodes.values()) == {"1:3 0666"}


def test_amendments_add_remove_and_move() -> None:
    view = expand(
        Injected(
            gpus=(0,),
            capabilities=("utility",),
            moved={"/usr/bin": "/opt", "/dev": "/tmp/dev"},
            also=More(cache=("libx.so.1 (64) <libraries>/libx.so.<version>",), links={"/a": "b"}),
            without=Less(links=("libnvidia-ml.so.1",), mounts=("nvidia-smi",)),
        )
    )
    assert "/tmp/dev/nvidia0" in view.nodes
    assert "/opt/nvidia-debugdump" in view.mounts
    assert "/opt/nvidia-smi" not in view.mounts
    assert view.links["/a"] == "b"
    assert f"{LIBRARIES}/libnvidia-ml.so.1" not in view.links
    assert f"libx.so.1 (64) {LIBRARIES}/libx.so.570.133.20" in view.cache


def test_a_machine_that_lists_what_containers_get() -> None:
    """The same files for all, the nodes of each device, and nothing that depends on capabilities or the image."""
    both = expand(Injected(gpus=(0, 1), capabilities=("graphics",)), machine="igx-orin", image="rpm")
    first = expand(Injected(gpus=(0,)), machine="igx-orin")
    none = expand(Injected(gpus=()), machine="igx-orin")
    assert both.links == first.links == none.links
    assert both.cache == first.cache == none.cache
    assert none.nodes == {}
    assert both.nodes["/dev/dri/card1"] == "226:1 0660"
    assert "/dev/nvidia1" not in first.nodes
    assert len(both.rules) == len(set(both.rules))
    assert {path for path in none.mounts if path in first.mounts} == set(none.mounts)


def test_without_rules_there_are_none() -> None:
    assert expand(Injected(gpus=(0, 1), rules=False)).rules == []
