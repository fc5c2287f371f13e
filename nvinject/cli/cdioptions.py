"""Options of the cdi commands: what they are called, which environment variable stands in, what they default to.

Belongs here: the tables and their reading. Names, variables and defaults are the original's (nvidia-ctk cdi), so that a
unit file or a script need not change; options of our own have no variable. Does not belong here: what an option does.
"""

from nvinject.core.naming import DEFAULT_STRATEGIES
from nvinject.errors import UsageError
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from typing import Any

DEFAULT_OUTPUT = "/var/run/cdi/nvidia.yaml"
INJECT_FORMATS = ("oci", "lxc")
MODES = ("auto", "csv", "gdrcopy", "gds", "imex", "management", "mofed", "nvml", "nvswitch", "wsl")
STAMPS = ("comment", "annotations", "none")
CTK = "NVIDIA_CTK_CDI_"
GENERATE = f"{CTK}GENERATE_"


class Option(Record):
    """One option. `kind` is text, flag or list; `variable` is its environment variable, "" for none."""

    flags: tuple[str, ...]
    help: str
    kind: str = "text"
    variable: str = ""
    default: tuple[str, ...] = ()
    metavar: str = ""

    @property
    def destination(self) -> str:
        """Return the name of the parsed value."""
        return self.flags[0].lstrip("-").replace("-", "_").replace(".", "_")


OUTPUT = Option(
    flags=("--output",),
    variable=f"{CTK}OUTPUT_FILE_PATH",
    metavar="FILE",
    help="write here; .json or .yaml decides the format (default: standard output)",
)
SPEC_DIRECTORIES = Option(
    flags=("--spec-dir",),
    kind="list",
    variable=f"{CTK}SPEC_DIRS",
    default=("/etc/cdi", "/var/run/cdi"),
    metavar="DIR",
    help="read specs here; later directories win (default: /etc/cdi, /var/run/cdi)",
)
CONFIG = Option(
    flags=("--config",), variable="NVIDIA_CTK_CONFIG", metavar="FILE", help="read this config.toml; it must exist"
)
GENERATE_OPTIONS = (
    OUTPUT,
    Option(
        flags=("--format",), variable=f"{GENERATE}OUTPUT_FORMAT", metavar="FORMAT", help="yaml or json (default: yaml)"
    ),
    Option(
        flags=("--mode", "--discovery-mode"),
        variable=f"{GENERATE}MODE",
        default=("auto",),
        metavar="MODE",
        help=f"what to generate: {', '.join(MODES)} (default: auto)",
    ),
    Option(
        flags=("--driver-root",),
        variable="NVIDIA_CTK_DRIVER_ROOT",
        metavar="DIR",
        help="where the driver's files are (default: nvidia-container-cli.root of config.toml)",
    ),
    Option(
        flags=("--dev-root",),
        variable="NVIDIA_CTK_DEV_ROOT",
        metavar="DIR",
        help="where dev/nvidia* is (default: the driver root if it has nodes, else /)",
    ),
    Option(
        flags=("--device-name-strategy",),
        kind="list",
        variable=f"{GENERATE}DEVICE_NAME_STRATEGIES",
        default=DEFAULT_STRATEGIES,
        metavar="STRATEGY",
        help="index, uuid or type-index; several give each device several names (default: index, uuid)",
    ),
    Option(
        flags=("--device-id", "--device-ids", "--device", "--devices"),
        kind="list",
        variable=f"{GENERATE}DEVICE_IDS",
        default=("all",),
        metavar="ID",
        help="only these: index, index:index, UUID, or a channel in mode imex (default: all)",
    ),
    Option(
        flags=("--no-all-device",),
        kind="flag",
        variable=f"{GENERATE}NO_ALL_DEVICE",
        help="no device `all` that stands for every other one",
    ),
    Option(
        flags=("--vendor", "--cdi-vendor"),
        variable=f"{GENERATE}VENDOR",
        metavar="NAME",
        help="vendor in the kind of the devices (default: nvidia.com; management.nvidia.com in mode management)",
    ),
    Option(
        flags=("--class", "--cdi-class"),
        variable=f"{GENERATE}CLASS",
        metavar="NAME",
        help="class in the kind of the devices (default: gpu, or one for the mode)",
    ),
    Option(
        flags=("--nvidia-cdi-hook-path", "--nvidia-ctk-path"),
        variable=f"{CTK}HOOK_PATH",
        metavar="PATH",
        help="the program that runs as hook (default: nvidia-cdi-hook or nvinject on PATH)",
    ),
    Option(
        flags=("--ldconfig-path",),
        variable=f"{GENERATE}LDCONFIG_PATH",
        metavar="PATH",
        help="handed to the hook update-ldcache, for the original's; ours writes the loader cache itself",
    ),
    Option(
        flags=("--disable-hook", "--disable-hooks"),
        kind="list",
        variable=f"{GENERATE}DISABLED_HOOKS",
        metavar="HOOK",
        help="leave out this hook, or all",
    ),
    Option(
        flags=("--enable-hook", "--enable-hooks"),
        kind="list",
        variable=f"{GENERATE}ENABLED_HOOKS",
        metavar="HOOK",
        help="keep this hook whatever is disabled; apply-cuda-memory-limits is written only so",
    ),
    Option(
        flags=("--feature-flag", "--feature-flags"),
        kind="list",
        variable=f"{GENERATE}FEATURE_FLAGS",
        metavar="FLAG",
        help="no-additional-gids-for-device-nodes, disable-ipc-discoverer, disable-multiple-csv-devices",
    ),
    Option(
        flags=("--csv.file",),
        kind="list",
        variable=f"{GENERATE}CSV_FILES",
        metavar="FILE",
        help="in mode csv, read this mount specification (default: devices.csv, drivers.csv and l4t.csv of "
        "nvidia-container-runtime.modes.csv.mount-spec-path)",
    ),
    Option(
        flags=("--csv.ignore-pattern",),
        kind="list",
        variable=f"{GENERATE}CSV_IGNORE_PATTERNS",
        metavar="PATTERN",
        help="in mode csv, leave out the sym entries whose path matches, or whose name does if it begins with **/",
    ),
    Option(
        flags=("--csv.compat-container-root",),
        variable=f"{GENERATE}CSV_CONTAINER_COMPAT_ROOT",
        metavar="DIR",
        help="in mode csv, where images have CUDA libraries for Orin (default: /usr/local/cuda/compat_orin)",
    ),
    Option(
        flags=("--library-search-path",),
        kind="list",
        variable=f"{GENERATE}LIBRARY_SEARCH_PATHS",
        metavar="DIR",
        help="look for libraries here first, below the driver root",
    ),
    Option(
        flags=("--config-search-path",),
        kind="list",
        variable=f"{GENERATE}CONFIG_SEARCH_PATHS",
        metavar="DIR",
        help="look here first, below the driver root, for the files that dispatchers of Vulkan, EGL and OpenCL read",
    ),
    Option(
        flags=("--capability",),
        kind="list",
        metavar="NAME",
        help="only files of these driver capabilities (default: the whole driver without compat32)",
    ),
    Option(flags=("--per-device",), kind="flag", help="one file for each device, in the directory that --output names"),
    Option(
        flags=("--stamp",),
        default=("comment",),
        metavar="HOW",
        help="note driver version and devices as comment (only YAML has them), annotations (need CDI 0.6.0) or none",
    ),
    CONFIG,
)


REFRESH_OPTIONS = (
    Option(
        flags=("--allow-missing",),
        kind="flag",
        help="write the spec although the driver shows fewer GPUs than the PCI bus",
    ),
)
WATCH_OPTIONS = (
    Option(
        flags=("--settle",),
        default=("2",),
        metavar="SECONDS",
        help="wait until nothing has changed for so long (default: 2)",
    ),
    Option(
        flags=("--interval",),
        default=("60",),
        metavar="SECONDS",
        help="look for changes that nothing reported at least this often (default: 60)",
    ),
)


def add_options(parser: "argparse.ArgumentParser", table: tuple[Option, ...]) -> None:
    """Teach a parser the options of a table."""
    for option in table:
        words: dict[str, Any] = {"dest": option.destination, "help": option.help}
        if option.kind == "flag":
            words.update(action="store_const", const="true")
        else:
            words["metavar"] = option.metavar
            if option.kind == "list":
                words["action"] = "append"
        if option.variable:
            words["help"] += f" [${option.variable}]"
        parser.add_argument(*option.flags, **words)


class Parsed:
    """What argparse.Namespace is: an object with one attribute an option."""

    def __init__(self, values: "Mapping[str, Any]") -> None:
        """Take the values by destination."""
        self.__dict__.update(values)


def read_plainly(words: "Sequence[str]", table: tuple[Option, ...]) -> Parsed | None:
    """Return what argparse makes of a command line that is written out: whole names, each value in place.

    None for any other: abbreviations, help and mistakes are argparse's, whose import takes as long as the rest of
    generating a spec.
    """
    known = {flag: option for option in table for flag in option.flags}
    values: dict[str, Any] = {option.destination: None for option in table}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        option = known.get(name)
        if option is None or not name.startswith("--"):
            return None
        if option.kind == "flag":
            if equals:
                return None
            values[option.destination] = "true"
            continue
        if not equals:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        if option.kind == "list":
            values[option.destination] = [*(values[option.destination] or ()), value]
        else:
            values[option.destination] = value
    return Parsed(values)


def add_inject_options(parser: "argparse.ArgumentParser") -> None:
    """Teach a parser the options of `inject`."""
    parser.add_argument(
        "container",
        metavar="CONFIG",
        nargs="?",
        default="",
        help="a config.json, a bundle, or - for standard input; with --format lxc a container's configuration or its "
        "folder (without one, only the lines that belong there are printed)",
    )
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        choices=INJECT_FORMATS,
        default=INJECT_FORMATS[0],
        help=f"whose configuration it is: {' or '.join(INJECT_FORMATS)} (default: {INJECT_FORMATS[0]})",
    )
    parser.add_argument(
        "--device", metavar="NAME", action="append", required=True, help="a device, such as nvidia.com/gpu=0"
    )
    parser.add_argument(
        "--rootfs",
        metavar="DIR",
        default="",
        help="with --format lxc: the root file system whose links are followed (default: lxc.rootfs.path of CONFIG)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--in-place", action="store_true", help="change the file")
    where.add_argument("--output", metavar="FILE", default="", help="write here (default: standard output)")


def add_transform_options(parser: "argparse.ArgumentParser") -> None:
    """Teach a parser the options of `transform root`."""
    kinds = parser.add_subparsers(dest="transformation", metavar="root", required=True)
    root = kinds.add_parser(
        "root", help="replace the root of paths", description="Replaces the root of paths.", epilog=parser.epilog
    )
    root.add_argument("--from", dest="source", metavar="DIR", default="", help="the root that paths have")
    root.add_argument("--to", dest="target", metavar="DIR", default="", help="the root that they shall have")
    root.add_argument("--input", metavar="FILE", default="-", help="the spec (default: standard input)")
    root.add_argument("--output", metavar="FILE", default="", help="write here (default: standard output)")
    root.add_argument(
        "--relative-to", metavar="SIDE", default="host", help="host or container: whose paths (default: host)"
    )


def read_options(
    parsed: "argparse.Namespace", table: tuple[Option, ...], environ: "Mapping[str, str]"
) -> "dict[str, Any]":
    """Return the options by destination: from the command line, else the environment, else the default.

    Lists are split at commas, as the original does. Raises UsageError for a variable that is no boolean.
    """
    values: dict[str, Any] = {}
    for option in table:
        given = getattr(parsed, option.destination)
        if given is None and option.variable in environ:
            given = [environ[option.variable]] if option.kind == "list" else environ[option.variable]
        if option.kind == "list":
            values[option.destination] = option.default if given is None else split(given)
        elif option.kind == "flag":
            values[option.destination] = given is not None and parse_flag(given, option.variable)
        else:
            values[option.destination] = given if given is not None else (option.default or ("",))[0]
    return values


def split(words: "list[str]") -> tuple[str, ...]:
    """Return the non-empty parts between commas."""
    return tuple(part for word in words for part in word.split(",") if part)


def parse_flag(text: str, variable: str) -> bool:
    """Return a boolean as Go's strconv.ParseBool reads it; an empty variable is false."""
    if text in {"1", "t", "T", "true", "TRUE", "True"}:
        return True
    if text in {"", "0", "f", "F", "false", "FALSE", "False"}:
        return False
    raise UsageError(f"{variable}={text} is no boolean", "use true or false")
