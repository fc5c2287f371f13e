"""Finds nvinject's modules in one file of byte code, which `nvinject install` writes beside the single ones.

A module found in the usual way costs eleven system calls and 0.1 ms, and the hook has fifty; here it costs two. Belongs
here: what the launcher runs before any other module of ours, hence no import that start-up has not done already. Does
not belong here: writing the file (bundle.py). The rules are those of the single files (PEP 3147, PEP 552): the byte
code counts only while its source has the time and the size that it was compiled from; else the usual way is taken.
"""

import posix
import sys
from _frozen_importlib import ModuleSpec  # importlib.machinery would have to be imported
from marshal import loads

_PACKAGE = "/__init__.py"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    # place and length of the byte code, path of the source below the root, its time in nanoseconds, its size, and the
    # modules that this one imports before it does anything else
    Entry = tuple[int, int, str, int, int, tuple[str, ...]]
    # marshalled until they are asked for: a start needs a tenth to a third of them
    Index = dict[str, "bytes | Entry"]


class BundleFinder:
    """An importer (PEP 451) of the modules in an open bundle."""

    def __init__(self, descriptor: int, root: str, index: "Index") -> None:
        """Take the open file, the directory that holds the package, and what is where."""
        self._descriptor = descriptor
        self._root = root
        self._index = index
        self._loading: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":  # noqa: ARG002
        """Return how to load a module, None for one that is not here or not of its source."""
        entry = self._entry(name)
        if entry is None or not self._is_current(entry):
            return None
        self._load_all(entry[5])
        return self._spec(name, self._root + entry[2])

    def create_module(self, spec: "ModuleSpec") -> None:
        """Leave making the module to the import system."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run a module's byte code."""
        entry = self._entry(module.__name__)
        assert entry is not None
        place, length, *_ = entry
        exec(loads(posix.pread(self._descriptor, length, place)), module.__dict__)  # noqa: S102, S302 # as any .pyc

    def _entry(self, name: str) -> "Entry | None":
        entry = self._index.get(name)
        if isinstance(entry, bytes):
            entry = self._index[name] = loads(entry)  # noqa: S302 # as any .pyc
        return entry

    def _is_current(self, entry: "Entry") -> bool:
        try:
            status = posix.stat(self._root + entry[2])
        except OSError:
            return False
        return status.st_mtime_ns == entry[3] and status.st_size == entry[4]

    def _spec(self, name: str, source: str) -> "ModuleSpec":
        is_package = source.endswith(_PACKAGE)
        spec = ModuleSpec(name, self, origin=source, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        if is_package and spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(source[: -len(_PACKAGE)])
        return spec

    def _load_all(self, names: "tuple[str, ...]") -> None:
        """Load what a module is about to import: in one go it takes a third of the import system's time for each."""
        for name in names:
            entry = self._entry(name)
            package = name.rpartition(".")[0]
            if name in sys.modules or name in self._loading or entry is None or not self._is_current(entry):
                continue
            self._loading.add(name)
            try:
                self._load_all(entry[5])
                # Without its package, which was not to be had here, the import system does it all.
                if name not in sys.modules and (not package or package in sys.modules):
                    self._load(name, self._root + entry[2])
            finally:
                self._loading.remove(name)

    def _load(self, name: str, source: str) -> None:
        """Do for one module what the import system does (importlib._bootstrap, _load_unlocked)."""
        spec = self._spec(name, source)
        package, _, last = name.rpartition(".")
        module = type(sys)(name)
        module.__spec__ = spec
        module.__loader__ = self  # type: ignore[assignment]
        module.__file__ = source
        module.__package__ = package
        if spec.submodule_search_locations is not None:
            module.__package__ = name
            module.__path__ = spec.submodule_search_locations
        sys.modules[name] = module
        try:
            self.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        if package:
            setattr(sys.modules[package], last, module)


def install(descriptor: int, root: str, index: "Index") -> None:
    """Let the bundle be asked before any directory."""
    sys.meta_path.insert(0, BundleFinder(descriptor, root, index))
