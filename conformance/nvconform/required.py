"""Skipped tests that may have to be failures: NVCONFORM_REQUIRE lists what a machine is there to prove.

Belongs here: the names that it takes, and that decision. Does not belong here: finding out what a machine lacks.
"""

import os
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest

VARIABLE = "NVCONFORM_REQUIRE"
NAMES = {
    "root": "lane root: fake machines at the real paths, and device rules, mounts and users there",
    "rootless": "lane rootless: machines and containers of an ordinary user",
    "userns": "lane userns: containers of root in a user namespace",
    "tracing": "system calls can be seen and made to fail",
    "docker": "a private dockerd with its command line's images",
    "podman": "podman with runc and crun",
    "containerd": "a private containerd",
    "lxc": "unprivileged containers of LXC",
    "trixie": "the engines of Debian 13 in a folder",
    "packages": "real driver packages",
    "lint": "the checkers of what is shipped: lintian, the schemas of Kubernetes",
}


def required() -> frozenset[str]:
    """Return the names in NVCONFORM_REQUIRE.

    Raises: pytest.UsageError for a name that means nothing, since whoever wrote it would wait for failures in vain.
    """
    names = frozenset(name.strip() for name in os.environ.get(VARIABLE, "").split(",")) - {""}
    unknown = sorted(names - set(NAMES))
    if unknown:
        raise pytest.UsageError(f"{VARIABLE}: unknown {', '.join(unknown)}; known are {', '.join(NAMES)}")
    return names


def give_up(what: str, reason: str) -> NoReturn:
    """Skip with the reason; where NVCONFORM_REQUIRE lists `what` (a name of NAMES), it is a failure."""
    assert what in NAMES, what
    if what in required():
        pytest.fail(f"{what} is required here, but {reason}", pytrace=False)
    pytest.skip(reason)


def hold(lane: str, result: Mapping[str, Any]) -> None:
    """Fail where a case proved less than its lane should, and NVCONFORM_REQUIRE lists the lane."""
    if result.get("unproven") and lane in required():
        pytest.fail(f"{lane} is required here, but {result['unproven']}", pytrace=False)
