"""The cases: what is run, in which container, on which machine.

Belongs here: data. Does not belong here: making containers (scene.py), running (worker.py), order
(__main__.py) and counting (results.py).
"""

from dataclasses import asdict, dataclass
from typing import Any

TWO, EIGHT = "two-h100", "h100x8"
ALL = ("NVIDIA_VISIBLE_DEVICES=all",)
EVERYTHING = (*ALL, "NVIDIA_DRIVER_CAPABILITIES=all")

# What the container's ld.so.cache is like: written for what is there; older than a file of ld.so.conf.d and some
# libraries, as in images of CUDA; not there.
FRESH, STALE, NONE = "fresh", "stale", "none"


@dataclass(frozen=True)
class Image:
    """A root file system: a small one, with as many libraries as asked for."""

    libraries: int = 10
    cache: str = FRESH


@dataclass(frozen=True)
class Case:
    """One thing that is timed.

    `group` says what it takes: floor, hook (a created container), create and call (a bundle), cdi (nothing).
    `implementation` is the command, by default our own of that group. `limit` is the highest ratio to the floor, of the
    difference where another case is named in `above`. `axis` puts a case into a plot of growth.
    """

    name: str
    title: str
    group: str
    machine: str = TWO
    image: Image = Image()
    environment: tuple[str, ...] = ()
    mounts: int = 0
    rules: int = 0
    config: bool = False
    limit: float | None = None
    above: str = ""
    axis: tuple[str, int] | None = None
    implementation: str = ""

    def as_mapping(self) -> dict[str, Any]:
        """Return the case for a worker, as JSON knows it."""
        return asdict(self)


FLOOR = Case("floor", "python3 -IS -c pass", "floor")

LIBRARIES = Image(2000)

MAIN = (
    FLOOR,
    Case("hook-none", "hook, no GPU asked for", "hook", limit=1.2),
    Case("hook-2", "hook, 2 GPUs, small image", "hook", environment=ALL, limit=3.0),
    Case("hook-2-config", "hook, 2 GPUs, small image, config.toml", "hook", environment=ALL, config=True, limit=3.0),
    Case("hook-2-fresh", "hook, 2 GPUs, 2,000 libraries", "hook", TWO, LIBRARIES, ALL, limit=4.0),
    Case("hook-2-stale", "hook, 2 GPUs, 2,000 libraries, stale cache", "hook", TWO, Image(2000, STALE), ALL, limit=4.0),
    Case("hook-2-rebuilt", "hook, 2 GPUs, 2,000 libraries, no cache", "hook", TWO, Image(2000, NONE), ALL),
    Case("hook-8-all", "hook, 8 GPUs, all capabilities", "hook", EIGHT, Image(), EVERYTHING, limit=4.5),
    Case("runc-create", "runc create, small image", "create", environment=ALL, implementation="runc"),
    Case("shim-create", "shim create, above runc", "create", environment=ALL, above="runc-create", limit=4.5),
    Case("runc-create-2000", "runc create, 2,000 libraries", "create", TWO, LIBRARIES, ALL, implementation="runc"),
    Case(
        "shim-create-2000",
        "shim create, 2,000 libraries, above runc",
        "create",
        TWO,
        LIBRARIES,
        ALL,
        above="runc-create-2000",
        limit=4.5,
    ),
    Case("runc-state", "runc state", "call", environment=ALL, implementation="runc"),
    Case("shim-state", "shim state, above runc", "call", environment=ALL, above="runc-state", limit=0.5),
    Case("cdi-8", "CDI spec for 8 GPUs, JSON", "cdi", EIGHT, limit=6.0),
)


AXES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("GPUs", (1, 2, 4, 8, 16)),
    ("libraries in the image", (10, 100, 1000, 2000, 5000, 10000)),
    ("mounts", (0, 50, 100, 200, 400)),
    ("device rules", (0, 50, 100, 200, 400)),
)
# The shim in front of a runtime that does nothing, because runtimes' own times grow too; and a container that gets no
# hook, so that nothing is left to a process that stands by.
SHIM_ALONE = "shim-alone"
GROWING = (("hook", "hook", ""), ("shim", "create", SHIM_ALONE))


def growth() -> tuple[Case, ...]:
    """Return the cases that show how the time of hook and shim grows."""
    return tuple(
        Case(
            f"{program}-{axis}-{size}",
            f"{program}, {size} {axis}",
            group,
            f"h100x{size}" if axis == "GPUs" else TWO,
            Image(size) if axis.startswith("libraries") else Image(),
            ALL,
            mounts=size if axis == "mounts" else 0,
            rules=size if axis == "device rules" else 0,
            axis=(f"{axis} ({program})", size),
            implementation=implementation,
        )
        for program, group, implementation in GROWING
        for axis, sizes in AXES
        for size in sizes
    )
