"""The runtime shim's shell script, in every shell that could be /bin/sh here."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nvinject.cli.ocicall import COMMANDS, CREATING, GLOBAL_VALUES
from nvinject.cli.shimlauncher import format_launcher
from tests.host.machine import give

SECONDS = 20
SHELLS = [words for words in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(words[0])]

# Says who it is and shows its words, one a line, newlines in them made visible.
PROGRAM = """#!/bin/sh
echo "@$0"
for word do printf '%s\\n' "$word" | /usr/bin/tr '\\n' '|'; echo; done
exit {code}
"""


class Place:
    """A folder with the script, a stand-in for the interpreter's launcher, and low-level runtimes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.script = folder / "bin" / "nvidia-container-runtime"
        self.python = self.add("python launcher", "nvinject")
        self.script.parent.mkdir()
        self.script.write_text(format_launcher(str(self.python)))

    def add(self, *parts: str, code: int = 0) -> Path:
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROGRAM.format(code=code))
        path.chmod(0o755)
        return path

    def run(self, shell: list[str], *words: str, path: str | None = None, **environ: str) -> list[str]:
        environment = {
            "NVIDIA_CTK_CONFIG_FILE_PATH": str(self.config),
            "PATH": path or f"{self.folder}/path",
            **environ,
        }
        done = subprocess.run(
            [str(shutil.which(shell[0])), *shell[1:], str(self.script), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env=environment,
        )
        assert done.stderr == ""
        self.code = done.returncode
        return done.stdout.splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    words: list[str] = request.param
    return words


def shown(words: tuple[str, ...]) -> list[str]:
    return [word.replace("\n", "|") + "|" for word in words]


PASSED_ON = [
    ("state", "id"),
    ("exec", "id", "create"),
    ("kill", "id", "KILL"),
    ("--root", "create", "delete", "-f", "id"),
    ("--root", "/a b", "--log", "run", "list"),
    ("--systemd-cgroup", "events", "a\nb"),
    ("start", "$HOME", "*", "`id`", "'", '"', ""),
    ("delete", "../etc"),
    ("--criu", "create", "ps", "id"),
    (),
]


@pytest.mark.parametrize("words", PASSED_ON)
def test_other_calls_go_to_the_runtime_as_they_are(place: Place, shell: list[str], words: tuple[str, ...]) -> None:
    runc = place.add("path", "runc", code=7)
    assert place.run(shell, *words) == [f"@{runc}", *shown(words)]
    assert place.code == 7


CREATE = [("create", "--bundle", "/a b\nc", "id"), ("--root", "/x", "run", "id"), ("--debug", "create", "id")]


@pytest.mark.parametrize("words", [*CREATE, ("--version",), ("-version",), ("--version=true", "list")])
def test_create_and_run_go_to_the_interpreter(place: Place, shell: list[str], words: tuple[str, ...]) -> None:
    runc = place.add("path", "runc")
    ours = ("runtime", "--as", "nvidia-container-runtime", "--low-level", str(runc), "--")
    assert place.run(shell, *words) == [f"@{place.python}", *shown((*ours, *words))]


def test_the_name_is_passed_on(place: Place, shell: list[str]) -> None:
    place.add("path", "runc")
    link = place.script.with_name("nvidia-container-runtime.cdi")
    link.symlink_to(place.script.name)
    place.script = link
    assert "nvidia-container-runtime.cdi|" in place.run(shell, "create", "id")


TABLE = "[nvidia-container-runtime]\n"
# config.toml, which runtime is taken ("" for: the interpreter has to find out)
CONFIGURATIONS = [
    ("", "path/runc"),
    ("this is [ no TOML\n", "path/runc"),
    (TABLE + 'runtimes = ["runc", "crun"]\n', "path/runc"),
    (TABLE + 'runtimes = ["crun", "runc"]\n', "path/crun"),
    (TABLE + "runtimes=['crun']", "path/crun"),
    (TABLE + '\t runtimes\t=\t[ "missing" , "crun" ] # the usual\n', "path/crun"),
    (TABLE + '  # runtimes = ["crun"]\n', "path/runc"),
    (TABLE + 'runtimes = ["{folder}/other runtime/youki"]\n', "other runtime/youki"),
    (TABLE + 'runtimes = ["{folder}/missing", "crun"]\n', "path/crun"),
    (TABLE + 'mode = "auto"\n[nvidia-ctk]\npath = "x"\n', "path/runc"),
    ("  [nvidia-container-runtime]  \n" + 'runtimes = ["crun"]\n', "path/crun"),
    ('[other]\nruntimes = ["crun"]\n', ""),
    ("[nvidia-container-runtime] # comment\n" + 'runtimes = ["crun"]\n', ""),
    (TABLE + "  [other]\n" + 'runtimes = ["crun"]\n', ""),
    (TABLE + 'runtimes = [\n  "crun",\n]\n', ""),
    (TABLE + 'runtimes = ["cr\\u0075n"]\n', ""),
    (TABLE + 'runtimes = ["a,b"]\n', ""),
    (TABLE + 'runtimes = ["a#b"]\n', ""),
    (TABLE + 'runtimes = """crun"""\n', ""),
    (TABLE + 'runtimes = ["crun"]\r\n', ""),
    (TABLE + 'runtimes = "crun"\n', ""),
    (TABLE + "runtimes = []\n", ""),
    (TABLE + 'runtimes = ["missing"]\n', ""),
    ('nvidia-container-runtime.runtimes = ["crun"]\n', ""),
    ('nvidia-container-runtime = {{runtimes = ["crun"]}}\n', ""),
]


@pytest.mark.parametrize(("text", "expected"), CONFIGURATIONS)
def test_the_runtime_of_the_configuration(place: Place, shell: list[str], text: str, expected: str) -> None:
    for parts in (("path", "runc"), ("path", "crun"), ("other runtime", "youki")):
        place.add(*parts)
    place.config.write_text(text.format(folder=place.folder))
    program = place.folder / expected if expected else place.python
    ours = () if expected else ("runtime", "--as", "nvidia-container-runtime", "--")
    assert place.run(shell, "state", "id") == [f"@{program}", *shown((*ours, "state", "id"))]


def test_without_a_configuration(place: Place, shell: list[str]) -> None:
    runc = place.add("path", "runc")
    assert place.run(shell, "list")[0] == f"@{runc}"
    assert place.run(shell, "list", XDG_CONFIG_HOME=str(place.folder), NVIDIA_CTK_CONFIG_FILE_PATH="")[0] == f"@{runc}"


def test_the_configuration_of_the_user(place: Place, shell: list[str]) -> None:
    crun = place.add("path", "crun")
    place.add("path", "runc")
    folder = place.folder / "nvidia-container-runtime"
    folder.mkdir()
    (folder / "config.toml").write_text(TABLE + 'runtimes = ["crun"]\n')
    found = place.run(shell, "list", XDG_CONFIG_HOME=str(place.folder), NVIDIA_CTK_CONFIG_FILE_PATH="")
    assert found[0] == f"@{crun}"


def test_the_script_never_calls_itself(place: Place, shell: list[str]) -> None:
    """Somebody may have put it in the place of runc."""
    behind = place.add("behind", "runc")
    (place.folder / "path").mkdir()
    (place.folder / "path" / "runc").symlink_to(place.script)
    place.script.chmod(0o755)
    found = place.run(shell, "list", path=f"relative:{place.folder}/path:{place.folder}/behind")
    assert found == [f"@{behind}", "list|"]


def test_what_was_generated_goes_with_the_container(place: Place, shell: list[str]) -> None:
    generated = place.folder / "nvinject" / "id"
    generated.mkdir(parents=True)
    (generated / "file").touch()
    runc = place.add("path", "runc", code=3)
    words = ("--root", "/r", "delete", "-f", "id")
    assert place.run(shell, *words, XDG_RUNTIME_DIR=str(place.folder)) == [f"@{runc}", *shown(words)]
    assert (place.code, generated.exists()) == (3, True)
    place.add("path", "runc")
    assert place.run(shell, *words, XDG_RUNTIME_DIR=str(place.folder)) == [f"@{runc}", *shown(words)]
    assert (place.code, generated.exists()) == (0, False)


def test_what_another_user_put_there_is_left_to_the_interpreter(place: Place, shell: list[str]) -> None:
    """A link in the place of the folder would choose what root removes; root may have a user's XDG_RUNTIME_DIR."""
    elsewhere = place.folder / "elsewhere" / "id"
    elsewhere.mkdir(parents=True)
    (place.folder / "nvinject").symlink_to(elsewhere.parent)
    place.add("path", "runc")
    assert place.run(shell, "delete", "id", XDG_RUNTIME_DIR=str(place.folder))[0] == f"@{place.python}"
    assert elsewhere.exists()


@pytest.mark.parametrize("owned", ["nvinject", "."])
def test_a_folder_of_another_user_is_left_to_the_interpreter(place: Place, shell: list[str], owned: str) -> None:
    generated = place.folder / "nvinject" / "id"
    generated.mkdir(parents=True)
    place.add("path", "runc")
    give(place.folder / owned, 1000)
    assert place.run(shell, "delete", "id", XDG_RUNTIME_DIR=str(place.folder))[0] == f"@{place.python}"
    assert generated.exists()


@pytest.mark.parametrize("link", [False, True])
def test_a_way_that_another_user_can_change_is_left_to_the_interpreter(
    place: Place, shell: list[str], *, link: bool
) -> None:
    """While the runtime works, they could have the path lead to any folder of the host."""
    generated = place.folder / "way" / "run" / "nvinject" / "id"
    generated.mkdir(parents=True)
    (place.folder / "link").symlink_to("way/run")
    runc = place.add("path", "runc")
    given = str(place.folder / ("link" if link else "way/run"))
    if not link:
        give(place.folder / "way", 1000)
        if os.geteuid() != 0:
            pytest.skip("root alone would be led astray")
    called = place.run(shell, "delete", "id", XDG_RUNTIME_DIR=given)[0]
    assert called in ({f"@{place.python}", f"@{runc}"} if os.geteuid() else {f"@{place.python}"})


def test_a_relative_folder_is_not_looked_into(place: Place, shell: list[str]) -> None:
    """Nor does the interpreter: it would lie in the engine's working directory, wherever that is."""
    runc = place.add("path", "runc")
    assert place.run(shell, "delete", "id", XDG_RUNTIME_DIR="run")[0] == f"@{runc}"


def test_every_command_is_told_apart(place: Place) -> None:
    """The tables of the script are those of the interpreter."""
    runc = place.add("path", "runc")
    for command in sorted(COMMANDS):
        program = place.python if command in CREATING else runc
        assert place.run(SHELLS[0], command, "id")[0] == f"@{program}"
    for option in sorted(GLOBAL_VALUES):
        assert place.run(SHELLS[0], option, "create", "state", "id")[0] == f"@{runc}"


def test_the_environment_stays(place: Place, shell: list[str]) -> None:
    """Nothing of the script's own reaches the runtime."""
    runc = place.folder / "path" / "runc"
    runc.parent.mkdir()
    runc.write_text(f"#!/bin/sh\n{shutil.which('env')}\n")
    runc.chmod(0o755)
    names = {line.partition("=")[0] for line in place.run(shell, "list", EXTRA="1")}
    assert names <= {"PATH", "EXTRA", "NVIDIA_CTK_CONFIG_FILE_PATH", "PWD", "SHLVL", "_", "OLDPWD"}
    assert os.environ["PATH"] not in names
