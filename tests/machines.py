"""Whole declared machines as folders, with a config.toml that has its roots there."""

import shutil
from pathlib import Path

import pytest

from nvfakes import declaration, tree


def require_machines(folder: Path) -> None:
    """Skip where machines cannot be written with everything that a program looks at."""
    if not tree.can_make_nodes(folder):
        pytest.skip("device nodes cannot be made here, and a machine needs them")
    if shutil.which("cc") is None:
        pytest.skip("the fake NVML library needs a C compiler")


def write_machine(name: str, folder: Path) -> Path:
    """Write a machine below a folder and return its config.toml; skips where it cannot be whole."""
    folder.mkdir(parents=True, exist_ok=True)
    require_machines(folder)
    tree.write_tree(declaration.load(name), folder)
    config = folder / "config.toml"
    config.write_text(
        f'[nvidia-container-cli]\nroot = "{folder}"\n'
        f'[nvinject]\ndev-root = "{folder}"\nproc-root = "{folder}/proc"\nsys-root = "{folder}/sys"\n'
    )
    return config
