"""CUDA forward compatibility: the whole decision as a table."""

import pytest

from nvinject.core.compat import choose_compat
from nvinject.core.model import CompatNote

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
    ("575.51.03", "", "ldconfig", NONE, "12.8", (), False, "do not tell their CUDA version"),
    # switched off
    ("575.51.03", "570.133.20", "disabled", NONE, "", (), False, "cuda-compat-mode is 'disabled'"),
    ("575.51.03", "570.133.20", "hook", NONE, "", (), False, "cuda-compat-mode is 'hook'"),
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


def test_an_image_without_such_libraries_needs_no_reason() -> None:
    """Most images have none, and nobody wants to read about it."""
    assert choose_compat("", "", "570.133.20", "ldconfig").reason == ""
