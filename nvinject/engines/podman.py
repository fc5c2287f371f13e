"""podman: a drop-in of containers.conf.

Belongs here: the settings' names (containers.conf(5)). podman reads containers.conf.d/*.conf after containers.conf, and
a table in a later file adds to the earlier one's. Does not belong here: the splicing.
"""

from nvinject.engines.edit import Edit, Options, edit_document, parse_document, table_at
from nvinject.engines.files import read_document
from nvinject.formats.tomltext import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_CONFIG = "/etc/containers/containers.conf"
DEFAULT_DROP_IN = "/etc/containers/containers.conf.d/99-nvidia.conf"
SPEC_DIRECTORIES = ["/etc/cdi", "/var/run/cdi"]
ENGINE = ("engine",)


def plan_edit(options: Options) -> Edit:
    """Return the change of the drop-in, or of containers.conf itself without one. Raises ConfigurationError."""
    main = read_document(options.config)
    target = read_document(options.drop_in) if options.drop_in else main
    values = parse_document(target)
    wanted: list[tuple[tuple[str, ...], Any]] = []
    removals = []
    if options.set_as_default:
        wanted.append(((*ENGINE, "runtime"), options.name))
    elif options.drop_in and table_at(target, values, ENGINE).get("runtime") == options.name:
        removals.append((*ENGINE, "runtime"))
    directories = (*ENGINE, "cdi_spec_dirs")
    if options.cdi and lookup(parse_document(main), directories) is None and lookup(values, directories) is None:
        wanted.append((directories, SPEC_DIRECTORIES))
    table_at(target, values, (*ENGINE, "runtimes"))
    wanted.append(((*ENGINE, "runtimes", options.name), [options.path]))
    return Edit(changes=(edit_document(target, wanted, removals),))
