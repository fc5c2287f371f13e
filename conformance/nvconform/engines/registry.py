"""Which engines there are, by the names that `--runtime` takes.

Belongs here: the names alone.
"""

from nvconform.engines.containerd import Containerd
from nvconform.engines.docker import Docker
from nvconform.engines.engine import Engine
from nvconform.engines.podman import Podman

ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Podman, Docker, Containerd)}
LOW_LEVEL = ("runc", "crun")
RUNTIMES = (*LOW_LEVEL, *ENGINES)
