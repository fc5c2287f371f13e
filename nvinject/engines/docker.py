"""docker: daemon.json, which has no drop-in directory.

Belongs here: the three settings and what may stand in their way. The file is JSON without comments, and every byte of
it but ours stays. Does not belong here: the splicing (nvinject.formats.jsontext).
"""

from nvinject.engines.edit import Edit, Options
from nvinject.engines.files import read_document
from nvinject.errors import ConfigurationError
from nvinject.formats import jsontext
from nvinject.formats.jsonio import JSONError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_CONFIG = "/etc/docker/daemon.json"
SERVICE = "docker"


def plan_edit(options: Options) -> Edit:
    """Return the change of daemon.json. Raises ConfigurationError with line and column, the file being untouched."""
    document = read_document(options.config)
    try:
        values = jsontext.parse(document.text)
        text = document.text
        for path, value in settings(options, values):
            text = jsontext.set_member(text, path, value)
    except JSONError as error:
        place = f", line {error.line}, column {error.column}" if error.line else ""
        reason = error.reason if error.reason.startswith("JSON") else error.reason[:1].lower() + error.reason[1:]
        raise ConfigurationError(
            f"{options.config}{place}: {reason}", "dockerd does not read such a file either; mend it by hand"
        ) from error
    return Edit(changes=(document.change(text),))


def settings(options: Options, values: "Any") -> "list[tuple[tuple[str, ...], Any]]":
    """Return the members to set. Arguments that an existing runtime of the name has are kept."""
    runtimes = values.get("runtimes", {}) if isinstance(values, dict) else {}
    there = runtimes.get(options.name) if isinstance(runtimes, dict) else None
    wanted: list[tuple[tuple[str, ...], Any]] = [(("runtimes", options.name, "path"), options.path)]
    # dockerd refuses a runtime that has both a path and the type of a containerd shim.
    if there is None or (isinstance(there, dict) and "runtimeType" in there):
        wanted = [(("runtimes", options.name), {"args": [], "path": options.path})]
    if options.set_as_default:
        wanted.append((("default-runtime",), options.name))
    if options.cdi:
        wanted.append((("features", "cdi"), True))
    return wanted


def is_valid(content: bytes) -> bool:
    """Return whether dockerd could read this."""
    try:
        jsontext.parse(content.decode("utf-8-sig"))
    except (JSONError, UnicodeDecodeError):
        return False
    return True
