"""nvinject cdi: generate, list, explain, validate, inject, transform, refresh and watch CDI specs.

Belongs here: the sub-commands and their options; what one does is in a module of its own, imported when it is chosen.
Does not belong here: any reading or writing. The same commands answer to `nvidia-ctk cdi`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

DESCRIPTION = """\
CDI (Container Device Interface) specs tell container engines what a device needs. podman, docker, containerd and CRI-O
read them from /etc/cdi and /var/run/cdi; a container then asks for a device by its name: --device nvidia.com/gpu=0.
"""

EPILOG = """\
examples:
  nvinject cdi generate --output /etc/cdi/nvidia.yaml    what this host offers, under its index and its UUID
  nvinject cdi list                                      names that can be asked for
  nvinject cdi explain nvidia.com/gpu=0                  which file defines it, or why none does
  nvinject cdi validate                                  do the specs fit the CDI schema, this host and each other?
  nvinject cdi inject --device nvidia.com/gpu=0 --format lxc --in-place /var/lib/lxc/NAME
                                                         give the GPU to a container of LXC
  nvinject cdi watch                                     keep the spec up to date as GPUs and the driver change
"""

# name, module, what it does; the module has main(parsed options) -> exit code
COMMANDS = (
    ("generate", "nvinject.cli.cdigenerate", "write what this host offers as a CDI spec"),
    ("list", "nvinject.cli.cdiread", "list the devices of all specs"),
    ("explain", "nvinject.cli.cdiread", "tell which file defines a device, or why none does"),
    ("validate", "nvinject.cli.cdivalidate", "check specs against the schema, this host and each other"),
    ("inject", "nvinject.cli.cdiread", "put devices into a container's config.json, or its LXC configuration"),
    ("transform", "nvinject.cli.cditransform", "move the paths of a spec to another root"),
    ("refresh", "nvinject.cli.cdirefresh", "write the spec again, whole or not at all"),
    ("watch", "nvinject.cli.cdirefresh", "refresh whenever GPUs or the driver change"),
)


EXAMPLES = {
    "generate": (
        "nvinject cdi generate --output /etc/cdi/nvidia.yaml",
        "nvinject cdi generate --format json --device-id 0 --device-name-strategy uuid",
        "nvinject cdi generate --driver-root /run/nvidia/driver --output /var/run/cdi/nvidia.yaml",
    ),
    "list": ("nvinject cdi list", "nvinject cdi list --spec-dir ./cdi --json"),
    "explain": ("nvinject cdi explain nvidia.com/gpu=0",),
    "validate": ("nvinject cdi validate", "nvinject cdi validate ./nvidia.yaml --json"),
    "inject": (
        "nvinject cdi inject --device nvidia.com/gpu=0 --in-place /run/bundle",
        "nvinject cdi inject --device nvidia.com/gpu=all --format lxc",
    ),
    "transform": ("nvinject cdi transform root --from /run/nvidia/driver --to / --input nvidia.yaml",),
    "refresh": ("nvinject cdi refresh --output /var/run/cdi/nvidia.yaml",),
    "watch": ("nvinject cdi watch --output /var/run/cdi/nvidia.yaml --settle 5",),
}


def parser() -> "argparse.ArgumentParser":
    """Return the options of all sub-commands."""
    from nvinject.cli import cdioptions
    from nvinject.cli.parsers import format_examples, new_parser

    whole = new_parser("nvinject cdi", DESCRIPTION, EPILOG)
    chosen = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made = {
        name: chosen.add_parser(name, help=words, description=words, epilog=format_examples(EXAMPLES[name]))
        for name, _, words in COMMANDS
    }
    cdioptions.add_options(made["generate"], cdioptions.GENERATE_OPTIONS)
    for name in ("refresh", "watch"):
        cdioptions.add_options(made[name], (*cdioptions.GENERATE_OPTIONS, *cdioptions.REFRESH_OPTIONS))
    cdioptions.add_options(made["watch"], cdioptions.WATCH_OPTIONS)
    for name in ("list", "explain", "validate", "inject"):
        cdioptions.add_options(made[name], (cdioptions.SPEC_DIRECTORIES, cdioptions.CONFIG))
    for name in ("list", "explain", "validate"):
        made[name].add_argument("--json", action="store_true", help="print JSON")
    made["explain"].add_argument("names", metavar="NAME", nargs="+", help="a device, such as nvidia.com/gpu=0")
    made["validate"].add_argument("files", metavar="FILE", nargs="*", help="check these instead of the directories")
    cdioptions.add_inject_options(made["inject"])
    cdioptions.add_transform_options(made["transform"])
    return whole


def main(arguments: "list[str]") -> int:
    """Run the sub-command that the arguments name."""
    from nvinject.cli.cdioptions import GENERATE_OPTIONS, read_plainly

    # Engines and units call this one, written out; the parser of everything would double its time.
    parsed: Any = read_plainly(arguments[1:], GENERATE_OPTIONS) if arguments[:1] == ["generate"] else None
    name = "generate"
    if parsed is None:
        parsed = parser().parse_args(arguments)
        name = parsed.command
    module = next(module for known, module, _ in COMMANDS if known == name)
    code: int = __import__(module, fromlist=["main"]).main(parsed)
    return code
