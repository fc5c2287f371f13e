"""The verdict: two views compared both ways, and the laws that hold in every case.

Belongs here: comparing values and saying the differences so that a person can act on them. Does not belong here:
observing or expanding expectations. A verdict is exact: what is missing and what is too much are both failures.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from nvconform.case import Refused
from nvconform.expect import View


def compare_mappings(what: str, expected: Mapping[str, str], seen: Mapping[str, str]) -> list[str]:
    """Return the differences of two mappings, one line each."""
    lines = [f"{what}: {key} is missing (expected {expected[key]})" for key in expected if key not in seen]
    lines += [f"{what}: {key} is too much ({seen[key]})" for key in seen if key not in expected]
    lines += [
        f"{what}: {key} is {seen[key]}, expected {expected[key]}"
        for key in expected
        if key in seen and seen[key] != expected[key]
    ]
    return sorted(lines)


def compare_lists(what: str, expected: Iterable[str], seen: Iterable[str]) -> list[str]:
    """Return the differences of two collections in which order does not count but number does."""
    wanted, got = Counter(expected), Counter(seen)
    lines = [f"{what}: {item} is missing" for item in (wanted - got).elements()]
    lines += [f"{what}: {item} is too much" for item in (got - wanted).elements()]
    return sorted(lines)


def compare_views(expected: View, seen: View, *, rules: bool) -> list[str]:
    """Return the differences of two views of a container; `rules`: whether device rules can be seen here."""
    return [
        *compare_mappings("mounts", expected.mounts, seen.mounts),
        *compare_mappings("nodes", expected.nodes, seen.nodes),
        *compare_mappings("links", expected.links, seen.links),
        *compare_lists("loader cache", expected.cache, seen.cache),
        *(compare_lists("device rules", expected.rules, seen.rules) if rules else []),
    ]


def unexplained_changes(changes: Mapping[str, str], view: View, files: Iterable[str]) -> list[str]:
    """Return changes of the root file system that no expected mount, link or file accounts for.

    A mount needs its mount point and the directories above it; nothing else of the image may change.
    """
    explained = {*view.links, *files}
    for path in (*view.mounts, *view.links, *files):
        parts = path.split("/")
        explained.update("/".join(parts[:count]) for count in range(2, len(parts)))
        explained.add(path)
    lines = [f"root file system: {path} changed to {text}" for path, text in changes.items() if path not in explained]
    filled = [path for path in view.mounts if changes.get(path, "").startswith("file") and " 0 " not in changes[path]]
    return sorted([*lines, *(f"root file system: mount point {path} is no empty file" for path in filled)])


def judge_cache_order(before: list[str], after: list[str], first: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the order of a loader cache.

    Entries of an earlier cache stay, in their order; `first` says which path a SONAME must be found at.
    """
    position = iter(after)
    readable = [entry for entry in before if not entry.startswith("unreadable")]
    lines = []
    if not all(entry in position for entry in readable):
        lines.append("loader cache: entries that were there are gone or in another order")
    for soname, path in first.items():
        found = next((line for line in after if line.split(" ")[0] == soname), "nothing")
        if not found.endswith(f" {path}"):
            lines.append(f"loader cache: {soname} is found as {found}, expected {path}")
    return lines


def judge_message(refused: Refused, message: str, *, prefix: str, lines: int) -> list[str]:
    """Return what is wrong with the text of a refusal; names are compared without regard to case."""
    text = message.lower()
    problems = [
        f"message: does not name {entry!r}: {message.strip()!r}"
        for entry in refused.names
        if not any(word.strip().lower() in text for word in entry.split(" | "))
    ]
    problems += [f"message: says {word!r}: {message.strip()!r}" for word in refused.hides if word.lower() in text]
    if "traceback" in text:
        problems.append(f"message: shows a traceback: {message.strip()!r}")
    if prefix and not any(line.startswith(prefix) for line in message.splitlines()):
        problems.append(f"message: no line begins with {prefix!r}: {message.strip()!r}")
    errors = [line for line in message.splitlines() if line.strip() and "warning" not in line.lower()]
    if lines and len(errors) > lines:
        problems.append(f"message: has {len(errors)} lines, expected {lines}: {message.strip()!r}")
    return problems


def judge_warnings(words: Iterable[str], message: str) -> list[str]:
    """Return which texts a successful run was to say on standard error and did not."""
    text = message.lower()
    return [
        f"warning: nothing names {entry!r}: {message.strip()!r}"
        for entry in words
        if not any(word.strip().lower() in text for word in entry.split(" | "))
    ]
