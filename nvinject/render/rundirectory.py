"""The run directory: what was generated for containers, and getting rid of it.

Belongs here: making, filling, labelling and removing a container's folder, and sweeping those of containers that are
gone. Does not belong here: what is generated (oci.py). The launcher of the runtime shim knows the place as well: it
removes a container's folder after `delete`.
"""

import errno
import stat
import time

from nvinject import leanos as os
from nvinject.errors import ContainerError, InputError, quoted
from nvinject.formats.jsonio import JSONError, dumps, loads
from nvinject.linux.inroot import ignore_absence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nvinject.render.oci import GeneratedFile

BASE = "/run/nvinject"
OWNER_FILE = "container.json"
SWEEP_AGE = 120  # seconds that a container may take from create to the runtime's own record of it
BASE_MODE = 0o711  # a container's root in a user namespace passes through, and lists nothing
DIRECTORY_MODE = 0o755
LABEL = "security.selinux"
UNKNOWN_USER = 65534  # user_namespaces(7): whom files outside of a user namespace seem to belong to
LONGEST_NAME = 255  # bytes, NAME_MAX of Linux
MOST_LINKS = 40  # path_resolution(7)

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LABELS = (errno.ENOTSUP, errno.ENODATA)
_STATE_DIRECTORIES = {"runc": "/run/runc", "crun": "/run/crun", "youki": "/run/youki"}


def candidate_bases(environ: "Mapping[str, str]") -> tuple[str, ...]:
    """Return where run directories can be: the system's, and the user's for runtimes without root's rights."""
    user = environ.get("XDG_RUNTIME_DIR", "")
    return (BASE, f"{user}/nvinject") if user.startswith("/") else (BASE,)


def choose_base(environ: "Mapping[str, str]") -> str:
    """Return the first base that can be written, made if it is not there; raises ContainerError."""
    failure: OSError | None = None
    for base in candidate_bases(environ):
        try:
            try:
                os.mkdir(base, BASE_MODE)
            except FileExistsError:
                pass
            except FileNotFoundError:
                os.makedirs(base, BASE_MODE, exist_ok=True)
            _check_base(base)
        except OSError as error:
            failure = error
            if error.errno in {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
                break  # our own trouble, not one of the folder
        else:
            return base
    assert failure is not None
    raise ContainerError(
        f"cannot make the run directory {failure.filename}: {failure.strerror}",
        "run as root, or set XDG_RUNTIME_DIR to a folder of the user",
    )


def _check_base(base: str) -> None:
    if not is_own(base):
        raise PermissionError(errno.EPERM, "it is not a folder of this user alone", base)
    if not os.access(base, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), base)


def is_own(base: str) -> bool:
    """Tell whether a base is this user's alone: what lies there becomes containers' files, and is removed by its path.

    Nobody else may have made it, put it there or be able to exchange a directory or a link on the way to it. Root may
    be given the XDG_RUNTIME_DIR of a user who became root.
    """
    try:
        status = os.lstat(base)
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
        return is_ours and _is_safe_way(os.path.dirname(base))
    except OSError:
        return False


def _is_safe_way(path: str, links: int = 0) -> bool:
    """Tell whether nobody but root and this user can exchange a directory or one above it; raises OSError."""
    while True:
        status = os.lstat(path)
        if status.st_uid not in {os.geteuid(), 0, UNKNOWN_USER}:
            return False
        above = os.path.dirname(path)
        if stat.S_ISLNK(status.st_mode):
            target = os.path.join(above, os.readlink(path))
            if links >= MOST_LINKS or not _is_safe_way(target, links + 1):
                return False
        elif status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            return False
        if above == path:
            return True
        path = above


class RunDirectory:
    """The folder of one container below a base."""

    def __init__(self, base: str, identifier: str) -> None:
        """Name the folder; raises InputError for an id that is no name of a folder."""
        if (
            identifier in {"", ".", ".."}
            or "/" in identifier
            or "\0" in identifier
            or len(os.fsencode(identifier)) > LONGEST_NAME
        ):
            raise InputError(f"the container's id {quoted(identifier)} cannot be used as a name", "choose another id")
        self.path = f"{base}/{identifier}"

    def make(self, bundle: str, state: str) -> None:
        """Make the folder anew, with a note on whose it is; raises ContainerError.

        Engines and namespaces of engines have containers of one id: what a living one uses stays.
        """
        note = dumps({"bundle": bundle, "state": state}).encode("ascii")
        try:
            try:
                os.mkdir(self.path, DIRECTORY_MODE)
            except FileExistsError:
                self._refuse_living()
                self.remove()
                os.mkdir(self.path, DIRECTORY_MODE)
            try:
                os.chmod(self.path, DIRECTORY_MODE)  # whatever the umask: containers' roots pass through
                _write(f"{self.path}/{OWNER_FILE}", note, 0o644)
            except OSError:
                self.remove()
                raise
        except OSError as error:
            raise self._failure(error) from error

    def _refuse_living(self) -> None:
        state = living(self.path)
        if state:
            raise ContainerError(
                f"{self.path} is in use by the container of this id whose record is {state}",
                "delete that container, or choose another id",
            )

    def fill(self, files: "Iterable[GeneratedFile]", label: str) -> None:
        """Write files and give them and their folders the container's SELinux label; raises ContainerError."""
        try:
            for file in files:
                path = f"{self.path}/{file.path}"
                directory = os.path.dirname(path)
                if directory != self.path and not os.path.isdir(directory):
                    os.mkdir(directory, DIRECTORY_MODE)
                    os.chmod(directory, DIRECTORY_MODE)
                    _set_label(directory, label)
                _write(path, file.content, file.mode)
                _set_label(path, label)
        except OSError as error:
            raise self._failure(error) from error

    def remove(self) -> None:
        """Remove the folder with what is in it; one that is not there is as good."""
        remove_tree(self.path)

    def _failure(self, error: OSError) -> ContainerError:
        return ContainerError(
            f"cannot write {error.filename or self.path}: {error.strerror}", "free space on the file system of /run"
        )


def _write(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, _NEW_FILE, mode)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fchmod(descriptor, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(descriptor)


def _set_label(path: str, label: str) -> None:
    if not label:
        return
    try:
        os.setxattr(path, LABEL, label.encode() + b"\0", follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LABELS:  # a file system or kernel without labels
            raise


def remove_tree(path: str) -> None:
    """Remove a folder and what is in it, following no link; raises OSError, not for what is gone already."""
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(path)
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(path)


def state_directory(runtime: str, root: str, identifier: str, environ: "Mapping[str, str]") -> str:
    """Return where the low-level runtime keeps a container's record, "" where that is not known."""
    base = root or _default_state(runtime.rpartition("/")[2], environ)
    return f"{os.path.abspath(base)}/{identifier}" if base else ""


def _default_state(name: str, environ: "Mapping[str, str]") -> str:
    user = environ.get("XDG_RUNTIME_DIR", "")
    if os.geteuid() != 0 and user and name in _STATE_DIRECTORIES:
        return f"{user}/{name}"
    return _STATE_DIRECTORIES.get(name, "")


def sweep(base: str, now: "float | None" = None) -> "tuple[str, ...]":
    """Remove the folders of containers that are gone, as after a crash; returns their names. Never raises."""
    swept = []
    try:
        names = os.listdir(base)
    except OSError:
        return ()
    for name in names:
        path = f"{base}/{name}"
        try:
            if is_left_over(path, time.time() if now is None else now):
                remove_tree(path)
                swept.append(name)
        except OSError:
            continue  # another create sweeps at the same time, or it is not ours to remove
    return tuple(swept)


def living(path: str) -> str:
    """Return the low-level runtime's record of a folder's container, "" where it has none or is not known.

    Raises: OSError where the note is there and cannot be read, as without descriptors: the container may well live.
    """
    try:
        state = _read_note(path)[1]
    except OSError as error:
        ignore_absence(error)
        return ""
    except (JSONError, KeyError, TypeError):
        return ""
    return state if state and os.path.exists(state) else ""


def _read_note(path: str) -> tuple[str, str]:
    """Return bundle and state of a folder's container; raises what reading and parsing raise."""
    with open(f"{path}/{OWNER_FILE}", "rb") as file:
        note = loads(file.read(65536))
    return str(note["bundle"]), str(note["state"])


def is_left_over(path: str, now: float) -> bool:
    """Tell whether the container of a folder is gone: its bundle, or the runtime's record of it."""
    if now - os.lstat(path).st_mtime < SWEEP_AGE:
        return False
    try:
        bundle, state = _read_note(path)
    except OSError as error:
        ignore_absence(error)  # that of a living container must not go because descriptors are short
        return True
    except (JSONError, KeyError, TypeError):
        return True  # a create that was interrupted
    return not os.path.exists(f"{bundle}/config.json") or bool(state and not os.path.exists(state))
