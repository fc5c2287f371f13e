"""The injector as a node has it: a copy of the package, byte-compiled, with the launcher of `nvinject install`.

Belongs here: laying it down where nothing changes it during a run. Does not belong here: running it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nvinject


def install(directory: Path, interpreter: str = sys.executable) -> Path:
    """Install a copy of nvinject below a directory and return the launcher.

    A copy, because a source tree may change during a run, and then every start would compile anew.
    """
    library = directory / "lib"
    package = Path(nvinject.__file__).parent
    shutil.copytree(package, library / "nvinject", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    prefix = directory / "prefix"
    subprocess.run(
        [interpreter, "-m", "nvinject", "install", "--prefix", str(prefix), "--links", "--json"],
        check=True,
        cwd=library,
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=120,
    )
    return prefix / "bin" / "nvinject"
