"""The general proofs: paths by descriptor, races, what is inherited, the image's environment, failing calls."""

import os
import shutil

import pytest

from .conftest import Proof

# How many faults an ordinary run tries; NVCONFORM_FAULTS=all tries every one (ten minutes).
SAMPLE = {"hook": "150", "shim": "130"}
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
            pytest.skip(f"{program} is not installed")
    result = prove("nvconform.tracingproofs", "environment", "--runtime", runtime)
    assert result["problems"] == []
    assert result["runs"] > 40
    assert result["control"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", sorted(SAMPLE))
def test_each_call_fails_once(prove: Proof, target: str) -> None:
    """The container is whole or untouched, the host unchanged, the message of use, and nothing hangs."""
    everything = os.environ.get("NVCONFORM_FAULTS") == "all"
    extra = ["--faults", "all"] if everything else ["--limit", SAMPLE[target]]
    report = prove("nvconform.faults", "--target", target, *extra)
    assert report["problems"] == []
    assert report["injected"] > 10
    assert report["refused"] > 10
    assert report["crashed"] <= MOST_CRASHES
    # A fault that did not happen proves nothing; one in fifty may be lost to another program on the host.
    assert report["missed"] * 50 <= report["runs"]
