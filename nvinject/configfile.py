"""Where config.toml is, and the one key of it that is needed before it is parsed.

Belongs here: what a container without GPUs passes through; hence posix in place of os. Does not belong here: the
meaning of keys (config.py).
"""

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_VARIABLE = "NVIDIA_CTK_CONFIG_FILE_PATH"
DEFAULT_CONFIG = "/etc/nvidia-container-runtime/config.toml"

EFBIG = 27  # errno.h; the module errno is not needed for more than this
MOST_CHUNKS = 64  # of 64 KiB each

_SWARM_KEY = b"swarm-resource"


def find_config(environ: "Mapping[str, str]") -> tuple[str, bool]:
    """Return the path of config.toml and whether it must exist, which it must where it is named in the environment."""
    named = environ.get(CONFIG_VARIABLE)
    if named:
        return named, True
    home = environ.get("XDG_CONFIG_HOME")
    if home:
        return f"{home.rstrip('/')}/nvidia-container-runtime/config.toml", False
    return DEFAULT_CONFIG, False


def swarm_names_without_parsing(path: str) -> tuple[str, ...] | None:
    """Return the names in swarm-resource, found without a TOML parser so that no other line of the file matters.

    A file that is missing or unreadable has none. None means that the line is there, but that it takes a parser to
    read it.
    """
    try:
        data = read_bytes(path)
    except OSError:
        return ()
    if _SWARM_KEY not in data:
        return ()
    names: tuple[str, ...] | None = ()
    in_table = found = False
    for line in data.splitlines():
        key, equals, value = line.strip().partition(b"=")
        in_table = in_table or key.startswith(b"[")
        if equals and _SWARM_KEY in key and not key.startswith(b"#"):
            plain = not in_table and not found and key.strip().strip(b"\"'") == _SWARM_KEY
            names = _split_plain_string(value.strip()) if plain else None
            found = True
    return names


def _split_plain_string(text: bytes) -> tuple[str, ...] | None:
    """Return the names in `"A,B"  # comment`; None for any other way to write a string."""
    quote = text[:1]
    if quote not in {b'"', b"'"}:
        return None
    value, closing, behind = text[1:].partition(quote)
    behind = behind.strip()
    if not closing or b"\\" in value or not value.isascii() or (behind and not behind.startswith(b"#")):
        return None
    return split_names(value.decode())


def split_names(value: str) -> tuple[str, ...]:
    """Return the names between commas, trimmed, without empty ones."""
    return tuple(name for name in (part.strip() for part in value.split(",")) if name)


def read_bytes(path: str) -> bytes:
    """Return the content of a file; raises OSError, also for one that does not end, such as a device."""
    descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        chunks = []
        while chunk := posix.read(descriptor, 1 << 16):
            chunks.append(chunk)
            if len(chunks) > MOST_CHUNKS:
                raise OSError(EFBIG, "it is too large for a configuration file", path)
        return b"".join(chunks)
    finally:
        posix.close(descriptor)
