"""config.json: the OCI configuration of a case's container.

Belongs here: the generated specification and the merge of what a case patches. Does not belong here: the file tree
(image.py) and starting anything (runtimes.py). No rlimits: raising them needs a capability that test machines lack.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nvconform.case import Container
from nvconform.image import PROBE_DIRECTORY

# What an unprivileged container gets from the engines, without what a test machine may not have itself.
CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_MKNOD")
CONTAINER_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Ranges of a user namespace: first id inside, first id outside, how many.
Identities = tuple[tuple[int, int, int], ...]

# Prints the environment, then opens every node that could be a GPU's: with device rules in force an allowed node
# without a driver behind it answers "No such device", a forbidden one "Operation not permitted".
PROBE = """
/.probe/busybox env
for node in /dev/nvidia* /dev/gdrdrv /dev/nvidia-caps/* /dev/nvidia-caps-imex-channels/* /dev/dri/* /dev/infiniband/*
do
  if [ -c "$node" ]; then
    if message=$( (: < "$node") 2>&1 ); then message=opened; fi
    echo "open:$node:$message"
  fi
done
"""


def generate(
    container: Container,
    *,
    hooks: Sequence[Mapping[str, Any]],
    cgroup: str,
    identities: Identities | None,
    devices: bool,
) -> dict[str, Any]:
    """Return config.json.

    `identities` are the ranges of a user namespace, or None for none. `devices` says whether the runtime
    can set device rules here.
    """
    capabilities = [*CAPABILITIES, "CAP_SYS_ADMIN"] if container.privileged else list(CAPABILITIES)
    single_identity = identities is not None and sum(size for _, _, size in identities) == 1
    spec: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [f"/{PROBE_DIRECTORY}/busybox", "sh", "-c", PROBE],
            "env": [CONTAINER_PATH, *container.env],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": container.readonly},
        "hostname": "conformance",
        "mounts": [*_system_mounts(single_identity=single_identity), *(_mount(mount) for mount in container.mounts)],
        "linux": {
            "namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount", "network")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]} if devices else {},
        },
        "hooks": {container.stage: list(hooks)},
    }
    if devices:
        spec["linux"]["cgroupsPath"] = cgroup
    if identities is not None:
        spec["linux"]["namespaces"].append({"type": "user"})
        ranges = [{"containerID": inside, "hostID": outside, "size": size} for inside, outside, size in identities]
        spec["linux"] |= {"uidMappings": ranges, "gidMappings": ranges}
    return dict(merge_patch(spec, container.spec))


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with a JSON merge patch applied (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def _system_mounts(*, single_identity: bool) -> list[dict[str, Any]]:
    terminals = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]
    if not single_identity:
        terminals.append("gid=5")
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": terminals},
    ]


def _mount(mount: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "bind", "options": ["bind", "ro"], **mount}


def to_toml(table: Mapping[str, Any], name: str = "") -> str:
    """Return config.toml for a nested mapping of texts, numbers, flags and lists of texts."""
    lines = [f"{_key(key)} = {_toml_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    text = (f"[{name}]\n" if name and lines else "") + "".join(f"{line}\n" for line in lines)
    for key, value in table.items():
        if isinstance(value, Mapping):
            text += to_toml(value, f"{name}.{_key(key)}" if name else _key(key))
    return text


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() else f'"{key}"'


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
