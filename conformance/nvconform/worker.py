"""The worker: answers requests to run cases, inside a fake machine.

Belongs here: the protocol, one JSON document a line on standard input and output, and turning an attempt into a result.
Does not belong here: how a case runs (attempt.py), starting machines (session.py). Standard library only, as all that
it imports, because the sandbox may have to use another interpreter. Started as `python -m nvconform.worker`.
"""

import ctypes
import json
import os
import sys
import time
import traceback
from typing import Any

from nvconform.attempt import Attempt
from nvconform.case import Case, build
from nvconform.devicespec import SpecAttempt
from nvconform.engines.engine import Engine
from nvconform.engines.through import HookThroughEngine, RuntimeThroughEngine, SpecThroughEngine
from nvconform.runtimes import RuntimeUnavailableError
from nvconform.setup import Settings, Setup
from nvconform.shim import RuntimeAttempt

PR_SET_CHILD_SUBREAPER = 36
KINDS: dict[str, type[Attempt]] = {"hook": Attempt, "runtime": RuntimeAttempt, "cdi": SpecAttempt}
ENGINE_KINDS: dict[str, type[Attempt]] = {
    "hook": HookThroughEngine,
    "runtime": RuntimeThroughEngine,
    "cdi": SpecThroughEngine,
}


class Worker:
    """Runs cases on the machine that it finds itself on."""

    def __init__(self, settings: Settings) -> None:
        """Prepare the surroundings; orphans of a case become our children, so that none is overlooked."""
        self.setup = Setup(settings)
        self.count = 0
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def run(self, case: Case) -> dict[str, Any]:
        """Run one case and return its result for the report."""
        begin = time.monotonic()
        result: dict[str, Any] = {"id": case.id, "lane": self.setup.lane, "differences": [], "reason": ""}
        result["unproven"] = self.setup.features.unproven(case.needs)
        reason = self.setup.features.missing(case.needs)
        if reason:
            return {**result, "status": "skipped", "reason": reason, "seconds": 0.0}
        self.count += 1
        kinds = ENGINE_KINDS if isinstance(self.setup.runtime, Engine) else KINDS
        attempt = kinds[self.setup.kind](self.setup, case, self.setup.work / f"case{self.count}")
        try:
            differences = attempt.run()
        except Exception:  # noqa: BLE001 - a fault of the suite must show as one case's failure, not end the run
            differences = [f"suite: {traceback.format_exc()}"]
        finally:
            attempt.clear()
        status = "failed" if differences else "passed"
        return {
            **result,
            "status": "skipped" if attempt.skipped else status,
            "reason": attempt.skipped,
            "differences": differences,
            "expected": attempt.expected.as_mapping(),
            "seen": attempt.seen.as_mapping(),
            "message": attempt.message,
            "code": attempt.code,
            "seconds": round(time.monotonic() - begin, 3),
        }


def main() -> int:
    """Answer requests until standard input ends."""
    # The protocol keeps its own descriptor: whatever a child prints must not get into it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    settings = json.loads(sys.stdin.readline())
    try:
        worker = Worker(Settings(**settings))
    except RuntimeUnavailableError as error:
        answer({"unavailable": str(error)})
        return 1
    except Exception as error:  # noqa: BLE001 - told to the session, which knows what to do
        answer({"error": f"{type(error).__name__}: {error}"})
        return 1
    answer({"ready": worker.setup.features.as_mapping(), "runtime": worker.setup.runtime.version()})
    try:
        for line in sys.stdin:
            answer(worker.run(build(Case, json.loads(line))))
    finally:
        worker.setup.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
