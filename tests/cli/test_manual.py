"""Manual pages: one for each command and name, of the words that --help prints, in man(7) that groff takes."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from nvinject.cli import main as command_line
from nvinject.cli.configschema import HELP
from nvinject.cli.manual import make_files, read_help
from nvinject.render.manual import Definitions, Literal, Page, Section, Text, format_page

Capture = pytest.CaptureFixture[str]
FILES = make_files()
GOLDEN = Path(__file__).parent / "manual"


def test_no_command_and_no_name_is_missing() -> None:
    """And the configuration file has a page."""
    commands = {f"man1/nvinject-{name}.1" for name, _, _ in command_line.COMMANDS}
    names = {f"man1/{name}.1" for name in command_line.NAMES}
    assert set(FILES) == {"man1/nvinject.1", "man5/nvinject-config.toml.5"} | commands | names
    for name in names:
        target = FILES[name].removeprefix(".so ").strip()
        assert target in commands


def render(path: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is missing; install groff-base")
    file = folder / "page"
    file.write_text(FILES[path])
    return subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-P-cbou", str(file)], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("path", [path for path, text in FILES.items() if not text.startswith(".so ")])
def test_groff_has_nothing_to_complain_about(path: str, tmp_path: Path) -> None:
    """With all of its warnings on, and without a line that is too long to be broken."""
    done = render(path, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert " NAME " in words
    assert " SYNOPSIS " in words
    assert " DESCRIPTION " in words


def test_man_itself_shows_a_page(tmp_path: Path) -> None:
    """As somebody would read it."""
    man = shutil.which("man")
    if man is None:
        pytest.skip("man is missing; install man-db")
    file = tmp_path / "nvinject-doctor.1"
    file.write_text(FILES["man1/nvinject-doctor.1"])
    done = subprocess.run(
        [man, "--warnings", "-l", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--container ID" in done.stdout


@pytest.mark.parametrize("name", ["nvinject-cdi-hook.1", "nvinject-uninstall.1"])
def test_golden_pages(name: str, pytestconfig: pytest.Config) -> None:
    """One of a help text, one of a parser."""
    path = GOLDEN / name
    if pytestconfig.getoption("--update"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(FILES[f"man1/{name}"])
    assert FILES[f"man1/{name}"] == path.read_text()


@pytest.mark.parametrize("path", [f"man1/nvinject-{name}.1" for name in ("cdi", "config", "system", "runtime", "plan")])
def test_options_are_those_of_the_help(path: str, tmp_path: Path, capsys: Capture) -> None:
    """Each long option that --help knows."""
    name = path.removeprefix("man1/nvinject-").removesuffix(".1")
    with contextlib.suppress(SystemExit):
        command_line.main([name, "--help"])
    options = {word.strip("[],") for word in capsys.readouterr().out.split() if word.strip("[],").startswith("--")}
    shown = render(path, tmp_path).stdout
    for option in options - {"--help", "--"}:
        assert option in shown, option


def test_every_key_is_explained(tmp_path: Path) -> None:
    """With its default."""
    words = " ".join(render("man5/nvinject-config.toml.5", tmp_path).stdout.split())
    for key, entry in HELP.items():
        assert key.rpartition(".")[2] in words
        assert " ".join(entry.text.split()) in words


def test_signs_of_the_language_are_written_so_that_they_are_shown(tmp_path: Path) -> None:
    """A text cannot become a request, and an option can be copied."""
    text = "'.x' \\fB`a` --b ^c ~d \"e\""
    literal = (".TH x", "'y", "\\")
    page = Page(
        name="a",
        section=1,
        summary="b",
        version="1",
        sections=(
            Section(title="s", parts=(Text(words=text), Literal(lines=literal))),
            Section(title="t", parts=(Definitions(rows=((("-x", "--y"), "Z", ".z"), (("w",), "", ""))),)),
        ),
    )
    FILES["x"] = format_page(page)
    done = render("x", tmp_path)
    del FILES["x"]
    assert done.stderr == ""
    for words in (text, *literal, "-x, --y Z", ".z"):
        assert words in done.stdout


HELP_TEXT = """\
usage: x y
       x z

Does it. In two
lines.

  -a   first
       and more
  -b   second

example:
  x -a   shown as it is
"""


def test_a_help_text_is_taken_apart() -> None:
    """Usage, paragraphs, options, examples."""
    assert read_help(HELP_TEXT) == (
        Section(title="synopsis", parts=(Literal(lines=("x y", "x z")),)),
        Section(
            title="description",
            parts=(
                Text(words="Does it. In two lines."),
                Definitions(rows=((("-a",), "", "first and more"), (("-b",), "", "second"))),
            ),
        ),
        Section(title="examples", parts=(Literal(lines=("x -a   shown as it is",)),)),
    )


def test_pages_are_printed_and_written(tmp_path: Path, capsys: Capture) -> None:
    """One by its name with or without its section, all into a directory."""
    assert command_line.main(["manual"]) == 0
    assert "nvinject-cdi.1\n" in capsys.readouterr().out
    for name in ("nvinject-cdi", "nvinject-cdi.1"):
        assert command_line.main(["manual", name]) == 0
        assert capsys.readouterr().out == FILES["man1/nvinject-cdi.1"]
    assert command_line.main(["manual", "--output", str(tmp_path), "--dry-run"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert command_line.main(["manual", "--output", str(tmp_path), "--date", "2026"]) == 0
    assert '"2026"' in (tmp_path / "man1" / "nvinject.1").read_text()
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.[15]")} == set(FILES)


def test_what_cannot_be_is_told(tmp_path: Path, capsys: Capture) -> None:
    """A page that there is not, a directory that cannot be written."""
    assert command_line.main(["manual", "nvinject-dance"]) == 2
    assert "there is no page nvinject-dance" in capsys.readouterr().err
    (tmp_path / "man1").touch()
    assert command_line.main(["manual", "--output", str(tmp_path)]) == 2
    assert f"cannot write {tmp_path}/man1" in capsys.readouterr().err
