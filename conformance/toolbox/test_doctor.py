"""nvinject doctor: each planted fault is found by name, and nothing else; nothing is found on a healthy machine."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import nvfakes

from . import deviceprogram
from .conftest import TWO_H100, Bench

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
DOCKER = "mkdir -p /etc/docker\n"
# The process file lies in a /run of its own: other tests' daemons have the same numbers in other process spaces.
DAEMON = """\
mount -t tmpfs none /run; mkdir /run/containerd
cp "$(command -v sleep)" "$T/{name}"; "$T/{name}" 100 & echo $! >/run/{pid}
"""
RANCHER = "/var/lib/rancher/{name}/agent/etc/containerd"
# The containerd that k3s and rke2 start themselves: known by its command line alone.
EMBEDDED = """\
mount -t tmpfs none /var/lib; directory={directory}; mkdir -p $directory/config-v3.toml.d
printf 'version = 3\\nimports = ["config-v3.toml.d/*.toml"]\\n' >$directory/config.toml
touch -d 2020-01-01 $directory/config.toml
printf '#!/bin/sh\\nsleep 100 & wait\\n' >"$T/containerd"; chmod +x "$T/containerd"
"$T/containerd" -c $directory/config.toml & sleep 0.3
"""
DROP_IN = """\
printf '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]\\nBinaryName = "%s"\\n' \
    "$PREFIX/bin/nvidia-container-runtime" >$directory/config-v3.toml.d/99-nvidia.toml
touch -d '{when}' $directory/config-v3.toml.d/99-nvidia.toml
"""
SPEC = "mkdir -p /etc/cdi; nvinject cdi generate --output /etc/cdi/nvidia.yaml 2>/dev/null\n"
UNSAFE = """\
$PYTHON -c 'import sys, yaml
spec = yaml.safe_load(open(sys.argv[1]))
for hook in spec["containerEdits"]["hooks"]: hook.pop("env", None)
open(sys.argv[1], "w").write(yaml.safe_dump(spec))' /etc/cdi/nvidia.yaml
"""
BUNDLE = """\
mkdir -p "$T/bundle/rootfs"
cat >"$T/bundle/config.json" <<'END'
{{"ociVersion": "1.0.2", "process": {{"env": [{env}]}}, "root": {{"path": "rootfs"}}}}
END
"""
SLOW = """\
printf '#include <unistd.h>\\n__attribute__((constructor)) static void wait(void) {{ sleep(60); }}\\n' >"$T/slow.c"
cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o "$T/slow.so" "$T/slow.c"
mount --bind "$T/slow.so" {library}
printf '[nvinject]\\nnvml-timeout = 1\\n' >"$T/config.toml"
"""
LIST = """\
echo 'a *:* rwm' >"$group/devices.deny"
echo 'c *:* m' >"$group/devices.allow"
"""
PROGRAM = f"""\
$PYTHON {deviceprogram.__file__} "$group" {{result}}
"""
UNIFIED = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup\n"
NODE_IN_CONTAINER = """\
group={group}
mkdir -p "$group"
{rules}
mkdir -p "$T/root/dev" "$T/root/bin"
cp /bin/busybox "$T/root/bin/sleep"
unshare --mount sh -c 'mount -t tmpfs none "$T/root/dev"; mknod "$T/root/dev/nvidia0" c 195 0
    echo 0 >"$0/cgroup.procs"; touch "$T/ready"; exec chroot "$T/root" /bin/sleep 100' "$group" &
container=$!
while ! [ -e "$T/ready" ]; do sleep 0.1; done; sleep 0.5
"""


@dataclass(frozen=True)
class Fault:
    """A planted fault: the names that doctor must give it, the machine, what is done to it, doctor's arguments."""

    name: str
    script: str = ""
    machine: str = TWO_H100
    arguments: str = ""
    severity: str = "error"


def container(name: str, *environment: str, severity: str = "error") -> Fault:
    """Return a fault of a container's options."""
    env = ", ".join(f'"{entry}"' for entry in environment)
    return Fault(name, BUNDLE.format(env=env), arguments='--container "$T/bundle"', severity=severity)


MACHINE = [
    Fault("no-gpu", machine="gpus: []"),
    Fault(
        "gpu-taken",
        "ln -sfn ../../../bus/pci/drivers/vfio-pci /sys/bus/pci/devices/0000:18:00.0/driver",
        severity="warning",
    ),
    Fault("gpu-not-shown", "rm -r /proc/driver/nvidia/gpus/0000:18:00.0"),
    Fault("driver-missing", machine="gpus: [{model: h100}]"),
    Fault("module-not-loaded", machine=TWO_H100 + "deviate: {module: unloaded}"),
    Fault("uvm-not-loaded", 'grep -v nvidia-uvm /proc/devices >"$T/devices"; mount --bind "$T/devices" /proc/devices'),
    Fault("version-skew", machine=TWO_H100 + "deviate: {library_version: 570.211.01}"),
    Fault("libraries-missing", machine=TWO_H100 + 'deviate: {missing: ["*/libcuda.so*", "*/libnvidia-ml.so*"]}'),
    Fault(
        "libraries-left-over",
        f'mkdir "$T/l"; touch "$T/l/libnvidia-encode.so.560.35"\n'
        f"ln -s libnvidia-encode.so.560.35 $T/l/libnvidia-encode.so.1\n"
        f"mount -t overlay none -o lowerdir=$T/l:{LIBRARIES} {LIBRARIES}",
        severity="warning",
    ),
    Fault("nvml-missing", machine=TWO_H100 + 'deviate: {missing: ["*/libnvidia-ml.so*"]}'),
    Fault(
        "loader-cache-stale",
        "$PYTHON -c 'from nvfakes.ldcache import Cache, render; import sys\n"
        "sys.stdout.buffer.write(render(Cache()))' >$T/cache; cp $T/cache /etc/ld.so.cache",
        severity="warning",
    ),
    Fault("firmware-missing", machine=TWO_H100 + 'deviate: {missing: ["*/gsp_*.bin"]}'),
    Fault("node-missing", machine=TWO_H100 + "deviate: {missing: [/dev/nvidia-uvm-tools]}"),
    Fault("node-missing", "rm /dev/nvidia1"),
    Fault("node-missing", "rm /dev/nvidiactl"),
    Fault("node-missing", "rm /dev/nvidia-caps/nvidia-cap2"),
    Fault(
        "nodes-not-given",
        machine=TWO_H100 + "params: {ModifyDeviceFiles: 0}\ndeviate: {missing: [/dev/nvidia1]}",
        severity="note",
    ),
    Fault("node-wrong-number", "rm /dev/nvidia-uvm; mknod -m 666 /dev/nvidia-uvm c 99 0"),
    Fault("node-not-device", "rm /dev/nvidia-uvm; touch /dev/nvidia-uvm"),
    Fault("node-permissions", "chmod 0660 /dev/nvidia0", severity="warning"),
    Fault(
        "mps-daemon-missing",
        "mkdir -p /run/nvidia-mps; export CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps",
        severity="warning",
    ),
    Fault(
        "mps-daemon-missing",
        "rm /run/nvidia-mps/control",
        machine=TWO_H100.replace("sockets: [", "sockets: [mps, "),
        severity="warning",
    ),
    Fault(
        "mps-daemon-missing",
        "echo 99999999 >/run/nvidia-mps/nvidia-cuda-mps-control.pid",
        machine=TWO_H100.replace("sockets: [", "sockets: [mps, "),
        severity="warning",
    ),
    Fault(
        "dev-char-links-missing",
        "mount -t tmpfs none /run/systemd; mkdir /run/systemd/system",
        severity="warning",
    ),
    Fault("nvml-fails", f'echo junk >"$T/junk"; mount --bind "$T/junk" {LIBRARIES}/libnvidia-ml.so.570.133.20'),
    Fault("gpu-lost", machine="driver: {}\ngpus: [{model: h100}, {model: h100, answers: {lost: true}}]"),
    Fault(
        "gpu-unseen",
        machine="driver: {}\ngpus: [{model: h100}, {model: h100, answers: {unplugged: true}}]",
        severity="warning",
    ),
    Fault("nvml-slow", SLOW.format(library=f"{LIBRARIES}/libnvidia-ml.so.570.133.20")),
]

SERVICES = [
    Fault(
        "toolkit-missing",
        """PATH=/usr/sbin:/usr/bin:/sbin:/bin; nvinject() { "$PREFIX/bin/nvinject" "$@"; }""",
        arguments="--prefix /nowhere",
    ),
    Fault("config-invalid", 'echo "[nvinject" >"$T/config.toml"'),
    Fault("config-suspicious", 'echo "no-cgroup = true" >"$T/config.toml"', severity="warning"),
    Fault(
        "toolkit-shadowed",
        'mkdir "$T/other"; cp /bin/sh "$T/other/nvidia-container-runtime-hook"; PATH=$T/other:$PATH',
        severity="warning",
    ),
    Fault("engine-config-invalid", DOCKER + "echo '{,}' >/etc/docker/daemon.json"),
    Fault(
        "engine-runtime-missing",
        DOCKER
        + """echo '{"runtimes": {"nvidia": {"path": "/nowhere/nvidia-container-runtime"}}}' >/etc/docker/daemon.json""",
    ),
    Fault(
        "engine-not-restarted",
        DOCKER + DAEMON.format(name="dockerd", pid="docker.pid") + "sleep 1.2\n"
        """echo '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}' >/etc/docker/daemon.json
        touch -d '+1 hour' /etc/docker/daemon.json""",
        severity="warning",
    ),
    Fault(
        "engine-not-configured",
        "mkdir -p /etc/containerd; echo 'version = 2' >/etc/containerd/config.toml\n"
        "touch -d 2020-01-01 /etc/containerd/config.toml\n"
        + DAEMON.format(name="containerd", pid="containerd/containerd.pid"),
        severity="warning",
    ),
    *(
        Fault("engine-not-configured", EMBEDDED.format(directory=RANCHER.format(name=name)), severity="warning")
        for name in ("k3s", "rke2")
    ),
    Fault(
        "engine-not-restarted",
        EMBEDDED.format(directory=RANCHER.format(name="k3s")) + DROP_IN.format(when="+1 hour"),
        severity="warning",
    ),
    Fault(
        "engine-not-restarted",
        EMBEDDED.format(directory=RANCHER.format(name="rke2"))
        + DROP_IN.format(when="2020-01-01")
        + """echo '{{ template "base" . }}' >$directory/config-v3.toml.tmpl
        touch -d '+1 hour' $directory/config-v3.toml.tmpl""",
        severity="warning",
    ),
    Fault("cdi-spec-invalid", "mkdir -p /etc/cdi; echo 'cdiVersion: 9' >/etc/cdi/nvidia.yaml"),
    Fault("cdi-spec-invalid", SPEC + "echo 'kind: [' >/etc/cdi/amd.yaml", severity="warning"),
    Fault("cdi-conflict", SPEC + "cp /etc/cdi/nvidia.yaml /etc/cdi/copy.yaml"),
    Fault("cdi-spec-stale", SPEC + "sed -i s/570.133.20/570.86.10/g /etc/cdi/nvidia.yaml"),
    Fault("cdi-file-missing", SPEC + "sed -i s,nvidia-debugdump,nvidia-gone, /etc/cdi/nvidia.yaml"),
    Fault("cdi-node-wrong", SPEC + "rm /dev/dri/card1"),
    Fault("cdi-spec-permissions", SPEC + "chmod 0600 /etc/cdi/nvidia.yaml", severity="warning"),
    Fault(
        "cdi-hook-broken",
        SPEC + "sed -i 's,path: .*/nvidia-cdi-hook,path: /nowhere/nvidia-cdi-hook,' /etc/cdi/nvidia.yaml",
    ),
    Fault("cdi-hook-unsafe", SPEC + UNSAFE),
    Fault("cdi-directory", "mkdir -p /etc/cdi; touch /etc/cdi/nvidia.yml", severity="warning"),
    Fault(
        "cdi-spec-missing",
        "mkdir -p /etc/containerd; printf '[plugins.cri]\\nenable_cdi = true\\n' >/etc/containerd/config.toml",
    ),
    Fault("cdi-spec-missing", """printf '[nvidia-container-runtime]\\nmode = "cdi"\\n' >"$T/config.toml" """),
]

CONTAINERS = [
    container("asks-for-nothing", severity="note"),
    container("request-foreign", "NVIDIA_VISIBLE_DEVICES=amd.com/gpu=0", severity="warning"),
    container("device-unknown", "NVIDIA_VISIBLE_DEVICES=7"),
    container("request-refused", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all"),
    container("request-refused", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=5"),
    container("request-malformed", "NVIDIA_VISIBLE_DEVICES=all", "BROKEN"),
    container("request-partly-ignored", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=all", severity="warning"),
    container(
        "request-partly-ignored",
        "NVIDIA_VISIBLE_DEVICES=all",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
        severity="warning",
    ),
    container("host-lacks", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MEMORY_LIMIT=8G"),
    container("host-lacks", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled"),
    container(
        "capabilities-without-compute",
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_DRIVER_CAPABILITIES=video",
        severity="note",
    ),
    container("requirement-unsatisfied", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=13.0"),
    container("requirement-malformed", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>>13.0"),
    Fault(
        "request-ignored",
        BUNDLE.format(env='"NVIDIA_VISIBLE_DEVICES=all"')
        + 'echo "accept-nvidia-visible-devices-envvar-when-unprivileged = false" >"$T/config.toml"',
        arguments='--container "$T/bundle"',
        severity="warning",
    ),
    Fault(
        "host-lacks",
        BUNDLE.format(env='"NVIDIA_VISIBLE_DEVICES=0:0"') + "rm /proc/driver/nvidia/capabilities/gpu0/mig/gi1/access",
        machine="driver: {}\ngpus: [{model: h100, mig: [3g.40gb, 3g.40gb]}]",
        arguments='--container "$T/bundle"',
    ),
    Fault(
        "container-unreadable",
        'mkdir "$T/bundle"; echo "{" >"$T/bundle/config.json"',
        arguments='--container "$T/bundle"',
    ),
]

EXIT_CODES = {"note": 0, "warning": 8, "error": 9}


def examine(bench: Bench, fault: Fault) -> None:
    """Plant the fault, run doctor, and compare names, severity and exit code."""
    script = f"{fault.script}\nset +e\nnvinject doctor --json {fault.arguments}"
    done = bench.run(script, machine=fault.machine, alone=True)
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert {finding["name"] for finding in document["findings"]} == {fault.name}, document["findings"]
    assert document["worst"] == fault.severity
    assert done.returncode == EXIT_CODES[fault.severity]
    for finding in document["findings"]:
        assert all(finding[key] for key in ("what", "why", "remedy"))


@pytest.mark.parametrize("fault", MACHINE, ids=lambda fault: fault.name)
def test_a_fault_of_the_machine_is_found_by_name(bench: Bench, fault: Fault) -> None:
    """Bus, module, versions, nodes, NVML."""
    examine(bench, fault)


@pytest.mark.parametrize("fault", SERVICES, ids=lambda fault: fault.name)
def test_a_fault_of_the_services_is_found_by_name(bench: Bench, fault: Fault) -> None:
    """Installation, engines, CDI specs."""
    examine(bench, fault)


@pytest.mark.parametrize("fault", CONTAINERS, ids=lambda fault: fault.name)
def test_a_fault_of_a_container_is_found_by_name(bench: Bench, fault: Fault) -> None:
    """Options and requirements."""
    examine(bench, fault)


HEALTHY = {
    "two": (TWO_H100, ""),
    "mig": ("driver: {}\ngpus: [{model: h100, mig: [3g.40gb, 3g.40gb]}]", ""),
    "proprietary module": ("driver: {open: false}\ngpus: [{model: t4}]", ""),
    "with specs": (TWO_H100, SPEC),
    "docker": (
        TWO_H100,
        DOCKER
        + """echo '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}' >/etc/docker/daemon.json
        touch -d 2020-01-01 /etc/docker/daemon.json\n"""
        + DAEMON.format(name="dockerd", pid="docker.pid"),
    ),
    "k3s": (TWO_H100, EMBEDDED.format(directory=RANCHER.format(name="k3s")) + DROP_IN.format(when="2020-01-01")),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_on_a_healthy_machine(bench: Bench, name: str) -> None:
    """Exit code 0, and every layer was looked at."""
    machine, script = HEALTHY[name]
    bundle = BUNDLE.format(env='"NVIDIA_VISIBLE_DEVICES=all"')
    done = bench.run(f'{script}\n{bundle}nvinject doctor --json --container "$T/bundle"', machine=machine, alone=True)
    document = json.loads(done.stdout)
    assert document["findings"] == []
    assert document["layers"][0] == "bus"
    assert len(document["layers"]) == 11
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["jetson-orin", "jetson-thor", "igx-orin"])
def test_nothing_is_wrong_on_a_healthy_tegra_system(bench: Bench, name: str) -> None:
    """It has neither a package's libraries nor the usual nodes; what its lists name beyond this board is a note."""
    machine = (Path(nvfakes.__file__).parent / "machines" / f"{name}.yaml").read_text()
    bundle = BUNDLE.format(env='"NVIDIA_VISIBLE_DEVICES=all"')
    done = bench.run(f'{bundle}nvinject doctor --json --container "$T/bundle"', machine=machine, alone=True)
    document = json.loads(done.stdout)
    assert [finding for finding in document["findings"] if finding["severity"] != "note"] == []
    assert {"module", "versions", "nodes", "nvml", "container", "image"} <= set(document["layers"])
    assert done.returncode == 0


DAMAGE = [
    ("toolkit-incomplete", 'rm "$PREFIX/bin/nvidia-ctk"'),
    ("toolkit-changed", 'echo "# mine" >>"$PREFIX/bin/nvinject"'),
    ("toolkit-broken", """sed -i '1s,.*,#!/nowhere/python -IS,' "$PREFIX/bin/nvinject" """),
]


@pytest.mark.parametrize(("name", "script"), DAMAGE)
def test_a_damaged_installation_is_found(own_bench: Bench, name: str, script: str) -> None:
    """The launcher that is examined may be broken, so another one runs doctor."""
    done = own_bench.run(f"{script}\nset +e\n$PYTHON -m nvinject doctor --json", alone=True)
    assert [finding["name"] for finding in json.loads(done.stdout)["findings"]] == [name]


ACCESS = [
    ("container-device-denied", LIST, "/sys/fs/cgroup/devices/nvinject-$$"),
    (
        "container-device-fleeting",
        LIST
        + """echo 'c 195:* rwm' >"$group/devices.allow"
        mount -t tmpfs none /run/systemd; unit=/run/systemd/transient/$(basename "$group").d
        mkdir -p "$unit"; printf '[Scope]\\nDeviceAllow=\\nDeviceAllow=/dev/char/1:3 rwm\\n' >"$unit/50-Devices.conf"
        """,
        "/sys/fs/cgroup/devices/nvinject-$$.scope",
    ),
]


@pytest.mark.parametrize(("name", "rules", "group"), ACCESS)
def test_a_container_that_may_not_open_its_gpu_is_found(bench: Bench, name: str, rules: str, group: str) -> None:
    """Device rules of cgroup version 1, and what systemd would make of them."""
    if bench.run("test -w /sys/fs/cgroup/devices/devices.allow && test -x /bin/busybox").returncode != 0:
        pytest.skip("needs the devices controller of cgroup v1, writable, and busybox-static")
    script = NODE_IN_CONTAINER.format(group=group, rules=rules)
    done = bench.run(f'{script}\nset +e\nnvinject doctor --json; kill $container; wait; rmdir "$group"', alone=True)
    assert [finding["name"] for finding in json.loads(done.stdout)["findings"]] == [name], done.stderr


@pytest.mark.parametrize(("result", "names"), [(0, ["container-device-denied"]), (1, [])])
def test_device_programs_are_read(bench: Bench, result: int, names: list[str]) -> None:
    """Cgroup version 2 has no list; what its program says about the GPU is computed."""
    group = "/sys/fs/cgroup/nvinject-$$"
    tried = bench.run(f"{UNIFIED}group={group}; mkdir $group; {PROGRAM.format(result=0)} rmdir $group", alone=True)
    if tried.returncode != 0:
        pytest.skip(f"no device program can be loaded: {(tried.stderr.strip().splitlines() or ['it fails'])[-1]}")
    script = UNIFIED + NODE_IN_CONTAINER.format(group=group, rules=PROGRAM.format(result=result))
    done = bench.run(f'{script}\nset +e\nnvinject doctor --json; kill $container; wait; rmdir "$group"', alone=True)
    assert [finding["name"] for finding in json.loads(done.stdout)["findings"]] == names, done.stderr


def test_an_ordinary_user_learns_the_same_about_the_machine(bench: Bench) -> None:
    """Nothing needs root that is open to everybody."""
    user = "NVIDIA_CTK_CONFIG_FILE_PATH=/dev/null setpriv --reuid=65534 --regid=65534 --clear-groups $PYTHON"
    if bench.run(f"{user} -m nvinject --version && {user} -c 'import pynvml'").returncode != 0:
        pytest.skip("needs setpriv, and an interpreter and modules that other users can read")
    layers = "--layer bus --layer module --layer versions --layer nodes --layer nvml --layer cgroup"
    done = bench.run(f"{user} -m nvinject doctor --json {layers}", alone=True)
    assert json.loads(done.stdout)["findings"] == []
    done = bench.run(f"chmod 600 /dev/nvidia0; set +e; {user} -m nvinject doctor --json {layers}", alone=True)
    assert [finding["name"] for finding in json.loads(done.stdout)["findings"]] == ["node-permissions"]
