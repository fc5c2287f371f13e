"""Implementations: small YAML files that say how an injector is called.

Belongs here: their shape and where they are found. Does not belong here: calling them (attempt.py for hooks, shim.py
for runtimes, devicespec.py for CDI). `{python}`, `{prefix}` (a directory of the run), `{root}` (the machine's root),
`{stage}` (the hook's stage) and `{runtime}` (the low-level runtime) are filled in. `differences` says what a container
sees otherwise than the cases expect, each with its reason: mounts at or below a path (`nodes`: those of device nodes;
`writable`: those of the host's that are not read-only) look otherwise or are missing, in some lanes or some containers
(`when`), with some runtimes. `skips` are cases that are not about such an injector, by id. `legacy` is, for a hook, a
runtime that adds it, for engines that start none. `requires` are programs
without which it cannot be judged. `features` is what it claims (all without the key). `deviations` are cases that it is
known to fail by design, pattern of ids -> reason; `original` says that the cases' `differs` is about it. For CDI,
`generate` writes a spec into `{specs}` by the settings in `{config}`, `command` applies it to `{bundle}`; `more` are
variables that ask for devices of other kinds, which have specs of their own, `hooks` those for which a hook has to be
enabled by name; `expects` is what every spec brings, `additions` are paths that it may bring beyond a case; `skips` may
be patterns of ids. `by-kind` names what every injector of its kind makes otherwise, which the code of the kind expects
(shim.py, devicespec.py). agreement.py makes a table of them all.
"""

import fnmatch
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvconform.case import LANES, Case
from nvconform.casefile import FAILURES
from nvconform.devicespec import unsuited
from nvconform.profiles import unclaimed
from nvconform.shapes import Document, DocumentError, choice, flag, integer, list_of, mapping_of, record, text

# How an injector comes into a container's life.
KINDS = ("hook", "runtime", "cdi")
# Where a difference holds: in a lane, or in containers whose root file system is read-only.
CONDITIONS = (*LANES, "read-only")
ADAPTERS = Path(__file__).parent / "adapters"
DEFAULT = "nvinject-hook"
# Debian keeps system programs where an ordinary user's PATH does not look.
SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"

_SHAPE = record(
    {
        "name": text,
        "title": text,
        "install": list_of(text),
        "command": list_of(text),
        "legacy": list_of(text),
        "generate": list_of(text),
        "hooks": mapping_of(text),
        "more": mapping_of(record({"mode": text, "kind": text}, ("mode", "kind"))),
        "expects": record({"capabilities": list_of(text), "environment": list_of(text)}),
        "additions": list_of(
            record({"what": text, "paths": list_of(text), "because": text}, ("what", "paths", "because"))
        ),
        "by-kind": list_of(record({"what": text, "where": text, "because": text}, ("what", "where", "because"))),
        "kind": choice(*KINDS),
        "environment": mapping_of(text),
        "configuration": mapping_of(mapping_of(list_of(text))),
        "differences": list_of(
            record(
                {
                    "what": text,
                    "path": text,
                    "becomes": text,
                    "when": list_of(choice(*CONDITIONS)),
                    "runtimes": list_of(text),
                    "because": text,
                },
                ("what", "path", "because"),
            )
        ),
        "skips": mapping_of(text),
        "requires": list_of(text),
        "features": list_of(text),
        "deviations": mapping_of(text),
        "original": flag,
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

    def unavailable(self) -> str:
        """Return why this implementation cannot be judged here, "" when it can."""
        missing = [name for name in self.document.get("requires", ()) if shutil.which(name, path=SEARCH_PATH) is None]
        return f"{self.name} needs {', '.join(missing)} on PATH" if missing else ""

    def skips(self, case: Case, lane: str) -> str:
        """Return why a case in a lane is not for this implementation, "" when it is."""
        if lane not in self.lanes:
            return f"{self.name} does not claim the lane {lane}"
        if self.document.get("kind") == "cdi" and (reason := unsuited(self.document, case)):
            return reason
        if case.kinds and self.document.get("kind", "hook") not in case.kinds:
            return f"the case is about injectors of another kind ({', '.join(case.kinds)})"
        claims = self.document.get("features")
        reason = "" if claims is None else unclaimed(case.features, claims)
        return reason or self.unavailable()

    def deviation(self, case: Case) -> str:
        """Return why this implementation is known to fail a case by design, "" when it is not."""
        for pattern, reason in self.document.get("deviations", {}).items():
            if fnmatch.fnmatchcase(case.id, pattern):
                return str(reason)
        return case.differs if self.document.get("original") else ""


def names() -> list[str]:
    """Return the implementations that come with the suite."""
    return sorted(path.stem for path in ADAPTERS.glob("*.yaml"))


def load(name: str) -> Implementation:
    """Return an implementation by the name of its adapter or by the path of an adapter file.

    Raises: DocumentError, which lists the known names.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else ADAPTERS / f"{name}.yaml"
    if not path.exists():
        raise DocumentError(
            f"no implementation {name}: known are {', '.join(names())}; a path to an adapter file works too"
        )
    document = Document(path)
    document.check(_SHAPE)
    value = document.value
    return Implementation(
        name=value["name"],
        title=value.get("title", value["name"]),
        lanes=tuple(value.get("lanes", LANES)),
        document=value,
    )
