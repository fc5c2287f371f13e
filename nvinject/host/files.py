"""The driver's files in user space other than libraries: programs, firmware, sockets, configuration.

Belongs here: looking for what the catalogue names, below the driver root. Does not belong here: libraries
(libraries.py) and the places in a container. What is not there is simply not in the result: no installation has it all.
"""

import errno
import stat

from nvinject import leanos as os
from nvinject.core.catalog import (
    BINARY_DIRECTORIES,
    CONFIGURATION_DIRECTORIES,
    BinaryRow,
    ConfigurationRow,
    FirmwareRow,
    SocketRow,
)
from nvinject.core.model import HostFile
from nvinject.errors import HostError
from nvinject.host.nodes import in_initial_user_namespace
from nvinject.host.root import Root

UNKNOWN_USER = 65534  # user_namespaces(7): whom files outside of a user namespace seem to belong to
FIRMWARE_PATH = "/module/firmware_class/parameters/path"  # below the sys root: Documentation/driver-api/firmware


def find_binaries(root: Root, rows: tuple[BinaryRow, ...], search_path: str) -> tuple[HostFile, ...]:
    """Return the programs, each from the first directory of `search_path` (as PATH) that has it as a regular file."""
    given = [directory for directory in search_path.split(":") if directory.startswith("/")]
    usual = [directory for name in BINARY_DIRECTORIES for directory in root.expand(name)]
    directories = dict.fromkeys([*given, *usual])
    found = []
    for row in rows:
        for directory in directories:
            path = _program(root, f"{directory.rstrip('/')}/{row.name}")
            if path:
                found.append(HostFile(name=row.name, path=path))
                break
    return tuple(found)


def _program(root: Root, path: str) -> str:
    """Return the program's path, "" where it is not or where this user may not look, as a shell passes it over."""
    try:
        return _regular_file(root, path)
    except HostError as error:
        if not _is_closed(error):
            raise
        return ""


def _is_closed(error: HostError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EACCES


def _regular_file(root: Root, path: str) -> str:
    located = root.locate(path)
    return located[0] if located is not None and stat.S_ISREG(located[1].st_mode) else ""


def find_firmware(root: Root, rows: tuple[FirmwareRow, ...], version: str, sys: str = "") -> tuple[HostFile, ...]:
    """Return the firmware files of a driver version; `name` is the file's own name, `path` is free of links.

    The first directory that has any wins: the usual one, those of other systems, those that the kernel itself looks
    into. `sys` is the path of the sys root, "" to leave the last ones out.
    """
    found = []
    for row in rows:
        for directory in (row.directory, *row.others):
            here = _firmware_in(root, row, f"{directory}/{version}")
            if here:
                break
        else:
            # Rare, so that only hosts without firmware pay for it: datacentre cards of old branches have none.
            places = kernel_firmware_directories(root, sys) if sys else ()
            here = next(filter(None, (_firmware_in(root, row, f"{name}/nvidia/{version}") for name in places)), [])
        found += here
    return tuple(found)


def _firmware_in(root: Root, row: FirmwareRow, directory: str) -> list[HostFile]:
    found = []
    for name in root.list_directory(directory):
        if name.startswith(row.prefix) and name.endswith(row.suffix):
            path = _regular_file(root, f"{directory}/{name}")
            if path:
                found.append(HostFile(name=name, path=path))
    return found


def kernel_firmware_directories(root: Root, sys: str) -> tuple[str, ...]:
    """Return where the running kernel looks for firmware besides /lib/firmware, as the root shows these directories."""
    try:
        with Root(sys, title="sys root", key="nvinject.sys-root") as system:
            configured = (system.read_text(FIRMWARE_PATH) or "").strip()
    except HostError:
        configured = ""  # who has no sysfs has nothing set there
    release = os.uname().release
    own = (root.shown_below(configured) or configured,) if configured.startswith("/") else ()
    return (*own, f"/lib/firmware/updates/{release}", "/lib/firmware/updates", f"/lib/firmware/{release}")


def find_sockets(
    root: Root, rows: tuple[SocketRow, ...], directories: tuple[tuple[str, str], ...] = ()
) -> tuple[tuple[HostFile, ...], tuple[str, ...]]:
    """Return the sockets and socket directories of running daemons, and notes about those that may not be looked at.

    `directories` are (variable, absolute path) pairs that stand for the paths of rows with that variable.
    """
    found: list[HostFile] = []
    notes = []
    named = dict(directories)
    for row in rows:
        if row.needs and all(one.name != row.needs for one in found):
            continue
        wanted = stat.S_ISDIR if row.is_directory else stat.S_ISSOCK
        for path in socket_paths(row, named):
            try:
                located = root.locate(path, follow_last=not row.is_directory)
                if row.is_directory and located is not None and stat.S_ISLNK(located[1].st_mode):
                    # The usual one is below /tmp: whoever made this link would choose what containers are shown.
                    notes.append(f"{root.host_path(path)} is a link and not followed ({row.reason})")
                    continue
                if row.is_directory and located is not None and row.variable not in named and is_anothers(located[1]):
                    # They could put a link in its place later: a runtime mounts by path, a CDI spec for years.
                    notes.append(
                        f"{root.host_path(path)} belongs to user {located[1].st_uid} and is not shown ({row.reason}); "
                        f"config.toml, or {row.variable} of the engine, can name it"
                    )
                    continue
            except HostError as error:
                if not _is_closed(error):
                    raise
                # A daemon's folder may be closed to this user; the container does without the socket.
                notes.append(f"{error.message} ({row.reason})")
                break
            if located is not None and wanted(located[1].st_mode):
                found.append(HostFile(name=row.name, path=located[0]))
                break
    return tuple(found), tuple(notes)


def is_anothers(status: os.stat_result) -> bool:
    """Tell whether a file belongs to an ordinary user other than this one, as far as this user namespace shows it."""
    if status.st_uid in {0, os.geteuid()}:
        return False
    return status.st_uid != UNKNOWN_USER or in_initial_user_namespace()


def socket_paths(row: SocketRow, named: dict[str, str]) -> tuple[str, ...]:
    """Return where a row is looked for; `named` are the directories that variables name."""
    return (named[row.variable],) if row.variable in named else row.paths


def find_configuration(
    root: Root, rows: tuple[ConfigurationRow, ...], directories: tuple[str, ...] = ()
) -> tuple[HostFile, ...]:
    """Return the files that dispatchers read; the first directory that has one wins, `directories` before the usual."""
    found = []
    for row in rows:
        for directory in (*directories, *CONFIGURATION_DIRECTORIES):
            path = _program(root, f"{directory.rstrip('/')}/{row.name}")
            if path:
                found.append(HostFile(name=row.name, path=path))
                break
    return tuple(found)
