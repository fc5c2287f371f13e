"""The low-level runtime behind the shim: finding it, and becoming it.

Belongs here: which program it is and the state in which it is started. Does not belong here: what is changed before
that (runtime.py). The launcher has found it already in most cases (shimlauncher.py, which searches in the same way).
"""

import posix
import sys

from nvinject import leanos as os
from nvinject.cli.discovery import search_path
from nvinject.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

# SIGPIPE and SIGXFSZ, which Python ignores; a container would inherit that. The numbers are those of x86 and Arm.
_RESTORED = (13, 25)


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
            if os.path.samestat(os.stat(path), os.stat(name)):
                return True
        except OSError:
            continue
    return False


def run_and_wait(path: str, words: tuple[str, ...]) -> int:
    """Run the low-level runtime with the engine's own words and return its exit code; raises HostError."""
    try:
        child = os.posix_spawn(path, [path, *words], posix.environ, setsigdef=_RESTORED)
    except OSError as error:
        raise _cannot_execute(path, error) from error
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code  # as a shell tells of a signal


def become(path: str, words: tuple[str, ...]) -> "NoReturn":
    """Replace this process by the low-level runtime with the engine's own words; raises HostError."""
    import _signal  # type: ignore[import-not-found]  # the C part alone: signal.py imports enum, 3 ms

    for number in _RESTORED:
        _signal.signal(number, _signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(path, [path, *words])
    except OSError as error:
        raise _cannot_execute(path, error) from error


def _cannot_execute(path: str, error: OSError) -> HostError:
    return HostError(
        f"cannot execute the low-level runtime {path}: {error.strerror}",
        "mend it, or name another in nvidia-container-runtime.runtimes",
    )
