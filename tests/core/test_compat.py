"""CUDA forward compatibility: the whole decision as tables, from the bytes of an image's libraries to the choice."""

import pytest

from nvinject.core.compat import choose_compat, choose_version
from nvinject.core.model import CompatNote
from nvinject.formats.compatnote import read_forward_note
from tests.formats.test_compatnote import build

PLACE = "/usr/local/cuda-12.9/compat"


def note(*drivers: int, cuda: str = "12.9") -> CompatNote:
    return CompatNote(drivers=drivers, cuda_version=cuda)


NONE = None
H100 = "NVIDIA H100 80GB HBM3"
# libraries' version, driver, mode, note, host's CUDA version, models, used?, word of the reason
CHOICES = [
    # without a note: the branch decides
    ("575.51.03", "570.133.20", "ldconfig", NONE, "", (), True, "newer than the host's 570.133.20"),
    ("575.51.03", "570.133.20", "mount", NONE, "", (), True, "newer"),
    ("570.195.03", "570.133.20", "ldconfig", NONE, "", (), False, "not newer than the driver's branch"),
    ("550.54.15", "570.133.20", "ldconfig", NONE, "", (), False, "not newer"),
    ("1000.1", "999.2", "ldconfig", NONE, "", (), True, "newer"),
    ("newest", "570.133.20", "ldconfig", NONE, "", (), False, "'newest' cannot be compared"),
    ("575.51.03", "", "ldconfig", NONE, "", (), False, "'' cannot be compared"),
    # without a note, and CUDA versions shall be compared: they do not tell theirs
    ("575.51.03", "", "ldconfig", NONE, "12.8", (), False, "do not tell their CUDA version"),
    ("575.51.03", "570.133.20", "ldconfig", NONE, "12.8", (), False, "do not tell their CUDA version"),
    # switched off
    ("575.51.03", "570.133.20", "disabled", NONE, "", (), False, "cuda-compat-mode is 'disabled'"),
    ("575.51.03", "570.133.20", "hook", NONE, "", (), True, "newer"),
    ("575.51.03", "570.133.20", "sometimes", NONE, "", (), False, "cuda-compat-mode is 'sometimes'"),
    # GPUs on which it fails
    ("575.51.03", "570.133.20", "ldconfig", NONE, "", (H100,), True, "newer"),
    ("575.51.03", "570.133.20", "ldconfig", NONE, "", (H100, "NVIDIA GeForce RTX 4090"), False, "GeForce RTX 4090"),
    ("575.51.03", "570.133.20", "ldconfig", note(570), "", ("NVIDIA TITAN RTX",), False, "TITAN RTX"),
    # with a note: the driver's branch has to be named, the version to be newer, if only within the branch
    ("580.126.1", "580.65.6", "ldconfig", note(535, 570, 580), "", (), True, "made for its branch 580"),
    ("580.126.1", "570.133.20", "ldconfig", note(535, 570, 580), "", (), True, "made for its branch 570"),
    ("580.126.1", "550.54.15", "ldconfig", note(535, 570, 580), "", (), False, "branches 535, 570, 580, not on 550"),
    ("580.65.6", "580.65.6", "ldconfig", note(580), "", (), False, "not newer than the driver"),
    ("580.65.6", "580.126.1", "ldconfig", note(580), "", (), False, "not newer than the driver"),
    ("580.65.6", "570.133.20", "ldconfig", note(), "13.0", (), False, "branches none"),
    # with a note and no driver version: the CUDA version decides
    ("580.65.6", "", "ldconfig", note(580, cuda="13.0"), "12.8", (), True, "CUDA 13.0, newer than the host's 12.8"),
    ("580.65.6", "", "ldconfig", note(580, cuda="12.8"), "12.8", (), False, "bring CUDA 12.8, the host has 12.8"),
    ("580.65.6", "", "ldconfig", note(580, cuda=""), "12.8", (), False, "no version can be compared"),
    ("580.65.6", "", "ldconfig", note(580), "", (), False, "no version can be compared"),
]


@pytest.mark.parametrize(("version", "driver", "mode", "header", "cuda", "models", "used", "word"), CHOICES)
def test_choice(
    version: str,
    driver: str,
    mode: str,
    header: CompatNote | None,
    cuda: str,
    models: tuple[str, ...],
    word: str,
    *,
    used: bool,
) -> None:
    """Each row is a host, an image and a configuration."""
    choice = choose_compat(PLACE, version, driver, mode, note=header, cuda_version=cuda, models=models)
    assert choice.directory == (PLACE if used else "")
    assert word in choice.reason


def elf(*drivers: object, cuda: object = "12.9", **more: object) -> bytes:
    """Return a library whose note names drivers and a CUDA version."""
    return build({"Format": 1, "CUDA Version": cuda, "Driver": list(drivers), "Device": [], **more})


PLAIN = b"\x7fELF\x02\x01\x01" + bytes(57)  # no sections, so no note
# rule, files of the image by version, host's driver, its CUDA version, mode, models, the version that is used
RULES = [
    # what is looked at: files libcuda.so.A.B, of which the newest counts
    ("no files", {}, "570.133.20", "", "ldconfig", (), ""),
    ("no version", {"1": PLAIN, "so.1.bak": PLAIN, "": PLAIN}, "570.133.20", "", "ldconfig", (), ""),
    ("several", {"550.54.15": PLAIN, "575.57.08": PLAIN}, "570.133.20", "", "ldconfig", (), "575.57.08"),
    ("several, numbers and not text", {"999.1": PLAIN, "1000.1": PLAIN}, "999.2", "", "ldconfig", (), "1000.1"),
    ("several, the newest is unfit", {"575.57.08": PLAIN, "580.65.06": elf(550)}, "570.133.20", "", "ldconfig", (), ""),
    # nothing to compare with
    ("neither driver nor CUDA", {"575.57.08": PLAIN}, "", "", "ldconfig", (), ""),
    ("the driver is no version", {"575.57.08": PLAIN}, "unknown", "", "ldconfig", (), ""),
    # libraries without a note: the branch
    ("newer branch", {"575.57.08": PLAIN}, "570.133.20", "", "ldconfig", (), "575.57.08"),
    ("same branch, newer", {"570.195.03": PLAIN}, "570.133.20", "", "ldconfig", (), ""),
    ("older branch", {"550.54.15": PLAIN}, "570.133.20", "", "ldconfig", (), ""),
    ("older branch, mode mount", {"550.54.15": PLAIN}, "570.133.20", "", "mount", (), ""),
    ("no note, CUDA asked for", {"575.57.08": PLAIN}, "", "12.8", "ldconfig", (), ""),
    # libraries with a note: the driver's branch is named, the version is newer
    ("note, newer branch", {"580.65.06": elf(570, 580)}, "570.133.20", "", "ldconfig", (), "580.65.06"),
    ("note, same branch, newer", {"580.126.09": elf(570, 580)}, "580.65.06", "", "ldconfig", (), "580.126.09"),
    ("note, same version", {"580.65.06": elf(580)}, "580.65.06", "", "ldconfig", (), ""),
    ("note, older", {"580.65.06": elf(570, 580)}, "580.126.09", "", "ldconfig", (), ""),
    ("note, branch not named", {"580.65.06": elf(535, 550)}, "570.133.20", "", "ldconfig", (), ""),
    ("note, no branches", {"580.65.06": elf()}, "570.133.20", "", "ldconfig", (), ""),
    # a note and no driver version: the CUDA version
    ("note, newer CUDA", {"580.65.06": elf(580, cuda="13.0")}, "", "12.8", "ldconfig", (), "580.65.06"),
    ("note, same CUDA", {"580.65.06": elf(580, cuda="12.8")}, "", "12.8", "ldconfig", (), ""),
    ("note, CUDA no version", {"580.65.06": elf(580, cuda="new")}, "", "12.8", "ldconfig", (), ""),
    ("note, CUDA not known", {"580.65.06": elf(580, cuda="13.0")}, "", "", "ldconfig", (), ""),
    (
        "note, both known, branch named",
        {"580.65.06": elf(570, cuda="1.0")},
        "570.1",
        "12.8",
        "ldconfig",
        (),
        "580.65.06",
    ),
    ("note, both known, not named", {"580.65.06": elf(550, cuda="99.0")}, "570.1", "12.8", "ldconfig", (), ""),
    # what is no note counts as none, so the branch decides
    ("drivers are text", {"580.65.06": elf("570")}, "570.133.20", "", "ldconfig", (), "580.65.06"),
    ("another owner", {"570.195.03": build(owner=b"somebody")}, "570.133.20", "", "ldconfig", (), ""),
    ("another section", {"570.195.03": build(section=b".note.other")}, "570.133.20", "", "ldconfig", (), ""),
    ("no JSON", {"575.57.08": build(b"{")}, "570.133.20", "", "ldconfig", (), "575.57.08"),
    ("no ELF", {"575.57.08": b"#!/bin/sh\n"}, "570.133.20", "", "ldconfig", (), "575.57.08"),
    ("32 bits", {"580.126.09": build(bits=32)}, "580.65.06", "", "ldconfig", (), "580.126.09"),
    # the configuration, which goes before all
    ("disabled", {"575.57.08": PLAIN}, "570.133.20", "", "disabled", (), ""),
    ("disabled, with a note", {"580.126.09": elf(580)}, "580.65.06", "", "disabled", (), ""),
    ("mount is ldconfig", {"575.57.08": PLAIN}, "570.133.20", "", "mount", (), "575.57.08"),
    ("hook is ldconfig", {"575.57.08": PLAIN}, "570.133.20", "", "hook", (), "575.57.08"),
    # the GPUs
    ("a workstation's GPU", {"575.57.08": PLAIN}, "570.133.20", "", "ldconfig", (H100, "NVIDIA GeForce RTX 4090"), ""),
    ("GPUs of data centres", {"575.57.08": PLAIN}, "570.133.20", "", "ldconfig", (H100, "Tesla T4"), "575.57.08"),
]


@pytest.mark.parametrize(
    ("rule", "files", "driver", "cuda", "mode", "models", "used"),
    RULES,
    ids=lambda value: value if isinstance(value, str) and " " in value else None,
)
def test_rules(
    rule: str, files: dict[str, bytes], driver: str, cuda: str, mode: str, models: tuple[str, ...], used: str
) -> None:
    """The whole way: names and bytes of files, host, configuration; nothing of it looks at a machine."""
    newest = choose_version(tuple(files))
    data = files.get(newest, b"")
    found = read_forward_note(lambda offset, size: data[offset : offset + size])
    header = None if found is None else CompatNote(drivers=found.drivers, cuda_version=found.cuda_version)
    place = PLACE if newest else ""
    choice = choose_compat(place, newest, driver, mode, note=header, cuda_version=cuda, models=models)
    assert (newest if choice.directory else "") == used, rule
    assert bool(choice.reason) == bool(newest)


def test_an_image_without_such_libraries_needs_no_reason() -> None:
    """Most images have none, and nobody wants to read about it."""
    assert choose_compat("", "", "570.133.20", "ldconfig").reason == ""
