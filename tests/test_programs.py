"""The three programs as people and scripts meet them: help, mistakes, and surroundings that are short of something.

What is asked of each: one line for a mistake, the documented exit code, never a traceback.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvconform import cli as conform
from nvfakes import cli as fakes
from nvinject.cli import cdi, check, config, configure, doctor, info, install, manual, plan, system, uninstall
from nvinject.cli.main import dispatch
from nvinject.cli.parsers import commands_of
from nvinject.errors import NvinjectError, UsageError

SHORT = 60


def run(words: str, *, before: str = "", after: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program by its shell command line."""
    program, _, rest = words.partition(" ")
    command = f"{before}{shlex.quote(sys.executable)} -B -m {program} {rest} {after}"
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=SHORT, env=settings
    )


# Python buffers what it prints unless it is told otherwise: writing fails at its end, or at once.
PRINTING = [
    ("nvinject --help", ""),
    ("nvinject --help", "1"),
    ("nvinject plan --help", ""),
    ("nvinject config explain", "1"),
    ("nvinject container-cli --help", ""),
    ("nvinject hook --version", ""),
    ("nvfakes list", ""),
    ("nvfakes list", "1"),
    ("nvfakes run --help", ""),
    ("nvconform schema", ""),
    ("nvconform schema", "1"),
    ("nvconform run --help", ""),
]


@pytest.mark.parametrize(("words", "unbuffered"), PRINTING)
def test_output_that_cannot_be_written_is_one_line(words: str, unbuffered: str) -> None:
    """A full disk is told; a reader that went away is not; without standard output nothing is printed."""
    full = run(words, after=">/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert re.fullmatch(r"nv\w+: .*No space left on device.*\n", full.stderr), full.stderr
    assert full.returncode in {1, 2, 6}
    gone = run(words, before="set -o pipefail; ", after="| true", PYTHONUNBUFFERED=unbuffered)
    assert (gone.returncode in {0, 1}, gone.stderr) == (True, "")
    closed = run(words, after=">&-", PYTHONUNBUFFERED=unbuffered)
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize("words", ["nvinject plan /no/such/bundle", "nvfakes show ./no-such", "nvconform show no/such"])
def test_a_mistake_has_its_exit_code_though_nobody_hears_of_it(words: str, streams: str) -> None:
    """Closed standard error changes nothing but what can be read."""
    assert run(words, after=streams).returncode == run(words).returncode != 0


MISTAKES = [
    ("nvinject dance", 2, "unknown command 'dance'"),
    ("nvinject pln", 2, r"unknown command 'pln' \(did you mean plan\?\)"),
    ("nvinject cdi generte", 2, r"unknown command 'generte' \(did you mean generate\?\)"),
    ("nvinject plan", 2, "arguments are required: BUNDLE; see nvinject plan --help"),
    ("nvinject plan x --jsn", 2, r"'--jsn' \(did you mean --json\?\); see nvinject plan --help"),
    ("nvinject config show --chnged", 2, r"did you mean --changed\?"),
    ("nvinject doctor --layer nod", 2, r"--layer: unknown value 'nod' \(did you mean nodes\?\)"),
    ("nvinject check cuda --driver 12,8 --cuda 12", 2, "--driver: '12,8' is no version"),
    ("nvinject cdi inject --device '' /no/such", 2, "--device names no device"),
    ("nvinject config set nvidia-container-cli.debug $'/a\\xff' -c /no/such --dry-run", 2, "is not UTF-8 text"),
    ("nvinject runtime configure --dry-run --nvidia-runtime-path $'/\\xff' --config /no/x", 2, "is not UTF-8 text"),
    ("nvinject info --config /dev/zero", 4, "cannot read /dev/zero: it is too large"),
    ("nvinject system print-ldcache --ldcache /dev/zero", 6, "cannot read /dev/zero: it does not end"),
    ("nvinject cdi transform root --from / --to /x --input /dev/zero", 3, "/dev/zero has more than 64 MiB"),
    ("nvinject cdi inject --device nvidia.com/gpu=0 /dev/zero", 3, "/dev/zero has more than 64 MiB"),
    ("nvinject cdi generate --mode csv --csv.file /dev/zero", 6, "cannot read /dev/zero: it is too large"),
    ("nvinject config create-default --output HUGE --dry-run", 4, "HUGE has more than 16 MiB"),
    (
        "nvinject cdi transform root --from / --to /x --input SPEC --output FIFO.json",
        2,
        "FIFO.json is no ordinary file",
    ),
    (
        "nvinject cdi inject --device a.b/c=0 --spec-dir DIR CONFIG --output /dev/null",
        2,
        "/dev/null is no ordinary file",
    ),
    ("nvfakes rnu", 2, r"unknown command 'rnu' \(did you mean run\?\)"),
    ("nvfakes slow soon --running 1", 2, "milliseconds: 'soon' is not a whole number"),
    ("nvfakes health 0 xid many --running 1", 2, "xid: 'many' is not a whole number"),
    ("nvfakes answer 0 power.curent_draw_mw 1", 2, r"did you mean power.current_draw_mw\?\); nvfakes answer --help"),
    ("nvfakes answer 0 fan.speed_percent fast", 2, "fan.speed_percent: 'fast' is not a whole number"),
    ("nvfakes show /dev/zero", 1, "/dev/zero: more than 8 MiB"),
    ("nvfakes show $'a\\nb'", 1, r"a\\nb: no such machine"),
    ("nvfakes record --root /no/such", 1, "--root /no/such: no such directory"),
    ("nvfakes run two-h100 --lane rot -- true", 2, r"--lane: unknown value 'rot' \(did you mean root\?\)"),
    ("nvfakes tree two-h100 /dev/null/x", 1, "/dev/null"),
    ("nvconform lst", 2, r"unknown command 'lst' \(did you mean list\?\)"),
    ("nvconform --cases /no/such list", 2, "/no/such: no such folder of case files"),
    ("nvconform report /no/such.json", 2, "/no/such.json"),
    ("nvconform report /dev/zero", 2, "/dev/zero: more than 256 MiB"),
    ("nvfakes runtime-wrapper FIFO.json", 1, "FIFO.json is no ordinary file"),
    ("nvfakes runtime-wrapper /proc/none", 1, "cannot write /proc/none: No such file"),
    ("nvconform run -k no/such", 2, "no case has 'no/such' in its id"),
    ("nvconform run -k devices/all --json /proc/none/x.json", 2, "cannot make /proc/none"),
]


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES)
def test_a_mistake_is_one_line(words: str, code: int, message: str, tmp_path: Path) -> None:
    """Cause, thing and remedy, with the nearest name where there is one."""
    for name, path in prepare_files(tmp_path).items():
        words, message = words.replace(name, path), message.replace(name, path)
    done = run(words, XDG_STATE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1


def prepare_files(folder: Path) -> dict[str, str]:
    """Make files that a command line can be wrong about; returns their paths by the words that stand for them."""
    os.mkfifo(folder / "FIFO.json")
    (folder / "CONFIG").write_text("{}")
    (folder / "specs").mkdir()
    devices = [{"name": "0", "containerEdits": {"env": ["A=b"]}}]
    (folder / "specs/a.json").write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "a.b/c", "devices": devices}))
    with (folder / "HUGE").open("w") as file:
        file.truncate(17 << 20)
    names = {name: str(folder / name) for name in ("FIFO.json", "CONFIG", "HUGE")}
    return {**names, "SPEC": str(folder / "specs/a.json"), "DIR": str(folder / "specs")}


def test_a_directory_that_is_named_relatively_can_be_made(tmp_path: Path) -> None:
    """The parents of a relative path end at the working directory."""
    file = tmp_path / "daemon.json"
    words = f"nvinject runtime configure --config {file} --state-dir kept/here --json"
    done = run(words, before=f"cd {tmp_path}; ")
    assert (done.returncode, json.loads(file.read_text())["runtimes"].keys()) == (0, {"nvidia"})
    assert len(list((tmp_path / "kept/here").iterdir())) == 1
    assert run(f"{words} --undo", before=f"cd {tmp_path}; ").returncode == 0
    assert not file.exists()


WRITING = [
    ("nvinject manual --output DIR", "cannot write DIR/man1/nvinject.1: No space left on device"),
    ("nvinject install --prefix DIR", "cannot write DIR/.*: No space left on device"),
    ("nvinject config create-default --documented --output DIR/x", "cannot change DIR/x: No space left on device"),
    ("nvinject runtime configure --config DIR/x --state-dir DIR/s", "cannot keep .* DIR/s/.*: No space left on device"),
    ("nvfakes tree two-h100 DIR/tree", "No space left on device"),
]


@pytest.mark.parametrize(("words", "message"), WRITING)
def test_a_full_disk_is_one_line_and_no_half_written_file(words: str, message: str, tmp_path: Path) -> None:
    """What could not be written whole is not there, under no name; a tree of a machine is files that fitted."""
    try_mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=4k", "none", str(tmp_path)]
    tried = subprocess.run(try_mount, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no small file system can be mounted here: {tried.stderr.strip()}")
    mount = f"mount -t tmpfs -o size=4k none {tmp_path}; head -c 4096 /dev/zero > {tmp_path}/full 2>/dev/null; "
    after = f"; code=$?; find {tmp_path} -type f ! -name full ! -path '*/tree/*' -printf 'left %p\\n'; exit $code"
    script = f"{mount}{shlex.quote(sys.executable)} -B -m {words.replace('DIR', str(tmp_path))}{after}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        capture_output=True, text=True, check=False, timeout=SHORT, env=environment,
    )  # fmt: skip
    assert done.returncode in {1, 2, 6}
    assert re.search(message.replace("DIR", str(tmp_path)), done.stderr), done.stderr
    assert "left " not in done.stdout


def test_what_the_locale_cannot_write_is_escaped() -> None:
    """A listing never ends at a name of other letters."""
    done = run("nvinject check --cuda 12.2 --brand $'Gr\\xfc\\xdf' 'brand=x' 2>&1", PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 1
    assert r"\udcfc" in done.stdout


def test_files_of_other_bytes_are_written(tmp_path: Path) -> None:
    """A folder's name may have any bytes."""
    done = run("nvfakes tree t4 $'m\\xff'", before=f"cd {tmp_path}; ")
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(os.fsencode(tmp_path)) == [b"m\xff"]


WAITING = [
    ["nvinject", "check", "-"],
    ["nvinject", "cdi", "transform", "root", "--from", "/a", "--to", "/b"],
    ["nvfakes", "show", "FIFO"],
    ["nvconform", "report", "FIFO"],
]


@pytest.mark.parametrize("words", WAITING, ids=" ".join)
def test_an_interrupt_ends_without_a_word(words: list[str], tmp_path: Path) -> None:
    """Ctrl-C is what the user wanted, and 130 is what shells expect of it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [sys.executable, "-B", "-m", *(str(fifo) if word == "FIFO" else word for word in words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            await_sleep(child.pid)
            child.send_signal(signal.SIGINT)
            # The pipe stays open: nothing but the signal ends the program.
            code = child.wait(SHORT)
        finally:
            child.kill()
        assert child.stderr is not None
        assert (code, child.stderr.read()) == (130, b"")


def await_sleep(process: int) -> None:
    """Wait until a process waits for somebody to write: in pipe_read, or in wait_for_partner of a FIFO."""
    for _ in range(SHORT * 20):
        time.sleep(0.05)
        # A start that is not through yet is busy, or waits for a disk and not for a signal.
        place = Path(f"/proc/{process}/wchan").read_text(encoding="ascii")
        if "pipe" in place or "partner" in place:
            return
    pytest.fail(f"process {process} never waits for input")


PARSERS: dict[str, ArgumentParser] = {
    "nvinject cdi": cdi.parser(),
    "nvinject check": check.parser(),
    "nvinject config": config.parser(),
    "nvinject runtime configure": configure.parser(),
    "nvinject doctor": doctor.parser(),
    "nvinject info": info.parser("info"),
    "nvinject list": info.parser("list"),
    "nvinject install": install.parser(),
    "nvinject manual": manual.parser(),
    "nvinject plan": plan.parser(),
    "nvinject system": system.parser(),
    "nvinject uninstall": uninstall.parser(),
    "nvfakes": fakes._parser(),
    "nvconform": conform.parser(),
}


def walk(name: str, parser: ArgumentParser) -> "dict[str, ArgumentParser]":
    """Return a parser and those of its sub-commands, however deep."""
    found = {name: parser}
    for word, below in commands_of(parser).items():
        found |= walk(f"{name} {word}", below)
    return found


EVERY = {name: parser for top, whole in PARSERS.items() for name, parser in walk(top, whole).items()}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_command_has_examples_that_its_parser_takes(name: str) -> None:
    """An example can be pasted: words, options and values are those of the command."""
    text = EVERY[name].format_help()
    lines = re.findall(r"^  (nv(?:inject|fakes|conform) .*)$", text.partition("example")[2], re.MULTILINE)
    assert lines
    for line in lines:
        command = re.split(r"  +| [<>|] ", line)[0]
        top = max((top for top in PARSERS if command.startswith(f"{top} ")), key=len, default="")
        if top:
            words = shlex.split(command.removeprefix(top))
            PARSERS[top].parse_args(words[: words.index("--")] if "--" in words else words)


REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = [path for pattern in ("*.md", "docs/*.md", "conformance/*/README.md") for path in REPOSITORY.glob(pattern)]
# In a block that shows a terminal or a script, or indented by four.
SHOWN = re.compile(r"^(?:[$#] |    )(nv(?:inject|fakes|conform) .*)$|```sh\n((?:.+\n)+?)```", re.MULTILINE)


def shown_commands(text: str) -> Iterator[str]:
    """Yield the command lines of a document, without what follows them."""
    for command, script in SHOWN.findall(text):
        for line in [command, *script.splitlines()]:
            for part in re.split(r"; ", re.split(r"  +#| [<>|] ", line)[0]):
                is_mark = ": " in part  # a comment that we write into a file of LXC
                if part.startswith(("nvinject ", "nvfakes ", "nvconform ")) and not is_mark:
                    yield part.strip()


def test_every_command_of_the_documents_is_taken_by_its_parser() -> None:
    """As those of --help are; the hook and the shim have no parser of this kind."""
    taken = []
    for command in [one for path in DOCUMENTS for one in shown_commands(path.read_text())]:
        top = max((top for top in PARSERS if command.startswith(f"{top} ")), key=len, default="")
        if top:
            words = shlex.split(command.removeprefix(top))
            PARSERS[top].parse_args(words[: words.index("--")] if "--" in words else words)
            taken.append(command)
    assert len(taken) > 30, taken


def test_the_walk_finds_the_sub_commands() -> None:
    """The table above is not empty by accident."""
    known = {"nvinject cdi transform root", "nvinject system print-ldcache", "nvfakes mig", "nvconform run"}
    assert known <= set(EVERY)


def test_an_unknown_option_is_a_usage_error() -> None:
    """Inside the program it is an error like any other one."""
    with pytest.raises(UsageError) as caught:
        dispatch(["plan", "--nonsense"])
    assert isinstance(caught.value, NvinjectError)
