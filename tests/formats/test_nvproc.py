"""The /proc texts of the driver: published forms, broken forms, and the round trip where there is one."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.formats import nvproc
from nvinject.formats.nvproc import Capability, DeviceClasses, GpuInformation, KernelModule, Parameter, ProcFormatError

OPEN_VERSION = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder@host)  Sun Jul 27 2025
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)
"""
PROPRIETARY_VERSION = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 187
GPU UUID: \t GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0
Video BIOS: \t 96.00.a8.00.01
Bus Type: \t PCIe
Bus Location: \t 0000:1a:00.0
Device Minor: \t 3
GPU Firmware: \t 580.65.06
GPU Excluded:\t No
"""
UNUSED_INFORMATION = """\
Model: \t\t Unknown
GPU UUID: \t GPU-????????-????-????-????-????????????
Video BIOS: \t ??.??.??.??.??
Bus Location: \t 0000:3b:00.0
Device Minor: \t 0
GPU Excluded:\t Yes
"""
DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
237 nvidia-caps
511 nvidia-uvm

Block devices:
  7 loop
"""


# What the driver and the kernel do, so that parsers can be held to the way back.


def format_params(parameters: tuple[Parameter, ...]) -> str:
    """Return the text of module parameters as the driver writes it."""
    return "".join(f"{parameter.name}: {parameter.value}\n" for parameter in parameters)


def format_devices(classes: DeviceClasses) -> str:
    """Return device classes as the kernel writes /proc/devices."""
    lines = ["Character devices:", *(f"{major:3d} {name}" for name, major in classes.character), ""]
    lines += ["Block devices:", *(f"{major:3d} {name}" for name, major in classes.block)]
    return "\n".join(lines) + "\n"


def format_mig_minors(minors: tuple[tuple[str, int], ...]) -> str:
    """Return the text of mig-minors."""
    return "".join(f"{name} {minor}\n" for name, minor in minors)


def format_capability(capability: Capability) -> str:
    """Return the text of a capability file."""
    return (
        f"DeviceFileMinor: {capability.minor}\n"
        f"DeviceFileMode: {capability.mode}\n"
        f"DeviceFileModify: {int(capability.modify)}\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_VERSION, KernelModule(version="580.65.06", open_source=True)),
        (PROPRIETARY_VERSION, KernelModule(version="550.54.15", open_source=False)),
        ("GCC version: gcc 13.3.0\nNVRM version: x 470.10\n", KernelModule(version="470.10", open_source=False)),
    ],
)
def test_version_file(text: str, expected: KernelModule) -> None:
    """The module's version is found in both flavours, and never the compiler's."""
    assert nvproc.parse_version_file(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            INFORMATION,
            GpuInformation(
                minor=3,
                uuid="GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
                bus_location="0000:1a:00.0",
                model="NVIDIA H200",
                firmware="580.65.06",
            ),
        ),
        (
            UNUSED_INFORMATION,
            GpuInformation(minor=0, uuid="", bus_location="0000:3b:00.0", model="Unknown", excluded=True),
        ),
        ("Device Minor: 1\na line of tomorrow\n", GpuInformation(minor=1, uuid="", bus_location="")),
    ],
)
def test_information(text: str, expected: GpuInformation) -> None:
    """A GPU's file is read whatever its tabs; a UUID of question marks is no UUID."""
    assert nvproc.parse_information(text) == expected


def test_devices() -> None:
    """Both sections are told apart and a shared major is kept for each name."""
    assert nvproc.parse_devices(DEVICES) == DeviceClasses(
        character=(("mem", 1), ("nvidia", 195), ("nvidia-modeset", 195), ("nvidia-caps", 237), ("nvidia-uvm", 511)),
        block=(("loop", 7),),
    )
    assert format_devices(nvproc.parse_devices(DEVICES)) == DEVICES


def test_mig_minors() -> None:
    """Each line is a name and a minor."""
    text = "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n"
    expected = (("config", 1), ("monitor", 2), ("gpu0/gi0/access", 3), ("gpu0/gi0/ci0/access", 4))
    assert nvproc.parse_mig_minors(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DeviceFileMinor: 3\nDeviceFileMode: 292\nDeviceFileModify: 1\n", Capability(minor=3)),
        ("DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 0\n", Capability(minor=1, mode=256, modify=False)),
        ("DeviceFileMinor: 9\n", Capability(minor=9)),
    ],
)
def test_capability(text: str, expected: Capability) -> None:
    """The minor is what counts; mode and modify have the driver's defaults."""
    assert nvproc.parse_capability(text) == expected


BROKEN: list[tuple[Callable[[str], object], str, int, str]] = [
    (nvproc.parse_version_file, "", 0, "no line 'NVRM version:'"),
    (nvproc.parse_version_file, "a\nNVRM version: NVIDIA x86_64\n", 2, "no driver version"),
    (nvproc.parse_params, "EnableMSI: 1\nEnableMSI=1\n", 2, "not a parameter"),
    (nvproc.parse_params, ": 1\n", 1, "not a parameter"),
    (nvproc.parse_information, "Model: x\n", 0, "no line 'Device Minor:'"),
    (nvproc.parse_information, "Model: x\nDevice Minor: \t N/A\n", 2, "the device minor is no number"),
    (nvproc.parse_information, "Device Minor: ²\n", 1, "the device minor is no number"),
    (nvproc.parse_devices, "195 nvidia\n", 1, "not a device class"),
    (nvproc.parse_devices, "Character devices:\nnvidia 195\n", 2, "not a device class"),
    (nvproc.parse_devices, "Character devices:\n195\n", 2, "not a device class"),
    (nvproc.parse_mig_minors, "config 1\n\nmonitor 2\n", 2, "not a capability and its minor"),
    (nvproc.parse_mig_minors, "config one\n", 1, "not a capability and its minor"),
    (nvproc.parse_capability, "DeviceFileMode: 292\n", 0, "no line 'DeviceFileMinor:'"),
    (nvproc.parse_capability, "DeviceFileMinor: -1\n", 1, "DeviceFileMinor is no number"),
]


@pytest.mark.parametrize(("parse", "text", "number", "problem"), BROKEN)
def test_broken_text(parse: Callable[[str], object], text: str, number: int, problem: str) -> None:
    """A text that no driver writes is refused with its line."""
    with pytest.raises(ProcFormatError) as caught:
        parse(text)
    assert (caught.value.number, caught.value.problem) == (number, problem)
    if number:
        assert str(caught.value) == f"line {number}: {problem}: {text.splitlines()[number - 1]!r}"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('EnableMSI: 1\nModifyDeviceFiles: 1\nRmMsg: ""\n', 'EnableMSI: 1\nModifyDeviceFiles: 0\nRmMsg: ""\n'),
        ("ModifyDeviceFiles: 0\n", "ModifyDeviceFiles: 0\n"),
        ("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"),
        ("ModifyDeviceFiles: 10\nDontModifyDeviceFiles: 1\n", "ModifyDeviceFiles: 10\nDontModifyDeviceFiles: 1\n"),
        ("", ""),
    ],
)
def test_mask_params(text: str, masked: str) -> None:
    """Only the one line changes, byte for byte."""
    assert nvproc.mask_params(text) == masked


NAMES = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-/_", min_size=1)
NUMBERS = st.integers(min_value=0, max_value=2**32 - 1)
VALUES = st.one_of(NUMBERS.map(str), st.text(st.characters(exclude_characters="\n")).map(lambda text: f'"{text}"'))
PAIRS = st.lists(st.tuples(NAMES, NUMBERS)).map(tuple)
PARAMETERS = st.lists(st.builds(Parameter, name=NAMES, value=VALUES)).map(tuple)


@given(PARAMETERS)
def test_params_round_trip(parameters: tuple[Parameter, ...]) -> None:
    """Reading what was written gives the same parameters."""
    assert nvproc.parse_params(format_params(parameters)) == parameters


@given(PARAMETERS, st.integers(min_value=0, max_value=9))
def test_mask_changes_one_parameter(parameters: tuple[Parameter, ...], place: int) -> None:
    """Masking equals changing that one value, wherever it stands."""
    switch = Parameter(name="ModifyDeviceFiles", value="1")
    before, after = parameters[:place], parameters[place:]
    masked = nvproc.mask_params(format_params((*before, switch, *after)))
    expected = [one.replace(value="0") if one == switch else one for one in (*before, switch, *after)]
    assert nvproc.parse_params(masked) == tuple(expected)


@given(st.builds(DeviceClasses, character=PAIRS, block=PAIRS))
def test_devices_round_trip(classes: DeviceClasses) -> None:
    """Reading what was written gives the same classes."""
    assert nvproc.parse_devices(format_devices(classes)) == classes


@given(PAIRS)
def test_mig_minors_round_trip(minors: tuple[tuple[str, int], ...]) -> None:
    """Reading what was written gives the same minors."""
    assert nvproc.parse_mig_minors(format_mig_minors(minors)) == minors


@given(st.builds(Capability, minor=NUMBERS, mode=NUMBERS, modify=st.booleans()))
def test_capability_round_trip(capability: Capability) -> None:
    """Reading what was written gives the same capability."""
    assert nvproc.parse_capability(format_capability(capability)) == capability


@given(st.text())
def test_readers_raise_nothing_else(text: str) -> None:
    """Any text is either read or refused with ProcFormatError."""
    readers: tuple[Callable[[str], object], ...] = (
        nvproc.parse_version_file,
        nvproc.parse_params,
        nvproc.parse_information,
        nvproc.parse_devices,
        nvproc.parse_mig_minors,
        nvproc.parse_capability,
    )
    for read in readers:
        with contextlib.suppress(ProcFormatError):
            read(text)
