"""Implementations: small YAML files that say how an injector is called.

Belongs here: their shape and where they are found. Does not belong here: calling them (attempt.py for hooks, shim.py
for runtimes). `{python}`, `{prefix}` (a directory of the run), `{root}` (the machine's root), `{stage}` (the hook's
stage) and `{runtime}` (the low-level runtime) are filled in. `differences` says what a container sees otherwise than
the cases expect, each with its reason: mounts at or below a path (`nodes`: those of device nodes) look otherwise or are
missing, in some lanes or some containers. `skips` are cases that are not about such an injector, by id.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvconform.case import LANES
from nvconform.casefile import FAILURES
from nvconform.shapes import Document, DocumentError, choice, integer, list_of, mapping_of, record, text

# How an injector comes into a container's life.
KINDS = ("hook", "runtime")
# Where a difference holds: in a lane, or in containers whose root file system is read-only.
CONDITIONS = (*LANES, "read-only")
ADAPTERS = Path(__file__).parent / "adapters"
DEFAULT = "nvinject-hook"

_SHAPE = record(
    {
        "name": text,
        "title": text,
        "install": list_of(text),
        "command": list_of(text),
        "kind": choice(*KINDS),
        "environment": mapping_of(text),
        "configuration": mapping_of(mapping_of(list_of(text))),
        "differences": list_of(
            record(
                {"path": text, "becomes": text, "when": list_of(choice(*CONDITIONS)), "because": text},
                ("path", "because"),
            )
        ),
        "skips": mapping_of(text),
        "config-variable": text,
        "roots": mapping_of(mapping_of(text)),
        "exit-codes": record(dict.fromkeys(FAILURES, integer)),
        "message": record({"prefix": text, "lines": integer}),
        "lanes": list_of(choice(*LANES)),
    },
    ("name", "command"),
)


@dataclass(frozen=True)
class Implementation:
    """One injector: its name, the lanes that it can work in, and the checked document for the worker."""

    name: str
    title: str
    lanes: tuple[str, ...]
    document: dict[str, Any]


def load(name: str) -> Implementation:
    """Return an implementation by the name of its adapter or by the path of an adapter file.

    Raises: DocumentError, which lists the known names.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else ADAPTERS / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(entry.stem for entry in ADAPTERS.glob("*.yaml")))
        raise DocumentError(f"no implementation {name}: known are {known}; a path to an adapter file works too")
    document = Document(path)
    document.check(_SHAPE)
    value = document.value
    return Implementation(
        name=value["name"],
        title=value.get("title", value["name"]),
        lanes=tuple(value.get("lanes", LANES)),
        document=value,
    )
