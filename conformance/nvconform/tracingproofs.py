"""Proofs about an injector that need a tracer: paths, races, what it inherits, and the environment of an image.

Belongs here: the runs inside a fake machine and their verdicts, as one JSON document. Does not belong here: the rules
for paths (tracingpaths.py), failing calls (faults.py). `nvfakes run two-h100 -- python -m nvconform.tracingproofs
NAME`. A proof that passes whatever the injector does would prove nothing: each has injectors that are wrong on purpose.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvconform import implementations, tracing
from nvconform.case import Container
from nvconform.stage import UP
from nvconform.tracing import Call
from nvconform.tracingcontainer import ASKING, RUN_SECONDS, Bench, Held
from nvconform.tracingpaths import PathProof

PREAMBLE = """\
import ctypes, json, os, struct, sys
state = json.load(sys.stdin)
rootfs = state["bundle"] + "/rootfs"
inside = f"/proc/{state['pid']}/root{rootfs}"
root = os.open(inside, os.O_PATH | os.O_DIRECTORY)
libc = ctypes.CDLL(None)
def attempt(function, *arguments, **more):
    try:
        function(*arguments, **more)
    except OSError:
        pass
"""
ENTER = "libc.setns(os.open(f\"/proc/{state['pid']}/ns/mnt\", os.O_RDONLY), 0x20000)\n"
OPENAT2 = 'libc.syscall(437, root, b"etc/passwd", struct.pack("=QQQ", os.O_PATH, 0, 0), 24)'
# What an injector does wrong -> the words of the verdict.
WRONG = {
    'attempt(os.stat, inside + "/etc")': "a path into the root file system",
    'attempt(os.mkdir, rootfs + "/etc/wrong/wrong")': "a path into the root file system",
    'os.chdir("/"); os.chdir(state["bundle"]); attempt(os.stat, "rootfs/etc")': "a path into the root file system",
    'attempt(os.stat, "etc/passwd", dir_fd=root)': "more than one component",
    'attempt(os.stat, "..", dir_fd=root)': "more than one component",
    'attempt(os.open, "etc", os.O_RDONLY, dir_fd=root)': "follows a link in the last place",
    'attempt(os.stat, "etc", dir_fd=root)': "follows a link in the last place",
    OPENAT2: "openat2 without RESOLVE_IN_ROOT",
    'libc.mount(b"/nonexistent", rootfs.encode(), None, 0x1000, None)': "from descriptor to descriptor",
    'libc.mount(b"1", b"2", None, 0x1000, None)': "from descriptor to descriptor",
    'libc.umount2((rootfs + "/nothing").encode(), 2)': "from descriptor to descriptor",
    'libc.syscall(429, root, b"", -100, b"/nonexistent/x", 4)': "from descriptor to descriptor",
    f'{ENTER}attempt(os.stat, "/etc/passwd")': "a path without descriptor",
    f'{ENTER}attempt(os.stat, "etc")': "a path without descriptor",
    f'{ENTER}attempt(os.execv, "/nonexistent", ["x"])': "a program is run in the container",
    'libc.syscall(428, root, b"", 0x1001)': "mounts something of the image",
}


def prove_paths(bench: Bench) -> dict[str, Any]:
    """Trace the injector, then the wrong ones; every rule has to be broken by one of these."""
    result: dict[str, Any] = {"problems": []}
    for title, container in (("usual", ASKING), ("links", _linked())):
        with bench.held(container) as held:
            proof = PathProof(held.stage.rootfs, held.pid)
            outcome = _trace(held, bench.command(), proof.entry, proof.exit)
            result["problems"] += [f"{title}: {problem}" for problem in proof.problems]
            if outcome.code != 0:
                result["problems"].append(f"{title}: the injector exits {outcome.code}: {outcome.message}")
            if not proof.entered or proof.judged.get("move_mount", 0) < 20 or proof.judged.get("openat2", 0) < 5:
                result["problems"].append(f"{title}: too little was seen: {proof.judged}")
            result[title] = proof.judged
    with bench.held() as held:
        for wrong, words in WRONG.items():
            proof = PathProof(held.stage.rootfs, held.pid)
            outcome = _trace(held, [sys.executable, "-IS", "-c", PREAMBLE + wrong], proof.entry, proof.exit)
            if not any(words in problem for problem in proof.problems):
                result["problems"].append(f"control: {wrong} is not found out: {proof.problems} {outcome.message}")
    result["controls"] = len(WRONG)
    return result


def _linked() -> Container:
    """Return a container whose image has links wherever the injector goes."""
    return replace(
        ASKING,
        image="rpm",
        directories=("/elsewhere/lib", "/elsewhere/firmware", "/elsewhere/vulkan"),
        remove=("/usr/lib64",),
        links={
            "/usr/lib64": "/elsewhere/lib",
            "/usr/lib/firmware/nvidia": "/elsewhere/firmware",
            "/etc/vulkan": f"{UP}/elsewhere/vulkan",
            "/elsewhere/lib/libcuda.so.1": "../nowhere",
            "/usr/bin/nvidia-smi": "/elsewhere/nvidia-smi",
        },
    )


def _trace(
    held: Held,
    command: Sequence[str],
    entry: Callable[[Call], int | None] | Callable[[Call], None],
    exit_: Callable[[Call, int], None] | None = None,
) -> tracing.Outcome:
    return tracing.run(
        command,
        on_entry=entry,
        on_exit=exit_,
        stdin=held.state,
        environment=held.stage.environment(),
        seconds=RUN_SECONDS,
    )


# -- races


# Volume, its mount point, the names to exchange with links, what the links lead to below the canary.
VOLUMES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("etc", "/etc", {"ld.so.cache": "secret", "ld.so.conf.d": "target-dir", "debian_version": "secret"}),
    ("lib", "/usr/lib", {"x86_64-linux-gnu": "target-dir", "firmware": "target-dir"}),
    ("cuda", "/usr/local", {"cuda": "target-dir"}),
    ("run", "/run", {"nvidia-persistenced": "target-dir"}),
    ("bin", "/usr/bin", {"nvidia-smi": "ldconfig"}),
)
CONTENTS: dict[str, dict[str, str]] = {
    "etc": {"ld.so.conf.d/x.conf": "/opt/lib\n", "ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n"},
    "lib": {"x86_64-linux-gnu/.keep": "", "firmware/nvidia/570.133.20/.keep": ""},
    "cuda": {"cuda/compat/libcuda.so.999.1": "no library"},
    "run": {"nvidia-persistenced/.keep": ""},
    "bin": {"nvidia-smi": ""},
}


class Swapper:
    """Exchanges names of volumes that are mounted in a container, between two system calls of the injector."""

    def __init__(self, directory: Path, rootfs: Path) -> None:
        """Fill the volumes from the image."""
        self.exchanges: list[tuple[Path, Path]] = []
        outside = directory / "outside"
        for volume, target, names in VOLUMES:
            place = directory / volume
            source = rootfs / target.lstrip("/")
            source.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True)
            for name, text in CONTENTS[volume].items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_text(text)
            for number, (name, leads_to) in enumerate(names.items()):
                twin = place / f".twin{number}"
                twin.symlink_to(f"{UP if number % 2 else ''}{outside}/{leads_to}")
                if not (place / name).exists():
                    (place / name).touch()
                self.exchanges.append((place / name, twin))

    def exchange(self) -> None:
        """Exchange all names with their links."""
        libc = ctypes.CDLL(None, use_errno=True)
        for name, twin in self.exchanges:
            libc.renameat2(-100, bytes(name), -100, bytes(twin), 2)


# Looks whether a folder is a link, and then uses its path: the oldest of these mistakes.
CARELESS = """\
folder = inside + "/usr/lib/x86_64-linux-gnu"
for number in range(20):
    if not os.path.islink(folder):
        attempt(os.mkdir, f"{folder}/careless{number}")
"""


def race(bench: Bench, runs: int) -> dict[str, Any]:
    """Let names change at each call, and once before each of many calls; nothing outside may change."""
    result: dict[str, Any] = {"problems": [], "runs": 0, "injected": 0, "refused": 0}
    counted = _race_once(bench, lambda _: False, result)
    _race_once(bench, lambda _: True, result)
    _race_once(bench, lambda number: number % 2 == 0, result)
    _race_once(bench, lambda number: number % 3 == 0, result)
    step = max(1, counted // runs)
    for number in range(0, counted, step):
        _race_once(bench, lambda call, at=number: call == at, result)  # type: ignore[misc]
    result["calls"] = counted
    control: dict[str, Any] = {"problems": [], "runs": 0, "injected": 0, "refused": 0}
    _race_once(bench, lambda _: True, control, [sys.executable, "-IS", "-c", PREAMBLE + CARELESS])
    if not any(problem.startswith("host:") for problem in control["problems"]):
        result["problems"].append(f"control: a careless injector does not write outside: {control['problems']}")
    return result


def _race_once(bench: Bench, when: Callable[[int], bool], result: dict[str, Any], command: Sequence[str] = ()) -> int:
    """Run once; returns how many calls there were after the root was opened."""
    count = 0
    with _racing(bench) as (held, swapper):
        proof = PathProof(held.stage.rootfs, held.pid)
        before = bench.host(held.stage)

        def entry(call: Call) -> None:
            nonlocal count
            proof.entry(call)
            if call.process in proof.holds:
                if when(count):
                    swapper.exchange()
                count += 1

        outcome = _trace(held, command or bench.command(), entry, proof.exit)
        result["runs"] += 1
        result["injected" if outcome.code == 0 else "refused"] += 1
        lines = [f"host: {line}" for line in before.differences(bench.host(held.stage))]
        lines += [f"path: {problem}" for problem in proof.problems]
        text = outcome.message
        if outcome.code not in {0, 7} or "Traceback" in text or "fault of nvinject" in text:
            lines.append(f"exit {outcome.code}: {text[-300:]}")
        result["problems"] += lines[:5]
    return count


@contextlib.contextmanager
def _racing(bench: Bench) -> Iterator[tuple[Held, Swapper]]:
    bench.count = 0
    stage = bench.stage(ASKING)
    try:
        swapper = Swapper(stage.directory, stage.rootfs)
        held = Held(stage)
        try:
            held.create({volume: target for volume, target, _ in VOLUMES})
            yield held, swapper
        finally:
            held.remove()
    finally:
        stage.clear()


# -- what the injector inherits


def inherit(bench: Bench) -> dict[str, Any]:
    """Start the injector with descriptors and a working directory in the image; by its first read both are gone."""
    result: dict[str, Any] = {"problems": [], "seen": 0}
    with bench.held() as held:
        script = f'cd {held.stage.rootfs}; exec 7</etc/passwd 9<. 63<.; exec "$@"'
        command = ["/bin/bash", "-c", script, "bash", *bench.command()]

        def entry(call: Call) -> None:
            if call.name == "read" and call.number(0) == 0 and not result["seen"]:
                result["seen"] = 1
                place = os.readlink(f"/proc/{call.pid}/cwd")
                if place != "/":
                    result["problems"].append(f"works in {place}")
                for name in sorted(os.listdir(f"/proc/{call.pid}/fd")):
                    target = os.readlink(f"/proc/{call.pid}/fd/{name}")
                    if int(name) > 2 and not target.endswith(".bin"):
                        result["problems"].append(f"keeps descriptor {name}: {target}")

        outcome = _trace(held, command, entry)
        if outcome.code != 0 or not result["seen"]:
            result["problems"].append(f"exit {outcome.code}: {outcome.message}")
    return result


# -- the image's environment

VARIABLES = {
    "LD_PRELOAD": "/proc/self/cwd/evil.so:/proc/self/cwd/rootfs/evil.so",
    "LD_AUDIT": "/proc/self/cwd/evil.so:/proc/self/cwd/rootfs/evil.so",
    "LD_LIBRARY_PATH": "/proc/self/cwd:/proc/self/cwd/rootfs",
    "GCONV_PATH": "/proc/self/cwd:/proc/self/cwd/rootfs",
    "LOCPATH": "/proc/self/cwd",
    "PYTHONPATH": "/proc/self/cwd:/proc/self/cwd/rootfs",
    "PYTHONHOME": "/proc/self/cwd",
    "PYTHONSTARTUP": "/proc/self/cwd/sitecustomize.py",
    "PYTHONINSPECT": "1",
    "PYTHONUSERBASE": "/proc/self/cwd",
    "PYTHONWARNINGS": "error::evil.Evil",
    "PYTHONBREAKPOINT": "evil.evil",
    "TMPDIR": "/proc/self/cwd",
    "TZ": ":/proc/self/cwd/evil.so",
    "PATH": "/proc/self/cwd:/proc/self/cwd/rootfs",
    "BASH_ENV": "/proc/self/cwd/evil.sh",
    "ENV": "/proc/self/cwd/evil.sh",
}
EVIL_C = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void) { close(open("@CANARY@", O_CREAT | O_WRONLY, 0644)); }
unsigned la_version(unsigned version) { return version; }
"""
EVIL_PYTHON = "open('@CANARY@', 'w').close()\n"
EVIL_SHELL = "#!/bin/sh\n: > '@CANARY@'\n"


def environ(bench: Bench, jit: Bench) -> dict[str, Any]:
    """Create containers whose image tries to be run by hooks, through each variable."""
    result: dict[str, Any] = {"problems": [], "runs": 0, "control": ""}
    library = _compile_evil(bench)
    for name in VARIABLES:
        for stage in ("prestart", "createRuntime"):
            _attack(bench, library, name, stage, result)
        _attack(jit, library, name, "createContainer", result)
    result["control"] = _control(bench, library)
    return result


def _compile_evil(bench: Bench) -> Path:
    """Return a library that leaves the canary when it is loaded."""
    source, library = bench.work / "evil.c", bench.work / "evil.so"
    source.write_text(EVIL_C.replace("@CANARY@", str(bench.work / "was-run")))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    return library


def _image(name: str, canary: Path, library: Path) -> Container:
    python, shell = (text.replace("@CANARY@", str(canary)) for text in (EVIL_PYTHON, EVIL_SHELL))
    programs = {f"/{word}": {"text": shell, "mode": "0755"} for word in ("env", "sh", "ldconfig", "python3", "rm")}
    return Container(
        env=("NVIDIA_VISIBLE_DEVICES=all", f"{name}={VARIABLES[name]}"),
        files={
            "/sitecustomize.py": python,
            "/usercustomize.py": python,
            "/evil.py": python,
            "/os.py": python,
            "/nvinject/__init__.py": python,
            "/encodings/__init__.py": python,
            "/evil.sh": shell,
            "/gconv-modules": "module UTF-8// INTERNAL /proc/self/cwd/evil 1\n",
            "/evil.so": {"copy": str(library), "mode": "0755"},
            "/libc.so.6": {"copy": str(library), "mode": "0755"},
            "/libffi.so.8": {"copy": str(library), "mode": "0755"},
            **programs,
        },
    )


def _attack(bench: Bench, library: Path, name: str, stage_name: str, result: dict[str, Any]) -> None:
    canary = library.parent / "was-run"
    container = replace(_image(name, canary, library), stage="prestart" if bench.setup.is_runtime else stage_name)
    settings = {"nvidia-container-runtime": {"mode": "jit"}} if bench.setup.is_runtime else {}
    stage = bench.stage(container, settings)
    path = stage.bundle / "config.json"
    spec = json.loads(path.read_text())
    if not bench.setup.is_runtime:
        spec["hooks"][stage_name] = spec["hooks"].pop("prestart", spec["hooks"].get(stage_name))
    path.write_text(json.dumps(spec))
    before = bench.host(stage)
    runtime = bench.setup.runtime
    words = ["--log", str(stage.bundle / "runtime.log"), "create", "--bundle", str(stage.bundle), stage.identifier]
    program = [runtime.program, *runtime.options]
    if bench.setup.is_runtime:
        program = [*bench.setup.command(""), *runtime.options]
    try:
        done = subprocess.run(
            [*program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=stage.environment(),
            timeout=60,
            check=False,
        )
        runtime.delete(stage.identifier)
        result["runs"] += 1
        label = f"{runtime.name}, {stage_name}, {name}"
        if done.returncode != 0:
            log = (stage.bundle / "runtime.log").read_text() if (stage.bundle / "runtime.log").exists() else ""
            result["problems"].append(f"{label}: not created: {log[-300:]}")
        if canary.exists():
            result["problems"].append(f"{label}: code of the image was run on the host")
            canary.unlink()
        after = bench.host(stage)
        changed = [line for line in before.differences(after) if str(stage.outside) in line]
        result["problems"] += [f"{label}: {line}" for line in changed]
    finally:
        folder = Path("/run/nvinject", stage.identifier)
        shutil.rmtree(folder, ignore_errors=True)
        stage.clear()


def _control(bench: Bench, library: Path) -> str:
    """Tell whether a createContainer hook without `env` does run the image's code: the attack is a real one."""
    canary = library.parent / "was-run"
    stage = bench.stage(_image("LD_PRELOAD", canary, library))
    path = stage.bundle / "config.json"
    spec = json.loads(path.read_text())
    spec["hooks"] = {"createContainer": [{"path": "/bin/cat", "args": ["cat", "/etc/hostname"]}]}
    path.write_text(json.dumps(spec))
    try:
        bench.setup.runtime.create(stage.identifier, stage.bundle)
        bench.setup.runtime.delete(stage.identifier)
        found = canary.exists()
        canary.unlink(missing_ok=True)
        return (
            "the image's code is run by a hook without env"
            if found
            else "this runtime gives hooks no image's variables"
        )
    finally:
        stage.clear()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one proof and print its result."""
    options = argparse.ArgumentParser(prog="python -m nvconform.tracingproofs")
    options.add_argument("proof", choices=("paths", "races", "inherited", "environment"))
    options.add_argument("--runtime", default="runc")
    options.add_argument("--runs", type=int, default=40, help="how many calls a race is tried at")
    options.add_argument("--adapter", default="nvinject-hook", help="name or file of the injector's adapter")
    chosen = options.parse_args(arguments)
    bench = Bench(chosen.runtime, implementations.load(chosen.adapter).document)
    try:
        if chosen.proof == "paths":
            result = prove_paths(bench)
        elif chosen.proof == "races":
            result = race(bench, chosen.runs)
        elif chosen.proof == "inherited":
            result = inherit(bench)
        else:
            jit = Bench(chosen.runtime, implementations.load("nvinject-jit").document)
            try:
                result = environ(bench, jit)
            finally:
                jit.close()
    finally:
        bench.close()
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
