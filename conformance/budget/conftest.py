"""Options of the budget's tests, and the way in which they run a case."""

from typing import Any

import pytest

from nvconform.casefile import cases_directory, find, load_all, load_sets
from nvconform.implementations import Implementation
from nvconform.required import hold
from nvconform.session import Session


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what rewrites the baseline."""
    parser.addoption("--update-baseline", action="store_true", help="write the baseline of system calls anew")


def run_case(identifier: str, document: dict[str, Any]) -> dict[str, Any]:
    """Run a case with an adapter in lane root, which has the real paths; returns the result, or skips."""
    session = Session(Implementation(document["name"], document["name"], ("root",), document), load_sets())
    try:
        result = session.run(find(load_all(cases_directory()), identifier), "root")
    finally:
        session.close()
    hold("root", result)
    if result["status"] == "skipped":
        pytest.skip(str(result["reason"]))
    return result
