"""Features: what this machine, lane and runtime can do, found out by trying.

Belongs here: the names that cases use under `needs` and how each is probed. Does not belong here: skipping itself
(worker.py); a missing feature always comes with the reason.
"""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

V1_DEVICES = "/sys/fs/cgroup/devices"
V2 = "/sys/fs/cgroup"


@dataclass(frozen=True)
class Features:
    """What was found.

    `device_cgroup` is the hierarchy with device rules ("" without one that we may use), `reasons` tell by name what is
    missing, `chosen` are the names among them that the lane or the caller decides and not the machine.
    """

    device_cgroup: str
    device_rules_listed: bool
    reasons: dict[str, str]
    chosen: frozenset[str]

    @staticmethod
    def detect(lane: str, work: Path, user: int) -> "Features":
        """Probe this machine."""
        reasons: dict[str, str] = {}
        cgroup, listed = "", False
        if lane != "rootless":
            if Path(V1_DEVICES, "devices.list").exists():
                cgroup, listed = V1_DEVICES, True
            elif Path(V2, "cgroup.controllers").exists():
                cgroup = V2
        if not cgroup:
            reasons["device-rules"] = (
                "an ordinary user sets no device rules" if lane == "rootless" else "no device cgroup"
            )
        if not Path(V2, "cgroup.controllers").exists():
            reasons["cgroup-v2"] = "cgroups are not of version 2 alone (--cgroup v2 makes them so)"
        error = _try_mount(work)
        if error:
            reasons["mount"] = f"cannot mount a file system here: {error}"
        error = _try_user(user)
        if error:
            reasons["ordinary-user"] = f"cannot become an ordinary user here: {error}"
        chosen = {"cgroup-v2", *(["device-rules"] if lane == "rootless" else [])}
        return Features(cgroup, listed, reasons, frozenset(chosen))

    def missing(self, needs: Iterable[str]) -> str:
        """Return why a case cannot run, or "" when it can."""
        return "; ".join(self.reasons[name] for name in needs if name in self.reasons)

    def unproven(self, needs: Iterable[str]) -> str:
        """Return what a machine that proves this lane would have and this one lacks, "" where that is nothing.

        Device rules are no need of a case: without a hierarchy they are not looked at. Those of an ordinary user and
        the version of cgroups are as the lane and the caller chose them.
        """
        return self.missing(name for name in ("device-rules", *needs) if name not in self.chosen)

    def as_mapping(self) -> dict[str, object]:
        """Return the features for a report."""
        return {"device-cgroup": self.device_cgroup, "missing": self.reasons}


def _try_mount(work: Path) -> str:
    target = work / "probe"
    target.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "nvconform-probe", str(target)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if result.returncode:
        return result.stderr.strip()
    subprocess.run(["umount", str(target)], capture_output=True, timeout=20, check=False)
    return ""


def _try_user(user: int) -> str:
    try:
        subprocess.run(["true"], user=user, group=user, extra_groups=[], check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""
