"""What commands for people say on standard error, and how much of it.

Belongs here: the levels and their prefixes. The level comes from NVIDIA_CTK_DEBUG and NVIDIA_CTK_QUIET, the variables
of the original; `nvidia-ctk --debug` and `--quiet` set them. Does not belong here: results on standard output, errors
(main), and what hooks log for a container (debuglog.py).
"""

import os
import sys

from nvinject.errors import printable

DEBUG_VARIABLE = "NVIDIA_CTK_DEBUG"
QUIET_VARIABLE = "NVIDIA_CTK_QUIET"
TRUE = ("1", "t", "T", "true", "TRUE", "True")  # as Go's strconv.ParseBool


def is_quiet() -> bool:
    """Say whether nothing but errors shall be told."""
    return os.environ.get(QUIET_VARIABLE, "") in TRUE


def is_debugging() -> bool:
    """Say whether every step shall be told; being quiet goes before."""
    return os.environ.get(DEBUG_VARIABLE, "") in TRUE and not is_quiet()


def warn(message: str) -> None:
    """Write a warning."""
    inform(f"warning: {message}")


def inform(message: str) -> None:
    """Write a line."""
    if not is_quiet():
        sys.stderr.write(f"nvinject: {printable(message)}\n")


def debug(message: str) -> None:
    """Write a step, if somebody wants to see the steps."""
    if is_debugging():
        sys.stderr.write(f"nvinject: debug: {printable(message)}\n")
