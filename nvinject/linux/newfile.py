"""Files that are written beside the place of another one, to take that place in one step.

Belongs here: opening them. Does not belong here: what is written, and putting it in place. Their names have the process
id, so that two processes never share one. A process that was killed leaves its file behind, and in a container the next
one has the same id.
"""

import os


def open_new(path: str, mode: int) -> int:
    """Open a file of ours that is not there yet for writing; what an ended process left there is removed. OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, mode)
