"""Well-formed input for each target, from which mutations begin."""

import json
import struct

from nvinject.formats.ldcache import Cache, Entry, format_cache

CONFIG = {
    "ociVersion": "1.0.2",
    "process": {
        "args": ["sh"],
        "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0,GPU-1", "NVIDIA_REQUIRE_CUDA=cuda>=12.0 driver<600"],
        "capabilities": {"bounding": ["CAP_SYS_ADMIN"]},
        "user": {"uid": 0, "gid": 0},
    },
    "root": {"path": "rootfs", "readonly": True},
    "mounts": [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0", "type": "bind"}],
    "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"},
    "hooks": {"prestart": [{"path": "/bin/true", "args": ["true"], "env": []}]},
    "linux": {"namespaces": [{"type": "mount"}], "resources": {"devices": []}},
}
SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "annotations": {"a": "b"},
    "devices": [
        {
            "name": "gpu0",
            "containerEdits": {
                "env": ["A=B"],
                "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "permissions": "rw"}],
                "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro", "bind"]}],
                "hooks": [{"hookName": "createContainer", "path": "/bin/x", "args": ["x"], "env": ["P=1"]}],
                "additionalGIDs": [4],
            },
        }
    ],
    "containerEdits": {"env": ["C=D"]},
}
ELF = struct.pack(
    "<4sBBBBB7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 0, 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0
) + struct.pack("<IIQQQQQQ", 2, 4, 120, 120, 120, 64, 64, 8)
CACHE = Cache(
    entries=(
        Entry(soname="libcuda.so.1", path="/usr/lib/libcuda.so.1", flags=0x303),
        Entry(soname="libc.so.6", path="/lib/libc.so.6", flags=0x303),
    )
)

SEEDS: dict[str, tuple[bytes, ...]] = {
    "config": (json.dumps(CONFIG).encode(), b"{}"),
    "state": (b'{"ociVersion": "1.0.2", "id": "a", "status": "created", "pid": 7, "bundle": "/b", "root": "/r"}',),
    "environment": (
        b"NVIDIA_VISIBLE_DEVICES=all\0NVIDIA_DRIVER_CAPABILITIES=compute,utility\0CUDA_VERSION=11.4.2",
        b"NVIDIA_VISIBLE_DEVICES=MIG-GPU-1/1/0,0:1\0NVIDIA_REQUIRE_CUDA=cuda>=12\0NVIDIA_IMEX_CHANNELS=0,7",
        b"DOCKER_RESOURCE_GPU=GPU-1\0NVIDIA_MIG_CONFIG_DEVICES=all\0NVIDIA_DISABLE_REQUIRE=1",
    ),
    "requirements": (b"cuda>=12.0 brand=tesla,driver>=470,driver<471 arch!=9.0",),
    "ldcache": (format_cache(CACHE),),
    "ldconf": (b"# x\ninclude /etc/ld.so.conf.d/[a-z]*.conf\n/opt/lib /usr/lib\nhwcap 0 nosegneg\n",),
    "elf": (ELF,),
    "cdi": (json.dumps(SPEC).encode(),),
}
