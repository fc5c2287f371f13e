"""os without its import, which takes 1 ms, a sixth of the interpreter's own start: for what the hook runs through.

Use it as `from nvinject import leanos as os`. Belongs here: what posix has, and the few functions of os that the hook
needs besides, the same in all they do. Does not belong here: environ (posix has it as bytes), and anything new. What
only people's commands use imports os.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import *  # noqa: F403
    from os import _exit as _exit  # noqa: PLC0414 # for others
    from os import path as path  # noqa: PLC0414

    def close_quietly(descriptor: int) -> None:
        """Close a descriptor that nothing was written to, where an error would hide what matters more."""

else:
    import sys
    from io import open as fdopen  # noqa: F401 # what os.fdopen calls
    from posix import *  # noqa: F403
    from posix import _exit, fspath  # noqa: F401

    del environ  # noqa: F821

    _ENCODING = sys.getfilesystemencoding()
    _ERRORS = sys.getfilesystemencodeerrors()

    def close_quietly(descriptor):
        """Close a descriptor that nothing was written to, where an error would hide what matters more."""
        try:  # noqa: SIM105 # contextlib is too dear to import
            close(descriptor)  # noqa: F405
        except OSError:
            pass  # close(2): the descriptor is free whatever it says

    def makedirs(name, mode=0o777, exist_ok=False):  # noqa: FBT002 # as in os
        """Make a directory and those above it."""
        import os  # rarely needed: what is made in a container's start mostly lies in a directory that is there

        os.makedirs(name, mode, exist_ok)

    def fsencode(filename):
        """Return a path as bytes."""
        filename = fspath(filename)
        return filename.encode(_ENCODING, _ERRORS) if isinstance(filename, str) else filename

    def fsdecode(filename):
        """Return a path as text."""
        filename = fspath(filename)
        return filename.decode(_ENCODING, _ERRORS) if isinstance(filename, bytes) else filename

    class path:  # noqa: N801 # as in os
        """The part of os.path that is needed."""

        @staticmethod
        def samestat(first, second):
            """Tell whether two stat results are of the same file."""
            return first.st_ino == second.st_ino and first.st_dev == second.st_dev

        @staticmethod
        def dirname(name):
            """Return the directory part of a path."""
            head = name[: name.rfind("/") + 1]
            return head.rstrip("/") or head

        @staticmethod
        def join(first, second):
            """Put two paths together."""
            if second.startswith("/") or not first:
                return second
            return first + second if first.endswith("/") else f"{first}/{second}"

        @staticmethod
        def abspath(name):
            """Return a path from the root, without empty, `.` and `..` components."""
            parts = name.split("/")
            if not parts[0] and len(parts) > 1 and not {"", ".", ".."} & {*parts[1:]}:
                return name
            from posixpath import abspath  # what engines give is as it should be, and this imports os

            return abspath(name)

        @staticmethod
        def exists(name):
            """Tell whether there is something, behind a link too."""
            try:
                stat(name)  # noqa: F405
            except (OSError, ValueError):
                return False
            return True

        @staticmethod
        def isdir(name):
            """Tell whether there is a directory, behind a link too."""
            try:
                return stat(name).st_mode & 0o170000 == 0o040000  # noqa: F405
            except (OSError, ValueError):
                return False

        @staticmethod
        def isfile(name):
            """Tell whether there is a regular file, behind a link too."""
            try:
                return stat(name).st_mode & 0o170000 == 0o100000  # noqa: F405
            except (OSError, ValueError):
                return False
