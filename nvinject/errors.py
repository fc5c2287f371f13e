"""Errors that people read: each has a message, a remedy and, by its kind, an exit code.

The message names the cause and the thing (file, line, variable, device), the hint says what to do. Programming mistakes
stay ordinary exceptions; a system call that failed stays an OSError until somebody can say what it means for the user.
"""


def printable(text: str) -> str:
    """Return the text with every character escaped that would break a line or steer a terminal.

    Containers write their own environment, so their values are shown but never believed.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def quoted(text: str, limit: int = 80) -> str:
    """Return the text between quotes, escaped, and cut after `limit` characters."""
    return f"'{printable(text if len(text) <= limit else text[:limit] + '...')}'"


class NvinjectError(Exception):
    """Something that a person has to mend; printed as one line, never as a traceback."""

    exit_code = 70  # EX_SOFTWARE: only the base class, which nobody raises

    def __init__(self, message: str, hint: str = "", detail: str = "") -> None:
        """Keep the message (cause and thing) and the hint (remedy), both single lines.

        `detail` is for commands that people type: several lines, such as a source with a caret under the fault.
        """
        super().__init__(message)
        self.message = printable(message)
        self.hint = printable(hint)
        self.detail = detail

    def __str__(self) -> str:
        """Return message and hint as one line."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class RequirementError(NvinjectError):
    """The host does not satisfy what the image requires (NVIDIA_REQUIRE_*)."""

    exit_code = 1


class UsageError(NvinjectError):
    """The command line cannot be understood."""

    exit_code = 2


class InputError(NvinjectError):
    """The container's state, its config.json or its environment is malformed."""

    exit_code = 3


class ConfigurationError(NvinjectError):
    """config.toml is malformed or holds a value that cannot be."""

    exit_code = 4


class RequestError(NvinjectError):
    """The container asks for something that is not there or not allowed."""

    exit_code = 5


class HostError(NvinjectError):
    """The host's driver, its files or its device nodes are missing or do not fit together."""

    exit_code = 6


class ContainerError(NvinjectError):
    """The container cannot be entered or changed; what had been done was undone."""

    exit_code = 7


EXIT_CODES: "tuple[type[NvinjectError], ...]" = (
    RequirementError,
    UsageError,
    InputError,
    ConfigurationError,
    RequestError,
    HostError,
    ContainerError,
)
