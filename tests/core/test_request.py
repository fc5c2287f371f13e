"""The request: precedence, gates, capabilities, requirements, and the promise of might_ask."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvinject.core.policy import DRIVER_CAPABILITIES, Features, Policy
from nvinject.core.request import (
    ContainerRequest,
    gate_warning,
    ignored_warning,
    parse_environment,
    read_extras,
    read_request,
    read_requirements,
)
from nvinject.core.sources import ContainerSpec, might_ask
from nvinject.errors import InputError, NvinjectError, RequestError

PREFIX = "/var/run/nvidia-container-devices"
MOUNTS = Policy(accept_volume_mounts=True)
GATED = Policy(accept_envvar_unprivileged=False)
SWARM = Policy(swarm_resource=("DOCKER_RESOURCE_GPU", "SECOND"))


def read(
    *environment: str,
    policy: Policy | None = None,
    privileged: bool = False,
    mounts: tuple[tuple[str, str], ...] = (),
) -> ContainerRequest | None:
    spec = ContainerSpec(environment=environment, mounts=mounts, privileged=privileged)
    return read_request(spec, policy or Policy())


def granted(*environment: str, **more: Any) -> ContainerRequest:
    request = read(*environment, **more)
    assert request is not None
    return request


def refused(*environment: str, **more: Any) -> NvinjectError:
    with pytest.raises(NvinjectError) as caught:
        read(*environment, **more)
    assert str(caught.value).isprintable()
    return caught.value


def null(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple(("/dev/null", f"{PREFIX}/{name}") for name in names)


# Devices by environment; None: no request. Public case 5, observed 01 to 09.
DEVICES = [
    ("NVIDIA_VISIBLE_DEVICES=all", ("all",)),
    ("NVIDIA_VISIBLE_DEVICES=0", ("0",)),
    ("NVIDIA_VISIBLE_DEVICES= 0 ,2,,", ("0", "2")),
    ("NVIDIA_VISIBLE_DEVICES=0,void", None),
    ("NVIDIA_VISIBLE_DEVICES=all,void", None),
    ("NVIDIA_VISIBLE_DEVICES=", None),
    ("NVIDIA_VISIBLE_DEVICES= , ,", None),
    ("NVIDIA_VISIBLE_DEVICES=void", None),
    ("NVIDIA_VISIBLE_DEVICES=none", ("none",)),
    ("NVIDIA_VISIBLE_DEVICES=0,none", ("none",)),
    ("NVIDIA_VISIBLE_DEVICES=none,all", ("none",)),
    ("NVIDIA_VISIBLE_DEVICES=all,none", ("all",)),
    ("NVIDIA_VISIBLE_DEVICES=3,all,none", ("all",)),
    ("NVIDIA_VISIBLE_DEVICES=ALL,NONE", ("ALL", "NONE")),
    ("NVIDIA_VISIBLE_DEVICES=1,0,1,0", ("1", "0")),
    ("NVIDIA_VISIBLE_DEVICES=GPU-1=x", ("GPU-1=x",)),
    ("NVIDIA_VISIBLE_DEVICES=MIG-GPU-1/2/0", ("MIG-GPU-1/2/0",)),
    ("nvidia_visible_devices=all", None),
    ("OTHER=all", None),
]


@pytest.mark.parametrize(("entry", "devices"), DEVICES)
def test_devices_by_environment(entry: str, devices: tuple[str, ...] | None) -> None:
    request = read("PATH=/bin", entry)
    assert (request.devices if request else None) == devices
    assert might_ask(ContainerSpec(environment=(entry,))) is (devices is not None)


def test_the_last_duplicate_counts() -> None:
    assert granted("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1").devices == ("1",)
    assert read("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void") is None


def test_nothing_asked() -> None:
    assert read() is None
    assert not might_ask(ContainerSpec())
    assert might_ask(ContainerSpec(), None)  # the swarm-resource names are not known


def test_an_entry_without_equals_sign_is_named() -> None:
    error = refused("NVIDIA_VISIBLE_DEVICES=all", "BRO\nKEN")
    assert isinstance(error, InputError)
    assert r"'BRO\nKEN'" in error.message
    with pytest.raises(InputError):
        parse_environment(("A",))
    assert parse_environment(("A=1=2", "=x", "A=")) == {"A": "", "": "x"}


def test_an_entry_without_equals_sign_is_no_matter_without_a_request() -> None:
    assert read("BROKEN") is None
    assert not might_ask(ContainerSpec(environment=("BROKEN", "NVIDIA_VISIBLE_DEVICES")))


# environment, devices; policy SWARM
SWARM_TABLE = [
    (("DOCKER_RESOURCE_GPU=0",), ("0",)),
    (("DOCKER_RESOURCE_GPU=0", "NVIDIA_VISIBLE_DEVICES=all"), ("0",)),
    (("SECOND=2,0", "DOCKER_RESOURCE_GPU=1,0"), ("1", "0", "2")),
    (("NVIDIA_VISIBLE_DEVICES=all",), ("all",)),
    (("DOCKER_RESOURCE_GPU=", "NVIDIA_VISIBLE_DEVICES=all"), None),
    (("DOCKER_RESOURCE_GPU=void", "SECOND=1"), None),
    (("CUDA_VERSION=11.0", "SECOND="), None),
    (("CUDA_VERSION=11.0",), ("all",)),
]


@pytest.mark.parametrize(("environment", "devices"), SWARM_TABLE)
def test_swarm_resources_replace_the_variable(environment: tuple[str, ...], devices: tuple[str, ...] | None) -> None:
    request = read(*environment, policy=SWARM)
    assert (request.devices if request else None) == devices
    assert might_ask(ContainerSpec(environment=environment), SWARM.swarm_resource) is (devices is not None)


def test_source_names_what_won() -> None:
    assert granted("NVIDIA_VISIBLE_DEVICES=0").source == "NVIDIA_VISIBLE_DEVICES"
    assert granted("SECOND=1", "DOCKER_RESOURCE_GPU=0", policy=SWARM).source == "DOCKER_RESOURCE_GPU, SECOND"
    assert "CUDA_VERSION" in granted("CUDA_VERSION=11").source
    assert PREFIX in granted("NVIDIA_VISIBLE_DEVICES=0", mounts=null("1"), policy=MOUNTS).source


# mounts, devices; policy MOUNTS. Observed 23.
MOUNTED = [
    (null("0"), ("0",)),
    (null("GPU-1", "0", "0"), ("GPU-1", "0")),
    (null("all"), ("all",)),
    (null("0/"), ("0",)),
    (null("/a//b/"), ("a/b",)),
    (null("x/../1"), ("1",)),
    ((("/dev/../dev/./null", f"{PREFIX}/0"),), ("0",)),
    ((("/dev/null", "/var/run/nvidia-container-devicesX"),), ("X",)),  # kept: no separator is needed
    ((("/dev/null", PREFIX),), None),
    ((("/dev/zero", f"{PREFIX}/0"),), None),
    ((("/dev/null", f"{PREFIX}/../0"),), None),
    ((("dev/null", f"{PREFIX}/0"),), None),
    (null("imex/0"), None),
    (null("cdi/malformed"), None),
    (null("cdi/a/b/c/d", "cdi/a/b=", "cdi/9a/b=c", "cdi/a/b=c d"), None),
]


@pytest.mark.parametrize(("mounts", "devices"), MOUNTED)
def test_devices_by_mounts(mounts: tuple[tuple[str, str], ...], devices: tuple[str, ...] | None) -> None:
    request = read(mounts=mounts, policy=MOUNTS)
    assert (request.devices if request else None) == devices
    assert might_ask(ContainerSpec(mounts=mounts)) is (devices is not None)
    assert read(mounts=mounts) is None


def test_mounts_come_before_the_environment_and_need_no_privilege() -> None:
    both = {"mounts": null("1"), "policy": MOUNTS.replace(accept_envvar_unprivileged=False)}
    assert granted("NVIDIA_VISIBLE_DEVICES=0", **both).devices == ("1",)
    assert granted("NVIDIA_VISIBLE_DEVICES=void", **both).devices == ("1",)
    assert granted(f"NVIDIA_VISIBLE_DEVICES={PREFIX}", mounts=null("1"), policy=MOUNTS).devices == ("1",)
    assert granted("NVIDIA_VISIBLE_DEVICES=0", mounts=null("imex/3"), policy=MOUNTS).devices == ("0",)


@pytest.mark.parametrize("name", ["none", "void"])
def test_special_words_are_no_mounts(name: str) -> None:
    error = refused(mounts=null(name), policy=MOUNTS)
    assert isinstance(error, RequestError)
    assert f"'{name}'" in error.message


def test_the_environment_may_be_closed_to_unprivileged_containers() -> None:
    asks = ContainerSpec(environment=("NVIDIA_VISIBLE_DEVICES=all",))
    assert read_request(asks, GATED) is None  # observed 22
    assert "not privileged" in gate_warning(asks, GATED)
    assert granted("NVIDIA_VISIBLE_DEVICES=all", policy=GATED, privileged=True).devices == ("all",)  # observed 22b
    assert gate_warning(asks.replace(privileged=True), GATED) == ""
    assert gate_warning(asks, Policy()) == ""
    assert gate_warning(ContainerSpec(environment=("NVIDIA_VISIBLE_DEVICES=void", "BROKEN")), GATED) == ""


@pytest.mark.parametrize("name", ["nvidia.com/gpu=0", "runtime.nvidia.com/gpu=all", "x.nvidia.com/b=c:d_e.f-g"])
def test_cdi_names_are_refused_with_the_way_to_go(name: str) -> None:
    mount_name = name.replace("=", "/")
    for error in (
        refused(f"NVIDIA_VISIBLE_DEVICES=0,{name}"),
        refused(mounts=null(f"cdi/{name}"), policy=MOUNTS),
        refused(mounts=null(f"cdi/{mount_name}"), policy=MOUNTS),
    ):
        assert isinstance(error, RequestError)
        assert f"'{name}'" in error.message
        assert "--device" in error.hint


def test_legacy_image() -> None:  # public case 7, observed 20
    request = granted("CUDA_VERSION=11.4.2")
    assert request.legacy_image
    assert request.devices == ("all",)
    assert request.capabilities == DRIVER_CAPABILITIES
    assert request.requirements == (("CUDA_VERSION", "cuda>=11.4"),)
    assert request.imex_channels == ()
    assert request.warnings == ()


def test_legacy_image_with_more_variables() -> None:
    assert read("CUDA_VERSION=10.1", "NVIDIA_VISIBLE_DEVICES=void") is None
    assert read("CUDA_VERSION=10.1", "NVIDIA_VISIBLE_DEVICES=") is None
    assert read("CUDA_VERSION=", "PATH=/") is None
    assert read("CUDA_VERSION=10.1", "NVIDIA_REQUIRE_CUDA=cuda>=10") is None
    assert granted("CUDA_VERSION=10.1", "NVIDIA_REQUIRE_CUDA=").devices == ("all",)
    one = granted("CUDA_VERSION=10.1", "NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=")
    assert (one.devices, one.capabilities) == (("1",), ("compute", "utility"))


@pytest.mark.parametrize("version", ["eleven", "x.y", "10.2.89.1"])
def test_legacy_image_with_a_broken_version(version: str) -> None:
    error = refused(f"CUDA_VERSION={version}")
    assert f"CUDA_VERSION='{version}'" in error.message
    assert granted(f"CUDA_VERSION={version}", "NVIDIA_DISABLE_REQUIRE=true").requirements == ()


# value, supported, result. Public case 8, observed 10 to 15.
CAPABILITIES = [
    (None, DRIVER_CAPABILITIES, ("compute", "utility")),
    ("", DRIVER_CAPABILITIES, ("compute", "utility")),
    (" ,", DRIVER_CAPABILITIES, ("compute", "utility")),
    (None, ("graphics", "utility"), ("utility",)),
    ("all", DRIVER_CAPABILITIES, DRIVER_CAPABILITIES),
    ("all", ("utility", "compute"), ("compute", "utility")),
    ("all,bogus", ("utility",), ("utility",)),
    ("video, graphics ,,video", DRIVER_CAPABILITIES, ("graphics", "video")),
    ("compat32,compute", DRIVER_CAPABILITIES, ("compat32", "compute")),
]

REFUSED_CAPABILITIES = [
    ("compute,video,telepathy", DRIVER_CAPABILITIES, ["'telepathy'", ", ".join(DRIVER_CAPABILITIES)], ""),
    ("bogus", DRIVER_CAPABILITIES, ["'bogus'"], ""),
    ("x,y,x", ("compute",), ["'x', 'y',", "allowed are all, compute"], ""),
    ("graphics", ("compute", "utility"), ["'graphics'", "compute, utility"], "supported-driver-capabilities"),
    ("none", DRIVER_CAPABILITIES, ["'none'"], ""),
    ("Compute", DRIVER_CAPABILITIES, ["'Compute'"], ""),
]


@pytest.mark.parametrize(("value", "supported", "expected"), CAPABILITIES)
def test_capabilities(value: str | None, supported: tuple[str, ...], expected: tuple[str, ...]) -> None:
    entries = [] if value is None else [f"NVIDIA_DRIVER_CAPABILITIES={value}"]
    policy = Policy(supported_driver_capabilities=supported)
    assert granted("NVIDIA_VISIBLE_DEVICES=all", *entries, policy=policy).capabilities == expected


@pytest.mark.parametrize(("value", "supported", "texts", "hint"), REFUSED_CAPABILITIES)
def test_refused_capabilities(value: str, supported: tuple[str, ...], texts: list[str], hint: str) -> None:
    policy = Policy(supported_driver_capabilities=supported)
    error = refused("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={value}", policy=policy)
    assert isinstance(error, RequestError)
    assert all(text in error.message for text in texts)
    assert hint in error.hint


# Requirements of a container that asks for all.
REQUIREMENTS = [
    (["NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_REQUIRE_A=arch>=7"], ["NVIDIA_REQUIRE_A", "NVIDIA_REQUIRE_CUDA"]),
    (["NVIDIA_REQUIRE_CUDA="], []),
    (["NVIDIA_REQUIRE_JETPACK=csv-mounts=all", "NVIDIA_REQUIRE_JETPACK_X=y"], []),
    (["XNVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_REQUIRE=1"], []),
    (["NVIDIA_REQUIRE_CUDA=cuda>=12", "CUDA_VERSION=11.0"], ["NVIDIA_REQUIRE_CUDA"]),
    (["NVIDIA_REQUIRE_DRIVER=driver>=3", "CUDA_VERSION=11.0"], ["CUDA_VERSION", "NVIDIA_REQUIRE_DRIVER"]),
]


@pytest.mark.parametrize(("entries", "variables"), REQUIREMENTS)
def test_requirements(entries: list[str], variables: list[str]) -> None:
    requirements = granted("NVIDIA_VISIBLE_DEVICES=all", *entries).requirements
    assert [variable for variable, _ in requirements] == variables


def test_requirements_of_an_image_that_asks_for_nothing() -> None:
    image = ContainerSpec(environment=("NVIDIA_REQUIRE_CUDA=cuda>=12",))
    assert read_request(image, Policy()) is None
    assert read_requirements(image, Policy()) == (("NVIDIA_REQUIRE_CUDA", "cuda>=12"),)
    with pytest.raises(InputError):
        read_requirements(ContainerSpec(environment=("BROKEN",)), Policy())


@pytest.mark.parametrize(
    ("value", "disabled"),
    [(value, True) for value in ("1", "t", "T", "TRUE", "true", "True")]
    + [(value, False) for value in ("0", "", "tRUE", "yes", "on", " 1")],
)
def test_requirements_can_be_disabled(value: str, disabled: bool) -> None:
    environment = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99", f"NVIDIA_DISABLE_REQUIRE={value}")
    assert (granted(*environment).requirements == ()) is disabled
    assert granted(*environment, policy=Policy(disable_require=True)).requirements == ()


@pytest.mark.parametrize("kind", ["CONFIG", "MONITOR"])
def test_mig_management_needs_privilege_and_means_all(kind: str) -> None:
    def asking(value: str) -> tuple[str, str]:
        return "NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_MIG_{kind}_DEVICES={value}"

    field = f"mig_{kind.lower()}"
    assert getattr(granted(*asking("all"), privileged=True), field) == "all"
    assert getattr(granted(*asking("")), field) == ""
    for error in (refused(*asking("all")), refused(*asking("0"), privileged=True)):  # observed 37
        assert isinstance(error, RequestError)
        assert f"NVIDIA_MIG_{kind}_DEVICES" in error.message


# IMEX channels: environment value, mounts, result, warning
IMEX = [
    ("0", (), ("0",), ""),
    ("0, 7,0,007", (), ("0", "7"), ""),
    ("1048575", (), ("1048575",), ""),
    ("all", (), (), "by number"),
    ("1,all", (), (), "by number"),
    ("none", (), (), ""),
    ("void,1", (), (), ""),
    ("", (), (), ""),
    ("1", ("imex/3", "imex/4"), ("3", "4"), ""),
    ("1", ("imex/all",), (), ""),
]


@pytest.mark.parametrize(("value", "mounts", "channels", "warning"), IMEX)
def test_imex_channels(value: str, mounts: tuple[str, ...], channels: tuple[str, ...], warning: str) -> None:
    environment = ("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_IMEX_CHANNELS={value}")
    request = granted(*environment, mounts=null(*mounts), policy=MOUNTS)
    assert request.imex_channels == channels
    assert warning in " ".join(request.warnings)
    assert bool(warning) is bool(request.warnings)
    ignoring = MOUNTS.replace(features=Features(ignore_imex_channel_requests=True))
    assert granted(*environment, mounts=null(*mounts), policy=ignoring).imex_channels == ()


@pytest.mark.parametrize("value", ["1048576", "-1", "x", "0x1", "1 2", "channel1", "9" * 5000])
def test_impossible_imex_channels(value: str) -> None:
    error = refused("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_IMEX_CHANNELS={value}")
    assert isinstance(error, RequestError)
    assert "NVIDIA_IMEX_CHANNELS" in error.message
    assert len(str(error)) < 250


def test_imex_channels_by_environment_share_the_gate() -> None:
    gated = MOUNTS.replace(accept_envvar_unprivileged=False)
    request = granted("NVIDIA_IMEX_CHANNELS=1", mounts=null("0"), policy=gated)
    assert request.imex_channels == ()
    assert "NVIDIA_IMEX_CHANNELS is ignored" in request.warnings[0]
    assert granted("NVIDIA_IMEX_CHANNELS=1", mounts=null("0"), policy=gated, privileged=True).imex_channels == ("1",)


names = st.sampled_from(
    [
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_REQUIRE_CUDA",
        "NVIDIA_DISABLE_REQUIRE",
        "CUDA_VERSION",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_IMEX_CHANNELS",
        "DOCKER_RESOURCE_GPU",
        "SECOND",
    ]
)
values = st.sampled_from(["all", "none", "void", "0", "1,0", "", "11.4", "compute", "a.b/c=d", "true"])
entries = st.builds("{}={}".format, names, values | st.text(max_size=8)) | st.text(max_size=12)
destinations = st.sampled_from([PREFIX, "/var/run"]) | st.text(max_size=9).map((PREFIX + "/").__add__)
specs = st.builds(
    ContainerSpec,
    environment=st.lists(entries, max_size=8).map(tuple),
    mounts=st.lists(st.tuples(st.sampled_from(["/dev/null", "/x"]), destinations), max_size=4).map(tuple),
    privileged=st.booleans(),
)
policies = st.builds(
    Policy,
    swarm_resource=st.sampled_from([(), ("SECOND",), ("DOCKER_RESOURCE_GPU", "SECOND")]),
    accept_envvar_unprivileged=st.booleans(),
    accept_volume_mounts=st.booleans(),
    disable_require=st.booleans(),
    supported_driver_capabilities=st.sampled_from([DRIVER_CAPABILITIES, ("compute",), ()]),
)


def outcome(spec: ContainerSpec, policy: Policy) -> ContainerRequest | NvinjectError | None:
    try:
        return read_request(spec, policy)
    except NvinjectError as error:
        return error


@given(specs, policies)
def test_any_container_is_read_or_refused(spec: ContainerSpec, policy: Policy) -> None:
    found = outcome(spec, policy)
    if isinstance(found, NvinjectError):
        assert type(found) in {InputError, RequestError}
        assert str(found).isprintable()
    elif found is not None:
        assert found.devices
        assert len(set(found.devices)) == len(found.devices)
        assert set(found.capabilities) <= set(policy.supported_driver_capabilities)
        assert not found.mig_config or spec.privileged


@given(specs, policies)
def test_a_container_that_cannot_ask_is_left_alone(spec: ContainerSpec, policy: Policy) -> None:
    if not might_ask(spec, policy.swarm_resource):
        assert read_request(spec, policy) is None
        assert gate_warning(spec, policy) == ""


# environment, the names of node sets
EXTRAS = [
    ((), ()),
    (("NVIDIA_GDS=enabled",), ("gds",)),
    (("NVIDIA_NVSWITCH=enabled", "NVIDIA_MOFED=enabled", "NVIDIA_GDRCOPY=enabled"), ("mofed", "gdrcopy", "nvswitch")),
    (("NVIDIA_GDS=Enabled", "NVIDIA_MOFED=1", "NVIDIA_GDRCOPY=", "NVIDIA_NVSWITCH=true"), ()),
    (("NVIDIA_GDS=enabled", "NVIDIA_GDS=disabled"), ()),
    (("OTHER=enabled",), ()),
]


@pytest.mark.parametrize(("entries", "names"), EXTRAS)
def test_node_sets_by_environment(entries: tuple[str, ...], names: tuple[str, ...]) -> None:
    """One value counts; the gate of unprivileged containers does not stand before them, as in the original."""
    assert granted("NVIDIA_VISIBLE_DEVICES=none", *entries).extras == names
    gated = MOUNTS.replace(accept_envvar_unprivileged=False)
    assert granted(*entries, mounts=null("0"), policy=gated).extras == names


def test_extras_as_names_of_a_registry() -> None:
    """Mode cdi asks the registry for them, in the vendor of the default kind."""
    spec = ContainerSpec(environment=("NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=3,0"))
    policy = Policy(cdi_default_kind="example.com/gpu")
    assert read_extras(spec, policy) == (
        ("example.com/gds=all", "example.com/imex-channel=3", "example.com/imex-channel=0"),
        (),
    )
    assert read_extras(ContainerSpec(environment=("NVIDIA_IMEX_CHANNELS=all",)), policy)[0] == ()
    with pytest.raises(RequestError, match="unsupported IMEX channel"):
        read_extras(ContainerSpec(environment=("NVIDIA_IMEX_CHANNELS=x",)), policy)


PIPES = "CUDA_MPS_PIPE_DIRECTORY=/mps/pipe"
# environment, the container's mounts, whether pipes are somebody else's
CLIENTS: list[tuple[tuple[str, ...], tuple[tuple[str, str], ...], bool]] = [
    ((), (), False),
    ((PIPES,), (), False),
    ((PIPES,), (("/run/mps", "/mps"),), True),
    ((PIPES,), (("/run/mps", "/mps/pipe"),), True),
    ((PIPES,), (("/run/mps", "/mps/"),), True),
    ((PIPES,), (("tmpfs", "/mps"),), False),
    ((PIPES,), (("/run/mps", "/mps/pipes"), ("/x", "/mp")), False),
    ((), (("/run/mps", "/tmp/nvidia-mps"),), False),
]


@pytest.mark.parametrize(("entries", "mounts", "provided"), CLIENTS)
def test_clients_of_the_multi_process_service(
    entries: tuple[str, ...], mounts: tuple[tuple[str, str], ...], provided: bool
) -> None:
    asked = granted("NVIDIA_VISIBLE_DEVICES=0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=", *entries, mounts=mounts)
    assert asked.mps == tuple((name, value) for name, _, value in (entry.partition("=") for entry in entries))
    assert asked.mps_provided is provided


IGNORED = [
    ("amd.com/gpu=0", "", {}, "NVIDIA_VISIBLE_DEVICES: 'amd.com/gpu=0' is not NVIDIA's and is left alone"),
    ("", "cdi/amd.com/gpu=0", {"accept_volume_mounts": True}, "mounts below"),
    ("", "cdi/amd.com/gpu=0", {}, ""),
    ("0", "", {"accept_envvar_unprivileged": False}, "NVIDIA_VISIBLE_DEVICES is ignored: the container is not"),
    ("amd.com/gpu=0", "", {"accept_envvar_unprivileged": False}, "'amd.com/gpu=0' is not NVIDIA's"),
    ("", "", {}, ""),
]


@pytest.mark.parametrize(("environment", "mount", "policy", "words"), IGNORED)
def test_why_a_container_gets_nothing(environment: str, mount: str, policy: dict[str, object], words: str) -> None:
    """Devices of other vendors, or a request that may not be made; silence for containers that name none."""
    spec = ContainerSpec(
        environment=(f"NVIDIA_VISIBLE_DEVICES={environment}",) if environment else (),
        mounts=(("/dev/null", f"{PREFIX}/{mount}"),) if mount else (),
    )
    rules = Policy().replace(**policy)
    assert read_request(spec, rules) is None
    found = ignored_warning(spec, rules)
    assert words in found
    assert bool(words) == bool(found)


def test_foreign_devices_beside_ours_are_a_warning_of_the_request() -> None:
    spec = ContainerSpec(environment=("NVIDIA_VISIBLE_DEVICES=0,amd.com/gpu=1,intel.com/npu=2",))
    request = read_request(spec, Policy())
    assert request is not None
    assert request.devices == ("0",)
    (warning,) = request.warnings
    assert "'amd.com/gpu=1', 'intel.com/npu=2'" in warning


def test_a_hundred_thousand_names_take_no_time_and_no_page() -> None:
    """All that an environment can hold; comparing each with each would take minutes of a container's start."""
    others = ",".join(f"a.b/c={number}" for number in range(100_000))
    request = read_request(ContainerSpec(environment=(f"NVIDIA_VISIBLE_DEVICES=0,{others}",)), Policy())
    assert request is not None
    assert request.devices == ("0",)
    assert "'a.b/c=15' and 99984 more is not NVIDIA's" in request.warnings[0]
    words = ",".join(f"word{number}" for number in range(100_000))
    environment = ("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={words}")
    with pytest.raises(RequestError, match="'word15' and 99984 more, allowed are"):
        read_request(ContainerSpec(environment=environment), Policy())
