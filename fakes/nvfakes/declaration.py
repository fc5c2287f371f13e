"""Machine files: YAML to a Machine, and the names of machines that need no file.

Belongs here: the keys of a machine file, their checks, and one-line errors that name file, line and key. Does not
belong here: what the declared facts mean to a program. NVIDIA's mock configuration, version 1.0, is accepted as the
`nvml:` block or as a whole file.
"""

import difflib
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from nvfakes import mig, mock
from nvfakes.errors import FakeError, MachineError
from nvfakes.layouts import LAYOUTS, USUAL
from nvfakes.machine import (
    DEFAULT_MAJORS,
    GPU_SLOTS,
    Adapter,
    Deviation,
    Driver,
    Gpu,
    GpuInstance,
    Machine,
    NvSwitch,
    is_whole_path,
)
from nvfakes.models import MODELS, GpuModel

MACHINES = Path(__file__).parent / "machines"
LARGEST = 8 << 20  # bytes of a machine file
LARGEST_COUNT = 16
OPEN_KERNEL_SINCE = 515

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_VERSION = re.compile(r"\d+(\.\d+){1,3}")
_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_GPU_UUID = re.compile(r"(GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MIG_UUID = re.compile(r"MIG-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_GENERATED = re.compile(r"(?P<model>[a-z][a-z0-9-]*?)(x(?P<count>\d+))?")

_MACHINE_KEYS = (
    "adapters", "arch", "deviate", "driver", "drm", "files", "gpus", "imex", "lib32", "libraries", "links", "majors",
    "nodes", "nvml", "nvswitches", "params", "programs", "sockets",
)  # fmt: skip
_GPU_KEYS = (
    "answers", "bus", "card", "count", "mig", "mig_mode", "minor", "model", "name", "numa_node", "render", "serial",
    "uuid",
)  # fmt: skip
_MOCK_KEYS = ("version", "system", "device_defaults", "devices", "nvlink", "pcie_topology", "num_devices")
SOCKETS = ("persistenced", "fabricmanager", "mps")


class _Place:
    """A YAML node that knows where it stands, so that every complaint can say so."""

    def __init__(self, node: yaml.Node, key: str, file: str) -> None:
        self.node = node
        self.key = key
        self.file = file

    def error(self, message: str) -> MachineError:
        where = f"{self.file}:{self.node.start_mark.line + 1}"
        return MachineError(f"{where}: {self.key}: {message}" if self.key else f"{where}: {message}")

    def mapping(self, allowed: tuple[str, ...] | None = None) -> dict[str, "_Place"]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("must be a mapping of keys to values")
        found: dict[str, _Place] = {}
        for key_node, value in self.node.value:
            name = str(key_node.value)
            place = _Place(value, f"{self.key}.{name}" if self.key else name, self.file)
            if name in found:
                raise _Place(key_node, place.key, self.file).error("is given twice")
            if allowed is not None and name not in allowed:
                raise _Place(key_node, place.key, self.file).error(f"unknown key{_suggest(name, allowed)}")
            found[name] = place
        return found

    def sequence(self) -> list["_Place"]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("must be a list")
        return [_Place(node, f"{self.key}[{index}]", self.file) for index, node in enumerate(self.node.value)]

    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    def is_sequence(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error("must be a single value")
        return str(self.node.value)

    def matching(self, pattern: re.Pattern[str], what: str) -> str:
        text = self.text()
        if not pattern.fullmatch(text):
            raise self.error(f"{text!r} is not {what}")
        return text

    def choice(self, allowed: tuple[str, ...]) -> str:
        text = self.text()
        if text not in allowed:
            raise self.error(f"{text!r} is none of {', '.join(allowed)}")
        return text

    def number(self, least: int, most: int) -> int:
        text = self.text()
        try:
            value = int(text, 0)
        except ValueError:
            raise self.error(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise self.error(f"{value} is not between {least} and {most}")
        return value

    def flag(self) -> bool:
        return self.choice(("true", "false")) == "true"

    def data(self) -> Any:
        """Return the node as plain Python data."""
        constructor = yaml.constructor.SafeConstructor()
        return constructor.construct_document(self.node)


def _suggest(name: str, allowed: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    return f", did you mean {near[0]}?" if near else f"; known keys: {', '.join(sorted(allowed))}"


def shipped() -> list[str]:
    """Return the names of the machines that come with the package."""
    return sorted(path.stem for path in MACHINES.glob("*.yaml"))


def load(name_or_path: str) -> Machine:
    """Return the machine of a file, of a shipped name, or of a generated name such as h100x8."""
    path = Path(name_or_path)
    if "/" in name_or_path or path.suffix in {".yaml", ".yml"}:
        return read(path)
    shipped_path = MACHINES / f"{name_or_path}.yaml"
    if shipped_path.exists():
        return read(shipped_path)
    return _generate(name_or_path)


def _generate(name: str) -> Machine:
    match = _GENERATED.fullmatch(name)
    model = MODELS.get(match["model"]) if match else None
    if match is None or model is None:
        known = (*shipped(), *(f"{key}xN" for key in MODELS))
        raise MachineError(f"{name}: no such machine{_suggest(name, known).replace('known keys', 'known machines')}")
    count = int(match["count"] or 1)
    if not 1 <= count <= LARGEST_COUNT:
        raise MachineError(f"{name}: a generated machine has 1 to {LARGEST_COUNT} GPUs; write a file for other numbers")
    fabric = model.nvlinks and count >= 4
    text = f"driver: {{}}\ngpus: [{{model: {model.key}, count: {count}}}]\nimex: {{channels: [0]}}\n"
    text += f"sockets: [persistenced{', fabricmanager' if fabric else ''}]\n"
    text += f"nvswitches: {4 if fabric else 0}\n"
    return parse(text, name, name)


def read(path: Path) -> Machine:
    """Return the machine that a file declares."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise MachineError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > LARGEST:
        raise MachineError(f"{path}: more than {LARGEST >> 20} MiB, which no machine file has")
    return parse(text, str(path), path.stem)


def parse(text: str, file: str, name: str) -> Machine:
    """Return the machine that YAML text declares; `file` is used in messages."""
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise MachineError(f"{file}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise MachineError(f"{file}:1: not YAML: {str(error).splitlines()[0]}") from None
    if node is None:
        return Machine(name)
    root = _Place(node, "", file)
    if root.is_mapping() and "device_defaults" in root.mapping():
        return _of_mock(root, name)
    return _Reader(root.mapping(_MACHINE_KEYS)).machine(name)


class _Reader:
    """Reads the parts of one machine file; `uuids`, `buses` and `minors` catch duplicates across GPUs."""

    def __init__(self, keys: Mapping[str, _Place]) -> None:
        self.keys = keys
        self.taken: dict[str, dict[str, str]] = {"uuid": {}, "bus": {}, "minor": {}}

    def machine(self, name: str) -> Machine:
        answers = _mock_block(self.keys["nvml"]) if "nvml" in self.keys else {}
        imex = dict(self._map("imex", ("channels", "management")))
        return Machine(
            name=name,
            driver=self._driver(),
            gpus=tuple(self._gpus(answers)),
            switches=self._switches(),
            majors=DEFAULT_MAJORS
            | {key: place.number(1, 4095) for key, place in self._map("majors", tuple(DEFAULT_MAJORS))},
            imex_channels=tuple(place.number(0, 65535) for place in imex["channels"].sequence())
            if "channels" in imex
            else (),
            imex_management="management" in imex and imex["management"].flag(),
            sockets=tuple(place.choice(SOCKETS) for place in self._list("sockets")),
            params={key: place.text() for key, place in self._map("params")},
            files={key: place.text() for key, place in self._paths("files")},
            links={key: place.text() for key, place in self._paths("links")},
            libraries=self._libraries(),
            nodes={key: _device_number(place) for key, place in self._paths("nodes")},
            adapters=tuple(_adapter(place) for place in self._list("adapters")),
            programs=tuple(_whole(place.text(), place) for place in self._list("programs")),
            lib32=self._flag("lib32", default=False),
            drm=self._flag("drm", default=True),
            deviation=self._deviation(),
            architecture=self.keys["arch"].choice(("x86_64", "aarch64")) if "arch" in self.keys else platform.machine(),
        )

    def _libraries(self) -> tuple[tuple[str, str], ...]:
        """Return path and SONAME ("" where only paths are listed) of libraries that no driver package brings."""
        if "libraries" in self.keys and self.keys["libraries"].is_mapping():
            return tuple((path, place.text()) for path, place in self._paths("libraries"))
        return tuple((_whole(place.text(), place), "") for place in self._list("libraries"))

    def _list(self, key: str) -> list[_Place]:
        return self.keys[key].sequence() if key in self.keys else []

    def _map(self, key: str, allowed: tuple[str, ...] | None = None) -> list[tuple[str, _Place]]:
        return list(self.keys[key].mapping(allowed).items()) if key in self.keys else []

    def _paths(self, key: str) -> list[tuple[str, _Place]]:
        return [(_whole(path, place), place) for path, place in self._map(key)]

    def _flag(self, key: str, *, default: bool) -> bool:
        return self.keys[key].flag() if key in self.keys else default

    def _driver(self) -> Driver | None:
        if "driver" not in self.keys or self.keys["driver"].node.tag.endswith(":null"):
            return None
        keys = self.keys["driver"].mapping(("version", "cuda", "open", "branch", "layout", "packaged"))
        if "branch" in keys:
            return _packaged_driver(keys)
        version = keys["version"].matching(_VERSION, "a driver version") if "version" in keys else Driver().version
        cuda = keys["cuda"].matching(_VERSION, "a CUDA version") if "cuda" in keys else Driver().cuda
        return Driver(
            version,
            cuda,
            keys["open"].flag() if "open" in keys else True,
            layout=keys["layout"].choice(tuple(LAYOUTS)) if "layout" in keys else USUAL,
            packaged="packaged" not in keys or keys["packaged"].flag(),
        )

    def _switches(self) -> tuple[NvSwitch, ...]:
        if "nvswitches" not in self.keys:
            return ()
        place = self.keys["nvswitches"]
        if place.is_sequence():
            buses = [item.matching(_BUS, "a PCI address").lower() for item in place.sequence()]
            return tuple(NvSwitch(bus, number) for number, bus in enumerate(buses))
        keys = place.mapping(("count", "on_pci", "device")) if place.is_mapping() else {"count": place}
        if "count" not in keys:
            raise place.error("needs the key count")
        count = keys["count"].number(0, 18)
        device = keys["device"].number(1, 0xFFFF) if "device" in keys else NvSwitch("", 0).device_id
        on_pci = "on_pci" not in keys or keys["on_pci"].flag()
        switches = tuple(NvSwitch(f"0000:{0xE4 + number:02x}:00.0", number, device, on_pci) for number in range(count))
        for switch in switches:
            self._claim("bus", switch.bus, place)
        return switches

    def _deviation(self) -> Deviation:
        keys = dict(self._map("deviate", ("library_version", "missing", "module")))
        return Deviation(
            missing=tuple(place.text() for place in keys["missing"].sequence()) if "missing" in keys else (),
            library_version=keys["library_version"].matching(_VERSION, "a driver version")
            if "library_version" in keys
            else "",
            module_loaded="module" not in keys or keys["module"].choice(("loaded", "unloaded")) == "loaded",
        )

    def _gpus(self, answers: Mapping[str, Any]) -> Iterator[Gpu]:
        total = 0
        counts = [self._count(place) for place in self._list("gpus")]
        for place, count in zip(self._list("gpus"), counts, strict=True):
            for _ in range(count):
                if total >= GPU_SLOTS:
                    raise place.error(f"a machine has at most {GPU_SLOTS} GPUs")
                yield self._gpu(place, total, sum(counts), answers)
                total += 1

    def _count(self, place: _Place) -> int:
        keys = place.mapping(_GPU_KEYS)
        count = keys["count"].number(1, GPU_SLOTS) if "count" in keys else 1
        for key in ("uuid", "bus", "minor", "card", "render", "serial"):
            if count > 1 and key in keys:
                raise keys[key].error(f"cannot be shared by {count} GPUs; list them one by one")
        return count

    def _gpu(self, place: _Place, index: int, total: int, answers: Mapping[str, Any]) -> Gpu:
        keys = place.mapping(_GPU_KEYS)
        if "model" not in keys:
            raise place.error(f"needs the key model; known models: {', '.join(MODELS)}")
        model = _model(keys["model"])
        uuid = (
            keys["uuid"].matching(_GPU_UUID, "a GPU UUID")
            if "uuid" in keys
            else f"GPU-{index + 0xA0:08x}-1111-2222-3333-{index:012x}"
        )
        bus = (
            keys["bus"].matching(_BUS, "a PCI address such as 0000:17:00.0")
            if "bus" in keys
            else f"0000:{0x17 + index:02x}:00.0"
        )
        minor = keys["minor"].number(0, GPU_SLOTS - 1) if "minor" in keys else index
        for what, value in (("uuid", uuid), ("bus", bus.lower()), ("minor", str(minor))):
            self._claim(what, value, keys.get(what, place))
        extra = mock.merge(mock.device_answers(answers, index), _answers(keys["answers"]) if "answers" in keys else {})
        if "name" in keys:
            extra = {**extra, "name": keys["name"].text()}
        instances = self._mig(keys["mig"], model, index) if "mig" in keys else ()
        gpu = Gpu(
            model=model,
            uuid=uuid,
            bus=bus.lower(),
            minor=minor,
            numa_node=keys["numa_node"].number(-1, 63)
            if "numa_node" in keys
            else (index * 2 // total if total >= 4 else 0),
            card=keys["card"].number(0, 63) if "card" in keys else index + 1,
            render=keys["render"].number(128, 191) if "render" in keys else index + 128,
            serial=keys["serial"].text() if "serial" in keys else f"{1320000000000 + index}",
            mig_mode=keys["mig_mode"].flag() if "mig_mode" in keys else "mig" in keys,
            instances=instances,
            answers=extra,
        )
        _try_facts(gpu, keys.get("answers", place))
        return gpu

    def _claim(self, what: str, value: str, place: _Place) -> None:
        if value in self.taken[what]:
            raise place.error(f"{value} is already the {what} of {self.taken[what][value]}")
        self.taken[what][value] = place.key

    def _mig(self, place: _Place, model: GpuModel, index: int) -> tuple[GpuInstance, ...]:
        profiles = Gpu(model, "", "", 0).profiles
        if not profiles:
            raise place.error(f"{model.name} cannot be partitioned")
        layout = []
        serial = iter(range(64))
        for item in place.sequence():
            keys = item.mapping(("profile", "uuid", "compute")) if item.is_mapping() else {"profile": item}
            if "profile" not in keys:
                raise item.error("needs the key profile")
            profile = mig.find_profile(profiles, keys["profile"].text())
            if profile is None:
                names = tuple(profile.name for profile in profiles)
                raise keys["profile"].error(
                    f"{model.name} has no MIG profile {keys['profile'].text()}; it has {', '.join(names)}"
                )
            layout.append((profile, self._compute(item, keys, profile.slices, lambda: _mig_uuid(index, next(serial)))))
        instances = mig.build_instances(layout)
        if instances is None:
            wanted = ", ".join(profile.name for profile, _ in layout)
            raise place.error(f"{wanted} do not fit on one {model.name} together")
        return instances

    def _compute(
        self, item: _Place, keys: Mapping[str, _Place], slices: int, new_uuid: Callable[[], str]
    ) -> list[tuple[int, str]]:
        if "compute" not in keys:
            uuid = keys["uuid"].matching(_MIG_UUID, "a MIG UUID") if "uuid" in keys else new_uuid()
            self._claim("uuid", uuid, keys.get("uuid", item))
            return [(slices, uuid)]
        found = []
        for place in keys["compute"].sequence():
            parts = place.mapping(("size", "uuid")) if place.is_mapping() else {"size": place}
            if "size" not in parts:
                raise place.error("needs the key size, such as 1c")
            size = parts["size"].matching(re.compile(r"[12347]c"), "a compute instance such as 1c")
            uuid = parts["uuid"].matching(_MIG_UUID, "a MIG UUID") if "uuid" in parts else new_uuid()
            self._claim("uuid", uuid, place)
            found.append((int(size[0]), uuid))
        if sum(size for size, _ in found) > slices:
            raise keys["compute"].error(f"more than the {slices} slices of the GPU instance")
        return found


def _model(place: _Place) -> GpuModel:
    """Return a model by its name, or one that is like another but for what the file says."""
    if not place.is_mapping():
        model = MODELS.get(place.text())
        if model is None:
            raise place.error(f"unknown model{_suggest(place.text(), tuple(MODELS))}".replace("keys", "models"))
        return model
    keys = place.mapping(("like", "name", "device", "subsystem", "class", "capability", "memory_mib"))
    if "like" not in keys:
        raise place.error("needs the key like, a model that it is like")
    known = _model(keys["like"])
    numbers = {"device": "device_id", "subsystem": "subsystem_id", "class": "pci_class", "memory_mib": "memory_mib"}
    changes: dict[str, Any] = {name: keys[key].number(0, 1 << 40) for key, name in numbers.items() if key in keys}
    if "name" in keys:
        changes["name"] = keys["name"].text()
    if "capability" in keys:
        changes["compute_capability"] = keys["capability"].matching(
            re.compile(r"\d+\.\d"), "a compute capability such as 9.0"
        )
    return replace(known, **changes)


def _adapter(place: _Place) -> Adapter:
    keys = place.mapping(("store", "wddm", "compute_only"))
    if "store" not in keys:
        raise place.error("needs the key store, the folder of the adapter's driver")
    return Adapter(
        keys["store"].text(),
        keys["wddm"].number(1000, 9999) if "wddm" in keys else Adapter("").wddm,
        compute_only="compute_only" in keys and keys["compute_only"].flag(),
    )


def _whole(path: str, place: _Place) -> str:
    if not is_whole_path(path):
        raise place.error("must be a whole path, without . and ..")
    return path


def _device_number(place: _Place) -> tuple[int, int]:
    major, minor = place.matching(re.compile(r"\d+:\d+"), "a device number such as 10:58").split(":")
    return int(major), int(minor)


def _packaged_driver(keys: Mapping[str, _Place]) -> Driver:
    if "version" in keys or "cuda" in keys:
        raise keys["branch"].error("brings its own version and cuda")
    if "layout" in keys:
        raise keys["layout"].error("real files of a branch lie where their packages have them")
    try:
        return with_packages(
            Driver(), keys["branch"].number(1, 9999), open_kernel=keys["open"].flag() if "open" in keys else None
        )
    except MachineError:
        raise
    except FakeError as error:
        raise keys["branch"].error(str(error)) from None


def with_packages(driver: Driver, branch: int, *, open_kernel: bool | None = None) -> Driver:
    """Return a driver whose user-space files are those of a branch's real packages."""
    from nvfakes import installed  # only for those who want real files

    files = installed.install(branch)
    opened = driver.open_kernel and branch >= OPEN_KERNEL_SINCE if open_kernel is None else open_kernel
    return Driver(files.version, files.cuda, opened, files.root)


def on_packages(machine: Machine, branch: int) -> Machine:
    """Return a machine with the user-space files of a branch's real packages, which decide its driver's version."""
    driver = with_packages(machine.driver or Driver(), branch)
    return replace(machine, driver=driver, deviation=replace(machine.deviation, library_version=""))


def _mig_uuid(gpu: int, serial: int) -> str:
    return f"MIG-{gpu + 0xA0:08x}-5555-6666-7777-{serial:012x}"


# What a value of another kind than the one that is expected ends in.
_UNFIT = (ValueError, TypeError, AttributeError, LookupError)


def _of_mock(place: _Place, name: str) -> Machine:
    """Return the machine of a whole configuration of NVIDIA's mock."""
    for key, defaults in place.mapping().items():
        if key == "device_defaults":
            _answers(defaults)
    try:
        machine = mock.machine(place.data(), name, place.error)
    except _UNFIT as error:
        raise place.error(f"a value is of another kind than in NVIDIA's mock configuration: {error}") from None
    for gpu in machine.gpus:
        _try_facts(gpu, place)
    return machine


def _answers(place: _Place) -> Mapping[str, Any]:
    """Return answers of NVML, whose groups are mappings."""
    from nvfakes.answers import find_misplaced

    place.mapping()
    values: Mapping[str, Any] = place.data()
    misplaced = find_misplaced(values)
    if misplaced:
        raise place.error(f"{misplaced} must be a mapping of keys to values")
    return values


def _try_facts(gpu: Gpu, place: _Place) -> None:
    """Raise MachineError where the NVML library could not be told what a GPU answers."""
    from nvfakes.nvml import image

    try:
        image.gpu_facts(gpu)
    except _UNFIT as error:
        raise place.error(f"NVML cannot answer with a value of this kind: {error}") from None


def _mock_block(place: _Place) -> dict[str, Any]:
    """Return an `nvml:` block after a check of its top-level keys; inner keys are NVIDIA's to define."""
    keys = place.mapping(_MOCK_KEYS)
    if "version" in keys:
        keys["version"].choice(("1.0",))
    for key in ("system", "device_defaults", "nvlink"):
        if key in keys:
            keys[key].mapping()
    for device in keys["devices"].sequence() if "devices" in keys else []:
        device.mapping()
    for answers in (keys.get("device_defaults"), *(keys["devices"].sequence() if "devices" in keys else ())):
        if answers is not None:
            _answers(answers)
    data = place.data()
    return data if isinstance(data, dict) else {}
