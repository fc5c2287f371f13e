"""The list of what `nvinject install` laid down, kept in the prefix, so that it can be checked and taken away again.

Belongs here: writing and reading the list, and comparing it with what is there. Does not belong here: removing
(uninstall.py) and telling people (doctor.py). A file is known by the hash of its content, a link by its target.
"""

import os
import stat

from nvinject.errors import UsageError
from nvinject.linux.newfile import open_new
from nvinject.linux.signals import Undisturbed
from nvinject.record import Record

DIRECTORY = "share/nvinject"
NAME = "installed.json"

INTACT = "intact"
CHANGED = "changed"
GONE = "gone"


class Installed(Record):
    """One path: `content` is `-> TARGET` for a link, the SHA-256 of a file's content otherwise."""

    path: str
    content: str

    def state(self) -> str:
        """Return INTACT, CHANGED or GONE."""
        found = fingerprint(self.path)
        return GONE if not found else INTACT if found == self.content else CHANGED


class Manifest(Record):
    """Everything that was laid down below a prefix, and the directories that were made for it, outermost first."""

    path: str
    entries: tuple[Installed, ...] = ()
    directories: tuple[str, ...] = ()


def manifest_path(prefix: str) -> str:
    """Return where the list of a prefix lies."""
    return os.path.join(prefix, DIRECTORY, NAME)


def fingerprint(path: str) -> str:
    """Return what is compared of a path, "" where nothing is there; raises OSError for what cannot be read."""
    import hashlib

    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return f"-> {os.readlink(path)}"
        if not stat.S_ISREG(status.st_mode):
            return f"no file: {stat.filemode(status.st_mode)}"  # reading a FIFO would wait for a writer
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def missing_directories(path: str) -> tuple[str, ...]:
    """Return the directories that are not there of a path to a directory, outermost first."""
    missing: list[str] = []
    while path != "/" and not os.path.lexists(path):
        missing.insert(0, path)
        path = os.path.dirname(path)
    return tuple(missing)


def read_manifest(prefix: str) -> Manifest:
    """Return the list of a prefix, without entries where there is none; raises UsageError for a malformed one."""
    import json

    path = manifest_path(prefix)
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        return Manifest(
            path=path,
            entries=tuple(Installed(path=str(key), content=str(value)) for key, value in document["files"].items()),
            directories=tuple(str(directory) for directory in document["directories"]),
        )
    except FileNotFoundError:
        return Manifest(path=path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"the list of installed files {path} cannot be read: {error}", "install once more") from error


def record_installation(prefix: str, paths: "list[str]", directories: tuple[str, ...]) -> None:
    """Add what was just laid down to the list of a prefix; raises UsageError where it cannot be written."""
    import json

    before = read_manifest(prefix)
    files = {entry.path: entry.content for entry in before.entries}
    files.update({path: fingerprint(path) for path in paths})
    folder = os.path.dirname(before.path)
    made = (*before.directories, *directories, *missing_directories(folder))
    document = {"files": files, "directories": list(dict.fromkeys(made))}
    try:
        os.makedirs(folder, exist_ok=True)
        replace_file(before.path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {before.path}: {error.strerror}", "choose another --prefix") from error


def replace_file(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file in one step, with this mode whatever the umask; raises OSError with nothing left behind."""
    temporary = f"{path}.{os.getpid()}"
    with Undisturbed():
        descriptor = open_new(temporary, mode)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(temporary, mode)
            os.rename(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
