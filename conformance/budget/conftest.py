"""Options of the budget's tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what rewrites the baseline."""
    parser.addoption("--update-baseline", action="store_true", help="write the baseline of system calls anew")
