"""nvinject system on declared machines: nodes and links that are really made, and compared with the declared ones."""

import json

import pytest

from .conftest import TWO_H100, Bench

MIG = "driver: {}\ngpus: [{model: h100, mig: [3g.40gb, 3g.40gb]}, {model: h100}]"
NODES = "find /dev -name 'nvidia*' -type c -not -path '*imex*' -exec stat -c '%n %t:%T %a %u:%g' {} + | sort"
PARAMS = TWO_H100 + "params: {DeviceFileMode: 432}"


@pytest.mark.parametrize("machine", [TWO_H100, MIG, PARAMS], ids=["two", "mig", "parameters"])
def test_nodes_are_made_as_the_driver_makes_them(bench: Bench, machine: str) -> None:
    """Number, mode and owner of every node, also below /dev/nvidia-caps."""
    done = bench.run(
        f"{NODES} >$T/before; rm -r /dev/nvidia*; nvidia-ctk system create-device-nodes --all-devices >&2\n"
        f"{NODES} >$T/after; diff $T/before $T/after && cat $T/after | wc -l",
        machine=machine,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) >= 8


def test_control_devices_are_the_originals(bench: Bench) -> None:
    """These four and no others; what is there is left alone."""
    done = bench.run(
        "rm -r /dev/nvidia*; nvidia-ctk system create-device-nodes --control-devices >$T/out; ls /dev/nvidia*\n"
        "nvidia-ctk system create-device-nodes --control-devices | grep -c there"
    )
    assert done.stdout.split() == [
        "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl", "4"
    ]  # fmt: skip


def test_dry_run_makes_nothing(bench: Bench) -> None:
    """It prints the same rows."""
    done = bench.run(
        "rm /dev/nvidia0; nvinject system create-device-nodes --all-devices --dry-run --json >$T/json\n"
        "test -e /dev/nvidia0 || echo not made; cat $T/json"
    )
    first, _, rest = done.stdout.partition("\n")
    assert first == "not made"
    document = json.loads(rest)
    assert document["dryRun"]
    assert [step["path"] for step in document["steps"] if "would be made" in step["result"]] == ["/dev/nvidia0"]


def test_a_wrong_node_is_told_and_replaced_on_demand(bench: Bench) -> None:
    """A program may have it open, so only --replace removes it."""
    done = bench.run(
        "rm /dev/nvidia-uvm; mknod /dev/nvidia-uvm c 99 0; set +e\n"
        "nvinject system create-device-nodes --control-devices; echo $?\n"
        "nvinject system create-device-nodes --control-devices --replace; echo $?; stat -c %t:%T /dev/nvidia-uvm"
    )
    assert "wrong: is device 99:0, should be 235:0 0666" in done.stdout
    assert [line for line in done.stdout.splitlines() if line in {"0", "1"}] == ["1", "0"]
    assert done.stdout.splitlines()[-1] == "eb:0"


def test_nodes_of_a_driver_container(bench: Bench) -> None:
    """--dev-root: below another root, whose links stay inside."""
    done = bench.run("""
    mkdir $T/root $T/root/elsewhere; ln -s /elsewhere $T/root/dev; mount -t tmpfs -o dev none $T/root/elsewhere
    nvinject system create-device-nodes --control-devices --dev-root $T/root >&2
    ls $T/root/elsewhere; test ! -e /elsewhere""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]


def test_modules_are_loaded_as_the_kernel_does(bench: Bench) -> None:
    """By the program that the kernel would run; one that fails stops everything."""
    script = """
    create() { nvinject system create-device-nodes --control-devices --load-kernel-modules; }
    printf '#!/bin/sh\\necho "$@" >>'$T'/loaded\\n' >$T/modprobe; chmod +x $T/modprobe
    mount --bind $T/modprobe {modprobe}; create >&2; cat $T/loaded
    printf '#!/bin/sh\\necho "modprobe: FATAL: Module nvidia not found" >&2; exit 1\\n' >$T/modprobe
    rm /dev/nvidiactl; set +e; create; echo $?; test -e /dev/nvidiactl || echo none
    """
    place = bench.run("cat /proc/sys/kernel/modprobe || echo /sbin/modprobe").stdout.strip()
    if bench.run(f"test -e {place}").returncode != 0:
        pytest.skip(f"{place}, by which the kernel loads modules, is not installed")
    done = bench.run(script.replace("{modprobe}", place))
    assert done.stdout.splitlines() == ["nvidia", "nvidia-uvm", "nvidia-modeset", "6", "none"]
    assert "the module nvidia does not load: modprobe: FATAL: Module nvidia not found" in done.stderr


def test_existing_nodes_are_linked(bench: Bench) -> None:
    """The directory is made; nodes of other drivers are left out; a link that says something else is only told."""
    done = bench.run("""
    mknod /dev/nvidia-fs0 c 234 0; mkdir $T/char; ln -s /dev/null $T/char/195:0
    nvidia-ctk system create-dev-char-symlinks --dev-char-path $T/char >&2
    readlink $T/char/195:1 $T/char/195:0; ls $T/char""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "/dev/nvidia1", "/dev/null", "195:0", "195:1", "195:254", "195:255", "235:0", "235:1", "237:1", "237:2"
    ]  # fmt: skip
    assert "is a link to /dev/null, not a link to /dev/nvidia0" in done.stderr


def test_all_nodes_are_linked_and_made(bench: Bench) -> None:
    """--create-all links what could be there, --create-device-nodes makes it."""
    done = bench.run(
        "rm -r /dev/nvidia*; nvidia-ctk system create-dev-char-symlinks --create-all --dev-char-path $T/char >&2\n"
        "ls $T/char | wc -l; ls /dev/nvidia* 2>/dev/null | wc -l\n"
        "export CREATE_ALL=true CREATE_DEVICE_NODES=true DEV_CHAR_PATH=$T/more\n"
        "nvidia-ctk system create-dev-char-symlinks >&2\n"
        "ls $T/more | wc -l; ls /dev/nvidia* | wc -l",
        machine=MIG,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["12", "0", "12"]
    assert int(done.stdout.split()[3]) >= 12


def test_all_links_need_all_numbers(bench: Bench) -> None:
    """The original's words."""
    done = bench.run(
        "grep -v nvidia-uvm /proc/devices >$T/devices; mount --bind $T/devices /proc/devices; set +e\n"
        "nvidia-ctk system create-dev-char-symlinks --create-all --dev-char-path $T/char; echo $?\n"
        "test -e $T/char || echo none"
    )
    assert done.stdout.split() == ["6", "none"]
    assert "missing required device major nvidia-uvm" in done.stderr


def test_new_nodes_are_linked_as_they_come(bench: Bench) -> None:
    """--watch: no unit has to be restarted."""
    done = bench.run("""
    rm /dev/nvidia1
    nvinject system create-dev-char-symlinks --watch --dev-char-path $T/char >/dev/null 2>$T/log &
    while ! [ -e $T/char/195:0 ]; do sleep 0.1; done; sleep 0.5; mknod /dev/nvidia1 c 195 1
    for i in $(seq 100); do [ -L $T/char/195:1 ] && break; sleep 0.1; done
    kill $!; readlink $T/char/195:1; cat $T/log""")
    assert done.stdout.splitlines()[0] == "/dev/nvidia1"
    assert "made: -> /dev/nvidia1" in done.stdout


def test_without_a_driver_it_says_so(bench: Bench) -> None:
    """Exit code 6, the host's."""
    done = bench.run("nvinject system create-device-nodes --control-devices", machine="gpus: []")
    assert done.returncode == 6
    assert "no NVIDIA devices found in /proc/devices" in done.stderr


def test_the_loader_cache_is_printed_as_ldconfig_does(bench: Bench) -> None:
    """The driver's libraries of it."""
    done = bench.run("""
    nvinject system print-ldcache | sort >$T/ours
    ldconfig -p | grep -F -e libcuda.so.1 -e libnvidia-ml.so.1 | sort >$T/theirs
    grep -F -x -f $T/theirs $T/ours | wc -l; nvinject system print-ldcache --json""")
    first, _, rest = done.stdout.partition("\n")
    assert first == "2"
    assert {entry["bits"] for entry in json.loads(rest)} == {64}
