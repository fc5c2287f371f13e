"""nvidia-container-cli without a machine: words, stages and exit codes."""

import os
from pathlib import Path

import pytest

from nvinject.cli import containercli, containerconfigure, containerlist
from nvinject.cli import main as command_line
from nvinject.cli.argp import Words, parse
from nvinject.cli.containercli import CONFIGURE_FLAGS, LIST_FLAGS, CliError
from nvinject.core.model import Gpu, MigDevice
from nvinject.core.policy import DRIVER_CAPABILITIES
from nvinject.errors import RequestError, UsageError

Capture = pytest.CaptureFixture[str]
NAME = "nvidia-container-cli"
UUID = "GPU-000000a0-1111-2222-3333-000000000000"
GPU = Gpu(index=0, minor=0, uuid=UUID, bus_id="0000:17:00.0")
SLICE = MigDevice(gpu_instance=1, compute_instance=0, index=0, uuid="MIG-0")


@pytest.fixture(autouse=True)
def _no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test a host that has nothing."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "config.toml").write_text(f'[nvinject]\nproc-root = "{tmp_path}/proc"\n')
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(tmp_path / "config.toml"))
    monkeypatch.delenv("NVC_DEBUG_FILE", raising=False)


WRONG = [
    ([], f"{NAME}: a command is missing"),
    (["dance"], f"{NAME}: unknown command 'dance'"),
    (["--dance"], f"{NAME}: unrecognized option '--dance'"),
    (["info", "--dance"], f"{NAME} info: unrecognized option '--dance'"),
    (["info", "extra"], f"{NAME} info: unexpected argument 'extra'"),
    (["list", "--device"], f"{NAME} list: option '--device' requires an argument"),
    (["configure"], f"{NAME} configure: ROOTFS is missing"),
    (["configure", "/a", "/b"], f"{NAME} configure: too many arguments"),
    (["configure", "/"], f"{NAME}: input error: invalid rootfs directory"),
    (["configure", "relative"], f"{NAME}: input error: invalid rootfs directory"),
    (["configure", "--pid", "x", "/a"], f"{NAME}: input error: invalid pid 'x'"),
    (["configure", "--cuda-compat-mode", "x", "/a"], f"{NAME}: input error: invalid cuda-compat-mode 'x'"),
    (["configure", *["--require=cuda>1"] * 33, "/a"], f"{NAME}: input error: too many requirements"),
    (["--root", "relative", "info"], f"{NAME}: input error: invalid driver root 'relative'"),
    (["--user=nobody-knows", "info"], f"{NAME}: input error: invalid user or group 'nobody-knows'"),
    (["list", "--mig-config=0"], f"{NAME}: mig-config error: only 'all' devices are currently supported"),
    (["list", "--mig-monitor=0"], f"{NAME}: mig-monitor error: only 'all' devices are currently supported"),
    (["list", "--imex-channel=1048576"], f"{NAME}: error parsing IMEX info: unsupported IMEX channel value: 1048576"),
    (["info"], f"{NAME}: detection error: there is no NVIDIA driver"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_every_failure_is_one_message_and_exit_code_1(arguments: list[str], message: str, capsys: Capture) -> None:
    """Usage mistakes too, and these point to the help."""
    assert command_line.main(arguments, NAME) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)


HELP = [["--help"], ["-?"], ["--usage"], ["info", "--help"], ["list", "--usage"], ["configure", "-?"]]


@pytest.mark.parametrize("arguments", HELP)
def test_help(arguments: list[str], capsys: Capture) -> None:
    """Every option has a line."""
    assert command_line.main(arguments, NAME) == 0
    text = capsys.readouterr().out
    flags = containercli.COMMANDS[arguments[0]][0] if len(arguments) > 1 else containercli.GLOBAL_FLAGS
    assert all(f"--{flag.name}" in text for flag in flags)


def test_version_has_the_originals_labels(capsys: Capture) -> None:
    """Seven lines."""
    assert command_line.main(["-V"], NAME) == 0
    labels = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert labels == [
        "cli-version", "lib-version", "build date", "build revision", "build compiler", "build platform", "build flags"
    ]  # fmt: skip


BARE = [((), True), (("--imex-channel=3",), True), (("--imex-channel", "3"), False), (("--libraries",), False)]


@pytest.mark.parametrize(("arguments", "bare"), BARE)
def test_which_lines_ask_for_everything(arguments: tuple[str, ...], *, bare: bool) -> None:
    """None at all, or one IMEX channel in a single word."""
    assert containerlist.is_bare(arguments) is bare


TOKENS = [
    (("0,1", "2"), ("0", "1", "2")),
    (("0,,0",), ("0",)),
    (("1,ALL,x",), ("all",)),
    ((), ()),
]


@pytest.mark.parametrize(("values", "tokens"), TOKENS)
def test_devices_are_split_at_commas(values: tuple[str, ...], tokens: tuple[str, ...]) -> None:
    """Empty ones are left out, `all` hides the others."""
    assert containerlist.read_tokens(values) == tokens


def test_devices_are_selected_in_the_originals_words() -> None:
    """`none` is no word of this command line."""
    gpus = (GPU.replace(mig_devices=(SLICE,)),)
    assert containerlist.select_devices((), gpus, ()).gpus == ()
    assert containerlist.select_devices((UUID.upper(), "00000000:17:00.0"), gpus, ()).gpus == gpus
    for token in ("9", "none", "GPU-0"):
        with pytest.raises(RequestError, match=f"^{token}: unknown device"):
            containerlist.select_devices(("0", token), gpus, ())
    with pytest.raises(CliError, match="cannot enable mig-monitor with specific MIG devices selected") as caught:
        containerlist.select_devices(("0:0",), gpus, ("monitor",))
    assert caught.value.stage == "mig-monitor error"


def configure(*arguments: str) -> Words:
    return parse(arguments, CONFIGURE_FLAGS, in_order=False)


def test_options_make_a_request() -> None:
    """In the hook's own form."""
    line = configure("-cu", "--device=0", "-d1,0", "-r", "cuda>=12", "--imex-channel=07", "--mig-config=all", "/rootfs")
    request = containerconfigure.read_request(line)
    assert request.devices == ("0", "1")
    assert request.capabilities == ("compute", "utility")
    assert request.requirements == (("--require", "cuda>=12"),)
    assert request.imex_channels == ("7",)
    assert (request.mig_config, request.mig_monitor) == ("all", "")


MODES = [
    ((), "mount"),
    (("--cuda-compat-mode=ldconfig",), "ldconfig"),
    (("--cuda-compat-mode=mount", "--cuda-compat-mode=disabled"), "disabled"),
    (("--cuda-compat-mode=ldconfig", "--no-cntlibs"), "disabled"),
]


@pytest.mark.parametrize(("options", "mode"), MODES)
def test_compat_modes(options: tuple[str, ...], mode: str) -> None:
    """`disabled` wins."""
    assert containerconfigure.read_compat_mode(configure(*options)) == mode


def test_two_compat_modes_are_refused() -> None:
    """In the original's words."""
    line = configure("--cuda-compat-mode=mount", "--cuda-compat-mode=ldconfig")
    with pytest.raises(CliError, match="only one cuda-compat-mode can be specified at a time"):
        containerconfigure.read_compat_mode(line)


def test_identities() -> None:
    """Numbers, names, and the caller's own."""
    assert containercli.read_identity(None) == (os.geteuid(), os.getegid())
    assert containercli.read_identity("12:34") == (12, 34)
    assert containercli.read_identity("root") == (0, 0)
    assert containercli.read_identity("root:root") == (0, 0)
    with pytest.raises(CliError):
        containercli.read_identity("4000000000")


def test_every_option_is_read_somewhere() -> None:
    """None is swallowed: each name stands in the code that acts upon it, or is one that has nothing to do."""
    package = Path(containercli.__file__).parent
    code = "".join((package / name).read_text() for name in ("containerlist.py", "containerconfigure.py"))
    code += (package / "containercli.py").read_text().partition("def main")[2]
    indirect = {"mig-config", "mig-monitor", "no-persistenced", "no-fabricmanager"}
    names = {flag.name for flags in (containercli.GLOBAL_FLAGS, LIST_FLAGS, CONFIGURE_FLAGS) for flag in flags}
    listed = {*containerlist.SECTIONS, *DRIVER_CAPABILITIES}
    assert {name for name in names - indirect - listed if f'"{name}"' not in code} == {"no-pivot"}


def test_words_are_read_as_argp_reads_them() -> None:
    """An option of a command is none of the program."""
    with pytest.raises(UsageError, match="unrecognized option '--csv'"):
        containercli.run(["--csv", "info"], {})
