"""The real dynamic loader finds a library through a cache that we wrote, and through nothing else."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nvinject.core.plan import LoaderLibrary, UpdateLoaderCache
from nvinject.render.loadercache import update

from .trees import Tree

PLACE = "/opt/somewhere"  # no loader looks there by itself


def enter_root(root: Path) -> list[str]:
    """Return the command that runs a program in a root, found by trying."""
    reasons = []
    # Debian keeps it where an ordinary user's PATH does not look.
    chroot = shutil.which("chroot", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if chroot is None or shutil.which("unshare") is None:
        pytest.skip("chroot or unshare is missing")
    for command in ([chroot], ["unshare", "-r", chroot]):
        done = subprocess.run([*command, "/", "true"], check=False, capture_output=True, text=True)
        if done.returncode == 0:
            return [*command, str(root)]
        reasons.append(done.stderr.strip())
    pytest.skip(f"cannot change the root here: {'; '.join(reasons)}")


def compile_with(*arguments: str) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    done = subprocess.run([compiler, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the C compiler cannot link here: {done.stderr.strip()}")


def copy_with_libraries(tree: Tree, program: Path) -> None:
    """Put a program in a tree with its loader and the libraries that come with this machine."""
    shutil.copy(program, tree.path("/program"))
    interpreter = re.search(rb"\0(/lib[^\0]*/ld-[^\0]*)\0", program.read_bytes())
    if interpreter is None:
        pytest.skip("the compiler makes no dynamic programs here")
    shutil.copy(os.fsdecode(interpreter[1]), tree.path(os.fsdecode(interpreter[1])))
    listed = subprocess.run(["ldd", str(program)], check=False, capture_output=True, text=True).stdout
    for library in re.findall(r"libc\.so\.\d+ => (\S+)", listed):
        # Into a default directory of the loader, so that it works without any cache.
        shutil.copy(library, tree.path(library))


def test_loader_finds_injected_libraries(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    tree = Tree(tmp_path / "root")
    source, program = tmp_path / "x.c", tmp_path / "program"
    source.write_text("int answer(void) { return 42; }\n")
    library = tree.path(f"{PLACE}/libinjected.so.1.2.3")
    compile_with("-shared", "-fPIC", "-Wl,-soname,libinjected.so.1", "-o", str(library), str(source))
    main = tmp_path / "main.c"
    main.write_text("int answer(void); int main(void) { return answer(); }\n")
    compile_with("-o", str(program), str(main), str(library))
    copy_with_libraries(tree, program)
    command = [*enter_root(tree.root), "/program"]
    without = subprocess.run(command, check=False, capture_output=True, text=True)
    assert without.returncode == 127
    assert "libinjected.so.1: cannot open shared object file" in without.stderr

    # Many other entries around it, so that the loader has to search.
    for number in range(300):
        tree.library(f"/usr/lib64/lib{number}x{number % 7}.so.{number % 11}")
    operation = UpdateLoaderCache(
        reason="a test",
        directories=(PLACE,),
        libraries=(LoaderLibrary(soname="libinjected.so.1", path=f"{PLACE}/libinjected.so.1.2.3"),),
    )
    root_fd = os.open(tree.root, os.O_PATH | os.O_DIRECTORY)
    replaced = update(root_fd, operation)
    os.close(root_fd)
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (42, "")
    replaced.undo()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 127
