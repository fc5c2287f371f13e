"""nvinject install: lays down the launcher, the one way in which a hook may be started.

Belongs here: the launcher's text, byte-compiling, the links that engines look for. Does not belong here: engine
configuration. A launcher and not a console script, because a hook runs as root in surroundings that an image can shape
(docs/architecture.md, "The launcher"): `-I` ignores PYTHON* and the working directory, `-S` keeps site-packages'
start-up code out and saves 2 ms.
"""

import os
import stat
import sys

from nvinject.bundle import bundle_path, find_sources, write_bundle
from nvinject.cli.manifest import manifest_path, missing_directories, record_installation, replace_file
from nvinject.cli.shimlauncher import MARK, format_hook, format_launcher
from nvinject.cli.steps import print_steps
from nvinject.configfile import DEFAULT_CONFIG
from nvinject.errors import UsageError
from nvinject.linux.signals import Undisturbed
from nvinject.render.oci import HOOK_SCRIPT

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

LAUNCHER_NAME = "nvinject"
LINK_NAMES = (
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-cdi-hook",
    "nvidia-ctk",
    "nvidia-container-cli",
)
SHIM_NAME = "nvidia-container-runtime"
SHIM_HOOK_NAME = LAUNCHER_NAME + HOOK_SCRIPT
SHIM_LINK_NAMES = ("nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy")

# Short, because it is compiled at every start; what it does next is in the bundle (launch.py).
LAUNCHER = """\
#!{interpreter} -IS
# Written by `nvinject install`; the hook's way in. See docs/architecture.md, "The launcher".
import gc
import marshal
import posix
import sys
from _frozen_importlib_external import MAGIC_NUMBER

gc.disable()
# Installing compiled everything; a start under a limit of file sizes would leave cut byte code behind.
sys.dont_write_bytecode = True
sys.path += {directories!r}
bundle = -1
try:
    bundle = posix.open({bundle!r}.replace("TAG", sys.implementation.cache_tag), posix.O_RDONLY | posix.O_CLOEXEC)
    head = posix.read(bundle, 65536)
    if head.startswith(MAGIC_NUMBER):
        finder, index = marshal.loads(head[len(MAGIC_NUMBER):])
        space = {{}}
        exec(finder, space)
        space["install"](bundle, {root!r}, index)
except (OSError, ValueError, EOFError, TypeError):
    pass  # not written: modules are found one by one
try:
    from nvinject.cli.launch import launch
except KeyboardInterrupt:
    posix._exit(130)
except Exception as error:
    text = f"nvinject: cannot load its modules: {{error}}; its files or Python's cannot be read, or memory is short"
    posix.write(2, text.replace("\\n", " ").encode(errors="replace") + b"\\n")
    posix._exit(6)

launch(bundle)
"""

DESCRIPTION = """\
Writes PREFIX/bin/nvinject, a launcher for this interpreter and this installation of nvinject, and byte-compiles the
modules that it runs. With --links it also makes the names under which engines look for a hook and for a runtime.
"""

EPILOG = """\
examples:
  nvinject install --prefix /usr/local --links --dry-run   show what would be written
  nvinject install --prefix /usr/local --links             then `docker run --gpus all …` finds the hook
  nvinject install --prefix /usr --links --config-file /etc/nvidia-container-runtime/config.toml
"""


def parser() -> "argparse.ArgumentParser":
    """Return the command's options."""
    from nvinject.cli.parsers import new_parser

    options = new_parser("nvinject install", DESCRIPTION, EPILOG)
    options.add_argument(
        "--prefix", required=True, metavar="DIR", help="where to install; the launcher goes to DIR/bin"
    )
    names = ", ".join((*LINK_NAMES, SHIM_NAME, *SHIM_LINK_NAMES))
    options.add_argument("--links", action="store_true", help=f"also make the names that engines look for: {names}")
    options.add_argument(
        "--config-file",
        metavar="FILE",
        default="",
        help=f"also write a default config.toml here, unless there is a file (engines' hooks read {DEFAULT_CONFIG})",
    )
    options.add_argument("--dry-run", action="store_true", help="print what would be done and change nothing")
    options.add_argument("--json", action="store_true", help="print the result as JSON")
    return options


def main(arguments: "list[str]") -> int:
    """Install, and print what was written."""
    options = parser().parse_args(arguments)
    prefix = os.path.abspath(options.prefix)
    launcher = os.path.join(prefix, "bin", LAUNCHER_NAME)
    interpreter, directories = find_interpreter(), find_directories()
    steps = [("launcher", launcher, f"{interpreter} -IS, modules from {', '.join(directories)}")]
    shim = os.path.join(prefix, "bin", SHIM_NAME)
    links = [(name, LAUNCHER_NAME) for name in LINK_NAMES] + [(name, SHIM_NAME) for name in SHIM_LINK_NAMES]
    if options.links:
        steps.append(("runtime", shim, f"/bin/sh, calls {LAUNCHER_NAME} for create and run"))
        hook = os.path.join(prefix, "bin", SHIM_HOOK_NAME)
        steps.append(("hook", hook, f"/bin/sh, calls {LAUNCHER_NAME} where {SHIM_NAME} does not stand by"))
        steps += [("link", os.path.join(prefix, "bin", name), f"-> {target}") for name, target in links]
    config = os.path.abspath(options.config_file) if options.config_file else ""
    if config:
        there = os.path.lexists(config)
        steps.append(("config", config, "is there, and left alone" if there else "default settings"))
        config = "" if there else config
    if not options.dry_run:
        lay_down(prefix, launcher, interpreter, directories, links if options.links else [], config)
        compile_modules(directories)
        verify(launcher)
    print_steps(steps, ("kind", "path", "detail"), dry_run=options.dry_run, as_json=options.json)
    for warning in find_weak_spots([interpreter, *directories, *([] if options.dry_run else [launcher])]):
        sys.stderr.write(f"nvinject: warning: {warning}\n")
    return 0


def lay_down(
    prefix: str, launcher: str, interpreter: str, directories: "list[str]", links: "list[tuple[str, str]]", config: str
) -> None:
    """Write launcher, shim, links and config.toml, and add to the prefix's list what was written.

    All or nothing: where one cannot be written, those that were not there before are taken away again. A signal that
    ends this program waits until all is done.
    """
    folder = os.path.dirname(launcher)
    files = {launcher: format_launcher_of(interpreter, directories)}
    if links:
        refuse_foreign(os.path.join(folder, SHIM_NAME))
        files.update({os.path.join(folder, name): text for name, text in format_scripts(launcher).items()})
    targets = {os.path.join(folder, name): target for name, target in links}
    made = missing_directories(folder)
    made += missing_directories(os.path.dirname(config)) if config else ()
    made += missing_directories(os.path.dirname(manifest_path(prefix)))
    new = [path for path in (*files, *targets, config) if path and not os.path.lexists(path)]
    with Undisturbed():
        try:
            for path, text in files.items():
                write(path, text)
            for path, target in targets.items():
                link(path, target)
            if config:
                from nvinject.cli.configschema import format_default

                write(config, format_default(), mode=0o644)
            record_installation(prefix, [*files, *targets, *([config] if config else ())], made)
        except BaseException:
            take_away(new, made)
            raise


def take_away(files: "list[str]", directories: "tuple[str, ...]") -> None:
    """Remove files that are there, and directories that are empty, innermost first; what cannot be removed stays."""
    for path, remove in (*((path, os.unlink) for path in files), *((path, os.rmdir) for path in reversed(directories))):
        try:
            remove(path)
        except OSError:
            continue


def find_interpreter() -> str:
    """Return the absolute path of an interpreter that a shebang line can name.

    Raises UsageError where the kernel would not take it: execve(2) cuts a shebang line at 255 bytes and at a blank.
    """
    interpreter = sys.executable
    if not interpreter or " " in interpreter or len(interpreter) > 240:
        raise UsageError(
            f"the interpreter {interpreter!r} cannot stand in a #! line", "use a shorter path without blanks"
        )
    return interpreter


def find_directories() -> "list[str]":
    """Return the directories that hold nvinject and the modules that it imports, each once."""
    import importlib.util

    found: list[str] = []
    for module in ("nvinject", "pynvml", "yaml", "pyroute2"):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            continue
        directory = os.path.dirname(os.path.abspath(spec.origin))
        if spec.submodule_search_locations:
            directory = os.path.dirname(directory)
        if directory not in found:
            found.append(directory)
    return found


def write(path: str, text: str, mode: int = 0o755) -> None:
    """Write a file under a temporary name, then put it in place in one step."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace_file(path, text, mode)  # everybody may run a program and read a configuration
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "choose another --prefix or run as root") from error


def refuse_foreign(path: str) -> None:
    """Raise UsageError where somebody else's program has this name."""
    try:
        with open(path, errors="replace") as file:
            ours = MARK in file.read(4096)
    except FileNotFoundError:
        return
    if not ours:
        raise UsageError(f"{path} exists and is not ours", "remove the other toolkit's program first")


def link(path: str, target: str = LAUNCHER_NAME) -> None:
    """Make path a link to the launcher beside it; a file that is not a link is left alone.

    Raises UsageError where such a file is in the way.
    """
    temporary = f"{path}.{os.getpid()}"
    if os.path.lexists(path) and not os.path.islink(path):
        raise UsageError(f"{path} exists and is not a link", "remove the other toolkit's program first")
    take_away([temporary], ())  # what a process of this id left that was killed
    try:
        os.symlink(target, temporary)
        os.rename(temporary, path)
    except OSError as error:
        take_away([temporary], ())
        raise UsageError(f"cannot write {path}: {error.strerror}", "choose another --prefix or run as root") from error


def format_launcher_of(interpreter: str, directories: "list[str]") -> str:
    """Return the text of the launcher for an interpreter and the directories of its modules."""
    package = os.path.join(directories[0], "nvinject")
    return LAUNCHER.format(
        interpreter=interpreter, directories=directories, root=directories[0], bundle=bundle_path(package, "TAG")
    )


def format_scripts(launcher: str) -> "dict[str, str]":
    """Return the text of the runtime shim's scripts, which stand beside the launcher, by their names."""
    return {SHIM_NAME: format_launcher(launcher), SHIM_HOOK_NAME: format_hook()}


def compile_modules(directories: "list[str]") -> None:
    """Byte-compile nvinject and the NVML bindings: without it every start compiles anew, 20 ms each time.

    The bundle saves the hook another 3 ms. Where byte code cannot be written, nothing but time is lost. A signal that
    ends this program waits for the end of the file that is being written.
    """
    import compileall

    package = os.path.join(directories[0], "nvinject")
    try:
        with Undisturbed():
            write_bundle(package)
    except OSError as error:
        sys.stderr.write(f"nvinject: warning: cannot write byte code: {error.filename}: {error.strerror}\n")
    quiet = 2
    bindings = [os.path.join(directory, "pynvml.py") for directory in directories]
    sources = [f"{directories[0]}{source}" for source in find_sources(package)]
    for source in (*sources, *(path for path in bindings if os.path.exists(path))):
        with Undisturbed():
            compileall.compile_file(source, quiet=quiet)


def verify(launcher: str) -> None:
    """Start the launcher once; raises UsageError if it does not run."""
    import subprocess

    tried = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False, env={}, timeout=60)
    if tried.returncode != 0:
        first = (tried.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(f"{launcher} does not run: {first}", "check that the interpreter and its modules are readable")


def find_weak_spots(paths: "list[str]") -> "list[str]":
    """Return a warning for each path that somebody else than root could change: root will run what is there."""
    if os.geteuid() != 0:
        return []
    weak = []
    for path in paths:
        weak += [
            f"{place} can be changed by others than root, and containers' hooks run {path} as root"
            for place in filter(None, [find_changeable(path)])
        ]
        closed = find_closed_directory(path)
        if closed:
            weak.append(f"{closed} is closed to others: hooks of containers with user namespaces cannot run {path}")
    return weak


def find_changeable(path: str) -> str:
    """Return what others than root can change: a path, its links' target, or a directory above; "" for nothing.

    Whoever owns a directory, or may write to it and is not kept from its files (the sticky bit), can put another file
    in the place of one that is root's.
    """
    for whole in (path, os.path.realpath(path)):
        place = whole
        while True:
            status = os.lstat(place)
            shared = stat.S_ISDIR(status.st_mode) and place != whole and status.st_mode & stat.S_ISVTX
            if status.st_uid != 0 or (status.st_mode & 0o022 and not shared and not stat.S_ISLNK(status.st_mode)):
                return place
            if place == "/":
                break
            place = os.path.dirname(place)
    return ""


def find_closed_directory(path: str) -> str:
    """Return the directory above a program or its links' target that only its owner may enter, "" for none."""
    for place in (path, os.path.realpath(path)):
        directory = os.path.dirname(place)
        while directory != "/":
            if not os.stat(directory).st_mode & 0o001:
                return directory
            directory = os.path.dirname(directory)
    return ""
