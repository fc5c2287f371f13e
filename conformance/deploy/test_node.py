"""The node image, built by its Dockerfile and run by docker as the DaemonSet runs it, against the root of a fake node.

Belongs here: what nodes look like before and after. Does not belong here: the manifests themselves
(test_kubernetes.py). What is not checked here: pulling the image, and a kubelet.
"""

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvconform.required import give_up
from nvfakes import declaration, tree
from toolbox.conftest import Bench

from .nodeimage import BaseError, build_base, lay_out_context
from .test_kubernetes import FOLDER, read

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("deploy")]

# A node: an init script's shell, a systemctl that writes down what it is asked, containerd's configuration, a driver.
NODE = """\
unset NVIDIA_CTK_CONFIG_FILE_PATH; host=$T/host
mkdir $host; mount --bind $host $host; mount --make-shared $host
for name in bin etc/containerd var/lib var/run run tmp opt proc sys dev; do mkdir -p $host/$name; done
cp /bin/busybox $host/bin/sh; cp -a $T/machine/usr $host/usr; mkdir -p $host/usr/bin $host/usr/sbin
printf '#!/bin/sh\\necho "$@" >>/restarts\\n' >$host/usr/bin/systemctl; chmod 755 $host/usr/bin/systemctl
printf '# mine\\nversion = 2\\n' >$host/etc/containerd/config.toml
for name in proc sys dev; do mount --rbind /$name $host/$name; done
list() { find $host -xdev -type f -o -xdev -type l | sort | xargs cksum 2>/dev/null; find $host -xdev -type d | sort; }
list >$T/before
"""
DOCKER = """\
mount -t tmpfs none /var/lib
dockerd --host "unix://$T/s" --pidfile "$T/pid" --data-root "$T/data" --exec-root "$T/exec" --iptables=false \\
    --bridge=none --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent=/nvinject-node >"$T/log" 2>&1 &
export DOCKER_HOST="unix://$T/s" DOCKER_CONFIG="$T" DOCKER_BUILDKIT=0
for _ in $(seq 300); do docker version >/dev/null 2>&1 && break; kill -0 $! || break; sleep 0.2; done
docker import "$T/base.tar" base >/dev/null || { tail "$T/log" >&2; exit 1; }
docker build --quiet --network none --build-arg BASE=base --file "$T/context/deploy/kubernetes/image/Dockerfile" \\
    --tag IMAGE "$T/context" >"$T/built" 2>&1 || { cat "$T/built" >&2; exit 1; }
"""
STOP = """\
kill $(cat "$T/pid"); wait
find /sys/fs/cgroup -depth -type d -path '*/nvinject-node*' -exec rmdir {} + 2>/dev/null || true
"""


def container(manifest: str, name: str) -> dict[str, Any]:
    """Return a container of a manifest."""
    pod = read(FOLDER / manifest)["spec"]["template"]["spec"]
    found: dict[str, Any] = next(one for one in [*pod["initContainers"], *pod["containers"]] if one["name"] == name)
    return found


def docker_run(one: dict[str, Any], *options: str) -> str:
    """Return the command line by which docker runs what a pod's container is."""
    places = {"host-root": "$T/host:{}:rslave", "config": "$T/config:{}:ro"}
    words = ["docker run --rm --network none"]
    if one["securityContext"]["privileged"]:
        # Not --privileged: a machine for tests may lack one of the capabilities that this gives.
        words += ["--cap-add SYS_ADMIN --cap-add SYS_CHROOT --cap-add MKNOD --security-opt seccomp=unconfined"]
        words += ["--device-cgroup-rule 'c *:* rwm'"]
    words += [f"-e {shlex.quote(variable['name'] + '=' + variable['value'])}" for variable in one["env"]]
    words += [f"-v {places[mount['name']].format(mount['mountPath'])}" for mount in one["volumeMounts"]]
    program, *arguments = one["command"]
    return " ".join([*words, *options, f"--entrypoint {program}", one["image"], *arguments])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tar of the base image."""
    path = tmp_path_factory.mktemp("base") / "base.tar"
    try:
        path.write_bytes(build_base())
    except BaseError as error:
        give_up("docker", str(error))
    return path


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short name: containerd's sockets are in it, and their paths have at most 107 bytes."""
    found = Path(tempfile.mkdtemp(prefix="nvnode-", dir="/tmp"))
    yield found
    shutil.rmtree(found)


@pytest.fixture
def node(folder: Path, package: Path, base: Path, can_be_root: str) -> Bench:
    """Return a machine with the files that a node and the image are made of."""
    if can_be_root:
        give_up("root", f"a fake machine at the real paths needs root: {can_be_root}")
    (folder / "base.tar").symlink_to(base)
    lay_out_context(folder / "context", package)
    tree.write_tree(declaration.load("two-h100"), folder / "machine")
    (folder / "config").mkdir()
    (folder / "config" / "config.toml").write_text(read(FOLDER / "configmap.yaml")["data"]["config.toml"])
    return Bench(folder, folder)


def test_a_node_is_installed_kept_refreshed_and_left(node: Bench) -> None:
    """The DaemonSet's own commands; a second run changes nothing, and afterwards everything is as it was."""
    install, refresh = container("daemonset.yaml", "install"), container("daemonset.yaml", "cdi-refresh")
    uninstall = container("uninstall/daemonset.yaml", "uninstall")
    image = install["image"]
    look = "cat $host/restarts; cksum <$host/etc/nvidia-container-runtime/config.toml; cksum <$T/config/config.toml\n"
    script = (
        NODE
        + DOCKER.replace("IMAGE", image)
        # Two versions of before: the newer one stays, because a container that is starting may run it.
        + "mkdir -p $host/opt/nvinject/versions/older $host/opt/nvinject/versions/old\n"
        + "echo old >$host/opt/nvinject/current\n"
        + f"{docker_run(install)}\n{look}ls $host/opt/nvinject/versions; echo ---\n"
        + "list >$T/first\n"
        + f"{docker_run(install)}\nlist >$T/second; diff $T/first $T/second >&2; cat $host/restarts; echo ---\n"
        # The node's own Python is not there, and what was installed needs none.
        + "chroot $host /opt/nvinject/bin/nvidia-ctk --version\n"
        + "chroot $host /opt/nvinject/bin/nvidia-container-cli list -b\n"
        + f"echo ---\n{docker_run(refresh, '--detach --name refresh')} >/dev/null\n"
        + "for _ in $(seq 100); do [ -s $host/var/run/cdi/nvidia.yaml ] && break; sleep 0.2; done\n"
        + "docker logs refresh >&2; docker rm -f refresh >/dev/null\n"
        + "cp $host/var/run/cdi/nvidia.yaml $T/spec.yaml; cp $host/etc/containerd/conf.d/99-nvidia.toml $T/dropin\n"
        + f"{docker_run(uninstall)}\ncat $host/restarts; rm $host/restarts; rmdir $host/var/run/cdi; list >$T/after\n"
        + f"diff $T/before $T/after\n{STOP}"
    )
    done = node.run(script, alone=True)
    assert done.stdout.count("---\n") == 3, done.stdout + done.stderr
    first, second, programs, last = done.stdout.split("---\n")
    restart = "restart containerd"
    assert first.splitlines()[0] == restart, done.stderr
    assert first.splitlines()[1] == first.splitlines()[2]
    assert first.splitlines()[3].startswith("0.")
    assert first.splitlines()[4:] == ["old"]
    assert second.splitlines() == [restart], done.stderr
    assert programs.splitlines()[0].startswith("NVIDIA Container Toolkit CLI version")
    assert "/usr/bin/nvidia-smi" in programs
    spec = yaml.safe_load((node.folder / "spec.yaml").read_text())
    assert [device["name"] for device in spec["devices"]][:2] == ["0", "1"]
    assert {hook["path"] for hook in spec["containerEdits"]["hooks"]} == {"/opt/nvinject/bin/nvidia-cdi-hook"}
    dropin = (node.folder / "dropin").read_text()
    assert 'BinaryName = "/opt/nvinject/bin/nvidia-container-runtime"' in dropin
    assert "enable_cdi = true" in dropin
    assert last.splitlines() == [restart, restart], done.stderr
    assert done.returncode == 0


def test_what_was_lost_or_changed_is_put_right(node: Bench) -> None:
    """The container `keep`: a link that somebody removed comes back, a changed ConfigMap arrives, an end is an end."""
    keep = container("daemonset.yaml", "keep")
    lost, target = "$host/opt/nvinject/bin/nvidia-ctk", "$host/etc/nvidia-container-runtime/config.toml"
    wait = "for _ in $(seq 150); do {} && break; sleep 0.2; done\n"
    script = (
        NODE
        + DOCKER.replace("IMAGE", keep["image"])
        + f"{docker_run(keep, '--detach --name keep -e NVINJECT_INTERVAL=1')} >/dev/null\n"
        + wait.format("[ -s $host/restarts ]")
        + f"rm {lost}; "
        + wait.format(f"[ -L {lost} ]")
        + f"ls {lost}; sed -i 's/disable-require = false/disable-require = true/' $T/config/config.toml\n"
        + wait.format(f"grep -q 'disable-require = true' {target}")
        + f"grep disable-require {target}; wc -l <$host/restarts; date +%s >$T/begin\n"
        + "docker stop --time 60 keep >/dev/null; echo $(($(date +%s) - $(cat $T/begin)))\n"
        + STOP
    )
    done = node.run(script, alone=True)
    link, setting, restarts, seconds = done.stdout.splitlines()
    assert link.endswith("/bin/nvidia-ctk"), done.stderr
    assert (setting, restarts) == ("disable-require = true", "1")
    assert int(seconds) < 30


def test_a_wrong_configuration_leaves_the_node_alone(node: Bench) -> None:
    """Neither files nor a restart: containers of the node would not start any more."""
    install = container("daemonset.yaml", "install")
    (node.folder / "config" / "config.toml").write_text("disable-require = maybe\n")
    script = (
        NODE
        + DOCKER.replace("IMAGE", install["image"])
        + f"set +e; {docker_run(install)}; echo $?; list >$T/after; diff $T/before $T/after; {STOP}"
    )
    done = node.run(script, alone=True)
    assert done.stdout == "1\n", done.stderr
    assert "/etc/nvinject/config.toml, line 1" in done.stderr
