"""The page about agreement says what the adapters say: nothing is accepted that is not told."""

from pathlib import Path

import pytest

from nvconform import agreement, implementations

PAGE = Path(__file__).parents[2] / "docs" / "agreement.md"


def test_the_page_is_made_of_the_adapters(request: pytest.FixtureRequest) -> None:
    """--update writes it anew."""
    tables = agreement.render([implementations.load(name) for name in agreement.OTHERS])
    before, _, rest = PAGE.read_text().partition(agreement.BEGIN)
    _, _, after = rest.partition(agreement.END)
    wanted = f"{before}{agreement.BEGIN}\n\n{tables}\n{agreement.END}{after}"
    if request.config.getoption("--update"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


def test_the_reference_differs_in_nothing() -> None:
    """The cases describe the hook."""
    document = implementations.load(agreement.REFERENCE).document
    assert not {"differences", "additions", "by-kind", "skips", "deviations"} & set(document)
