"""A short run of each campaign, always with the same seed: the targets work, and find nothing near their seeds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS

CAMPAIGN = Path(__file__).with_name("campaign.py")
RUNS = 3000


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_seed_is_taken(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_short_campaign(tmp_path: Path, name: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed; it is what fuzzes (pip install -e .[fuzz])")
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), name, f"-runs={RUNS}", "-seed=4711", "-max_len=4096", "-timeout=20"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {RUNS} runs" in done.stderr, done.stderr[-1000:]
