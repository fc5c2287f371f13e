"""One engine's files in a folder of their own, and the command that configures it."""

import os
from pathlib import Path

import pytest

from nvinject.cli import main as command_line

PROGRAM = "/usr/bin/nvidia-container-runtime"
CONFIG_NAMES = {"docker": "daemon.json", "containerd": "config.toml", "crio": "crio.conf", "podman": "containers.conf"}
DROP_INS = {"containerd": "conf.d/99-nvidia.toml", "crio": "crio.conf.d/99-nvidia.toml", "podman": "x.d/99-nvidia.conf"}


class Configured:
    """An engine's configuration below a folder; `run` is the command line of `nvinject runtime configure`."""

    def __init__(self, folder: Path, engine: str, text: str | bytes | None = None) -> None:
        self.folder = folder
        self.engine = engine
        self.config = folder / CONFIG_NAMES[engine]
        self.drop_in = folder / DROP_INS.get(engine, "none")
        if text is not None:
            self.config.write_bytes(text.encode() if isinstance(text, str) else text)

    def run(self, *arguments: str) -> int:
        words = ["runtime", "configure", "--runtime", self.engine, "--config", str(self.config)]
        words += ["--state-dir", str(self.folder / "state")]
        if self.engine != "docker":
            words += ["--nvidia-runtime-path", PROGRAM]
            if not any(word.startswith("--drop-in-config") for word in arguments):
                words += ["--drop-in-config", str(self.drop_in)]
        return command_line.main([*words, *arguments])

    def snapshot(self) -> dict[str, tuple[int, bytes | str]]:
        """Return every file, link and directory but the records, with mode and content."""
        found: dict[str, tuple[int, bytes | str]] = {}
        for directory, names, files in os.walk(self.folder):
            for name in [*names, *files]:
                path = Path(directory, name)
                place = str(path.relative_to(self.folder))
                if place.split("/", maxsplit=1)[0] == "state":
                    continue
                mode = path.lstat().st_mode
                content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
                found[place] = (mode, content)
        return found

    def records(self) -> list[str]:
        """Return the names of the records that are kept."""
        state = self.folder / "state"
        return sorted(os.listdir(state)) if state.is_dir() else []


def refused(done: Configured, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 4) -> str:
    """Return what is said on a refusal that leaves no trace."""
    before = done.snapshot()
    assert done.run(*arguments) == code
    assert done.snapshot() == before
    assert done.records() == []
    error = capsys.readouterr().err
    return next(line for line in error.splitlines() if "note:" not in line).removeprefix("nvinject: ")
