"""nvinject check: tells whether a host satisfies what an image requires.

Belongs here: where requirements and host values come from, and how verdicts are printed. Does not belong here: reading
or evaluating a requirement (nvinject.core.requirements), the one implementation that the hook uses too.
"""

import os
import sys

from nvinject.errors import InputError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from nvinject.core.requirements import HostFacts, Verdict

DESCRIPTION = """\
Evaluates requirements against this host, or against given values, and says why one fails. Requirements come from an
OCI config.json, an image's configuration, the output of `docker image inspect`, or straight from the command line.
Exit code 0: all hold; 1: one does not.
"""

EPILOG = """\
examples:
  nvinject check 'cuda>=12.8 brand=tesla,driver>=535,driver<536'
  docker image inspect nvidia/cuda | nvinject check -
  nvinject check config.json --driver 535.261.03 --cuda 12.2 --arch 9.0 --brand Nvidia --json

A requirement is a list of alternatives separated by spaces; an alternative is a list of rules separated by commas; a
rule is cuda, driver, arch or brand, then one of = != < <= > >=, then a value.
"""


def parser() -> "argparse.ArgumentParser":
    """Return the command's options."""
    from nvinject.cli.parsers import new_parser

    options = new_parser("nvinject check", DESCRIPTION, EPILOG)
    options.add_argument(
        "source", metavar="SOURCE", help="a JSON file, a bundle, - for standard input, or a requirement"
    )
    options.add_argument("--driver", metavar="VERSION", help="take this driver version instead of the host's")
    options.add_argument("--cuda", metavar="VERSION", help="take this CUDA version of the driver")
    options.add_argument("--arch", metavar="VERSION", help="take this compute capability")
    options.add_argument("--brand", metavar="NAME", help="take this brand")
    options.add_argument("--config", metavar="FILE", default="", help="read this config.toml; it must exist")
    options.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    return options


def main(arguments: "list[str]") -> int:
    """Print the verdicts; return 0 if all requirements hold, else 1."""
    from nvinject.core.requirements import evaluate

    options = parser().parse_args(arguments)
    try:
        requirements = read_requirements(options.source, config=options.config)
        verdicts = evaluate(requirements, find_facts(requirements, options))
    except InputError as error:
        if error.detail:
            sys.stderr.write(error.detail + "\n")
        raise
    if options.json:
        print_json(verdicts)
    else:
        print_text(verdicts)
    return 0 if all(verdict.satisfied for verdict in verdicts) else 1


def read_requirements(source: str, *, config: str) -> "tuple[tuple[str, str], ...]":
    """Return the (variable, expression) pairs of a requirement, a file, a bundle or standard input."""
    looks_like_path = source == "-" or os.path.exists(source) or source.endswith(".json") or source.startswith("/")
    if not looks_like_path:
        return (("requirement", source),)
    from nvinject.cli.settings import load_settings
    from nvinject.core.request import read_requirements
    from nvinject.core.sources import ContainerSpec

    environment = read_environment(source)
    policy, _ = load_settings(config)
    return read_requirements(ContainerSpec(environment=environment, mounts=(), privileged=False), policy)


def read_environment(source: str) -> tuple[str, ...]:
    """Return the environment that a JSON document of one of the known forms holds."""
    from nvinject.cli.hook import read_all
    from nvinject.formats.jsonio import JSONError, loads

    name = (
        "standard input" if source == "-" else os.path.join(source, "config.json") if os.path.isdir(source) else source
    )
    try:
        descriptor = 0 if source == "-" else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        document = loads(read_all(descriptor, name))
    except OSError as error:
        raise InputError(
            f"cannot read {name}: {error.strerror}", "name a JSON file, or - for standard input"
        ) from error
    except JSONError as error:
        raise InputError(
            f"{name} is no JSON: {error}", "give an OCI config.json or `docker image inspect` output"
        ) from error
    found = find_environment(document)
    if found is None:
        raise InputError(f"{name} has no environment", "give an OCI config.json or `docker image inspect` output")
    return found


def find_environment(document: object) -> "tuple[str, ...] | None":
    """Return the environment of a runtime config, an image config, or the first image of an inspection."""
    if isinstance(document, list) and document:
        return find_environment(document[0])
    if not isinstance(document, dict):
        return None
    for outer, inner in (("process", "env"), ("config", "Env"), ("Config", "Env")):
        holder = document.get(outer)
        if isinstance(holder, dict) and inner in holder:
            entries = holder[inner] or []
            if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries):
                return tuple(entries)
    return None


def check_versions(given: "dict[str, str]") -> None:
    """Refuse what can be no version, also where no requirement asks for it; raises UsageError."""
    from nvinject.core.version import parse_version

    for name in ("driver", "cuda", "arch"):
        try:
            parse_version(given[name] or "0")
        except ValueError as error:
            raise UsageError(f"--{name}: {error}", "give one such as 12.8") from error


def find_facts(requirements: "tuple[tuple[str, str], ...]", options: "argparse.Namespace") -> "tuple[HostFacts, ...]":
    """Return the values that rules are compared with: the given ones, else those of this host's GPUs."""
    from nvinject.core.requirements import HostFacts, needed_attributes

    given = {name: getattr(options, name) for name in ("driver", "cuda", "arch", "brand")}
    check_versions(given)
    needed = needed_attributes(requirements)
    if not needed or any(given.values()):
        return (HostFacts(**given),)
    from nvinject.cli.discovery import discover_host
    from nvinject.cli.settings import load_settings
    from nvinject.core.planner import NVML_ATTRIBUTES
    from nvinject.core.requirements import collect_facts

    policy, _ = load_settings(options.config)
    inventory = discover_host(
        policy, ("utility",), os.environ, nvml=bool(needed & NVML_ATTRIBUTES), version="driver" in needed
    )
    return collect_facts(inventory.driver, inventory.gpus)


def print_text(verdicts: "tuple[Verdict, ...]") -> None:
    """Print each requirement with its alternatives, the values compared and the outcome."""
    from nvinject.render.text import format_table

    if not verdicts:
        sys.stdout.write("nothing is required\n")
        return
    rows = []
    for verdict in verdicts:
        rows.append(
            (verdict.variable, verdict.label or "host", "satisfied" if verdict.satisfied else "not satisfied", "")
        )
        for alternative in verdict.alternatives:
            for result in alternative.rules:
                observed = result.observed if result.observed is not None else "not known, so it holds"
                rows.append(("", "", f"  {result.rule.describe()}", f"{'yes' if result.holds else 'no'}: {observed}"))
    sys.stdout.write(format_table(("variable", "GPU", "rule", "holds"), rows))


def print_json(verdicts: "tuple[Verdict, ...]") -> None:
    """Print the verdicts for programs."""
    import json

    from nvinject.render.text import plain

    satisfied = all(verdict.satisfied for verdict in verdicts)
    document = {"satisfied": satisfied, "verdicts": [plain({}, verdict) for verdict in verdicts]}
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
