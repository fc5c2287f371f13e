"""Modes of the runtime shim: sources of devices, their precedence, and what config.toml's mode leads to."""

import pytest

from nvinject.core.mode import (
    annotated_devices,
    find_asked,
    might_name_devices,
    names_own_devices,
    plain_devices,
    qualify,
    resolve_mode,
)
from nvinject.core.policy import Policy
from nvinject.core.sources import MOUNT_PREFIX, Asked, ContainerSpec
from nvinject.errors import ConfigurationError, NvinjectError, RequestError

GPU0, GPU1 = "nvidia.com/gpu=0", "nvidia.com/gpu=1"
JIT0, JIT1 = "runtime.nvidia.com/gpu=0", "runtime.nvidia.com/gpu=1"

ANNOTATIONS = [
    ((), ("cdi.k8s.io/",), ()),
    ((("cdi.k8s.io/b", GPU1), ("cdi.k8s.io/a", f"{GPU0},{GPU1}")), ("cdi.k8s.io/",), (GPU0, GPU1)),
    ((("cdi.k8s.io/a", f"{GPU0}, {GPU1},"),), ("cdi.k8s.io/",), (GPU0, f" {GPU1}")),
    ((("other/a", GPU0),), ("cdi.k8s.io/",), ()),
    ((("other/a", GPU0),), ("cdi.k8s.io/", "other/"), (GPU0,)),
    ((("cdi.k8s.io/a", GPU0),), (), ()),
]


@pytest.mark.parametrize(("annotations", "prefixes", "expected"), ANNOTATIONS)
def test_annotated_devices(
    annotations: tuple[tuple[str, str], ...], prefixes: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert annotated_devices(annotations, prefixes) == expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("cdi.k8s.io/x", "anything", True),
        ("other/x", GPU0, True),
        ("other/x", f"a,{GPU0}", True),
        ("other/x", "a=b", False),
        ("io.kubernetes.cri.sandbox-id", "4711", False),
    ],
)
def test_might_name_devices(key: str, value: str, expected: bool) -> None:
    assert might_name_devices(((key, value),)) is expected


def container(environment: str = "", mount: str = "") -> ContainerSpec:
    mounts = (("/dev/null", f"{MOUNT_PREFIX}/{mount}"),) if mount else ()
    return ContainerSpec(environment=(f"NVIDIA_VISIBLE_DEVICES={environment}",), mounts=mounts)


MOUNTS: dict[str, object] = {"accept_volume_mounts": True}
# annotation, mount, environment, policy, the devices found
ASKED: list[tuple[str, str, str, dict[str, object], tuple[str, ...] | None]] = [
    ("", "", "", {}, None),
    ("", "", "0", {}, ("0",)),
    ("", "1", "0", {}, ("0",)),
    ("", "1", "0", MOUNTS, ("1",)),
    (GPU0, "1", "2", MOUNTS, (GPU0,)),
    (GPU0, "", "", {}, (GPU0,)),
    ("0", "", "", {}, None),
    ("0", "", "1", {}, ("1",)),
    ("0", "", "1", {"mode": "cdi"}, ("0",)),
    (GPU0, "", "1", {"mode": "jit-cdi"}, ("1",)),
    (GPU0, "", "1", {"mode": "legacy"}, ("1",)),
    ("", f"cdi/{GPU0}", "", MOUNTS, (GPU0,)),
    ("", "cdi/nvidia.com/gpu/1", "", MOUNTS, (GPU1,)),
    (GPU0, "", "void", {}, (GPU0,)),
    ("", "", f"{GPU0},{GPU0}", {}, (GPU0,)),
    ("", "", "0", {"accept_envvar_unprivileged": False}, None),
    (GPU0, "", "0", {"accept_envvar_unprivileged": False}, (GPU0,)),
]


@pytest.mark.parametrize(("annotation", "mount", "environment", "policy", "expected"), ASKED)
def test_which_source_says_what_is_asked(
    annotation: str, mount: str, environment: str, policy: dict[str, object], expected: tuple[str, ...] | None
) -> None:
    annotations = (("cdi.k8s.io/x", annotation),) if annotation else ()
    asked = find_asked(container(environment, mount), annotations, Policy().replace(**policy))
    assert (None if asked is None else asked.devices) == expected


# mode of config.toml, devices, mode that is carried out
RESOLVED = [
    ("auto", ("0",), "jit"),
    ("auto", ("all",), "jit"),
    ("auto", (GPU0,), "cdi"),
    ("auto", ("0", GPU1), "cdi"),
    ("auto", (JIT0, JIT1), "jit"),
    ("jit", ("0",), "jit"),
    ("jit-cdi", ("0",), "jit"),
    ("jit-cdi", (GPU0,), "cdi"),
    ("cdi", ("0",), "cdi"),
    ("cdi", (JIT0,), "jit"),
    ("csv", ("0",), "csv"),
    ("csv", ("all",), "csv"),
    ("csv", (JIT0,), "csv"),
    ("csv", (GPU0,), "cdi"),
    ("legacy", ("0",), "legacy"),
    ("legacy", (GPU0,), "legacy"),
]


@pytest.mark.parametrize(("mode", "devices", "expected"), RESOLVED)
def test_resolve_mode(mode: str, devices: tuple[str, ...], expected: str) -> None:
    assert resolve_mode(Asked(devices=devices, source="test"), Policy(mode=mode)) == expected


@pytest.mark.parametrize(
    ("mode", "devices", "kind", "words"),
    [
        ("bogus", ("0",), ConfigurationError, "'bogus'"),
        ("auto", (JIT0, GPU1), RequestError, f"{GPU1}"),
        ("cdi", (JIT0, "1", "2"), RequestError, "cannot be combined with '1'"),
    ],
)
def test_refused_modes(mode: str, devices: tuple[str, ...], kind: type[NvinjectError], words: str) -> None:
    with pytest.raises(kind) as caught:
        resolve_mode(Asked(devices=devices, source="test"), Policy(mode=mode))
    assert words in str(caught.value)


def test_qualified_names_become_plain_ones() -> None:
    assert qualify(("0", GPU1, "0", "GPU-1"), "nvidia.com/gpu") == (GPU0, GPU1, "nvidia.com/gpu=GPU-1")
    assert plain_devices((JIT0, JIT1, JIT0, "all")) == ("0", "1", "all")


AMD, HABANA = "amd.com/gpu=0", "habana.ai/gaudi=3"
# annotation, mount, environment, policy, the devices found, those of others
FOREIGN: list[tuple[str, str, str, dict[str, object], tuple[str, ...] | None, tuple[str, ...]]] = [
    (AMD, "", "", {}, None, ()),
    (AMD, "", "", {"mode": "cdi"}, None, ()),
    (AMD, "", "", {"cdi_default_kind": "amd.com/gpu"}, (AMD,), ()),
    (f"{AMD},{GPU0}", "", "", {}, (GPU0,), ()),
    (f"{AMD},{JIT0}", "", "", {}, (JIT0,), ()),
    (AMD, "", "0", {}, ("0",), ()),
    (AMD, "", "all", {"mode": "cdi"}, ("all",), ()),
    ("", "", AMD, {}, None, ()),
    ("", "", AMD, {"mode": "cdi"}, None, ()),
    ("", "", f"1,{AMD},{HABANA}", {}, ("1",), (AMD, HABANA)),
    ("", f"cdi/{AMD}", "", MOUNTS, None, ()),
    ("", f"cdi/{AMD}", "0", MOUNTS, ("0",), ()),
    ("", "", "management.nvidia.com/gpu=all", {}, ("management.nvidia.com/gpu=all",), ()),
    ("", "", "k8s.device-plugin.nvidia.com/gpu=0", {}, ("k8s.device-plugin.nvidia.com/gpu=0",), ()),
    ("", "", "notnvidia.com/gpu=0", {}, None, ()),
]


@pytest.mark.parametrize(("annotation", "mount", "environment", "policy", "expected", "foreign"), FOREIGN)
def test_devices_of_other_vendors_are_left_alone(
    annotation: str,
    mount: str,
    environment: str,
    policy: dict[str, object],
    expected: tuple[str, ...] | None,
    foreign: tuple[str, ...],
) -> None:
    annotations = (("cdi.k8s.io/x", annotation),) if annotation else ()
    asked = find_asked(container(environment, mount), annotations, Policy().replace(**policy))
    assert (None if asked is None else asked.devices) == expected
    assert (() if asked is None else asked.foreign) == foreign


OWN = [
    (("cdi.k8s.io/x", GPU0), True),
    (("cdi.k8s.io/x", AMD), False),
    (("cdi.k8s.io/x", f"{AMD},{GPU0}"), True),
    (("cdi.k8s.io/x", "0"), True),  # of the default kind, in mode cdi
    (("cdi.k8s.io/x", ""), False),
    (("other/x", GPU0), False),
]


@pytest.mark.parametrize(("annotation", "expected"), OWN)
def test_names_own_devices(annotation: tuple[str, str], *, expected: bool) -> None:
    assert names_own_devices((annotation,)) is expected
