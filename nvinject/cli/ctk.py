"""nvidia-ctk's commands cdi, config, hook, runtime and system, under its own name and with its global options.

Belongs here: the way to nvinject's commands. Does not belong here: anything that they do.
"""

import os
import sys

from nvinject.cli.messages import DEBUG_VARIABLE, QUIET_VARIABLE
from nvinject.errors import UsageError

HELP = """\
usage: nvidia-ctk [--debug] [--quiet] [--config FILE] (cdi | config | hook | runtime | system) ...

The NVIDIA Container Toolkit's command line, as far as nvinject has it: `nvidia-ctk cdi` is `nvinject cdi`, `nvidia-ctk
hook` is nvidia-cdi-hook; `config`, `runtime configure` and `system` are nvinject's.

  --debug, -d     tell each step on standard error [$NVIDIA_CTK_DEBUG]
  --quiet         tell nothing but errors [$NVIDIA_CTK_QUIET]
  --config FILE   let cdi and system read this config.toml [$NVIDIA_CTK_CONFIG]

examples:
  nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml
  nvidia-ctk runtime configure --runtime=docker
"""

COMMANDS = ("cdi", "config", "hook", "runtime", "system")


def main(arguments: "list[str]") -> int:
    """Run the command that follows the global options."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        flag, equals, value = words.pop(0).lstrip("-").partition("=")
        if flag in {"debug", "d", "quiet"}:
            set_level(flag, value if equals else "true")
        elif flag == "config":
            if not equals and not words:
                raise UsageError("--config needs a file", "give its path after --config")
            os.environ["NVIDIA_CTK_CONFIG"] = value if equals else words.pop(0)
        elif flag in {"version", "v"}:
            from nvinject import __version__

            sys.stdout.write(f"NVIDIA Container Toolkit CLI version {__version__} (nvinject)\n")
            return 0
        elif flag in {"help", "h"}:
            sys.stdout.write(HELP)
            return 0
        else:
            raise UsageError(f"unknown option --{flag}", "nvidia-ctk --help lists the options")
    if words[:1] == ["info"]:  # the original has this word and nothing behind it
        sys.stdout.write(HELP)
        return 0
    if words[:1] and words[0] in COMMANDS:
        return run(words[0], words[1:])
    what = f"nvinject has no command for nvidia-ctk {words[0]}" if words else "which command?"
    raise UsageError(what, f"use one of {', '.join(COMMANDS)}")


def set_level(flag: str, text: str) -> None:
    """Choose how much is told; raises UsageError for what is no boolean."""
    from nvinject.cli.cdioptions import parse_flag

    variable = QUIET_VARIABLE if flag == "quiet" else DEBUG_VARIABLE
    os.environ[variable] = "true" if parse_flag(text, f"--{flag}") else "false"


def run(command: str, words: "list[str]") -> int:
    """Run nvinject's command that stands for one of nvidia-ctk."""
    if command == "hook":
        from nvinject.cli.cdihook import main as run_hook

        return run_hook(words)
    if command == "cdi":
        from nvinject.cli.cdi import main as run_cdi

        return run_cdi(words)
    if command == "system":
        from nvinject.cli.system import main as run_system

        return run_system(words)
    if command == "config":
        from nvinject.cli.config import main as run_config

        return run_config(words, as_original=True)
    if words[:1] != ["configure"]:
        raise UsageError("nvidia-ctk runtime has one command, configure", "nvidia-ctk runtime configure --help")
    from nvinject.cli.configure import main as run_configure

    return run_configure(words[1:], as_original=True)
