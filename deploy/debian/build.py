#!/usr/bin/env python3
"""Builds the Debian package of nvinject: the same bytes for the same sources.

Belongs here: what goes where in the package, and packing it with dpkg-deb. Does not belong here: texts of the
maintainer (control, copyright, scripts: files beside this one) and of the program (nvinject itself is asked for
launchers, manual pages and completions). Nothing is fetched: the two Python modules that come along are those of the
interpreter that runs this script.
"""

import argparse
import gzip
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(REPOSITORY))

from nvinject import __version__  # noqa: E402 - of this repository, whatever is installed
from nvinject.cli import completion, manual  # noqa: E402
from nvinject.cli.configschema import format_default  # noqa: E402
from nvinject.cli.install import (  # noqa: E402
    LAUNCHER_NAME,
    LINK_NAMES,
    SHIM_LINK_NAMES,
    SHIM_NAME,
    format_launcher_of,
    format_scripts,
)
from nvinject.configfile import DEFAULT_CONFIG  # noqa: E402

INTERPRETER = "/usr/bin/python3"
LIBRARY = "/usr/lib/nvinject"
# Debian's own modules come last: pyroute2 is used where it is installed.
DEBIAN_MODULES = "/usr/lib/python3/dist-packages"
UNIT_DIRECTORY = "/usr/lib/systemd/system"
# Names that scripts know, with the unit that does the same.
UNIT_LINKS = {
    "nvidia-cdi-refresh.service": "nvinject-cdi-refresh.service",
    "nvidia-cdi-refresh.path": "nvinject-cdi-refresh.path",
}
SCRIPTS = ("postinst", "prerm", "postrm")
EPOCH = "SOURCE_DATE_EPOCH"  # reproducible-builds.org/specs/source-date-epoch


@dataclass(frozen=True)
class Entry:
    """A file or a link of the package, by its path on the system."""

    path: str
    content: bytes = b""
    link: str = ""
    mode: int = 0o644


def entries(epoch: int) -> Iterator[Entry]:
    """Yield everything that the package lays down."""
    yield from modules()
    yield from programs()
    yield Entry(DEFAULT_CONFIG, format_default("/nonexistent").encode())
    for path in sorted((REPOSITORY / "deploy" / "systemd").iterdir()):
        yield Entry(f"{UNIT_DIRECTORY}/{path.name}", at_home(path))
    for name, target in UNIT_LINKS.items():
        yield Entry(f"{UNIT_DIRECTORY}/{name}", link=target)
    for path in sorted((REPOSITORY / "deploy" / "udev").iterdir()):
        yield Entry(f"/usr/lib/udev/rules.d/{path.name}", at_home(path))
    yield from completions()
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    for name, text in manual.make_files(date).items():
        yield Entry(f"/usr/share/man/{name}.gz", packed(text.encode()))
    yield from documents(epoch)


def modules() -> Iterator[Entry]:
    """Yield nvinject's own modules and the two that it needs: NVML's bindings and YAML."""
    for name in ("nvinject", "pynvml", "yaml"):
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise SystemExit(f"build: the Python module {name} is missing; install nvidia-ml-py and PyYAML")
        origin = Path(found.origin)
        folder = origin.parent.parent if found.submodule_search_locations else origin.parent
        files = sorted(origin.parent.rglob("*.py")) if found.submodule_search_locations else [origin]
        for file in files:
            yield Entry(f"{LIBRARY}/{file.relative_to(folder)}", file.read_bytes())
    yield Entry(f"{LIBRARY}/nvinject/py.typed")


def programs() -> Iterator[Entry]:
    """Yield the launchers, and the names under which engines and people look for them."""
    launcher = f"/usr/bin/{LAUNCHER_NAME}"
    text = format_launcher_of(INTERPRETER, [LIBRARY, DEBIAN_MODULES])
    yield Entry(launcher, text.encode(), mode=0o755)
    for name, script in format_scripts(launcher).items():
        yield Entry(f"/usr/bin/{name}", script.encode(), mode=0o755)
    for name in LINK_NAMES:
        yield Entry(f"/usr/bin/{name}", link=LAUNCHER_NAME)
    for name in SHIM_LINK_NAMES:
        yield Entry(f"/usr/bin/{name}", link=SHIM_NAME)


def completions() -> Iterator[Entry]:
    """Yield what completes command lines in three shells."""
    words = completion.find_words()
    yield Entry("/usr/share/bash-completion/completions/nvinject", completion.format_bash(words).encode())
    yield Entry("/usr/share/zsh/vendor-completions/_nvinject", completion.format_zsh(words).encode())
    yield Entry("/usr/share/fish/vendor_completions.d/nvinject.fish", completion.format_fish(words).encode())


def documents(epoch: int) -> Iterator[Entry]:
    """Yield what belongs to each Debian package: licences, changes, and why lintian is not heeded."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(epoch))
    maintainer = fields()["Maintainer"]
    log = f"nvinject ({__version__}) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- {maintainer}  {date}\n"
    folder = "/usr/share/doc/nvinject"
    yield Entry(f"{folder}/copyright", (HERE / "copyright").read_bytes())
    yield Entry(f"{folder}/changelog.gz", packed(log.encode()))
    yield Entry(f"{folder}/CHANGELOG.md.gz", packed((REPOSITORY / "CHANGELOG.md").read_bytes()))
    yield Entry("/usr/share/lintian/overrides/nvinject", (HERE / "lintian-overrides").read_bytes())


def at_home(path: Path) -> bytes:
    """Return a unit or rule for programs in /usr/bin."""
    return path.read_bytes().replace(b"/usr/local/bin/", b"/usr/bin/")


def packed(data: bytes) -> bytes:
    """Return the data as gzip has it, without the time."""
    return gzip.compress(data, 9, mtime=0)


def fields() -> dict[str, str]:
    """Return the fields of the control file that are in one line."""
    lines = (HERE / "control").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith(" "))


def find_epoch() -> int:
    """Return the time that all files get: as given, else that of the last commit."""
    given = os.environ.get(EPOCH, "")
    if given:
        if not given.isdecimal():
            raise SystemExit(f"build: {EPOCH}={given} is no number of seconds; unset it")
        return int(given)
    asked = ["git", "-C", str(REPOSITORY), "log", "-1", "--format=%ct"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"build: this is no checkout of git; set {EPOCH}")
    return int(done.stdout)


def write_tree(root: Path, epoch: int) -> None:
    """Write files, links and the control directory below a folder."""
    sums = []
    size = 0
    for entry in entries(epoch):
        path = root / entry.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.link:
            path.symlink_to(entry.link)
            continue
        path.write_bytes(entry.content)
        path.chmod(entry.mode)
        size += len(entry.content)
        # RFC 1321 sums are what dpkg --verify reads; nothing depends on their strength.
        sums.append(f"{hashlib.md5(entry.content, usedforsecurity=False).hexdigest()}  {entry.path[1:]}\n")
    control = root / "DEBIAN"
    control.mkdir()
    lines = (HERE / "control").read_text().replace("@VERSION@", __version__).replace("@SIZE@", str(size // 1024))
    (control / "control").write_text(lines)
    (control / "conffiles").write_text(f"{DEFAULT_CONFIG}\n")
    (control / "md5sums").write_text("".join(sorted(line for line in sums if f" {DEFAULT_CONFIG[1:]}" not in line)))
    (control / "triggers").write_bytes((HERE / "triggers").read_bytes())
    for name in SCRIPTS:
        (control / name).write_bytes((HERE / name).read_bytes())
        (control / name).chmod(0o755)


def settle(root: Path, epoch: int) -> None:
    """Give everything below a folder the same time, and directories the usual mode whatever the umask."""
    for directory, _, names in os.walk(root):
        for name in names:
            os.utime(Path(directory) / name, (epoch, epoch), follow_symlinks=False)
        if Path(directory).name == "DEBIAN":
            for name in names:
                (Path(directory) / name).chmod(0o755 if name in SCRIPTS else 0o644)
        Path(directory).chmod(0o755)
        os.utime(directory, (epoch, epoch))


def build(output: Path) -> Path:
    """Build the package into a directory; returns its path."""
    epoch = find_epoch()
    output.mkdir(parents=True, exist_ok=True)
    target = output / f"nvinject_{__version__}_all.deb"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        write_tree(root, epoch)
        settle(root, epoch)
        # One thread: with more, xz cuts the data by the number of processors.
        command = [
            "dpkg-deb",
            "--root-owner-group",
            "-Zxz",
            "-z9",
            "--threads-max=1",
            "--build",
            str(root),
            str(target),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, EPOCH: str(epoch)}
        )
    if done.returncode != 0:
        raise SystemExit(f"build: dpkg-deb failed: {done.stderr.strip()}")
    return target


def main() -> None:
    """Build and print the package's path."""
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  deploy/debian/build.py --output dist",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--output", metavar="DIR", type=Path, default=Path("dist"), help="put it here (default: dist)")
    sys.stdout.write(f"{build(options.parse_args().output)}\n")


if __name__ == "__main__":
    main()
