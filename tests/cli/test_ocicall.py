"""The scan of an OCI runtime's command line."""

import pytest

from nvinject.cli.ocicall import Call, parse_call
from nvinject.errors import UsageError

# words, what the scan finds besides them
CALLS: list[tuple[str, dict[str, object]]] = [
    ("", {}),
    ("--version", {"version": True}),
    ("-version", {"version": True}),
    ("--version=true", {"version": True}),
    ("create id", {"command": "create", "identifier": "id"}),
    ("create --bundle /b id", {"command": "create", "bundle": "/b", "identifier": "id"}),
    ("create --bundle=/b id", {"command": "create", "bundle": "/b", "identifier": "id"}),
    ("create -b /b id", {"command": "create", "bundle": "/b", "identifier": "id"}),
    ("create -bundle /b id", {"command": "create", "bundle": "/b", "identifier": "id"}),
    ("create -b=/b id", {"command": "create", "bundle": "/b", "identifier": "id"}),
    ("create --bundle /a --bundle /b id", {"command": "create", "bundle": "/b", "identifier": "id"}),
    ("create --bundle create id", {"command": "create", "bundle": "create", "identifier": "id"}),
    ("create --pid-file /p --console-socket /c id", {"command": "create", "identifier": "id"}),
    ("run -d id", {"command": "run", "identifier": "id", "detached": True}),
    ("run id", {"command": "run", "identifier": "id"}),
    ("--root create state id", {"command": "state", "identifier": "id", "root": "create"}),
    ("--root /r delete -f id", {"command": "delete", "identifier": "id", "root": "/r"}),
    ("--root=/r create id", {"command": "create", "identifier": "id", "root": "/r"}),
    ("exec id create", {"command": "exec", "identifier": "create"}),
    ("kill create 9", {"command": "kill", "identifier": "9"}),
    ("--unknown value create id", {"command": "create", "identifier": "id"}),
    ("--debug create id", {"command": "create", "identifier": "id", "debug": True}),
    (
        "--log /l --log-format json create id",
        {"command": "create", "identifier": "id", "log": "/l", "log_format": "json"},
    ),
    ("-l /l -r /r create id", {"command": "create", "identifier": "id", "log": "/l", "root": "/r"}),
    ("--log=/l create id", {"command": "create", "identifier": "id", "log": "/l"}),
    ("delete --bundle", {"command": "delete"}),
    ("list", {"command": "list"}),
]


@pytest.mark.parametrize(("text", "found"), CALLS)
def test_calls_are_read_as_runtimes_read_them(text: str, found: dict[str, object]) -> None:
    words = tuple(text.split())
    assert parse_call(words) == Call(words=words).replace(**found)


def test_words_are_kept_as_they_are() -> None:
    words = ("--root", "/a b\nc", "create", "--bundle", "/x y", "id")
    call = parse_call(words)
    assert (call.words, call.bundle, call.root) == (words, "/x y", "/a b\nc")


@pytest.mark.parametrize("word", ["--bundle", "-b", "-bundle"])
def test_bundle_without_value(word: str) -> None:
    with pytest.raises(UsageError, match="bundle option requires an argument"):
        parse_call(("create", "id", word))
