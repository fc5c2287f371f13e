"""config.json and config.toml as the suite writes them."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvconform import bundle
from nvconform.case import Container

KEYS = st.from_regex(r"[a-z][a-z-]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
VALUES = st.one_of(st.booleans(), st.integers(-(2**31), 2**31), TEXTS, st.lists(TEXTS, max_size=3))
TABLES = st.dictionaries(KEYS, st.one_of(VALUES, st.dictionaries(KEYS, VALUES, min_size=1, max_size=3)), max_size=4)

# RFC 7396, appendix A.
PATCHES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    (["a", "b"], {"a": "b"}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@given(TABLES)
def test_toml_reads_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(bundle.to_toml(table)) == table


@pytest.mark.parametrize(("target", "patch", "result"), PATCHES)
def test_merge_patches(target: Any, patch: Any, result: Any) -> None:
    assert bundle.merge_patch(target, patch) == result


def spec(container: Container, identities: bundle.Identities | None = None, *, devices: bool = True) -> dict[str, Any]:
    return bundle.generate(container, hooks=[{"path": "/x"}], cgroup="/c", identities=identities, devices=devices)


def test_a_plain_container() -> None:
    made = spec(Container(env=("A=1",)))
    assert made["process"]["env"] == [bundle.CONTAINER_PATH, "A=1"]
    assert "CAP_SYS_ADMIN" not in made["process"]["capabilities"]["bounding"]
    assert made["hooks"] == {"prestart": [{"path": "/x"}]}
    assert made["linux"]["cgroupsPath"] == "/c"
    assert "rlimits" not in made["process"]


def test_a_privileged_container_in_a_user_namespace() -> None:
    made = spec(Container(privileged=True, stage="createRuntime"), ((0, 100000, 65536),))
    assert "CAP_SYS_ADMIN" in made["process"]["capabilities"]["bounding"]
    assert made["linux"]["uidMappings"] == [{"containerID": 0, "hostID": 100000, "size": 65536}]
    assert {"type": "user"} in made["linux"]["namespaces"]
    assert list(made["hooks"]) == ["createRuntime"]


def test_an_ordinary_users_container_has_no_device_rules_and_one_identity() -> None:
    made = spec(Container(), ((0, 1000, 1),), devices=False)
    assert made["linux"]["resources"] == {}
    assert "cgroupsPath" not in made["linux"]
    assert "gid=5" not in made["mounts"][2]["options"]


def test_every_map_of_ids_has_roots_place() -> None:
    from nvconform.stage import USER_NAMESPACES

    for ranges in USER_NAMESPACES.values():
        made = spec(Container(), ranges)
        assert made["linux"]["gidMappings"] == made["linux"]["uidMappings"]
        assert [inside for inside, _, _ in ranges].count(0) == 1


def test_patches_of_a_case_win() -> None:
    assert spec(Container(spec={"hostname": None, "root": {"readonly": True}}))["root"] == {
        "path": "rootfs",
        "readonly": True,
    }
