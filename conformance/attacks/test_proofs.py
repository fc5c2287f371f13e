"""The general proofs: paths by descriptor, races, what is inherited, the image's environment, failing calls."""

import os
import shutil

import pytest

from nvconform.required import give_up

from .conftest import Proof

# Whose calls fail, where else than through runc on this machine's cgroups, and how many faults an ordinary run tries;
# NVCONFORM_FAULTS=all tries every one (ten minutes each).
FAULTS = [
    ("hook", (), 150),
    ("shim", (), 130),
    ("hook", ("--runtime", "crun"), 30),
    ("hook", ("--cgroup", "v2"), 30),
    ("create-container", (), 40),
    ("create-container", ("--runtime", "crun"), 20),
    ("create-container", ("--cgroup", "v2"), 20),
    ("create-symlinks", (), 30),
    ("enable-cuda-compat", (), 30),
    ("update-ldcache", (), 40),
    ("update-ldcache", ("--runtime", "crun"), 20),
    ("disable-device-node-modification", (), 30),
    ("update-application-profile", (), 30),
]
# Python or the C library may crash without memory before the injector can say anything.
MOST_CRASHES = 5


def test_paths_go_by_descriptor(prove: Proof) -> None:
    """No path into the root file system but by openat2 or single components; mounts from descriptor to descriptor."""
    result = prove("nvconform.tracingproofs", "paths")
    assert result["problems"] == []
    assert result["controls"] > 12


def test_names_that_change_between_calls(prove: Proof) -> None:
    """Names of volumes become links out of the container between any two system calls; the canary stays as it is."""
    result = prove("nvconform.tracingproofs", "races", "--runs", "24")
    assert result["problems"] == []
    assert result["runs"] > 20


def test_nothing_is_inherited(prove: Proof) -> None:
    """Descriptors and working directory of whoever starts the hook are gone before it reads anything."""
    result = prove("nvconform.tracingproofs", "inherited")
    assert result["problems"] == []


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_environment_of_the_image(prove: Proof, runtime: str) -> None:
    """No variable of the image makes a hook of any stage run the image's code."""
    for program in (runtime, "cc"):
        if shutil.which(program) is None:
            give_up("root", f"{program} is not installed")
    result = prove("nvconform.tracingproofs", "environment", "--runtime", runtime)
    assert result["problems"] == []
    assert result["runs"] > 40
    assert result["control"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("target", "where", "count"), FAULTS, ids=["-".join((name, *where[1:])) for name, where, _ in FAULTS]
)
def test_each_call_fails_once(prove: Proof, target: str, where: tuple[str, ...], count: int) -> None:
    """The container is whole or untouched, the host unchanged, the message of use, and nothing hangs."""
    if "crun" in where and shutil.which("crun") is None:
        give_up("root", "crun is not installed")
    everything = os.environ.get("NVCONFORM_FAULTS") == "all"
    extra = ["--faults", "all"] if everything else ["--limit", str(count)]
    report = prove("nvconform.faults", "--target", target, *where, *extra)
    assert report["problems"] == []
    assert report["injected"] * 10 > count
    assert report["refused"] * 10 > count
    assert report["crashed"] <= MOST_CRASHES
    # A fault that did not happen proves nothing; one in fifty may be lost to another program on the host.
    assert report["missed"] * 50 <= report["runs"]
