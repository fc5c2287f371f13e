"""The C library's functions, called with the part of ctypes that this takes.

`import ctypes` costs 1 to 2 ms, a fifth of the interpreter's own start, for what its C module does alone.
Belongs here: functions, buffers, errno. Does not belong here: which functions there are (syscalls.py). Where the C
module is another one than CPython's, ctypes itself serves.
"""

from nvinject import leanos as os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Buffer(Protocol):
        """Memory that the kernel may write into."""

        raw: bytes

    class Function(Protocol):
        """A function of the C library; takes int (as long), bytes (as pointer to them) and None (as null pointer)."""

        def __call__(self, *arguments: "int | bytes | Buffer | None") -> int:
            """Call it."""
            ...


try:
    from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, _SimpleCData, addressof, dlopen, dlsym, get_errno

    class c_char(_SimpleCData):  # type: ignore[type-arg]
        """A byte."""

        _type_ = "c"

    class c_long(_SimpleCData):  # type: ignore[type-arg]
        """A machine word with a sign, as system calls take and return it."""

        _type_ = "l"

    class c_int(_SimpleCData):  # type: ignore[type-arg]
        """What most functions return."""

        _type_ = "i"

    class _Function(CFuncPtr):
        _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
        _restype_ = c_int

    _handle = dlopen(None, 0)  # type: ignore[arg-type]

    def _find(name: str) -> "Any":
        return _Function(dlsym(_handle, name))

except (ImportError, TypeError):  # pragma: no cover  # another interpreter than CPython
    from ctypes import CDLL, addressof, c_char, c_int, c_long, get_errno  # type: ignore[assignment]

    _libc = CDLL(None, use_errno=True)

    def _find(name: str) -> "Any":
        return _libc[name]


def function(name: str, *, returns_long: bool = False) -> "Function":
    """Return a function of the C library that returns -1 for an error, which failure() then tells.

    It returns C's int, or long.
    """
    found = _find(name)
    found.restype = c_long if returns_long else c_int

    def call(*arguments: "int | bytes | Buffer | None") -> int:
        # ctypes would pass a plain int as C's int, which is too short for addresses and flags.
        result: int = found(*[c_long(word) if type(word) is int else word for word in arguments])
        return result

    return call


def buffer(content: "int | bytes") -> "Buffer":
    """Return memory of that many zero bytes, or with these bytes in it."""
    size = content if isinstance(content, int) else len(content)
    made: Any = (c_char * size)()
    if isinstance(content, bytes):
        made.raw = content
    return made  # type: ignore[no-any-return]


def address(memory: "Buffer") -> int:
    """Return where the memory is; it must be kept as long as the address is used."""
    return int(addressof(memory))  # type: ignore[arg-type]


def failure(thing: str) -> OSError:
    """Return the error of the last call."""
    number = get_errno()
    return OSError(number, os.strerror(number), thing)
