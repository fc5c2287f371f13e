"""Machine files: what they say, and one line for everything that is wrong with one."""

import pytest

from nvfakes import declaration
from nvfakes.errors import MachineError
from nvfakes.machine import capability_minor
from nvfakes.nvml import image

BAD_FILES = (
    ("gpus: [{model: h100, cuont: 2}]", 1, "gpus[0].cuont: unknown key, did you mean count?"),
    ("gpus:\n  - {model: h100}\n  - {model: hh100}", 3, "gpus[1].model: unknown model, did you mean h100?"),
    ("gpus:\n  - count: 2", 2, "gpus[0]: needs the key model"),
    ("gpus: [{model: t4, count: -1}]", 1, "gpus[0].count: -1 is not between 1 and 32"),
    ("gpus: [{model: t4, count: many}]", 1, "gpus[0].count: 'many' is not a whole number"),
    ("gpus: [{model: t4, count: 33}]", 1, "gpus[0].count: 33 is not between 1 and 32"),
    ("gpus:\n- {model: t4, count: 20}\n- {model: t4, count: 20}", 3, "gpus[1]: a machine has at most 32 GPUs"),
    ("gpus: [{model: t4, count: 2, minor: 3}]", 1, "gpus[0].minor: cannot be shared by 2 GPUs"),
    ("gpus:\n- {model: t4, minor: 1}\n- {model: t4}", 3, "gpus[1]: 1 is already the minor of gpus[0].minor"),
    (
        "gpus:\n- {model: t4, bus: '0000:17:00.0'}\n- {model: t4, bus: '0000:17:00.0'}",
        3,
        "gpus[1].bus: 0000:17:00.0 is already the bus of gpus[0].bus",
    ),
    (
        "gpus:\n- {model: t4}\n- {model: t4, uuid: GPU-000000a0-1111-2222-3333-000000000000}",
        3,
        "gpus[1].uuid: GPU-000000a0-1111-2222-3333-000000000000 is already the uuid of gpus[0]",
    ),
    ("gpus: [{model: t4, uuid: GPU-1}]", 1, "gpus[0].uuid: 'GPU-1' is not a GPU UUID"),
    ("gpus: [{model: t4, bus: 17.0}]", 1, "gpus[0].bus: '17.0' is not a PCI address"),
    ("gpus: [{model: t4, mig: [1g.5gb]}]", 1, "gpus[0].mig: Tesla T4 cannot be partitioned"),
    ("gpus: [{model: h100, mig: [3g.20gb]}]", 1, "has no MIG profile 3g.20gb; it has 1g.10gb, 2g.20gb"),
    (
        "gpus: [{model: h100, mig: [4g.40gb, 4g.40gb]}]",
        1,
        "gpus[0].mig: 4g.40gb, 4g.40gb do not fit on one NVIDIA H100",
    ),
    (
        "gpus: [{model: h100, mig: [{profile: 3g.40gb, compute: [4c]}]}]",
        1,
        "more than the 3 slices of the GPU instance",
    ),
    ("driver: {version: new}", 1, "driver.version: 'new' is not a driver version"),
    ("driver: {branch: 390}", 1, "driver.branch: no packages of driver branch 390 are known; there are 470, 535, 550"),
    ("driver: {branch: 550, cuda: '12.4'}", 1, "driver.branch: brings its own version and cuda"),
    ("gpus: [{model: {name: X}}]", 1, "gpus[0].model: needs the key like"),
    ("adapters: [{wddm: 3200}]", 1, "adapters[0]: needs the key store, the folder of the adapter's driver"),
    ("adapters: [{store: /x, wddm: 12}]", 1, "adapters[0].wddm: 12 is not between 1000 and 9999"),
    ("nodes: {/dev/x: 10}", 1, "nodes./dev/x: '10' is not a device number"),
    ("gpus: [{model: t4, bus: '0000:e4:00.0'}]\nnvswitches: 1", 2, "0000:e4:00.0 is already the bus of gpus[0].bus"),
    ("files: {etc/x: ''}", 1, "files.etc/x: must be a whole path, without . and .."),
    ("links: {/a/../b: /c}", 1, "links./a/../b: must be a whole path, without . and .."),
    ("libraries: [libx]", 1, "libraries[0]: must be a whole path, without . and .."),
    ("libraries: {lib/x.so.1: libx.so}", 1, "libraries.lib/x.so.1: must be a whole path, without . and .."),
    ("programs: [bin/x]", 1, "programs[0]: must be a whole path, without . and .."),
    ("driver: 570", 1, "driver: must be a mapping of keys to values"),
    ("gpus: {model: t4}", 1, "gpus: must be a list"),
    ("majors: {nvidia-umv: 3}", 1, "majors.nvidia-umv: unknown key, did you mean nvidia-uvm?"),
    ("majors: {nvidia-uvm: 0}", 1, "majors.nvidia-uvm: 0 is not between 1 and 4095"),
    ("sockets: [telnetd]", 1, "sockets[0]: 'telnetd' is none of persistenced, fabricmanager, mps"),
    ("deviate: {module: gone}", 1, "deviate.module: 'gone' is none of loaded, unloaded"),
    ("lib32: maybe", 1, "lib32: 'maybe' is none of true, false"),
    ("drm: true\ndrm: false", 2, "drm: is given twice"),
    ("drm: true\ngpus: [}", 2, "not YAML"),
    ("nvml: {version: '2.0'}", 1, "nvml.version: '2.0' is none of 1.0"),
    ("nvml:\n  systm: {}", 2, "nvml.systm: unknown key, did you mean system?"),
    ("gpus:\n  - model: h100\n    answers: 3", 3, "must be a mapping"),
    ("gpus:\n  - model: h100\n    answers: {power: 3}", 3, "power must be a mapping"),
    (
        "gpus:\n  - model: h100\n    answers: {ecc: {errors: {volatile: [1]}}}",
        3,
        "ecc.errors.volatile must be a mapping",
    ),
    (
        "gpus:\n  - model: h100\n    answers: {fabric: {health_mask: x}}",
        3,
        "NVML cannot answer with a value of this kind",
    ),
    ("nvml:\n  device_defaults: {thermal: hot}\ngpus: [{model: h100}]", 2, "thermal must be a mapping"),
    ("device_defaults: {name: NVIDIA H100 80GB HBM3, pci: {device_id: x}}\nnum_devices: 1", 1, "of another kind"),
    ("device_defaults: {fan: 3}\nnum_devices: 1", 1, "fan must be a mapping"),
)


@pytest.mark.parametrize(("text", "line", "message"), BAD_FILES)
def test_names_file_line_and_key(text: str, line: int, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        declaration.parse(text, "m.yaml", "m")
    assert str(caught.value).startswith(f"m.yaml:{line}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_NAMES = (
    ("h100x0", "1 to 16 GPUs"),
    ("h100x17", "1 to 16 GPUs"),
    ("h1000", "did you mean h100"),
    ("./no-such.yaml", "cannot be read"),
)


@pytest.mark.parametrize(("name", "message"), BAD_NAMES)
def test_bad_names_give_one_line(name: str, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        declaration.load(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_h100_is_the_observed_machine() -> None:
    machine = declaration.load("two-h100")
    assert machine.driver is not None
    assert (machine.driver.version, machine.driver.cuda) == ("570.133.20", "12.8")
    assert [(gpu.uuid, gpu.bus, gpu.minor, gpu.card, gpu.render) for gpu in machine.gpus] == [
        ("GPU-000000a0-1111-2222-3333-000000000000", "0000:17:00.0", 0, 1, 128),
        ("GPU-000000a1-1111-2222-3333-000000000001", "0000:18:00.0", 1, 2, 129),
    ]
    assert [machine.majors[name] for name in ("nvidia-uvm", "nvidia-caps", "nvidia-caps-imex-channels")] == [
        235,
        237,
        238,
    ]
    assert machine.imex_channels == (0,)


def test_mig_h100_has_the_observed_capabilities() -> None:
    gpu = declaration.load("mig-h100").gpus[0]
    found = [
        (capability_minor(gpu.minor, instance.number), capability_minor(gpu.minor, instance.number, compute.number))
        for instance, compute in gpu.mig_devices()
    ]
    assert found == [(12, 13), (21, 22)]
    assert gpu.mig_devices()[1][1].uuid == "MIG-000000a0-5555-6666-7777-000000000001"


@pytest.mark.parametrize("name", declaration.shipped())
def test_shipped_machines_load(name: str) -> None:
    assert declaration.load(name).name == name


@pytest.mark.parametrize(("name", "count"), [("t4", 1), ("h100x8", 8), ("a100-40gbx2", 2), ("rtx-4090x16", 16)])
def test_generated_machines(name: str, count: int) -> None:
    machine = declaration.load(name)
    assert len(machine.gpus) == count
    assert len({gpu.uuid for gpu in machine.gpus} | {gpu.bus for gpu in machine.gpus}) == 2 * count


MIG_LAYOUTS = (
    ("[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]", [(7 + n, n, 1) for n in range(7)]),
    ("[3g.40gb, 4g.40gb]", [(1, 4, 4), (2, 0, 4)]),
    ("[3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb]", [(1, 4, 4), (3, 0, 2), (7, 2, 1), (8, 3, 1)]),
    ("[7g.80gb]", [(0, 0, 8)]),
    ("[19, MIG 2g.20gb]", [(7, 0, 1), (3, 2, 2)]),
)


@pytest.mark.parametrize(("layout", "placed"), MIG_LAYOUTS)
def test_places_mig_instances(layout: str, placed: list[tuple[int, int, int]]) -> None:
    machine = declaration.parse(f"gpus: [{{model: h100, mig: {layout}}}]", "m.yaml", "m")
    assert [(item.number, item.start, item.size) for item in machine.gpus[0].instances] == placed


MOCK = """
version: "1.0"
system: {driver_version: "550.163.01", cuda_version: "12.4", cuda_version_major: 12, cuda_version_minor: 4}
some_later_key: {of: any kind}
device_defaults:
  name: NVIDIA H100 80GB HBM3
  brand: nvidia
  architecture: hopper
  compute_capability: {major: 9, minor: 0}
  memory: {total_bytes: 85899345920, reserved_bytes: 1073741824, used_bytes: 0}
  pci: {device_id: 0x233010DE, subsystem_id: 0x16C110DE}
  power: {current_draw_mw: 95000, power_state: P0}
  fan: {count: 0, speed_percent: "N/A"}
  fabric: {cluster_uuid: 00000000-0000-0000-0000-000000000001, clique_id: 0, state: auto}
  mig: {mode_current: disabled, mode_pending: disabled, max_gpu_instances: 7}
  processes: [{pid: 1234, type: C, name: python, used_memory_mib: 1024, sm_util: 75}]
devices:
- index: 0
  uuid: GPU-01000100-0000-0000-0000-000000000000
  serial: "1562821083900"
  pci: {bus_id: "0000:1A:00.0"}
  minor_number: 1
- index: 1
  uuid: GPU-01000100-0000-0000-0000-000000000001
  pci: {bus_id: "0000:8A:00.0"}
  minor_number: 0
  thermal: {temperature_gpu_c: 71}
  fabric: {health: {route_unhealthy: true}}
  mig: {mode_current: enabled, gpu_instances: [{profile: 3g.40gb, count: 1}, {profile_id: 19, count: 2}]}
nvlink:
  version: 4
  links_per_gpu: 18
  bandwidth_per_link_mbps: 26562
  switches: [{bdf: "0000:05:00.0", device_id: 0x22A310DE}, {bdf: "0000:06:00.0"}]
pcie_topology:
  root_complexes:
  - {id: "pci0000:00", numa_node: 0, devices: ["0000:1A:00.0"]}
  - {id: "pci0000:80", numa_node: 1, devices: ["0000:8A:00.0"]}
"""


def test_reads_a_whole_mock_configuration() -> None:
    machine = declaration.parse(MOCK, "mock.yaml", "mock")
    assert machine.driver is not None
    assert (machine.driver.version, machine.driver.cuda) == ("550.163.01", "12.4")
    assert [(gpu.model.key, gpu.bus, gpu.minor, gpu.numa_node) for gpu in machine.gpus] == [
        ("h100", "0000:1a:00.0", 1, 0),
        ("h100", "0000:8a:00.0", 0, 1),
    ]
    assert [(switch.bus, switch.on_pci) for switch in machine.switches] == [
        ("0000:05:00.0", True),
        ("0000:06:00.0", False),
    ]
    assert [instance.profile.name for instance in machine.gpus[1].instances] == ["3g.40gb", "1g.10gb", "1g.10gb"]
    facts = image.facts(machine)
    expected = {
        "driver.version": "550.163.01", "cuda.version": "12040", "g0.memory.total_bytes": "85899345920",
        "g0.power.current_draw_mw": "95000", "g0.thermal.temperature_gpu_c": "34", "g1.thermal.temperature_gpu_c": "71",
        "g0.nvlink.links": "18", "g0.fabric.state": "3", "g0.fabric.health": "426", "g0.fabric.health_summary": "1",
        "g1.fabric.health": str(0x19A), "g1.fabric.health_summary": "2", "g0.processes": "1", "g0.brand": "14",
        "g0.processes0.name": "python", "g0.mig.mode_current": "0", "g1.mig.mode_current": "1", "g1.migs": "3",
    }  # fmt: skip
    assert {key: facts.get(key) for key in expected} == expected
    assert "g0.fan.speed_percent" not in facts


def test_a_mock_of_an_unknown_model_is_like_a_known_one() -> None:
    text = (
        'version: "1.0"\ndevice_defaults: {name: NVIDIA GB300, architecture: blackwell, pci: {device_id: 0x31C210DE}}\n'
        "devices: [{index: 0}]\n"
    )
    model = declaration.parse(text, "mock.yaml", "mock").gpus[0].model
    assert (model.name, model.device_id, model.architecture) == ("NVIDIA GB300", 0x31C2, "blackwell")


BAD_MOCKS = (
    ("device_defaults: {name: X}\ndevices: [{index: 0}]", "no known model is like 'X'"),
    (
        "device_defaults:\n  name: NVIDIA H200\n  mig: {mode_current: 1, instances: [{profile: 9g}]}\ndevices: [{}]",
        "NVIDIA H200 has no MIG profile 9g",
    ),
)


@pytest.mark.parametrize(("text", "message"), BAD_MOCKS)
def test_a_mock_that_cannot_be_used_gives_one_line(text: str, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        declaration.parse(text, "mock.yaml", "mock")
    assert str(caught.value).startswith("mock.yaml:1: ")
    assert message in str(caught.value)
