"""The stand-by: what the createContainer hook leaves to it, and what becomes of the container where it is missing.

A stand-in shim starts it and then becomes a stand-in runtime, a shell that calls the installed hook in a mount
namespace of its own.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nvinject.core.plan import BindFile, CreateSymlink
from nvinject.render.planfile import HookPlan, format_plan_file

SECONDS = 60
LINK = CreateSymlink(reason="test", link="/usr/lib/libcuda.so.1", target="libcuda.so.1.2", force=True)
# In the place of the shim. What is not started has gone when this process becomes the runtime.
SHIM = """\
import os, sys
from nvinject.cli.standby import Standby
from nvinject.render.planfile import parse_plan_file
folder, rootfs, runtime, standby = sys.argv[1:]
plan = parse_plan_file(open(f"{folder}/plan.json", "rb").read(), "plan.json")
links = tuple(one for one in plan.operations if type(one).__name__ == "CreateSymlink")
rest = plan.replace(operations=tuple(one for one in plan.operations if one not in links))
if standby != "none":
    by = Standby(folder, links, rest, os.open(rootfs, os.O_PATH))
    if standby in {"started", "child"}:
        by.start(as_child=standby == "child")
os.execv("/bin/sh", ["sh", "-c", runtime])
"""


@pytest.fixture(autouse=True)
def mount_namespaces() -> None:
    """Skip where none can be made without a user namespace, as runtimes of root do."""
    tried = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()}")


class Container:
    """A run directory with a plan, a root file system, and the call of the hook."""

    def __init__(self, folder: Path, prefix: Path) -> None:
        self.folder, self.rootfs = folder / "run", folder / "rootfs"
        self.folder.mkdir()
        (self.rootfs / "etc").mkdir(parents=True)
        (self.rootfs / "etc/params").write_text("image")
        self.source = folder / "params"
        self.source.write_text("covered")
        self.state = folder / "state.json"
        self.state.write_text(json.dumps({"id": "x", "bundle": str(folder), "root": str(self.rootfs)}))
        self.hook = prefix / "bin/nvinject-create-container"
        self.write_plan(LINK, BindFile(reason="test", source=str(self.source), target="/etc/params", flags=("ro",)))

    def write_plan(self, *operations: BindFile | CreateSymlink) -> None:
        status = self.rootfs.stat()
        plan = HookPlan(operations=operations, root=(status.st_dev, status.st_ino))
        (self.folder / "plan.json").write_bytes(format_plan_file(plan))

    @property
    def link(self) -> Path:
        return self.rootfs / "usr/lib/libcuda.so.1"

    def run(self, standby: str, *, before: str = "") -> "subprocess.CompletedProcess[str]":
        """Have the hook called; what is covered is printed from within."""
        inside = textwrap.dedent(f"""\
            mount --make-rprivate /
            {before}
            {self.hook} {self.folder} <{self.state} || exit
            cat {self.rootfs}/etc/params
            """)
        runtime = f"unshare --mount sh -c '{inside}'"
        return self.become(runtime, standby)

    def become(self, runtime: str, standby: str) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-c", SHIM, str(self.folder), str(self.rootfs), runtime, standby]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)


@pytest.fixture
def container(tmp_path: Path, prefix: Path) -> Container:
    return Container(tmp_path, prefix)


@pytest.mark.parametrize("standby", ["started", "child", "none", "gone"])
def test_the_work_is_done_with_and_without_it(container: Container, standby: str) -> None:
    """Where it was not made, or has gone, the hook does everything itself."""
    done = container.run(standby)
    assert (done.returncode, done.stdout, done.stderr) == (0, "covered", "")
    assert os.readlink(container.link) == "libcuda.so.1.2"
    assert (container.rootfs / "etc/params").read_text() == "image"
    assert [name.name for name in container.folder.iterdir()] == ["plan.json"]


def test_the_hook_starts_no_interpreter_where_it_stands_by(container: Container, tmp_path: Path) -> None:
    """The hook is copied beside a launcher that cannot work."""
    hook = tmp_path / "bin/nvinject-create-container"
    hook.parent.mkdir()
    hook.write_bytes(container.hook.read_bytes())
    hook.chmod(0o755)
    launcher = tmp_path / "bin/nvinject"
    launcher.write_text("#!/bin/sh\nexit 99\n")
    launcher.chmod(0o755)
    container.hook = hook
    assert container.run("started").returncode == 0
    assert container.run("none").returncode == 99


FAILURES = {
    "of the hook's part": (
        (LINK, BindFile(reason="test", source="/no/such/file", target="/etc/params", flags=("ro",))),
        "/no/such/file",
    ),
    "of the part before it": (
        (
            CreateSymlink(reason="test", link="/etc/params/x", target="y", force=True),
            BindFile(reason="test", source="/dev/null", target="/etc/params", flags=("ro",)),
        ),
        "/etc/params/x",
    ),
}


def test_another_process_of_the_hooks_number_is_not_taken_for_it(container: Container, tmp_path: Path) -> None:
    """Its files, namespace and directory are not touched; the hook does its work itself."""
    number = tmp_path / "number"
    waits = f"exec 4</dev/null 9<{container.state}; echo $$ >{number}; exec sleep {SECONDS}"
    runtime = textwrap.dedent(f"""\
        unshare --mount sh -c '{waits}' &
        while ! [ -s {number} ]; do sleep 0.05; done
        cat {number} 1<>{container.folder}/call
        while [ -p {container.folder}/call ]; do sleep 0.05; done
        sleep 0.5
        nsenter --mount --target $(cat {number}) cat {container.rootfs}/etc/params
        kill $(cat {number})
        unshare --mount sh -c 'mount --make-rprivate /; {container.hook} {container.folder} <{container.state} || exit
        cat {container.rootfs}/etc/params'
        """)
    done = container.become(runtime, "started")
    assert (done.returncode, done.stdout) == (0, "imagecovered")


def test_what_a_file_for_messages_had_before_stays(container: Container) -> None:
    """A hook's standard error may be a file: opened anew it begins at its start."""
    container.write_plan(BindFile(reason="test", source="/no/such/file", target="/etc/params", flags=("ro",)))
    messages = container.folder.parent / "messages"
    messages.write_text("of others\n")
    assert container.run("started", before=f"exec 2>>{messages}").returncode == 7
    assert messages.read_text().startswith("of others\nnvinject: cannot apply ")


@pytest.mark.parametrize(("operations", "named"), FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_is_the_hooks(
    container: Container, operations: tuple[BindFile | CreateSymlink, ...], named: str
) -> None:
    """One line on the hook's standard error, its exit code, and nothing left behind."""
    container.write_plan(*operations)
    done = container.run("started")
    assert done.returncode == 7
    assert done.stdout == ""
    assert done.stderr.startswith("nvinject: cannot apply ")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert not os.path.lexists(container.link)
    assert sorted(name.name for name in container.rootfs.iterdir()) == ["etc"]


def test_it_ends_while_it_is_busy(container: Container) -> None:
    """Nobody knows what it did: the container must not start."""
    container.write_plan(LINK)
    answer, call, mark = (container.folder / name for name in ("answer", "call", "mark"))
    killed = f"""
    mkfifo {answer} {call}
    (exec 5<>{answer} 6<>{call}; echo >{mark}; read process <&6; echo busy >&5) &
    while [ ! -s {mark} ]; do :; done
    """
    done = container.run("none", before=killed)
    assert done.returncode == 6
    assert "was ended" in done.stderr
    assert not os.path.lexists(container.link)


def test_a_runtime_that_never_calls(container: Container) -> None:
    """What was done for it is taken back when it ends."""
    wait = f"for n in 1 2 3 4 5 6 7 8 9 10; do [ -h {container.link} ] && exit 0; sleep 0.2; done; exit 1"
    assert container.become(wait, "started").returncode == 0
    for _ in range(50):
        if not os.path.lexists(container.link):
            break
        subprocess.run(["sleep", "0.1"], check=True)
    assert not os.path.lexists(container.link)


def test_it_is_nobodys_child(container: Container) -> None:
    """A runtime in the foreground may wait for all of its children (crun run), and the stand-by waits for its end."""
    wait = "import os, sys\ntry: os.waitpid(-1, 0)\nexcept ChildProcessError: sys.exit(5)"
    assert container.become(f'exec {sys.executable} -c "{wait}"', "started").returncode == 5


def test_a_hook_that_did_the_work_itself(container: Container, prefix: Path) -> None:
    """The stand-by is there and was not called: what the hook did stays."""
    container.write_plan(LINK)
    wait = f"until [ -h {container.link} ]; do sleep 0.1; done; rm {container.link}"
    hook = f"unshare --mount {prefix}/bin/nvinject create-container {container.folder} <{container.state}"
    assert container.become(f"{wait}; {hook}; sleep 0.2", "started").returncode == 0
    subprocess.run(["sleep", "0.5"], check=True)
    assert os.readlink(container.link) == "libcuda.so.1.2"


def test_a_traceback_that_was_asked_for(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no reason to leave anything behind."""
    container.write_plan(LINK, BindFile(reason="test", source="/no/such", target="/etc/params", flags=("ro",)))
    monkeypatch.setenv("NVINJECT_DEBUG", "1")
    done = container.run("started")
    assert done.returncode in {7, 70}
    assert "/no/such" in done.stderr
    assert not os.path.lexists(container.link)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_signals_for_the_engines_processes(container: Container, number: signal.Signals) -> None:
    """They are for the runtime, which decides what becomes of the container."""
    quiet = "".join(f"trap : {name}; " for name in ("HUP", "INT", "TERM"))
    wait = f"{quiet}until [ -h {container.link} ]; do sleep 0.1; done; kill -{number.value} 0 2>/dev/null"
    inside = f"mount --make-rprivate /; {container.hook} {container.folder} <{container.state}"
    runtime = f"{wait}; unshare --mount sh -c '{inside}'"
    words = [sys.executable, "-c", SHIM, str(container.folder), str(container.rootfs), runtime, "started"]
    done = subprocess.run(words, capture_output=True, check=False, timeout=SECONDS, start_new_session=True)
    assert done.returncode == 0, done.stderr
    assert os.readlink(container.link) == "libcuda.so.1.2"


def test_it_lets_go_of_what_the_engine_gave(container: Container) -> None:
    """An engine reads until the last writer has gone: an inherited pipe must not stay open with it."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # noqa: FBT003 # of the library
    close = f"import os, time; os.closerange(1, 2); os.close({writing}); time.sleep(10)"
    runtime = f"exec {sys.executable} -c '{close}'"
    words = [sys.executable, "-c", SHIM, str(container.folder), str(container.rootfs), runtime, "started"]
    process = subprocess.Popen(words, pass_fds=[writing], stdout=subprocess.PIPE)
    os.close(writing)
    assert process.stdout is not None
    assert (process.stdout.read(), os.read(reading, 1)) == (b"", b"")
    assert process.poll() is None
    process.kill()
    process.wait()
    process.stdout.close()
    os.close(reading)
