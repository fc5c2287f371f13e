"""nvinject uninstall: takes away what `nvinject install` laid down in a prefix, and nothing else.

Belongs here: what is removed, what is kept and why. Does not belong here: the list (manifest.py) and engine
configuration, which has an undo of its own.
"""

import os

from nvinject.cli.manifest import CHANGED, GONE, Manifest, read_manifest
from nvinject.cli.steps import print_steps
from nvinject.errors import UsageError
from nvinject.linux.signals import Undisturbed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Removes the launcher, the links and the other files that `nvinject install --prefix DIR` wrote. A file that was changed
since is kept and named, unless --force is given; so is every file that install did not write.
"""
EPILOG = """\
examples:
  nvinject uninstall --prefix /usr/local --dry-run   show what would be removed
  nvinject uninstall --prefix /usr/local

Undo `nvinject runtime configure` first: an engine that still names a removed runtime starts no container.
"""


def parser() -> "argparse.ArgumentParser":
    """Return the command's options."""
    from nvinject.cli.parsers import new_parser

    options = new_parser("nvinject uninstall", DESCRIPTION, EPILOG)
    options.add_argument("--prefix", required=True, metavar="DIR", help="where it was installed")
    options.add_argument("--force", action="store_true", help="remove files that were changed, too")
    options.add_argument("--dry-run", action="store_true", help="print what would be done and change nothing")
    options.add_argument("--json", action="store_true", help="print the result as JSON")
    return options


def main(arguments: "list[str]") -> int:
    """Remove, and print what was removed; returns 1 where something was kept."""
    options = parser().parse_args(arguments)
    prefix = os.path.abspath(options.prefix)
    manifest = read_manifest(prefix)
    if not manifest.entries:
        raise UsageError(f"nothing is installed in {prefix}: {manifest.path} is missing", "name the right --prefix")
    with Undisturbed():
        rows = remove_entries(manifest, force=options.force, dry_run=options.dry_run)
        kept = [row for row in rows if row[0] == "kept"]
        if not kept:
            rows += remove_rest(manifest, dry_run=options.dry_run)
    print_steps(rows, ("result", "path", "detail"), dry_run=options.dry_run, as_json=options.json)
    return 1 if kept else 0


def remove_entries(manifest: Manifest, *, force: bool, dry_run: bool) -> "list[tuple[str, str, str]]":
    """Remove files and links; returns rows that tell. Raises UsageError where the rights are missing."""
    rows = []
    for entry in reversed(manifest.entries):
        state = entry.state()
        if state == GONE:
            rows.append(("gone", entry.path, "was removed before"))
        elif state == CHANGED and not force:
            rows.append(("kept", entry.path, "was changed since it was installed; --force removes it"))
        else:
            if not dry_run:
                remove(entry.path)
            rows.append(("removed", entry.path, ""))
    return rows


def remove(path: str) -> None:
    """Remove a file or a link; raises UsageError."""
    try:
        os.unlink(path)
    except OSError as error:
        raise UsageError(f"cannot remove {path}: {error.strerror}", "run as the user who installed it") from error


def remove_rest(manifest: Manifest, *, dry_run: bool) -> "list[tuple[str, str, str]]":
    """Remove the list itself and the directories that were made for the installation and are empty now."""
    rows = [("removed", manifest.path, "")]
    if not dry_run:
        remove(manifest.path)
    for directory in reversed(manifest.directories):
        if dry_run:
            rows.append(("removed", directory, "if it is empty"))
            continue
        try:
            os.rmdir(directory)
        except OSError:
            rows.append(("left", directory, "is not empty"))
        else:
            rows.append(("removed", directory, ""))
    return rows
