"""The inventory: everything of a host that a plan can draw on, put together from its parts.

Belongs here: the order of looking, and telling apart the ways in which a driver can be absent or broken. Does not
belong here: looking itself (the neighbours of this module) and deciding what a container gets (nvinject.core).
"""

from nvinject.core import catalog
from nvinject.core.model import Driver, Inventory
from nvinject.core.policy import Policy, Roots
from nvinject.errors import HostError
from nvinject.host import driver, files, gpus
from nvinject.host.libraries import LibrarySearch, find_libraries
from nvinject.host.nodes import in_initial_user_namespace
from nvinject.host.root import Root

CONTROL_NODE = "/dev/nvidiactl"


def discover(
    policy: Policy,
    capabilities: tuple[str, ...],
    *,
    environ_path: str,
    nvml: bool,
    mig_management: bool = False,
    imex_channels: tuple[str, ...] = (),
    extras: tuple[str, ...] = (),
    daemon_directories: tuple[tuple[str, str], ...] = (),
    mps: bool = False,
    memory_limits: bool = False,
    identity: tuple[int, int] | None = None,
    library_directories: tuple[str, ...] = (),
    configuration_directories: tuple[str, ...] = (),
) -> Inventory:
    """Return what this host has for the given driver capabilities.

    `environ_path` is PATH, for programs; `nvml` asks NVML as well, for what only it knows; `mig_management` and
    `imex_channels` say that those nodes are needed, as `extras` does of node sets of the catalogue;
    `daemon_directories` are those that variables of the catalogue name; `mps` asks whether that service runs,
    `memory_limits` whether the driver keeps limits of GPU memory; NVML is asked as `identity` (user and group) where
    that is given; the other directories are looked at before the usual ones. Raises HostError for a missing root, an
    absent driver, a module that is not loaded, version skew, a required node and unreadable files. No GPU at all is no
    error.
    """
    with (
        Root(policy.roots.driver, title="driver root", key="nvidia-container-cli.root") as root,
        Root(policy.roots.proc, title="proc root", key="nvinject.proc-root") as proc,
        Root(_dev_path(policy.roots, root), title="device root", key="nvinject.dev-root") as dev,
    ):
        look = _Look(policy, capabilities, root, proc, dev)
        look.find_libraries(library_directories)
        look.find_driver(environ_path, daemon_directories, configuration_directories)
        inventory = look.find_devices(mig_management=mig_management, imex_channels=imex_channels)
        if extras:
            from nvinject.host.nodesets import look_for_node_sets

            inventory = inventory.replace(node_sets=look_for_node_sets(root, dev, extras))
        if mps:
            from nvinject.host.mps import find_fault

            inventory = inventory.replace(mps_fault=find_fault(root, proc, look.directories))
        if memory_limits:
            inventory = inventory.replace(memory_obstacle=look.find_memory_obstacle())
        return look.ask_nvml(inventory, identity) if nvml else inventory


class _Look:
    """One look at a host whose roots are open: what was found so far, and what is worth telling of it."""

    def __init__(self, policy: Policy, capabilities: tuple[str, ...], root: Root, proc: Root, dev: Root) -> None:
        self.policy = policy
        self.capabilities = capabilities
        self.root = root
        self.proc = proc
        self.dev = dev
        self.version = driver.read_kernel_version(proc)
        self.notes: tuple[str, ...] = ()

    def find_libraries(self, directories: tuple[str, ...]) -> None:
        """Find the libraries of the driver, and see that there is a driver."""
        self.search = find_libraries(
            self.root,
            self.version,
            catalog.libraries_for(self.capabilities),
            sizes=catalog.word_sizes_for(self.capabilities),
            cache=self.policy.ldcache,
            directories=directories,
        )
        check_driver(self.version, self.search, self.root, self.proc)
        self.notes = (*self.search.notes, *skew_notes(self.version, self.search))

    def find_driver(
        self,
        environ_path: str,
        daemon_directories: tuple[tuple[str, str], ...],
        configuration_directories: tuple[str, ...],
    ) -> None:
        """Find what the driver has beside its libraries: control nodes, programs, firmware, sockets, texts."""
        root, capabilities, left_out = self.root, self.capabilities, self.policy.leave_out
        self.nodes = gpus.Nodes(self.dev, driver.read_majors(self.proc), strict=in_initial_user_namespace())
        self.directories = (*daemon_directories, *configured_directories(self.policy))
        control_nodes, control_notes = driver.find_control_nodes(
            self.dev, catalog.control_nodes_for(capabilities), self.nodes.majors, strict=self.nodes.strict
        )
        sockets, socket_notes = files.find_sockets(root, catalog.sockets_for(capabilities, left_out), self.directories)
        self.driver = Driver(
            version=self.version,
            libraries=self.search.libraries,
            binaries=files.find_binaries(root, catalog.binaries_for(capabilities), environ_path),
            firmware=files.find_firmware(
                root, catalog.firmware_for(capabilities, left_out), self.version, self.policy.roots.sys
            ),
            sockets=sockets,
            configuration=files.find_configuration(
                root, catalog.configuration_files_for(capabilities), configuration_directories
            ),
            control_nodes=control_nodes,
            proc_files=driver.read_proc_files(self.proc),
        )
        self.notes = (*self.notes, *control_notes, *socket_notes)

    def find_devices(self, *, mig_management: bool, imex_channels: tuple[str, ...]) -> Inventory:
        """Return the driver with the GPUs, and the nodes beside theirs that are asked for."""
        proc, nodes = self.proc, self.nodes
        imex_nodes = gpus.find_imex_nodes(nodes, imex_channels)
        config_node, monitor_node, mig_capabilities = (
            gpus.find_mig_management(proc, nodes) if mig_management else (None, None, ())
        )
        found = gpus.find_gpus(proc, nodes)
        inventory = Inventory(
            driver=self.driver,
            roots=self.policy.roots.replace(driver=self.root.path, dev=self.dev.path, proc=proc.path),
            gpus=found,
            majors=nodes.majors,
            mig_capabilities=mig_capabilities,
            mig_config_node=config_node,
            mig_monitor_node=monitor_node,
            imex_nodes=imex_nodes,
            notes=(*self.notes, *nodes.notes),
        )
        if len(imex_nodes) == len(imex_channels):
            return inventory
        from nvinject.host.imex import look_at_channels

        present = {node.path for node in imex_nodes}
        missing = tuple(one for one in imex_channels if f"{catalog.IMEX_DIRECTORY}/channel{one}" not in present)
        return inventory.replace(imex=look_at_channels(self.dev, proc, nodes.majors, missing, strict=nodes.strict))

    def find_memory_obstacle(self) -> str:
        """Return why the driver keeps no limits of GPU memory, "" where it does."""
        from nvinject.host.memorylimits import find_obstacle

        return find_obstacle(self.root, self.search.management_library, self.version)

    def ask_nvml(self, inventory: Inventory, identity: tuple[int, int] | None) -> Inventory:
        """Return the inventory with what only NVML knows."""
        from nvinject.host.nvml import ask_nvml, complete_inventory

        library = self.search.management_library
        answer = ask_nvml(
            self.root.host_path(library) if library else "",
            self.version,
            self.policy.nvml_timeout,
            identity=identity,
            device_root=self.dev.path,
        )
        return complete_inventory(inventory, answer)


def configured_directories(policy: Policy) -> tuple[tuple[str, str], ...]:
    """Return the directories of daemons that the configuration names, by the variables that they stand for."""
    pairs = (
        (catalog.MPS_PIPE_VARIABLE, policy.mps_pipe_directory),
        (catalog.MPS_LOG_VARIABLE, policy.mps_log_directory),
    )
    return tuple((variable, path) for variable, path in pairs if path)


def device_root(roots: Roots) -> str:
    """Return the device root of a host whose driver root need not be opened otherwise."""
    with Root(roots.driver, title="driver root", key="nvidia-container-cli.root") as root:
        return _dev_path(roots, root)


def _dev_path(roots: Roots, root: Root) -> str:
    """Return the device root: as configured, else the driver root if it has nodes of its own (driver containers)."""
    if roots.dev:
        return roots.dev
    return root.path if root.exists(CONTROL_NODE) else "/"


def check_driver(version: str, search: LibrarySearch, root: Root, proc: Root) -> None:
    """Raise HostError where there is no driver, no loaded module, or no library of the module's version."""
    version_file = proc.host_path(driver.VERSION_FILE)
    others = {prefix: other for prefix, other in search.other_versions if prefix in catalog.WITNESS_LIBRARIES}
    if not version and others:
        raise HostError(
            f"the NVIDIA kernel module is not loaded: libraries {_versions(others)} are in {root.path}, "
            f"but {version_file} is missing",
            "run modprobe nvidia, or nvidia-smi as root, and look for NVRM in dmesg if that fails",
        )
    if not version:
        raise HostError(
            f"there is no NVIDIA driver: neither {version_file} nor {_witnesses()} in {_places(search)}",
            "install the driver on the host, or set nvidia-container-cli.root to the folder that holds it",
        )
    if search.has_witness:
        return
    if others:
        raise HostError(
            f"the driver's parts differ in version: kernel module {version}, libraries {_versions(others)}",
            "reload the kernel module (rmmod and modprobe nvidia) or reboot, so that both are of one version",
        )
    raise HostError(
        f"the kernel module {version} is loaded, but {_witnesses()} of that version is not in {_places(search)}",
        "install the driver's libraries, or set nvidia-container-cli.root to the folder that holds them",
    )


def skew_notes(version: str, search: LibrarySearch) -> tuple[str, ...]:
    """Return a note for libraries that were left out because only another version of them is there."""
    if not search.other_versions:
        return ()
    names = ", ".join(f"{prefix}.{other}" for prefix, other in search.other_versions)
    return (f"left out, not of the driver's version {version}: {names}",)


def _versions(others: dict[str, str]) -> str:
    return " and ".join(sorted(set(others.values())))


def _witnesses() -> str:
    return " or ".join(f"{prefix}.1" for prefix in reversed(catalog.WITNESS_LIBRARIES))


def _places(search: LibrarySearch) -> str:
    return ", ".join(search.places)
