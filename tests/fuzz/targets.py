"""What is fuzzed: one function for each parser that reads what a container or an image controls.

Each takes bytes and returns; malformed input is answered by the parser's own error, and anything else that is raised is
a bug. Used by the property tests, and by campaign.py under atheris.
"""

import contextlib
import json
from collections.abc import Callable

from nvinject.core.policy import Policy
from nvinject.core.request import gate_warning, read_request, read_requirements
from nvinject.core.requirements import HostFacts, check, evaluate, parse
from nvinject.core.selection import needs_nvml, select
from nvinject.core.sources import ContainerSpec, might_ask
from nvinject.errors import NvinjectError
from nvinject.formats import cdi
from nvinject.formats.compatnote import read_forward_note
from nvinject.formats.elf import ElfError, read_elf
from nvinject.formats.jsonio import JSONError, loads
from nvinject.formats.ldcache import LoaderCacheError, format_table, parse_cache, parse_table
from nvinject.formats.ldconf import Include, matches, parse_conf
from nvinject.formats.oci import load_document, parse_spec, parse_state, read_annotations, read_leniently

FACTS = (HostFacts(driver="570.133.20", cuda="12.8", arch="9.0", brand="Nvidia"),)


def config_json(data: bytes) -> None:
    """The container's config.json, strictly and leniently, and what is asked for in it."""
    try:
        spec = parse_spec(data, "config.json")
        asked = ContainerSpec(environment=spec.environment, mounts=spec.mounts, privileged=spec.privileged)
        might_ask(asked)
        read_request(asked, Policy(accept_volume_mounts=True))
    except NvinjectError:
        pass
    try:
        document = load_document(data, "config.json")
        read_annotations(document)
        might_ask(ContainerSpec(environment=read_leniently(document).environment, mounts=(), privileged=False))
    except NvinjectError:
        pass


def state(data: bytes) -> None:
    """The state on the hook's standard input."""
    with contextlib.suppress(NvinjectError):
        parse_state(data)


def environment(data: bytes) -> None:
    """The environment of an image: entries separated by zero bytes."""
    entries = tuple(entry.decode("utf-8", "surrogateescape") for entry in data.split(b"\0"))
    for privileged in (False, True):
        spec = ContainerSpec(environment=entries, mounts=(), privileged=privileged)
        for policy in (Policy(), Policy(accept_envvar_unprivileged=False, swarm_resource=("DOCKER_RESOURCE_GPU",))):
            might_ask(spec)
            gate_warning(spec, policy)
            try:
                request = read_request(spec, policy)
                if request is not None:
                    needs_nvml(request.devices)
                    select(request.devices, ())
                read_requirements(spec, policy)
            except NvinjectError:
                continue


def requirements(data: bytes) -> None:
    """An expression of NVIDIA_REQUIRE_*."""
    expression = data.decode("utf-8", "surrogateescape")
    try:
        parse(expression, "NVIDIA_REQUIRE_X")
        evaluate((("NVIDIA_REQUIRE_X", expression),), FACTS)
        check((("NVIDIA_REQUIRE_X", expression),), FACTS)
    except NvinjectError:
        pass


def loader_cache(data: bytes) -> None:
    """An image's ld.so.cache; what could be read can be written again."""
    with contextlib.suppress(LoaderCacheError):
        parse_cache(data)
    try:
        table = parse_table(data)
    except LoaderCacheError:
        return
    try:
        again = format_table(table)
    except LoaderCacheError:
        return
    assert sorted(row[:2] for row in parse_table(again).rows) == sorted(row[:2] for row in table.rows)


def loader_configuration(data: bytes) -> None:
    """An image's ld.so.conf."""
    for statement in parse_conf(data.decode("utf-8", "surrogateescape")):
        if isinstance(statement, Include):
            matches(statement.pattern, "libx.conf")


def elf(data: bytes) -> None:
    """A library of an image."""
    for needed in (False, True):
        with contextlib.suppress(ElfError):
            read_elf(data, needed=needed)
    with contextlib.suppress(ElfError):
        read_forward_note(lambda offset, size: data[offset : offset + size])


def cdi_spec(data: bytes) -> None:
    """A CDI spec file: what is accepted can be written and read again."""
    try:
        spec = cdi.parse(loads(data))
        cdi.check(spec)
    except (cdi.CdiError, JSONError):
        return
    again = cdi.parse(loads(json.dumps(cdi.format_spec(spec))))
    assert cdi.format_spec(again) == cdi.format_spec(spec)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "config": config_json,
    "state": state,
    "environment": environment,
    "requirements": requirements,
    "ldcache": loader_cache,
    "ldconf": loader_configuration,
    "elf": elf,
    "cdi": cdi_spec,
}
