"""How nvfakes' command line is explained: examples, and mistakes in one line with the nearest name.

Belongs here: words. Does not belong here: options and what commands do (cli.py).
"""

import argparse
import difflib
from typing import Any, NoReturn

from nvfakes.errors import UsageError

EPILOG = """\
examples:
  nvfakes run h100x8 -- nvidia-smi -L        a command on a machine with eight H100
  nvfakes shell mig-h100
  nvfakes show ./machine.yaml --json         what a file of your own declares

nvfakes COMMAND --help tells more.

exit codes:
  0  done    1  a machine or a lane cannot be used    2  usage    70  a mistake in nvfakes: please report it
  126  the machine is there, the command is not       any other one of `run`, `shell`, `enter`: the command's own
"""
EXAMPLES = {
    "list": ("nvfakes list", "nvfakes list --json"),
    "show": ("nvfakes show two-h100", "nvfakes show dgx-h100 --svg > dgx.svg"),
    "tree": ("nvfakes tree two-h100 ./machine", "nvfakes tree two-h100 ./rootfs --merge"),
    "run": (
        "nvfakes run h100x8 -- nvidia-smi -L",
        "nvfakes run h100x8 --driver 550 -- nvidia-smi      the real nvidia-smi of that branch",
        "nvfakes run two-h100 --lane rootless -- env",
    ),
    "shell": ("nvfakes shell mig-h100",),
    "enter": ("nvfakes enter --running 4711 -- nvidia-smi -L",),
    "record": ("nvfakes record > machine.yaml",),
    "ps": ("nvfakes ps", "nvfakes ps --json"),
    "unplug": ("nvfakes unplug 0", "nvfakes unplug 0 --running 4711"),
    "plug": ("nvfakes plug 0",),
    "unload": ("nvfakes unload",),
    "load": ("nvfakes load",),
    "upgrade": ("nvfakes upgrade 570.211.01",),
    "mig": ("nvfakes mig 0 3g.40gb 3g.40gb", "nvfakes mig 0 off"),
    "health": ("nvfakes health 0 xid 79", "nvfakes health 0 ecc 2", "nvfakes health 0 lost", "nvfakes health 0 ok"),
    "slow": ("nvfakes slow 200",),
    "answer": ("nvfakes answer 0 power.current_draw_mw 650000",),
    "remove": ("nvfakes remove /dev/nvidia-uvm",),
    "break": ("nvfakes break /proc/driver/nvidia/version",),
    "restore": ("nvfakes restore /dev/nvidia-uvm",),
    "completion": (
        "nvfakes completion bash > /etc/bash_completion.d/nvfakes",
        "nvfakes completion zsh > /usr/share/zsh/vendor-completions/_nvfakes",
        "nvfakes completion fish > ~/.config/fish/completions/nvfakes.fish",
    ),
    "kernel-hook": ("nvfakes kernel-hook < state.json      runtimes call it, with NVFAKES_ROOT",),
    "runtime-wrapper": ("nvfakes runtime-wrapper ./runtime --runtime /usr/sbin/runc",),
}


def examples(command: str) -> str:
    """Return the end of a command's help."""
    return "".join(("examples:\n", *(f"  {line}\n" for line in EXAMPLES[command])))


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are UsageErrors."""

    def __init__(self, **settings: Any) -> None:
        """Take argparse's own settings."""
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **settings})

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong; argparse would print all options above it."""
        raise UsageError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            near = difflib.get_close_matches(str(value), known, n=1)
            guess = f" (did you mean {near[0]}?)" if near else ""
            name = "/".join(action.option_strings) or str(action.metavar or action.dest)
            what = "unknown command" if name == "COMMAND" else f"{name}: unknown value"
            words = f"{what} {str(value)!r}{guess}; use one of {', '.join(known)}"
            raise argparse.ArgumentError(None, words)
