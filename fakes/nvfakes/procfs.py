"""What the NVIDIA kernel modules show below /proc: text by path.

Belongs here: the formats of /proc/driver/nvidia*, and the driver's lines in /proc/devices and /proc/modules. Does not
belong here: sysfs (sysfs.py) and writing anything. Formats follow the open kernel module's procfs sources.
"""

from collections.abc import Iterator, Mapping

from nvfakes.machine import (
    CAP_IMEX_MANAGEMENT,
    CAP_MIG_CONFIG,
    CAP_MIG_MONITOR,
    COMPUTE_SLOTS,
    GPU_SLOTS,
    INSTANCE_SLOTS,
    MAJOR_DRM,
    MAJOR_NVIDIA,
    Driver,
    Gpu,
    Machine,
    capability_minor,
)

# The driver's user libraries stop reading at the sixth line, because the next key is too long for them.
_PARAMS: Mapping[str, str] = {
    "ResmanDebugLevel": "4294967295", "RmLogonRC": "1", "ModifyDeviceFiles": "1", "DeviceFileUID": "0",
    "DeviceFileGID": "0", "DeviceFileMode": "438", "InitializeSystemMemoryAllocations": "1",
    "UsePageAttributeTable": "4294967295", "EnableMSI": "1", "EnablePCIeGen3": "0", "MemoryPoolSize": "0",
    "KMallocHeapMaxSize": "0", "VMallocHeapMaxSize": "0", "IgnoreMMIOCheck": "0", "EnableStreamMemOPs": "0",
    "EnableUserNUMAManagement": "1", "NvLinkDisable": "0", "RmProfilingAdminOnly": "1",
    "PreserveVideoMemoryAllocations": "0", "EnableS0ixPowerManagement": "0",
    "S0ixPowerManagementVideoMemoryThreshold": "256", "DynamicPowerManagement": "3",
    "DynamicPowerManagementVideoMemoryThreshold": "200", "RegisterPCIDriver": "1",
    "EnablePCIERelaxedOrderingMode": "0", "EnableResizableBar": "0", "EnableGpuFirmware": "18",
    "EnableGpuFirmwareLogs": "2", "RmNvlinkBandwidthLinkCount": "0", "EnableDbgBreakpoint": "0",
    "OpenRmEnableUnsupportedGpus": "1", "DmaRemapPeerMmio": "1", "ImexChannelCount": "2048",
    "CreateImexChannel0": "0", "GrdmaPciTopoCheckOverride": "0", "CoherentGPUMemoryMode": '""', "RegistryDwords": '""',
    "RegistryDwordsPerDevice": '""', "RmMsg": '""', "GpuBlacklist": '""', "TemporaryFilePath": '"/var/tmp"',
    "ExcludedGpus": '""',
}  # fmt: skip
_BUILD_DATE = "Wed Mar 26 19:06:55 UTC 2025"
_REGISTRY = 'Binary: ""\n'
MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm")


def params(machine: Machine) -> dict[str, str]:
    """Return the module's parameters, with those of the machine file over the defaults."""
    return {**_PARAMS, **machine.params}


def device_file_mode(machine: Machine) -> int:
    """Return the permission bits of the device nodes."""
    return int(params(machine)["DeviceFileMode"])


def files(machine: Machine) -> Iterator[tuple[str, str, int]]:
    """Yield (path below /, text, mode) of every file of the loaded modules under /proc/driver."""
    driver = machine.driver
    if driver is None or not machine.module_loaded:
        return
    base = "/proc/driver/nvidia"
    yield f"{base}/version", version(driver, machine.architecture), 0o444
    yield f"{base}/params", "".join(f"{key}: {value}\n" for key, value in params(machine).items()), 0o444
    yield f"{base}/registry", _REGISTRY, 0o644
    for gpu in machine.present_gpus:
        if gpu.on_pci:
            yield f"{base}/gpus/{gpu.bus}/information", information(gpu, driver), 0o444
            yield f"{base}/gpus/{gpu.bus}/registry", _REGISTRY, 0o644
    yield from _capabilities(machine, base)
    if machine.has_mig:
        yield "/proc/driver/nvidia-caps/mig-minors", mig_minors(), 0o444
    if machine.imex_management:
        yield "/proc/driver/nvidia-caps/sys-minors", f"fabric-imex-mgmt {CAP_IMEX_MANAGEMENT}\n", 0o444
    if machine.own_switches:
        yield from _switch_files(machine)


def _capabilities(machine: Machine, base: str) -> Iterator[tuple[str, str, int]]:
    if machine.has_mig:
        yield f"{base}/capabilities/mig/config", capability(CAP_MIG_CONFIG, 0o400), 0o400
        yield f"{base}/capabilities/mig/monitor", capability(CAP_MIG_MONITOR, 0o444), 0o444
    for gpu in machine.present_gpus:
        for instance in gpu.instances:
            directory = f"{base}/capabilities/gpu{gpu.minor}/mig/gi{instance.number}"
            yield f"{directory}/access", capability(capability_minor(gpu.minor, instance.number), 0o444), 0o444
            for compute in instance.compute:
                minor = capability_minor(gpu.minor, instance.number, compute.number)
                yield f"{directory}/ci{compute.number}/access", capability(minor, 0o444), 0o444
    if machine.imex_management:
        yield f"{base}/capabilities/fabric-imex-mgmt", capability(CAP_IMEX_MANAGEMENT, 0o400), 0o400


def _switch_files(machine: Machine) -> Iterator[tuple[str, str, int]]:
    permissions = f"DeviceFileMode: {device_file_mode(machine)}\n"
    yield "/proc/driver/nvidia-nvswitch/permissions", permissions, 0o444
    yield "/proc/driver/nvidia-nvlink/permissions", permissions, 0o444
    yield "/proc/driver/nvidia-nvlink/capabilities/fabric-mgmt", capability(0, 0o400), 0o400
    yield "/proc/driver/nvidia-caps/nvlink-minors", "fabric-mgmt 0\n", 0o444
    for switch in machine.own_switches:
        path = f"/proc/driver/nvidia-nvswitch/devices/{switch.bus}/information"
        yield path, "BIOS Version: 96.10.6D.00.01\n", 0o444


def version(driver: Driver, architecture: str) -> str:
    """Return /proc/driver/nvidia/version of the open or of the proprietary module."""
    compiler = "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
    if driver.open_kernel:
        kind = (
            f"NVIDIA UNIX Open Kernel Module for {architecture}  {driver.version}  Release Build  (dvs-builder@U22-I3)"
        )
    else:
        kind = f"NVIDIA UNIX {architecture} Kernel Module  {driver.version}"
    return f"NVRM version: {kind}  {_BUILD_DATE}\n{compiler}"


def information(gpu: Gpu, driver: Driver) -> str:
    """Return a GPU's information file."""
    firmware = f"GPU Firmware: \t {driver.version}\n" if driver.open_kernel else "GPU Firmware: \t N/A\n"
    return (
        f"Model: \t\t {gpu.name}\n"
        f"IRQ:   \t\t {interrupt(gpu)}\n"
        f"GPU UUID: \t {gpu.uuid}\n"
        f"Video BIOS: \t {gpu.answers.get('vbios_version', '96.00.74.00.01')}\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 52 bits\n"
        "DMA Mask: \t 0xfffffffffffff\n"
        f"Bus Location: \t {gpu.bus}\n"
        f"Device Minor: \t {gpu.minor}\n"
        f"{firmware}"
        "GPU Excluded:\t No\n"
    )


def interrupt(gpu: Gpu) -> int:
    """Return the interrupt line that proc and sysfs show."""
    return 180 + gpu.minor


def capability(minor: int, mode: int) -> str:
    """Return a capability file, which names a minor of nvidia-caps."""
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def mig_minors() -> str:
    """Return the table of all minors, whether or not the instances exist."""
    lines = [f"config {CAP_MIG_CONFIG}", f"monitor {CAP_MIG_MONITOR}"]
    for gpu in range(GPU_SLOTS):
        for instance in range(INSTANCE_SLOTS):
            base = capability_minor(gpu, instance)
            lines.append(f"gpu{gpu}/gi{instance}/access {base}")
            lines += [
                f"gpu{gpu}/gi{instance}/ci{compute}/access {base + 1 + compute}" for compute in range(COMPUTE_SLOTS)
            ]
    return "\n".join(lines) + "\n"


def majors(machine: Machine) -> list[tuple[int, str]]:
    """Return the character device majors that the loaded modules register."""
    driver = machine.driver
    if driver is None or not machine.module_loaded:
        return []
    found = [(MAJOR_NVIDIA, "nvidia" if driver.branch >= 545 else "nvidia-frontend")]
    found += [(MAJOR_NVIDIA, "nvidia-modeset"), (MAJOR_NVIDIA, "nvidiactl")]
    names = ["nvidia-uvm", "nvidia-caps"]
    names += ["nvidia-caps-imex-channels"] if driver.branch >= 550 else []
    names += ["nvidia-nvswitch", "nvidia-nvlink"] if machine.own_switches else []
    found += [(machine.majors[name], name) for name in names]
    return found + ([(MAJOR_DRM, "drm")] if machine.drm and machine.gpus else [])


def devices(machine: Machine, host: str) -> str:
    """Return /proc/devices: the host's lines without any NVIDIA ones, and the machine's."""
    head, _, tail = host.partition("\nBlock devices:")
    lines = [line for line in head.splitlines() if line.strip() and not line.startswith("Character")]
    known = [(int(line.split()[0]), line.split()[1]) for line in lines if not line.split()[1].startswith("nvidia")]
    own = [pair for pair in majors(machine) if pair not in known]
    text = "".join(f"{major:3d} {name}\n" for major, name in sorted([*known, *own], key=lambda pair: pair[0]))
    return f"Character devices:\n{text}\nBlock devices:{tail or chr(10)}"


def modules(machine: Machine, host: str) -> str:
    """Return /proc/modules: the machine's modules, then the host's."""
    kept = "".join(f"{line}\n" for line in host.splitlines() if not line.startswith("nvidia"))
    if not machine.module_loaded:
        return kept
    return (
        "nvidia_uvm 2162688 0 - Live 0x0000000000000000 (O)\n"
        "nvidia_drm 131072 0 - Live 0x0000000000000000 (O)\n"
        "nvidia_modeset 1736704 1 nvidia_drm, Live 0x0000000000000000 (O)\n"
        "nvidia 11571200 2 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (O)\n" + kept
    )
