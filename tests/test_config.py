"""config.toml: every key, every way to get it wrong, and the scan that needs no parser."""

import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvinject.config import (
    BOOLEAN,
    INTEGER,
    KEYS,
    STRING,
    STRINGS,
    load_policy,
)
from nvinject.configfile import find_config, swarm_names_without_parsing
from nvinject.core.policy import DRIVER_CAPABILITIES, Features, Policy, Roots
from nvinject.errors import ConfigurationError

# What the original's own tool writes (nvidia-ctk config default), with the commented lines turned on.
ORIGINAL = """
accept-nvidia-visible-devices-as-volume-mounts = true
accept-nvidia-visible-devices-envvar-when-unprivileged = false
disable-require = true
supported-driver-capabilities = "compute,utility"
swarm-resource = "DOCKER_RESOURCE_GPU, B,"

[nvidia-container-cli]
debug = "/var/log/nvidia-container-toolkit.log"
environment = []
ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig.real"
load-kmods = false
no-cgroups = true
path = "/usr/bin/nvidia-container-cli"
root = "/run/nvidia/driver"
user = "root:video"

[nvidia-container-runtime]
debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "legacy"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "mount"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = true

[nvidia-ctk]
path = "nvidia-ctk"

[features]
ignore-imex-channel-requests = true

[nvinject]
dev-root = "/host/"
proc-root = "/host/proc"
sys-root = "//host/./sys"
nvml-timeout = 30
"""


@pytest.fixture
def config(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "config.toml"


def load(config: pathlib.Path, text: str) -> tuple[Policy, tuple[str, ...]]:
    config.write_text(text)
    return load_policy(str(config), required=True)


def refused(config: pathlib.Path, text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(config, text)
    assert str(config) in caught.value.message
    assert str(caught.value).isprintable()
    return caught.value


FOUND = [
    ({}, ("/etc/nvidia-container-runtime/config.toml", False)),
    ({"XDG_CONFIG_HOME": ""}, ("/etc/nvidia-container-runtime/config.toml", False)),
    ({"XDG_CONFIG_HOME": "/x"}, ("/x/nvidia-container-runtime/config.toml", False)),
    ({"NVIDIA_CTK_CONFIG_FILE_PATH": "/a.toml", "XDG_CONFIG_HOME": "/x"}, ("/a.toml", True)),
    ({"NVIDIA_CTK_CONFIG_FILE_PATH": "", "HOME": "/root"}, ("/etc/nvidia-container-runtime/config.toml", False)),
]


@pytest.mark.parametrize(("environ", "expected"), FOUND)
def test_which_file_is_read(environ: dict[str, str], expected: tuple[str, bool]) -> None:
    assert find_config(environ) == expected


def test_everything_the_original_writes_is_understood(config: pathlib.Path) -> None:
    assert load(config, ORIGINAL) == (
        Policy(
            accept_volume_mounts=True,
            accept_envvar_unprivileged=False,
            disable_require=True,
            supported_driver_capabilities=("compute", "utility"),
            swarm_resource=("DOCKER_RESOURCE_GPU", "B"),
            debug="/var/log/nvidia-container-toolkit.log",
            ldcache="/etc/ld.so.cache",
            ldconfig="@/sbin/ldconfig.real",
            load_kmods=False,
            no_cgroups=True,
            mode="legacy",
            runtime_debug="/var/log/nvidia-container-runtime.log",
            hook_path="nvidia-container-runtime-hook",
            cuda_compat_mode="mount",
            skip_mode_detection=True,
            roots=Roots(driver="/run/nvidia/driver", dev="/host", proc="/host/proc", sys="/host/sys"),
            features=Features(ignore_imex_channel_requests=True),
            nvml_timeout=30,
        ),
        (),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "[nvinject]\n", "[nvidia-container-cli]\nroot = ''\n"])
def test_what_is_not_set_has_its_default(config: pathlib.Path, text: str) -> None:
    assert load(config, text) == (Policy(), ())


def test_a_missing_file_is_an_error_only_if_required(config: pathlib.Path) -> None:
    assert load_policy(str(config), required=False) == (Policy(), ())
    assert load_policy(str(config / "below" / "nothing"), required=False) == (Policy(), ())
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_policy(str(config), required=True)


def test_an_unreadable_file_is_an_error(config: pathlib.Path) -> None:
    config.mkdir()
    with pytest.raises(ConfigurationError, match="Is a directory"):
        load_policy(str(config), required=False)


VALUES = {BOOLEAN: "true", STRING: '"@/x"', STRINGS: '["a"]', INTEGER: "7"}


@pytest.mark.parametrize(("key", "kind", "field"), KEYS)
def test_each_key_takes_its_type_and_no_other(config: pathlib.Path, key: str, kind: str, field: str) -> None:
    table, _, name = key.rpartition(".")
    header = f"[{table}]\n" if table else ""
    value = {
        "supported_driver_capabilities": '"compute"',
        "cuda_compat_mode": '"hook"',
        "leave_out": '["nvidia-mps"]',
        "missing_extras": '"warn"',
        "library_layout": '"host"',
        "missing_memory_limits": '"warn"',
    }.get(field, VALUES[kind])
    if field.startswith(("roots.", "csv_")) or field.endswith("_directory"):
        value = '"/x"'
    policy, warnings = load(config, f"{header}{name} = {value}\n")
    assert warnings == ()
    assert (policy == Policy()) is (not field or field in {"load_kmods", "accept_envvar_unprivileged", "write_rootfs"})
    for other, text in [*VALUES.items(), ("a number", "1.5"), ("a date or time", "2020-01-01"), ("a table", "{}")]:
        if other != kind:
            error = refused(config, f"# a comment\n{header}{name} = {text}\n")
            assert f"line {3 if table else 2}: {key} must be {kind}, found " in error.message


# text, what the message says after the path
REFUSED = [
    ("nvidia-container-runtime.runtimes = []", ", line 1: nvidia-container-runtime.runtimes is empty"),
    ("disable-require = maybe", ", line 1, column 19: invalid value"),  # observed 38
    ("a = 1\nb = [1,", ", line 2, column 8: invalid value"),
    ("a = 1\na = 2", "line 2"),
    ("[nvidia-container-cli", ", line 1, column 22: expected ']'"),
    ('debug = "\\q"', "line 1"),
    ("= 3", "line 1"),
    ("a = 0" + "9" * 5000, "line 1"),
    ("a = " + "[" * 5000, ""),
    ("features = true", ", line 1: features must be a table, found a boolean"),
    ("[nvidia-container-runtime]\nmodes = 'x'", ", line 2: nvidia-container-runtime.modes must be a table"),
    ("features = []", ", line 1: features must be a table, found an array"),
    ("[[features]]", "features must be a table"),
    ("[nvidia-container-cli]\nldconfig = '/sbin/ldconfig'", "nvidia-container-cli.ldconfig must begin with '@'"),
    ("[nvidia-container-cli]\nldconfig = ''", "must begin with '@'"),
    ("supported-driver-capabilities = 'compute,nonsense'", ", line 1: supported-driver-capabilities has unknown"),
    ("[nvidia-container-cli]\n\n root= 'run/x'", ", line 3: nvidia-container-cli.root must be an absolute path"),
    ("[nvinject]\ndev-root = '.'", "nvinject.dev-root must be an absolute path"),
    ("nvinject.proc-root = 'proc'", ", line 1: nvinject.proc-root must be an absolute path"),
    ("[nvinject]\nnvml-timeout = 0", ", line 2: nvinject.nvml-timeout must be between 1 and 600"),
    ("nvinject = {nvml-timeout = 601}", ": nvinject.nvml-timeout must be between 1 and 600"),
    ("[nvinject]\nleave-out = ['nvidia-mps', 'x']", ", line 2: nvinject.leave-out has 'x'"),
    ("[nvinject]\nmps-pipe-directory = 'run'", ", line 2: nvinject.mps-pipe-directory must be an absolute path"),
    ("nvinject.library-layout = 'flat'", ", line 1: nvinject.library-layout has 'flat'"),
    ("nvinject.missing-extras = 'ignore'", ", line 1: nvinject.missing-extras has 'ignore'"),
    ("[nvidia-container-cli]\nenvironment = [1]", "must be an array of strings, found an array"),
]


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_files_that_are_refused(config: pathlib.Path, text: str, says: str) -> None:
    assert says in refused(config, text).message


def test_bytes_that_are_no_text(config: pathlib.Path) -> None:
    config.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(ConfigurationError, match="line 2: not UTF-8"):
        load_policy(str(config), required=True)


# text, what the warning says; observed 38b
WARNED = [
    ("disable-requires = true", "line 1: disable-requires is an unknown key; did you mean disable-require?"),
    ("[nvidia-container-cli]\nno-cgroup = 3", "did you mean nvidia-container-cli.no-cgroups?"),
    (
        "[nvidia-container-cli]\ncuda-compat-mode = 'hook'",
        "cuda-compat-mode is an unknown key; did you mean nvidia-container-runtime.modes.legacy.cuda-compat-mode?",
    ),
    ("[nvinject]\ndevroot = 1", "line 2: nvinject.devroot is an unknown key; did you mean nvinject.dev-root?"),
    ("[zzz.yyy]\nx = 1", "zzz is an unknown key"),
    ('"nvidia-container-cli.root" = "/x"', "is an unknown key"),
    ('"a\\nb" = 1', r"a\nb is an unknown key"),
]


@pytest.mark.parametrize(("text", "says"), WARNED)
def test_unknown_keys_are_named(config: pathlib.Path, text: str, says: str) -> None:
    policy, (warning,) = load(config, text)
    assert policy == Policy()
    assert str(config) in warning
    assert says in warning
    assert warning.isprintable()


@pytest.mark.parametrize("value", ["all", "compute, all", ",".join(reversed(DRIVER_CAPABILITIES))])
def test_all_capabilities(config: pathlib.Path, value: str) -> None:
    policy, _ = load(config, f"supported-driver-capabilities = '{value}'")
    assert policy.supported_driver_capabilities == DRIVER_CAPABILITIES


def test_no_capabilities(config: pathlib.Path) -> None:
    policy, _ = load(config, "supported-driver-capabilities = ''")
    assert policy.supported_driver_capabilities == ()


def test_the_containers_ldconfig_is_a_feature(config: pathlib.Path) -> None:
    feature = "[features]\nallow-ldconfig-from-container = true\n"
    policy, _ = load(config, feature + "[nvidia-container-cli]\nldconfig = '/sbin/ldconfig'\n")
    assert policy.ldconfig == "/sbin/ldconfig"


def test_an_unknown_compat_mode_is_disabled(config: pathlib.Path) -> None:
    text = "[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = 'x'\n"
    policy, (warning,) = load(config, text)
    assert policy.cuda_compat_mode == "disabled"
    assert "line 2: nvidia-container-runtime.modes.legacy.cuda-compat-mode is 'x'" in warning
    policy, _ = load(config, text + "[features]\nallow-cuda-compat-libs-from-container = true\n")
    assert policy.cuda_compat_mode == "mount"


@pytest.mark.parametrize(
    ("mode", "switch", "expected"),
    [("hook", "true", "disabled"), ("hook", "false", "hook"), ("ldconfig", "true", "ldconfig")],
)
def test_the_switch_for_the_compatibility_hook(config: pathlib.Path, mode: str, switch: str, expected: str) -> None:
    """It concerns mode hook alone, as in the original."""
    text = f"""[features]
disable-cuda-compat-lib-hook = {switch}
[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "{mode}"
"""
    assert load(config, text)[0].cuda_compat_mode == expected


SWARM = [
    ("", ()),
    ("disable-require = maybe\n", ()),
    ('#swarm-resource = "A"\n', ()),
    ('  # swarm-resource = "A"\n', ()),
    ('swarm-resource = "DOCKER_RESOURCE_GPU"\n', ("DOCKER_RESOURCE_GPU",)),
    ("broken = maybe\nswarm-resource='A, B,'  # why\n[x]\n", ("A", "B")),
    ('"swarm-resource" = ""\r\n', ()),
    ("disable-require = true # see swarm-resource\n", ()),
    ('[x]\nswarm-resource = "A"\n', None),
    ('swarm-resource = "A"\nswarm-resource = "B"\n', None),
    ('swarm-resource = """A"""\n', None),
    ('swarm-resource = "\\u0041"\n', None),
    ("swarm-resource = 3\n", None),
    ('swarm-resource = "A\n', None),
    ('swarm-resource = "\u00c4"\n', None),
    ("swarm-resource.x = 'A'\n", None),
]


@pytest.mark.parametrize(("text", "names"), SWARM)
def test_swarm_names_without_parsing(config: pathlib.Path, text: str, names: tuple[str, ...] | None) -> None:
    config.write_bytes(text.encode())
    assert swarm_names_without_parsing(str(config)) == names


def test_swarm_names_of_what_cannot_be_read(tmp_path: pathlib.Path) -> None:
    assert swarm_names_without_parsing(str(tmp_path)) == ()
    assert swarm_names_without_parsing(str(tmp_path / "missing")) == ()


lines = st.sampled_from(
    [
        'swarm-resource = "A"',
        "swarm-resource = ' B , C'",
        "'swarm-resource' = \"\"",
        '# swarm-resource = "D"',
        "disable-require = true",
        "[nvinject]",
        'debug = "swarm-resource"',
        "",
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(lines, max_size=5))
def test_the_scan_agrees_with_the_parser(config: pathlib.Path, chosen: list[str]) -> None:
    config.write_text("\n".join(chosen))
    names = swarm_names_without_parsing(str(config))
    try:
        policy, _ = load_policy(str(config), required=True)
    except ConfigurationError:
        return
    assert names is None or names == policy.swarm_resource


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text() | st.text(st.sampled_from("abc-.=[]{}\"'\n#, 01te")))
def test_any_text_is_read_or_refused(config: pathlib.Path, text: str) -> None:
    config.write_bytes(text.encode(errors="surrogatepass"))
    swarm_names_without_parsing(str(config))
    try:
        load_policy(str(config), required=True)
    except ConfigurationError as error:
        message = str(error)
    else:
        message = ""
    assert message == "" or message.isprintable()
