"""What directories contribute to a loader cache: the rules of ldconfig(8), without its effects.

Belongs here: which names of a listing need a look, which entries follow from the headers, where entries go in an
existing cache. Does not belong here: listing, opening, reading headers (render/loadercache.py), bytes (ldcache.py).
ldconfig reads every library. We read only those that a cache does not explain: an entry whose file is there stays, and
`libx.so.1.2.3` beside the known link `libx.so.1` is that link's file. ldconfig also makes missing SONAME links; we
leave the image's libraries alone and enter the file itself where its SONAME link does not exist.
"""

from nvinject.formats.elf import EM_386, EM_AARCH64, EM_ARM, EM_PPC64, EM_X86_64, ET_DYN
from nvinject.formats.ldcache import HWCAP_EXTENSION, flags_of, is_hwcap_extension, library_order
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nvinject.formats.elf import ElfHeader
    from nvinject.formats.ldcache import Row

# glibc before 2.37 also searched directories named after hardware (dl-procinfo.h); bits of Entry.hwcap by name.
LEGACY_HWCAPS = {
    "sse2": 0,
    "x86_64": 1,
    "avx512_1": 2,
    "i586": 48,
    "i686": 49,
    "haswell": 50,
    "xeon_phi": 51,
    "tls": 63,
}
_FAMILIES = {
    "x86_64": (EM_X86_64, EM_386),
    "i686": (EM_X86_64, EM_386),
    "aarch64": (EM_AARCH64, EM_ARM),
    "armv7l": (EM_AARCH64, EM_ARM),
    "ppc64le": (EM_PPC64,),
}
_NATIVE_FLAGS = {
    ("x86_64", 64): 0x0303,
    ("x86_64", 32): 0x0003,
    ("aarch64", 64): 0x0A03,
    ("aarch64", 32): 0x0903,
    ("ppc64le", 64): 0x0503,
}
_MAXIMUM_CHAIN = 8
_LONGEST_NAME = 255  # NAME_MAX: no file can have a longer one
_LONGEST_VERSION = 16  # dots in what follows .so; real ones have three
_INDEX = 0xFFFFFFFF


class Listing(Record):
    """The names in a directory with `.so` in them: symbolic links, and everything else."""

    files: "set[str]"
    links: "set[str]"


class Survey(Record):
    """What a listing says about known names.

    `gone` are known names without a file; `doubtful` known links that may dangle, to be looked at one by one; `unread`
    unknown names whose ELF headers have to be read.
    """

    gone: "frozenset[str]"
    doubtful: tuple[str, ...]
    unread: tuple[str, ...]


class Library(Record):
    """An unknown name after a look: `soname` and `flags` of the file behind it."""

    name: str
    is_link: bool
    soname: str
    flags: int
    os_version: int = 0


class Contribution(Record):
    """An entry that a directory adds: the name to find it by, the file's name in the directory."""

    soname: str
    name: str
    flags: int
    os_version: int = 0


def is_library_name(name: str) -> bool:
    """Tell whether ldconfig takes a file of this name for a library or a loader."""
    if name.startswith(("lib", "ld-")):
        # prelink leaves files of these names behind when it is interrupted; ldconfig skips them.
        return ".so" in name and ".#prelink#" not in name
    return name.startswith(("ld.so.", "ld64.so."))


def native_flags(machine: str, bits: int) -> int:
    """Return the cache flags of a library for a machine as uname(2) names it, and a word size."""
    return _NATIVE_FLAGS.get((machine, bits), 0x0003)


def legacy_hwcap(path: str) -> int:
    """Return the bits that the last components of a directory stand for, 0 for an ordinary directory."""
    bits = 0
    for component in reversed(path.split("/")):
        if component not in LEGACY_HWCAPS:
            break
        bits += 1 << LEGACY_HWCAPS[component]
    return bits


def survey(listing: Listing, known: "Mapping[str, str]", link_target: "Callable[[str], str]") -> Survey:
    """Compare a listing with the names that a cache has for it, without opening a file.

    `known` maps file names to sonames, `link_target` a link to its text ("" where it cannot be read).
    """
    files, links = listing.files, listing.links
    names = known.keys()
    gone = names - files - links
    known_links = names & links
    unknown_files = files - names
    owned, crowded = _owned_files(unknown_files, known_links)
    doubtful: list[str] = []
    dangling: set[str] = set()
    explained: dict[str, str] = {}
    for link in (known_links - owned.keys()) | crowded:
        target = link_target(link)
        if target in files:
            # The link that ld(1) needs leads to a file with another SONAME, which wants an entry of its own.
            if not link.endswith(".so"):
                explained[target] = known[link]
        elif target and "/" not in target and target not in links:
            dangling.add(link)
        elif target not in owned:
            doubtful.append(link)
    unread = [name for name in unknown_files.difference(owned.values(), explained) if is_library_name(name)]
    unknown_links = [name for name in links - names if is_library_name(name)]
    if unknown_links:
        explained.update((file, known[link]) for link, file in owned.items())
        explained.update(known)
        unread += [name for name in unknown_links if _adds_a_name(name, listing, explained, link_target)]
    return Survey(gone=frozenset(gone | dangling), doubtful=tuple(sorted(doubtful)), unread=tuple(sorted(unread)))


def _owned_files(unknown_files: "set[str]", known_links: "set[str]") -> "tuple[dict[str, str], set[str]]":
    """Return the file of each known versioned link, its name continuing the link's after a dot.

    Should the link lead to a file of another name that is gone, ldconfig would make it lead to this one.
    The second value are links with several such files, which are in no pair then.
    """
    owned: dict[str, str] = {}
    crowded: set[str] = set()
    for name in unknown_files:
        # libx.so (for the linker) does not own libx.so.2, which has a SONAME of its own: after `.so.` only.
        dot = name.find(".", name.find(".so.") + 4)
        left = _LONGEST_VERSION
        while dot > 0 and left:
            link = name[:dot]
            if link in known_links:
                if link in owned:
                    crowded.add(link)
                owned[link] = name
                break
            dot = name.find(".", dot + 1)
            left -= 1
    for link in crowded:
        del owned[link]
    return owned, crowded


def _adds_a_name(
    name: str,
    listing: Listing,
    sonames: "Mapping[str, str]",
    link_target: "Callable[[str], str]",
) -> bool:
    """Tell whether an unknown link could add an entry: false if it is just another name of a known library."""
    target = name
    for _ in range(_MAXIMUM_CHAIN):
        target = link_target(target)
        soname = sonames.get(target)
        if soname is not None:
            return name != soname and _is_development_link(name, soname)
        if target not in listing.links:
            return bool(target) and ("/" in target or target in listing.files)
    return True


def _is_development_link(name: str, soname: str) -> bool:
    """Tell whether a link is the one that ld(1) needs, such as libx.so for libx.so.1, which ldconfig enters by name."""
    return name.endswith(".so") and soname.startswith(name)


def look_at(name: str, header: "ElfHeader", machine: str, *, is_link: bool) -> Library | None:
    """Return what a header makes of a name; None for what no loader of this machine takes."""
    flags = flags_of(header)
    if flags is None or header.kind != ET_DYN or not header.dynamic or header.machine not in _FAMILIES.get(machine, ()):
        return None
    soname = name if header.soname is None else header.soname
    if not soname or "/" in soname or "\0" in soname or len(soname) > _LONGEST_NAME:
        return None
    version = 0
    if header.abi is not None:
        system, major, minor, patch = (number & 0xFF for number in header.abi)
        version = system << 24 | major << 16 | minor << 8 | patch
    return Library(name=name, is_link=is_link, soname=soname, flags=flags, os_version=version)


def contribute(libraries: "Iterable[Library]", listing: Listing, *, hwcaps: bool) -> tuple[Contribution, ...]:
    """Return the entries that follow from the libraries of one directory: one for each soname.

    Of several files with one soname the newest wins, and any file before a link (ldconfig's search_dir). A directory
    below glibc-hwcaps enters the files themselves, any other the SONAME links.
    """
    chosen: dict[str, Library] = {}
    for library in libraries:
        stays_link = library.is_link and (
            library.name == library.soname or _is_development_link(library.name, library.soname)
        )
        soname = library.name if stays_link else library.soname
        this = library
        if (stays_link, soname) != (library.is_link, library.soname):
            this = library.replace(is_link=stays_link, soname=soname)
        other = chosen.get(soname)
        if other is None or _is_better(this, other):
            chosen[soname] = this
    readable = {library.name for library in libraries if library.is_link} | listing.files
    return tuple(
        Contribution(
            soname=soname,
            name=soname if not hwcaps and soname in readable else library.name,
            flags=library.flags,
            os_version=library.os_version,
        )
        for soname, library in chosen.items()
    )


def _is_better(this: Library, other: Library) -> bool:
    if this.is_link != other.is_link:
        return other.is_link
    return library_order(this.name) > library_order(other.name)


def merge(
    existing: "Sequence[Row]", additions: "Iterable[Row]", rank: "Callable[[str], int]", hwcaps: "Sequence[str]"
) -> "list[Row]":
    """Return the rows of a cache with more rows put where ldconfig would put them.

    What was there keeps its order. `rank` numbers a path's directory in the order of the search, `hwcaps` are the names
    that rows point to. If the cache was not sorted, so that the loader could not find an added name, everything is.
    """
    keys: dict[str, tuple[int, ...]] = {}

    def key_of(row: "Row") -> tuple[int, ...]:
        found = keys.get(row[0])
        if found is None:
            found = keys[row[0]] = library_order(row[0])
        return found

    def tie_of(row: "Row") -> "tuple[object, ...]":
        return (*_tie(row, hwcaps), rank(row[1]))

    merged: list[Row] = []
    done = 0
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in additions:
        groups.setdefault(key_of(row), []).append(row)
    for key in sorted(groups, reverse=True):
        start = _first(existing, done, lambda row, key=key: key_of(row) <= key)  # type: ignore[misc]
        end = start
        if start < len(existing) and key_of(existing[start]) == key:
            end = _first(existing, start, lambda row, key=key: key_of(row) < key)  # type: ignore[misc]
        merged += existing[done:start]
        done = start
        for row in sorted(groups[key], key=tie_of):
            # Each goes before the first row that belongs behind it: never before where the last one went.
            tie = tie_of(row)
            while done < end and tie_of(existing[done]) <= tie:
                merged.append(existing[done])
                done += 1
            merged.append(row)
        merged += existing[done:end]
        done = end
    merged += existing[done:]
    if not all(_can_be_found(merged, key, key_of) for key in groups):
        merged.sort(key=key_of, reverse=True)  # stable, also in reverse
    return merged


def _tie(row: "Row", hwcaps: "Sequence[str]") -> "tuple[object, ...]":
    """Return what orders rows of one soname (compare in ldconfig's cache.c): kind, hardware, system."""
    _, _, flags, os_version, hwcap = row
    if is_hwcap_extension(hwcap):
        return (-flags, 0, hwcaps[hwcap & _INDEX].encode("utf-8", "surrogateescape"), 0, 0)
    return (-flags, 1, b"", -hwcap.bit_count(), -hwcap, -os_version)


def _first(rows: "Sequence[Row]", low: int, holds: "Callable[[Row], bool]") -> int:
    """Return the first index from `low` whose row holds, by bisection."""
    high = len(rows)
    while low < high:
        middle = (low + high) // 2
        if holds(rows[middle]):
            high = middle
        else:
            low = middle + 1
    return low


def _can_be_found(rows: "Sequence[Row]", key: tuple[int, ...], key_of: "Callable[[Row], tuple[int, ...]]") -> bool:
    """Tell whether the loader's binary search (search_cache in dl-cache.c) arrives at a soname."""
    left, right = 0, len(rows) - 1
    while left <= right:
        middle = (left + right) // 2
        found = key_of(rows[middle])
        if found == key:
            return True
        if key < found:
            left = middle + 1
        else:
            right = middle - 1
    return False


def with_sorted_hwcaps(rows: "Sequence[Row]", names: "Sequence[str]") -> "tuple[list[Row], tuple[str, ...]]":
    """Return rows and names such that the names are sorted, each used: the loader merges them with its own list."""
    used = {row[4] & _INDEX for row in rows if row[4] and is_hwcap_extension(row[4])}
    ordered = sorted({names[index] for index in used}, key=lambda name: name.encode("utf-8", "surrogateescape"))
    places = {name: place for place, name in enumerate(ordered)}
    if all(index == places[names[index]] for index in used):
        return list(rows), tuple(ordered)
    return [
        (*row[:4], row[4] & ~_INDEX | places[names[row[4] & _INDEX]]) if is_hwcap_extension(row[4]) else row
        for row in rows
    ], tuple(ordered)


def hwcap_for(index: int) -> int:
    """Return the hwcap of an entry below glibc-hwcaps; the ISA level stays 0, the directory's name decides."""
    return HWCAP_EXTENSION | index
