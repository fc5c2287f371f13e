"""What the installed launcher does before any command: it leaves the surroundings that a container's start gave it.

Belongs here: descriptors and working directory. Does not belong here: finding modules, which the launcher
has done when it comes here (bundlefinder.py), and commands (main.py).
"""

import posix
import sys
from posix import _exit

from nvinject.cli.main import NAMES, TROUBLE, complain, is_cdi_hook, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

DESCRIPTORS_WITHOUT_PROC = 4096


def launch(bundle: int) -> "NoReturn":
    """Run the command of sys.argv; `bundle` is the open file of byte code, -1 where there is none."""
    name = sys.argv[0].rpartition("/")[2]
    leave_surroundings([*NAMES.get(name, ()), *sys.argv[1:]], bundle)
    run()


def leave_surroundings(words: "list[str]", bundle: int) -> None:
    """Close what was inherited where runtimes call us, and go to / unless the working directory is needed.

    That of the createContainer hook and of the hooks of CDI specs may be the one way to the container's root file
    system.
    """
    if is_cdi_hook(words) or words[:1] == ["create-container"]:
        close_inherited(bundle)
    elif words[:1] == ["hook"]:
        try:
            posix.chdir("/")
        except OSError as error:
            complain(
                f"cannot go to /: {error.strerror}; the hook does not work in a directory that an image may choose"
            )
            _exit(TROUBLE)
        close_inherited(bundle)


def close_inherited(bundle: int) -> None:
    """Close all descriptors but the standard ones and the bundle's.

    Not one range up to the highest number: where the kernel cannot close a range, Python tries each number.
    """
    try:
        inherited = [int(name) for name in posix.listdir("/proc/self/fd")]
    except OSError:
        inherited = [*range(DESCRIPTORS_WITHOUT_PROC)]
    for descriptor in inherited:
        if descriptor > 2 and descriptor != bundle:
            try:  # noqa: SIM105 # contextlib is too dear to import
                posix.close(descriptor)
            except OSError:
                pass
