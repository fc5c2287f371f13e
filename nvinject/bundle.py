"""Writes all of nvinject's byte code into one file, for the launcher.

Belongs here: compiling and the file's layout: the interpreter's magic number, then marshalled the finder's code and an
index of entries that are marshalled again, then the modules' code, where the index says. Does not belong here: finding
modules in it (bundlefinder.py).
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from nvinject.bundlefinder import Entry, Index

FINDER = "nvinject.bundlefinder"
NO_COLUMNS, NO_LOCATION = 13, 15  # kinds of entries in a table of locations
HEAD_SIZE = 1 << 16  # what the launcher reads at once; magic number, finder and index must fit


def bundle_path(package: str, cache_tag: str) -> str:
    """Return where the bundle of a package's directory lies: where its other byte code does."""
    return f"{package}/__pycache__/bundle.{cache_tag}.bin"


def write_bundle(package: str) -> str:
    """Compile every module of the package's directory into its bundle; returns the path. Raises OSError."""
    path = bundle_path(package, sys.implementation.cache_tag)
    content = format_bundle(package)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    if os.path.lexists(temporary):  # a process of this id left it that was killed
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    return path


def format_bundle(package: str) -> bytes:
    """Return the bytes of a bundle; raises OSError, and ValueError for an index that is too long."""
    import marshal
    from importlib.util import MAGIC_NUMBER

    root = os.path.dirname(package)
    sources = {module_name(source): source for source in find_sources(package)}
    index: Index = {}
    codes: list[bytes] = []
    place = HEAD_SIZE
    finder = None
    for name, source in sources.items():
        path = root + source
        status = os.stat(path)
        with open(path, "rb") as file:
            text = file.read()
        code = without_columns(compile(text, path, "exec", dont_inherit=True))
        if name == FINDER:
            finder = code
        codes.append(marshal.dumps(code))
        needed = tuple(module for module in find_imports(text, name) if module in sources)
        entry: Entry = (place, len(codes[-1]), source, status.st_mtime_ns, status.st_size, needed)
        index[name] = marshal.dumps(entry)
        place += len(codes[-1])
    head = MAGIC_NUMBER + marshal.dumps((finder, index))
    if len(head) > HEAD_SIZE:
        raise ValueError(f"the index of the bundle has {len(head)} bytes")
    return b"".join((head.ljust(HEAD_SIZE, b"\0"), *codes))


def without_columns(code: "CodeType") -> "CodeType":
    """Return code that knows its lines but not the columns in them, as -X no_debug_ranges compiles it.

    That is an eighth of the bytes. The table's form is CPython's (Objects/locations.md): a byte with kind and length in
    code units, at most eight, then for kind 13 the step in lines.
    """
    table = bytearray()
    line = code.co_firstlineno
    for start, end, here in code.co_lines():
        for units in _lengths((end - start) // 2):
            if here is None:
                table.append(0x80 | NO_LOCATION << 3 | units - 1)
                continue
            table.append(0x80 | NO_COLUMNS << 3 | units - 1)
            table += _signed(here - line)
            line = here
    constants = tuple(without_columns(one) if isinstance(one, type(code)) else one for one in code.co_consts)
    return code.replace(co_linetable=bytes(table), co_consts=constants)


def _lengths(units: int) -> "Iterator[int]":
    while units > 0:
        yield min(units, 8)
        units -= 8


def _signed(number: int) -> bytes:
    """Return a number in six bits a byte, the lowest first, its sign in the lowest bit."""
    rest = -number << 1 | 1 if number < 0 else number << 1
    parts = bytearray()
    while rest > 63:
        parts.append(rest & 63 | 64)
        rest >>= 6
    parts.append(rest)
    return bytes(parts)


def find_sources(package: str) -> "list[str]":
    """Return the source files below a package's directory, in order, as paths below the directory that holds it."""
    root = os.path.dirname(package)
    found = []
    for directory, _, names in os.walk(package):
        found += [os.path.join(directory, name)[len(root) :] for name in names if name.endswith(".py")]
    return sorted(found)


def module_name(source: str) -> str:
    """Return the name of the module in a source file, whose path is as find_sources gives it."""
    return source[1:-3].replace("/", ".").removesuffix(".__init__")


def find_imports(text: bytes, name: str) -> "list[str]":
    """Return what a module imports in any case, its packages first: names of modules, or of what may be one."""
    import ast

    packages = name.split(".")[:-1]
    found = [".".join(packages[: length + 1]) for length in range(len(packages))]
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Import):
            found += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            found.append(statement.module)
            found += [f"{statement.module}.{alias.name}" for alias in statement.names]
    return found
