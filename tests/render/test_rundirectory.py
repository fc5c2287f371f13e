"""The run directory: made, filled, removed, and swept when a container is gone."""

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from nvinject.errors import ContainerError, InputError
from nvinject.render import rundirectory
from nvinject.render.oci import GeneratedFile
from nvinject.render.rundirectory import RunDirectory, state_directory, sweep
from tests.host.machine import give

FILES = (
    GeneratedFile(path="profiles/10.conf", content=b"{}", mode=0o444),
    GeneratedFile(path="profiles/20.conf", content=b"", mode=0o444),
    GeneratedFile(path="ld.so.cache", content=b"\0" * 100, mode=0o644),
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "config.json").touch()
    return folder


@pytest.fixture
def base(tmp_path: Path) -> str:
    folder = tmp_path / "run"
    folder.mkdir()
    return str(folder)


def made(base: str, bundle: Path, identifier: str = "id", state: str = "") -> RunDirectory:
    directory = RunDirectory(base, identifier)
    directory.make(str(bundle), state)
    return directory


def test_files_and_modes(base: str, bundle: Path) -> None:
    before = os.umask(0o077)
    try:
        directory = made(base, bundle)
        directory.fill(FILES, "")
    finally:
        os.umask(before)
    found = Path(directory.path)
    assert {str(path.relative_to(found)): oct(path.stat().st_mode & 0o777) for path in found.rglob("*")} == {
        "container.json": "0o644",
        "profiles": "0o755",
        "profiles/10.conf": "0o444",
        "profiles/20.conf": "0o444",
        "ld.so.cache": "0o644",
    }
    assert stat.S_IMODE(found.stat().st_mode) == 0o755
    directory.remove()
    directory.remove()
    assert os.listdir(base) == []


def test_what_a_failed_create_left_is_made_anew(base: str, bundle: Path) -> None:
    made(base, bundle).fill(FILES, "")
    assert os.listdir(made(base, bundle).path) == ["container.json"]


def test_what_a_living_container_uses_stays(base: str, bundle: Path, tmp_path: Path) -> None:
    """Another engine, or another namespace of one, may have a container of the same id."""
    state = tmp_path / "runc" / "id"
    first = made(base, bundle, state=str(state))
    first.fill(FILES, "")
    state.mkdir(parents=True)
    with pytest.raises(ContainerError, match=f"is in use by the container of this id whose record is {state}"):
        made(base, bundle, state="/run/other/id")
    assert "ld.so.cache" in os.listdir(first.path)
    state.rmdir()
    assert os.listdir(made(base, bundle, state="/run/other/id").path) == ["container.json"]


def test_a_living_container_does_not_go_because_descriptors_are_short(base: str, bundle: Path) -> None:
    """Whoever cannot open the note does not know whose the folder is."""
    first = made(base, bundle)
    first.fill(FILES, "")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            rundirectory.living(first.path)
        with pytest.raises(ContainerError, match="Too many open files"):
            made(base, bundle)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "ld.so.cache" in os.listdir(first.path)


@pytest.mark.parametrize("identifier", ["", ".", "..", "a/b", "/", "a\0b", "x" * 256, "é" * 128])
def test_an_id_that_is_no_name(base: str, identifier: str) -> None:
    with pytest.raises(InputError, match="cannot be used as a name"):
        RunDirectory(base, identifier)


def test_a_place_that_cannot_be_written(tmp_path: Path, bundle: Path) -> None:
    with pytest.raises(ContainerError, match=f"cannot write {tmp_path}/none/id: No such file"):
        made(f"{tmp_path}/none", bundle)


def test_a_base_is_this_users_alone(tmp_path: Path) -> None:
    """Neither a link nor what others may write to or exchange."""
    base = tmp_path / "user" / "nvinject"
    base.mkdir(parents=True)
    assert rundirectory.is_own(str(base))
    link = tmp_path / "link"
    link.symlink_to(base)
    assert not rundirectory.is_own(str(link))
    assert not rundirectory.is_own(f"{tmp_path}/none")
    for folder, mode, expected in ((base, 0o777, False), (base, 0o711, True), (base.parent, 0o777, False)):
        folder.chmod(mode)
        assert rundirectory.is_own(str(base)) is expected
    base.parent.chmod(0o1777)
    assert rundirectory.is_own(str(base))


@pytest.mark.parametrize("owned", ["nvinject", "."])
def test_a_base_of_another_user_or_in_their_folder_is_not_ours(tmp_path: Path, owned: str) -> None:
    base = tmp_path / "nvinject"
    base.mkdir()
    give(tmp_path / owned, 1000)
    assert not rundirectory.is_own(str(base))


@pytest.mark.parametrize(("place", "expected"), [("", True), ("user", False), ("link", False), ("target", False)])
def test_nobody_else_can_exchange_what_is_on_the_way(tmp_path: Path, place: str, *, expected: bool) -> None:
    """Who owns a folder or a link on the way chooses what its path leads to, at any time."""
    (tmp_path / "target/run/nvinject").mkdir(parents=True)
    (tmp_path / "user").mkdir()
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "user/run").symlink_to("../link/run")
    assert rundirectory.is_own(str(tmp_path / "user/run/nvinject"))
    if place:
        try:
            os.lchown(tmp_path / place, 1000, -1)
        except OSError as error:
            pytest.skip(f"files cannot be given to another user here: {error.strerror}")
    assert rundirectory.is_own(str(tmp_path / "user/run/nvinject")) is expected


def test_a_way_without_end_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert not rundirectory.is_own(str(tmp_path / "a/nvinject"))


LABELLED = ("profiles", "profiles/10.conf", "ld.so.cache")


def test_labels(base: str, bundle: Path) -> None:
    """Where the kernel knows SELinux labels, files and folders carry the container's; elsewhere that is no fault."""
    label = "system_u:object_r:container_file_t:s0:c1,c2"
    directory = made(base, bundle)
    directory.fill(FILES, label)
    try:
        found = [os.getxattr(f"{directory.path}/{name}", "security.selinux") for name in LABELLED]
    except OSError as error:
        if error.errno not in {errno.ENOTSUP, errno.ENODATA}:
            raise
        pytest.skip(f"this file system has no SELinux labels: {error.strerror}")
    assert found == [label.encode() + b"\0"] * len(LABELLED)


def test_links_are_not_followed_when_removing(base: str, bundle: Path, tmp_path: Path) -> None:
    directory = made(base, bundle)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    Path(directory.path, "link").symlink_to(outside)
    directory.remove()
    assert (outside / "file").exists()


LATER = 1e12
# whether bundle and the runtime's record are there, age in seconds, whether the folder is swept
SWEPT = [
    (True, "present", 1000, False),
    (True, "", 1000, False),
    (True, "gone", 1000, True),
    (False, "present", 1000, True),
    (False, "gone", 1000, True),
    (False, "gone", 10, False),
    (True, "gone", 10, False),
]


@pytest.mark.parametrize(("has_bundle", "record", "age", "expected"), SWEPT)
def test_only_old_directories_without_a_bundle_are_swept(
    base: str, bundle: Path, tmp_path: Path, has_bundle: bool, record: str, age: float, expected: bool
) -> None:
    (tmp_path / "present").mkdir()
    directory = made(base, bundle, state=f"{tmp_path}/{record}" if record else "")
    if not has_bundle:
        (bundle / "config.json").unlink()
    now = os.stat(directory.path).st_mtime + age
    assert sweep(base, now) == (("id",) if expected else ())
    assert os.path.exists(directory.path) is not expected


def test_sweep_of_strange_things(base: str) -> None:
    """An interrupted create leaves a folder without its note; a file has no business there."""
    os.mkdir(f"{base}/interrupted")
    os.mkdir(f"{base}/broken")
    Path(base, "broken", "container.json").write_text("{")
    Path(base, "file").touch()
    assert sorted(sweep(base, LATER)) == ["broken", "file", "interrupted"]
    assert sweep(f"{base}/none", LATER) == ()


# runtime, --root, environment, result
STATES: list[tuple[str, str, dict[str, str], str]] = [
    ("/usr/bin/runc", "/run/docker/runc", {}, "/run/docker/runc/id"),
    ("/usr/bin/kata", "", {}, ""),
    ("/usr/bin/kata", "/x", {}, "/x/id"),
]


@pytest.mark.parametrize(("runtime", "root", "environ", "expected"), STATES)
def test_state_directory(runtime: str, root: str, environ: dict[str, str], expected: str) -> None:
    assert state_directory(runtime, root, "id", environ) == expected


def test_where_run_directories_may_lie() -> None:
    assert rundirectory.candidate_bases({}) == ("/run/nvinject",)
    assert rundirectory.candidate_bases({"XDG_RUNTIME_DIR": "relative"}) == ("/run/nvinject",)
    assert rundirectory.candidate_bases({"XDG_RUNTIME_DIR": "/u"}) == ("/run/nvinject", "/u/nvinject")


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_base_that_somebody_else_could_fill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    base = tmp_path / "nvinject"
    if kind == "link":
        base.symlink_to(tmp_path)
    elif kind == "open":
        base.mkdir()
        base.chmod(0o777)
    else:
        base.touch()
    monkeypatch.setattr(rundirectory, "BASE", str(base))
    with pytest.raises(ContainerError, match="cannot make the run directory"):
        rundirectory.choose_base({})
    assert rundirectory.choose_base({"XDG_RUNTIME_DIR": str(tmp_path / "user")}) == f"{tmp_path}/user/nvinject"
