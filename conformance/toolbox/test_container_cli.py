"""nvidia-container-cli on declared machines: the original's output byte for byte, containers as the hook makes them.

The observed files were written by the original (docs/toolbox.md says how); nothing here depends on our own commands.
"""

import json
import os
from pathlib import Path

import pytest

from .conftest import TWO_H100, Bench

OBSERVED = Path(__file__).parent / "observed"
MIG = """\
driver: {version: 570.133.20, cuda: "12.8"}
gpus:
  - {model: h100, mig: [{profile: 3g.40gb, uuid: MIG-0a0a0a0a-5555-6666-7777-000000000000}, 3g.40gb]}
  - {model: h100}
"""
ROOTFS = """\
R=$T/rootfs
mkdir -p $R/proc $R/dev $R/etc $R/usr/lib/x86_64-linux-gnu $R/usr/bin $R/usr/local/cuda
echo 12 >$R/etc/debian_version
mount --bind $R $R
mount --rbind /proc $R/proc
mount -t tmpfs none $R/dev
"""
SHOW = """\
cd $R
grep $R /proc/self/mountinfo | cut -d' ' -f5,6 | sed s,$R,, | grep -v -e '^/proc/devices' -e '^/proc/driver '
find dev usr etc run lib -ls 2>/dev/null | awk '{$1=$2=$4=$5=$6=$7=$8=$9=$10=""; print}' | sort
md5sum etc/ld.so.cache 2>/dev/null
cat proc/driver/nvidia/params | head -3
"""


@pytest.mark.parametrize(("command", "file"), [("info", "cli_info_2gpu.txt"), ("list", "cli_list_2gpu.txt")])
def test_output_is_the_originals(bench: Bench, command: str, file: str) -> None:
    """Scripts parse it."""
    done = bench.run(f"nvidia-container-cli {command}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (OBSERVED / file).read_text()


LISTS = [
    (
        "--device 1",
        ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia1"],
    ),
    ("--device=00000000:17:00.0 -d GPU-000000A1-1111-2222-3333-000000000001", 6),
    ("-b", 6),
    ("--libraries", 27),
    ("--lib --bin", 33),
    ("--ipcs --no-persistenced", ["/run/nvidia-fabricmanager/socket"]),
    ("--ipcs --no-fabricmanager", ["/run/nvidia-persistenced/socket"]),
    ("--firmwares --no-gsp-firmware", []),
    ("--imex-channel 0 --binaries --imex-channel=7", 8),
    ("--compat32", []),
]


@pytest.mark.parametrize(("options", "expected"), LISTS)
def test_list_shows_what_options_ask_for(bench: Bench, options: str, expected: "list[str] | int") -> None:
    """And nothing else."""
    done = bench.run(f"nvidia-container-cli list {options}")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert (lines if isinstance(expected, list) else len(lines)) == expected


def test_one_imex_channel_alone_means_everything(bench: Bench) -> None:
    """A quirk of the original that its callers rely on."""
    done = bench.run("nvidia-container-cli list --imex-channel=5")
    lines = done.stdout.splitlines()
    assert "/dev/nvidia-caps-imex-channels/channel5" in lines
    assert len(lines) == len((OBSERVED / "cli_list_2gpu.txt").read_text().splitlines()) + 1


def test_list_shows_mig(bench: Bench) -> None:
    """A slice brings its GPU, its capabilities and their nodes; management brings all of them."""
    done = bench.run("nvidia-container-cli list --device MIG-0A0A0A0A-5555-6666-7777-000000000000", machine=MIG)
    capabilities = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    assert done.stdout.splitlines()[4:] == [
        "/dev/nvidia0",
        f"{capabilities}/access",
        f"{capabilities}/ci0/access",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]
    done = bench.run("nvidia-container-cli list --device 0 --mig-config all", machine=MIG)
    lines = done.stdout.splitlines()
    assert "/proc/driver/nvidia/capabilities/mig/config" in lines
    assert "/proc/driver/nvidia/capabilities/gpu0" in lines
    assert "/proc/driver/nvidia/capabilities/gpu1" not in lines


def test_the_driver_library_is_loaded_as_another_user(bench: Bench) -> None:
    """--user: that user cannot open a closed control node."""
    done = bench.run("""
    nvidia-container-cli --user=65534:65534 info | head -1
    chmod 600 /dev/nvidia0 /dev/nvidiactl
    nvidia-container-cli info >/dev/null && echo as root
    nvidia-container-cli --user=65534 info""")
    assert done.stdout.splitlines() == ["NVRM version:   570.133.20", "as root"]
    assert done.returncode == 1
    assert done.stderr.startswith("nvidia-container-cli: detection error: NVML fails in nvmlInit")


def test_load_kmods_makes_nodes(bench: Bench) -> None:
    """All of the driver's, and the channels that are asked for; what fails is told in the log alone."""
    script = """
    ls /dev/nvidia* >$T/before; rm -r /dev/nvidia*
    nvidia-container-cli --load-kmods --debug $T/log list --imex-channel 0 --device 0 >/dev/null
    ls /dev/nvidia* >$T/after; diff $T/before $T/after && echo same; cat $T/log
    rm -r /dev/nvidia*; nvidia-container-cli -k --no-create-imex-channels list --imex-channel 0 -d 0 | tail -1
    test -e /dev/nvidia-caps-imex-channels || echo no channels
    """
    done = bench.run(script)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "same"
    assert any("made: 195:255" in line for line in lines)
    assert lines[-2:] == ["/dev/nvidia-caps-imex-channels/channel0", "no channels"]


HOOK = """\
mkdir -p $T/bundle
cat >$T/bundle/config.json <<END
{"ociVersion": "1.0.2", "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]},
 "root": {"path": "$T/rootfs"}}
END
printf '[nvidia-container-cli]\\nno-cgroups = true\\n' >$T/config.toml
"""


def test_configure_makes_the_container_that_the_hook_makes(bench: Bench) -> None:
    """The same mounts, files, links and loader cache, in our own namespaces and in those of a process."""
    standalone = bench.run(
        ROOTFS + "nvidia-container-cli configure --no-cgroups --device 0 --compute --utility "
        "--ldconfig=@/sbin/ldconfig $R\n" + SHOW
    )
    assert standalone.returncode == 0, standalone.stderr
    assert "/dev/nvidia0 ro,nosuid,noexec,relatime" in standalone.stdout
    assert "/dev/nvidia1" not in standalone.stdout
    assert "ModifyDeviceFiles: 0" in standalone.stdout

    start = ROOTFS + HOOK + "unshare --mount sleep 100 & pid=$!; sleep 0.5\n"
    inside = "nsenter --mount --target $pid sh -c '" + SHOW.replace("'", "'\\''") + "'; kill $pid\n"
    by_pid = bench.run(
        start + "export R; nvidia-container-cli configure --no-cgroups -cu --device=0 --pid=$pid $R\n" + inside
    )
    by_hook = bench.run(
        start
        + """export R; echo "{\\"pid\\": $pid, \\"bundle\\": \\"$T/bundle\\"}" | nvidia-container-runtime-hook prestart
        """
        + inside
    )
    assert by_hook.returncode == 0, by_hook.stderr
    assert by_pid.stdout == by_hook.stdout
    assert standalone.stdout == by_hook.stdout


OPTIONS = [
    ("--utility", "usr/bin/nvidia-smi", True),
    ("--compute", "usr/bin/nvidia-smi", False),
    ("--compute", "usr/lib/x86_64-linux-gnu/libcuda.so.1", True),
    ("--video", "usr/lib/x86_64-linux-gnu/libnvcuvid.so.1", True),
    ("--graphics", "usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.0", True),
    ("--display", "dev/nvidia-modeset", True),
    ("--graphics", "dev/nvidia-modeset", False),
    ("--ngx", "usr/lib/x86_64-linux-gnu/libnvidia-ngx.so.1", True),
    ("", "dev/nvidiactl", True),
    ("", "lib/firmware/nvidia/570.133.20/gsp_ga10x.bin", True),
    ("--no-gsp-firmware", "lib/firmware/nvidia/570.133.20/gsp_ga10x.bin", False),
    ("--utility", "run/nvidia-persistenced/socket", True),
    ("--utility --no-persistenced", "run/nvidia-persistenced/socket", False),
    ("--utility --no-fabricmanager", "run/nvidia-fabricmanager/socket", False),
    ("--no-devbind", "dev/nvidia0", False),
    ("--imex-channel 0", "dev/nvidia-caps-imex-channels/channel0", True),
    ("--mig-config all", "dev/nvidia-caps", True),
    ("--mig-monitor all", "dev/nvidia-caps", True),
]


@pytest.mark.parametrize(("options", "path", "there"), OPTIONS)
def test_each_option_of_configure_has_its_effect(bench: Bench, options: str, path: str, *, there: bool) -> None:
    """One path that it brings or takes away."""
    done = bench.run(
        ROOTFS + f"nvidia-container-cli configure --no-cgroups --device 0 {options} $R\n"
        f"if test -e $R/{path}; then echo there; else echo not there; fi"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == ("there" if there else "not there")


COMPAT = """\
mkdir -p $R/usr/local/cuda/compat; touch $R/usr/local/cuda/compat/libcuda.so.580.65.06
"""


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ("", True),
        ("--cuda-compat-mode=ldconfig", True),
        ("--cuda-compat-mode=disabled", False),
        ("--no-cntlibs", False),
    ],
)
def test_cuda_libraries_of_the_image(bench: Bench, options: str, *, used: bool) -> None:
    """They come first in the loader's order unless they are to be ignored."""
    configure = f"nvidia-container-cli -d $T/log configure --no-cgroups -c --device 0 {options} $R"
    done = bench.run(f"{ROOTFS}{COMPAT}{configure}; grep 'loader cache' $T/log")
    assert done.returncode == 0, done.stderr
    assert ("for driver 580.65.06, newer than the host's" in done.stdout) is used


FAILURES = [
    ("configure $R --device 9", "device error: 9: unknown device"),
    ("configure $R --device none", "device error: none: unknown device"),
    ("configure $R --require 'cuda>=13.0' --device 0", "requirement error: unsatisfied condition: "),
    ("configure $R --require 'cuda>>13.0' --device 0", "requirement error: --require is malformed"),
    ("configure $R --mig-config 0", "mig-config error: only 'all' devices are currently supported"),
    ("configure $R --imex-channel x", "error parsing IMEX info: unsupported IMEX channel value: x"),
    ("configure $R --pid 999999 --device 0", "container error: the container's process 999999 does not exist"),
    ("configure /no/such/rootfs --device 0", "container error: cannot open /no/such/rootfs"),
    ("--root /nowhere list", "detection error: driver root /nowhere does not exist"),
    ("--ldcache /nowhere/cache list --libraries", ""),
]


@pytest.mark.parametrize(("words", "message"), FAILURES)
def test_failures_name_their_stage(bench: Bench, words: str, message: str) -> None:
    """Exit code 1 and one line; the container is as it was."""
    done = bench.run(ROOTFS + f"cat /proc/self/mountinfo | wc -l >$T/n; set +e; nvidia-container-cli {words}; code=$?\n"
                     "[ $(cat /proc/self/mountinfo | wc -l) = $(cat $T/n) ] || echo changed; exit $code")  # fmt: skip
    if not message:
        assert done.returncode == 0, done.stderr  # the usual directories are searched where the cache is of no use
        return
    assert done.returncode == 1
    assert done.stderr.startswith(f"nvidia-container-cli: {message}")
    assert done.stderr.count("\n") == 1
    assert "changed" not in done.stdout


def test_a_container_in_a_cgroup_may_open_its_gpu(bench: Bench) -> None:
    """Without --no-cgroups the device rules of the process's cgroup are extended."""
    if bench.run("test -w /sys/fs/cgroup/devices/devices.allow").returncode != 0:
        pytest.skip("needs the devices controller of cgroup v1, writable")
    script = (
        ROOTFS
        + """
    group=/sys/fs/cgroup/devices/nvinject-cli-$$; mkdir $group
    echo 'a *:* rwm' >$group/devices.deny; echo 'c 1:3 rwm' >$group/devices.allow
    unshare --mount sleep 100 & pid=$!; sleep 0.5; echo $pid >$group/cgroup.procs
    nvidia-container-cli configure --pid $pid --device 1 --compute $R
    cat $group/devices.list; kill $pid; wait; rmdir $group
    """
    )
    done = bench.run(script)
    assert sorted(done.stdout.split("\n")) == [
        "", "c 195:1 rw", "c 195:255 rw", "c 1:3 rwm", "c 235:0 rw", "c 235:1 rw"
    ], done.stderr  # fmt: skip


def test_a_broken_driver_is_told_in_the_originals_form(bench: Bench) -> None:
    """For each command."""
    for command in ("info", "list", "configure --device 0 /tmp/x"):
        done = bench.run(
            f"mkdir -p /tmp/x; nvidia-container-cli {command}", machine=TWO_H100 + "deviate: {module: unloaded}"
        )
        assert done.returncode == 1
        assert done.stderr.startswith("nvidia-container-cli: detection error: the NVIDIA kernel module is not loaded")


def test_csv(bench: Bench) -> None:
    """Values are never quoted."""
    done = bench.run("nvidia-container-cli info --csv")
    lines = done.stdout.splitlines()
    assert lines[0] == "NVRM version,CUDA version"
    assert lines[3] == "Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture"
    assert lines[4].startswith("0,0,NVIDIA H100 80GB HBM3,Nvidia,GPU-")
    assert len(lines) == 6


def test_json_of_info_is_for_programs(bench: Bench) -> None:
    """The command of our own says the same, and more."""
    document = json.loads(bench.run("nvinject info --json").stdout)
    assert document["gpus"][0]["uuid"] == "GPU-000000a0-1111-2222-3333-000000000000"
    assert {root["name"] for root in document["roots"]} == {"driver root", "device root", "proc root", "sys root"}
    assert os.path.isabs(document["files"][0]["path"])
