"""The ordinary user of the rootless lane: a home, and our modules where that user can read them.

Belongs here: files that outlive a worker and serve all sessions. Does not belong here: starting workers (session.py).
The user has no account: any number that nobody uses will do when root runs the suite.
"""

import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

ORDINARY_USER = 61777
SHARED_MODULES = ("nvconform", "nvfakes", "nvinject", "pynvml", "yaml")


class Guest:
    """Folders that are made when they are first asked for, and removed by `close`; several threads may ask."""

    def __init__(self, user: int = ORDINARY_USER) -> None:
        """Make nothing yet."""
        self.user = user
        self._home: Path | None = None
        self._modules: Path | None = None
        self._lock = threading.Lock()

    def home(self) -> Path:
        """Return the user's home; what is compiled there serves all workers."""
        with self._lock:
            if self._home is None:
                self._home = Path(tempfile.mkdtemp(prefix="nvconform-home-"))
                os.chown(self._home, self.user, self.user)
            return self._home

    def modules(self, python: str) -> Path:
        """Return a folder with our modules, compiled for an interpreter."""
        with self._lock:
            if self._modules is None:
                self._modules = Path(tempfile.mkdtemp(prefix="nvconform-modules-"))
                _copy_modules(self._modules)
                subprocess.run(["chown", "-R", f"{self.user}:{self.user}", str(self._modules)], check=True, timeout=20)
                compiling = [python, "-m", "compileall", "-q", str(self._modules)]
                subprocess.run(
                    compiling, user=self.user, group=self.user, extra_groups=[], check=True, timeout=60, cwd="/"
                )
            return self._modules

    def close(self) -> None:
        """Remove what was made."""
        for folder in (self._home, self._modules):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        self._home = self._modules = None


def _copy_modules(folder: Path) -> None:
    """Copy what a worker needs: a checkout in root's home, or tox's own folder, is closed to an ordinary user."""
    for name in SHARED_MODULES:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            continue
        origin = Path(found.origin)
        if found.submodule_search_locations is None:
            shutil.copy(origin, folder)
        else:
            shutil.copytree(origin.parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True, timeout=20)
