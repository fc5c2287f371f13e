"""What the argument parsers of all commands for people have in common.

Belongs here: how help is laid out. Does not belong here: any option. The hook and the runtime shim have no such parser,
because argparse costs more than their own work.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def new_parser(program: str, description: str, epilog: str, *, allow_abbrev: bool = True) -> "argparse.ArgumentParser":
    """Return a parser without options, whose help keeps the lines of description and examples as they are."""
    import argparse

    return argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=allow_abbrev,
    )
