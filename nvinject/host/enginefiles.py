"""Container engines of a host: what their configuration says about runtimes, and whether it is older than the daemon.

Belongs here: reading, for a diagnosis. Does not belong here: changing a configuration (nvinject.engines) and judging it
(core.servicediagnosis). Only engines with a configuration or a running daemon are told about.
"""

import os

from nvinject.core.servicediagnosis import Engine
from nvinject.formats.jsonio import JSONError, loads
from nvinject.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

HOOK = "nvidia-container-runtime-hook"
OUR_NAMES = ("nvidia", "nvinject")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNIT_DIRECTORIES = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")


class Kind(Record):
    """An engine: its files (a last component `*` stands for every name), its program, its pid files and units.

    `templates` are files that the configuration is made of when the engine starts. `argument` is a part of the daemon's
    command line, for an engine that another program starts and that has no pid file.
    """

    name: str
    files: tuple[str, ...]
    program: str
    pid_files: tuple[str, ...] = ()
    unit: str = ""
    templates: tuple[str, ...] = ()
    argument: str = ""


def rancher(name: str) -> Kind:
    """Return the containerd that k3s or rke2 has inside: its configuration is generated at each start."""
    directory = f"/var/lib/rancher/{name}/agent/etc/containerd"
    return Kind(
        name=name,
        files=(f"{directory}/config.toml", f"{directory}/config.toml.d/*", f"{directory}/config-v3.toml.d/*"),
        program="containerd",
        templates=(f"{directory}/config.toml.tmpl", f"{directory}/config-v3.toml.tmpl"),
        argument=f"/rancher/{name}/",
    )


KINDS = (
    Kind(
        name="docker",
        files=("/etc/docker/daemon.json",),
        program="dockerd",
        pid_files=("/run/docker.pid", "/var/run/docker.pid"),
        unit="docker.service",
    ),
    Kind(
        name="containerd",
        files=("/etc/containerd/config.toml", "/etc/containerd/conf.d/*"),
        program="containerd",
        pid_files=("/run/containerd/containerd.pid",),
        unit="containerd.service",
    ),
    Kind(
        name="cri-o",
        files=("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"),
        program="crio",
        pid_files=("/run/crio/crio.pid",),
        unit="crio.service",
    ),
    Kind(
        name="podman",
        files=("/etc/containers/containers.conf", "/etc/containers/containers.conf.d/*"),
        program="",
    ),
    rancher("k3s"),
    rancher("rke2"),
)


def find_engines(search_path: str, kinds: tuple[Kind, ...] = KINDS) -> tuple[Engine, ...]:
    """Return the engines of this host; `search_path` stands in where a daemon's PATH cannot be read."""
    found = []
    for kind in kinds:
        files = [path for pattern in kind.files for path in expand(pattern)]
        pid = find_daemon(kind)
        if files or pid:
            found.append(describe(kind, files, pid, search_path))
    return tuple(found)


def expand(pattern: str) -> list[str]:
    """Return the files that a pattern stands for."""
    directory, _, name = pattern.rpartition("/")
    if name != "*":
        return [pattern] if os.path.isfile(pattern) else []
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [f"{directory}/{one}" for one in names if one.endswith((".toml", ".conf"))]


def describe(kind: Kind, files: list[str], pid: int, search_path: str) -> Engine:
    """Return what an engine's files say."""
    documents: list[Any] = []
    engine = Engine(name=kind.name, path=files[0] if files else kind.files[0])
    templates = [path for path in kind.templates if os.path.isfile(path)]
    for path in (*templates, *files):
        changed = os.stat(path).st_mtime
        if changed > engine.changed:
            engine = engine.replace(changed=changed, changed_path=path)
    for path in files:
        try:
            documents.append(read_document(path))
        except (OSError, ValueError) as error:
            return engine.replace(path=path, error=str(error).replace("\n", " "))
    searched = daemon_path(pid) or search_path
    runtimes = tuple(dict.fromkeys(pair for document in documents for pair in find_runtimes(document)))
    ours = [(name, path) for name, path in runtimes if any(word in f"{name} {path}" for word in OUR_NAMES)]
    serves = "runtime" if ours else ""
    if any(has_cdi(document) for document in documents):
        serves = serves or "cdi"
    if find_program(HOOK, searched) and kind.name == "docker":
        serves = serves or "hook"
    return engine.replace(
        runtimes=runtimes,
        broken=tuple((name, path) for name, path in ours if not find_program(path, searched)),
        started=start_time(pid) if pid else 0.0,
        serves=serves,
    )


def read_document(path: str) -> "Any":
    """Return the values of a file; raises OSError and ValueError with line and column."""
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".json"):
        if not data.strip():
            return {}
        try:
            return loads(data)
        except JSONError as error:
            raise ValueError(str(error)) from None
    import tomllib

    return tomllib.loads(data.decode("utf-8-sig"))


def find_runtimes(document: object) -> "Iterator[tuple[str, str]]":
    """Yield name and program of every runtime in a table called `runtimes`, however deep it lies."""
    if not isinstance(document, dict):
        return
    for key, value in document.items():
        if key == "runtimes" and isinstance(value, dict):
            for name, settings in value.items():
                path = program_of(settings)
                if path:
                    yield str(name), path
        else:
            yield from find_runtimes(value)


def program_of(settings: object) -> str:
    """Return a runtime's program as docker, CRI-O, podman or containerd name it, "" where it has none."""
    if isinstance(settings, list):
        existing = [path for path in settings if isinstance(path, str) and os.access(path, os.X_OK)]
        return existing[0] if existing else next((path for path in settings if isinstance(path, str)), "")
    if not isinstance(settings, dict):
        return ""
    options = settings.get("options")
    inner = options.get("BinaryName") if isinstance(options, dict) else None
    return next(
        (str(path) for path in (settings.get("path"), settings.get("runtime_path"), inner) if isinstance(path, str)), ""
    )


def has_cdi(document: object) -> bool:
    """Say whether an engine was told to use CDI."""
    if not isinstance(document, dict):
        return False
    features = document.get("features")
    if isinstance(features, dict) and features.get("cdi") is True:
        return True
    return any((key == "enable_cdi" and value is True) or has_cdi(value) for key, value in document.items())


def find_program(name: str, search_path: str) -> str:
    """Return the path of a program, "" where it cannot be run."""
    candidates = [name] if "/" in name else [f"{entry}/{name}" for entry in search_path.split(":") if entry]
    return next((path for path in candidates if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def find_daemon(kind: Kind) -> int:
    """Return the process id of an engine's daemon, 0 where none runs."""
    if not kind.program:
        return 0
    for path in (*kind.pid_files, *(f"{directory}/{kind.unit}/cgroup.procs" for directory in UNIT_DIRECTORIES)):
        for word in read_text(path).split():
            if word.isdecimal() and read_text(f"/proc/{word}/comm").strip() == kind.program:
                return int(word)
    return find_process(kind.program, kind.argument) if kind.argument else 0


def find_process(program: str, argument: str) -> int:
    """Return the first process of a program that has a text in its command line, 0 where there is none."""
    for word in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int):
        name = read_text(f"/proc/{word}/comm").strip()
        if name == program and argument in read_text(f"/proc/{word}/cmdline"):
            return int(word)
    return 0


def start_time(pid: int) -> float:
    """Return when a process was started, in seconds of the epoch (proc(5): field 22 of stat, btime)."""
    text = read_text(f"/proc/{pid}/stat")
    boot = [line.split()[1] for line in read_text("/proc/stat").splitlines() if line.startswith("btime ")]
    fields = text.rpartition(")")[2].split()
    if not boot or len(fields) < 20:
        return 0.0
    return int(boot[0]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def daemon_path(pid: int) -> str:
    """Return the PATH of a daemon, "" where it cannot be read."""
    for entry in read_text(f"/proc/{pid}/environ").split("\0") if pid else ():
        if entry.startswith("PATH="):
            return entry.removeprefix("PATH=")
    return ""


def read_text(path: str) -> str:
    """Return the text of a file, "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
