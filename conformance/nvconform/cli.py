"""nvconform: list, check, show and run the conformance cases, and report what came out.

Belongs here: argv, words and exit codes. Does not belong here: anything that pytest's plug-in needs too (session.py,
report.py). Exit codes: 0 all passed, 1 a MUST failed, 2 wrong usage or a file of the suite is wrong.
"""

import argparse
import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TextIO

from nvconform import implementations, junit, matrix, page, report
from nvconform.case import LANES, Case
from nvconform.casefile import SCHEMA_FILE, cases_directory, find, known_profiles, load_all, load_sets
from nvconform.ending import INTERRUPTED, CaughtSignals, EndedError
from nvconform.engines.registry import RUNTIMES
from nvconform.shapes import DocumentError
from nvfakes import completion, usage

DESCRIPTION = """\
Replays OCI containers through a real runtime on fake GPU machines and judges what an injector makes of them.
"""
EPILOG = """\
examples:
  nvconform list -k mig                 the cases whose id contains "mig"
  nvconform show devices/all            one case, with where it stands
  nvconform run --lane rootless         everything that works as an ordinary user
  nvconform run --profile core --report report
                                        the core, as report/index.html, report.json and junit.xml
  nvconform run --implementation nvinject-hook --implementation nvinject-jit --runtime runc --runtime crun
  nvconform report one.json two.json    several results side by side
"""
REPORT_FOLDER = Path("conformance/report")
# name: what it does, the end of its help
COMMANDS = {
    "list": (
        "show which cases there are",
        "examples:\n  nvconform list -k mig\n  nvconform list --profile security --json\n",
    ),
    "show": ("show one case", "examples:\n  nvconform show devices/all\n"),
    "validate": (
        "check all case files; mistakes come with file, line and key",
        "examples:\n  nvconform validate\n  nvconform --cases ./cases validate\n",
    ),
    "schema": ("print the JSON schema of case files", "examples:\n  nvconform schema > case.schema.json\n"),
    "run": (
        "run cases",
        (
            "examples:\n  nvconform run -k devices/\n  nvconform run --lane rootless\n"
            "  nvconform run --implementation ./mine.yaml --report report\n"
            "  nvconform run --runtime podman --implementation nvinject-jit --profile core --lane root\n\n"
            "exit codes:\n  0  every MUST holds    1  one does not    2  usage, or a file is wrong\n"
        ),
    ),
    "completion": (
        "print a script for bash, zsh or fish that completes commands and options",
        (
            "examples:\n  nvconform completion bash > /etc/bash_completion.d/nvconform\n"
            "  nvconform completion zsh > /usr/share/zsh/vendor-completions/_nvconform\n"
            "  nvconform completion fish > ~/.config/fish/completions/nvconform.fish\n"
        ),
    ),
    "report": (
        "make a report of results: JSON, JUnit and one HTML page",
        "examples:\n  nvconform report one.json two.json --out report\n",
    ),
}


class Parser(usage.Parser):
    """A parser whose mistakes are one line, with the nearest name."""

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong as other mistakes of a user are told."""
        raise DocumentError(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """Return the options of all commands."""
    options = Parser(prog="nvconform", description=DESCRIPTION, epilog=EPILOG)
    options.add_argument("--version", action="version", version=f"nvconform {_version()}", help="print the version")
    options.add_argument(
        "--cases", type=Path, default=cases_directory(), metavar="DIR", help="folder of the case files"
    )
    commands = options.add_subparsers(dest="command", required=True, metavar="COMMAND")
    made = {
        name: commands.add_parser(name, help=words, description=f"{words[:1].upper()}{words[1:]}.", epilog=examples)
        for name, (words, examples) in COMMANDS.items()
    }
    _add_choice(made["list"])
    made["list"].add_argument("--json", action="store_true", help="as JSON")
    made["show"].add_argument("case", metavar="CASE", help="its id")
    _add_run(made["run"])
    made["completion"].add_argument("shell", choices=completion.SHELLS, help="the shell")
    made["report"].add_argument("results", nargs="+", type=Path, metavar="FILE", help="what run --json wrote")
    made["report"].add_argument("--out", type=Path, default=REPORT_FOLDER, metavar="DIR", help="default: %(default)s")
    return options


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nvinject")
    except PackageNotFoundError:
        return "of a checkout"


def _add_choice(options: argparse.ArgumentParser) -> None:
    options.add_argument("-k", dest="words", default="", metavar="TEXT", help="only ids that contain this")
    options.add_argument("--profile", choices=sorted(known_profiles().parts), default="", help="only these features")


def _add_run(running: argparse.ArgumentParser) -> None:
    _add_choice(running)
    running.add_argument("--lane", action="append", choices=LANES, help="only this lane; may be given several times")
    running.add_argument(
        "--implementation",
        action="append",
        metavar="NAME",
        help=f"name or adapter file; may be given several times (known: {', '.join(implementations.names())})",
    )
    running.add_argument(
        "--runtime", action="append", choices=RUNTIMES, help="low-level runtime or engine; may be given several times"
    )
    running.add_argument(
        "--cgroup", default="host", choices=("host", "v2"), help="cgroups as they are here, or v2 alone"
    )
    running.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    running.add_argument("--report", type=Path, metavar="DIR", help="write JSON, JUnit and the HTML page there")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": list_cases,
        "show": show_case,
        "validate": validate_cases,
        "schema": print_schema,
        "run": run_cases,
        "report": report_results,
        "completion": print_completion,
    }
    try:
        chosen = parser().parse_args(arguments)
        return commands[chosen.command](chosen)
    except DocumentError as error:
        return _complain(str(error))
    except (SystemExit, KeyboardInterrupt, EndedError) as end:
        return _leave(end)
    except BrokenPipeError:
        _give_up(sys.stdout)
        return 1
    except OSError as error:
        thing = error.filename or "standard output"
        return _complain(f"{thing}: {error.strerror or error}; name another file, or mend its directory")


def run() -> None:
    """Entry point of the console script."""
    sys.stdout = sys.stdout or _open_nowhere()  # Python has None for what was closed
    sys.stderr = sys.stderr or _open_nowhere()
    code = main()
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up(sys.stdout)
        if error.errno != errno.EPIPE:
            _complain(f"cannot write to standard output: {error.strerror}")
        code = code or 1
    try:
        sys.stderr.flush()
    except OSError:
        _give_up(sys.stderr)
    sys.exit(code)


def _leave(end: SystemExit | KeyboardInterrupt | EndedError) -> int:
    if isinstance(end, SystemExit):  # argparse's way out, after --help
        return int(end.code or 0)
    return end.finish() if isinstance(end, EndedError) else INTERRUPTED


def _complain(message: str) -> int:
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    with contextlib.suppress(OSError):  # a full disk takes no message either
        print(f"nvconform: {line}", file=sys.stderr, flush=True)
    return 2


def _open_nowhere() -> TextIO:
    return open(os.devnull, "w")


def _give_up(stream: TextIO) -> None:
    """Let what is still buffered go nowhere: Python would try again to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def list_cases(chosen: argparse.Namespace) -> int:
    """Print id, lanes and title of the cases."""
    cases = _selected(chosen)
    if chosen.json:
        names = ("id", "title", "level", "features", "lanes", "source")
        sys.stdout.write(json.dumps([{name: getattr(case, name) for name in names} for case in cases], indent=1) + "\n")
        return 0
    for case in cases:
        sys.stdout.write(f"{case.id:<44} {','.join(case.lanes):<22} {case.title}\n")
    sys.stdout.write(f"{len(cases)} cases, {sum(len(case.lanes) for case in cases)} runs\n")
    return 0


def show_case(chosen: argparse.Namespace) -> int:
    """Print all fields of one case that are not at their defaults."""
    case = find(load_all(chosen.cases), chosen.case)
    sys.stdout.write(f"{case.file}:{case.line}\n")
    sys.stdout.write(json.dumps(_set_fields(asdict(case)), indent=1) + "\n")
    return 0


def validate_cases(chosen: argparse.Namespace) -> int:
    """Check every case file against the schema, and the adapters."""
    cases = load_all(chosen.cases)
    load_sets()
    for name in implementations.names():
        implementations.load(name)
    sys.stdout.write(f"{len(cases)} cases are well formed\n")
    return 0


def print_schema(_: argparse.Namespace) -> int:
    """Print the schema that case files are checked against; editors can use it too."""
    sys.stdout.write(SCHEMA_FILE.read_text(encoding="utf-8"))
    return 0


def print_completion(chosen: argparse.Namespace) -> int:
    """Print a completion script."""
    known = {"implementation": tuple(implementations.names())}
    sys.stdout.write(completion.script(chosen.shell, parser(), known))
    return 0


def run_cases(chosen: argparse.Namespace) -> int:
    """Run the chosen cases, each with each implementation and runtime, and print the table."""
    chosen_implementations = [implementations.load(name) for name in chosen.implementation or [implementations.DEFAULT]]
    runtimes = chosen.runtime or ["runc"]
    cases = _selected(chosen)
    if not cases:
        raise DocumentError(f"no case has {chosen.words!r} in its id and fits; nvconform list shows all")
    for folder in (chosen.json.parent if chosen.json else None, chosen.report):
        if folder is not None:
            _make_writable(folder)  # before the cases run, which can take half an hour
    groups = matrix.arrange(cases, chosen_implementations, runtimes, chosen.lane or (), chosen.cgroup)
    with CaughtSignals(), _progress(sum(len(group.cases) for group in groups)) as tell:
        results = matrix.run(groups, load_sets(), tell)
    several = len(chosen_implementations) * len(runtimes) > 1
    for name, members in _columns(results).items():
        sys.stdout.write(f"\n{name}\n" if several else "")
        sys.stdout.write("".join(f"{line}\n" for line in report.table(members)))
    names = ", ".join(implementation.name for implementation in chosen_implementations)
    if chosen.json:
        report.write_json(chosen.json, names, results)
    if chosen.report:
        _write_report(chosen.report, names, results, [report.environment(results)])
    return 1 if any(report.verdict(result) == "failed" for result in results) else 0


def _make_writable(folder: Path) -> None:
    """Make a folder where need be; raises DocumentError where nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DocumentError(f"cannot make {folder}: {error.strerror}; name another one") from None
    if not os.access(folder, os.W_OK):
        raise DocumentError(f"cannot write into {folder}; name another folder, or mend its permissions")


def report_results(chosen: argparse.Namespace) -> int:
    """Put the results of several files into one report."""
    documents = [report.read_json(path) for path in chosen.results]
    results = [result for document in documents for result in document["results"]]
    names = ", ".join(dict.fromkeys(str(document.get("implementation", "")) for document in documents))
    environments = [document.get("environment", {}) for document in documents]
    _write_report(chosen.out, names, results, environments)
    return 0


def _write_report(
    folder: Path, names: str, results: Sequence[Mapping[str, Any]], environments: Sequence[Mapping[str, str]]
) -> None:
    report.write_json(folder / "report.json", names, results)
    (folder / "junit.xml").write_text(junit.render(results))
    (folder / "index.html").write_text(page.render(results, environments, known_profiles()))
    sys.stdout.write(f"report: {folder / 'index.html'}\n")


def _columns(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the results by implementation and runtime."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        found.setdefault(f"{result['implementation']} / {result['runtime']}", []).append(result)
    return found


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that hears of each result: failures are told at once, a bar shows how far the run is."""
    # Imported here: rich is not needed for the other commands.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    failures = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("no failures", total=total)

        def tell(result: Mapping[str, Any]) -> None:
            nonlocal failures
            if result["status"] == "failed":
                failures += 1
                bar.console.print(report.explain(result), markup=False, highlight=False, soft_wrap=True)
            words = f"{failures} failed" if failures else "no failures"
            bar.update(task, advance=1, description=f"{words}  {str(result['id'])[:36]:<36}")

        yield tell


def _selected(chosen: argparse.Namespace) -> list[Case]:
    profiles = known_profiles()
    found = [case for case in load_all(chosen.cases) if chosen.words in case.id]
    return [case for case in found if profiles.holds(chosen.profile, case.features)]


def _set_fields(mapping: dict[str, Any]) -> dict[str, Any]:
    result = {key: _set_fields(value) if isinstance(value, dict) else value for key, value in mapping.items()}
    return {key: value for key, value in result.items() if value not in (None, "", (), [], {}, False)}
