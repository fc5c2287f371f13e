"""What must be seen: the short words of a case, expanded to every mount, node, link, rule and cache entry.

Belongs here: the arithmetic of an expectation. The facts themselves (file names, flags, majors) are data in
conformance/cases/sets.yaml. Does not belong here: comparing (judge.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvconform.case import Case, Injected

PROC = "/proc/driver/nvidia"
PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"
CONTROL_MINORS = {"nvidiactl": 255, "nvidia-modeset": 254, "nvidia-uvm": 0, "nvidia-uvm-tools": 1}
# Minor numbers of /dev/nvidia-caps as the kernel driver hands them out: config, monitor, then 135 for every GPU,
# 9 for every GPU instance: its own and those of its compute instances.
CAPABILITY_MINORS = {"config": 1, "monitor": 2}
CAPABILITIES_PER_GPU = 135
CAPABILITIES_PER_INSTANCE = 9
FIRST_CAPABILITY = 3


@dataclass
class View:
    """What a container gets: path -> description, so that two views can be compared key by key.

    mounts: target -> `flags kind name`, nodes: path -> `major:minor mode`, links: path -> target, cache: lines
    `SONAME (32|64) path`, rules: `c major:minor access`.
    """

    mounts: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    cache: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)

    def as_mapping(self) -> dict[str, Any]:
        """Return the view for a report."""
        return {
            "mounts": dict(sorted(self.mounts.items())),
            "nodes": dict(sorted(self.nodes.items())),
            "links": dict(sorted(self.links.items())),
            "cache": sorted(self.cache),
            "rules": sorted(self.rules),
        }


class Expander:
    """Expands the expectation of one case with the tables of sets.yaml.

    `nodes` are the machine's nodes as they are, name below /dev -> (major, minor, mode); a machine that cannot have
    real nodes (rootless) thereby decides which numbers are right.
    """

    def __init__(
        self,
        case: Case,
        injected: Injected,
        sets: Mapping[str, Any],
        nodes: Mapping[str, tuple[int, int, int]],
        *,
        real_numbers: bool,
    ) -> None:
        """Keep what the expansion needs; without `real_numbers` the machine's nodes say which numbers are right."""
        self.expected = injected
        self.sets = sets
        self.machine: Mapping[str, Any] = sets["machines"].get(case.machine, {})
        self.driver = str(self.machine.get("driver", ""))
        self.lacking = frozenset(self.machine.get("lacks", ()))
        self.directory = self.expected.library_directory or sets["library-directories"][case.container.image]
        self.nodes = nodes
        self.real_numbers = real_numbers
        self.view = View()
        # Moved target -> the path that an injector asks for.
        self.origins: dict[str, str] = {}

    def expand(self) -> View:
        """Return the whole view."""
        if "lists" in self.machine:
            self._add_listed(self.machine["lists"])
        else:
            self._add_driver()
        for channel in self.expected.imex:
            major = self._major_of("nvidia-caps-imex-channels")
            self._add_node(f"nvidia-caps-imex-channels/channel{channel}", major, channel)
        for name in self.expected.nodes:
            major, _, minor = self.machine["nodes"][name].partition(":")
            self._add_node(name, int(major), int(minor))
        self._amend()
        return self.view

    def _add_driver(self) -> None:
        self._add_proc()
        for name in self._control_nodes():
            self._add_node(name, self._major_of(name), CONTROL_MINORS[name])
        for index in self.expected.gpus:
            self._add_gpu(self.machine["gpus"][index])
        self._add_files()
        self._add_libraries()
        self._add_mig()

    def _add_listed(self, lists: Mapping[str, Any]) -> None:
        """Add what a machine lists itself: the same files for every container, and the nodes of each device."""
        for path in lists["mounts"]:
            self._add_mount("library", path)
        self.view.links.update(lists.get("links", {}))
        if self.expected.cache:
            self.view.cache += lists["cache"]
        for index in self.expected.gpus:
            for name, text in lists["devices"][index].items():
                number, _, mode = text.partition(" ")
                major, minor = map(int, number.split(":"))
                self._add_node(name, major, minor, mode=int(mode or "0666", 8))

    def _capabilities(self) -> list[Mapping[str, Any]]:
        return [self.sets["capabilities"][name] for name in self.expected.capabilities]

    def _flags(self, kind: str) -> str:
        return str(self.sets["flags"][kind])

    def _major_of(self, name: str) -> int:
        majors = self.machine["majors"]
        family = name if name in majors else "nvidia"
        return int(majors["nvidia-uvm"] if name.startswith("nvidia-uvm") else majors[family])

    def _control_nodes(self) -> list[str]:
        names = {name for entry in self._capabilities() for name in entry.get("nodes", ())}
        return ["nvidiactl", *sorted(names)]

    def _add_mount(self, kind: str, target: str, source: str = "") -> None:
        self.view.mounts[target] = f"{self._flags(kind)} {source or target.rsplit('/', 1)[-1]}"

    def _add_node(
        self, name: str, major: int, minor: int, *, mount: bool = True, rule: bool = True, mode: int = 0o666
    ) -> None:
        path = f"/dev/{name}"
        actual_major, actual_minor, mode = self.nodes.get(name, (major, minor, mode))
        if self.real_numbers:
            actual_major, actual_minor = major, minor
        if mount:
            self._add_mount("device", path)
        self.view.nodes[path] = f"{actual_major}:{actual_minor} {mode:04o}"
        text = f"c {actual_major}:{actual_minor} rw"
        # Compute instances can share a GPU instance, and with it a node.
        if rule and text not in self.view.rules:
            self.view.rules.append(text)

    def _add_proc(self) -> None:
        self.view.mounts[PROC] = f"{self._flags('proc')} tmpfs"
        if self.expected.gpus and any(entry.get("profile") for entry in self._capabilities()):
            self.view.mounts[PROFILES] = f"{self._flags('profile')} tmpfs"

    def _add_gpu(self, gpu: Mapping[str, Any]) -> None:
        self._add_node(f"nvidia{gpu['minor']}", self._major_of("nvidia"), int(gpu["minor"]))
        self._add_mount("proc-part", f"{PROC}/gpus/{gpu['bus']}")

    def _add_files(self) -> None:
        for entry in self._capabilities():
            paths = [("binary", f"/usr/bin/{name}") for name in entry.get("binaries", ()) if name not in self.lacking]
            paths += [("socket", path) for path in entry.get("sockets", ()) if path not in self.lacking]
            paths += [("configuration", path) for path in entry.get("configuration", ()) if path not in self.lacking]
            for kind, path in paths:
                self._add_mount(kind, path)
        for name in self.machine.get("firmware", ()):
            self._add_mount("firmware", f"/usr/lib/firmware/nvidia/{self.driver}/{name}")

    def _add_libraries(self) -> None:
        libraries: dict[str, str | None] = {}
        for name in self.expected.capabilities:
            libraries.update(self.sets["capabilities"][name].get("libraries", {}))
            libraries.update(self.machine.get("libraries", {}).get(name, {}))
        words = [(self.directory, 64)] if libraries else []
        if "compat32" in self.expected.capabilities and self.expected.library32_directory:
            words.append((self.expected.library32_directory, 32))
        for directory, bits in words:
            for name, version in libraries.items():
                if name not in self.lacking and (bits == 64 or name in self.machine.get("libraries32", ())):
                    self._add_library(directory, bits, name, version)

    def _add_library(self, directory: str, bits: int, name: str, version: str | None) -> None:
        file_name = f"{name}.so.{self.driver}"
        soname = f"{name}.so.{version}" if version is not None else file_name
        self._add_mount("library", f"{directory}/{file_name}")
        if soname != file_name:
            self.view.links[f"{directory}/{soname}"] = file_name
        for link, target in self.sets["links"].get(name, {}).items():
            self.view.links[f"{directory}/{link}"] = target.replace("<version>", self.driver)
        # As ldconfig: a library is known by its SONAME, and a link for the linker (`.so`) by its own name.
        names = [soname, *(link for link in self.sets["links"].get(name, {}) if link.endswith(".so"))]
        if self.expected.cache:
            self.view.cache += [f"{entry} ({bits}) {directory}/{entry}" for entry in names]

    def _add_mig(self) -> None:
        major = self.machine.get("majors", {}).get("nvidia-caps", 0)
        for word in self.expected.mig:
            gpu, instance, compute = (int(part) for part in word.split("/"))
            first = FIRST_CAPABILITY + CAPABILITIES_PER_GPU * gpu + CAPABILITIES_PER_INSTANCE * instance
            below = f"{PROC}/capabilities/gpu{gpu}/mig/gi{instance}"
            whole = bool(self.expected.mig_management)
            for minor, path in ((first, f"{below}/access"), (first + 1 + compute, f"{below}/ci{compute}/access")):
                self._add_node(f"nvidia-caps/nvidia-cap{minor}", major, minor, mount=not whole, rule=not whole)
                if not whole:
                    self._add_mount("proc-part", path)
        if self.expected.mig_management:
            self._add_mig_management(major)

    def _add_mig_management(self, major: int) -> None:
        # The directories are shown whole, and every capability of the visible GPUs may be opened.
        self._add_mount("proc-part", f"{PROC}/capabilities")
        self._add_mount("device-directory", "/dev/nvidia-caps")
        for word in self.expected.mig_management:
            self.view.rules.append(f"c {major}:{CAPABILITY_MINORS[word]} rw")
        for name, (actual_major, actual_minor, mode) in self.nodes.items():
            if name.startswith("nvidia-caps/"):
                self.view.nodes[f"/dev/{name}"] = f"{actual_major}:{actual_minor} {mode:04o}"
        for index in self.expected.gpus:
            first = FIRST_CAPABILITY + CAPABILITIES_PER_GPU * int(self.machine["gpus"][index]["minor"])
            self.view.rules += [f"c {major}:{first + offset} rw" for offset in range(CAPABILITIES_PER_GPU)]

    def _amend(self) -> None:
        expected, view = self.expected, self.view
        view.mounts.update(expected.also.mounts)
        view.nodes.update(expected.also.nodes)
        view.links.update(expected.also.links)
        view.cache += [self._fill(line) for line in expected.also.cache]
        view.rules += expected.also.rules
        _drop(view.mounts, expected.without.mounts)
        _drop(view.nodes, expected.without.nodes)
        _drop(view.links, expected.without.links)
        view.cache = [line for line in view.cache if line.split(" ")[0] not in expected.without.cache]
        view.rules = [rule for rule in view.rules if rule not in expected.without.rules] if expected.rules else []
        self.origins = {self._moved(path): path for path in view.mounts}
        view.mounts = {self._moved(path): text for path, text in view.mounts.items()}
        view.nodes = {self._moved(path): text for path, text in view.nodes.items()}
        view.links = {self._moved(path): text for path, text in view.links.items()}

    def _moved(self, path: str) -> str:
        for old, new in self.expected.moved.items():
            if path == old or path.startswith(f"{old}/"):
                return new + path[len(old) :]
        return path

    def _fill(self, line: str) -> str:
        return line.replace("<version>", self.driver).replace("<libraries>", self.directory)


def _drop(mapping: dict[str, str], names: Iterable[str]) -> None:
    for name in names:
        for path in [path for path in mapping if path == name or path.rsplit("/", 1)[-1] == name]:
            del mapping[path]
