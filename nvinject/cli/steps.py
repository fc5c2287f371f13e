"""The steps of a command that changes files, told to people and as JSON in one form.

Belongs here: the layout. Does not belong here: which steps there are, and words about trouble (messages.py).
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Step = tuple[str, str, str]


def print_steps(steps: "Sequence[Step]", names: "Step", *, dry_run: bool, as_json: bool) -> None:
    """Print what was done, or would be: what, path and a word about it; JSON has the three under `names`."""
    if as_json:
        import json

        rows = [dict(zip(names, step, strict=True)) for step in steps]
        sys.stdout.write(json.dumps({"dryRun": dry_run, "steps": rows}, indent=2) + "\n")
        return
    from nvinject.render.text import format_table

    sys.stdout.write(format_table(("what", *names[1:]), steps) if steps else "")
    sys.stdout.write("dry run: nothing was changed\n" if dry_run else "")
