"""The bundle of a container: putting a changed config.json in place of the old one.

Belongs here: writing the file so that there is always a whole one. Does not belong here: what is in it (oci.py,
injection.py).
"""

import stat

from nvinject import leanos as os
from nvinject.errors import ContainerError
from nvinject.formats.jsonio import dumps
from nvinject.linux.inroot import temporary_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONFIG = "config.json"


def write_config(bundle: str, document: "dict[str, Any]") -> None:
    """Replace a bundle's config.json in one step, keeping its mode and owner.

    Raises ContainerError with the old file in its place.
    """
    replace_file(os.path.join(bundle, CONFIG), dumps(document).encode("ascii"))


def replace_file(path: str, content: bytes) -> None:
    """Replace a file in one step, keeping mode and owner; raises ContainerError with the old file in its place."""
    try:
        status = os.stat(path)
        directory = os.path.dirname(path) or "."
        temporary = os.path.join(directory, temporary_name(".config.json.nvinject.new"))
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, stat.S_IMODE(status.st_mode)
        )
        try:
            try:
                _fill(descriptor, content, status)
            finally:
                os.close(descriptor)  # before the rename: what it reports must not come after the change
            os.rename(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ContainerError(
            f"cannot write {path}: {error.strerror}; the container's configuration is unchanged",
            "the bundle's folder must be writable for the runtime and have space",
        ) from error


def _fill(descriptor: int, content: bytes, like: os.stat_result) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(descriptor, like.st_uid, like.st_gid)
