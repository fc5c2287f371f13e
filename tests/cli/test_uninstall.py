"""nvinject uninstall: what install laid down goes, everything else stays."""

import json
import os
from pathlib import Path

import pytest

from nvinject.cli import main as command_line
from nvinject.cli.manifest import manifest_path

Capture = pytest.CaptureFixture[str]


def install(prefix: Path) -> None:
    assert command_line.main(["install", "--prefix", str(prefix), "--links"]) == 0


def uninstall(prefix: Path, *arguments: str) -> int:
    return command_line.main(["uninstall", "--prefix", str(prefix), *arguments])


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_nothing_is_left_of_an_installation(tmp_path: Path) -> None:
    """The prefix is gone as well, because install made it."""
    prefix = tmp_path / "a" / "prefix"
    install(prefix)
    assert uninstall(prefix) == 0
    assert everything(tmp_path) == set()


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    """Files of others, and the directories that were there."""
    for name in ("bin/other", "share/doc"):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text("mine")
    before = everything(tmp_path)
    install(tmp_path)
    install(tmp_path)
    assert uninstall(tmp_path) == 0
    assert everything(tmp_path) == before


def test_a_changed_file_is_kept_and_named(tmp_path: Path, capsys: Capture) -> None:
    """Until --force is given."""
    install(tmp_path)
    launcher = tmp_path / "bin" / "nvinject"
    launcher.write_text(launcher.read_text() + "# mine\n")
    link = tmp_path / "bin" / "nvidia-ctk"
    link.unlink()
    link.symlink_to("/usr/bin/true")
    capsys.readouterr()
    assert uninstall(tmp_path) == 1
    assert everything(tmp_path / "bin") == {"nvinject", "nvidia-ctk"}
    assert f"kept     {launcher}" in capsys.readouterr().out
    assert uninstall(tmp_path, "--force") == 0
    assert everything(tmp_path) == set()


def test_dry_run_changes_nothing(tmp_path: Path, capsys: Capture) -> None:
    """It tells the same steps."""
    install(tmp_path)
    before = everything(tmp_path)
    capsys.readouterr()
    assert uninstall(tmp_path, "--dry-run", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    removed = {os.path.relpath(step["path"], tmp_path) for step in document["steps"] if step["result"] == "removed"}
    assert document["dryRun"]
    assert removed == before
    assert everything(tmp_path) == before


def test_an_installation_without_links_is_added_to(tmp_path: Path) -> None:
    """What an earlier run laid down is still known after a later one."""
    install(tmp_path)
    assert command_line.main(["install", "--prefix", str(tmp_path)]) == 0
    assert uninstall(tmp_path) == 0
    assert everything(tmp_path) == set()


def test_where_nothing_is_installed_it_says_so(tmp_path: Path, capsys: Capture) -> None:
    """And for a list that cannot be read, too."""
    assert uninstall(tmp_path) == 2
    assert "nothing is installed" in capsys.readouterr().err
    place = Path(manifest_path(str(tmp_path)))
    place.parent.mkdir(parents=True)
    place.write_text("[]")
    assert uninstall(tmp_path) == 2
    assert str(place) in capsys.readouterr().err


def test_a_configuration_is_laid_down_unless_there_is_one(tmp_path: Path, capsys: Capture) -> None:
    """And goes again, unless it was edited."""
    config = tmp_path / "etc" / "nvidia-container-runtime" / "config.toml"
    command = ["install", "--prefix", str(tmp_path / "prefix"), "--config-file", str(config)]
    assert command_line.main([*command, "--dry-run"]) == 0
    assert not config.exists()
    assert command_line.main(command) == 0
    assert config.stat().st_mode & 0o777 == 0o644
    assert command_line.main(["config", "validate", "--config-file", str(config)]) == 0
    assert uninstall(tmp_path / "prefix") == 0
    assert everything(tmp_path) == set()
    config.parent.mkdir(parents=True)
    config.write_text("# mine\n")
    capsys.readouterr()
    assert command_line.main(command) == 0
    assert "is there, and left alone" in capsys.readouterr().out
    assert uninstall(tmp_path / "prefix") == 0
    assert config.read_text() == "# mine\n"
