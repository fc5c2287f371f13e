"""The failures that people who use the fakes can cause, each as one clear line.

Belongs here: exception classes only. Does not belong here: printing (cli.py) and the checks themselves.
"""


def printable(text: str) -> str:
    """Return a message as one line: what would break it, or steer a terminal, is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class FakeError(Exception):
    """Anything that stops a command and is explained by its message alone."""


class UsageError(FakeError):
    """A command line that cannot be understood."""


class MachineError(FakeError):
    """A machine file that cannot be used; the message starts with file, line and key."""


class SandboxError(FakeError):
    """A lane that cannot be set up here, with the kernel's reason."""


class VerbError(FakeError):
    """Something that cannot happen to a machine."""
