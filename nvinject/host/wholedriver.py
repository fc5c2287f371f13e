"""The rest of the driver: what the catalogue does not name, and the nodes through which GPUs draw.

Belongs here: looking for what only a specification for containers that nobody knows yet needs (CDI). Does not belong
here: what every request needs (inventory.py), which must stay cheap. What is not there is simply not in the result.
"""

import os
import stat

from nvinject.core.catalog import (
    LIBRARY_SUBDIRECTORIES,
    MODULE_DIRECTORIES,
    MODULES,
    OWN_VERSION_LIBRARIES,
)
from nvinject.core.model import DisplayLink, Gpu, Inventory, Library
from nvinject.formats.elf import ElfError
from nvinject.host.libraries import library_prefix, read_header
from nvinject.host.nodes import look_at_node
from nvinject.host.root import Root

DISPLAY_DIRECTORY = "/dev/dri"
BY_PATH_DIRECTORY = "/dev/dri/by-path"
PCI_DEVICES = "/bus/pci/devices"  # below the sys root
SYSTEM_MODULE_DIRECTORIES = ("/usr/lib", "/usr/lib64")


def complete_inventory(inventory: Inventory) -> Inventory:
    """Return the inventory with all libraries of the driver's version, modules of the X server and display nodes."""
    roots = inventory.roots
    with (
        Root(roots.driver, title="driver root") as root,
        Root(roots.dev, title="device root") as dev,
        Root(roots.sys, title="sys root", key="nvinject.sys-root") as sys,
    ):
        driver = inventory.driver
        known = driver.libraries
        more = (*find_remaining_libraries(root, driver.version, known), *find_modules(root, driver.version, known))
        return inventory.replace(
            driver=driver.replace(libraries=tuple(add_plain_link(root, library) for library in (*known, *more))),
            gpus=tuple(add_display(sys, dev, gpu) for gpu in inventory.gpus),
        )


def find_remaining_libraries(root: Root, version: str, known: tuple[Library, ...]) -> tuple[Library, ...]:
    """Return the libraries beside the known ones that are of the driver's version, or have one of their own."""
    found: dict[str, Library] = {}
    paths = {library.path for library in known}
    for folder, bits in _library_folders(known).items():
        for directory in (folder, *(f"{folder}/{name}" for name in LIBRARY_SUBDIRECTORIES)):
            for name in root.list_directory(directory):
                if not _belongs(name, version):
                    continue
                located = root.locate(f"{directory}/{name}")
                if located is None or not stat.S_ISREG(located[1].st_mode):
                    continue
                path = located[0]
                # A link to a file that is there under its own name is no second library.
                if path in paths or path in found or not _belongs(path.rsplit("/", 1)[-1], version):
                    continue
                soname = _read_soname(root, path, bits)
                if soname:
                    found[path] = Library(soname=soname, path=path, bits=bits)
    return tuple(found.values())


def add_plain_link(root: Root, library: Library) -> Library:
    """Return the library with what the link without version beside it says, if that leads to it."""
    folder, _, file = library.path.rpartition("/")
    text = root.read_link(f"{folder}/{library_prefix(file)}")
    return library.replace(plain_link=text) if text in {library.soname, file} and text else library


def _library_folders(known: tuple[Library, ...]) -> dict[str, int]:
    return {library.path.rpartition("/")[0]: library.bits for library in known}


def _belongs(name: str, version: str) -> bool:
    prefix = library_prefix(name)
    if not prefix.startswith("lib") or prefix in MODULES:
        return False
    rest = name.removeprefix(prefix)
    return rest == f".{version}" or (prefix in OWN_VERSION_LIBRARIES and rest.count(".") >= 2)


def _read_soname(root: Root, path: str, bits: int) -> str:
    """Return the SONAME of a library of the given word size, its file name where it has none, "" for anything else."""
    try:
        header = read_header(root, path)
    except ElfError:
        return ""
    return (header.soname or path.rsplit("/", 1)[-1]) if header.bits == bits else ""


def find_modules(root: Root, version: str, known: tuple[Library, ...]) -> tuple[Library, ...]:
    """Return the X server's modules of the driver; the first folder that has one wins."""
    folders = [folder for folder, bits in _library_folders(known).items() if bits == 64]
    found = []
    for name in MODULES:
        for directory in (*folders, *SYSTEM_MODULE_DIRECTORIES):
            path = _find_module(root, directory, name, version)
            if path:
                found.append(Library(soname=name, path=path, is_module=True))
                break
    return tuple(found)


def _find_module(root: Root, directory: str, name: str, version: str) -> str:
    for below in MODULE_DIRECTORIES:
        for file in (f"{name}.{version}", name):
            path = root.resolve(f"{directory}/{below}/{file}")
            if path is not None:
                return path
    return ""


def add_display(sys: Root, dev: Root, gpu: Gpu) -> Gpu:
    """Return the GPU with its nodes below /dev/dri and the links of /dev/dri/by-path that lead to them."""
    names = sys.list_directory(f"{PCI_DEVICES}/{gpu.bus_id}/drm")
    nodes = [look_at_node(dev, f"{DISPLAY_DIRECTORY}/{name}") for name in names if name.startswith(("card", "renderD"))]
    found = tuple(node for node in nodes if node is not None)
    there = {node.path for node in found}
    links = []
    for name in dev.list_directory(BY_PATH_DIRECTORY) if found else ():
        path = f"{BY_PATH_DIRECTORY}/{name}"
        target = dev.read_link(path)
        if target and os.path.normpath(f"{BY_PATH_DIRECTORY}/{target}") in there:
            links.append(DisplayLink(path=path, target=target))
    return gpu.replace(display_nodes=found, display_links=tuple(links))
