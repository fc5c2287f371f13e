"""config.toml: where it is, what its keys mean, and what is wrong with it.

Belongs here: reading the original's config.toml into a Policy, with the original's keys and defaults and our own table
[nvinject]. Does not belong here: what a setting leads to, and what is needed before the file is parsed (configfile.py).
"""

from nvinject.configfile import CONFIG_VARIABLE, read_bytes, split_names
from nvinject.core.policy import DRIVER_CAPABILITIES, LAYOUTS, ON_MISSING, Features, Policy, Roots
from nvinject.core.sources import clean_path
from nvinject.errors import ConfigurationError, printable, quoted
from nvinject.formats.plaintoml import parse_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

BOOLEAN = "a boolean (true or false)"
INTEGER = "an integer"
STRING = "a string"
STRINGS = "an array of strings"
TABLE = "a table"

# Every key, the type of its value, and the field of Policy that it sets; a field in Features or Roots has their name
# before it. Keys without a field are the original's, are checked for their type, and matter to programs that the hook
# does not need (its command line tool, runtime shims, CDI generation).
KEYS = (
    ("disable-require", BOOLEAN, "disable_require"),
    ("swarm-resource", STRING, "swarm_resource"),
    ("accept-nvidia-visible-devices-envvar-when-unprivileged", BOOLEAN, "accept_envvar_unprivileged"),
    ("accept-nvidia-visible-devices-as-volume-mounts", BOOLEAN, "accept_volume_mounts"),
    ("supported-driver-capabilities", STRING, "supported_driver_capabilities"),
    ("nvidia-container-cli.root", STRING, "roots.driver"),
    ("nvidia-container-cli.path", STRING, ""),
    ("nvidia-container-cli.environment", STRINGS, ""),
    ("nvidia-container-cli.debug", STRING, "debug"),
    ("nvidia-container-cli.ldcache", STRING, "ldcache"),
    ("nvidia-container-cli.load-kmods", BOOLEAN, "load_kmods"),
    ("nvidia-container-cli.no-pivot", BOOLEAN, ""),
    ("nvidia-container-cli.no-cgroups", BOOLEAN, "no_cgroups"),
    ("nvidia-container-cli.user", STRING, ""),
    ("nvidia-container-cli.ldconfig", STRING, "ldconfig"),
    ("nvidia-container-runtime.debug", STRING, "runtime_debug"),
    ("nvidia-container-runtime.log-level", STRING, ""),
    ("nvidia-container-runtime.runtimes", STRINGS, "runtimes"),
    ("nvidia-container-runtime.mode", STRING, "mode"),
    ("nvidia-container-runtime.modes.cdi.default-kind", STRING, "cdi_default_kind"),
    ("nvidia-container-runtime.modes.cdi.annotation-prefixes", STRINGS, "cdi_annotation_prefixes"),
    ("nvidia-container-runtime.modes.cdi.spec-dirs", STRINGS, "cdi_spec_dirs"),
    ("nvidia-container-runtime.modes.csv.mount-spec-path", STRING, "csv_mount_spec_path"),
    ("nvidia-container-runtime.modes.csv.compat-container-root", STRING, "csv_compat_root"),
    ("nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags", STRINGS, "jit_feature_flags"),
    ("nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks", STRINGS, ""),
    ("nvidia-container-runtime.modes.legacy.cuda-compat-mode", STRING, "cuda_compat_mode"),
    ("nvidia-container-runtime-hook.path", STRING, "hook_path"),
    ("nvidia-container-runtime-hook.skip-mode-detection", BOOLEAN, "skip_mode_detection"),
    ("nvidia-ctk.path", STRING, ""),
    ("features.allow-cuda-compat-libs-from-container", BOOLEAN, "features.allow_cuda_compat_libs_from_container"),
    ("features.allow-ldconfig-from-container", BOOLEAN, "features.allow_ldconfig_from_container"),
    ("features.allow-unknown-oci-spec-fields", BOOLEAN, "features.allow_unknown_oci_spec_fields"),
    ("features.disable-cuda-compat-lib-hook", BOOLEAN, "features.disable_cuda_compat_lib_hook"),
    ("features.disable-imex-channel-creation", BOOLEAN, "features.disable_imex_channel_creation"),
    ("features.ignore-imex-channel-requests", BOOLEAN, "features.ignore_imex_channel_requests"),
    ("features.no-additional-gids-for-device-nodes", BOOLEAN, "features.no_additional_gids_for_device_nodes"),
    ("nvinject.dev-root", STRING, "roots.dev"),
    ("nvinject.proc-root", STRING, "roots.proc"),
    ("nvinject.sys-root", STRING, "roots.sys"),
    ("nvinject.nvml-timeout", INTEGER, "nvml_timeout"),
    ("nvinject.write-rootfs", BOOLEAN, "write_rootfs"),
    ("nvinject.library-layout", STRING, "library_layout"),
    ("nvinject.leave-out", STRINGS, "leave_out"),
    ("nvinject.missing-extras", STRING, "missing_extras"),
    ("nvinject.missing-memory-limits", STRING, "missing_memory_limits"),
    ("nvinject.create-imex-channels", BOOLEAN, "create_imex_channels"),
    ("nvinject.mps-pipe-directory", STRING, "mps_pipe_directory"),
    ("nvinject.mps-log-directory", STRING, "mps_log_directory"),
)

# Fields whose values are words of a list.
_CHOICES = ("leave_out", "library_layout", "missing_extras", "missing_memory_limits")
_COMPAT_MODES = ("ldconfig", "mount", "disabled", "hook")


def load_policy(path: str, required: bool) -> tuple[Policy, tuple[str, ...]]:  # noqa: FBT001  # find_config's answer
    """Return the policy that the file holds, and a warning for each key that nobody knows.

    Without the file, which may be missing unless it is required, everything has its default. Raises ConfigurationError
    naming the file and, where there is one, the line and the key.
    """
    text = _read_text(path, required=required)
    if text is None:
        return Policy(), ()
    return check_text(path, text)


def check_text(path: str, text: str) -> tuple[Policy, tuple[str, ...]]:
    """Return what load_policy would make of a file with this text; raises ConfigurationError as it does."""
    return _Reading(path, text).policy()


def _read_text(path: str, *, required: bool) -> str | None:
    """Return the content, or None where the file is missing and may be."""
    try:
        # A byte order mark is no TOML, but the original reads on behind it.
        return read_bytes(path).decode().removeprefix("\ufeff")
    except (FileNotFoundError, NotADirectoryError) as error:
        if not required:
            return None
        hint = f"create it, or name another file with {CONFIG_VARIABLE}"
        raise ConfigurationError(f"{path} does not exist", hint) from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", "the hook must be able to read it") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}, line {line}: not UTF-8 text", "TOML files are UTF-8") from error


class _Reading:
    """One reading of one file: its text, and what was found on the way."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.values: dict[str, Any] = {}
        self.warnings: list[str] = []

    def policy(self) -> tuple[Policy, tuple[str, ...]]:
        """Return policy and warnings."""
        known = {tuple(key.split(".")): (kind, field) for key, kind, field in KEYS}
        tables = _tables_of(known)
        for key, value in _flatten(_parse(self.path, self.text), tables):
            if key in known:
                self.take(key, value, *known[key])
            elif key in tables:
                raise self.error(key, f"must be {TABLE}, found {_kind_of(value)}")
            else:
                self.warnings.append(self.unknown(key, known))
        self.convert()
        return self.build(), tuple(self.warnings)

    def take(self, key: tuple[str, ...], value: object, kind: str, field: str) -> None:
        """Check the type of a value and keep it for its field."""
        found = _kind_of(value)
        # An empty array is an array of strings as well.
        if found != kind and not (kind == STRINGS and value == []):
            raise self.error(key, f"must be {kind}, found {found}")
        if field:
            self.values[field] = value

    def convert(self) -> None:
        """Turn the values of the file into those of Policy, and refuse what cannot be."""
        values = self.values
        if "swarm_resource" in values:
            values["swarm_resource"] = split_names(values["swarm_resource"])
        if "supported_driver_capabilities" in values:
            values["supported_driver_capabilities"] = self.capabilities(values["supported_driver_capabilities"])
        for field in ("roots.driver", "roots.dev", "roots.proc", "roots.sys"):
            if field in values:
                values[field] = self.root(field, values[field])
        for field in ("mps_pipe_directory", "mps_log_directory", "csv_mount_spec_path", "csv_compat_root"):
            if field in values:
                values[field] = self.directory(field, values[field]) or getattr(Policy(), field)
        for field in ("runtimes", "cdi_annotation_prefixes", "cdi_spec_dirs", "jit_feature_flags", "leave_out"):
            if field in values:
                values[field] = tuple(values[field])
        if values.get("runtimes") == ():
            raise self.error(_key_of("runtimes"), "is empty", 'write for example runtimes = ["runc", "crun"]')
        self.check_choices()
        self.check_ldconfig()
        self.check_compat_mode()
        if not 1 <= values.get("nvml_timeout", 1) <= 600:
            raise self.error(("nvinject", "nvml-timeout"), "must be between 1 and 600 seconds")

    def build(self) -> Policy:
        """Return the policy of the converted values; a field that the file does not set keeps its default."""
        parts: dict[str, dict[str, Any]] = {"": {}, "roots": {}, "features": {}}
        for field, value in self.values.items():
            part, _, name = field.rpartition(".")
            parts[part][name] = value
        return Policy(**parts[""], roots=Roots(**parts["roots"]), features=Features(**parts["features"]))

    def capabilities(self, value: str) -> tuple[str, ...]:
        """Return the driver capabilities that containers may have."""
        names = split_names(value)
        if "all" in names:
            return DRIVER_CAPABILITIES
        unknown = [name for name in names if name not in DRIVER_CAPABILITIES]
        if unknown:
            raise self.error(
                ("supported-driver-capabilities",),
                f"has unknown capabilities: {', '.join(map(quoted, unknown))}",
                f"there are all, {', '.join(DRIVER_CAPABILITIES)}",
            )
        return tuple(sorted(set(names)))

    def root(self, field: str, value: str) -> str:
        """Return an absolute directory without superfluous slashes; an empty value is the default."""
        default: str = getattr(Roots(), field.removeprefix("roots."))
        return self.directory(field, value) or default

    def directory(self, field: str, value: str) -> str:
        """Return an absolute directory without superfluous slashes, "" for an empty value."""
        if value and not value.startswith("/"):
            raise self.error(_key_of(field), f"must be an absolute path, found {quoted(value)}")
        return clean_path(value) if value else ""

    def check_choices(self) -> None:
        """Refuse values of our own keys that are none of their words."""
        for field in [name for name in self.values if name in _CHOICES]:
            value = self.values[field]
            allowed = _choices_of(field)
            wrong = [word for word in (value if isinstance(value, tuple) else (value,)) if word not in allowed]
            if wrong:
                raise self.error(_key_of(field), f"has {quoted(wrong[0])}", f"use {', '.join(allowed)}")

    def check_ldconfig(self) -> None:
        """Refuse the container's own ldconfig, which would be run with the host's rights."""
        value = self.values.get("ldconfig", "@")
        if not value.startswith("@") and not self.values.get("features.allow_ldconfig_from_container"):
            raise self.error(
                ("nvidia-container-cli", "ldconfig"),
                f"must begin with '@', which means the host's program, found {quoted(value)}",
                'write for example ldconfig = "@/sbin/ldconfig"',
            )

    def check_compat_mode(self) -> None:
        """Replace an unknown mode as the original does: disabled, or mount where containers may bring libraries."""
        value = self.values.get("cuda_compat_mode", _COMPAT_MODES[0])
        if value == "hook" and self.values.get("features.disable_cuda_compat_lib_hook"):
            self.values["cuda_compat_mode"] = "disabled"
        if value not in _COMPAT_MODES:
            allowed = self.values.get("features.allow_cuda_compat_libs_from_container")
            self.values["cuda_compat_mode"] = instead = "mount" if allowed else "disabled"
            where = self.place(_key_of("cuda_compat_mode"))
            self.warnings.append(
                f"{where} is {quoted(value)}, which is taken as {instead}; there are {', '.join(_COMPAT_MODES)}"
            )

    def unknown(self, key: tuple[str, ...], known: "Mapping[tuple[str, ...], object]") -> str:
        """Return the warning for a key that nobody knows, with one of its name elsewhere, else the nearest."""
        import difflib  # only here: costs more than the rest of the reading

        elsewhere = [name for name in known if name[-1] == key[-1]]
        candidates = [".".join(name) for name in elsewhere or known]
        near = difflib.get_close_matches(".".join(key), candidates, n=1, cutoff=0.0 if elsewhere else 0.6)
        return f"{self.place(key)} is an unknown key" + (f"; did you mean {near[0]}?" if near else "")

    def error(self, key: tuple[str, ...], problem: str, hint: str = "") -> ConfigurationError:
        """Return the error for a key of this file."""
        return ConfigurationError(f"{self.place(key)} {problem}", hint)

    def place(self, key: tuple[str, ...]) -> str:
        """Return file, line and name of a key."""
        line = _line_of(self.text, key)
        return printable(f"{self.path}{f', line {line}' if line else ''}: {'.'.join(key)}")


def _choices_of(field: str) -> tuple[str, ...]:
    """Return the words that a field may hold."""
    if field == "library_layout":
        return LAYOUTS
    if field != "leave_out":
        return ON_MISSING
    from nvinject.core.catalog import OPTIONAL_PARTS  # read for few nodes, and not by all who read the configuration

    return OPTIONAL_PARTS


def _parse(path: str, text: str) -> "dict[str, Any]":
    plain = parse_plain(text)
    if plain is not None:
        return plain

    import tomllib  # only here: 10 ms, for what is beyond the usual way to write the file

    try:
        return tomllib.loads(text)
    # ValueError is the parser's own error and int()'s limit on digits; the parser recurses into nested arrays.
    except (ValueError, RecursionError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        problem, line, column = _locate(message, text)
        place = f", line {line}, column {column}" if line else ""
        hint = "mend the file; strings are quoted in TOML" if "value" in problem else "mend the file"
        raise ConfigurationError(f"{path}{place}: {problem}", hint) from error


def _locate(message: str, text: str) -> tuple[str, int, int]:
    """Split the parser's message in problem, line and column (0 where it has none)."""
    problem, found, place = message.partition(" (at ")
    problem = problem[:1].lower() + problem[1:]
    place = place.rstrip(")")
    if place == "end of document":
        lines = text.split("\n")
        return problem, len(lines), len(lines[-1]) + 1
    numbers = [word.rstrip(",") for word in place.split() if word.rstrip(",").isdecimal()]
    if not found or len(numbers) != 2:
        return problem, 0, 0
    return problem, int(numbers[0]), int(numbers[1])


def _tables_of(keys: "Mapping[tuple[str, ...], object]") -> set[tuple[str, ...]]:
    return {key[:length] for key in keys for length in range(len(key))}


def _flatten(
    document: "dict[str, Any]", tables: set[tuple[str, ...]], prefix: tuple[str, ...] = ()
) -> "Iterator[tuple[tuple[str, ...], Any]]":
    """Yield full keys and values, descending only into the tables that are known."""
    for name, value in document.items():
        key = (*prefix, name)
        if key in tables and isinstance(value, dict):
            yield from _flatten(value, tables, key)
        else:
            yield key, value


def _key_of(field: str) -> tuple[str, ...]:
    return next(tuple(key.split(".")) for key, _, known in KEYS if known == field)


def _kind_of(value: object) -> str:
    if isinstance(value, list):
        return STRINGS if value and all(isinstance(item, str) for item in value) else "an array"
    kinds = ((bool, BOOLEAN), (int, INTEGER), (str, STRING), (dict, TABLE), (float, "a number"))
    return next((text for kind, text in kinds if isinstance(value, kind)), "a date or time")


def _line_of(text: str, wanted: tuple[str, ...]) -> int:
    """Return the line where a key or table stands, 0 if it is written in a way that this search does not know."""
    table: tuple[str, ...] = ()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith("["):
            table = _key_parts(line.strip("[").partition("]")[0])
            found = table
        else:
            found = (*table, *_key_parts(line.partition("=")[0])) if "=" in line else ()
        if found == wanted:
            return number
    return 0


def _key_parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))
