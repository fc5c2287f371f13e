"""The main job, shown: a declared machine, a container that asks for its GPUs, the plan, the container with its GPUs.

Belongs here: the telling. Does not belong here: judging (judge.py). Run by `./bootstrap demo`; everything that it shows
comes from the programs that it starts.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvconform.bundle import generate, to_toml
from nvconform.case import Container
from nvconform.image import Image

MACHINE = "two-h100"
SECONDS = 120
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
# What a dynamically linked program of the driver needs of an image.
LIBRARIES = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
SHOW = "nvidia-smi -L; echo; /.probe/busybox ls -l /dev | /.probe/busybox grep nvidia"

PARSER_EPILOG = """\
examples:
  ./bootstrap demo
  ./bootstrap demo --devices 1 --capabilities utility
  ./bootstrap demo --machine h100x8 --devices 0,7
  ./bootstrap demo --require 'cuda>=99'              a refusal, with the reason
"""


def parser() -> argparse.ArgumentParser:
    """Return the demo's options."""
    options = argparse.ArgumentParser(
        prog="./bootstrap demo",
        description="Injects the GPUs of a declared machine into a real container, and shows each step.",
        epilog=PARSER_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--machine", default=MACHINE, help="a machine's name or file (default: %(default)s)")
    options.add_argument(
        "--devices", default="all", help="NVIDIA_VISIBLE_DEVICES of the container (default: %(default)s)"
    )
    options.add_argument("--capabilities", default="", help="NVIDIA_DRIVER_CAPABILITIES of the container")
    options.add_argument("--require", default="cuda>=12.0", help="NVIDIA_REQUIRE_CUDA (default: %(default)s)")
    options.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the machine and, inside, show the four steps."""
    options = parser().parse_args(arguments)
    if options.inside:
        return show(Path(options.inside), options)
    with tempfile.TemporaryDirectory(prefix="nvinject-demo-") as folder:
        # The rootless lane's container root is another user than the folder's owner.
        os.chmod(folder, 0o755)
        prefix = Path(folder) / "prefix"
        installed = subprocess.run(
            [sys.executable, "-m", "nvinject", "install", "--prefix", str(prefix), "--links", "--json"],
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if installed.returncode != 0:
            sys.stderr.write(installed.stderr)
            return installed.returncode
        again = ["--inside", folder, "--machine", options.machine, "--devices", options.devices]
        again += ["--capabilities", options.capabilities, "--require", options.require]
        command = [sys.executable, "-m", "nvfakes", "run", options.machine, "--"]
        command += [sys.executable, "-m", "nvconform.demo", *again]
        return subprocess.run(command, check=False, timeout=SECONDS).returncode


def show(folder: Path, options: argparse.Namespace) -> int:
    """Show host, request, plan and container; runs on the machine."""
    lane = os.environ.get("NVFAKES_LANE", "root")
    environment = describe_request(options)
    bundle = write_bundle(folder, environment, lane)
    launcher = folder / "prefix" / "bin" / "nvinject"

    heading("1. What the host has")
    root = Path(os.environ.get("NVFAKES_ROOT", "/"))
    sys.stdout.write((root / "proc/driver/nvidia/version").read_text().splitlines()[0] + "\n")
    run([str(root / "usr/bin/nvidia-smi"), "-L"], {"LD_LIBRARY_PATH": str(root / f"usr/lib/{triplet()}")})

    heading("2. What the container asks for")
    sys.stdout.write("".join(f"{entry}\n" for entry in environment))

    heading("3. What will be done, and why (nvinject plan)")
    settings = {"NVIDIA_CTK_CONFIG_FILE_PATH": str(folder / "config.toml")}
    code = run([str(launcher), "plan", str(bundle)], settings)

    heading("4. The container, started by runc; `nvinject hook prestart` gave it the GPUs")
    code = start(bundle, lane) or code
    if lane == "rootless":
        sys.stdout.write(
            "\nLeft out without root: device nodes are stand-ins bound from /dev/null (mknod is not possible), device\n"
            "rules are not set, and the machine lies in a folder instead of at the real paths.\n"
        )
    return code


def heading(text: str) -> None:
    """Print a heading."""
    sys.stdout.write(f"\n\033[1m{text}\033[0m\n" if sys.stdout.isatty() else f"\n== {text}\n")
    sys.stdout.flush()


def describe_request(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the variables by which the container asks for GPUs."""
    asked = [f"NVIDIA_VISIBLE_DEVICES={options.devices}"]
    if options.capabilities:
        asked.append(f"NVIDIA_DRIVER_CAPABILITIES={options.capabilities}")
    if options.require:
        asked.append(f"NVIDIA_REQUIRE_CUDA={options.require}")
    return tuple(asked)


def triplet() -> str:
    """Return the name of Debian's library folder for this machine."""
    return TRIPLETS.get(os.uname().machine, TRIPLETS["x86_64"])


def write_bundle(folder: Path, environment: tuple[str, ...], lane: str) -> Path:
    """Write a bundle with a small Debian-like image, and the config.toml of the node."""
    bundle = folder / "bundle"
    rootfs = bundle / "rootfs"
    rootfs.mkdir(parents=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise SystemExit("demo: busybox is missing; install it with: apt-get install busybox-static")
    libraries = {f"usr/lib/{triplet()}/{name}": {"copy": path, "mode": "0755"} for name, path in find_libraries()}
    loader = LOADERS.get(os.uname().machine, LOADERS["x86_64"])
    loader_file = {f"usr/{loader}": {"copy": f"/{loader}", "mode": "0755"}}
    container = Container(
        image="deb",
        env=environment,
        files={**libraries, **loader_file},
        spec={"process": {"args": ["/.probe/busybox", "sh", "-c", SHOW]}},
    )
    Image(rootfs, {}).build(container, Path(busybox))
    (folder / "config.toml").write_text(to_toml(node_configuration(lane)))
    rootless = lane == "rootless"
    document = generate(
        container,
        hooks=hooks(folder),
        cgroup=f"/nvinject-demo-{os.getpid()}",
        identities=((0, 0, 1),) if rootless else None,
        devices=not rootless,
    )
    (bundle / "config.json").write_text(json.dumps(document, indent=2))
    return bundle


def find_libraries() -> list[tuple[str, str]]:
    """Return name and path of the C library's files on this machine."""
    places = [Path(f"/lib/{triplet()}"), Path("/lib64"), Path("/usr/lib")]
    found = []
    for name in LIBRARIES:
        path = next((place / name for place in places if (place / name).exists()), None)
        if path is not None:
            found.append((name, str(path)))
    return found


def node_configuration(lane: str) -> Mapping[str, Any]:
    """Return config.toml: empty where the machine stands at the real paths, else the roots of its tree."""
    if lane == "root":
        return {}
    root = os.environ["NVFAKES_ROOT"]
    return {
        "nvidia-container-cli": {"root": root},
        "nvinject": {"dev-root": root, "proc-root": f"{root}/proc", "sys-root": f"{root}/sys"},
    }


def hooks(folder: Path) -> list[dict[str, Any]]:
    """Return the hooks of the container: first what a real kernel does by itself, then the injector."""
    machine = {name: os.environ[name] for name in ("NVFAKES_ROOT", "NVFAKES_LANE") if name in os.environ}
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    return [
        {
            "path": sys.executable,
            "args": [sys.executable, "-m", "nvfakes", "kernel-hook"],
            "env": [path, *(f"{name}={value}" for name, value in machine.items())],
        },
        {
            "path": str(folder / "prefix" / "bin" / "nvinject"),
            "args": ["nvinject", "hook", "prestart"],
            "env": [path, f"NVIDIA_CTK_CONFIG_FILE_PATH={folder / 'config.toml'}"],
        },
    ]


def start(bundle: Path, lane: str) -> int:
    """Run the container and return its exit code."""
    runc = shutil.which("runc")
    if runc is None:
        raise SystemExit("demo: runc is missing; install it with: apt-get install runc")
    state = bundle.parent / "state"
    command = [runc, "--root", str(state)]
    command += ["--rootless", "true"] if lane == "rootless" else []
    return run([*command, "run", "--bundle", str(bundle), f"nvinject-demo-{os.getpid()}"], {})


def run(command: Sequence[str], extra: Mapping[str, str]) -> int:
    """Run a program that prints for itself."""
    sys.stdout.flush()
    return subprocess.run(command, check=False, env={**os.environ, **extra}, timeout=SECONDS).returncode


def guarded() -> int:
    """Run the demo and return its exit code; what a reader that went away or Ctrl-C end needs no traceback."""
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would flush once more at its end
        return 1
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(guarded())
