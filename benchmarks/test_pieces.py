"""The pieces of a container start, each by itself: for finding out which of them a change made slower.

Whole processes are timed by `python -m benchmarks`. No limit is set here: a time depends on the machine.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import scene
from nvconform.image import shared_object
from nvfakes import declaration, tree
from nvinject.config import load_policy
from nvinject.core.model import ContainerLayout
from nvinject.core.plan import LoaderLibrary, UpdateLoaderCache
from nvinject.core.planner import plan
from nvinject.core.policy import Policy, Roots
from nvinject.core.request import read_request
from nvinject.core.requirements import HostFacts, check
from nvinject.core.sources import ContainerSpec, might_ask
from nvinject.formats.elf import read_elf
from nvinject.formats.oci import parse_spec
from nvinject.host.inventory import discover
from nvinject.render.loadercache import build_cache

CONFIGURATION = Path(__file__).parent / "config.toml"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ASKS = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
# As in the hook, which never lives long enough for a collection.
pytestmark = pytest.mark.benchmark(disable_gc=True)
REQUIREMENT = (
    "cuda>=12.6 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=550"
)
FACTS = HostFacts(driver="570.133.20", cuda="12.8", arch="9.0", brand="nvidia")
INJECTED = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
LAYOUT = ContainerLayout(library_directory=f"/{scene.LIBRARY_DIRECTORY}")


@pytest.fixture(scope="module", params=[2, 8, 16], ids=lambda count: f"{count} GPUs")
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Return the settings of a host that is a tree."""
    root = tmp_path_factory.mktemp("host")
    if not tree.can_make_nodes(root):
        pytest.skip("device nodes cannot be made here (needs root, and a file system that takes them)")
    tree.write_tree(declaration.load(f"h100x{request.param}"), root)
    return Policy(roots=Roots(driver=str(root), dev=str(root), proc=f"{root}/proc", sys=f"{root}/sys"))


@pytest.fixture(params=[10, 2000, 10000], ids=lambda count: f"{count} libraries")
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of an image's root; its cache is fresh."""
    if shutil.which("ldconfig") is None:
        pytest.skip("ldconfig is not installed (package libc-bin)")
    scene.build_image(tmp_path / "image", request.param, "fresh")
    descriptor = os.open(tmp_path / "image", os.O_PATH)
    yield descriptor
    os.close(descriptor)


def test_config_json(benchmark: BenchmarkFixture) -> None:
    """The container's description."""
    case = {"group": "hook", "implementation": "", "mounts": 40, "rules": 0, "environment": ASKS}
    data = json.dumps(scene.specification(case, "/x"), indent=1).encode()
    spec = benchmark(parse_spec, data, "config.json")
    assert spec.environment[-2:] == ASKS


def test_config_toml(benchmark: BenchmarkFixture) -> None:
    """The node's settings, as the original's tool writes them."""
    assert benchmark(load_policy, str(CONFIGURATION), True)[1] == ()  # noqa: FBT003 # as find_config answers


def test_leaving_early(benchmark: BenchmarkFixture) -> None:
    """What is decided for a container without GPUs."""
    spec = ContainerSpec(environment=("PATH=/bin", *(f"VARIABLE{n}=value" for n in range(50))))
    assert not benchmark(might_ask, spec)


def test_discover(benchmark: BenchmarkFixture, policy: Policy) -> None:
    """The host: driver, GPUs, files."""
    inventory = benchmark(look, policy)
    assert inventory.gpus


def test_plan(benchmark: BenchmarkFixture, policy: Policy) -> None:
    """From what is there and what is asked for to operations."""
    inventory = look(policy)
    request = read_request(ContainerSpec(environment=ASKS), policy)
    assert request is not None
    assert benchmark(plan, inventory, request, policy, LAYOUT).operations


def look(policy: Policy) -> Any:
    """Discover what a container with all capabilities could get."""
    return discover(policy, policy.supported_driver_capabilities, environ_path=PATH, nvml=False)


def test_loader_cache(benchmark: BenchmarkFixture, image: int) -> None:
    """A cache brought up to date with nothing new in the image."""
    directory = f"/{scene.LIBRARY_DIRECTORY}"
    libraries = tuple(LoaderLibrary(soname=name, path=f"{directory}/{name}") for name in INJECTED)
    operation = UpdateLoaderCache(reason="benchmark", directories=(directory,), libraries=libraries)
    assert b"libnvidia-ml.so.1" in benchmark(build_cache, image, operation, os.uname().machine)


def test_elf_header(benchmark: BenchmarkFixture) -> None:
    """One library that a cache does not know."""
    data = shared_object("libexample.so.1")
    header = benchmark(read_elf, reader(data), needed=False)
    assert header.soname == "libexample.so.1"


def reader(data: bytes) -> Callable[[int, int], bytes]:
    """Return what os.pread does, for bytes."""
    return lambda offset, size: data[offset : offset + size]


def test_requirements(benchmark: BenchmarkFixture) -> None:
    """What a CUDA image demands of a driver."""
    benchmark(check, (("NVIDIA_REQUIRE_CUDA", REQUIREMENT),), (FACTS,))
