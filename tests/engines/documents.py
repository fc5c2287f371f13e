"""Documents as people write them, generated: comments, odd spacing and order, any line ends, no final newline."""

import json
import tomllib
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c-d", "e_f", "1", '"x.y"', "'q r'", '"io.containerd.grpc.v1.cri"')
VALUES = (
    "1",
    "-0x1F",
    "3.5e3",
    "true",
    '"plain # no comment"',
    "'lit\\eral'",
    '"""one\n# no comment\n[no.header]\nb = 1\n"""',
    "'''x = [''y'''",
    '""""quoted""""',
    "1979-05-27 07:32:00",
    "[]",
    '["u", "v"]',
    '[\n  "u", # first ]\n  "v",\n]',
    '[\n  "u",\n  "v" # last\n  ]',
    "[ [1, 2], { x = [3] } ]",
    "{}",
    '{ a = 1, b.c = "}" }',
)
COMMENTS = ("# about", "#a = 1", "#   b = 'x' # old", "#[a]", "#", "#'a' = true")
BLANKS = ("", " ", "  ", "\t")


@st.composite
def toml_lines(draw: st.DrawFn) -> str:
    """Return a line or a statement that spans several."""
    kind = draw(st.sampled_from(["pair", "pair", "pair", "header", "comment", "empty", "list"]))
    indent, space = draw(st.sampled_from(BLANKS)), draw(st.sampled_from(BLANKS))
    key = f"{space}.".join(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)))
    trailing = draw(st.sampled_from(["", "  ", " # why", "#why"]))
    if kind == "pair":
        return f"{indent}{key}{space}={space}{draw(st.sampled_from(VALUES))}{trailing}"
    if kind == "header":
        return f"{indent}[{space}{key}{space}]{trailing}"
    if kind == "list":
        return f"{indent}[[{key}]]{trailing}"
    return indent + (draw(st.sampled_from(COMMENTS)) if kind == "comment" else "")


def is_toml(text: str) -> bool:
    """Return whether the text is a TOML document."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


@st.composite
def toml_documents(draw: st.DrawFn, lines: st.SearchStrategy[str] | None = None) -> str:
    """Return a valid TOML document; lines that would break it are left out."""
    text = ""
    for line in draw(st.lists(lines if lines is not None else toml_lines(), max_size=12)):
        if is_toml(text + line + "\n"):
            text += line + "\n"
    if draw(st.booleans()):
        text = text.removesuffix("\n")
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=8,
)
MEMBERS = st.dictionaries(
    st.sampled_from(["log-level", "runtime", "hosts", "default-runtime", 'ü"\\'])
    | st.text(max_size=4).filter(lambda name: name not in {"runtimes", "features"}),
    JSON_VALUES,
    max_size=4,
)
RUNTIMES: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["nvidia", "kata", "runsc"]),
    st.fixed_dictionaries({"path": st.sampled_from(["/x", "nvidia-container-runtime"])}, optional={"args": st.just([])})
    | st.just({"runtimeType": "io.containerd.kata.v2"}),
    max_size=2,
)
FEATURES = st.dictionaries(st.sampled_from(["cdi", "containerd-snapshotter", "buildkit"]), st.booleans(), max_size=2)


@st.composite
def daemon_values(draw: st.DrawFn) -> dict[str, Any]:
    """Return what a daemon.json may hold."""
    values: dict[str, Any] = draw(MEMBERS)
    if draw(st.booleans()):
        values["runtimes"] = draw(RUNTIMES)
    if draw(st.booleans()):
        values["features"] = draw(FEATURES)
    names = draw(st.permutations(sorted(values)))
    return {name: values[name] for name in names}


@st.composite
def daemon_documents(draw: st.DrawFn) -> str:
    """Return a daemon.json in one of many layouts."""
    values = draw(daemon_values())
    if not values and draw(st.booleans()):
        return draw(st.sampled_from(["", "\n", " ", "{}", "{\n}\n", "{ }"]))
    indent = draw(st.sampled_from([None, 1, 2, 4, "\t"]))
    separators = draw(st.sampled_from([None, (",", ":"), (" , ", " : ")])) if indent is None else None
    text = json.dumps(values, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    text = draw(st.sampled_from(["", "\n", "  "])) + text + draw(st.sampled_from(["", "\n", "\n\n"]))
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))
