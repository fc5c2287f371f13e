"""The Kubernetes manifests: right by the API's own schemas, and consistent with each other and with the image.

Belongs here: what can be read. Does not belong here: running the image (test_node.py). No cluster is needed: the
schemas are those of the package kubernetes-validate.
"""

import copy
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvconform.required import give_up

from .freshroot import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "kubernetes"
KUSTOMIZATIONS = (FOLDER, FOLDER / "uninstall")
VERSIONS = ("1.28", "1.37")
SECONDS = 60
# Settings of a Helm chart, and of kustomize, whose schema is not Kubernetes'.
OTHERS = {FOLDER / "device-plugin" / "values.yaml", *(folder / "kustomization.yaml" for folder in KUSTOMIZATIONS)}
MANIFESTS = sorted(path for path in FOLDER.rglob("*.yaml") if path not in OTHERS)

Manifest = dict[str, Any]


def read(path: Path) -> Manifest:
    """Return the manifest of a file, which has one."""
    document: Manifest = yaml.safe_load(path.read_text())
    return document


def find_validator() -> Any:
    """Return the module that has the API's schemas."""
    try:
        return importlib.import_module("kubernetes_validate")
    except ImportError as error:
        give_up("lint", f"{error}; install the extra kubernetes")


def validate(document: Manifest, version: str) -> None:
    """Check a manifest with the API's schema, unknown fields included; raises ValidationError."""
    find_validator().validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_manifest_fits_the_schema(path: Path, version: str) -> None:
    """The oldest version that is looked at, and the newest."""
    validate(read(path), version)


def _pod(document: Manifest) -> Manifest:
    spec: Manifest = document["spec"]["template"]["spec"]
    return spec


MISTAKES: dict[str, tuple[str, Callable[[Manifest], object]]] = {
    "unknown field of a volume": (
        "daemonset.yaml",
        lambda document: _pod(document)["volumes"][0]["hostPath"].update(pth="/"),
    ),
    "word in place of a truth value": (
        "daemonset.yaml",
        lambda document: _pod(document)["containers"][0]["securityContext"].update(privileged="yes"),
    ),
    "field of a Deployment": ("daemonset.yaml", lambda document: document["spec"].update(replicas=2)),
    "no selector": ("daemonset.yaml", lambda document: document["spec"].pop("selector")),
    "container without a name": ("daemonset.yaml", lambda document: _pod(document)["containers"][0].pop("name")),
    "number in place of text": ("configmap.yaml", lambda document: document["data"].update({"config.toml": 7})),
    "no handler": ("runtimeclass.yaml", lambda document: document.pop("handler")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str) -> None:
    """By the same check that the manifests pass."""
    validator = find_validator()
    path, plant = MISTAKES[name]
    document = read(FOLDER / path)
    broken = copy.deepcopy(document)
    plant(broken)
    assert broken != document
    with pytest.raises(validator.ValidationError):
        validate(broken, VERSIONS[-1])


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda folder: folder.name)
def test_a_kustomization_lists_its_folder(folder: Path) -> None:
    """Each manifest once."""
    listed = read(folder / "kustomization.yaml")["resources"]
    assert sorted(listed) == sorted(path.name for path in MANIFESTS if path.parent == folder)


def containers() -> list[tuple[str, Manifest, Manifest]]:
    """Return file, pod and container of every container of ours."""
    found = []
    for path in (FOLDER / "daemonset.yaml", FOLDER / "uninstall" / "daemonset.yaml"):
        pod = _pod(read(path))
        found += [(path.parent.name, pod, one) for one in [*pod.get("initContainers", []), *pod["containers"]]]
    return found


@pytest.mark.parametrize(
    ("_", "pod", "container"),
    containers(),
    ids=lambda value: value.get("name", "") if isinstance(value, dict) else value,
)
def test_what_a_container_refers_to_is_there(_: str, pod: Manifest, container: Manifest) -> None:
    """Volumes of the pod, a command of the image, variables that the command reads."""
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
    script = (FOLDER / "image" / "nvinject-node").read_text()
    if container["command"][0].endswith("nvinject-node"):
        assert f"\n{container['command'][1]})" in script
    for variable in container.get("env", []):
        assert variable["name"] in script
    assert container["image"].rpartition(":")[2] == _version()


def _version() -> str:
    command = [sys.executable, "-m", "nvinject", "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


def test_names_agree() -> None:
    """ConfigMap, runtime class, handler, namespace, image, and what the device plugin is told."""
    pod, plugin = _pod(read(FOLDER / "daemonset.yaml")), _pod(read(FOLDER / "device-plugin" / "daemonset.yaml"))
    values = read(FOLDER / "device-plugin" / "values.yaml")
    config = read(FOLDER / "configmap.yaml")
    runtime_class = read(FOLDER / "runtimeclass.yaml")
    assert {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} == {
        config["metadata"]["name"]
    }
    assert runtime_class["handler"] == "nvidia"  # what `nvinject runtime configure` calls the runtime
    users = (plugin, values, read(FOLDER / "device-plugin" / "pod.yaml")["spec"])
    assert {user["runtimeClassName"] for user in users} == {runtime_class["metadata"]["name"]}
    namespaced = [read(path) for path in MANIFESTS if "namespace" in read(path)["metadata"]]
    assert {one["metadata"]["namespace"] for one in namespaced} == {read(FOLDER / "namespace.yaml")["metadata"]["name"]}
    given = dict(word.removeprefix("--").split("=", 1) for word in plugin["containers"][0]["args"])
    assert given == {
        "device-list-strategy": values["deviceListStrategy"],
        "device-id-strategy": values["deviceIDStrategy"],
        "nvidia-driver-root": values["nvidiaDriverRoot"],
        "nvidia-cdi-hook-path": values["cdi"]["nvidiaHookPath"],
    }
    images = read(FOLDER / "kustomization.yaml")["images"]
    assert {f"{one['name']}:{one['newTag']}" for one in images} == {
        container["image"] for *_, container in containers()
    }


def test_the_configuration_of_nodes_is_right(tmp_path: Path) -> None:
    """No key is unknown, and no value impossible."""
    file = tmp_path / "config.toml"
    file.write_text(read(FOLDER / "configmap.yaml")["data"]["config.toml"])
    done = subprocess.run(
        [sys.executable, "-m", "nvinject", "config", "validate", "--config-file", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, f"{file} is right\n")
