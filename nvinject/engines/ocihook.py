"""The OCI hook file of podman and CRI-O (oci-hooks(5)), the original's oldest way to be called.

Belongs here: its JSON. Does not belong here: whether it is a good idea; CDI and the runtime have taken its place.
"""

import os

from nvinject.engines.edit import Edit
from nvinject.engines.files import read_document

SEARCH_PATH = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)


def format_hook(program: str) -> str:
    """Return the document that makes every container run a program as prestart hook."""
    import json

    directory, name = os.path.split(program)
    directories = (*SEARCH_PATH, *(() if directory in SEARCH_PATH else (directory,)))
    values = {
        "version": "1.0.0",
        "hook": {"path": program, "args": [name, "prestart"], "env": [f"PATH={':'.join(directories)}"]},
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return json.dumps(values, indent=2) + "\n"


def plan_edit(path: str, program: str) -> Edit:
    """Return the change that writes the hook file."""
    return Edit(changes=(read_document(path).change(format_hook(program)),))
