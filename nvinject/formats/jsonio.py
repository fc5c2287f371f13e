"""JSON at a price that a container start can pay: the interpreter's C scanner without the json package.

`import json` costs 6 ms because it imports re; the scanner underneath needs neither. Belongs here: text or bytes to
Python values, and one error type with a place. Does not belong here: what a document means (oci.py, cdi.py). The
results and refusals are those of json.loads, which a test holds it to; where `_json` is missing, json does the work.
"""

try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner
except ImportError:  # another interpreter, or one built without its accelerators
    make_scanner = make_encoder = None  # type: ignore[assignment, misc]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHITESPACE = " \t\n\r"  # RFC 8259 section 2; str.strip() alone would take more
_BYTE_ORDER_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),  # before UTF-16, whose mark it begins with
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
)
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class JSONError(ValueError):
    """The document is not JSON; `line` and `column` count from 1, both 0 where the place is unknown."""

    def __init__(self, reason: str, line: int = 0, column: int = 0) -> None:
        """Keep reason and place; the text names the place only if there is one."""
        super().__init__(f"{reason} at line {line} column {column}" if line else reason)
        self.reason = reason
        self.line = line
        self.column = column


class _Context:
    """What make_scanner reads from json's decoder: the defaults of json.loads."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    array_hook = None  # read by scanners newer than 3.14
    parse_float = float
    parse_int = int
    parse_constant = _CONSTANTS.__getitem__


_scan_once = None if make_scanner is None else make_scanner(_Context())  # type: ignore[arg-type]  # typeshed asks for another scanner


def loads(document: "str | bytes | bytearray") -> "Any":
    """Return the value of a JSON document.

    Bytes may be UTF-8, UTF-16 or UTF-32, with or without byte order mark, as for json.loads. Raises JSONError.
    """
    text = document if isinstance(document, str) else _decode(document)
    if text.startswith("\ufeff"):
        raise JSONError("Unexpected byte order mark in text", 1, 1)
    try:
        return _scan(text) if _scan_once is not None else _load_slowly(text)
    except RecursionError:
        raise JSONError("The document is nested too deeply") from None
    except JSONError:
        raise
    except ValueError as error:  # json.JSONDecodeError, or an integer beyond sys.get_int_max_str_digits()
        position = getattr(error, "pos", None)
        reason = getattr(error, "msg", None) or str(error)
        raise JSONError(reason) if position is None else _error_at(text, position, reason) from None


def dumps(value: object, *, indent: int | None = None) -> str:
    """Return a JSON document for a value; raises TypeError for what JSON cannot hold, ValueError for a circle."""
    if indent is None and make_encoder is not None:
        # The arguments are those of json.dumps: markers, default, encoder, indent, separators, three switches.
        separators = (": ", ", ")
        encode = make_encoder({}, _refuse, encode_basestring_ascii, None, *separators, False, False, True)  # noqa: FBT003
        return "".join(encode(value, 0))
    import json  # documents with an indent are written by commands that may take their time

    return json.dumps(value, indent=indent)


def _refuse(value: object) -> "Any":
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _scan(text: str) -> "Any":
    assert _scan_once is not None
    try:
        value, end = _scan_once(text, _skip_whitespace(text, 0))
    except StopIteration as stop:
        raise _error_at(text, stop.value, "Expecting value") from None
    except SystemError:
        # The scanner takes its exception from json.decoder but does not import it; json itself shall complain.
        return _load_slowly(text)
    end = _skip_whitespace(text, end)
    if end != len(text):
        raise _error_at(text, end, "Extra data")
    return value


def _load_slowly(text: str) -> "Any":
    import json  # only where there is no C scanner, or where it cannot say what is wrong

    return json.loads(text)


def _skip_whitespace(text: str, position: int) -> int:
    end = len(text)
    while position < end and text[position] in _WHITESPACE:
        position += 1
    return position


def _error_at(text: str, position: int, reason: str) -> JSONError:
    line = text.count("\n", 0, position) + 1
    return JSONError(reason, line, position - text.rfind("\n", 0, position))


def _decode(document: "bytes | bytearray") -> str:
    encoding = _encoding_of(document)
    try:
        # json.loads lets lone surrogates through ("surrogatepass"); so do we, to accept what it accepts.
        return document.decode(encoding, "surrogatepass")
    except UnicodeDecodeError as error:
        before = bytes(document[: error.start])
        line = before.count(b"\n") + 1
        column = error.start - before.rfind(b"\n")
        raise JSONError(f"Invalid {encoding} byte", line, column) from None


def _encoding_of(document: "bytes | bytearray") -> str:
    for mark, encoding in _BYTE_ORDER_MARKS:
        if document.startswith(mark):
            return encoding
    # A document begins with ASCII characters (RFC 4627 section 3): its zero bytes tell width and byte order.
    zeros = tuple(byte == 0 for byte in document[:4])
    if len(zeros) == 2:
        zeros = (*zeros, True, False)  # too short for UTF-32
    if len(zeros) < 4 or not (zeros[0] or zeros[1]):
        return "utf-8"
    if zeros[0]:
        return "utf-32-be" if zeros[1] and len(document) >= 4 else "utf-16-be"
    return "utf-32-le" if zeros[2] and zeros[3] else "utf-16-le"
