"""A plan in config.json: who does which operation, how it is written, and that all else stays as it was."""

import copy
from typing import Any

import pytest

from nvinject.core.plan import (
    AllowDevice,
    BindDevice,
    BindFile,
    CreateSymlink,
    LoaderLibrary,
    MaskDirectory,
    Operation,
    Plan,
    UpdateLoaderCache,
)
from nvinject.errors import InputError
from nvinject.render import oci
from nvinject.render.oci import Traits

LIB = "/usr/lib64"
FILE = ("ro", "nosuid", "nodev")
RW = {"allow": True, "type": "c", "access": "rw"}


def bind(target: str, source: str = "") -> BindFile:
    return BindFile(reason="test", source=source or f"/host{target}", target=target, flags=FILE)


def device(name: str, minor: int) -> BindDevice:
    return BindDevice(
        reason="test",
        source=f"/dev/{name}",
        target=f"/dev/{name}",
        major=195,
        minor=minor,
        mode=0o660,
        uid=3,
        gid=44,
        flags=("ro", "nosuid", "noexec"),
    )


def link(name: str, target: str, *, force: bool = True) -> CreateSymlink:
    return CreateSymlink(reason="test", link=f"{LIB}/{name}", target=target, force=force)


PARAMS = MaskDirectory(
    reason="test",
    target="/proc/driver/nvidia",
    mode=0o555,
    files=(("params", "ModifyDeviceFiles: 0\n", 0o444),),
    flags=("nosuid", "nodev", "noexec"),
)
PROFILE = PARAMS.replace(target="/etc/nvidia/profiles", files=(("10-container.conf", "{}\n", 0o444),))
PROC_GPU = bind("/proc/driver/nvidia/gpus/0000:17:00.0")
LIBRARY = bind(f"{LIB}/libcuda.so.1.2")
SONAME = link("libcuda.so.1", "libcuda.so.1.2")
PLAIN = link("libcuda.so", "libcuda.so.1")
CACHE = UpdateLoaderCache(
    reason="test", directories=(LIB,), libraries=(LoaderLibrary(soname="libcuda.so.1", path=f"{LIB}/libcuda.so.1"),)
)
# What the cache holds, once the link for ld(1) is known.
CACHE_AFTER = CACHE.replace(libraries=(*CACHE.libraries, LoaderLibrary(soname="libcuda.so", path=f"{LIB}/libcuda.so")))
MUSL = CACHE.replace(musl_path_file="/etc/ld-musl-x86_64.path")
NODE = device("nvidia0", 0)
RULE = AllowDevice(reason="test", major=195, minor=0, access="rw")
ALL = (PARAMS, PROFILE, LIBRARY, SONAME, PLAIN, NODE, RULE, PROC_GPU, CACHE)

DEFAULT = Traits(writes_rootfs=True)
READ_ONLY = Traits()
MAKES_NODES = DEFAULT.replace(makes_nodes=True)
LATER = (SONAME, PLAIN, CACHE_AFTER)
BOUND_SONAME = LIBRARY.replace(target=f"{LIB}/libcuda.so.1")
BOUND_PLAIN = LIBRARY.replace(target=f"{LIB}/libcuda.so")

# traits, document, rootfs, hook, dropped
DIVISIONS: list[tuple[Traits, tuple[Operation, ...], tuple[Operation, ...], tuple[Operation, ...], int]] = [
    (DEFAULT, (PROFILE, LIBRARY, NODE, RULE), (SONAME, PLAIN, CACHE_AFTER), (), 2),
    (MAKES_NODES, (PROFILE, LIBRARY, NODE, RULE), (SONAME, PLAIN, CACHE_AFTER), (PARAMS, PROC_GPU), 0),
    (READ_ONLY, (PROFILE, LIBRARY, BOUND_SONAME, BOUND_PLAIN, NODE, RULE, CACHE_AFTER), (), (), 2),
    (
        DEFAULT.replace(destinations=("/usr/lib64", "/tmp")),
        (PROFILE, LIBRARY, BOUND_SONAME, BOUND_PLAIN, NODE, RULE),
        (CACHE_AFTER,),
        (),
        2,
    ),
    (DEFAULT.replace(destinations=("/etc",)), (PROFILE, LIBRARY, NODE, RULE, CACHE_AFTER), (SONAME, PLAIN), (), 2),
    (
        DEFAULT.replace(destinations=("/etc/hosts", "/usr/lib")),
        (PROFILE, LIBRARY, NODE, RULE),
        LATER,
        (),
        2,
    ),
]


@pytest.mark.parametrize(("traits", "document", "rootfs", "hook", "dropped"), DIVISIONS)
def test_who_does_which_operation(
    traits: Traits,
    document: tuple[Operation, ...],
    rootfs: tuple[Operation, ...],
    hook: tuple[Operation, ...],
    dropped: int,
) -> None:
    found = oci.divide(Plan(operations=ALL), traits)
    assert (found.document, found.rootfs, found.hook) == (document, rootfs, hook)
    assert len(found.dropped) == dropped


def test_divide_without_a_root_file_system() -> None:
    found = oci.divide(Plan(operations=ALL), DEFAULT, rootfs_known=False)
    assert found.hook == (SONAME, PLAIN, CACHE_AFTER)
    assert found.rootfs == ()


@pytest.mark.parametrize("target", ["elsewhere.so", "/usr/lib/x.so", "libcuda.so.9"])
def test_a_link_to_nothing_mounted_needs_the_hook(target: str) -> None:
    operation = link("libx.so", target)
    assert oci.divide(Plan(operations=(LIBRARY, operation)), READ_ONLY).hook == (operation,)


@pytest.mark.parametrize("target", ["libcuda.so.1.2", f"{LIB}/libcuda.so.1.2", "../lib64/./libcuda.so.1", "libcuda.so"])
def test_links_are_followed_within_the_plan(target: str) -> None:
    operation = link("libx.so", target)
    found = oci.divide(Plan(operations=(LIBRARY, SONAME, PLAIN, operation)), READ_ONLY).document[-1]
    assert found == LIBRARY.replace(target=f"{LIB}/libx.so")


def test_a_circle_of_links_needs_the_hook() -> None:
    circle = (link("a", "b"), link("b", "a"))
    assert oci.divide(Plan(operations=circle), READ_ONLY).hook == circle


def spec(**more: Any) -> dict[str, Any]:
    return {"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "process": {"env": ["A=1"]}, "unknown": [1.5], **more}


# document, nested, what read_traits finds
TRAITS: list[tuple[dict[str, Any], bool, Traits]] = [
    (spec(), False, Traits(writes_rootfs=True)),
    (spec(root={"path": "x", "readonly": True}), False, Traits()),
    (spec(process={"capabilities": {"bounding": ["CAP_MKNOD"]}}), False, Traits(makes_nodes=True, writes_rootfs=True)),
    (spec(process={"capabilities": ["CAP_MKNOD"]}), False, Traits(makes_nodes=True, writes_rootfs=True)),
    (spec(process={"capabilities": {"effective": ["CAP_MKNOD"]}}), False, Traits(writes_rootfs=True)),
    (spec(process={"capabilities": {"bounding": ["CAP_MKNOD"]}}), True, Traits(bind_devices=True, writes_rootfs=True)),
    (
        spec(linux={"namespaces": [{"type": "user"}]}, process={"capabilities": {"bounding": ["CAP_MKNOD"]}}),
        False,
        Traits(bind_devices=True, writes_rootfs=True),
    ),
    (spec(linux={"mountLabel": "system_u:x"}), False, Traits(label="system_u:x", writes_rootfs=True)),
    (
        spec(mounts=[{"destination": "/etc//hosts/"}, {"destination": "/a/../b"}, "junk", {}]),
        False,
        Traits(destinations=("/etc/hosts", "/b", "/"), writes_rootfs=True),
    ),
    (spec(linux=[], mounts={}, process=None, root=None), False, Traits(writes_rootfs=True)),
]


@pytest.mark.parametrize(("document", "nested", "expected"), TRAITS)
def test_what_a_spec_allows(document: dict[str, Any], nested: bool, expected: Traits) -> None:
    found = oci.read_traits(document, nested=nested, write_rootfs=True, add_groups=False)
    assert found.replace(mounts_proc=True) == expected
    assert not oci.read_traits(document, nested=nested, write_rootfs=False).writes_rootfs


# what stands for process.user, modes and groups of the nodes, whether groups are added, the groups afterwards
GROUPS: list[tuple[Any, list[tuple[int, int]], bool, list[int] | None]] = [
    (None, [(0o660, 44)], True, [44]),
    ({"uid": 1000}, [(0o660, 44), (0o640, 7), (0o660, 44)], True, [7, 44]),
    ({"additionalGids": [44, 10]}, [(0o660, 44), (0o660, 7)], True, [44, 10, 7]),
    ({}, [(0o666, 44)], True, None),
    ({}, [(0o660, 0)], True, None),
    ({}, [(0o664, 44)], True, [44]),
    ({}, [(0o660, 44)], False, None),
]


@pytest.mark.parametrize(("user", "nodes", "adds", "expected"), GROUPS)
def test_groups_of_nodes(user: Any, nodes: list[tuple[int, int]], adds: bool, expected: list[int] | None) -> None:
    """A node that not everybody may open is of use to a process that has its group."""
    document = spec(process={"user": user} if user is not None else {})
    devices = tuple(
        device(f"nvmap{minor}", minor).replace(mode=mode, gid=gid) for minor, (mode, gid) in enumerate(nodes)
    )
    traits = oci.read_traits(document, nested=False, write_rootfs=True, add_groups=adds)
    oci.write_plan(document, oci.divide(Plan(operations=devices), traits), traits, "")
    assert (document["process"].get("user") or {}).get("additionalGids") == expected


def test_no_groups_in_user_namespaces() -> None:
    """The host's numbers mean others there."""
    assert not oci.read_traits(spec(), nested=True, write_rootfs=True).adds_groups
    assert not oci.read_traits(
        spec(linux={"namespaces": [{"type": "user"}]}), nested=False, write_rootfs=True
    ).adds_groups


# mounts, whether one of them is a procfs on /proc
PROCFS: list[tuple[list[dict[str, str]], bool]] = [
    ([], False),
    ([{"destination": "/proc/", "type": "proc", "source": "proc"}], True),
    ([{"destination": "/proc", "type": "bind", "source": "/proc"}], True),
    ([{"destination": "/proc", "source": "/proc"}], True),
    ([{"destination": "/proc", "type": "bind", "source": "/tmp"}], False),
    ([{"destination": "/elsewhere", "type": "proc", "source": "proc"}], False),
]


@pytest.mark.parametrize(("mounts", "expected"), PROCFS)
def test_which_mounts_are_a_procfs_of_its_own(mounts: list[dict[str, str]], expected: bool) -> None:
    assert oci.read_traits(spec(mounts=mounts), nested=False, write_rootfs=True).mounts_proc is expected


def written(document: dict[str, Any], traits: Traits, *operations: Operation) -> dict[str, Any]:
    result = copy.deepcopy(document)
    division = oci.divide(Plan(operations=operations), traits)
    oci.write_plan(result, division, traits, "/run/nvinject/id")
    again = copy.deepcopy(result)
    oci.write_plan(again, division, traits, "/run/nvinject/id")
    assert again == result
    return result


def test_what_is_not_touched_stays() -> None:
    before = spec(mounts=[{"destination": "/proc", "type": "proc"}], linux={"maskedPaths": ["/x"]}, annotations={})
    after = written(before, DEFAULT, *ALL)
    for name in ("ociVersion", "root", "process", "unknown", "annotations"):
        assert after[name] == before[name]
    assert after["mounts"][0] == before["mounts"][0]
    assert after["linux"]["maskedPaths"] == ["/x"]
    assert "hooks" not in after


def test_nothing_is_written_for_nothing() -> None:
    before = spec()
    assert written(before, DEFAULT) == {**before, "linux": {}}


def test_devices_and_rules() -> None:
    before = spec(
        linux={
            "devices": [{"path": "/dev/x"}, {"path": "/dev/nvidia0", "major": 1}],
            "resources": {"devices": [{"allow": False, "access": "rwm"}], "memory": {"limit": 1}},
        }
    )
    linux = written(before, DEFAULT, NODE, RULE)["linux"]
    assert linux["devices"] == [
        {"path": "/dev/x"},
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 0o660, "uid": 3, "gid": 44},
    ]
    assert linux["resources"] == {
        "devices": [{"allow": False, "access": "rwm"}, {**RW, "major": 195, "minor": 0}],
        "memory": {"limit": 1},
    }


def test_a_rule_that_is_there_counts_after_a_denial() -> None:
    rule = {**RW, "major": 195, "minor": 0}
    before = spec(linux={"resources": {"devices": [rule, {"allow": False, "access": "rwm"}]}})
    assert written(before, DEFAULT, RULE)["linux"]["resources"]["devices"] == [{"allow": False, "access": "rwm"}, rule]


def test_devices_of_user_namespaces_are_bound() -> None:
    after = written(spec(), DEFAULT.replace(bind_devices=True), NODE, RULE)
    assert "devices" not in after["linux"]
    assert after["mounts"] == [
        {
            "destination": "/dev/nvidia0",
            "type": "bind",
            "source": "/dev/nvidia0",
            "options": ["rbind", "ro", "nosuid", "noexec", "rprivate"],
        }
    ]


def test_mounts_come_after_those_of_the_container_parents_first() -> None:
    before = spec(mounts=[{"destination": "/z/z/z/z"}, {"destination": "/usr//bin/x/", "source": "/old"}])
    after = written(before, DEFAULT, bind("/a/b/c"), bind("/a/b"), bind("/usr/bin/x"), bind("/a/a"))
    assert [mount["destination"] for mount in after["mounts"]] == ["/z/z/z/z", "/a/b", "/a/a", "/a/b/c", "/usr/bin/x"]


def test_generated_files() -> None:
    division = oci.divide(Plan(operations=(PROFILE, CACHE)), READ_ONLY)
    files = oci.generate(division, b"cache")
    assert [(file.path, file.content) for file in files] == [
        ("profiles/10-container.conf", b"{}\n"),
        ("ld.so.cache", b"cache"),
    ]
    mounts = written(spec(), READ_ONLY, PROFILE, CACHE)["mounts"]
    assert [(mount["source"], mount["destination"], mount["options"][1]) for mount in mounts] == [
        ("/run/nvinject/id/ld.so.cache", "/etc/ld.so.cache", "ro"),
        ("/run/nvinject/id/profiles", "/etc/nvidia/profiles", "ro"),
    ]
    assert written(spec(), READ_ONLY, MUSL)["mounts"][0]["destination"] == MUSL.musl_path_file


@pytest.mark.parametrize(
    ("more", "words"),
    [({"mounts": {}}, "mounts"), ({"linux": []}, "linux"), ({"linux": {"devices": {}}}, "devices")],
)
def test_malformed_documents(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        written(spec(**more), DEFAULT, LIBRARY, NODE, RULE)


OURS = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}
TOOLKIT = {"path": "/usr/bin/nvidia-container-toolkit"}
NVINJECT = {"path": "/usr/local/bin/nvinject", "args": ["nvinject", "hook", "prestart"]}
EARLIER = {"path": "/opt/nvinject", "args": ["nvinject", "create-container", "/run/nvinject/id"]}
OTHER = {"path": "/usr/bin/other", "args": ["other"]}
CDI_HOOK = {"path": "/opt/nvinject", "args": ["nvinject", "hook", "create-symlinks"]}
WITHOUT_ARGS = {"path": "/bin/nvinject"}
# hooks before, hooks after, how many went
HOOKS: list[tuple[Any, Any, int]] = [
    (None, None, 0),
    ({}, {}, 0),
    ({"prestart": [OURS]}, None, 1),
    ({"prestart": [OTHER, OURS, NVINJECT]}, {"prestart": [OTHER]}, 2),
    ({"prestart": [TOOLKIT], "poststop": [OURS]}, {"poststop": [OURS]}, 1),
    ({"createRuntime": [OTHER, NVINJECT]}, {"createRuntime": [OTHER]}, 1),
    ({"createContainer": [OTHER, EARLIER, CDI_HOOK]}, {"createContainer": [OTHER, CDI_HOOK]}, 1),
    (
        {"prestart": [OTHER, WITHOUT_ARGS, "junk"]},
        {"prestart": [OTHER, WITHOUT_ARGS, "junk"]},
        0,
    ),
    ("junk", "junk", 0),
    ({"prestart": "junk"}, {"prestart": "junk"}, 0),
]


@pytest.mark.parametrize(("before", "after", "count"), HOOKS)
def test_remove_hooks(before: Any, after: Any, count: int) -> None:
    document = {"hooks": copy.deepcopy(before)} if before is not None else {}
    if before == {}:
        after = None  # an empty object says no more than none
    assert oci.remove_hooks(document, "/opt/nvinject") == count
    assert document.get("hooks") == after


def test_added_hooks_have_an_environment() -> None:
    document: dict[str, Any] = {"hooks": {"createContainer": [OTHER]}}
    oci.add_hook(document, "createContainer", "/opt/nvinject", ("create-container", "/run/x"), oci.HOOK_ENVIRONMENT)
    assert document["hooks"]["createContainer"] == [
        OTHER,
        {
            "path": "/opt/nvinject",
            "args": ["nvinject", "create-container", "/run/x"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        },
    ]
