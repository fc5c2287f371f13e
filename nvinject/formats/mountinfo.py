"""/proc/<pid>/mountinfo: one mount a line, as proc_pid_mountinfo(5) describes it.

Belongs here: text to values. Does not belong here: reading the file, choosing a mount, mounting.
"""

from nvinject.record import Record


class MountInfoError(ValueError):
    """A line is not what the kernel writes."""


class Mount(Record):
    """One mount; paths are unescaped, `device` is (major, minor), options are as written, between commas."""

    mount_id: int
    parent_id: int
    device: tuple[int, int]
    root: str
    mount_point: str
    options: tuple[str, ...]
    optional: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Return the mounts in the kernel's order; raises MountInfoError naming the line."""
    return tuple(
        _parse_line(line, number) for number, line in enumerate(text.split("\n"), 1) if line and not line.isspace()
    )


def _parse_line(line: str, number: int) -> Mount:
    # A field may be empty (the source of a mount without one), so only single blanks separate.
    fields = line.split(" ")
    try:
        separator = fields.index("-", 6)
        major, minor = fields[2].split(":")
        fstype, source, super_options = fields[separator + 1 : separator + 4]
        return Mount(
            mount_id=int(fields[0]),
            parent_id=int(fields[1]),
            device=(int(major), int(minor)),
            root=unescape(fields[3]),
            mount_point=unescape(fields[4]),
            options=tuple(fields[5].split(",")),
            optional=tuple(fields[6:separator]),
            fstype=unescape(fstype),
            source=unescape(source),
            super_options=tuple(unescape(option) for option in super_options.split(",")),
        )
    except ValueError:
        raise MountInfoError(f"line {number} is not a mountinfo line: {line!r}") from None


def unescape(text: str) -> str:
    r"""Return the text with the kernel's octal escapes (\040 \011 \012 \134 and the like) replaced."""
    if "\\" not in text:
        return text
    first, *rest = text.split("\\")
    parts = [first]
    for part in rest:
        digits = part[:3]
        if len(digits) == 3 and all(digit in "01234567" for digit in digits) and int(digits, 8) < 0x80:
            parts.append(chr(int(digits, 8)) + part[3:])
        else:
            parts.append("\\" + part)
    return "".join(parts)
