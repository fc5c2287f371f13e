"""Options of the whole test suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what rewrites golden files."""
    parser.addoption("--update", action="store_true", help="write golden files anew instead of comparing with them")
