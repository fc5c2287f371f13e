"""Skipped tests that may have to be failures: NVCONFORM_REQUIRE lists what a machine is there to prove.

Belongs here: that decision. Does not belong here: finding out what a machine lacks.
"""

import os
from typing import NoReturn

import pytest

VARIABLE = "NVCONFORM_REQUIRE"


def give_up(what: str, reason: str) -> NoReturn:
    """Skip with the reason; where NVCONFORM_REQUIRE lists `what` (docker, lxc, …), it is a failure."""
    if what in os.environ.get(VARIABLE, "").split(","):
        pytest.fail(f"{what} is required here, but {reason}", pytrace=False)
    pytest.skip(reason)
