"""Every option of the original is walked: it does its work, or is refused with a reason; docs/compat.md says which.

The table in docs/compat.md is made from the runs; TOOLBOX_UPDATE=1 in the environment writes it.
"""

import os
import re
from pathlib import Path

import pytest

from .conftest import TWO_H100, Bench, Done
from .options import OPTIONS, SYSTEM_OPTIONS, Option

DOCUMENT = Path(__file__).parents[2] / "docs" / "compat.md"
MACHINE = TWO_H100 + "lib32: true\n"
PREPARE = """\
exec 2>&1
R=$T/rootfs; rm -rf $R $T/log; mkdir -p $R/proc $R/dev $R/etc $R/usr/lib/x86_64-linux-gnu
echo 12 >$R/etc/debian_version
mount --bind $R $R; mount --rbind /proc $R/proc; mount -t tmpfs none $R/dev
set +e
"""
# What can be seen afterwards: nodes, links, the container, the log.
SHOW = """
echo "exit code $?"
ls /dev/nvidia* /dev/nvidia-caps* $T/root/dev 2>/dev/null; ls -l $T/char $T/other 2>/dev/null | cut -d: -f2-
echo "$(grep -c " $R" /proc/self/mountinfo) mounts"
find $R/dev $R/usr $R/run $R/lib $R/etc | sort
cat $T/log 2>/dev/null
[ -z "$pid" ] || { kill $pid; wait $pid; }
[ -z "$group" ] || rmdir $group
"""
LOG_STAMP = re.compile(r"^\S+Z nvinject\[\d+\]: ", re.MULTILINE)
NUMBERS = re.compile(r"\b\d{3,7}\b")


def run(bench: Bench, option: Option, given: str) -> str:
    """Return everything that can be seen of a run, without what differs from run to run."""
    line = option.line.replace("@", given, 1)
    done: Done = bench.run(f"{PREPARE}{option.before}\n{line}{SHOW}", machine=MACHINE)
    text = LOG_STAMP.sub("", done.stdout.replace(str(bench.folder), "T"))
    return NUMBERS.sub("N", text)


@pytest.mark.parametrize("option", [*OPTIONS, *SYSTEM_OPTIONS], ids=lambda option: f"{option.program} {option.name}")
def test_an_option_does_its_work_or_is_refused(bench: Bench, option: Option) -> None:
    """The run with it comes out otherwise than the run without it; where there is no work, the table says why."""
    if "group=" in option.before and bench.run("test -w /sys/fs/cgroup/devices/devices.allow").returncode != 0:
        pytest.skip("needs the devices controller of cgroup v1, writable")
    without, with_it = run(bench, option, ""), run(bench, option, option.given)
    assert "unrecognized" not in with_it
    assert "internal error" not in with_it
    if option.refused:
        assert "exit code 0" not in with_it
        assert option.why in with_it
    elif option.idle:
        assert "exit code 0" in with_it
        assert with_it == without
        assert option.why
    else:
        assert with_it != without


def format_table(options: tuple[Option, ...]) -> str:
    """Return the options as rows of Markdown."""
    lines = ["| command | option | | how it differs, or why |", "|---|---|---|---|"]
    lines += [f"| `{one.program}` | `{one.name}` | {one.verdict} | {one.why} |" for one in options]
    return "\n".join(lines) + "\n"


def check_document(section: str, options: tuple[Option, ...]) -> None:
    """Hold a table of the document to the options; TOOLBOX_UPDATE writes it anew."""
    text = DOCUMENT.read_text()
    begin, end = f"<!-- begin {section} -->\n", f"<!-- end {section} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    wanted = f"{before}{begin}{format_table(options)}{end}{after}"
    if os.environ.get("TOOLBOX_UPDATE"):
        DOCUMENT.write_text(wanted)
        return
    assert text == wanted


SECTIONS = {"nvidia-container-cli": OPTIONS, "nvidia-ctk system": SYSTEM_OPTIONS}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_document_has_every_option(name: str) -> None:
    """Between its marks, row by row."""
    check_document(name, SECTIONS[name])


# The original's own list, from its argument parsers.
ORIGINAL = {
    "nvidia-container-cli": "debug load-kmods no-pivot user root ldcache no-create-imex-channels help usage version",
    "nvidia-container-cli info": "csv",
    "nvidia-container-cli list": "device libraries binaries ipcs firmwares compat32 mig-config mig-monitor "
    "imex-channel no-persistenced no-fabricmanager no-gsp-firmware",
    "nvidia-container-cli configure": "pid device require ldconfig compute utility video graphics display ngx compat32 "
    "mig-config mig-monitor imex-channel no-cgroups no-devbind no-persistenced no-fabricmanager no-gsp-firmware "
    "no-cntlibs cuda-compat-mode",
    "nvidia-ctk system create-device-nodes": "root dev-root control-devices load-kernel-modules dry-run",
    "nvidia-ctk system create-dev-char-symlinks": "dev-char-path driver-root create-all load-kernel-modules "
    "create-device-nodes dry-run",
}


@pytest.mark.parametrize("program", ORIGINAL)
def test_the_table_has_all_options_of_the_original(program: str) -> None:
    """None is forgotten."""
    walked = {
        option.name.partition(",")[0].removeprefix("--")
        for option in (*OPTIONS, *SYSTEM_OPTIONS)
        if option.program == program and not option.name.startswith("$")
    }
    assert walked == set(ORIGINAL[program].split())
