"""Planted faults are faults of today's code: one whose text has gone would plant nothing.

Does not belong here: which case catches each (conformance/attacks/test_mutations.py).
"""

from pathlib import Path

import pytest

import nvinject
from nvconform.mutations import MUTATIONS, Mutation

SOURCE = Path(nvinject.__file__).parent


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.title)
def test_the_text_that_a_fault_replaces_is_there_once(mutation: Mutation) -> None:
    assert (SOURCE / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new
    assert mutation.cases


def test_faults_have_titles_of_their_own() -> None:
    assert len({mutation.title for mutation in MUTATIONS}) == len(MUTATIONS)
