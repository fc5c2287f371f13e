"""nvidia-container-cli info and list: what a host has, in the forms that scripts parse.

Belongs here: the order and the form of the lines (observed from the original). Does not belong here: looking (host) and
options (containercli.py).
"""

from nvinject.cli.containercli import CliError, Settings
from nvinject.cli.discovery import search_path
from nvinject.core import catalog
from nvinject.core.model import Gpu, HostFile, Inventory, Library
from nvinject.core.selection import Selection, needs_nvml, select
from nvinject.errors import HostError, RequestError
from nvinject.host.inventory import discover
from nvinject.host.platforms import find_platform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvinject.cli.argp import Words
    from nvinject.core.request import ContainerRequest

WIDTH = 15  # of the column of labels
GPU_LABELS = ("Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture")
EVERYTHING = ("compute", "display", "graphics", "ngx", "utility", "video")
LIBRARY_ORDER = ("utility", "compute", "ngx", "video", "graphics")
SECTIONS = ("libraries", "binaries", "ipcs", "firmwares")
IMEX_CHANNELS = 1 << 20


def show_info(words: "Words", settings: Settings, _: "tuple[str, ...]") -> str:
    """Return driver, CUDA version and GPUs, as labelled lines or as comma-separated values."""
    prepare(settings)
    inventory = find_inventory(settings, ("utility",), nvml=True)
    versions = (inventory.driver.version, inventory.driver.cuda_version or "")
    rows = [describe_gpu(gpu) for gpu in inventory.gpus]
    if words.has("csv"):
        lines = [("NVRM version", "CUDA version"), versions, (), GPU_LABELS, *rows]
        return "".join(",".join(line) + "\n" for line in lines)
    text = label("NVRM version", versions[0]) + label("CUDA version", versions[1])
    for row in rows:
        text += "\n" + "".join(label(name, value) for name, value in zip(GPU_LABELS, row, strict=True))
    return text


def label(name: str, value: str) -> str:
    """Return one line of the labelled form."""
    return f"{name + ':':<{WIDTH}} {value}\n"


def describe_gpu(gpu: Gpu) -> tuple[str, ...]:
    """Return a GPU's values in the order of GPU_LABELS."""
    domain, _, rest = gpu.bus_id.partition(":")
    bus = f"{int(domain, 16):08x}:{rest.partition('.')[0]}.0" if domain else ""
    return (
        str(gpu.index),
        str(gpu.minor),
        gpu.model,
        gpu.brand or "Unknown",
        gpu.uuid,
        bus,
        gpu.architecture or "",
    )


def show_list(words: "Words", settings: Settings, arguments: "tuple[str, ...]") -> str:
    """Return the paths that the options ask for, one a line."""
    everything = is_bare(arguments)
    tokens = ("all",) if everything else read_tokens(words.every("device"))
    wanted = frozenset(name for name in SECTIONS if everything or words.has(name))
    channels = read_channels(words.every("imex-channel"))
    managing = read_management(words)
    compat32 = everything or words.has("compat32")
    prepare(settings, channels)
    inventory = find_inventory(
        settings, (*EVERYTHING, *(("compat32",) if compat32 else ())), nvml=needs_nvml(tokens), mig=bool(managing)
    )
    selection = select_devices(tokens, inventory.gpus, managing)
    inventory = without_parts(inventory, words)
    lines = [
        *list_devices(inventory, selection, tokens, managing),
        *(f"{catalog.IMEX_DIRECTORY}/channel{channel}" for channel in channels),
        *(line for name in managing for line in list_mig_management(inventory, selection, name)),
        *list_files(inventory, wanted, compat32=compat32, firmware=not words.has("no-gsp-firmware")),
    ]
    return "".join(f"{line}\n" for line in lines)


def is_bare(arguments: "tuple[str, ...]") -> bool:
    """Say whether everything is asked for: no option at all, or nothing but one --imex-channel=N in one word."""
    return not arguments or (len(arguments) == 1 and arguments[0].startswith("--imex-channel="))


def prepare(settings: Settings, channels: tuple[str, ...] = ()) -> None:
    """Load modules and make nodes where --load-kmods asks for it; what fails is told and does not stop the command."""
    if not settings.load_kmods or find_platform(settings.policy) is not None:
        return
    from nvinject.cli.debuglog import Log
    from nvinject.cli.system import load_and_create

    with Log(settings.debug, echo=False, title="nvidia-container-cli --load-kmods") as log:
        for line in load_and_create(settings.policy.roots, channels if settings.create_imex_channels else ()):
            log.write(line)


def find_inventory(
    settings: Settings,
    capabilities: tuple[str, ...],
    *,
    nvml: bool,
    mig: bool = False,
    channels: tuple[str, ...] = (),
    request: "ContainerRequest | None" = None,
) -> Inventory:
    """Return what the host has for driver capabilities, or for a container's request where there is one.

    Raises HostError where the host has lists, which this command has no form for.
    """
    platform = find_platform(settings.policy)
    if platform is not None and not platform.serves_command_line:
        raise HostError(
            f"this is a {platform.title} system ({platform.evidence()}), whose lists this command does not know",
            "use nvinject info and nvinject list; nvidia-container-runtime and CDI serve its containers",
        )
    if platform is not None:
        return platform.discover_all(facts=nvml) if request is None else platform.discover_for(request, facts=nvml)
    return discover(
        settings.policy,
        capabilities,
        environ_path=search_path(settings.environ),
        nvml=nvml,
        mig_management=mig,
        imex_channels=channels,
        daemon_directories=catalog.daemon_directories(settings.environ),
        identity=settings.identity,
    )


def read_tokens(values: "Iterable[str]") -> tuple[str, ...]:
    """Return the devices of all --device options: split at commas, empty ones left out, `all` alone if it is there."""
    tokens = [token for value in values for token in value.split(",") if token]
    return ("all",) if any(token.lower() == "all" for token in tokens) else tuple(dict.fromkeys(tokens))


def read_channels(values: "Iterable[str]") -> tuple[str, ...]:
    """Return the numbers of IMEX channels; raises CliError for anything else."""
    tokens = [token for value in values for token in value.split(",") if token]
    for token in tokens:
        if not (token.isascii() and token.isdecimal() and int(token) < IMEX_CHANNELS):
            raise CliError("error parsing IMEX info", f"unsupported IMEX channel value: {token}")
    return tuple(dict.fromkeys(str(int(token)) for token in tokens))


def read_management(words: "Words") -> tuple[str, ...]:
    """Return which parts of MIG are asked for, of `config` and `monitor`; raises CliError for other devices than all.

    The stage of an error has the option's name, as in `mig-config error`.
    """
    found = []
    for name in ("config", "monitor"):
        tokens = [token for value in words.every(f"mig-{name}") for token in value.split(",") if token]
        if any(token.lower() != "all" for token in tokens):
            raise CliError(f"mig-{name} error", "only 'all' devices are currently supported")
        if tokens:
            found.append(name)
    return tuple(found)


def select_devices(tokens: tuple[str, ...], gpus: tuple[Gpu, ...], managing: tuple[str, ...]) -> Selection:
    """Return the devices of the tokens; raises RequestError or CliError in the original's words."""
    if tokens == ("all",):
        return select(tokens, gpus)
    for token in tokens:
        try:
            # `none` is a word of the environment of containers, not of this command line.
            select((token,) if token.lower() not in {"none", "void"} else (f" {token}",), gpus)
        except RequestError as error:
            raise RequestError(f"{token}: unknown device", error.hint) from error
    selection = select(tokens, gpus)
    if selection.mig_devices and managing:
        raise CliError(
            f"mig-{managing[0]} error", f"cannot enable mig-{managing[0]} with specific MIG devices selected"
        )
    return selection


def without_parts(inventory: Inventory, words: "Words") -> Inventory:
    """Return the inventory without what --no-… options name."""
    unwanted = {f"nvidia-{name}" for name in ("persistenced", "fabricmanager") if words.has(f"no-{name}")}
    driver = inventory.driver
    return inventory.replace(
        driver=driver.replace(
            sockets=tuple(socket for socket in driver.sockets if socket.name not in unwanted),
            firmware=() if words.has("no-gsp-firmware") else driver.firmware,
        )
    )


def list_devices(
    inventory: Inventory, selection: Selection, tokens: tuple[str, ...], managing: tuple[str, ...]
) -> list[str]:
    """Return control nodes, GPU nodes and what belongs to MIG devices; nothing where no device is asked for."""
    if not tokens:
        return []
    lines = [node.path for node in inventory.driver.control_nodes]
    lines += [f"/dev/nvidia{gpu.minor}" for gpu in selection.gpus if gpu.node or not gpu.more_nodes]
    lines += [node.path for gpu in selection.gpus for node in gpu.more_nodes]
    if not managing:
        for _, mig in selection.mig_devices:
            lines += [*mig.capability_files, *(node.path for node in mig.nodes)]
    return list(dict.fromkeys(lines))


def list_mig_management(inventory: Inventory, selection: Selection, name: str) -> list[str]:
    """Return what a container needs that configures or watches MIG."""
    capabilities = "/proc/driver/nvidia/capabilities"
    node = inventory.mig_config_node if name == "config" else inventory.mig_monitor_node
    lines = [f"{capabilities}/mig/{name}", *([node.path] if node else [])]
    for gpu in selection.gpus:
        if gpu.mig_capable:
            lines.append(f"{capabilities}/gpu{gpu.minor}")
            if node:
                lines.append(catalog.CAPABILITY_DIRECTORY)
                lines += [
                    f"{catalog.CAPABILITY_DIRECTORY}/nvidia-cap{one.minor}"
                    for one in inventory.mig_capabilities
                    if one.name.startswith(f"gpu{gpu.minor}/")
                ]
    return lines


def list_files(inventory: Inventory, wanted: "frozenset[str]", *, compat32: bool, firmware: bool) -> list[str]:
    """Return the files of the wanted sections, as the driver root shows them."""
    driver = inventory.driver
    lines: list[str] = []
    if "binaries" in wanted:
        lines += [file.path for file in driver.binaries]
        lines += [file.path for file in inventory.listing.files] if inventory.listing else []
    if "libraries" in wanted:
        lines += [library.path for library in in_order(driver.libraries) if library.bits == 64]
        lines += [library.path for library in in_order(driver.libraries) if library.bits == 32 and compat32]
    if "ipcs" in wanted:
        lines += [file.path for file in driver.sockets]
    if "firmwares" in wanted and firmware:
        lines += [firmware_path(inventory, file) for file in driver.firmware]
    return lines


def in_order(libraries: tuple[Library, ...]) -> list[Library]:
    """Return libraries in the original's order: by capability, each group in the order of the catalogue."""

    def rank(library: Library) -> int:
        row = catalog.library_row(library.soname)
        groups = [
            place
            for place, name in enumerate(LIBRARY_ORDER)
            if row is not None and row.capabilities == catalog.CAPABILITIES_THAT_IMPLY[name]
        ]
        return groups[0] if groups else len(LIBRARY_ORDER)

    return sorted(libraries, key=rank)


def firmware_path(inventory: Inventory, file: HostFile) -> str:
    """Return the path at which the driver looks for a firmware file; the file itself may lie behind a link."""
    return f"{catalog.FIRMWARE[0].directory}/{inventory.driver.version}/{file.path.rpartition('/')[2]}"
