"""nvinject doctor: goes through the layers between a GPU and a container, and tells what is wrong and what mends it.

Belongs here: the order of looking, the ways of telling, the exit code. Does not belong here: looking (host and the
check modules beside this one) and rules (core.machinediagnosis, core.servicediagnosis). Reads only.
"""

import os
import sys

from nvinject.core import machinediagnosis, servicediagnosis
from nvinject.core.finding import ERROR, LAYERS, WARNING, Finding, in_order, worst
from nvinject.core.policy import Policy
from nvinject.errors import ConfigurationError, HostError
from nvinject.host.examination import examine

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from nvinject.core.machinediagnosis import Machine

DESCRIPTION = """\
Looks at the GPUs on the PCI bus, the driver and its versions, device nodes, NVML, nvinject's own installation,
container engines, CDI specs, device rules of running containers and, if one is named, at a container's options and its
image's requirements. Tells for each fault what it is, why it matters and what mends it. Changes nothing; needs root
only to see other users' containers and closed files.
"""
EPILOG = """\
examples:
  nvinject doctor
  nvinject doctor --json
  nvinject doctor --container 3f2a                 why does this container see no GPU?
  nvinject doctor --container /run/bundle --layer container --layer image

exit codes:
  0  nothing is wrong, or only notes    8  warnings    9  errors
"""

EXIT_CODES = {ERROR: 9, WARNING: 8}
MARKS = {ERROR: "ERROR", WARNING: "warning", "note": "note"}


def parser() -> "argparse.ArgumentParser":
    """Return the command's options."""
    from nvinject.cli.parsers import new_parser

    options = new_parser("nvinject doctor", DESCRIPTION, EPILOG)
    options.add_argument("--container", metavar="ID", help="also look at this container: its id, bundle or config.json")
    options.add_argument(
        "--layer", action="append", choices=[name for name, _ in LAYERS], help="only this layer; may be repeated"
    )
    options.add_argument("--prefix", metavar="DIR", default="", help="where nvinject is installed (default: found)")
    options.add_argument("--config", metavar="FILE", default="", help="read this config.toml; it must exist")
    options.add_argument("--json", action="store_true", help="print JSON")
    return options


def main(arguments: "list[str]") -> int:
    """Look, tell, and return 0, 8 or 9 by the worst finding."""
    options = parser().parse_args(arguments)
    wanted = tuple(options.layer or [name for name, _ in LAYERS])
    findings, looked = examine_all(options, wanted)
    findings = tuple(finding for finding in in_order(findings) if finding.layer in wanted)
    if options.json:
        print_json(findings, looked)
    else:
        print_text(findings, looked)
    return EXIT_CODES.get(worst(findings), 0)


def examine_all(
    options: "argparse.Namespace", wanted: tuple[str, ...]
) -> "tuple[tuple[Finding, ...], tuple[str, ...]]":
    """Return all findings, and the layers that were looked at."""
    from nvinject.cli import servicecheck

    policy, error, warnings = load(options.config)
    machine, host, looked = look_at_host(policy)
    findings = list(host)
    if "toolkit" in wanted:
        found = servicecheck.find_installation(options.prefix).replace(
            configuration_error=error, configuration_warnings=warnings, configuration_path=options.config
        )
        findings += servicediagnosis.judge_installation(found)
    engines = servicecheck.list_engines() if {"engine", "cdi"} & set(wanted) else ()
    if "engine" in wanted:
        findings += [finding for engine in engines for finding in servicediagnosis.judge_engine(engine)]
    if "cdi" in wanted:
        findings += servicediagnosis.judge_specs(servicecheck.find_spec_faults(policy, engines))
    if "cgroup" in wanted:
        findings += find_access(machine, policy)
    if options.container:
        from nvinject.cli.containercheck import check_container

        findings += check_container(options.container, policy, host_is_well=worst(tuple(findings)) != ERROR)
    judged = {*looked, "toolkit", "engine", "cdi"}
    judged |= {"container", "image"} if options.container else set()
    return tuple(findings), tuple(name for name, _ in LAYERS if name in wanted and name in judged)


def look_at_host(policy: Policy) -> "tuple[Machine, tuple[Finding, ...], tuple[str, ...]]":
    """Return the machine, what is wrong with it, and the layers that could be judged, by the rules of its platform."""
    from nvinject.host.platforms import find_platform

    try:
        platform = find_platform(policy)
    except HostError:
        platform = None  # the faults of roots are told below
    if platform is None:
        machine = examine(policy)
        return machine, machinediagnosis.judge(machine), machinediagnosis.judged_layers(machine)
    from nvinject.core import listingdiagnosis

    host = platform.examine()
    machine = machinediagnosis.Machine(version=platform.version)
    return machine, listingdiagnosis.judge(host), listingdiagnosis.judged_layers(host)


def load(config: str) -> "tuple[Policy, str, tuple[str, ...]]":
    """Return the policy, with the error where it cannot be had (then the defaults), and warnings."""
    from nvinject.cli.settings import load_settings

    try:
        policy, warnings = load_settings(config)
    except ConfigurationError as error:
        return Policy(), str(error), ()
    return policy, "", warnings


def find_access(machine: "Machine", policy: Policy) -> list[Finding]:
    """Return what is wrong with the device rules of running containers."""
    from nvinject.cli.accesscheck import check_containers
    from nvinject.host.nodefacts import read_host_nodes

    if not machine.version:
        return []
    findings: list[Finding] = []
    for access in check_containers(read_host_nodes(policy.roots).majors):
        findings += servicediagnosis.judge_access(access)
    return findings


def print_text(findings: tuple[Finding, ...], looked: tuple[str, ...]) -> None:
    """Print every layer with its findings."""
    for name, words in LAYERS:
        own = [finding for finding in findings if finding.layer == name]
        if not own and name not in looked:
            continue
        sys.stdout.write(f"{words}: {'nothing wrong' if not own else ''}".rstrip() + "\n")
        for finding in own:
            sys.stdout.write(f"  {MARKS[finding.severity]} [{finding.name}] {finding.what}\n")
            sys.stdout.write(f"    why it matters: {finding.why}\n    what mends it:  {finding.remedy}\n")
    if os.geteuid() != 0 and "cgroup" in looked:
        sys.stdout.write("note: without root, only this user's containers were looked at\n")


def print_json(findings: tuple[Finding, ...], looked: tuple[str, ...]) -> None:
    """Print the findings for programs."""
    import json

    from nvinject.render.text import plain

    document = {
        "worst": worst(findings) or None,
        "layers": list(looked),
        "findings": [plain({}, finding) for finding in findings],
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
