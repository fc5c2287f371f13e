"""Deliberate faults put into a copy of the injector, one at a time: each has to be caught by a case of the suite.

Belongs here: the faults as rows of (title, file, old text, new text, cases), applying one, judging one. Does not belong
here: the cases. `python -m nvconform.mutations` runs them all, `--table` prints what docs/security.md has. A text that
is no longer in its file is an error: the fault would test nothing.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUN_SECONDS = 170
PACKAGES = ("nvinject", "nvfakes", "nvconform")


@dataclass(frozen=True)
class Mutation:
    """One fault: in `file` of nvinject `old` (found exactly once) becomes `new`; one of `cases` has to fail."""

    title: str
    file: str
    old: str
    new: str
    cases: tuple[str, ...]


@dataclass
class Verdict:
    """What came of one fault: the cases that failed, and the first difference that they show."""

    mutation: Mutation
    caught: list[str] = field(default_factory=list)
    difference: str = ""
    problem: str = ""


MUTATIONS = (
    Mutation(
        "files are mounted writable",
        "linux/mounts.py",
        '    "ro": MOUNT_ATTR_RDONLY,\n',
        '    "ro": 0,\n',
        ("devices/all",),
    ),
    Mutation(
        "mounts lack nosuid",
        "linux/mounts.py",
        '    "nosuid": MOUNT_ATTR_NOSUID,\n',
        '    "nosuid": 0,\n',
        ("devices/all",),
    ),
    Mutation(
        "a device rule has the next minor",
        "core/planner.py",
        'AllowDevice(major=node.major, minor=node.minor, access="rw"',
        'AllowDevice(major=node.major, minor=node.minor + 1, access="rw"',
        ("devices/index",),
    ),
    Mutation(
        "device rules forbid writing",
        "core/planner.py",
        'AllowDevice(major=node.major, minor=node.minor, access="rw"',
        'AllowDevice(major=node.major, minor=node.minor, access="r"',
        ("devices/index",),
    ),
    Mutation(
        "no device rules are written",
        "render/namespaces.py",
        "if rules and not no_cgroups:",
        "if rules and no_cgroups:",
        ("devices/all",),
    ),
    Mutation(
        "no-cgroups is not heeded",
        "render/namespaces.py",
        "if rules and not no_cgroups:",
        "if rules:",
        ("privileges/no-cgroups",),
    ),
    Mutation(
        "an index grants every GPU",
        "core/selection.py",
        "        gpus=tuple(gpu for place, gpu in enumerate(gpus) if place in chosen_gpus),",
        "        gpus=gpus,",
        ("devices/index",),
    ),
    Mutation(
        "none grants every GPU",
        "core/selection.py",
        '    if tokens == ("none",):\n        return Selection()\n',
        '    if tokens == ("none",):\n        return _everything(gpus)\n',
        ("devices/none",),
    ),
    Mutation(
        "a MIG device brings its neighbours",
        "core/selection.py",
        "            if (place, inner) in chosen_migs\n",
        "            if place in chosen_gpus\n",
        ("mig/index", "mig/uuid"),
    ),
    Mutation(
        "requirements are not checked",
        "core/planner.py",
        "    check(request.requirements, collect_facts(inventory.driver, selection.gpus))\n",
        "",
        ("requirements/cuda-too-new", "requirements/driver-too-old"),
    ),
    Mutation(
        "versions are compared as text",
        "core/requirements.py",
        '">=": (0, 1)',
        '">=": (-1, 0, 1)',
        ("requirements/cuda-too-new", "requirements/numbers-not-text"),
    ),
    Mutation(
        "unprivileged containers may always ask",
        "core/request.py",
        "    return spec.privileged or policy.accept_envvar_unprivileged\n",
        "    return True\n",
        ("privileges/environment-denied",),
    ),
    Mutation(
        "capabilities beyond the operator's limit are granted",
        "core/request.py",
        "    refused = tuple(token for token in dict.fromkeys(tokens) if token not in supported)\n",
        "    refused: tuple[str, ...] = ()\n",
        ("capabilities/not-supported-here", "capabilities/unknown"),
    ),
    Mutation(
        "every container gets all capabilities",
        "core/request.py",
        "    return tuple(sorted(set(tokens)))\n",
        "    return tuple(sorted(supported))\n",
        ("capabilities/utility",),
    ),
    Mutation(
        "links of the image are followed by the kernel",
        "linux/inroot.py",
        "_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC\n",
        "_ENTRY = os.O_PATH | os.O_CLOEXEC\n",
        ("hostile/library-directory-relative", "hostile/library-directory-absolute"),
    ),
    Mutation(
        "reading does not stay in the root",
        "linux/inroot.py",
        "_RESOLVE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS\n",
        "_RESOLVE = RESOLVE_NO_MAGICLINKS\n",
        ("hostile/etc-link", "devices/all"),
    ),
    Mutation(
        "a link in the loader cache's place is followed",
        "render/replacement.py",
        "inroot.open_parent(root_fd, path, DIRECTORY_MODE)",
        "inroot.open_parent(root_fd, path, DIRECTORY_MODE, follow_last=True)",
        ("hostile/loader-cache-link", "attacks/loader-cache-link-to-directory"),
    ),
    Mutation(
        "what a link of the image says on another mount is copied",
        "render/loadercache.py",
        "read_own(root_fd, operation.musl_path_file",
        "read_regular(root_fd, operation.musl_path_file",
        ("attacks/musl-path-file-link-to-volume",),
    ),
    Mutation(
        "a link of the image leads mounts into procfs",
        "render/operations.py",
        "        _refuse_procfs(target_fd, path)\n",
        "",
        ("attacks/program-link-to-procfs",),
    ),
    Mutation(
        "a failure is not undone",
        "render/journal.py",
        "        problems = _run(self._inverses[::-1])\n",
        "        problems = ()\n",
        ("hostile/nvidia-smi-directory", "hostile/loader-cache-directory"),
    ),
    Mutation(
        "device rules are not taken back",
        "render/cgroup.py",
        "                take_back()\n",
        "                pass\n",
        ("hostile/nvidia-smi-directory",),
    ),
    Mutation(
        "the backup of a replaced link stays",
        "render/operations.py",
        'self._journal.at_end(f"removal of {backup}", lambda: os.unlink(backup, dir_fd=parent_fd))',
        "pass",
        ("hostile/soname-link",),
    ),
    Mutation(
        "links of the image are left where SONAMEs belong",
        "core/planner.py",
        "                    force=True,\n",
        "",
        ("hostile/soname-link",),
    ),
    Mutation(
        "anything passes for /proc",
        "render/operations.py",
        "if syscalls.fstatfs(proc_fd) != PROC_SUPER_MAGIC or os.fstat(proc_fd).st_ino != PROC_ROOT_INO:",
        "if False:",
        ("hostile/proc-is-a-directory", "attacks/proc-of-the-image"),
    ),
    Mutation(
        "what lies in a mount's place is not looked at",
        "render/operations.py",
        "    if present == wanted or (present == stat.S_IFREG and wanted != stat.S_IFDIR):\n",
        "    if present == wanted or wanted != stat.S_IFDIR:\n",
        ("hostile/nvidia-smi-fifo",),
    ),
    Mutation(
        "programs of a container may make device nodes",
        "formats/nvproc.py",
        '    masked = "ModifyDeviceFiles: 0"\n',
        '    masked = "ModifyDeviceFiles: 1"\n',
        ("devices/all",),
    ),
    Mutation(
        "other GPUs show in the driver's procfs",
        "core/planner.py",
        "        *plan_driver_proc(inventory),\n",
        "",
        ("devices/index", "devices/all"),
    ),
    Mutation(
        "libraries of another driver version are taken",
        "host/libraries.py",
        "        if self.suffix and name.endswith(self.suffix):\n",
        "        if self.suffix:\n",
        ("host/version-skew",),
    ),
    Mutation(
        "errors end with exit code 0",
        "cli/main.py",
        "        return error.exit_code\n",
        "        return 0\n",
        ("devices/unknown-index",),
    ),
    Mutation(
        "a broken configuration counts for nobody",
        "config.py",
        "def load_policy(",
        "def load_policy(*_: object, **__: object) -> 'tuple[Policy, tuple[str, ...]]':\n    return Policy(), ()\n\n\n"
        "def load_policy_unused(",
        ("configuration/syntax-error", "configuration/wrong-type"),
    ),
)


class Copies:
    """A temporary copy of the packages, in which one fault at a time is planted."""

    def __init__(self) -> None:
        """Copy the packages."""
        self.folder = Path(tempfile.mkdtemp(prefix="nvconform-mutations-"))
        self.folder.chmod(0o755)
        for name in PACKAGES:
            found = importlib.util.find_spec(name)
            if found is None or found.origin is None:
                raise RuntimeError(f"{name} is not installed")
            source = Path(found.origin).parent
            shutil.copytree(source, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        from nvconform.casefile import cases_directory

        shutil.copytree(cases_directory(), self.folder / "nvconform" / "cases", dirs_exist_ok=True)

    def run(self, case: str) -> tuple[bool, list[str]]:
        """Run one case; returns whether it passed, and the differences."""
        results = self.folder / "results.json"
        results.unlink(missing_ok=True)
        command = [sys.executable, "-m", "nvconform.mutations", "--run-case", case, "--results", str(results)]
        done = subprocess.run(
            command,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        if not results.exists():
            return False, [f"no result: {done.stderr.strip()[-400:]}"]
        result: dict[str, Any] = json.loads(results.read_text())
        if result["status"] == "skipped":
            return True, [f"skipped: {result['reason']}"]
        return result["status"] == "passed", [str(line) for line in result["differences"]]

    def judge(self, mutation: Mutation) -> Verdict:
        """Plant one fault, run its cases, and take it out again."""
        verdict = Verdict(mutation)
        path = self.folder / "nvinject" / mutation.file
        text = path.read_text()
        if text.count(mutation.old) != 1:
            verdict.problem = f"the text is {text.count(mutation.old)} times in {mutation.file}"
            return verdict
        path.write_text(text.replace(mutation.old, mutation.new))
        try:
            for case in mutation.cases:
                passed, lines = self.run(case)
                if not passed:
                    verdict.caught.append(case)
                    verdict.difference = verdict.difference or (lines[0] if lines else "")
                    break
        finally:
            path.write_text(text)
        if not verdict.caught:
            verdict.problem = "no case fails"
        elif verdict.difference.startswith(("no result", "suite:")):
            verdict.problem = verdict.difference
        return verdict

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)


def run_one(identifier: str, results: Path) -> int:
    """Run one case in the root lane and write its result; called in the copy."""
    from nvconform import implementations
    from nvconform.casefile import cases_directory, find, load_all, load_sets
    from nvconform.session import Session

    session = Session(implementations.load(implementations.DEFAULT), load_sets())
    try:
        case = find(load_all(cases_directory()), identifier)
        result = session.run(case, "root" if "root" in case.lanes else case.lanes[0])
    finally:
        session.close()
    results.write_text(json.dumps(result, default=str))
    return 0


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the faults and what caught them as a Markdown table."""
    lines = ["| fault | where | caught by |", "|---|---|---|"]
    lines += [
        f"| {one.mutation.title} | `{one.mutation.file}` | {', '.join(one.caught) or 'NOTHING'} |" for one in verdicts
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all faults, or those whose title contains a text."""
    options = argparse.ArgumentParser(prog="python -m nvconform.mutations", description=(__doc__ or "").split("\n")[0])
    options.add_argument("-k", dest="words", default="", metavar="TEXT", help="only faults whose title contains this")
    options.add_argument("--table", action="store_true", help="print the Markdown table")
    options.add_argument("--run-case", default="", help=argparse.SUPPRESS)
    options.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args(arguments)
    if chosen.run_case:
        return run_one(chosen.run_case, chosen.results)
    copies = Copies()
    try:
        verdicts = []
        for mutation in MUTATIONS:
            if chosen.words in mutation.title:
                verdict = copies.judge(mutation)
                verdicts.append(verdict)
                words = verdict.problem or f"{verdict.caught[0]}: {verdict.difference}"
                sys.stderr.write(f"{mutation.title}: {words[:200]}\n")
        cases = sorted({one.caught[0] for one in verdicts if one.caught})
        broken = [case for case in cases if not copies.run(case)[0]]
        for case in broken:
            sys.stderr.write(f"{case} fails without a fault, too\n")
    finally:
        copies.close()
    if chosen.table:
        sys.stdout.write(table(verdicts))
    return 1 if broken or any(verdict.problem for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
