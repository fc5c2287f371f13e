"""nvinject create-container: the runtime shim's createContainer hook, for what config.json cannot say.

Belongs here: finding plan and root file system. Does not belong here: what is done (the plan) and how (render). The
hook runs as the host's root beside an image that may be hostile: its environment is explicit, its launcher isolated,
and its one argument is a folder that the shim made.
"""

import os
import sys

from nvinject.cli.debuglog import Log
from nvinject.cli.hook import read_all
from nvinject.errors import InputError, UsageError
from nvinject.formats.jsonio import JSONError, loads
from nvinject.render.inside import apply_here, find_root
from nvinject.render.planfile import ANSWER, CALL, FILE, HookPlan, parse_plan_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.core.plan import Operation

HELP = """\
usage: nvinject create-container FOLDER

The createContainer hook that `nvinject runtime` writes into a config.json where that cannot say everything. FOLDER is
the container's run directory. The runtime gives the container's state on standard input.

example:
  echo '{"bundle": "/run/bundle"}' | nvinject create-container /run/nvinject/ID
"""


def main(arguments: "list[str]") -> int:
    """Do what the folder's plan says in the mount namespace of this process."""
    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(HELP)
        return 0
    if len(arguments) != 1:
        raise UsageError("which container?", "the runtime shim writes this hook with the container's folder")
    plan = read_plan(f"{arguments[0]}/{FILE}")
    for name in (CALL, ANSWER):  # of a process that ended before it could do this instead
        try:
            os.unlink(f"{arguments[0]}/{name}")
        except OSError:
            continue  # there is none, or the folder is read-only here: it goes with the container
    return perform(plan, read_all(0, "standard input"))


def perform(plan: HookPlan, state: bytes) -> int:
    """Do what a plan says in the mount namespace of this process; the state is the container's, as runtimes give it."""
    places = read_places(state)
    # The working directory is the root file system with runc, but the bundle with crun: it counts if it can be told.
    root_fd = find_root(places if plan.root == (0, 0) else (*places, "."), plan.root)
    os.chdir("/")
    with Log(plan.debug, echo=False, title="createContainer") as log:
        try:
            operations = plan.operations if plan.root != (0, 0) else adapt(plan, root_fd)
            for warning in apply_here(operations, root_fd, log.write if log.is_kept else None):
                log.warn(warning)
        except Exception as error:
            log.write(f"failed: {error}")  # crun does not pass on what a hook says
            raise
    return 0


def read_places(data: bytes) -> tuple[str, ...]:
    """Return where the state says that the root file system is; crun and runc differ in what they tell."""
    try:
        state = loads(data)
    except JSONError as error:
        raise InputError(
            f"the container's state is not JSON: {error}", "the runtime gives it on standard input"
        ) from error
    if not isinstance(state, dict):
        raise InputError("the container's state is not a JSON object", "the runtime gives it on standard input")
    root, bundle = (state.get(name) for name in ("root", "bundle"))
    found = [root] if isinstance(root, str) and root.startswith("/") else []
    if isinstance(bundle, str) and bundle.startswith("/"):
        found += rootfs_of(bundle)
    return tuple(found)


def rootfs_of(bundle: str) -> "list[str]":
    """Return the root file system that a bundle names, nothing where this process may not read the bundle."""
    from nvinject.formats.oci import load_document, read_leniently, rootfs_path

    path = f"{bundle}/config.json"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        spec = read_leniently(load_document(read_all(descriptor, path), path))
    finally:
        os.close(descriptor)
    return [rootfs_path(spec, bundle)] if spec.root_path else []


def read_plan(path: str) -> HookPlan:
    """Read the plan; raises InputError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise InputError(f"cannot open {path}: {error.strerror}", "the runtime shim writes it at create") from error
    try:
        return parse_plan_file(read_all(descriptor, path), path)
    finally:
        os.close(descriptor)


def adapt(plan: HookPlan, root_fd: int) -> "tuple[Operation, ...]":
    """Return the operations for an image that was not there when they were planned."""
    from nvinject.core.compat import choose_compat
    from nvinject.core.plan import UpdateLoaderCache
    from nvinject.host.layout import observe_layout

    layout = observe_layout(root_fd, compat=plan.compat_directory)
    compat = choose_compat(
        layout.compat_directory,
        layout.compat_version,
        plan.driver_version,
        plan.compat_mode,
        note=layout.compat_note,
        cuda_version=plan.cuda_version,
        models=plan.models,
    )
    return tuple(
        operation.replace(compat_directory=compat.directory, musl_path_file=layout.musl_path_file)
        if isinstance(operation, UpdateLoaderCache)
        else operation
        for operation in plan.operations
    )
