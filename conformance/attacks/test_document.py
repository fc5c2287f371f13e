"""docs/security.md names cases and tests that exist."""

import fnmatch
import re
from pathlib import Path

from nvconform.casefile import cases_directory, load_all

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text()
IDS = [case.id for case in load_all(cases_directory())]
FAMILIES = {identifier.partition("/")[0] for identifier in IDS}


def test_cases_exist() -> None:
    """Each `family/name`, with * for several, is the id of a case."""
    named = [word for word in re.findall(r"`([a-z0-9-]+/[a-z0-9*-]+)`", TEXT) if word.partition("/")[0] in FAMILIES]
    assert len(named) > 30
    assert [word for word in named if not fnmatch.filter(IDS, word)] == []


def test_files_exist() -> None:
    """Each path of the repository is there."""
    named = re.findall(r"`((?:tests|conformance)/[\w./-]+)`", TEXT)
    assert [word for word in named if not (ROOT / word).exists()] == []
