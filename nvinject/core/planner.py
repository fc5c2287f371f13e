"""The planner: inventory, request, policy and layout in, the ordered plan out.

Belongs here: which operations there are, in which order, and why. Does not belong here: how an operation is done, which
mode or engine we run under, and looking at anything: every fact comes in as a value. Order matters where one operation
makes the ground for the next: the cover of /proc/driver/nvidia before what is bound below it, libraries before the
loader cache.
"""

from nvinject.core import catalog
from nvinject.core.compat import choose_compat
from nvinject.core.model import ContainerLayout, DeviceNode, Gpu, Inventory, Library, MigDevice
from nvinject.core.plan import (
    AllowDevice,
    BindDevice,
    BindFile,
    CreateSymlink,
    DecideCompat,
    LoaderLibrary,
    MakeNode,
    MaskDirectory,
    Operation,
    Plan,
    SetEnvironment,
    UpdateLoaderCache,
    WriteFile,
)
from nvinject.core.policy import (
    DRIVER_CAPABILITIES,
    HOST_LAYOUT,
    IMAGE_LAYOUT,
    NVIDIA_LAYOUT,
    WARN,
    Policy,
    Roots,
)
from nvinject.core.request import ContainerRequest
from nvinject.core.requirements import check, collect_facts, needed_attributes
from nvinject.core.selection import Selection, select
from nvinject.core.selection import needs_nvml as tokens_need_nvml
from nvinject.errors import HostError, RequestError

FILE_FLAGS = ("ro", "nosuid", "nodev")
DEVICE_FLAGS = ("ro", "nosuid", "noexec")
SOCKET_FLAGS = ("nosuid", "nodev", "noexec")
PROC_FLAGS = ("ro", "nosuid", "nodev", "noexec")
MASK_FLAGS = ("nosuid", "nodev", "noexec")

DRIVER_PROC = "/proc/driver/nvidia"
PROFILE_DIRECTORY = "/etc/nvidia/nvidia-application-profiles-rc.d"
PROFILE_FILE = "10-container.conf"
GRAPHICS = ("graphics", "display")

# What only NVML knows; everything else stands in procfs and sysfs.
NVML_ATTRIBUTES = frozenset({"cuda", "arch", "brand"})


def needs_nvml(request: ContainerRequest) -> bool:
    """Say whether the request can be served only with facts that NVML alone has.

    Loading NVML costs tens of milliseconds to seconds on a real node, so whole GPUs must do without.
    """
    return tokens_need_nvml(request.devices) or bool(needed_attributes(request.requirements) & NVML_ATTRIBUTES)


def plan(inventory: Inventory, request: ContainerRequest, policy: Policy, layout: ContainerLayout) -> Plan:
    """Return everything that has to be done to one container, or raise why it cannot be served.

    Raises RequestError (device, MIG management or IMEX channel), RequirementError and HostError (a node is missing).
    """
    selection = select(request.devices, inventory.gpus, mig_config=request.mig_config, mig_monitor=request.mig_monitor)
    check(request.requirements, collect_facts(inventory.driver, selection.gpus))
    libraries = wanted_libraries(inventory, request)
    usual, layout = layout.library_directory, arrange(layout, policy)
    extras, warnings = plan_extras(inventory, request, policy)
    if request.memory_sizes:
        from nvinject.core.memorylimits import plan_limits  # few containers ask

        limits, more = plan_limits(inventory, request, policy, layout, selection)
        extras, warnings = [*extras, *limits], (*warnings, *more)
    operations: list[Operation] = [
        *plan_driver_proc(inventory),
        *plan_listing(inventory),
        *plan_application_profile(inventory, request, selection),
        *plan_binaries(inventory, request, layout),
        *plan_libraries(inventory, layout, libraries),
        *plan_library_links(inventory, request, layout, libraries),
        *plan_configuration(inventory, request),
        *plan_firmware(inventory, request),
        *plan_sockets(inventory, request, layout),
        *plan_control_nodes(inventory, request),
        *plan_gpus(inventory, selection),
        *plan_mig_devices(inventory, request, selection),
        *plan_mig_management(inventory, request, selection),
        *plan_imex_channels(inventory, request, policy),
        *extras,
        *plan_search_paths(request, policy, layout),
        *plan_folders(inventory, layout, libraries, usual),
    ]
    cache, notes = plan_loader_cache(inventory, policy, layout, libraries, selection.gpus)
    return Plan(
        operations=without_repeats([*operations, *cache]),
        notes=(*inventory.notes, *notes, *layout_notes(request, policy, layout)),
        warnings=(*inventory.warnings, *warnings, *mps_warnings(inventory, request)),
    )


def without_repeats(operations: list[Operation]) -> tuple[Operation, ...]:
    """Return the operations in order, each effect once: two slices of one GPU instance need the same capability."""
    kept: dict[str, Operation] = {}
    for operation in operations:
        kept.setdefault(operation.describe(), operation)
    return tuple(kept.values())


def below(root: str, path: str) -> str:
    """Return the path as the host sees it when the thing lives below a root."""
    return path if root == "/" else root.rstrip("/") + path


def proc_source(inventory: Inventory, path: str) -> str:
    """Return where the host has a path of /proc that may be rooted elsewhere."""
    return inventory.roots.proc.rstrip("/") + path.removeprefix("/proc")


def basename(path: str) -> str:
    """Return the last component of a path."""
    return path.rsplit("/", 1)[-1]


def expose_node(inventory: Inventory, node: DeviceNode, reason: str) -> list[Operation]:
    """Return the two operations that make a device usable: its node, and the right to open it."""
    return expose(inventory.roots, node, reason)


def expose(roots: Roots, node: DeviceNode, reason: str) -> list[Operation]:
    """Return the two operations that make a device of a device root usable."""
    return [
        BindDevice(
            source=below(roots.dev, node.path),
            target=node.path,
            major=node.major,
            minor=node.minor,
            mode=node.mode,
            uid=node.uid,
            gid=node.gid,
            flags=DEVICE_FLAGS,
            reason=reason,
        ),
        AllowDevice(major=node.major, minor=node.minor, access="rw", reason=reason),
    ]


def plan_driver_proc(inventory: Inventory) -> list[Operation]:
    """Cover the driver's procfs: only chosen GPUs show, and programs in the container make no device nodes.

    A host that lists what containers get has nothing there that they would need to be kept from.
    """
    if inventory.listing is not None:
        return []
    return [
        MaskDirectory(
            target=DRIVER_PROC,
            mode=0o555,
            files=tuple((name, content, 0o444) for name, content in inventory.driver.proc_files),
            flags=MASK_FLAGS,
            reason="hide GPUs that are not visible; keep NVML from making device nodes (ModifyDeviceFiles: 0)",
        )
    ]


def plan_listing(inventory: Inventory) -> list[Operation]:
    """Show what the host itself lists for its containers, where the host has it."""
    listing = inventory.listing
    if listing is None:
        return []
    return [
        *(
            BindFile(
                source=below(inventory.roots.driver, file.path),
                target=file.path,
                flags=FILE_FLAGS,
                reason=file.name,
            )
            for file in listing.files
        ),
        *(
            CreateSymlink(link=link.path, target=link.target, force=True, reason="a link of the host that it lists")
            for link in listing.links
        ),
    ]


def plan_application_profile(inventory: Inventory, request: ContainerRequest, selection: Selection) -> list[Operation]:
    """Tell EGL which GPUs it may use: it would otherwise open every GPU that it finds on the PCI bus."""
    if (
        inventory.listing is not None
        or not selection.gpus
        or not any(capability in GRAPHICS for capability in request.capabilities)
    ):
        return []
    return [application_profile(frozenset(gpu.minor for gpu in selection.gpus))]


def application_profile(gpu_minors: frozenset[int]) -> MaskDirectory:
    """Return the cover that names GPUs to EGL by their minors, of which it knows those below 64."""
    mask = 0
    for minor in gpu_minors:
        mask |= 1 << minor if minor < 64 else 0
    content = (
        '{"profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", '
        f'{mask:#x}]}}], "rules": [{{"pattern": [], "profile": "_container_"}}]}}\n'
    )
    return MaskDirectory(
        target=PROFILE_DIRECTORY,
        mode=0o555,
        files=((PROFILE_FILE, content, 0o444),),
        flags=MASK_FLAGS,
        reason="EGL shall use the visible GPUs only",
    )


def arrange(layout: ContainerLayout, policy: Policy) -> ContainerLayout:
    """Return the layout with the places that the node's policy prefers to the image's own."""
    if policy.library_layout == HOST_LAYOUT:
        return layout.replace(library_directory="", library32_directory="", binary_directory="")
    if policy.library_layout != NVIDIA_LAYOUT:
        return layout
    return layout.replace(
        library_directory=catalog.NVIDIA_LIBRARIES,
        library32_directory=catalog.NVIDIA_LIBRARIES32 if layout.library32_directory else "",
        binary_directory=catalog.NVIDIA_PROGRAMS,
    )


def plan_folders(
    inventory: Inventory, layout: ContainerLayout, libraries: tuple[Library, ...], usual: str
) -> list[Operation]:
    """Have the image's own ldconfig find folders that are not the `usual` one, whenever it runs later.

    Of images that are not known the hook that updates the cache does that.
    """
    as_usual = layout.library_directory == usual and inventory.listing is None
    placed = [library_directory(layout, library) for library in libraries if not library.is_module]
    folders = [folder for folder in dict.fromkeys(placed) if folder not in {"", usual}]
    if not folders or not layout.is_known or layout.musl_path_file or as_usual:
        return []
    return [
        WriteFile(
            target=catalog.FOLDERS_CONF,
            content="".join(f"{folder}\n" for folder in folders),
            mode=0o644,
            reason="the image's own ldconfig shall find the libraries too",
        )
    ]


def plan_search_paths(request: ContainerRequest, policy: Policy, layout: ContainerLayout) -> list[Operation]:
    """Put NVIDIA's folders first in the container's search paths, unless they are in there.

    A container without LD_LIBRARY_PATH does without: its loader cache knows the libraries.
    """
    if policy.library_layout != NVIDIA_LAYOUT or layout.is_created:
        return []
    wanted = {"PATH": catalog.NVIDIA_PROGRAMS, "LD_LIBRARY_PATH": catalog.NVIDIA_LIBRARIES}
    return [
        SetEnvironment(
            name=name,
            value=f"{wanted[name]}:{value}",
            replaces=True,
            reason="programs shall find the driver there",
        )
        for name, value in request.search_paths
        if wanted[name] not in value.split(":")
    ]


def layout_notes(request: ContainerRequest, policy: Policy, layout: ContainerLayout) -> list[str]:
    """Return what of the node's layout cannot be had for this container."""
    path = dict(request.search_paths).get("PATH", "")
    if policy.library_layout == IMAGE_LAYOUT and not layout.is_known:
        return ["nvinject.library-layout is image, but no image is known: files lie where the host has them"]
    if policy.library_layout == NVIDIA_LAYOUT and layout.is_created and catalog.NVIDIA_PROGRAMS not in path.split(":"):
        return [f"the container's PATH lacks {catalog.NVIDIA_PROGRAMS}, and a prestart hook cannot set it any more"]
    return []


def plan_binaries(inventory: Inventory, request: ContainerRequest, layout: ContainerLayout) -> list[Operation]:
    """Show the driver's programs in the layout's folder."""
    rows = {row.name: row for row in catalog.binaries_for(request.capabilities)}
    return [
        BindFile(
            source=below(inventory.roots.driver, found.path),
            target=f"{layout.binary_directory}/{basename(found.path)}" if layout.binary_directory else found.path,
            flags=FILE_FLAGS,
            reason=rows[found.name].reason,
        )
        for found in inventory.driver.binaries
        if found.name in rows
    ]


def wanted_libraries(inventory: Inventory, request: ContainerRequest) -> tuple[Library, ...]:
    """Return the libraries that the capabilities name, 32-bit ones only with compat32; or all that a host lists."""
    if inventory.listing is not None:
        return inventory.driver.libraries
    rows = catalog.libraries_for(request.capabilities)
    sizes = catalog.word_sizes_for(request.capabilities)
    whole = catalog.WHOLE_DRIVER in request.capabilities
    return tuple(
        library
        for library in inventory.driver.libraries
        if library.bits in sizes and (whole or any(library.soname.startswith(row.prefix) for row in rows))
    )


def library_directory(layout: ContainerLayout, library: Library) -> str:
    """Return the folder of the container that takes a library ("" where the image has none for its word size)."""
    if not layout.library_directory or library.is_module or library.in_place:
        return library.path.rpartition("/")[0]
    return layout.library_directory if library.bits == 64 else layout.library32_directory


def plan_libraries(inventory: Inventory, layout: ContainerLayout, libraries: tuple[Library, ...]) -> list[Operation]:
    """Show the driver's libraries in the image's own library folder."""
    operations: list[Operation] = []
    for library in libraries:
        directory = library_directory(layout, library)
        row = catalog.library_row(library.soname)
        if directory:
            operations.append(
                BindFile(
                    source=below(inventory.roots.driver, library.path),
                    target=f"{directory}/{basename(library.path)}",
                    flags=FILE_FLAGS,
                    reason="part of the driver" if row is None else row.reason,
                )
            )
    return operations


def plan_library_links(
    inventory: Inventory, request: ContainerRequest, layout: ContainerLayout, libraries: tuple[Library, ...]
) -> list[Operation]:
    """Link SONAMEs to versioned files, and the few names that programs open although no SONAME says so.

    Links that the host lists itself are there already (plan_listing).
    """
    operations: list[CreateSymlink] = []
    for library in libraries:
        directory = library_directory(layout, library)
        file = basename(library.path)
        if not directory:
            continue
        if library.soname != file:
            operations.append(
                CreateSymlink(
                    link=f"{directory}/{library.soname}",
                    target=file,
                    force=True,
                    reason="the loader looks for the SONAME",
                )
            )
        if library.plain_link:
            operations.append(
                CreateSymlink(
                    link=f"{directory}/{file.partition('.so')[0]}.so",
                    target=library.plain_link,
                    reason="the host has this link, for programs that ask for no version",
                )
            )
        operations += [
            CreateSymlink(
                link=f"{directory}/{row.link}",
                target=row.target.replace("{version}", inventory.driver.version),
                reason=row.reason,
            )
            for row in catalog.symlinks_for((library.soname,), linking_capabilities(inventory, request))
        ]
    listed = {link.path for link in inventory.listing.links} if inventory.listing is not None else set()
    return [operation for operation in operations if operation.link not in listed]


def linking_capabilities(inventory: Inventory, request: ContainerRequest) -> tuple[str, ...]:
    """Return the capabilities whose links are made: all of them where the host lists its libraries itself."""
    return request.capabilities if inventory.listing is None else DRIVER_CAPABILITIES


def plan_configuration(inventory: Inventory, request: ContainerRequest) -> list[Operation]:
    """Show the files that point dispatchers (GLVND, Vulkan, OpenCL) to the driver."""
    rows = {row.name: row for row in catalog.configuration_files_for(request.capabilities)}
    return [
        BindFile(
            source=below(inventory.roots.driver, found.path),
            target=rows[found.name].target,
            flags=FILE_FLAGS,
            reason=rows[found.name].reason,
        )
        for found in inventory.driver.configuration
        if found.name in rows
    ]


def plan_firmware(inventory: Inventory, request: ContainerRequest) -> list[Operation]:
    """Show the firmware where the driver in the container would look for it."""
    return [
        BindFile(
            source=below(inventory.roots.driver, found.path),
            target=f"{row.directory}/{inventory.driver.version}/{basename(found.path)}",
            flags=FILE_FLAGS,
            reason=row.reason,
        )
        for row in catalog.firmware_for(request.capabilities)
        for found in inventory.driver.firmware
        if basename(found.path).startswith(row.prefix) and found.path.endswith(row.suffix)
    ]


def plan_sockets(inventory: Inventory, request: ContainerRequest, layout: ContainerLayout) -> list[Operation]:
    """Let programs in the container reach the driver's daemons."""
    rows = {row.name: row for row in catalog.sockets_for(request.capabilities)}
    operations: list[Operation] = []
    own = dict(request.mps)
    for found in inventory.driver.sockets:
        row = rows.get(found.name)
        if row is None or (row.variable and request.mps_provided):
            continue
        target = socket_target(row, found.path, own)
        flags = ("ro", *SOCKET_FLAGS) if row.read_only else SOCKET_FLAGS
        source = below(inventory.roots.driver, found.path)
        operations.append(BindFile(source=source, target=target, flags=flags, reason=row.reason))
        if row.variable and row.variable not in own and not layout.is_created:
            operations.append(SetEnvironment(name=row.variable, value=target, reason=row.reason))
    return operations


def socket_target(row: catalog.SocketRow, path: str, own: dict[str, str]) -> str:
    """Return where a container gets a socket or a directory of them.

    What a variable names lies where the container's own variable says, else where clients look without one, wherever
    the host has it: so it is found in containers whose environment nobody can change any more.
    """
    named = own.get(row.variable, "") if row.variable else ""
    if is_own_place(named):
        return named
    return row.paths[0] if row.variable else path


def is_own_place(path: str) -> bool:
    """Say whether a container may name a place of its own: no root, nothing of the kernel's, nothing that climbs."""
    parts = path.split("/")
    plain = len(parts) > 2 and not parts[0] and not {"", ".", ".."} & set(parts[1:])
    return plain and parts[1] not in {"dev", "proc", "sys"}


def mps_warnings(inventory: Inventory, request: ContainerRequest) -> tuple[str, ...]:
    """Return a warning where the container is a client of a multi-process service that does not serve it."""
    rows = catalog.sockets_for(request.capabilities)
    if not request.mps or not inventory.mps_fault or all(row.name != catalog.MPS for row in rows):
        return ()
    client = f"{request.mps[0][0]} makes the container a client of the multi-process service, of which none serves it"
    return (f"{client}: {inventory.mps_fault}; CUDA does without it until nvidia-cuda-mps-control -d is started",)


def plan_control_nodes(inventory: Inventory, request: ContainerRequest) -> list[Operation]:
    """Give access to the device nodes that belong to no single GPU."""
    operations: list[Operation] = []
    nodes = {node.path: node for node in inventory.driver.control_nodes}
    for row in catalog.control_nodes_for(request.capabilities):
        if row.path in nodes:
            operations += expose_node(inventory, nodes[row.path], row.reason)
    return operations


def plan_gpus(inventory: Inventory, selection: Selection) -> list[Operation]:
    """Give access to each visible GPU and show its folder of the driver's procfs."""
    operations: list[Operation] = []
    for gpu in selection.gpus:
        if gpu.node is None and not gpu.more_nodes:
            path = f"/dev/nvidia{gpu.minor}"
            fault = gpu.node_fault or f"{below(inventory.roots.dev, path)} is missing"
            raise HostError(
                f"{name_gpu(gpu)} cannot be used: device node {fault}",
                f"run {catalog.node_remedy(path)} as root",
            )
        for node in (*((gpu.node,) if gpu.node else ()), *gpu.more_nodes):
            operations += expose_node(inventory, node, name_gpu(gpu))
        operations += show_gpu_proc(inventory, gpu)
        # A GPU that is cut into slices draws nothing.
        if not gpu.mig_devices:
            operations += plan_display(inventory, gpu)
    return operations


def name_gpu(gpu: Gpu) -> str:
    """Return how a GPU is called to people: by its index, and its UUID or model."""
    return f"GPU {gpu.index} ({gpu.uuid or gpu.model})"


def show_gpu_proc(inventory: Inventory, gpu: Gpu) -> list[Operation]:
    """Show a GPU's folder of the driver's procfs."""
    if not gpu.proc_directory:
        return []
    return [show_proc(inventory, gpu.proc_directory, name_gpu(gpu))]


def show_proc(inventory: Inventory, path: str, reason: str) -> BindFile:
    """Show a file or folder of the driver's procfs."""
    return BindFile(source=proc_source(inventory, path), target=path, flags=PROC_FLAGS, reason=reason)


def plan_visible_proc(
    inventory: Inventory, gpu_minors: frozenset[int], capability_minors: frozenset[int]
) -> tuple[Operation, ...]:
    """Cover the driver's procfs but for what belongs to the device nodes that a container has.

    That is what a container gets whose devices were chosen by somebody else: its nodes tell which they were.
    """
    operations = plan_driver_proc(inventory)
    for gpu in inventory.gpus:
        if gpu.minor in gpu_minors:
            operations += show_gpu_proc(inventory, gpu)
    capabilities = f"{DRIVER_PROC}/capabilities"
    managing = [node for node in (inventory.mig_config_node, inventory.mig_monitor_node) if node is not None]
    if any(node.minor in capability_minors for node in managing):
        return (*operations, show_proc(inventory, capabilities, "the container manages MIG"))
    for gpu in inventory.gpus:
        for mig in gpu.mig_devices:
            for file, node in zip(mig.capability_files, mig.nodes, strict=False):
                if node.minor in capability_minors:
                    operations.append(show_proc(inventory, file, f"MIG device of GPU {gpu.index}"))
    return without_repeats(operations)


def plan_display(inventory: Inventory, gpu: Gpu) -> list[Operation]:
    """Give access to the nodes through which a GPU draws, and make the links that name them by bus address."""
    reason = f"drawing with {name_gpu(gpu)}"
    return [
        *(operation for node in gpu.display_nodes for operation in expose_node(inventory, node, reason)),
        *(CreateSymlink(link=link.path, target=link.target, force=True, reason=reason) for link in gpu.display_links),
    ]


def plan_node_set(
    roots: Roots, nodes: tuple[DeviceNode, ...], files: tuple[str, ...], reason: str
) -> tuple[Operation, ...]:
    """Give access to nodes that belong to no GPU, and show the files that go with them."""
    return (
        *(operation for node in nodes for operation in expose(roots, node, reason)),
        *(BindFile(source=below(roots.driver, file), target=file, flags=FILE_FLAGS, reason=reason) for file in files),
    )


def plan_mig_devices(inventory: Inventory, request: ContainerRequest, selection: Selection) -> list[Operation]:
    """Give access to the chosen slices; with MIG management the whole folder is there already."""
    if manages_mig(request):
        return []
    return [
        operation
        for gpu, mig_device in selection.mig_devices
        for operation in plan_mig_device(inventory, gpu, mig_device)
    ]


def plan_mig_device(inventory: Inventory, gpu: Gpu, mig_device: MigDevice) -> list[Operation]:
    """Give access to one slice: the capability of its GPU instance, and that of its compute instance."""
    reason = f"MIG device gi{mig_device.gpu_instance}/ci{mig_device.compute_instance} of GPU {gpu.index}"
    if mig_device.node_fault:
        remedies = [catalog.capability_remedy(file) for file in mig_device.capability_files]
        raise HostError(f"{reason} cannot be used: {mig_device.node_fault}", f"run {' and '.join(remedies)} as root")
    operations: list[Operation] = []
    for position, file in enumerate(mig_device.capability_files):
        operations.append(show_proc(inventory, file, reason))
        if position < len(mig_device.nodes):
            operations += expose_node(inventory, mig_device.nodes[position], reason)
    return operations


def manages_mig(request: ContainerRequest) -> bool:
    """Say whether the container shall manage or watch MIG itself."""
    return bool(request.mig_config or request.mig_monitor)


def plan_mig_management(inventory: Inventory, request: ContainerRequest, selection: Selection) -> list[Operation]:
    """Give access to everything about MIG of the visible GPUs."""
    gpus = [gpu for gpu in selection.gpus if gpu.mig_capable]
    if not manages_mig(request) or not gpus:
        return []
    reason = "the container manages MIG"
    capabilities = f"{DRIVER_PROC}/capabilities"
    operations: list[Operation] = [
        show_proc(inventory, capabilities, reason),
        BindFile(
            source=below(inventory.roots.dev, catalog.CAPABILITY_DIRECTORY),
            target=catalog.CAPABILITY_DIRECTORY,
            flags=("nosuid", "noexec"),
            reason=reason,
        ),
    ]
    major = catalog.major_of((catalog.CAPABILITY_CLASS,), inventory.majors, default=0)
    visible = tuple(f"gpu{gpu.minor}/" for gpu in gpus)
    wanted = (*(("config",) if request.mig_config else ()), *(("monitor",) if request.mig_monitor else ()))
    operations += [
        AllowDevice(major=major, minor=capability.minor, access="rw", reason=f"{reason}: {capability.name}")
        for capability in inventory.mig_capabilities
        if major and (capability.name in wanted or capability.name.startswith(visible))
    ]
    return operations


def plan_imex_channels(inventory: Inventory, request: ContainerRequest, policy: Policy) -> list[Operation]:
    """Give access to the channels that share memory between nodes, making those that are missing where that is allowed.

    Raises RequestError for a channel that has no node and gets none; it names the channels that the host has.
    """
    nodes = {node.path: node for node in inventory.imex_nodes}
    operations: list[Operation] = []
    for channel in request.imex_channels:
        path = f"{catalog.IMEX_DIRECTORY}/channel{channel}"
        reason = f"IMEX channel {channel}"
        if path not in nodes:
            node = missing_channel(inventory, policy, channel, path)
            operations.append(make_node(inventory, node, f"{reason}, which had no node"))
            nodes[path] = node
        operations += expose_node(inventory, nodes[path], reason)
    return operations


def missing_channel(inventory: Inventory, policy: Policy, channel: str, path: str) -> DeviceNode:
    """Return the node to make for a channel that has none; raises RequestError where none may be made."""
    wanted = next((node for node in inventory.imex.wanted if node.path == path), None)
    if creates_channels(policy) and wanted is not None:
        return wanted
    obstacle = f" and cannot get one: {inventory.imex.obstacle}" if creates_channels(policy) else ""
    there = ", ".join(inventory.imex.there) or "none"
    remedy = "" if creates_channels(policy) else ", or set nvinject.create-imex-channels = true"
    raise RequestError(
        f"IMEX channel {channel} has no device node {below(inventory.roots.dev, path)}{obstacle}",
        f"create it on the host first{remedy}; channels there: {there}",
    )


def creates_channels(policy: Policy) -> bool:
    """Say whether a container's start may make a channel's node on the host."""
    return policy.create_imex_channels and not policy.features.disable_imex_channel_creation


def make_node(inventory: Inventory, node: DeviceNode, reason: str) -> MakeNode:
    """Return the operation that makes a device node on the host."""
    return MakeNode(
        root=inventory.roots.dev,
        path=node.path,
        major=node.major,
        minor=node.minor,
        mode=node.mode,
        uid=node.uid,
        gid=node.gid,
        reason=reason,
    )


def plan_extras(
    inventory: Inventory, request: ContainerRequest, policy: Policy
) -> tuple[list[Operation], tuple[str, ...]]:
    """Give access to the node sets that are asked for; returns warnings about those that the host has not.

    Raises HostError for such a set where the node's policy says so.
    """
    operations: list[Operation] = []
    warnings = []
    found = {one.name: one for one in inventory.node_sets}
    for name in request.extras:
        row, one = catalog.node_set(name), found[name]
        if one.nodes:
            operations += plan_node_set(inventory.roots, one.nodes, one.files, row.reason)
            continue
        problem = f"{row.variable}={catalog.REQUESTED} asks for {row.reason}, of which there is no node: {one.searched}"
        if policy.missing_extras != WARN:
            raise HostError(problem, f'{row.remedy}, or set nvinject.missing-extras = "{WARN}"')
        warnings.append(f"{problem}; the container does without")
    return operations, tuple(warnings)


def plan_loader_cache(
    inventory: Inventory,
    policy: Policy,
    layout: ContainerLayout,
    libraries: tuple[Library, ...],
    gpus: tuple[Gpu, ...],
) -> tuple[list[Operation], list[str]]:
    """Make the loader find the libraries, and the image's newer CUDA libraries before them."""
    placed = [(library, library_directory(layout, library)) for library in libraries if not library.is_module]
    known = tuple(
        LoaderLibrary(soname=library.soname, path=f"{directory}/{library.soname}", bits=library.bits)
        for library, directory in placed
        if directory
    )
    if not known:
        return [], []
    notes = []
    if policy.cuda_compat_mode == "mount" and layout.compat_directory:
        notes.append("cuda-compat-mode 'mount' is carried out as 'ldconfig': nothing of an image is ever mounted")
    compat = choose_compat("", "", "", "")
    if takes_compat(inventory, libraries):
        compat = choose_compat(
            layout.compat_directory,
            layout.compat_version,
            compared_driver(inventory),
            policy.cuda_compat_mode,
            note=layout.compat_note,
            cuda_version="" if inventory.listing is None else inventory.driver.cuda_version or "",
            models=tuple(gpu.model for gpu in gpus),
        )
    if compat.reason:
        notes.append(f"CUDA compatibility: {compat.reason}")
    operation = UpdateLoaderCache(
        directories=tuple(dict.fromkeys(directory for _, directory in placed if directory)),
        libraries=known,
        compat_directory=compat.directory,
        musl_path_file=layout.musl_path_file,
        reason="the dynamic loader shall find the libraries" + (f"; {compat.reason}" if compat.directory else ""),
    )
    return [*plan_later_compat(inventory, policy, layout, libraries, gpus), operation], notes


def takes_compat(inventory: Inventory, libraries: tuple[Library, ...]) -> bool:
    """Tell whether CUDA libraries of an image could take the place of the host's."""
    listing = inventory.listing
    comparable = listing is None or bool(listing.compat_directory and inventory.driver.cuda_version)
    return comparable and any(library.soname.startswith("libcuda.so") for library in libraries)


def compared_driver(inventory: Inventory) -> str:
    """Return the driver version that images' CUDA libraries are compared with, "" where CUDA's own alone decides."""
    return inventory.driver.version if inventory.listing is None else ""


def plan_later_compat(
    inventory: Inventory,
    policy: Policy,
    layout: ContainerLayout,
    libraries: tuple[Library, ...],
    gpus: tuple[Gpu, ...],
) -> list[Operation]:
    """Leave the choice of CUDA libraries to the container's start where the image is not known."""
    if layout.is_known or not takes_compat(inventory, libraries) or policy.cuda_compat_mode == "disabled":
        return []
    listing = inventory.listing
    return [
        DecideCompat(
            driver_version=compared_driver(inventory),
            cuda_version="" if listing is None else inventory.driver.cuda_version or "",
            directory="" if listing is None else listing.compat_directory,
            models=tuple(dict.fromkeys(gpu.model for gpu in gpus)),
            reason="an image may bring CUDA libraries that are newer than the driver",
        )
    ]
