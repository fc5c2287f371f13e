"""CUDA forward compatibility: whether an image's own driver libraries come before the host's.

Belongs here: the choice, as a function of versions, GPUs and configuration. Does not belong here: looking into the
image (nvinject.host.layout) or the loader cache (nvinject.render.loadercache). Whatever is chosen, nothing of an image
is ever mounted: the libraries stay where they are and only the loader's order changes (CVE-2025-23359).
"""

from nvinject.core.model import CompatNote
from nvinject.core.version import compare_versions, parse_version
from nvinject.record import Record

# cuInit fails with error 804 on these: forward compatibility is for data centre GPUs (CUDA Compatibility, section 4).
UNSUPPORTED_MODELS = ("GeForce", "TITAN")

# Values of cuda-compat-mode under which an image's libraries may count. The original's ways differ (its command line
# tool, mounts, a hook of its runtime); here each is the loader's order.
USED_MODES = ("ldconfig", "mount", "hook")


class CompatChoice(Record):
    """The directory that the loader shall look at first ("" for none) and why."""

    directory: str = ""
    reason: str = ""


def choose_compat(
    directory: str,
    version: str,
    driver_version: str,
    mode: str,
    *,
    note: CompatNote | None = None,
    cuda_version: str = "",
    models: tuple[str, ...] = (),
) -> CompatChoice:
    """Return whether libraries made for driver `version` shall win over the host's of `driver_version`.

    `mode` is the configured cuda-compat-mode, `note` what the libraries say of themselves, `models` the names of
    visible GPUs. Libraries without a note count if their branch is newer: within one branch the host's own fit its
    kernel module by construction. A note names the branches of drivers that its libraries run on, and then a newer
    version of the same branch counts too. `cuda_version` is the host's where that is what shall be compared: without a
    `driver_version` it has to be older than the libraries' own, which only a note tells.
    """
    if not directory or not version:
        return CompatChoice()
    refusal = _refusal(mode, models)
    if refusal:
        return CompatChoice(reason=f"libraries in {directory} are not used: {refusal}")
    theirs, ours = _parse(version), _parse(driver_version)
    if note is not None:
        return _choose_by_note(directory, (theirs, ours), note, cuda_version)
    if cuda_version or theirs is None or ours is None:
        unknown = version if theirs is None else driver_version
        problem = "they do not tell their CUDA version" if cuda_version else f"version {unknown!r} cannot be compared"
        return CompatChoice(reason=f"libraries in {directory} are not used: {problem}")
    if theirs[0] <= ours[0]:
        return CompatChoice(reason=f"libraries in {directory} are for {version}, not newer than the driver's branch")
    return CompatChoice(directory=directory, reason=f"for driver {version}, newer than the host's {driver_version}")


def choose_version(versions: tuple[str, ...]) -> str:
    """Return the newest of the versions that files named libcuda.so.VERSION are for, "" where none is a version.

    The original uses no libraries at all where there are several such files.
    """
    usable = [version for version in versions if "." in version and _parse(version) is not None]
    return max(usable, key=parse_version, default="")


def _refusal(mode: str, models: tuple[str, ...]) -> str:
    """Return why no libraries of any version are used, "" where they may be."""
    if mode not in USED_MODES:
        return f"cuda-compat-mode is {mode!r}"
    for model in models:
        if any(name in model for name in UNSUPPORTED_MODELS):
            return f"{model} does not support forward compatibility"
    return ""


def _choose_by_note(
    directory: str,
    versions: "tuple[tuple[int, ...] | None, tuple[int, ...] | None]",
    note: CompatNote,
    cuda_version: str,
) -> CompatChoice:
    theirs, ours = versions
    if theirs is not None and ours is not None:
        if ours[0] not in note.drivers:
            known = ", ".join(str(driver) for driver in note.drivers) or "none"
            return CompatChoice(reason=f"libraries in {directory} run on driver branches {known}, not on {ours[0]}")
        if compare_versions(theirs, ours) <= 0:
            return CompatChoice(reason=f"libraries in {directory} are not newer than the driver")
        return CompatChoice(directory=directory, reason=f"newer than the driver, and made for its branch {ours[0]}")
    brought, there = _parse(note.cuda_version), _parse(cuda_version)
    if brought is None or there is None:
        return CompatChoice(reason=f"libraries in {directory} are not used: no version can be compared")
    if compare_versions(brought, there) <= 0:
        return CompatChoice(
            reason=f"libraries in {directory} bring CUDA {note.cuda_version}, the host has {cuda_version}"
        )
    return CompatChoice(directory=directory, reason=f"CUDA {note.cuda_version}, newer than the host's {cuda_version}")


def _parse(version: str) -> "tuple[int, ...] | None":
    try:
        return parse_version(version)
    except ValueError:
        return None
