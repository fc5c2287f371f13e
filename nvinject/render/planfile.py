"""Operations as JSON: how the part of a plan that the createContainer hook does gets to the hook.

Belongs here: Records to plain values and back, for those operations that the hook can get. Does not belong here: doing
them (inside.py). The file is written by us in a folder of ours and read by us; nothing of it comes from a container.
"""

from nvinject.core.plan import (
    BindFile,
    CreateSymlink,
    LoaderLibrary,
    MaskDirectory,
    Operation,
    UpdateLoaderCache,
    WriteFile,
)
from nvinject.errors import InputError
from nvinject.formats.jsonio import JSONError, dumps, loads
from nvinject.record import Record
from nvinject.render.text import operation_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "plan.json"
CALL, ANSWER = "call", "answer"  # the FIFOs beside it, by which a hook leaves the work to the shim that stands by
_KINDS: "dict[str, type[Operation]]" = {
    kind.__name__: kind for kind in (BindFile, CreateSymlink, MaskDirectory, UpdateLoaderCache, WriteFile)
}


class HookPlan(Record):
    """What a hook has to do, and how it knows the root file system again.

    `root` is (device, inode) of the root directory, (0, 0) where it was not there yet; then the image is looked at by
    the hook, and `driver_version`, `cuda_version`, `compat_directory`, `compat_mode` and the `models` of GPUs tell how
    to choose among CUDA libraries, as core.plan.DecideCompat. `debug` is the log file.
    """

    operations: tuple[Operation, ...]
    root: tuple[int, int] = (0, 0)
    driver_version: str = ""
    cuda_version: str = ""
    compat_directory: str = ""
    compat_mode: str = ""
    models: tuple[str, ...] = ()
    debug: str = ""


def format_plan_file(plan: HookPlan) -> bytes:
    """Return the file's content."""
    values = {
        "operations": [operation_values(operation) for operation in plan.operations],
        "root": list(plan.root),
        "driverVersion": plan.driver_version,
        "cudaVersion": plan.cuda_version,
        "compatDirectory": plan.compat_directory,
        "compatMode": plan.compat_mode,
        "models": list(plan.models),
        "debug": plan.debug,
    }
    return dumps(values).encode("ascii")


def parse_plan_file(data: bytes, path: str) -> HookPlan:
    """Return what a file holds; raises InputError."""
    try:
        values = loads(data)
        device, inode = values["root"]
        return HookPlan(
            operations=tuple(_parse_operation(operation) for operation in values["operations"]),
            root=(int(device), int(inode)),
            driver_version=str(values["driverVersion"]),
            cuda_version=str(values["cudaVersion"]),
            compat_directory=str(values["compatDirectory"]),
            compat_mode=str(values["compatMode"]),
            models=tuple(str(model) for model in values["models"]),
            debug=str(values["debug"]),
        )
    except (JSONError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not what the runtime shim wrote: {error}", "create the container anew") from error


def _parse_operation(values: "dict[str, Any]") -> Operation:
    fields = {name: _tuples(value) for name, value in values.items() if name != "operation"}
    if "libraries" in fields:
        fields["libraries"] = tuple(LoaderLibrary(**library) for library in values["libraries"])
    return _KINDS[values["operation"]](**fields)


def _tuples(value: "Any") -> "Any":
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
