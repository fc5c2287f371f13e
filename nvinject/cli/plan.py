"""nvinject plan: shows what the prestart hook would do to a container, and why, and changes nothing.

Belongs here: finding the container's description and printing the plan. Does not belong here: any decision; the plan is
the very one that the hook would carry out.
"""

import os
import sys

from nvinject.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from nvinject.core.plan import Plan
    from nvinject.core.request import ContainerRequest

DESCRIPTION = """\
Reads a bundle (or its config.json), this host and this host's config.toml, and prints the operations that
`nvinject hook prestart` would carry out, in order and each with its reason. Needs no root; touches nothing.
"""

EPILOG = """\
examples:
  nvinject plan /run/containerd/io.containerd.runtime.v2.task/moby/ID
  nvinject plan config.json --rootfs ./rootfs --json
"""


def parser() -> "argparse.ArgumentParser":
    """Return the command's options."""
    from nvinject.cli.parsers import new_parser

    options = new_parser("nvinject plan", DESCRIPTION, EPILOG)
    options.add_argument("container", metavar="BUNDLE", help="a bundle folder or a config.json")
    options.add_argument(
        "--rootfs", metavar="DIR", help="the container's root file system, if not where config.json says"
    )
    options.add_argument("--config", metavar="FILE", default="", help="read this config.toml; it must exist")
    options.add_argument("--json", action="store_true", help="print the plan as JSON")
    return options


def main(arguments: "list[str]") -> int:
    """Print the plan for one container."""
    options = parser().parse_args(arguments)
    found = make_plan(options.container, rootfs=options.rootfs, config=options.config)
    if options.json:
        print_json(found)
    else:
        print_text(found)
    return 0


def make_plan(
    container: str, *, rootfs: "str | None", config: str
) -> "tuple[ContainerRequest | None, Plan | None, tuple[str, ...]]":
    """Return what the container asks for, the plan for it and the warnings; None where it asks for no GPU."""
    from nvinject.cli.discovery import compat_place, discover_for
    from nvinject.cli.hook import read_spec
    from nvinject.cli.settings import load_settings
    from nvinject.core import planner
    from nvinject.core.request import ignored_warning, read_request
    from nvinject.core.sources import ContainerSpec
    from nvinject.formats.oci import rootfs_path
    from nvinject.host.layout import observe_layout

    if not os.path.exists(container):
        raise InputError(f"{container} does not exist", "name a bundle folder or a config.json")
    document = os.path.abspath(os.path.join(container, "config.json") if os.path.isdir(container) else container)
    spec = read_spec(document)
    asked = ContainerSpec(environment=spec.environment, mounts=spec.mounts, privileged=spec.privileged)
    policy, warnings = load_settings(config)
    request = read_request(asked, policy)
    if request is None:
        ignored = ignored_warning(asked, policy)
        return None, None, (*warnings, ignored) if ignored else warnings
    inventory = discover_for(request, policy, os.environ)
    root = rootfs or rootfs_path(spec, os.path.dirname(document))
    try:
        root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(
            f"cannot open the root file system {root}: {error.strerror}", "name it with --rootfs"
        ) from error
    try:
        layout = observe_layout(root_fd, compat=compat_place(inventory), created=True)
        plan = planner.plan(inventory, request, policy, layout)
    finally:
        os.close(root_fd)
    return request, plan, (*warnings, *request.warnings, *plan.warnings)


def print_text(found: "tuple[ContainerRequest | None, Plan | None, tuple[str, ...]]") -> None:
    """Print request, plan and warnings for people."""
    from nvinject.render.text import format_plan

    request, plan, warnings = found
    for warning in warnings:
        sys.stderr.write(f"nvinject: warning: {warning}\n")
    if request is None or plan is None:
        sys.stdout.write("The container asks for no GPU: nothing would be done.\n")
        return
    sys.stdout.write(f"devices       {', '.join(request.devices)} ({request.source})\n")
    sys.stdout.write(f"capabilities  {', '.join(request.capabilities)}\n")
    for variable, expression in request.requirements:
        sys.stdout.write(f"requires      {variable}={expression}\n")
    sys.stdout.write("\n" + format_plan(plan))


def print_json(found: "tuple[ContainerRequest | None, Plan | None, tuple[str, ...]]") -> None:
    """Print request, plan and warnings for programs."""
    import json

    from nvinject.render.text import plain, plan_values

    request, plan, warnings = found
    document = {
        "request": None if request is None else plain({}, request),
        "plan": None if plan is None else plan_values(plan),
        "warnings": list(warnings),
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
