"""Mount specifications: the CSV files in which a Tegra system lists what its containers get.

Belongs here: text to entries, and the patterns by which entries are left out. Does not belong here: finding the files,
and what an entry leads to (nvinject.host.mountlists). NVIDIA's L4T packages write these files, one entry a line:

    line  = [ type "," path ]        blanks around both are ignored; the path may hold commas
    type  = "dev" | "dir" | "lib" | "sym"

There is no header and no quoting. A line that begins with `#` is a comment. Whatever else a line is, it is skipped as
the original skips it, but told with its number.
"""

from nvinject.record import Record

DEVICE = "dev"
DIRECTORY = "dir"
LIBRARY = "lib"
SYMLINK = "sym"
TYPES = (DEVICE, DIRECTORY, LIBRARY, SYMLINK)

ANYWHERE = "**/"  # before a pattern that is about the last component alone
_MAGIC = "*?["


class Entry(Record):
    """One thing that containers get: its type, its absolute path (a pattern if it has_magic), and its line."""

    type: str
    path: str
    line: int


class Fault(Record):
    """A line that is no entry, and why."""

    line: int
    problem: str


class MountSpec(Record):
    """Everything that a file says, in its order."""

    entries: tuple[Entry, ...] = ()
    faults: tuple[Fault, ...] = ()


def parse_mount_spec(text: str) -> MountSpec:
    """Return the entries and the faulty lines of a file; never raises."""
    entries: list[Entry] = []
    faults: list[Fault] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        kind, comma, path = (part.strip() for part in words.partition(","))
        problem = _find_problem(kind, comma, path)
        if problem:
            faults.append(Fault(line=number, problem=problem))
        else:
            entries.append(Entry(type=kind, path="/" + path.lstrip("/"), line=number))
    return MountSpec(entries=tuple(entries), faults=tuple(faults))


def _find_problem(kind: str, comma: str, path: str) -> str:
    """Return what is wrong with a line, "" for an entry."""
    if not comma:
        return f"no comma in {kind[:60]!r}, expected TYPE, PATH"
    if kind not in TYPES:
        return f"unknown type {kind[:60]!r}, there are {', '.join(TYPES)}"
    if not path.strip("/"):
        return f"no path behind {kind!r}"
    if "\0" in path:
        return "a path cannot hold a zero byte"
    return ""


def has_magic(path: str) -> bool:
    """Tell whether a path is a pattern for several."""
    return any(letter in path for letter in _MAGIC)


def matches(path: str, pattern: str) -> bool:
    """Tell whether a path matches a pattern, component by component; `**/NAME` is about the last component alone."""
    if pattern.startswith(ANYWHERE):
        return matches_name(path.rpartition("/")[2], pattern.removeprefix(ANYWHERE))
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(matches_name, parts, wanted))


def matches_name(name: str, pattern: str) -> bool:
    """Tell whether one component matches: `*` any letters, `?` one letter, `[…]` one of those."""
    from fnmatch import fnmatchcase  # brings re; only lists with patterns need it

    return fnmatchcase(name, pattern) if has_magic(pattern) else name == pattern
