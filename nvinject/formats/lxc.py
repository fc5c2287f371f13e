"""LXC's configuration of a container: `key = value` lines, as lxc.container.conf(5) describes them.

Belongs here: writing a value so that LXC reads it back, mount entries, reading a value, a block of lines that can be
found again. Does not belong here: which lines a container needs (nvinject.render.lxc) and files.
"""

from nvinject.record import Record

BEGIN = "# nvinject cdi inject: begin"
END = "# nvinject cdi inject: end"
_BLANKS = " \t"
_QUOTES = "\"'"
# What getmntent(3) takes for the end of a field or line, and the character that escapes.
_ESCAPED = " \t\n\\"


class LxcError(ValueError):
    """The configuration cannot be read, or a value cannot be said in it."""


class MountEntry(Record):
    """One `lxc.mount.entry`; `target` is absolute in the container, `options` are LXC's, mount(8)'s for the rest."""

    source: str
    target: str
    options: tuple[str, ...]
    fstype: str = "none"


def escape(text: str) -> str:
    """Return a field of a mount entry: blanks, newlines and backslashes in octal, as fstab(5) wants them."""
    return "".join(f"\\{ord(character):03o}" if character in _ESCAPED else character for character in text)


def format_line(key: str, value: str) -> str:
    """Return a line; raises LxcError for a value that no line can hold.

    LXC cuts blanks off both ends and one pair of quotes after that, so a value with either gets a pair to lose.
    """
    if "\n" in value or "\0" in value:
        raise LxcError(f"{key}: a line of LXC's configuration cannot hold a line break: {value!r}")
    at_stake = value[:1] in (*_BLANKS, *_QUOTES) or value[-1:] in tuple(_BLANKS)
    return f'{key} = "{value}"' if value and at_stake else f"{key} = {value}"


def format_mount_entry(entry: MountEntry) -> str:
    """Return the line of a mount; the target is relative, which for LXC is below the container's root."""
    options = ",".join(entry.options)
    # A first field with # would be a comment to getmntent(3); sources are absolute or names of file systems.
    fields = (entry.source, entry.target.lstrip("/") or ".", entry.fstype or "none", options or "defaults")
    if any(not field or "\0" in field for field in fields) or entry.source.startswith("#"):
        raise LxcError(f"lxc.mount.entry: {entry.source!r} cannot be mounted at {entry.target!r}")
    return format_line("lxc.mount.entry", f"{' '.join(escape(field) for field in fields)} 0 0")


def read_value(text: str, key: str) -> str:
    """Return the last value of a key, as LXC reads it; "" where the key is not set."""
    found = ""
    for line in text.split("\n"):  # str.splitlines knows ends of lines that are none to LXC
        name, equals, value = line.partition("=")
        if equals and name.strip(_BLANKS) == key and not name.lstrip(_BLANKS).startswith("#"):
            found = value.strip(_BLANKS)
            if len(found) > 1 and found[0] in _QUOTES and found[0] == found[-1]:
                found = found[1:-1]
    return found


def rootfs_directory(path: str) -> str:
    """Return the directory that a value of lxc.rootfs.path means, "" for storage that is not one (zfs, loop, ...)."""
    kind, colon, rest = path.partition(":")
    if colon and "/" not in kind:
        return rest if kind in {"dir", "btrfs"} else ""
    return path


def replace_block(text: str, lines: tuple[str, ...]) -> str:
    """Return a configuration whose block between the marks consists of these lines; a new block goes to the end.

    Raises LxcError, with the line's number, for a mark without its other half.
    """
    kept: list[str] = []
    opened = 0
    place = -1
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        if line.startswith(BEGIN):
            if opened:
                raise LxcError(f"line {number}: the block that begins in line {opened} has no end")
            opened, place = number, len(kept) if place < 0 else place
        elif line.startswith(END):
            if not opened:
                raise LxcError(f"line {number}: the end of a block that has no beginning")
            opened = 0
        elif not opened:
            kept.append(line)
    if opened:
        raise LxcError(f"line {opened}: the block that begins here has no end")
    place = len(kept) if place < 0 else place
    return "".join(f"{line}\n" for line in (*kept[:place], BEGIN, *lines, END, *kept[place:]))
