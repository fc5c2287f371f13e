"""CRI-O: a drop-in below crio.conf.d; crio.conf itself is read only.

Belongs here: the settings' names (crio.conf(5)) and where the options of other runtimes are found. Does not belong
here: the splicing.
"""

import os

from nvinject.engines.edit import (
    SOURCE_COMMAND,
    Edit,
    Options,
    choose_template,
    edit_document,
    merged,
    parse_document,
    table_at,
)
from nvinject.engines.files import Document, read_document
from nvinject.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvinject.engines.edit import Run

DEFAULT_CONFIG = "/etc/crio/crio.conf"
DEFAULT_DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.toml"
SERVICE = "crio"
RUNTIME = ("crio", "runtime")


def plan_edit(options: Options, run: "Run") -> Edit:
    """Return the change of the drop-in, or of crio.conf itself without one. Raises ConfigurationError."""
    target = read_document(options.drop_in or options.config)
    source, values = read_source(options, run)
    runtime = table_at(source, values, RUNTIME)
    runtimes = table_at(source, values, (*RUNTIME, "runtimes"))
    entry = {
        **choose_template(runtimes, runtime.get("default_runtime")),
        "runtime_path": options.path,
        "runtime_type": "oci",
    }
    wanted: list[tuple[tuple[str, ...], Any]] = []
    removals = []
    default = (*RUNTIME, "default_runtime")
    if options.set_as_default:
        wanted.append((default, options.name))
    elif options.drop_in and table_at(target, parse_document(target), RUNTIME).get("default_runtime") == options.name:
        removals.append(default)
    wanted += [((*RUNTIME, "runtimes", options.name, key), value) for key, value in sorted(entry.items())]
    notes = ("CRI-O reads CDI specs without being told: --cdi.enabled changes nothing",) if options.cdi else ()
    return Edit(changes=(edit_document(target, wanted, removals),), notes=notes)


def read_source(options: Options, run: "Run") -> "tuple[Document, dict[str, Any]]":
    """Return what CRI-O is configured with, without our drop-in: its own answer, or crio.conf and what is beside it."""
    if options.source == SOURCE_COMMAND:
        text = ask(options, run)
        answer = Document(path="the answer of crio", data=b"", text=text)
        return answer, parse_document(answer)
    main = read_document(options.config)
    values = parse_document(main)
    for path in find_drop_ins(options):
        values = merged(values, parse_document(read_document(path)))
    return main, values


def ask(options: Options, run: "Run") -> str:
    """Return what a running CRI-O says about its configuration."""
    try:
        return run(options.executable or "crio", ("status", "config"))
    except HostError:
        return run("crio-status", ("config",))  # before 1.29 a program of its own


def find_drop_ins(options: Options) -> list[str]:
    """Return the files of crio.conf.d in the order that CRI-O reads them, but for ours."""
    directory = f"{options.config}.d"
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = [os.path.join(directory, name) for name in names if not name.startswith(".")]
    return [path for path in paths if os.path.isfile(path) and path != options.drop_in]
