"""The way back: what files were before we changed them, kept until `--undo` asks for it.

Belongs here: the records below the state directory, and taking back our part of a file that others have changed since.
Not beside the file: engines read every file of their drop-in directories. Does not belong here: any format of a
configuration file.
"""

import os

from nvinject.engines.files import Change, make_directories, read_content, remove_directories
from nvinject.errors import ConfigurationError, HostError
from nvinject.linux.newfile import open_new
from nvinject.linux.signals import Undisturbed
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

STATE_DIRECTORY = "/var/lib/nvinject/configure"
_RECORD_MODE = 0o600  # daemon.json may hold what not everybody may read


class Kept(Record):
    """A file before our first change (None: there was none) and after our last one."""

    path: str
    original: bytes | None
    written: bytes | None


class History(Record):
    """What one engine's configuration was; `path` is the record's own file."""

    path: str
    files: tuple[Kept, ...] = ()
    directories: tuple[str, ...] = ()


def state_directory(environ: "dict[str, str] | os._Environ[str]") -> str:
    """Return where records are kept: the system's directory, or the user's own for who cannot write there."""
    if os.geteuid() == 0:
        return STATE_DIRECTORY
    home = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "/"), ".local", "state")
    return os.path.join(home, "nvinject", "configure")


class Lock:
    """Keeps two calls of the command apart, so that each knows the other's record; for use with `with`.

    It is the state directory that is locked, made if need be and removed again if it is empty in the end. Where it
    cannot be made there is no lock, and no record either: save_history says so when one is needed.
    """

    __slots__ = ("_descriptor", "_made", "_path")

    def __init__(self, path: str) -> None:
        """Remember the state directory."""
        self._path = path
        self._descriptor = -1
        self._made: tuple[str, ...] = ()

    def __enter__(self) -> None:
        """Wait for the lock."""
        import fcntl

        try:
            self._made = tuple(make_directories(self._path))
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        """Give the lock back."""
        if self._descriptor >= 0:
            remove_directories(self._made)
            os.close(self._descriptor)


def load_history(directory: str, engine: str, config: str) -> History:
    """Return the record for an engine's configuration file, an empty one if there is none yet."""
    import base64
    import hashlib
    import json

    digest = hashlib.sha256(os.path.abspath(config).encode(errors="surrogateescape")).hexdigest()[:16]
    path = os.path.join(directory, f"{engine}-{digest}.json")
    data = read_content(path)
    if data is None:
        return History(path=path)

    def decode(value: "str | None") -> bytes | None:
        return None if value is None else base64.b64decode(value, validate=True)

    try:
        values = json.loads(data)
        files = tuple(
            Kept(path=one["path"], original=decode(one["original"]), written=decode(one["written"]))
            for one in values["files"]
        )
        return History(path=path, files=files, directories=tuple(values["directories"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is damaged: {error}", "remove it; the way back to the files of that time is lost"
        ) from error


def save_history(history: History) -> None:
    """Write a record in one step, or remove it if it holds no file. Raises HostError."""
    import base64
    import json

    def encode(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    try:
        if not history.files:
            if os.path.lexists(history.path):
                os.unlink(history.path)
            return
        make_directories(os.path.dirname(history.path))
        values = {
            "files": [
                {"path": one.path, "original": encode(one.original), "written": encode(one.written)}
                for one in history.files
            ],
            "directories": list(history.directories),
        }
        with Undisturbed():
            _replace(history.path, json.dumps(values, indent=2) + "\n")
    except OSError as error:
        raise HostError(
            f"cannot keep the way back in {history.path}: {error.strerror}", "name a directory with --state-dir"
        ) from error


def _replace(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}.new"
    descriptor = open_new(temporary, _RECORD_MODE)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def with_changes(history: History, changes: "Sequence[Change]") -> tuple[History, tuple[str, ...]]:
    """Return the record after some changes, and a note for each file whose older state it can no longer bring back.

    A file that others changed since our last change has a new original: theirs, without our part.
    """
    files = {one.path: one for one in history.files}
    notes = []
    for change in changes:
        if change.before == change.after:
            continue
        kept = files.get(change.path)
        original = change.before
        if kept is not None:
            original, merged = _without_ours(kept, change.before)
            if not merged:
                notes.append(
                    f"{change.path} was changed by somebody else in the lines that are ours; "
                    "--undo will bring back the state before this change only"
                )
        files[change.path] = Kept(path=change.path, original=original, written=change.after)
    return history.replace(files=tuple(files.values())), tuple(notes)


def _without_ours(kept: Kept, current: bytes | None) -> tuple[bytes | None, bool]:
    """Return a file without our part, and True; the file as it is, and False, if the parts cannot be told apart."""
    if current == kept.written:
        return kept.original, True
    if current is None or current == kept.original:
        return current, True
    merged = take_back(kept.written or b"", kept.original or b"", current)
    if merged is None:
        return current, False
    return (None if kept.original is None and not merged.strip() else merged), True


def undo_changes(
    history: History, is_valid: "Callable[[str, bytes], bool]"
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Return the changes that lead back, and notes about files that others have changed since.

    Raises ConfigurationError where our part cannot be told from theirs, or where taking it out would leave what
    `is_valid` (path, content) refuses.
    """
    changes = []
    notes = []
    for kept in history.files:
        current = read_content(kept.path)
        target, merged = _without_ours(kept, current)
        changed = current not in {kept.written, kept.original}
        if changed and (not merged or (target is not None and not is_valid(kept.path, target))):
            raise ConfigurationError(
                f"{kept.path} was changed since, in the lines that are ours",
                "take the runtime out by hand, or restore the file from your own backup; "
                f"{history.path} holds it as it was",
            )
        if changed and current is not None:
            notes.append(f"{kept.path} was changed since; only our part is taken back")
        elif current is None and kept.written is not None:
            notes.append(f"{kept.path} has been removed since; it stays away")
        changes.append(Change(path=kept.path, before=current, after=target))
    return tuple(changes), tuple(notes)


def take_back(ours: bytes, original: bytes, current: bytes) -> bytes | None:
    """Return `current` with the difference from `original` to `ours` undone; None if others touched the same lines.

    The three-way merge of diff3(1), line by line, with `ours` as the common ancestor.
    """
    base = ours.splitlines(keepends=True)
    hunks = sorted((*_hunks(base, original), *_hunks(base, current)), key=lambda hunk: hunk[:2])
    merged: list[bytes] = []
    at = 0
    previous: tuple[int, int, Any] | None = None
    for hunk in hunks:
        start, end, lines = hunk
        if hunk == previous:
            continue
        if previous is not None and (start < at or (start == at and previous[0] == previous[1] == start == end)):
            return None
        merged += base[at:start]
        merged += lines
        at = max(at, end)
        previous = hunk
    return b"".join((*merged, *base[at:]))


def _hunks(base: "list[bytes]", other: bytes) -> "list[tuple[int, int, list[bytes]]]":
    import difflib

    lines = other.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, base, lines, autojunk=False)
    return [(i1, i2, lines[j1:j2]) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]
