"""CUDA forward compatibility: whether an image's own driver libraries come before the host's.

Belongs here: the choice, as a function of versions and configuration. Does not belong here: looking into the image
(nvinject.host.layout) or the loader cache (nvinject.render.loadercache). Whatever is chosen, nothing of an image is ever
mounted: the libraries stay where they are and only the loader's order changes (design.md, decision 4; CVE-2025-23359).
"""

from nvinject.core.version import parse_version
from nvinject.record import Record


class CompatChoice(Record):
    """The directory that the loader shall look at first ("" for none) and why."""

    directory: str = ""
    reason: str = ""


def choose_compat(directory: str, version: str, driver_version: str, mode: str) -> CompatChoice:
    """Return whether libraries made for driver `version` shall win over the host's of `driver_version`.

    `mode` is the configured cuda-compat-mode. Only a newer major branch counts: within one branch the host's own
    libraries fit its kernel module by construction, and an older branch would take features away.
    """
    if not directory or not version:
        return CompatChoice()
    if mode not in {"ldconfig", "mount"}:
        return CompatChoice(reason=f"libraries in {directory} are not used: cuda-compat-mode is {mode!r}")
    try:
        newer = parse_version(version)[0] > parse_version(driver_version)[0]
    except ValueError:
        return CompatChoice(reason=f"libraries in {directory} are not used: version {version!r} cannot be compared")
    if not newer:
        return CompatChoice(reason=f"libraries in {directory} are for {version}, not newer than the driver's branch")
    return CompatChoice(directory=directory, reason=f"for driver {version}, newer than the host's {driver_version}")
