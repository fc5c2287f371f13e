"""Each deliberate fault of the injector is caught by a case. Not in the ordinary run: -m mutations.

Does not belong here: that faults fit the code (tests/conform/test_mutations.py).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nvconform.mutations import MUTATIONS, Copies, Mutation

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def copies(machine: list[str]) -> Iterator[Copies]:  # noqa: ARG001 # what the cases need too
    """Return a copy of the packages in which faults can be planted."""
    made = Copies()
    yield made
    made.close()


@pytest.mark.mutations
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.title)
def test_fault_is_caught(copies: Copies, mutation: Mutation) -> None:
    """A case that passes without the fault fails with it."""
    verdict = copies.judge(mutation)
    assert verdict.problem == ""
    passed, lines = copies.run(verdict.caught[0])
    assert passed, lines


def test_faults_are_documented() -> None:
    """The table in docs/security.md has every fault."""
    text = DOCUMENT.read_text()
    assert [mutation.title for mutation in MUTATIONS if f"| {mutation.title} |" not in text] == []
