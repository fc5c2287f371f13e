"""nvinject list: every path of the driver. See info.py, which does the work for both commands.

Belongs here: the name of the command. Does not belong here: anything else.
"""

from nvinject.cli import info

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def parser() -> "argparse.ArgumentParser":
    """Return the command's options."""
    return info.parser("list")


def main(arguments: "list[str]") -> int:
    """Print the list."""
    return info.main(arguments, "list")
