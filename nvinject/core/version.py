"""Versions: dotted numbers as drivers and requirements write them, and the looser CUDA_VERSION of old images.

Belongs here: reading, writing and ordering versions. Does not belong here: what a version is compared for
(requirements.py) and where it was found.
"""

from nvinject.errors import InputError, quoted

# Longer than any real component, and short enough that int() never meets Python's limit on digits.
_LONGEST_COMPONENT = 18


def is_decimal(text: str) -> bool:
    """Tell whether the text is a plain decimal number: ASCII digits only, of a sane length."""
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_COMPONENT


def parse_version(text: str) -> tuple[int, ...]:
    """Return the components of a dotted version of any length (`535.161.08` is 535, 161, 8).

    Raises ValueError for anything but digits separated by single dots.
    """
    components = text.split(".")
    if not all(is_decimal(component) for component in components):
        raise ValueError(f"{quoted(text)} is no version: digits separated by dots are expected")
    return tuple(int(component) for component in components)


def format_version(version: tuple[int, ...]) -> str:
    """Return the components joined with dots."""
    return ".".join(str(component) for component in version)


def compare_versions(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Return -1, 0 or 1 as left is older than, equal to or newer than right.

    The first differing component decides; trailing zeros say nothing (12 equals 12.0, 450.80 equals 450.80.00).
    """
    shorter, longer = _without_trailing_zeros(left), _without_trailing_zeros(right)
    return (shorter > longer) - (shorter < longer)


def _without_trailing_zeros(version: tuple[int, ...]) -> tuple[int, ...]:
    end = len(version)
    while end and not version[end - 1]:
        end -= 1
    return version[:end]


def parse_cuda_version(text: str) -> tuple[int, int]:
    """Return major and minor of the CUDA_VERSION that images without NVIDIA_REQUIRE_CUDA carry.

    It is read as a semantic version with one to three components; a leading `v`, a pre-release (`-rc1`) and build
    metadata (`+build`) are let pass, four components are not, as in the original. Raises InputError.
    """
    core = text.removeprefix("v")
    core, plus, build = core.partition("+")
    core, dash, pre_release = core.partition("-")
    components = core.split(".")
    good = len(components) <= 3 and all(is_decimal(component) for component in components)
    if not good or (plus and not _is_label(build)) or (dash and not _is_label(pre_release)):
        raise InputError(
            f"CUDA_VERSION={quoted(text)} is no version of CUDA",
            "one to three numbers separated by dots are expected, such as 11.4.2",
        )
    major, minor, *_ = [*(int(component) for component in components), 0]
    return major, minor


def _is_label(text: str) -> bool:
    """Tell whether text is the dotted label that semver allows after `-` or `+`."""
    return all(part and part.isascii() and part.replace("-", "a").isalnum() for part in text.split("."))
