"""nvinject cdi validate: whether specs fit the schema, this host, and each other.

Belongs here: which files are checked and how findings are told. Does not belong here: the checks, which are in
nvinject.host.speccheck, nvinject.formats.cdi and nvinject.host.registry. Exit code 0: nothing is wrong but warnings; 1:
something is.
"""

import os
import sys

from nvinject.cli.cdioptions import CONFIG, read_options
from nvinject.host.registry import Registry, read_file
from nvinject.host.speccheck import ERROR, WARNING, Finding, HostState, check_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(parsed: "argparse.Namespace") -> int:
    """Check and print; returns 1 if there is an error."""
    from nvinject.cli.cdiread import find_registry

    if parsed.files:
        registry = Registry(directories=(), files=tuple(read_file(path) for path in parsed.files))
    else:
        registry = find_registry(parsed)
    findings = check_registry(registry, find_host_state(parsed))
    if parsed.json:
        import json

        from nvinject.render.text import plain

        document = {
            "files": [file.path for file in registry.files],
            "findings": [plain({}, finding) for finding in findings],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        print_text(registry, findings)
    return 1 if any(finding.severity == ERROR for finding in findings) else 0


def find_host_state(parsed: "argparse.Namespace") -> HostState:
    """Return what specs are compared with; a host whose driver is absent or broken has no version and no devices."""
    from nvinject.cli import servicecheck
    from nvinject.cli.settings import load_settings

    policy, _ = load_settings(read_options(parsed, (CONFIG,), os.environ)["config"])
    return servicecheck.find_host_state(policy)


def check_registry(registry: Registry, host: HostState) -> list[Finding]:
    """Return all findings: of each file, of directories, and of files that contradict each other."""
    found = [finding for file in registry.files for finding in check_file(file, host)]
    found += [Finding(path="", severity=WARNING, where="", problem=problem) for problem in registry.problems]
    for name, paths in registry.conflicts().items():
        found.append(
            Finding(
                path=paths[0],
                severity=ERROR,
                where=".devices",
                problem=f"the device {name} is defined with the same priority by {', '.join(paths[1:])} too",
                remedy="remove one of the files; until then engines know no such device",
            )
        )
    return found


def print_text(registry: Registry, findings: list[Finding]) -> None:
    """Print findings for people."""
    from nvinject.render.text import format_table

    if not registry.files:
        sys.stdout.write(f"there is no spec in {', '.join(registry.directories)}\n")
    rows = [(finding.severity, finding.path, finding.where, finding.problem, finding.remedy) for finding in findings]
    if rows:
        sys.stdout.write(format_table(("severity", "file", "where", "problem", "remedy"), rows))
    faulty = {finding.path for finding in findings}
    for file in registry.files:
        if file.path not in faulty and file.spec is not None:
            sys.stdout.write(f"{file.path} is valid: CDI {file.spec.version}, {len(file.spec.devices)} devices\n")
