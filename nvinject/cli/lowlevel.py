"""The low-level runtime behind the shim: finding it, and becoming it.

Belongs here: which program it is and the state in which it is started. Does not belong here: what is changed before
that (runtime.py). The launcher has found it already in most cases (shimlauncher.py, which searches in the same way).
"""

import os
import sys

from nvinject.cli.discovery import search_path
from nvinject.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn


def find_low_level(candidates: tuple[str, ...], environ: "Mapping[str, str]") -> str:
    """Return the first candidate that can be executed; names are looked for on PATH, then in the usual places.

    This shim is never its own low-level runtime, whatever its name. Raises HostError.
    """
    for candidate in candidates:
        if "/" in candidate:
            paths = [candidate]
        else:
            paths = [f"{directory}/{candidate}" for directory in search_path(environ).split(":")]
        for path in paths:
            if os.path.isfile(path) and os.access(path, os.X_OK) and not _is_this_program(path):
                return path
    raise HostError(
        f"no runtime binary found from candidate list: {', '.join(candidates)}",
        "install one of them, or name another in nvidia-container-runtime.runtimes",
    )


def _is_this_program(path: str) -> bool:
    ours = os.path.dirname(os.path.abspath(sys.argv[0]))
    for name in (sys.argv[0], f"{ours}/nvidia-container-runtime"):
        try:
            if os.path.samefile(path, name):
                return True
        except OSError:
            continue
    return False


def become(path: str, words: tuple[str, ...]) -> "NoReturn":
    """Replace this process by the low-level runtime with the engine's own words; raises HostError."""
    import _signal  # type: ignore[import-not-found]  # the C part alone: signal.py imports enum, 3 ms

    # Python ignores these two; a container would inherit that.
    for name in ("SIGPIPE", "SIGXFSZ"):
        number = getattr(_signal, name, None)
        if number is not None:
            _signal.signal(number, _signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(path, [path, *words])
    except OSError as error:
        raise HostError(
            f"cannot execute the low-level runtime {path}: {error.strerror}",
            "mend it, or name another in nvidia-container-runtime.runtimes",
        ) from error
