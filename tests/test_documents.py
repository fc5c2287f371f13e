"""What the documents name is there: files, sections, modules, findings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("nvinject", "fakes/nvfakes", "conformance/nvconform")
DOCUMENTS = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted(REPOSITORY.glob("docs/*.md")),
    *sorted(REPOSITORY.glob("conformance/*/README.md")),
]
LINK = re.compile(r"\]\((?!\w+://)([^)#]*)(?:#([^)]*))?\)")
PLACE = re.compile(r"`((?:nvinject|fakes|conformance|tests|benchmarks|deploy|docs)/[\w./-]*[\w/])`")
MADE = {"benchmarks/results"}  # by what the document describes
# In a table, the modules of a folder: | `core/`: request | `request`, `sources` |
ROW = re.compile(r"\| `([\w/]+/)` \| modules \|\n\|[-|]+\|\n((?:\|.*\n)+)")


def anchors(document: Path) -> set[str]:
    """Return the names by which the sections of a document can be linked."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for place, section in LINK.findall(text):
        target = document.parent / place if place else document
        assert target.exists(), place
        assert not section or section in anchors(target), f"{place}#{section}"
    lost = [
        place for place in PLACE.findall(text) if not (REPOSITORY / place).exists() and place.rstrip("/") not in MADE
    ]
    assert lost == []


def listed() -> Iterator[str]:
    """Yield the modules that the tables of the architecture name, as paths in the repository."""
    for package, rows in ROW.findall((REPOSITORY / "docs/architecture.md").read_text()):
        for row in rows.splitlines():
            head, names = row.strip("|").split("|", 1)
            below = re.match(r" `(\w+/)`", head)
            folder = package + (below[1] if below else "")
            for name in re.findall(r"`(\w+/?)`", names):
                if name.endswith("/"):
                    folder = f"{package}{name}"
                else:
                    yield f"{folder}{name}.py"


def test_every_module_can_be_found_from_the_architecture() -> None:
    """Once, in the row of its folder."""
    modules = [
        str(path.relative_to(REPOSITORY))
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*.py")
        if path.name not in {"__init__.py", "__main__.py"}
    ]
    named = list(listed())
    assert sorted(set(modules) - set(named)) == [], "name it in a table of docs/architecture.md"
    assert sorted(named) == sorted(modules), "it has gone, or is named twice"


def findings() -> Iterator[str]:
    """Yield the names that doctor gives to what it finds: the hyphenated words of the modules that judge."""
    for path in [*REPOSITORY.glob("nvinject/core/*diagnosis.py"), *REPOSITORY.glob("nvinject/cli/*check.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z]+(-[a-z]+)+", str(node.value)):
                yield str(node.value)


def test_the_table_of_doctor_has_every_finding() -> None:
    table = set(re.findall(r"`([a-z-]+)`", (REPOSITORY / "docs/toolbox.md").read_text()))
    named = set(findings()) - {"cri-o", "nvidia-smi", "nvidia-uvm"}
    assert {"version-skew", "list-faulty", "cdi-directory", "toolkit-missing"} <= named
    assert named <= table
