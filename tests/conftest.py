"""Options of the whole test suite."""

import hypothesis
import pytest

# No test asserts a time: an example that takes long on a busy machine is no failure.
hypothesis.settings.register_profile("nvinject", deadline=None)
hypothesis.settings.load_profile("nvinject")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what rewrites golden files."""
    parser.addoption("--update", action="store_true", help="write golden files anew instead of comparing with them")
