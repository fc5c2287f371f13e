"""The options of the original's other programs (hook, runtimes, nvidia-ctk, nvidia-cdi-hook), as in options.py.

Belongs here: rows. A name may list an option's other names and its variables; each is run in place of the first. Does
not belong here: running them (test_compat_programs.py).
"""

from .options import Option

HOOK = "nvidia-container-runtime-hook"
RUNTIME = "nvidia-container-runtime"
CTK = "nvidia-ctk"
GENERATE = "nvidia-ctk cdi generate"
CDI_HOOK = "nvidia-cdi-hook"

ASKS = f"{HOOK} @ prestart <$T/state"
LINES = "lines have another form"
HOOK_OPTIONS = (
    Option(HOOK, "prestart", f"{HOOK} @ <$T/state", "prestart", why="injects in the same process, all or nothing"),
    Option(HOOK, "poststart", f"{HOOK} @ <$T/state", "poststart"),
    Option(HOOK, "poststop", f"{HOOK} @ <$T/state", "poststop"),
    Option(HOOK, "-config, --config, $NVIDIA_CTK_CONFIG_FILE_PATH", ASKS, "-config $T/other.toml"),
    Option(
        HOOK,
        "$XDG_CONFIG_HOME",
        f"unset NVIDIA_CTK_CONFIG_FILE_PATH; @ {ASKS.replace(' @', '')}",
        "XDG_CONFIG_HOME=$T/xdg",
    ),
    Option(HOOK, "-debug, --debug", ASKS, "-debug", why=f"tells each step on standard error; {LINES}"),
    Option(HOOK, "-version, --version", ASKS, "-version"),
)

CREATE = f"{RUNTIME} @ create --bundle $T/bundle id"
SHIM = "the configuration file is written anew only for a container that asks for GPUs; `run` is served as `create` is"
RUNTIME_OPTIONS = (
    Option(RUNTIME, "create", f"{RUNTIME} @ --bundle $T/bundle id", "create", why=SHIM),
    Option(RUNTIME, "--bundle, -bundle, -b", f"{RUNTIME} create @ id", "--bundle $T/bundle"),
    Option(RUNTIME, "--log", f"{RUNTIME} --debug @ create --bundle $T/bundle id", "--log $T/log", why=LINES),
    Option(
        RUNTIME, "--log-format", f"{RUNTIME} --debug --log $T/log @ create --bundle $T/bundle id", "--log-format json"
    ),
    Option(RUNTIME, "--debug", f"{RUNTIME} --log $T/log @ create --bundle $T/bundle id", "--debug"),
    Option(RUNTIME, "--version, -version", f"{RUNTIME} @ state id", "--version"),
    Option(
        RUNTIME,
        "$NVIDIA_CTK_CONFIG_FILE_PATH",
        f"@ {CREATE.replace(' @', '')}",
        "NVIDIA_CTK_CONFIG_FILE_PATH=$T/other.toml",
    ),
    Option(
        RUNTIME,
        "$XDG_CONFIG_HOME",
        f"unset NVIDIA_CTK_CONFIG_FILE_PATH; @ {CREATE.replace(' @', '')}",
        "XDG_CONFIG_HOME=$T/xdg",
    ),
    Option(f"{RUNTIME}.cdi", "create", f"{RUNTIME}.cdi @ --bundle $T/bundle id", "create", why=SHIM),
    Option(
        f"{RUNTIME}.legacy",
        "create",
        f"{RUNTIME}.legacy @ --bundle $T/bundle id",
        "create",
        why="the hook that it adds has an environment of its own",
    ),
)

SET = f"{CTK} @ config --config-file $T/set.toml --set disable-require -i"
CTK_OPTIONS = (
    Option(CTK, "--debug, -d, $NVIDIA_CTK_DEBUG", SET, "--debug", why=LINES),
    Option(
        CTK,
        "--quiet, $NVIDIA_CTK_QUIET",
        f"{CTK} @ runtime configure --config $T/daemon.json --state-dir $T/s",
        "--quiet",
    ),
    Option(
        CTK,
        "--config, $NVIDIA_CTK_CONFIG",
        f"{CTK} @ cdi generate",
        "--config $T/rooted.toml",
        why="every command of cdi and system reads it, not only cdi generate",
    ),
    Option(CTK, "--version, -v", f"{CTK} @ cdi list", "--version"),
    Option(CTK, "--help, -h", f"{CTK} @ cdi list", "--help"),
    Option(CTK, "info", f"{CTK} @", "info"),
    Option(CTK, "hook", f"{CTK} @ chmod --mode 700 --path /file --container-spec $T/state", "hook"),
    Option(CTK, "cdi", f"{CTK} @ list", "cdi"),
    Option(CTK, "config", f"{CTK} @ default", "config"),
    Option(CTK, "runtime", f"{CTK} @ configure --dry-run --config $T/daemon.json", "runtime"),
    Option(
        CTK,
        "system",
        f"{CTK} @ create-device-nodes --control-devices --dry-run",
        "system",
        why="print-ldcache is there, too",
    ),
)


def generate(name: str, given: str, line: str = f"{GENERATE} @", **more: "str | bool") -> Option:
    """Return an option of `cdi generate`."""
    return Option(GENERATE, name, line, given, **more)  # type: ignore[arg-type]


_V = "$NVIDIA_CTK_CDI_GENERATE"
LISTS = f"{GENERATE} --mode csv --csv.file $T/lists.csv"
GENERATE_OPTIONS = (
    generate(f"--config-search-path, {_V}_CONFIG_SEARCH_PATHS", "--config-search-path $T/configs"),
    generate("--output, $NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", "--output $T/out/spec.yaml", why="whole, or not at all"),
    generate(f"--format, {_V}_OUTPUT_FORMAT", "--format json"),
    generate(
        f"--mode, --discovery-mode, {_V}_MODE",
        "--mode management",
        why="wsl is refused",
    ),
    generate("--dev-root, $NVIDIA_CTK_DEV_ROOT", "--dev-root $T/empty"),
    generate(f"--device-name-strategy, {_V}_DEVICE_NAME_STRATEGIES", "--device-name-strategy type-index"),
    generate("--driver-root, $NVIDIA_CTK_DRIVER_ROOT", "--driver-root $T/empty"),
    generate(f"--library-search-path, {_V}_LIBRARY_SEARCH_PATHS", "--library-search-path $T/libraries"),
    generate(
        "--nvidia-cdi-hook-path, --nvidia-ctk-path, $NVIDIA_CTK_CDI_HOOK_PATH",
        "--nvidia-cdi-hook-path=/opt/hook",
        why="a relative path is refused: a runtime would look for it in the container",
    ),
    generate(
        f"--ldconfig-path, {_V}_LDCONFIG_PATH",
        "--ldconfig-path /opt/ldconfig",
        why="is written into the spec for the original's hook; nvinject's own writes the loader cache itself",
    ),
    generate(f"--vendor, --cdi-vendor, {_V}_VENDOR", "--vendor example.com"),
    generate(f"--class, --cdi-class, {_V}_CLASS", "--class card"),
    generate(f"--csv.file, {_V}_CSV_FILES", "--csv.file $T/lists.csv", line=f"{GENERATE} --mode csv @"),
    generate(
        f"--csv.ignore-pattern, {_V}_CSV_IGNORE_PATTERNS", "--csv.ignore-pattern **/libcuda.so.1", line=f"{LISTS} @"
    ),
    generate(
        f"--csv.compat-container-root, {_V}_CSV_CONTAINER_COMPAT_ROOT",
        "--csv.compat-container-root /opt/compat",
        line=f"{LISTS} @",
        idle=True,
        why="has an effect with an Orin's GPU, for which alone images have such a folder",
    ),
    generate(f"--disable-hook, --disable-hooks, {_V}_DISABLED_HOOKS", "--disable-hook all"),
    generate(
        f"--enable-hook, --enable-hooks, {_V}_ENABLED_HOOKS",
        "--enable-hook update-ldcache",
        line=f"{GENERATE} --disable-hook all @",
    ),
    generate(
        f"--feature-flag, --feature-flags, {_V}_FEATURE_FLAGS",
        "--feature-flag disable-ipc-discoverer",
        why="disable-ipc-discoverer, disable-multiple-csv-devices and no-additional-gids-for-device-nodes; "
        "any other one is a warning",
    ),
    generate(f"--no-all-device, {_V}_NO_ALL_DEVICE", "--no-all-device"),
    generate(f"--device-id, --device-ids, --device, --devices, {_V}_DEVICE_IDS", "--device-id 1"),
)

CDI_LIST = "nvidia-ctk cdi list"
TRANSFORM = "nvidia-ctk cdi transform root"
MOVE = f"{TRANSFORM} --from=/usr --to=/opt --input $T/specs/nvidia.yaml"
CDI_OPTIONS = (
    *GENERATE_OPTIONS,
    Option(CDI_LIST, "--spec-dir, $NVIDIA_CTK_CDI_SPEC_DIRS", f"{CDI_LIST} @", "--spec-dir $T/specs"),
    Option(TRANSFORM, "--from", f"{TRANSFORM} --to=/opt --input $T/specs/nvidia.yaml @", "--from=/usr"),
    Option(TRANSFORM, "--to", f"{TRANSFORM} --from=/usr --input $T/specs/nvidia.yaml @", "--to=/opt"),
    Option(TRANSFORM, "--input", f"{TRANSFORM} @ </dev/null", "--input $T/specs/nvidia.yaml"),
    Option(TRANSFORM, "--output", f"{MOVE} @", "--output $T/out/moved.yaml", why="whole, or not at all"),
    Option(TRANSFORM, "--relative-to", f"{MOVE} @", "--relative-to container"),
)

WHERE = "--container-spec $T/state"
COMPAT_VERSIONS = "--host-driver-version 535.10 --host-cuda-version 12.2"
NO_LDCONFIG = "no ldconfig runs: nvinject writes the loader cache itself"
LINK = f"{CDI_HOOK} create-symlinks --link a::/usr/lib/b"
CDI_HOOK_OPTIONS = (
    Option(
        CDI_HOOK,
        "--debug, -d, $NVIDIA_CTK_DEBUG, $NVIDIA_CDI_DEBUG",
        f"{CDI_HOOK} @ {LINK.partition(' ')[2]} {WHERE}",
        "--debug",
        why=LINES,
    ),
    Option(CDI_HOOK, "--quiet, $NVIDIA_CTK_QUIET, $NVIDIA_CDI_QUIET", f"{CDI_HOOK} @ unknown", "--quiet"),
    Option(CDI_HOOK, "--version", f"{CDI_HOOK} @ noop", "--version"),
    Option(f"{CDI_HOOK} create-symlinks", "--link", f"{CDI_HOOK} create-symlinks @ {WHERE}", "--link a::/usr/lib/b"),
    Option(f"{CDI_HOOK} create-symlinks", "--container-spec", f"{LINK} @ </dev/null", WHERE),
    Option(f"{CDI_HOOK} update-ldcache", "--folder", f"{CDI_HOOK} update-ldcache @ {WHERE}", "--folder /opt/lib"),
    Option(
        f"{CDI_HOOK} update-ldcache",
        "--ldconfig-path",
        f"{CDI_HOOK} update-ldcache --folder /opt/lib @ {WHERE}",
        "--ldconfig-path /opt/ldconfig",
        idle=True,
        why=NO_LDCONFIG,
    ),
    Option(
        f"{CDI_HOOK} update-ldcache",
        "--container-spec",
        f"{CDI_HOOK} update-ldcache --folder /opt/lib @ </dev/null",
        WHERE,
    ),
    Option(
        f"{CDI_HOOK} enable-cuda-compat",
        "--host-driver-version",
        f"{CDI_HOOK} enable-cuda-compat @ {WHERE}",
        "--host-driver-version 535.10",
        why="the decision is noted for update-ldcache, not written as a file of ld.so.conf.d",
    ),
    Option(
        f"{CDI_HOOK} enable-cuda-compat",
        "--host-cuda-version",
        f"{CDI_HOOK} --debug enable-cuda-compat @ {WHERE}",
        "--host-cuda-version 13.9",
    ),
    Option(
        f"{CDI_HOOK} enable-cuda-compat",
        "--cuda-compat-container-root",
        f"{CDI_HOOK} --debug enable-cuda-compat {COMPAT_VERSIONS} @ {WHERE}",
        "--cuda-compat-container-root /nowhere",
    ),
    Option(
        f"{CDI_HOOK} enable-cuda-compat",
        "--container-spec",
        f"{CDI_HOOK} enable-cuda-compat {COMPAT_VERSIONS} @ </dev/null",
        WHERE,
    ),
    Option(
        f"{CDI_HOOK} disable-device-node-modification",
        "--container-spec",
        f"{CDI_HOOK} disable-device-node-modification @ </dev/null",
        WHERE,
        why="covers all of the driver's procfs: GPUs that the container has no node of are hidden, too",
    ),
    Option(
        f"{CDI_HOOK} update-application-profile",
        "--container-spec",
        f"{CDI_HOOK} update-application-profile @ </dev/null",
        WHERE,
    ),
    Option(f"{CDI_HOOK} chmod", "--path", f"{CDI_HOOK} chmod --mode 700 @ {WHERE}", "--path /file"),
    Option(f"{CDI_HOOK} chmod", "--mode", f"{CDI_HOOK} chmod --path /file @ {WHERE}", "--mode 700"),
    Option(f"{CDI_HOOK} chmod", "--container-spec", f"{CDI_HOOK} chmod --path /file --mode 700 @ </dev/null", WHERE),
    Option(CDI_HOOK, "noop", f"{CDI_HOOK} @ --container-spec", "noop"),
)

SECTIONS = {
    HOOK: HOOK_OPTIONS,
    RUNTIME: RUNTIME_OPTIONS,
    CTK: CTK_OPTIONS,
    "nvidia-ctk cdi": CDI_OPTIONS,
    CDI_HOOK: CDI_HOOK_OPTIONS,
}
