"""GPUs in containers of LXC: through its own hook, which calls nvidia-container-cli, and through lines of CDI devices.

The hook is the file of LXC's package, as it is; what it finds under the name nvidia-container-cli is nvinject. Most
containers are unprivileged (their ids are mapped), which that hook insists on.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvconform.required import give_up

from .image import ImageError, build_image
from .lxc import HOOK, Lxc, LxcError, Outcome, find_missing

pytestmark = [pytest.mark.lxc, pytest.mark.xdist_group("lxc")]

MACHINE = """\
driver: {version: 570.133.20, cuda: "12.8"}
gpus:
  - {uuid: GPU-000000a0-1111-2222-3333-000000000000, bus: "0000:17:00.0", model: h100}
  - {uuid: GPU-000000a1-1111-2222-3333-000000000001, bus: "0000:18:00.0", model: h100}
sockets: [persistenced]
"""
GPUS = [f"GPU-000000a{n}-1111-2222-3333-00000000000{n}" for n in (0, 1)]
NUMBERS = {uuid: n for n, uuid in enumerate(GPUS)}
LIBRARIES = "usr/lib/x86_64-linux-gnu"
UUIDS = "nvidia-smi -L | sed 's/.*UUID: //; s/)//'"
LOOK = f"""\
{UUIDS}
ls /dev | grep nvidia | tr '\\n' ' '; echo
ls /proc/driver/nvidia/gpus | tr '\\n' ' '; echo
grep ModifyDeviceFiles /proc/driver/nvidia/params
for node in nvidia0 nvidia1 zero; do head -c1 /dev/$node 2>&1 | sed "s/.*: //; s/^/$node: /"; done
"""
ALLOWED, FORBIDDEN = "No such device or address", "Operation not permitted"


@pytest.fixture(scope="session")
def archive() -> bytes:
    """Build the image, or say what the host lacks."""
    missing = find_missing()
    if missing:
        give_up("lxc", missing)
    try:
        return build_image("deb")
    except ImageError as error:
        give_up("lxc", str(error))


def start(machine: str, archive: bytes, folder: Path) -> Iterator[Lxc]:
    """Return LXC on a machine, after a try whether containers can be had at all."""
    declaration = folder / "machine.yaml"
    declaration.write_text(machine)
    try:
        lxc = Lxc(str(declaration), archive)
    except LxcError as error:
        give_up("lxc", str(error))
    try:
        tried = lxc.execute(lxc.make_container(""), "true")
        if tried.code != 0:
            give_up("lxc", f"no unprivileged container of LXC: {(tried.err.strip().splitlines() or ['it fails'])[0]}")
        yield lxc
    finally:
        lxc.close()


@pytest.fixture(scope="session")
def lxc(archive: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lxc]:
    """Return LXC on a machine with two GPUs."""
    yield from start(MACHINE, archive, tmp_path_factory.mktemp("lxc"))


@pytest.fixture(scope="session")
def without_driver(archive: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lxc]:
    """Return LXC on a machine without driver."""
    yield from start("# nothing\n", archive, tmp_path_factory.mktemp("lxc-none"))


@pytest.fixture(scope="session")
def unloaded(archive: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lxc]:
    """Return LXC on a machine whose kernel module is not loaded."""
    yield from start(MACHINE + "deviate: {module: unloaded}\n", archive, tmp_path_factory.mktemp("lxc-unloaded"))


def with_hook(variables: dict[str, str], *, rules: bool = True) -> str:
    """Return the settings of a container that LXC's hook serves; the administrator allows the driver's devices."""
    allowed = ("c 195:* rw", "c 235:* rw") if rules else ()
    lines = [f"lxc.{group}.devices.allow = {rule}" for rule in allowed for group in ("cgroup", "cgroup2")]
    lines += [f"lxc.environment = {name}={value}" for name, value in variables.items()]
    return "".join(f"{line}\n" for line in (f"lxc.hook.mount = {HOOK}", *lines))


SEEN = [
    ({"NVIDIA_VISIBLE_DEVICES": "all"}, GPUS),
    ({"NVIDIA_VISIBLE_DEVICES": "1"}, GPUS[1:]),
    ({"NVIDIA_VISIBLE_DEVICES": "GPU-000000a0-1111-2222-3333-000000000000"}, GPUS[:1]),
    ({"NVIDIA_VISIBLE_DEVICES": "0,1", "NVIDIA_REQUIRE_CUDA": "cuda>=12.0 brand=tesla"}, GPUS),
    ({"CUDA_VERSION": "8.0.61"}, GPUS),
]


@pytest.mark.parametrize(("variables", "gpus"), SEEN)
def test_the_hook_of_lxc_shows_gpus(lxc: Lxc, variables: dict[str, str], gpus: list[str]) -> None:
    """The same GPUs to nvidia-smi, in /dev and in the driver's procfs."""
    variables = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", **variables}
    outcome = lxc.execute(lxc.make_container(with_hook(variables)), LOOK)
    assert outcome.code == 0, outcome.log
    lines = outcome.out.splitlines()
    numbers = [NUMBERS[uuid] for uuid in gpus]
    assert lines[: len(gpus)] == gpus
    nodes = [f"nvidia{number}" for number in numbers]
    assert lines[len(gpus)].split() == ["nvidia-uvm", "nvidia-uvm-tools", *nodes, "nvidiactl"]
    assert lines[len(gpus) + 1].split() == [f"0000:1{7 + number}:00.0" for number in numbers]
    assert lines[len(gpus) + 2] == "ModifyDeviceFiles: 0"
    for node in nodes:
        assert f"{node}: {ALLOWED}" in lines


@pytest.mark.parametrize("way", ["hook", "lines"])
def test_an_ordinary_user_has_gpus_in_containers(lxc: Lxc, way: str) -> None:
    """Who starts the container is not root, and neither is the hook; nobody's device rules are changed."""
    settings = with_hook({"NVIDIA_VISIBLE_DEVICES": "1", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}, rules=False)
    # The usual settings deny devices, which such a user may not.
    place = lxc.make_container(settings if way == "hook" else "")
    config = place / "config"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("lxc.cgroup")]
    config.write_text("".join(f"{line}\n" for line in lines))
    before = "true" if way == "hook" else inject(place, "1")
    outcome = lxc.execute(place, LOOK, before=before, by_user=True)
    assert outcome.code == 0, outcome.err + outcome.log
    assert outcome.out.splitlines()[0] == GPUS[1]
    assert "ModifyDeviceFiles: 0" in outcome.out


def test_capabilities_choose_files(lxc: Lxc) -> None:
    """The hook turns NVIDIA_DRIVER_CAPABILITIES into options; without it, it asks for `utility`."""
    for capabilities, there, absent in (("", "libnvidia-ml", "libcuda"), ("compute", "libcuda", "libnvidia-ml")):
        chosen = {"NVIDIA_DRIVER_CAPABILITIES": capabilities} if capabilities else {}
        place = lxc.make_container(with_hook({"NVIDIA_VISIBLE_DEVICES": "all", **chosen}))
        outcome = lxc.execute(place, f"ls /{LIBRARIES}")
        assert there in outcome.out, outcome.log
        assert absent not in outcome.out


@pytest.mark.parametrize("variables", [{}, {"NVIDIA_VISIBLE_DEVICES": "void"}, {"NVIDIA_VISIBLE_DEVICES": ""}])
def test_a_container_that_asks_for_nothing_gets_nothing(without_driver: Lxc, variables: dict[str, str]) -> None:
    """And depends on nothing."""
    outcome = without_driver.execute(without_driver.make_container(with_hook(variables)), "ls /dev | grep nvidia")
    assert (outcome.code, outcome.out) == (1, ""), outcome.log
    assert "nvidia-container-cli" not in outcome.log


def test_the_rules_are_the_administrators(lxc: Lxc) -> None:
    """The hook leaves cgroups alone (--no-cgroups): a node without a rule is there and cannot be opened."""
    place = lxc.make_container(with_hook({"NVIDIA_VISIBLE_DEVICES": "0"}, rules=False))
    outcome = lxc.execute(place, "head -c1 /dev/nvidia0; true")
    assert outcome.code == 0, outcome.log
    assert FORBIDDEN in outcome.err


def message_of(outcome: Outcome) -> str:
    """Return what nvidia-container-cli said; LXC's log may have several lines of a hook as one of its own."""
    found = re.findall(r"^(?:.*produced output: )?(nvidia-container-cli: .*)$", outcome.log, re.MULTILINE)
    assert len(found) == 1, outcome.log
    return str(found[0])


FAILURES = [
    ({"NVIDIA_VISIBLE_DEVICES": "7"}, ("device error: 7: unknown device", "GPU-000000a0")),
    ({"NVIDIA_VISIBLE_DEVICES": "0,GPU-nonsense"}, ("device error: GPU-nonsense: unknown device",)),
    (
        {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_REQUIRE_CUDA": "cuda>=99.9"},
        ("requirement error: unsatisfied condition: ", "cuda>=99.9", "12.8"),
    ),
    (
        {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_REQUIRE_DRIVER": "driver=>1"},
        ("requirement error: --require is malformed",),
    ),
]


@pytest.mark.parametrize(("variables", "words"), FAILURES)
def test_a_refusal_stops_the_container(lxc: Lxc, variables: dict[str, str], words: tuple[str, ...]) -> None:
    """One line with the cause is in LXC's log, and nothing was started or left in the root file system."""
    place = lxc.make_container(with_hook(variables))
    before = sorted(str(path) for path in (place / "rootfs").rglob("*"))
    outcome = lxc.execute(place, "echo started")
    assert outcome.code != 0
    assert "started" not in outcome.out
    message = message_of(outcome)
    for word in words:
        assert word in message
    assert f"failed: {words[0].partition(': ')[2]}" in (place / "hook/nvidia.log").read_text()
    left = set(map(str, (place / "rootfs").rglob("*"))) - set(before) - {str(place / "rootfs/proc/driver")}
    assert left == set()


def test_a_missing_driver_stops_the_container(without_driver: Lxc, unloaded: Lxc) -> None:
    """Absent is told apart from not loaded."""
    for lxc, cause in ((without_driver, "there is no NVIDIA driver"), (unloaded, "kernel module is not loaded")):
        outcome = lxc.execute(lxc.make_container(with_hook({"NVIDIA_VISIBLE_DEVICES": "all"})), "echo started")
        assert outcome.code != 0
        assert message_of(outcome).startswith("nvidia-container-cli: detection error: ")
        assert cause in message_of(outcome)


def test_a_started_container_keeps_its_gpus(lxc: Lxc) -> None:
    """lxc-start, a command from outside, lxc-stop: the way of long-lived containers."""
    variables = {"NVIDIA_VISIBLE_DEVICES": "1", "NVIDIA_DRIVER_CAPABILITIES": "all"}
    place = lxc.make_container(with_hook(variables))
    name = f"-n {place.name} -P {lxc.folder}"
    done = lxc.on_machine(
        f"lxc-start {name} -o {place}/log -l DEBUG; lxc-wait {name} -s RUNNING -t 20\n"
        f"lxc-attach {name} -- {UUIDS}; lxc-stop {name} -k"
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, GPUS[1:]), done.stderr + (place / "log").read_text()


# -- lines of CDI devices ----------------------------------------------------------------------------------------------

GENERATE = "mkdir -p /etc/cdi; nvinject cdi generate --output /etc/cdi/nvidia.json 2>/dev/null\n"


def inject(place: Path, *names: str) -> str:
    """Return the script that gives a container devices."""
    devices = " ".join(f"--device nvidia.com/gpu={name}" for name in names)
    return f"{GENERATE}nvinject cdi inject --format lxc {devices} --in-place {place}"


@pytest.mark.parametrize("mapped", [True, False], ids=["unprivileged", "privileged"])
@pytest.mark.parametrize("unified", [False, True], ids=["v1", "v2"])
def test_lines_of_a_device_show_it(lxc: Lxc, *, mapped: bool, unified: bool) -> None:
    """Without LXC's hook: nodes, rules, libraries and procfs of the one device, on cgroup v1 and on v2."""
    place = lxc.make_container("", mapped=mapped)
    outcome = lxc.execute(place, LOOK, before=inject(place, "1"), unified=unified)
    assert outcome.code == 0, outcome.log
    lines = outcome.out.splitlines()
    assert lines[0] == GPUS[1]
    assert lines[1].split() == ["nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia1", "nvidiactl"]
    assert lines[2].split() == ["0000:18:00.0"]
    assert lines[3] == "ModifyDeviceFiles: 0"
    assert lines[4] == "nvidia0: No such file or directory"
    assert lines[5] == f"nvidia1: {ALLOWED}"
    assert lines[6] == f"zero: {FORBIDDEN}"


def test_lines_of_all_devices_replace_those_of_one(lxc: Lxc) -> None:
    """A second call takes the lines of the first away; the rest of the file stays."""
    place = lxc.make_container("lxc.environment = OWN=kept\n")
    original = (place / "config").read_text()
    before = f"{inject(place, '0')}\n{inject(place, 'all')}"
    outcome = lxc.execute(place, f"{LOOK}echo $OWN $NVIDIA_VISIBLE_DEVICES", before=before)
    assert outcome.out.splitlines()[:2] == GPUS, outcome.log
    assert outcome.out.splitlines()[-1] == "kept void"
    text = (place / "config").read_text()
    assert text.startswith(original)
    assert text.count("nvinject cdi inject: begin") == 1


def test_a_path_with_blanks_arrives(lxc: Lxc) -> None:
    """Blanks, tabs, backslashes and quotes in the paths and variables of a spec, and groups beside them."""
    odd = 'a b\tc\\d"e'
    (lxc.folder / odd).write_text("here\n")
    # LXC gives groups where ids are not mapped and the first program is not root's.
    place = lxc.make_container("lxc.init.uid = 1000\nlxc.init.gid = 1000\n", mapped=False)
    (place / "odd.json").write_text(
        json.dumps(
            {
                "cdiVersion": "0.7.0",
                "kind": "example.com/odd",
                "devices": [
                    {
                        "name": "0",
                        "containerEdits": {
                            "env": ["ODD= '\"x\\ "],
                            "additionalGids": [44, 109],
                            "mounts": [
                                {
                                    "hostPath": f"{lxc.folder}/{odd}",
                                    "containerPath": f"/opt/{odd}",
                                    "options": ["ro", "bind"],
                                }
                            ],
                        },
                    }
                ],
            }
        )
    )
    before = f"nvinject cdi inject --spec-dir {place} --format lxc --device example.com/odd=0 --in-place {place}"
    outcome = lxc.execute(
        place,
        'cat /opt/*; printf "%s|" "$ODD"; id -G; for file in /opt/*; do echo x >"$file"; done; true',
        before=before,
    )
    assert outcome.code == 0, outcome.err + outcome.log
    assert outcome.out.startswith("here\n '\"x\\ |1000 44 109\n")
    assert "Read-only file system" in outcome.err


def test_a_hook_of_a_spec_that_fails_stops_the_container(lxc: Lxc) -> None:
    """Its line is in LXC's log: here a link where the image has a folder."""
    place = lxc.make_container("")
    (place / f"rootfs/{LIBRARIES}/libcuda.so.1").mkdir()
    outcome = lxc.execute(place, "echo started", before=inject(place, "0"))
    assert outcome.code != 0
    assert "started" not in outcome.out
    assert "nvinject: create-symlinks: cannot apply link" in outcome.log
    assert "the image has a directory where a link is needed" in outcome.log


def test_devices_that_are_not_there_are_refused_before_anything_is_written(lxc: Lxc) -> None:
    """The configuration stays as it was."""
    place = lxc.make_container("")
    original = (place / "config").read_text()
    done = lxc.on_machine(inject(place, "7"))
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1
    assert "nvidia.com/gpu=7" in done.stderr
    done = lxc.on_machine(
        f"{GENERATE}rm /dev/nvidia1; nvinject cdi inject --format lxc --device nvidia.com/gpu=1 {place}"
    )
    assert done.returncode == 6
    assert "/dev/nvidia1" in done.stderr
    assert (place / "config").read_text() == original
