"""The Debian package: built, looked through, installed in a fresh Debian, put to work on a fake machine, taken away."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nvconform.required import give_up
from nvfakes import declaration, tree

from .conftest import build_package
from .freshroot import FreshRoot

# The first one fetches Debian 13.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("deploy")]

EPOCH = "1700000000"
SECONDS = 120


def test_the_same_sources_make_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the time, the umask, the time zone and the locale."""
    first = build_package(tmp_path / "a", SOURCE_DATE_EPOCH=EPOCH)
    before = os.umask(0o077)
    try:
        second = build_package(tmp_path / "b", SOURCE_DATE_EPOCH=EPOCH, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    finally:
        os.umask(before)
    assert first.read_bytes() == second.read_bytes()


def test_lintian_has_nothing_to_say(package: Path) -> None:
    """Neither errors nor warnings."""
    lintian = shutil.which("lintian")
    if lintian is None:
        give_up("lint", "lintian is missing; install it")
    done = subprocess.run(
        [lintian, "--fail-on", "error,warning", "--tag-display-limit", "0", "--allow-root", str(package)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, "")


WANTED = [
    "./etc/nvidia-container-runtime/config.toml",
    "./usr/bin/nvidia-container-cli -> nvinject",
    "./usr/bin/nvidia-container-runtime",
    "./usr/bin/nvidia-container-runtime-hook -> nvinject",
    "./usr/bin/nvidia-container-runtime.cdi -> nvidia-container-runtime",
    "./usr/bin/nvidia-ctk -> nvinject",
    "./usr/lib/nvinject/nvinject/cli/main.py",
    "./usr/lib/nvinject/pynvml.py",
    "./usr/lib/systemd/system/nvidia-cdi-refresh.service -> nvinject-cdi-refresh.service",
    "./usr/lib/systemd/system/nvinject-cdi-refresh.path",
    "./usr/lib/udev/rules.d/99-nvinject-cdi-refresh.rules",
    "./usr/share/bash-completion/completions/nvinject",
    "./usr/share/doc/nvinject/copyright",
    "./usr/share/fish/vendor_completions.d/nvinject.fish",
    "./usr/share/man/man1/nvidia-ctk.1.gz",
    "./usr/share/man/man1/nvinject-doctor.1.gz",
    "./usr/share/man/man5/nvinject-config.toml.5.gz",
    "./usr/share/zsh/vendor-completions/_nvinject",
]


def deb(*arguments: str) -> str:
    """Return what dpkg-deb prints."""
    return subprocess.run(["dpkg-deb", *arguments], capture_output=True, text=True, check=True, timeout=SECONDS).stdout


def test_everything_has_its_place_and_belongs_to_root(package: Path) -> None:
    """Launchers, links, units, completions, manual pages; nothing for a single version of Python."""
    lines = deb("--contents", str(package)).splitlines()
    paths = [line.split(maxsplit=5)[5] for line in lines]
    assert set(WANTED) <= set(paths)
    assert all(line.split()[1] == "root/root" for line in lines)
    assert not [path for path in paths if "__pycache__" in path or "/usr/local/" in path]


def test_it_takes_the_place_of_the_original(package: Path) -> None:
    """Only one of the two can be there, and who needs the original is content with this one."""
    names = (
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "nvidia-container-runtime",
    )
    for field in ("Conflicts", "Replaces", "Provides"):
        said = deb("--field", str(package), field)
        assert all(name in said for name in names), field
    assert deb("--field", str(package), "Depends").strip() == "python3:any (>= 3.11)"


# Where dpkg and ldconfig note what they did.
NOTES = ("var/lib/dpkg", "var/log", "var/cache")
INSTALL = "dpkg --force-unsafe-io --install {package} >/tmp/dpkg.log 2>&1 || {{ cat /tmp/dpkg.log >&2; exit 1; }}\n"
# As a driver's package would: its files below /usr, then ldconfig. The machine's own nodes and proc come from nvfakes.
DRIVER = "cp -a {machine}/usr/. /usr/; ldconfig\n"
MAIN_JOB = """\
{fakes} run --lane root two-h100 -- sh -ec '
{fakes} runtime-wrapper /usr/local/sbin/runc --runtime /usr/sbin/runc
mkdir -p /tmp/b/rootfs; cd /tmp/b; tar -C rootfs -xf {image}
runc spec; cat >edit.py <<END
import json
spec = json.load(open("config.json"))
spec["process"].update(args=["nvidia-smi", "-L"], terminal=False)
spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
spec["process"].pop("rlimits", None)
spec["linux"]["resources"].pop("pids", None)
json.dump(spec, open("config.json", "w"))
END
python3 edit.py
nvidia-container-runtime run one
nvinject doctor {layers} >doctor.txt || {{ cat doctor.txt >&2; exit 1; }}
'
"""
# All but running containers: those of other tests are seen as well.
LAYERS = " ".join(f"--layer {name}" for name in ("module", "versions", "nodes", "nvml", "toolkit", "engine", "cdi"))
GPUS = [
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-000000a0-1111-2222-3333-000000000000)",
    "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-000000a1-1111-2222-3333-000000000001)",
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a driver, and an image beside them."""
    from engines.image import ImageError, build_image

    folder = tmp_path_factory.mktemp("machine")
    if not tree.can_make_nodes(folder):
        give_up("root", "device nodes cannot be made here")
    tree.write_tree(declaration.load("two-h100"), folder)
    try:
        (folder / "image.tar").write_bytes(build_image("deb"))
    except ImageError as error:
        give_up("root", str(error))
    return folder


def test_it_is_installed_works_and_leaves_nothing(fresh: FreshRoot, package: Path, machine: Path) -> None:
    """A container with GPUs,then a purge: what was there before is all that is there afterwards."""
    done = fresh.run(DRIVER.format(machine=machine), machine, package.parent)
    assert done.returncode == 0, done.stderr
    before = written(fresh)
    script = (
        INSTALL.format(package=package)
        + "dpkg --verify nvinject\n"
        + "byte_code() { [ -f /usr/lib/nvinject/nvinject/__pycache__/bundle.*.bin ]; }; byte_code\n"
        # What dpkg does when Python is replaced.
        + "rm -r /usr/lib/nvinject/nvinject/__pycache__\n"
        + "dpkg-trigger --by-package=python3-minimal --no-await /usr/bin/python3\n"
        + "dpkg --triggers-only nvinject >/dev/null; byte_code\n"
        + MAIN_JOB.format(fakes=fresh.fakes, image=machine / "image.tar", layers=LAYERS)
        + "dpkg --force-unsafe-io --remove nvinject >/dev/null; [ -f /etc/nvidia-container-runtime/config.toml ]\n"
        + "dpkg --purge nvinject >/dev/null\n"
    )
    done = fresh.run(script, machine, package.parent)
    assert done.stderr == ""
    assert done.stdout.splitlines() == GPUS
    assert done.returncode == 0
    assert written(fresh) == before


def written(fresh: FreshRoot) -> set[str]:
    """Return the files and links that were written into a tree; the ways to them are there anyway."""
    upper = fresh.folder / "upper"
    paths = (path for path in upper.rglob("*") if path.is_symlink() or not path.is_dir())
    names = {str(path.relative_to(upper)) for path in paths}
    return {name for name in names if not name.startswith((*NOTES, "usr/local/"))}


def test_an_own_configuration_is_kept(fresh: FreshRoot, package: Path) -> None:
    """It is a conffile: what a person changed stays at the next installation, and at removal."""
    change = "sed -i s/info/debug/ /etc/nvidia-container-runtime/config.toml\n"
    show = "nvinject config get nvidia-container-runtime.log-level\n"
    done = fresh.run(
        INSTALL.format(package=package)
        + change
        + INSTALL.format(package=package)
        + show
        + "dpkg --force-unsafe-io --remove nvinject "
        ">/dev/null; grep log-level /etc/nvidia-container-runtime/config.toml",
        package.parent,
    )
    assert (done.stdout, done.stderr) == ('debug\nlog-level = "debug"\n', "")
