"""What an engine is asked for a case's container, and what of a case no engine can be asked.

Belongs here: the translation of a case into options that all engines know, and the table of what is not among them, by
the case's own data. Does not belong here: the words of one engine's command line (podman.py, docker.py, containerd.py).
Pure.

`privileged` of a case is the capability CAP_SYS_ADMIN, as in config.json of a low-level runtime (bundle.py); engines'
own --privileged shows all devices of the host and has nothing to be injected.
"""

import posixpath
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nvconform.case import Case

PATCHES = frozenset({"annotations"})
MOUNT_OPTIONS = frozenset({"bind", "rbind", "ro", "rw"})


@dataclass(frozen=True)
class Abilities:
    """What one engine can do, of that in which they differ.

    `hooks` are the stages at which it starts a hook for a container; `identities` says whether one container can have
    a user namespace with any map of ids; `own` are folders that it puts files of its own into, whatever an image has
    there, `covers` those that it mounts a file system at; `imports` says whether it makes an image of a root file
    system first; `cdi` whether it reads CDI specs.
    """

    engine: str
    annotations: str = ""
    hooks: tuple[str, ...] = ()
    identities: bool = False
    own: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    imports: bool = False
    cdi: str = ""


@dataclass(frozen=True)
class Bind:
    """A bind mount."""

    source: str
    target: str
    readonly: bool


@dataclass(frozen=True)
class Options:
    """A container as every engine can make it.

    `devices` are names of CDI devices, `stage` the one of the hook that the engine adds, "" for none.
    """

    environment: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Bind, ...] = ()
    readonly: bool = False
    capabilities: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    stage: str = ""


def translate(case: Case, kind: str, devices: tuple[str, ...] = ()) -> Options:
    """Return the options of a case that `unexpressed` has no objection to."""
    container = case.container
    return Options(
        environment=container.env,
        annotations=dict(container.spec.get("annotations", {})),
        mounts=tuple(
            Bind(str(one["source"]), str(one["destination"]), "rw" not in one.get("options", ()))
            for one in container.mounts
        ),
        readonly=container.readonly,
        capabilities=("SYS_ADMIN",) if container.privileged else (),
        devices=devices,
        stage=container.stage if kind == "hook" else "",
    )


def unexpressed(case: Case, lane: str, kind: str, can: Abilities) -> str:
    """Return why an engine cannot be asked for a case, "" where it can; the reason begins with the case's field."""
    for name, why in _OBJECTIONS.items():
        reason = why(case, lane, kind, can)
        if reason:
            return f"{can.engine} cannot be asked for {name}: {reason}"
    return ""


def _call(case: Case, _lane: str, _kind: str, _can: Abilities) -> str:
    return "the injector is called without a runtime" if case.call is not None else ""


def _lane(_case: Case, lane: str, _kind: str, can: Abilities) -> str:
    if lane == "rootless":
        return "it is run as root here"
    return "" if lane == "root" or can.identities else "it maps the ids of all its containers or of none"


def _environment(case: Case, _lane: str, _kind: str, _can: Abilities) -> str:
    entries = case.container.env
    if any(not entry.partition("=")[0] or "=" not in entry for entry in entries):
        return "an entry without name or equals sign means something else to it"
    twice = [name for name, count in Counter(entry.partition("=")[0] for entry in entries).items() if count > 1]
    return f"of several {twice[0]} it passes one" if twice else ""


def _spec(case: Case, _lane: str, _kind: str, can: Abilities) -> str:
    others = sorted(set(case.container.spec) - PATCHES)
    if others:
        return f"{', '.join(others)} of config.json are its own"
    return can.annotations if case.container.spec else ""


def _mounts(case: Case, _lane: str, _kind: str, _can: Abilities) -> str:
    targets = [str(one["destination"]) for one in case.container.mounts]
    paths = [*targets, *(str(one["source"]) for one in case.container.mounts)]
    if any(path != posixpath.normpath(path) for path in paths):
        return "it tidies paths up"
    if len(set(targets)) < len(targets):
        return "it has one mount at a path"
    kinds = {str(one.get("type", "bind")) for one in case.container.mounts} - {"bind"}
    more = {word for one in case.container.mounts for word in one.get("options", ())} - MOUNT_OPTIONS
    return f"{', '.join(sorted(kinds | more))}" if kinds | more else ""


def _links(case: Case, _lane: str, _kind: str, can: Abilities) -> str:
    taken = [path for path in case.container.links if path in can.own]
    if taken:
        return f"it has files of its own in {taken[0]}"
    hidden = [folder for folder in can.covers if any(path.startswith(f"{folder}/") for path in case.container.links)]
    return f"it mounts a file system of its own at {hidden[0]}" if hidden else ""


def _files(case: Case, _lane: str, _kind: str, can: Abilities) -> str:
    large = [path for path, one in case.container.files.items() if isinstance(one, Mapping) and "megabytes" in one]
    return f"the hole in {large[0]} would be written out in an image" if large and can.imports else ""


def _filesystem(case: Case, _lane: str, _kind: str, _can: Abilities) -> str:
    return "it makes mount points of its own in the root file system" if case.container.filesystem is not None else ""


def _closed(case: Case, _lane: str, _kind: str, _can: Abilities) -> str:
    return "the bundle is its own" if case.container.closed else ""


def _stage(case: Case, _lane: str, kind: str, can: Abilities) -> str:
    if kind != "hook":
        return ""
    if not can.hooks:
        return "it starts no hooks"
    return "" if case.container.stage in can.hooks else f"its hooks are of {', '.join(can.hooks)}"


def _devices(_case: Case, lane: str, kind: str, can: Abilities) -> str:
    if kind != "cdi":
        return ""
    # runc binds a node there from the path that it has inside, and the machine of that lane is a tree elsewhere.
    return can.cdi or ("in a user namespace nodes come from their own path of the host" if lane == "userns" else "")


# Field of a case -> why an engine cannot be asked for what stands there, "" where it can.
_OBJECTIONS: Mapping[str, Callable[[Case, str, str, Abilities], str]] = {
    "call": _call,
    "lane": _lane,
    "container.env": _environment,
    "container.spec": _spec,
    "container.mounts": _mounts,
    "container.files": _files,
    "container.links": _links,
    "container.filesystem": _filesystem,
    "container.closed": _closed,
    "container.stage": _stage,
    "CDI devices": _devices,
}
