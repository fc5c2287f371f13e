"""The bundle of byte code: modules come from it as long as it fits their sources, and from their files otherwise."""

import json
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from types import CodeType

import pytest

import nvinject
from nvinject.bundle import bundle_path, find_imports, find_sources, format_bundle, without_columns, write_bundle
from nvinject.cli.install import find_interpreter, format_launcher_of

TAG = str(sys.implementation.cache_tag)
REPORT = """
import json
modules = {name: type(module.__spec__.loader).__name__ for name, module in sys.modules.items() if "nvinject" in name}
sys.stdout.write(json.dumps(modules))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with a copy of the package, without byte code."""
    source = Path(nvinject.__file__).parent
    shutil.copytree(source, tmp_path / "nvinject", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "nvinject/__pycache__").mkdir()
    return tmp_path


def load(root: Path, change: str = "") -> dict[str, str]:
    """Run the launcher's own way in; returns the kind of loader of every module of ours."""
    launcher = root / "launcher"
    text = format_launcher_of(find_interpreter(), [str(root)]).replace("\nlaunch(bundle)\n", f"\n{change}\n{REPORT}")
    launcher.write_text(text)
    done = subprocess.run([sys.executable, "-IS", launcher], check=True, capture_output=True, text=True, timeout=60)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_modules_come_from_the_bundle(root: Path) -> None:
    """Packages too, with the attributes that imports of others need."""
    write_bundle(str(root / "nvinject"))
    loaders = load(root, "import nvinject.core.plan")
    assert set(loaders) >= {"nvinject", "nvinject.cli.main", "nvinject.core", "nvinject.core.plan"}
    assert set(loaders.values()) == {"BundleFinder"}


def test_modules_look_as_if_imported(root: Path) -> None:
    """Whether the import system loads them or the finder, one for the sake of another."""
    write_bundle(str(root / "nvinject"))
    change = """
import nvinject.core.planner
import nvinject.core
for module in (nvinject.core, nvinject.core.planner, nvinject.core.plan, sys.modules["nvinject.record"]):
    assert module.__file__ == module.__spec__.origin, module
    assert module.__loader__ is module.__spec__.loader, module
    assert module.__package__ == module.__spec__.parent, module
    assert getattr(sys.modules[module.__spec__.parent], module.__name__.rpartition(".")[2], module) is module, module
assert nvinject.core.__path__ == nvinject.core.__spec__.submodule_search_locations
assert nvinject.core.plan.Plan is nvinject.core.planner.Plan
"""
    assert set(load(root, change).values()) == {"BundleFinder"}


def lines(code: CodeType) -> list[int | None]:
    """Return the line of each unit of code, that of the functions inside after it."""
    found: list[int | None] = []
    for start, end, line in code.co_lines():
        found += [line] * ((end - start) // 2)
    for inner in code.co_consts:
        found += lines(inner) if isinstance(inner, CodeType) else ()
    return found


FAR = "x = (1,\n" + "\n" * 3000 + "f())\ndef f(): return [\nf\n]\nraise ValueError\n"


def test_lines_stay_without_columns(root: Path) -> None:
    """Of all our code, and over any distance, forwards and back; a traceback finds them."""
    texts = [(root / source[1:]).read_text() for source in find_sources(str(root / "nvinject"))]
    for text in (FAR, *texts):
        code = compile(text, "<text>", "exec")
        assert lines(without_columns(code)) == lines(code)
        assert len(without_columns(code).co_linetable) <= len(code.co_linetable)
    with pytest.raises(ValueError, match="wrong") as caught:
        exec(without_columns(compile("\n\n\nraise ValueError('wrong')", "<text>", "exec")))
    assert "line 4" in "".join(traceback.format_exception(caught.value))


def test_a_module_that_fails_leaves_nothing(root: Path) -> None:
    """Also where another one needs it."""
    (root / "nvinject/record.py").write_text("raise ValueError('broken')\n")
    write_bundle(str(root / "nvinject"))
    change = """
try:
    import nvinject.core.plan
except ValueError as error:
    assert str(error) == "broken"
assert "nvinject.record" not in sys.modules
assert "nvinject.core.plan" not in sys.modules
"""
    assert "nvinject.core" in load(root, change)


def test_modules_that_need_each_other(root: Path) -> None:
    """The import system decides who comes first, as it does without a bundle."""
    (root / "nvinject/one.py").write_text("import nvinject.two\nname = 1\n")
    (root / "nvinject/two.py").write_text("import nvinject.one\nname = 2\n")
    write_bundle(str(root / "nvinject"))
    assert {"nvinject.one", "nvinject.two"} <= set(load(root, "import nvinject.one"))


def test_imports_are_those_of_any_case() -> None:
    """What stands in functions and under conditions may never be needed."""
    text = b"import os\nfrom a.b import c, d\nif x:\n    import e\ndef f():\n    import g\n"
    assert find_imports(text, "p.q.r") == ["p", "p.q", "os", "a.b", "a.b.c", "a.b.d"]


def test_without_a_bundle_modules_come_from_their_files(root: Path) -> None:
    """A package directory that cannot be written is no hindrance."""
    assert set(load(root).values()) == {"SourceFileLoader"}


def test_a_changed_source_counts(root: Path) -> None:
    """Each module by itself, as with single files of byte code."""
    write_bundle(str(root / "nvinject"))
    errors = root / "nvinject/errors.py"
    errors.write_text(errors.read_text() + "\n")
    loaders = load(root)
    assert loaders["nvinject.errors"] == "SourceFileLoader"
    assert loaders["nvinject.cli.main"] == "BundleFinder"


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", b"\0" * 70000, "magic", "half"],
    ids=["empty", "garbage", "zeros", "magic alone", "cut short"],
)
def test_what_is_no_bundle_is_ignored(root: Path, content: bytes | str) -> None:
    """Of another interpreter, or cut short."""
    whole = format_bundle(str(root / "nvinject"))
    cut = {"magic": whole[:4], "half": whole[:2000]}
    Path(bundle_path(str(root / "nvinject"), TAG)).write_bytes(cut[content] if isinstance(content, str) else content)
    assert set(load(root).values()) == {"SourceFileLoader"}


def test_it_is_written_in_one_step(root: Path) -> None:
    """Nothing else is left, also where writing fails."""
    path = write_bundle(str(root / "nvinject"))
    assert os.listdir(root / "nvinject/__pycache__") == [os.path.basename(path)]
    (root / "nvinject/errors.py").write_text("def (\n")
    with pytest.raises(SyntaxError):
        write_bundle(str(root / "nvinject"))
    assert os.listdir(root / "nvinject/__pycache__") == [os.path.basename(path)]


def test_the_sources_are_those_of_the_package(root: Path) -> None:
    """Every module, once."""
    found = find_sources(str(root / "nvinject"))
    assert len(found) == len(set(found)) == len(list((root / "nvinject").rglob("*.py")))
    assert "/nvinject/cli/hook.py" in found
