"""Fuzzing with atheris: `python tests/fuzz/campaign.py TARGET [CORPUS ...] [-runs=N] [-max_total_time=SECONDS]`.

Belongs here: starting one campaign; its options are libFuzzer's. Does not belong here: what is fuzzed (targets.py).
Without a corpus it begins from seeds.py. A crash leaves a file `crash-*`, which is the argument that shows it again.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main() -> None:
    """Run one campaign."""
    import atheris  # type: ignore[import-untyped,unused-ignore] # an optional package

    with atheris.instrument_imports(include=["nvinject"]):
        from tests.fuzz.seeds import SEEDS
        from tests.fuzz.targets import TARGETS

    name, *words = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(SEEDS[name]):
            Path(folder, str(number)).write_bytes(seed)
        if all(word.startswith("-") for word in words):
            words.append(folder)
        atheris.Setup([sys.argv[0], *words], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
