"""nvinject cdi transform root: a spec whose paths begin with another folder.

Belongs here: reading and writing the spec. Does not belong here: which fields are paths (nvinject.render.rerooting).
"""

import os
import sys

from nvinject.errors import InputError, UsageError
from nvinject.formats import cdi
from nvinject.host.registry import parse_document
from nvinject.render.rerooting import Move, move_container_paths, move_host_paths
from nvinject.render.specfile import format_document, format_of, with_extension, write_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(parsed: "argparse.Namespace") -> int:
    """Transform one spec; with equal roots it is only written again."""
    sides = {"host": move_host_paths, "container": move_container_paths}
    if parsed.relative_to not in sides:
        raise UsageError(f"invalid --relative-to value: {parsed.relative_to}", "use host or container")
    spec = read_spec(parsed.input)
    if parsed.source != parsed.target:
        spec = sides[parsed.relative_to](spec, Move(source=parsed.source, target=parsed.target))
    form = format_of(parsed.output, "")
    text = format_document(spec, form)
    if parsed.output:
        write_files(((with_extension(parsed.output, form), text),))
    else:
        sys.stdout.write(text)
    return 0


def read_spec(path: str) -> cdi.Spec:
    """Return the spec of a file, `-` being standard input; raises InputError."""
    from nvinject.cli.hook import read_all

    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            text = read_all(sys.stdin.fileno(), name).decode()
        else:
            with open(path, "rb", buffering=0) as file:
                text = read_all(file.fileno(), name).decode()
        return cdi.parse(parse_document(text, json=os.path.splitext(path)[1] == ".json"))
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}", "name a CDI spec") from error
    except ValueError as error:
        raise InputError(f"{name}: {error}", "name a valid CDI spec") from error
