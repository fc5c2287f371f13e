"""What each surface of a machine says about it, and where two of them contradict each other.

Belongs here: reading /dev, /proc, /sys, the driver's files and NVML as a program would, fake or real. Does not belong
here: making any of them. Each surface is a story of its own, so that a test can tell which one a defect breaks.
"""

import os
import re
import stat
from pathlib import Path
from typing import Any

from nvfakes.machine import TRIPLETS, capability_minor
from nvfakes.nvmlclient import Nvml, NvmlError

Story = dict[str, Any]
_MAJOR_OF = {
    "nvidiactl": "nvidiactl", "nvidia-uvm": "nvidia-uvm", "nvidia-uvm-tools": "nvidia-uvm",
    "nvidia-modeset": "nvidiactl",
    "nvidia-caps": "nvidia-caps", "nvidia-caps-imex-channels": "nvidia-caps-imex-channels",
}  # fmt: skip


def read(root: str = "/") -> dict[str, Story]:
    """Return the story of each surface of the machine that stands at a root."""
    base = Path(root)
    return {
        "dev": read_dev(base),
        "proc": read_proc(base),
        "sysfs": read_sysfs(base),
        "files": read_files(base),
        "nvml": read_nvml(base),
    }


def read_dev(base: Path) -> Story:
    """Return which nodes there are, and the major and minor of each."""
    nodes: dict[str, list[int]] = {}
    for pattern in ("nvidia[0-9]*", "nvidiactl", "nvidia-*", "nvidia-caps/*", "nvidia-caps-imex-channels/*", "dri/*"):
        for path in (base / "dev").glob(pattern):
            status = path.stat()
            if stat.S_ISCHR(status.st_mode):
                name = str(path.relative_to(base / "dev"))
                nodes[name] = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    gpus = sorted(int(name[6:]) for name in nodes if re.fullmatch(r"nvidia\d+", name))
    return {"gpus": gpus, "nodes": dict(sorted(nodes.items()))}


def _keys(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in path.read_text(encoding="utf-8").splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_proc(base: Path) -> Story:
    """Return the GPUs, the version, the capabilities and the majors that procfs shows."""
    driver = base / "proc/driver/nvidia"
    gpus = []
    for path in sorted(driver.glob("gpus/*/information")):
        keys = _keys(path)
        gpus.append([int(keys.get("Device Minor", -1)), keys.get("GPU UUID"), keys.get("Bus Location")])
    version = re.search(r" (\d+\.\d+(\.\d+)?) ", _text(driver / "version"))
    capabilities = {
        str(path.parent.relative_to(driver / "capabilities")): int(_keys(path).get("DeviceFileMinor", -1))
        for path in sorted(driver.glob("capabilities/gpu*/mig/**/access"))
    }
    lines = (line.split() for line in _text(base / "proc/devices").splitlines())
    majors = {words[1]: int(words[0]) for words in lines if len(words) == 2 and words[1].startswith("nvidia")}
    minors = dict(line.split() for line in _text(base / "proc/driver/nvidia-caps/mig-minors").splitlines())
    return {
        "gpus": sorted(gpus), "version": version[1] if version else None, "capabilities": capabilities,
        "majors": majors,
        "minors": {name: int(minors[f"{name.replace('/mig', '')}/access"]) for name in capabilities} if minors else {},
    }  # fmt: skip


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def read_sysfs(base: Path) -> Story:
    """Return the PCI functions of NVIDIA's display class with their ids, once as files and once as bytes."""
    gpus, spaces = {}, {}
    for path in sorted((base / "sys/bus/pci/devices").glob("*")):
        if _text(path / "vendor").strip() != "0x10de" or not _text(path / "class").startswith("0x03"):
            continue
        gpus[path.name] = [int(_text(path / name), 16) for name in ("device", "class")]
        space = (path / "config").read_bytes()
        spaces[path.name] = [int.from_bytes(space[2:4], "little"), int.from_bytes(space[9:12], "little")]
    loaded = sorted(
        path.parent.name for path in (base / "sys/module").glob("nvidia*/initstate") if _text(path).strip() == "live"
    )
    return {"gpus": gpus, "config": spaces, "modules": loaded}


def read_files(base: Path) -> Story:
    """Return the versions that the driver's files carry, and links that lead nowhere."""
    folder = base / "usr/lib" / TRIPLETS.get(os.uname().machine, "")
    listed = _find_nvml(base).parent != folder
    files = [*folder.glob("libcuda*.so.*.*"), *folder.glob("libnvidia-*.so.*.*")]
    named = (re.fullmatch(r"lib[\w-]+\.so\.(\d{3,}(\.\d+)+)", path.name) for path in files if path.is_file())
    dangling = [path.name for path in folder.glob("lib*nvidia*.so*") if path.is_symlink() and not path.exists()]
    firmware = sorted(path.name for path in (base / "usr/lib/firmware/nvidia").glob("*.*") if path.name[0].isdigit())
    return {
        "listed": listed,
        "versions": sorted({match[1] for match in named if match}),
        "names": sorted(path.name for path in files),
        "dangling": sorted(dangling),
        "firmware": [name for name in firmware if list((base / "usr/lib/firmware/nvidia" / name).glob("gsp*.bin"))],
    }


def _find_nvml(base: Path) -> Path:
    """Return where NVML is: among a driver package's libraries, or those of a Jetson."""
    tegra = base / "usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ml.so.1"
    return tegra if tegra.exists() else base / "usr/lib" / TRIPLETS.get(os.uname().machine, "") / tegra.name


def read_nvml(base: Path) -> Story:
    """Return the GPUs and MIG devices that NVML lists, or its refusal."""
    library = _find_nvml(base)
    if not library.exists():
        return {"gpus": [], "migs": [], "version": None, "ids": {}}
    try:
        with Nvml(str(library)) as nvml:
            return _read_nvml(nvml)
    except NvmlError as error:
        return {"gpus": [], "migs": [], "version": None, "ids": {}, "error": error.code}


def _read_nvml(nvml: Nvml) -> Story:
    gpus: list[list[Any]] = []
    migs: list[list[Any]] = []
    ids = {}
    for gpu in nvml.gpus():
        minor = nvml.number("nvmlDeviceGetMinorNumber", gpu)
        pci = nvml.pci(gpu)
        gpus.append([minor, nvml.text("nvmlDeviceGetUUID", gpu), pci[0] if pci else None])
        if pci:
            ids[pci[0]] = pci[1] >> 16
        for mig in nvml.migs(gpu):
            instances = [nvml.number(f"nvmlDeviceGet{kind}InstanceId", mig) for kind in ("Gpu", "Compute")]
            migs.append([minor, *instances, nvml.text("nvmlDeviceGetUUID", mig)])
    return {"gpus": sorted(gpus), "migs": sorted(migs), "version": nvml.text("nvmlSystemGetDriverVersion"), "ids": ids}


def contradictions(stories: dict[str, Story], *, numbers: bool = True) -> list[str]:
    """Return where two stories differ, one sentence each; `numbers` is off where nodes are not the driver's."""
    dev, proc, sysfs, files, nvml = (stories[name] for name in ("dev", "proc", "sysfs", "files", "nvml"))
    on_pci = [gpu for gpu in nvml["gpus"] if gpu[2]]
    minors = sorted(gpu[0] for gpu in nvml["gpus"])
    if files["listed"]:
        # Its files have no common version, and it may have nodes that are a display's.
        files = {**files, "versions": [nvml["version"]], "firmware": [proc["version"]]}
        dev = {**dev, "gpus": [minor for minor in dev["gpus"] if minor in minors]}
    pairs: list[tuple[str, Any, Any]] = [
        ("GPUs of proc and NVML", proc["gpus"], on_pci),
        ("minors of nodes and NVML", dev["gpus"], minors),
        ("PCI addresses of sysfs and NVML", sorted(sysfs["gpus"]), sorted(gpu[2] for gpu in on_pci)),
        ("PCI ids of sysfs and NVML", {bus: ids[0] for bus, ids in sysfs["gpus"].items()}, nvml["ids"]),
        ("sysfs files and configuration space", sysfs["gpus"], sysfs["config"]),
        ("versions of NVML and files", [nvml["version"]] if nvml["version"] else [], files["versions"]),
        ("versions of NVML and the kernel", nvml["version"], proc["version"]),
        ("firmware and the kernel's version", files["firmware"], [proc["version"]] if proc["version"] else []),
        ("capabilities and the table of minors", proc["capabilities"], proc["minors"]),
        ("MIG devices and capabilities", sorted(_mig_capabilities(nvml)), sorted(_compute_capabilities(proc))),
        ("links and files", files["dangling"], []),
    ]
    found = [f"{what}: {one} and {two}" for what, one, two in pairs if one != two]
    names = set(dev["nodes"])
    found += [
        f"no node for capability {minor}"
        for minor in proc["capabilities"].values()
        if f"nvidia-caps/nvidia-cap{minor}" not in names
    ]
    return found + (_wrong_numbers(dev, proc) if numbers else [])


def _mig_capabilities(nvml: Story) -> list[int]:
    return [capability_minor(minor, instance, compute) for minor, instance, compute, _ in nvml["migs"]]


def _compute_capabilities(proc: Story) -> list[int]:
    return [minor for name, minor in proc["capabilities"].items() if "/ci" in name]


def _wrong_numbers(dev: Story, proc: Story) -> list[str]:
    """Return the nodes whose major is not the one that /proc/devices names, or whose minor is not in their name."""
    wrong = []
    for name, (major, minor) in dev["nodes"].items():
        folder, _, leaf = name.rpartition("/")
        gpu = re.fullmatch(r"nvidia(\d+)", name)
        wanted = proc["majors"].get("nvidiactl" if gpu else _MAJOR_OF.get(folder or name, ""), major)
        number = re.search(r"(\d+)$", leaf)
        inside = int(number[1]) if number and folder != "dri" else minor
        if major != wanted or minor != inside:
            wrong.append(f"node {name} is {major}:{minor}")
    return wrong
