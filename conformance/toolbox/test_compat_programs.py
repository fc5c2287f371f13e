"""Every option of the hook, the runtimes, nvidia-ctk and nvidia-cdi-hook is walked as in test_compat.py.

One machine serves a whole section: each run begins with fresh files. TOOLBOX_UPDATE=1 in the environment writes the
tables into docs/compat.md.
"""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from nvconform.required import give_up

from .conftest import TWO_H100, Bench
from .options import Option
from .programs import SECTIONS
from .test_compat import LOG_STAMP, NUMBERS, check_document

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# What a section begins with. The machine's /etc is private; its config.toml is read where nothing is set.
BEGIN = """\
exec 2>&1
set +e; unset PYTHON PREFIX
T=$T/run R=$T/rootfs
mkdir -p /etc/cdi; nvidia-ctk --quiet cdi generate --output /etc/cdi/nvidia.yaml
nvidia-ctk --quiet cdi generate --class card --output /etc/cdi-of-mine.yaml
fresh() {
    [ -z "$pid" ] || { kill $pid; wait $pid 2>/dev/null; }
    umount -R $R 2>/dev/null; rm -rf $T
    mkdir -p $T/bundle $T/out $T/empty $T/specs $T/libraries $T/configs/vulkan/icd.d $T/xdg/nvidia-container-runtime
    make_rootfs; make_configuration; make_state
    printf 'dev, /dev/nvidia0\\nsym, LIBRARIES/libcuda.so.1\\n' >$T/lists.csv
    echo '{}' >$T/daemon.json; echo '{}' >$T/config.json; echo '{}' >$T/configs/vulkan/icd.d/nvidia_icd.json
    cp /etc/cdi-of-mine.yaml $T/specs/nvidia.yaml
    cp LIBRARIES/libnvidia-encode.so.570.133.20 $T/libraries; cp $T/libraries/* $R/opt/lib
    export NVIDIA_CTK_CONFIG_FILE_PATH=$T/config.toml
    cd $T
}
make_rootfs() {
    mkdir -p $R/proc $R/dev $R/etc $R/opt/lib $R/usr/lib/x86_64-linux-gnu $R/usr/local/cuda/compat
    mount --bind $R $R; mount --rbind /proc $R/proc; mount -t tmpfs none $R/dev
    mknod $R/dev/nvidia0 c 195 0
    echo 12 >$R/etc/debian_version; touch $R/file $R/usr/local/cuda/compat/libcuda.so.580.65.06
    ln -s libcuda.so.580.65.06 $R/usr/local/cuda/compat/libcuda.so.1
}
make_configuration() {
    printf '#!/bin/sh\\ncase "$*" in *version*) echo low-level;; esac\\n' >$T/low; chmod +x $T/low
    printf '[nvidia-container-cli]\\nno-cgroups = true\\n' >$T/config.toml
    printf '[nvidia-container-runtime]\\nruntimes = ["%s"]\\n' $T/low >>$T/config.toml
    mkdir -p /etc/nvidia-container-runtime; cp $T/config.toml /etc/nvidia-container-runtime/
    sed "s,^\\[.*,&\\ndebug = \\"$T/log\\"," $T/config.toml >$T/other.toml
    cp $T/other.toml $T/xdg/nvidia-container-runtime/config.toml
    printf '[nvidia-container-cli]\\nroot = "%s"\\n' $T/empty >$T/rooted.toml
    echo '[nvidia-container-runtime]' >$T/set.toml
}
make_state() {
    printf '{"ociVersion": "1.0.2", "process": {"args": ["sh"], "env": ["NVIDIA_VISIBLE_DEVICES=all"]},
        "root": {"path": "%s"}, "linux": {}}\\n' $R >$T/bundle/config.json
    unshare --mount sleep 100 & pid=$!
    while [ "$(readlink /proc/$pid/ns/mnt)" = "$(readlink /proc/self/ns/mnt)" ]; do sleep 0.01; done
    printf '{"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": %s, "bundle": "%s"}\\n' \\
        $pid $T/bundle >$T/state
}
show() {
    echo "exit code $1"; echo "$(grep -c " $R" /proc/self/mountinfo) mounts"
    find $R -path $R/proc -prune -o -printf '%P %M %l\\n' | sort; ls $T/out
    grep -c libnvidia-encode $R/etc/ld.so.cache 2>/dev/null
    cat $T/bundle/config.json $T/set.toml $T/daemon.json $T/out/* $T/log 2>/dev/null
    echo END
}
run() { fresh; (eval "$1"); show $?; }
""".replace("LIBRARIES", LIBRARIES)
END = "fresh; kill $pid; wait $pid 2>/dev/null; umount -R $R; exit 0\n"
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")


def lines_of(option: Option) -> list[str]:
    """Return the command line without the option, with it, and with each of its other names and variables."""
    first, *others = option.name.split(", ")
    lines = [option.line.replace("@", "", 1), option.line.replace("@", option.given, 1)]
    for name in others:
        if name.startswith("$"):
            value = re.split(r"[ =]", option.given, maxsplit=1)[1:] or ["true"]
            lines.append(f"{name[1:]}={value[0]} {lines[0]}")
        else:
            lines.append(option.line.replace("@", option.given.replace(first, name, 1), 1))
    return lines


class Runs:
    """What was seen of every command line of a section, which is run when it is first asked for."""

    def __init__(self, bench: Bench) -> None:
        """Run nothing yet."""
        self.of = cache(lambda section: self._run(bench, section))

    def _run(self, bench: Bench, section: str) -> dict[str, str]:
        lines = list(dict.fromkeys(line for option in SECTIONS[section] for line in lines_of(option)))
        script = BEGIN + "".join(f"run {shlex.quote(line)}\n" for line in lines) + END
        done = bench.run(script, machine=TWO_H100 + "deviate: {missing: ['*/egl_external_platform.d/*']}\n")
        seen = done.stdout.replace(str(bench.folder), "T").split("END\n")
        assert len(seen) == len(lines) + 1, done.stdout[-2000:]
        return dict(
            zip(lines, (NUMBERS.sub("N", TIME.sub("TIME", LOG_STAMP.sub("", one))) for one in seen), strict=False)
        )


@pytest.fixture(scope="module")
def runs(prefix: Path, tmp_path_factory: pytest.TempPathFactory, can_be_root: str) -> Runs:
    """Return what was seen, or skip where no fake machine can be had."""
    if can_be_root:
        give_up("root", f"a fake machine at the real paths needs root: {can_be_root}")
    folder = tmp_path_factory.mktemp("programs")
    (folder / "config.toml").touch()
    return Runs(Bench(prefix, folder))


ALL = [
    pytest.param(section, option, id=f"{option.program} {option.name}")
    for section, options in SECTIONS.items()
    for option in options
]


@pytest.mark.parametrize(("section", "option"), ALL)
def test_an_option_does_its_work_or_is_refused(runs: Runs, section: str, option: Option) -> None:
    """The run with it comes out otherwise than the run without it, and alike under each of its names."""
    without, with_it, *others = [runs.of(section)[line] for line in lines_of(option)]
    assert "unrecognized" not in with_it
    assert "unknown option" not in with_it
    assert "internal error" not in with_it
    if option.refused:
        assert "exit code 2" in with_it
        assert option.why in with_it
    elif option.idle:
        assert "exit code 0" in with_it
        assert with_it == without
        assert option.why
    else:
        assert with_it != without
    assert all(other == with_it for other in others)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_document_has_every_option(name: str) -> None:
    """Between its marks, row by row."""
    check_document(name, SECTIONS[name])


# The original's own list: flags by program, and words that are commands.
ORIGINAL = {
    "nvidia-container-runtime-hook": "config debug version prestart poststart poststop",
    "nvidia-container-runtime": "bundle log log-format debug version create",
    "nvidia-ctk": "debug quiet config version help hook runtime info cdi system config",
    "nvidia-ctk cdi generate": "config-search-path output format mode dev-root device-name-strategy driver-root "
    "library-search-path nvidia-cdi-hook-path ldconfig-path vendor class csv.file csv.ignore-pattern "
    "csv.compat-container-root disable-hook enable-hook feature-flag no-all-device device-id",
    "nvidia-ctk cdi list": "spec-dir",
    "nvidia-ctk cdi transform root": "from to input output relative-to",
    "nvidia-cdi-hook": "debug quiet version noop",
    "nvidia-cdi-hook create-symlinks": "link container-spec",
    "nvidia-cdi-hook update-ldcache": "folder ldconfig-path container-spec",
    "nvidia-cdi-hook enable-cuda-compat": "host-driver-version host-cuda-version cuda-compat-container-root "
    "container-spec",
    "nvidia-cdi-hook disable-device-node-modification": "container-spec",
    "nvidia-cdi-hook update-application-profile": "container-spec",
    "nvidia-cdi-hook chmod": "path mode container-spec",
}


@pytest.mark.parametrize("program", ORIGINAL)
def test_the_tables_have_all_options_of_the_original(program: str) -> None:
    """None is forgotten."""
    rows = [option for options in SECTIONS.values() for option in options if option.program == program]
    walked = {option.name.partition(",")[0].lstrip("-") for option in rows if not option.name.startswith("$")}
    assert walked == set(ORIGINAL[program].split())
