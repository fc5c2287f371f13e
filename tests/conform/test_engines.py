"""Cases as engines are asked for them: what cannot be asked, and the words of each engine's command line."""

import json
import socket
import subprocess
import sys
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from nvconform import implementations
from nvconform.case import Call, Case, Container, Expectation, Filesystem
from nvconform.engines import docker, podman, relay
from nvconform.engines.containerd import Containerd
from nvconform.engines.docker import Docker
from nvconform.engines.engine import Engine, major
from nvconform.engines.options import Abilities, Bind, Options, translate, unexpressed
from nvconform.engines.podman import Podman
from nvconform.engines.registry import ENGINES, RUNTIMES
from nvconform.session import Session

WHOLE = Abilities("engine", hooks=("prestart",), identities=True)
IMPORTS = Abilities("engine", own=("/etc",), covers=("/run",), imports=True)
BARE = Abilities("engine", annotations="it has none", cdi="it reads none")
NULL = {"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}


def case(**container: object) -> Case:
    """Return a case about a container."""
    return Case("devices/one", "", "", Expectation(untouched=True), container=Container(**container))  # type: ignore[arg-type]


# case, lane, kind of injector, abilities, what the reason begins with ("" for no objection)
OBJECTIONS = [
    (case(), "root", "runtime", BARE, ""),
    (case(env=("A=1", "B=")), "root", "runtime", BARE, ""),
    (case(env=("A=1", "A=2")), "root", "runtime", WHOLE, "container.env: of several A"),
    (case(env=("A",)), "root", "runtime", WHOLE, "container.env: an entry without name"),
    (case(env=("=1",)), "root", "runtime", WHOLE, "container.env: an entry without name"),
    (case(mounts=(NULL,)), "root", "runtime", BARE, ""),
    (case(mounts=(NULL, NULL)), "root", "runtime", WHOLE, "container.mounts: it has one mount"),
    (case(mounts=({**NULL, "source": "/dev/../dev/null"},)), "root", "hook", WHOLE, "container.mounts: it tidies"),
    (case(mounts=({**NULL, "type": "tmpfs"},)), "root", "runtime", WHOLE, "container.mounts: tmpfs"),
    (case(mounts=({**NULL, "options": ["bind", "nodev"]},)), "root", "runtime", WHOLE, "container.mounts: nodev"),
    (case(spec={"annotations": {"a": "b"}}), "root", "runtime", WHOLE, ""),
    (case(spec={"annotations": {"a": "b"}}), "root", "runtime", BARE, "container.spec: it has none"),
    (case(spec={"annotations": {}, "mounts": []}), "root", "runtime", WHOLE, "container.spec: mounts of config.json"),
    (case(filesystem=Filesystem()), "root", "runtime", WHOLE, "container.filesystem: "),
    (case(links={"/etc": "elsewhere"}), "root", "runtime", WHOLE, ""),
    (case(links={"/etc": "e"}), "root", "runtime", IMPORTS, "container.links: it has files of its own in /etc"),
    (
        case(links={"/run/s": "e"}),
        "root",
        "runtime",
        IMPORTS,
        "container.links: it mounts a file system of its own at /run",
    ),
    (case(files={"/f": {"megabytes": 9}}), "root", "runtime", WHOLE, ""),
    (case(files={"/f": {"megabytes": 9}}), "root", "runtime", IMPORTS, "container.files: the hole in /f"),
    (case(closed=True), "root", "runtime", WHOLE, "container.closed: "),
    (replace(case(), call=Call()), "root", "hook", WHOLE, "call: "),
    (case(), "rootless", "runtime", WHOLE, "lane: it is run as root"),
    (case(), "userns", "runtime", WHOLE, ""),
    (case(), "userns", "runtime", BARE, "lane: it maps the ids"),
    (case(), "root", "hook", WHOLE, ""),
    (case(), "root", "hook", BARE, "container.stage: it starts no hooks"),
    (case(stage="createRuntime"), "root", "hook", WHOLE, "container.stage: its hooks are of prestart"),
    (case(stage="createRuntime"), "root", "runtime", WHOLE, ""),
    (case(), "root", "cdi", WHOLE, ""),
    (case(), "userns", "cdi", WHOLE, "CDI devices: in a user namespace"),
    (case(), "root", "cdi", BARE, "CDI devices: it reads none"),
]


@pytest.mark.parametrize(("asked", "lane", "kind", "abilities", "begin"), OBJECTIONS)
def test_what_cannot_be_asked_is_named(asked: Case, lane: str, kind: str, abilities: Abilities, begin: str) -> None:
    """By the field of the case, with the reason; never by the case's id."""
    reason = unexpressed(asked, lane, kind, abilities)
    assert reason.startswith(f"engine cannot be asked for {begin}") if begin else not reason
    assert unexpressed(replace(asked, id="another/name"), lane, kind, abilities) == reason


TRANSLATIONS = [
    (case(env=("A=1",)), "runtime", Options(environment=("A=1",))),
    (case(privileged=True), "runtime", Options(capabilities=("SYS_ADMIN",))),
    (case(readonly=True), "hook", Options(readonly=True, stage="prestart")),
    (case(spec={"annotations": {"a": "b"}}), "cdi", Options(annotations={"a": "b"}, devices=("nvidia.com/gpu=0",))),
    (
        case(mounts=(NULL, {**NULL, "destination": "/b", "options": ["bind", "rw"]})),
        "runtime",
        Options(
            mounts=(Bind("/dev/null", NULL["destination"], readonly=True), Bind("/dev/null", "/b", readonly=False))
        ),
    ),
]


@pytest.mark.parametrize(("asked", "kind", "options"), TRANSLATIONS)
def test_translation(asked: Case, kind: str, options: Options) -> None:
    """What can be asked is asked of every engine in the same options."""
    assert translate(asked, kind, ("nvidia.com/gpu=0",) if kind == "cdi" else ()) == options


EVERYTHING = Options(
    environment=("A=a b",),
    annotations={"n": "v"},
    mounts=(Bind("/s", "/t", readonly=True), Bind("/u", "/v", readonly=False)),
    readonly=True,
    capabilities=("SYS_ADMIN",),
)
MADE: list[tuple[type[Engine], list[str]]] = [
    (
        Podman,
        [
            "--env=A=a b",
            "--annotation=n=v",
            "--mount=type=bind,source=/s,target=/t,ro=true",
            "--mount=type=bind,source=/u,target=/v,ro=false",
            "--read-only",
            "--read-only-tmpfs=false",
            "--cap-add=SYS_ADMIN",
        ],
    ),
    (
        Docker,
        [
            "--env=A=a b",
            "--annotation=n=v",
            "--mount=type=bind,source=/s,target=/t,readonly",
            "--mount=type=bind,source=/u,target=/v",
            "--read-only",
            "--cap-add=SYS_ADMIN",
        ],
    ),
    (
        Containerd,
        [
            *("--env", "A=a b", "--annotation", "n=v", "--cap-add", "CAP_SYS_ADMIN"),
            *(
                "--mount",
                "type=bind,src=/s,dst=/t,options=rbind:ro",
                "--mount",
                "type=bind,src=/u,dst=/v,options=rbind",
            ),
            "--read-only",
        ],
    ),
]


@pytest.mark.parametrize(("kind", "words"), MADE)
def test_words_of_an_engine(kind: type[Engine], words: list[str]) -> None:
    """Each option in the engine's own words."""
    assert kind.words(EVERYTHING) == words
    assert kind.words(Options()) == []


def test_words_that_one_engine_has() -> None:
    """CDI devices, a hook, and maps of ids."""
    assert Podman.words(Options(devices=("nvidia.com/gpu=0",))) == ["--device=nvidia.com/gpu=0"]
    assert Docker.words(Options(devices=("nvidia.com/gpu=0",))) == ["--device=nvidia.com/gpu=0"]
    assert Docker.words(Options(stage="prestart")) == ["--gpus=count=0"]
    assert podman.maps(((0, 100000, 1000), (1000, 300000, 5))) == [
        "--uidmap=0:100000:1000",
        "--gidmap=0:100000:1000",
        "--uidmap=1000:300000:5",
        "--gidmap=1000:300000:5",
    ]


def test_names() -> None:
    """The command line takes low-level runtimes and engines by the names that they have themselves."""
    assert list(ENGINES) == ["podman", "docker", "containerd"]
    assert RUNTIMES == ("runc", "crun", "podman", "docker", "containerd")


VERSIONS = [
    ("Docker version 20.10.24+dfsg1, build 5d6db84", 20),
    ("Docker version 28.2.2, build e6534b4", 28),
    ("containerd github.com/containerd/containerd v1.7.24 1.7.24~ds1", 1),
    ("", 0),
]


@pytest.mark.parametrize(("text", "number"), VERSIONS)
def test_version(text: str, number: int) -> None:
    """What an engine can do depends on the first number alone."""
    assert major(text) == number


def test_an_engine_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its cases are skipped with the program and its package, before a machine is started."""
    monkeypatch.setattr(Podman, "programs", ("podman-of-nobody",))
    session = Session(implementations.load("nvinject-jit"), {}, "podman")
    result = session.run(case(), "root")
    assert (result["status"], result["reason"]) == ("skipped", "podman-of-nobody is not installed (package podman)")
    assert not session.workers


def test_a_case_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is skipped by its field, before a machine is started."""
    monkeypatch.setattr(Podman, "programs", ())
    session = Session(implementations.load("nvinject-jit"), {}, "podman")
    if Podman.missing():
        pytest.skip(Podman.missing())
    result = session.run(case(env=("A=1", "A=2")), "root")
    assert result["reason"] == "podman cannot be asked for container.env: of several A it passes one"
    assert not session.workers


def test_a_runtime_adds_the_hook_for_engines_that_start_none() -> None:
    """Where the adapter names such a runtime (`legacy`), the hook is asked for at the one stage that it knows."""
    whole = Session(implementations.load("nvinject-hook"), {}, "containerd").abilities
    assert whole is not None
    assert whole.hooks == ("prestart",)
    assert unexpressed(case(stage="createRuntime"), "root", "hook", whole)
    bare = Session(implementations.load("nvidia-hook"), {}, "containerd").abilities
    assert bare is not None
    assert (
        unexpressed(case(), "root", "hook", bare)
        == "containerd cannot be asked for container.stage: it starts no hooks"
    )


# what the engine calls its runtime with, its command, what an option holds
CALLS = [
    (["--root", "/create", "--log", "/l", "create", "--bundle", "/b", "x"], "create", "/b"),
    (["--log=/l", "--systemd-cgroup", "create", "-b=/b", "x"], "create", "/b"),
    (["--root", "/r", "start", "x"], "start", ""),
    (["--version"], "", ""),
]


@pytest.mark.parametrize(("arguments", "command", "bundle"), CALLS)
def test_calls_of_a_runtime(arguments: list[str], command: str, bundle: str) -> None:
    """The relay finds the command behind options that have values, and values in either syntax."""
    assert relay.subcommand(arguments) == command
    assert relay.value(arguments, "--bundle", "-b") == bundle


def test_same_root_file_system_is_the_same_image(tmp_path: Path) -> None:
    """Times and hard links do not count, content does; so docker imports it once."""
    shared = tmp_path / "busybox"
    shared.write_bytes(b"program")
    for name in ("one", "two"):
        root = tmp_path / name
        (root / "etc").mkdir(parents=True)
        (root / "etc/link").symlink_to("../a")
        (root / "busybox").hardlink_to(shared)
        (root / "again").hardlink_to(shared)
    one = docker.pack(tmp_path / "one")
    assert one == docker.pack(tmp_path / "two")
    with tarfile.open(fileobj=BytesIO(one)) as archive:
        assert archive.getnames() == ["again", "busybox", "etc", "etc/link"]
        assert [archive.extractfile(name).read() for name in ("again", "busybox")] == [b"program"] * 2  # type: ignore[union-attr]
    (tmp_path / "two/etc/new").touch()
    assert one != docker.pack(tmp_path / "two")


def test_what_runs_in_the_place_of_the_runtime(tmp_path: Path) -> None:
    """The engine's words, behind the command's own; variables beside those of the engine, which may have no PATH."""
    relay.write(tmp_path / "relay", sys.executable, tmp_path / "socket", tmp_path / "call")
    relay.write_call(tmp_path / "call", ["/bin/echo", "a b"], {"NAME": "it's"})
    done = subprocess.run(
        [tmp_path / "relay", "--root", "/r", "delete", "x y"],
        capture_output=True,
        text=True,
        check=True,
        env={},
        timeout=20,
    )
    assert done.stdout == "a b --root /r delete x y\n"
    relay.write_call(tmp_path / "call", ["/bin/sh", "-c", 'echo "$NAME"'], {"NAME": "it's"})
    done = subprocess.run([tmp_path / "relay", "state"], capture_output=True, text=True, check=True, env={}, timeout=20)
    assert done.stdout == "it's\n"


@pytest.mark.parametrize("answers", [[], [{"refuse": True}]])
def test_a_container_that_nobody_looks_at_is_refused(tmp_path: Path, answers: list[object]) -> None:
    """Also when the suite ends before it answers."""
    relay.write(tmp_path / "relay", sys.executable, tmp_path / "socket", tmp_path / "call")
    relay.write_call(tmp_path / "call", ["/bin/echo", "created"], {})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        words = [str(tmp_path / "relay"), "create", "--bundle", str(tmp_path), "name"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as stream:
                asked = json.loads(stream.readline())
                assert asked == {"step": "create", "identifier": "name", "bundle": str(tmp_path)}
                stream.writelines(json.dumps(answer) + "\n" for answer in answers)
            output, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert not output
