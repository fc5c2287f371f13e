"""The command line as a whole: help, names, exit codes, one line for each error."""

import errno
import io
import posix
import subprocess
import sys
from collections.abc import Callable

import pytest

from nvinject import errors
from nvinject.cli import launch
from nvinject.cli import main as command_line

Capture = pytest.CaptureFixture[str]


def test_help_lists_every_command_and_exit_code(capsys: Capture) -> None:
    """The help text is complete, because it is made from the tables."""
    assert command_line.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, _, words in command_line.COMMANDS:
        assert name in text
        assert words in text
    for kind in errors.EXIT_CODES:
        assert f"  {kind.exit_code}  " in text
    assert "examples:" in text


HELP = [name for name, _, _ in command_line.COMMANDS]


@pytest.mark.parametrize("command", HELP)
def test_every_command_has_help_with_an_example(command: str) -> None:
    """`nvinject COMMAND --help` succeeds and shows how it is used."""
    done = subprocess.run(
        [sys.executable, "-m", "nvinject", command, "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "example" in done.stdout


WRONG = [
    ([], 2, "usage: nvinject"),
    (["dance"], 2, "unknown command 'dance'; use one of hook"),
    (["hook"], 2, "no stage given; use one of prestart"),
    (["hook", "dance"], 2, "unknown stage 'dance'"),
    (["hook", "-x", "prestart"], 2, "unknown option -x"),
    (["hook", "-config"], 2, "-config needs a file"),
    (["completion", "tcsh"], 2, "which shell?"),
    (["plan", "/no/such/bundle"], 3, "/no/such/bundle"),
    (["check", "/no/such/file.json"], 3, "/no/such/file.json"),
    (["check", "cuda>>12", "--cuda", "12.2"], 3, "unknown operator"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_a_mistake_gets_one_line_and_its_exit_code(
    arguments: list[str], code: int, message: str, capsys: Capture
) -> None:
    """The cause, the thing and the remedy; never a traceback."""
    assert command_line.main(arguments) == code
    captured = capsys.readouterr()
    assert message in captured.out + captured.err
    assert "Traceback" not in captured.err


def test_a_mistake_of_ours_is_reported_as_one(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """An exception that nobody expected becomes one line too, and asks for a report."""

    def fail(_: list[str]) -> int:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(command_line, "dispatch", fail)
    monkeypatch.delenv("NVINJECT_DEBUG", raising=False)
    assert command_line.main(["plan"]) == command_line.INTERNAL_ERROR
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "ZeroDivisionError: two lines" in message
    monkeypatch.setenv("NVINJECT_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        command_line.main(["plan"])


class FailingDisk(io.BytesIO):
    """A file on a disk that is lost once it was opened."""

    lost = False

    def tell(self) -> int:
        """Fail as lseek(2) does."""
        if self.lost:
            raise OSError(errno.EIO, "Input/output error")
        return super().tell()


def test_a_failing_disk_below_standard_output_is_no_mistake_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written yet, and a hook writes nothing at all."""
    disk = FailingDisk()
    stream = io.TextIOWrapper(disk, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    disk.lost = True
    with pytest.raises(OSError, match="Input/output"):
        stream.reconfigure(errors="backslashreplace")
    command_line.show_every_character()


def test_a_hook_that_cannot_leave_its_directory_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """It ends there: a container's start may have chosen the directory."""

    def fail(_: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(posix, "chdir", fail)
    monkeypatch.setattr(launch, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        launch.leave_surroundings(["hook", "prestart"], -1)
    assert ended.value.code == command_line.TROUBLE
    message = capsys.readouterr().err
    assert message.startswith("nvinject: cannot go to /: Input/output error")
    assert message.count("\n") == 1


CALLED = {"nvidia-ctk": "--version", "nvidia-container-cli": "--version", "nvidia-cdi-hook": "noop"}


# The runtime's names end in another program: tests of the shim run them as processes.
@pytest.mark.parametrize("name", sorted(name for name, words in command_line.NAMES.items() if words[0] != "runtime"))
def test_the_names_that_engines_call_stand_for_commands(name: str) -> None:
    """Called as the original's hook, poststop does nothing and succeeds."""
    assert command_line.main([CALLED.get(name, "poststop")], name) == 0


CHECKS = [
    (["cuda>=12.0", "--cuda", "12.2"], 0, "satisfied"),
    (["cuda>=12.8 driver>=535,driver<536", "--cuda", "12.2", "--driver", "535.161.08"], 0, "satisfied"),
    (["cuda>=12.8", "--cuda", "12.2"], 1, "no: 12.2"),
    (["brand=tesla", "--brand", "Nvidia"], 1, "not satisfied"),
    (["arch>=9.0", "--cuda", "12.2"], 0, "not known, so it holds"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), CHECKS)
def test_check_evaluates_against_given_values(arguments: list[str], code: int, words: str, capsys: Capture) -> None:
    """Exit code 0 or 1, and the compared values."""
    assert command_line.main(["check", *arguments]) == code
    assert words in capsys.readouterr().out


Finder = Callable[[object], tuple[str, ...] | None]

DOCUMENTS: list[tuple[object, tuple[str, ...] | None]] = [
    ({"process": {"env": ["A=1"]}}, ("A=1",)),
    ({"config": {"Env": ["A=1"]}}, ("A=1",)),
    ([{"Config": {"Env": ["A=1"]}}], ("A=1",)),
    ({"config": {"Env": None}}, ()),
    ({"config": {"Env": [1]}}, None),
    ({}, None),
    ([], None),
    ("text", None),
]


@pytest.mark.parametrize(("document", "expected"), DOCUMENTS)
def test_check_finds_the_environment_in_every_known_form(document: object, expected: tuple[str, ...] | None) -> None:
    """Runtime configuration, image configuration and docker's inspection."""
    from nvinject.cli.check import find_environment

    assert find_environment(document) == expected
