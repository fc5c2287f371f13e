"""Options of the whole test suite, and what all tests need of the process that they run in."""

import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

# No test asserts a time: an example that takes long on a busy machine is no failure.
hypothesis.settings.register_profile("nvinject", deadline=None)
hypothesis.settings.load_profile("nvinject")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what rewrites golden files."""
    parser.addoption("--update", action="store_true", help="write golden files anew instead of comparing with them")


@pytest.fixture(autouse=True, scope="session")
def _ending_signals() -> Iterator[None]:
    """Let the programs that tests start be ended by signals.

    An ignored signal is inherited (signal(7)): nohup leaves SIGHUP so, and a shell's background SIGINT.
    """
    usual: dict[signal.Signals, Any] = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    ignored = [number for number in usual if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
