"""Hearing of changes that concern the driver: kernel events, and names that come and go in a few directories.

Belongs here: what is listened to, and which of it matters. Does not belong here: what is done then. Neither source is
complete (the driver announces no MIG devices, a package manager no uevents), so both are used, and whoever waits also
looks from time to time.
"""

import os
import select

from nvinject.core.catalog import CAPABILITY_DIRECTORY, IMEX_DIRECTORY, LIBRARY_DIRECTORIES
from nvinject.core.policy import MOUNT_SPEC_DIRECTORY, Roots
from nvinject.host.inventory import device_root
from nvinject.host.libraries import MACHINES
from nvinject.linux import inotify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

NVIDIA_PCI_ID = "10DE:"
NAME_PREFIXES = ("nvidia", "libnvidia", "libcuda", "card", "renderD")
# A Tegra system's own: nodes, libraries, and the lists of both.
TEGRA_PREFIXES = ("nvhost", "nvgpu", "nvmap", "libnv")
TEGRA_DIRECTORIES = (MOUNT_SPEC_DIRECTORY, "/usr/lib/aarch64-linux-gnu/nvidia", "/usr/lib/aarch64-linux-gnu/tegra")
LIST_SUFFIX = ".csv"
PROGRAM_DIRECTORIES = ("/usr/bin",)
_MASK = (
    inotify.IN_CREATE
    | inotify.IN_DELETE
    | inotify.IN_MOVED_FROM
    | inotify.IN_MOVED_TO
    | inotify.IN_CLOSE_WRITE
    | inotify.IN_ATTRIB
    | inotify.IN_ONLYDIR
)


def concerns_driver(event: "Mapping[str, Any]") -> bool:
    """Tell whether a uevent is about an NVIDIA device or module (kernel, lib/kobject_uevent.c: KEY=value pairs)."""
    subsystem, path = str(event.get("SUBSYSTEM", "")), str(event.get("DEVPATH", ""))
    if subsystem == "pci":
        return str(event.get("PCI_ID", "")).upper().startswith(NVIDIA_PCI_ID) or event.get("DRIVER") == "nvidia"
    if subsystem == "module":
        return path.startswith("/module/nvidia")
    if subsystem == "drm":
        return event.get("ACTION") in {"add", "remove"}
    return "nvidia" in path or str(event.get("DEVNAME", "")).startswith("nvidia")


class Changes:
    """Listens until closed; `problems` are sources that could not be had."""

    def __init__(self, roots: Roots) -> None:
        """Begin to listen."""
        self.problems: list[str] = []
        self._roots = roots
        self._inotify = inotify.inotify_init1(inotify.IN_CLOEXEC | inotify.IN_NONBLOCK)
        self._watches: dict[int, str] = {}
        self._uevents: Any = None
        self.renew()
        self._listen_to_kernel()

    def _listen_to_kernel(self) -> None:
        try:
            from pyroute2.netlink.uevent import MONITOR_GROUP_KERNEL, UeventSocket

            self._uevents = UeventSocket()
            self._uevents.bind(groups=MONITOR_GROUP_KERNEL)
        except (ImportError, OSError) as error:
            self._uevents = None
            self.problems.append(f"kernel events cannot be heard ({error}); directories are watched alone")

    def renew(self) -> None:
        """Watch directories that have come into being meanwhile."""
        for directory in self._directories():
            try:
                watch = inotify.inotify_add_watch(self._inotify, directory, _MASK)
            except OSError:
                continue  # not there (yet)
            self._watches[watch] = directory

    def _directories(self) -> list[str]:
        host = MACHINES.get(os.uname().machine)
        triplet = host.triplet if host else ""
        driver = "" if self._roots.driver == "/" else self._roots.driver
        dev = device_root(self._roots).rstrip("/")
        libraries = [
            directory.replace("{triplet}", triplet) for directory in LIBRARY_DIRECTORIES if "*" not in directory
        ]
        return [
            *(
                f"{driver}{directory}"
                for directory in (*libraries, *PROGRAM_DIRECTORIES, *TEGRA_DIRECTORIES)
                if directory != "/"
            ),
            *(f"{dev}{directory}" for directory in ("/dev", "/dev/dri", CAPABILITY_DIRECTORY, IMEX_DIRECTORY)),
        ]

    def wait(self, seconds: float) -> tuple[str, ...]:
        """Wait for something that matters, at most so long; returns what changed, nothing if the time is over."""
        import time

        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._inotify, select.POLLIN)
        if self._uevents is not None:
            poll.register(self._uevents.fileno(), select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            ready = poll.poll(max(left, 0) * 1000)
            found = [*self._read_names(), *self._read_events()] if ready else []
            if found or left <= 0:
                return tuple(dict.fromkeys(found))

    def _read_names(self) -> list[str]:
        try:
            data = os.read(self._inotify, 1 << 16)
        except BlockingIOError:
            return []
        found = []
        for watch, mask, name in inotify.parse_events(data):
            if mask & inotify.IN_Q_OVERFLOW:
                found.append("more than can be told")
            elif name.startswith((*NAME_PREFIXES, *TEGRA_PREFIXES)) or name.endswith(LIST_SUFFIX):
                found.append(f"{self._watches.get(watch, '')}/{name}")
        return found

    def _read_events(self) -> list[str]:
        if self._uevents is None:
            return []
        found = []
        poll = select.poll()
        poll.register(self._uevents.fileno(), select.POLLIN)
        while poll.poll(0):
            for event in self._uevents.get():
                if concerns_driver(event):
                    found.append(f"{event.get('ACTION', 'event')} {event.get('DEVPATH', '')}")
        return found

    def close(self) -> None:
        """Stop listening."""
        os.close(self._inotify)
        if self._uevents is not None:
            self._uevents.close()

    def __enter__(self) -> "Self":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        self.close()
