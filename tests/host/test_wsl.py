"""WSL 2: how it is recognised, which driver store is NVIDIA's in use, and what of it containers get.

The machines are declared ones with a libdxcore.so that answers; no answer is made up here.
"""

import subprocess
from pathlib import Path

import pytest

from nvfakes import declaration, tree
from nvinject.core.model import HostLink, Inventory
from nvinject.core.policy import Policy, Roots
from nvinject.core.request import ContainerRequest
from nvinject.errors import HostError
from nvinject.host import platforms
from nvinject.host.dxcore import Adapter, DxcoreAnswer, ask_dxcore, parse_answer
from nvinject.host.wsl import Wsl
from tests.machines import require_machines

STORES = "/usr/lib/wsl/drivers"
NVIDIA = f"{STORES}/nv_dispi.inf_amd64_4f1cd0b22a6bf3a1"
INTEL = f"{STORES}/iigd_dch.inf_amd64_0f5b0a6c4d3e2f1a"
DXCORE = "/usr/lib/wsl/lib/libdxcore.so"
SECONDS = 10


def write(machine: str, folder: Path) -> Policy:
    """Write a machine, by its name or its text, and return the policy that leads to it."""
    require_machines(folder)
    found = declaration.parse(machine, "machine.yaml", "machine") if "\n" in machine else declaration.load(machine)
    tree.write_tree(found, folder)
    (folder / "proc").mkdir(exist_ok=True)
    return Policy(roots=Roots(driver=str(folder), dev=str(folder), proc=f"{folder}/proc", sys=f"{folder}/sys"))


def describe(*adapters: str, stores: tuple[str, ...], extra: str = "") -> str:
    """Return the text of a machine whose driver stores hold nothing but CUDA."""
    libraries = "".join(f"  {store}/libcuda.so.1.1: libcuda.so.1\n" for store in stores)
    return (
        f"adapters: [{', '.join(adapters)}]\nnodes: {{/dev/dxg: '10:58'}}\n{extra}"
        f"libraries:\n  {DXCORE}: libdxcore.so\n{libraries}"
    )


def discover(policy: Policy, *, facts: bool = False) -> Inventory:
    platform = platforms.find_platform(policy)
    assert isinstance(platform, Wsl)
    return platform.discover(facts=facts)


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Return a laptop with an adapter of Intel's and one of NVIDIA's."""
    return write("wsl2", tmp_path_factory.mktemp("wsl2"))


def test_files_of_the_store(laptop: Policy) -> None:
    """Libraries, programs and data in place; loaders are no libraries for the loader; nothing for Windows alone."""
    inventory = discover(laptop)
    assert [library.path for library in inventory.driver.libraries] == [
        DXCORE,
        *(
            f"{NVIDIA}/{name}"
            for name in (
                "libcuda.so.1.1",
                "libcudadebugger.so.1",
                "libnvcuvid.so.1",
                "libnvdxgdmal.so.1",
                "libnvidia-ml.so.1",
                "libnvidia-ptxjitcompiler.so.1",
            )
        ),
    ]
    assert all(library.in_place for library in inventory.driver.libraries)
    listing = inventory.listing
    assert listing is not None
    names = ("libcuda_loader.so", "libnvidia-ml_loader.so", "nvcubins.bin", "nvidia-smi", "nvwgf2umx.dll")
    assert [file.path for file in listing.files] == [f"{NVIDIA}/{name}" for name in names]
    assert listing.links == (HostLink(path="/usr/bin/nvidia-smi", target=f"{NVIDIA}/nvidia-smi"),)
    assert inventory.notes == ()


def test_the_one_device(laptop: Policy) -> None:
    """It has the index 0 and no other name."""
    (gpu,) = discover(laptop).gpus
    assert (gpu.index, gpu.uuid, gpu.bus_id, gpu.node) == (0, "", "", None)
    assert [(node.path, node.major, node.minor) for node in gpu.more_nodes] == [("/dev/dxg", 10, 58)]


def test_versions_are_asked_for_only_where_they_are_needed(laptop: Policy) -> None:
    """A requirement of any kind needs them, because no kernel module tells the driver's version."""
    assert discover(laptop).driver.version == ""
    platform = Wsl(laptop)
    request = ContainerRequest(devices=("all",), capabilities=("compute",), requirements=(("R", "driver>=500"),))
    for inventory in (platform.discover_for(request, facts=False), platform.discover_all()):
        assert (inventory.driver.version, inventory.driver.cuda_version) == ("581.80", "13.0")
        assert (inventory.gpus[0].architecture, inventory.gpus[0].brand) == ("8.9", "GeForce")
    assert platform.discover_for(request.replace(requirements=()), facts=False).driver.version == ""


def test_a_host_with_the_kernel_module_is_like_any_other(tmp_path: Path) -> None:
    """A virtual machine below Windows can have both; the sign is the folder that WSL mounts."""
    policy = Policy(roots=Roots(driver=str(tmp_path), proc=f"{tmp_path}/proc", sys=str(tmp_path)))
    assert platforms.find_platform(policy) is None
    (tmp_path / "usr/lib/wsl/lib").mkdir(parents=True)
    for mode in ("auto", "jit-cdi", "legacy"):
        assert isinstance(platforms.choose_platform(policy.replace(mode=mode)), Wsl)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    assert platforms.find_platform(policy) is None
    assert platforms.choose_platform(policy.replace(mode="legacy")) is None


OTHER = f"{STORES}/nvlt.inf_amd64_2222"
FOUND = [
    (describe(f"{{store: {INTEL}}}", f"{{store: {NVIDIA}}}", stores=(NVIDIA, OTHER)), NVIDIA, ""),
    (describe(f"{{store: {OTHER}}}", f"{{store: {NVIDIA}}}", stores=(NVIDIA, OTHER)), OTHER, "several adapters have"),
    (describe(f"{{store: {NVIDIA}}}", f"{{store: {NVIDIA}}}", stores=(NVIDIA,)), NVIDIA, ""),
    (describe(f"{{store: {OTHER}, wddm: 2600}}", f"{{store: {NVIDIA}}}", stores=(NVIDIA, OTHER)), NVIDIA, ""),
    (describe(f"{{store: {NVIDIA}, compute_only: true}}", stores=(NVIDIA, OTHER)), NVIDIA, ""),
]


@pytest.mark.parametrize(("machine", "store", "note"), FOUND)
def test_which_store(machine: str, store: str, note: str, tmp_path: Path) -> None:
    """The first adapter of a driver model that is new enough, whose store has CUDA; other folders do not count."""
    inventory = discover(write(machine, tmp_path))
    assert [library.path for library in inventory.driver.libraries] == [DXCORE, f"{store}/libcuda.so.1.1"]
    told = [one for one in inventory.notes if "lacks" not in one]
    assert (len(told), note in "".join(told)) == (bool(note), True)
    assert f"{store} lacks libcuda_loader.so, libnvidia-ptxjitcompiler.so.1, libnvidia-ml.so.1" in inventory.notes[-1]


SPOILT = [
    ((NVIDIA,), f"{NVIDIA}/libcuda.so.1.1", ""),
    ((NVIDIA, OTHER), "", f"{NVIDIA}, {OTHER} all have libcuda.so.1.1"),
    ((), "", f"no folder of {STORES} has libcuda.so.1.1"),
]


@pytest.mark.parametrize(("stores", "library", "message"), SPOILT)
def test_a_dxcore_that_cannot_be_asked(stores: tuple[str, ...], library: str, message: str, tmp_path: Path) -> None:
    """The only folder that could be meant is taken, with a note; nobody guesses between two."""
    policy = write(describe(f"{{store: {NVIDIA}}}", stores=stores), tmp_path)
    (tmp_path / DXCORE[1:]).write_text("no library")
    if library:
        inventory = discover(policy)
        assert inventory.driver.libraries[-1].path == library
        assert "dxcore does not tell the driver's folder" in inventory.notes[0]
        return
    with pytest.raises(HostError, match="dxcore does not tell the driver's folder") as refused:
        discover(policy)
    assert message in refused.value.message


REFUSED = [
    (describe(f"{{store: {INTEL}}}", stores=(NVIDIA,)), f"no adapter of Windows is NVIDIA's: .*{INTEL} lacks libcuda"),
    (describe(stores=(NVIDIA,)).replace("libdxcore.so:", "libd3d12.so:"), "this is WSL, but .*libdxcore.so is missing"),
    (describe(f"{{store: {NVIDIA}, wddm: 2600}}", stores=(NVIDIA,)), "has a driver model of 2600, and 2700 is needed"),
    (
        describe(f"{{store: {NVIDIA}}}", stores=(NVIDIA,)).replace("/dev/dxg", "/dev/dxh"),
        "device .*/dev/dxg is missing",
    ),
]


@pytest.mark.parametrize(("machine", "message"), REFUSED)
def test_what_is_missing_is_named(machine: str, message: str, tmp_path: Path) -> None:
    """Each with what mends it in Windows."""
    with pytest.raises(HostError, match=message) as refused:
        discover(write(machine, tmp_path))
    assert "wsl --update" in refused.value.hint


def test_what_dxcore_answers(laptop: Policy) -> None:
    """Adapters in Windows' order."""
    answer = ask_dxcore(laptop.roots.driver + DXCORE, SECONDS)
    assert answer == DxcoreAnswer(adapters=(Adapter(wddm=3200, store=INTEL), Adapter(wddm=3200, store=NVIDIA)))


def test_a_library_without_the_calls_is_a_problem(laptop: Policy) -> None:
    """It is named with what it lacks."""
    answer = ask_dxcore(f"{laptop.roots.driver}{NVIDIA}/libcuda.so.1.1", SECONDS)
    assert answer.adapters == ()
    assert answer.problem.endswith("has no D3DKMTEnumAdapters2 and no D3DKMTQueryAdapterInfo")


ODD = [
    ("for (;;) pause();", "libdxcore did not answer within 0.3 s"),
    ("return kill(getpid(), SIGKILL);", "libdxcore crashed: its process died of signal 9"),
]


@pytest.mark.parametrize(("body", "message"), ODD)
def test_a_library_that_hangs_or_crashes(body: str, message: str, tmp_path: Path) -> None:
    """It takes nobody with it, and the remedy is in Windows."""
    require_machines(tmp_path)
    source, library = tmp_path / "dxcore.c", tmp_path / "libdxcore.so"
    calls = "".join(f"int {name}(void) {{ {body} }}\n" for name in ("D3DKMTEnumAdapters2", "D3DKMTQueryAdapterInfo"))
    source.write_text(f"#include <signal.h>\n#include <unistd.h>\n{calls}")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True, timeout=60)
    with pytest.raises(HostError, match=message) as refused:
        ask_dxcore(str(library), 0.3)
    assert "wsl --shutdown" in refused.value.hint


ANSWERS = [
    ("", DxcoreAnswer()),
    ("adapter\t2700\t/a b\n", DxcoreAnswer(adapters=(Adapter(wddm=2700, store="/a b"),))),
    (
        "problem\tone\nadapter\t3000\t/c\nproblem\ttwo\n",
        DxcoreAnswer(adapters=(Adapter(wddm=3000, store="/c"),), problem="one; two"),
    ),
]


@pytest.mark.parametrize(("text", "answer"), ANSWERS)
def test_lines_of_the_child(text: str, answer: DxcoreAnswer) -> None:
    """One adapter or problem a line."""
    assert parse_answer(text) == answer
