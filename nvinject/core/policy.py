"""Policy: what the node's operator decided, as one value with the original's defaults.

Belongs here: the settings that decisions depend on. Does not belong here: reading or writing config.toml (config.py)
and what a container asks for (request.py). Key names and defaults are those of the original's config.toml.
"""

from nvinject.record import Record

DRIVER_CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
DEFAULT_DRIVER_CAPABILITIES = ("compute", "utility")
DEFAULT_RUNTIMES = ("runc", "crun")
CDI_ANNOTATION_PREFIX = "cdi.k8s.io/"
REFUSE = "refuse"
WARN = "warn"
ON_MISSING = (REFUSE, WARN)
AUTO_LAYOUT, IMAGE_LAYOUT, HOST_LAYOUT, NVIDIA_LAYOUT = "auto", "image", "host", "nvidia"
LAYOUTS = (AUTO_LAYOUT, IMAGE_LAYOUT, HOST_LAYOUT, NVIDIA_LAYOUT)
MOUNT_SPEC_DIRECTORY = "/etc/nvidia-container-runtime/host-files-for-container.d"
CDI_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")


class Features(Record):
    """The `[features]` table; every switch is off unless the file turns it on."""

    allow_cuda_compat_libs_from_container: bool = False
    allow_ldconfig_from_container: bool = False
    allow_unknown_oci_spec_fields: bool = False
    disable_cuda_compat_lib_hook: bool = False
    disable_imex_channel_creation: bool = False
    ignore_imex_channel_requests: bool = False
    no_additional_gids_for_device_nodes: bool = False


class Roots(Record):
    """Where the host's driver files, device nodes, procfs and sysfs are looked for (absolute paths).

    `dev` may be empty, which means: find out. It is then the driver root if that holds dev/nvidiactl, else `/`.
    """

    driver: str = "/"
    dev: str = ""
    proc: str = "/proc"
    sys: str = "/sys"


class Policy(Record):
    """Every setting that a decision or a search depends on.

    `nvml_timeout` is in seconds. `mode` is the original's nvidia-container-runtime.mode. `write_rootfs` lets the
    runtime shim put links and loader cache into the container's own file system where that is writable; without it
    they are mounted. `library_layout` is one of LAYOUTS. `leave_out` are names of catalog.OPTIONAL_PARTS.
    `missing_extras` (REFUSE or WARN) says what becomes of a container that asks for a node set which the host has not,
    `missing_memory_limits` of one whose limits of GPU memory cannot be kept.
    """

    roots: Roots = Roots()
    disable_require: bool = False
    supported_driver_capabilities: tuple[str, ...] = DRIVER_CAPABILITIES
    swarm_resource: tuple[str, ...] = ()
    accept_envvar_unprivileged: bool = True
    accept_volume_mounts: bool = False
    ldcache: str = ""
    load_kmods: bool = True
    no_cgroups: bool = False
    ldconfig: str = "@/sbin/ldconfig"
    debug: str = ""
    mode: str = "auto"
    skip_mode_detection: bool = False
    cuda_compat_mode: str = "ldconfig"
    runtimes: tuple[str, ...] = DEFAULT_RUNTIMES
    runtime_debug: str = ""
    hook_path: str = ""
    cdi_default_kind: str = "nvidia.com/gpu"
    cdi_annotation_prefixes: tuple[str, ...] = (CDI_ANNOTATION_PREFIX,)
    cdi_spec_dirs: tuple[str, ...] = CDI_SPEC_DIRS
    csv_mount_spec_path: str = MOUNT_SPEC_DIRECTORY
    csv_compat_root: str = ""
    write_rootfs: bool = True
    jit_feature_flags: tuple[str, ...] = ()
    library_layout: str = AUTO_LAYOUT
    leave_out: tuple[str, ...] = ()
    missing_extras: str = REFUSE
    missing_memory_limits: str = REFUSE
    create_imex_channels: bool = False
    mps_pipe_directory: str = ""
    mps_log_directory: str = ""
    nvml_timeout: int = 10
    features: Features = Features()
