"""CDI edits as LXC configuration, compared with a golden file that `pytest --update` writes anew."""

import os
from pathlib import Path

import pytest

from nvinject.errors import HostError, InputError
from nvinject.formats.cdi import Edits, HookEdit, MountEdit, NetworkEdit, NodeEdit, RdtEdit
from nvinject.render.lxc import format_edits

GOLDEN = Path(__file__).parent / "golden" / "edits.lxc"
NULL = NodeEdit(path="/dev/gpu0", host_path="/dev/null", permissions="rw")
LINKS = HookEdit(
    hook_name="createContainer",
    path="/usr/bin/nvidia-cdi-hook",
    args=("nvidia-cdi-hook", "create-symlinks", "--link", "it's::/usr/lib/a b"),
    env=("NVIDIA_CTK_DEBUG=false",),
)


def write(edits: Edits) -> tuple[str, ...]:
    """Return the lines, paths taken as they are."""
    return format_edits(edits, str)


def test_every_kind_of_edit(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Rules, nodes, mounts of files, folders and file systems, variables, groups and hooks, parents first."""
    (tmp_path / "a folder").mkdir()
    (tmp_path / "file").touch()
    edits = Edits(
        env=("A=1", 'B="x y" \'', "A=2"),
        device_nodes=(NULL, NodeEdit(path="/dev/zero"), NULL),
        mounts=(
            MountEdit(host_path=f"{tmp_path}/file", container_path="/opt/deep/down/file", options=("ro", "rbind")),
            MountEdit(host_path=f"{tmp_path}/a folder", container_path="/opt/deep", options=("ro", "nosuid", "bind")),
            MountEdit(host_path=f"{tmp_path}/file", container_path="/plain"),
            MountEdit(host_path="tmpfs", container_path="/run/own", options=("size=1m",), type="tmpfs"),
        ),
        hooks=(LINKS, LINKS, LINKS.replace(args=("nvidia-cdi-hook", "noop"), env=None, timeout=5)),
        additional_gids=(44, 0, 44, 109),
    )
    text = "".join(f"{line}\n" for line in write(edits)).replace(str(tmp_path), "/host")
    if request.config.getoption("--update"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_last_of_several_at_one_place_counts(tmp_path: Path) -> None:
    """As in a config.json."""
    (tmp_path / "new").touch()
    old = MountEdit(host_path="/usr", container_path="/opt/x", options=("bind",))
    new = MountEdit(host_path=f"{tmp_path}/new", container_path="/opt/x", options=("bind",))
    assert write(Edits(mounts=(old, new))) == write(Edits(mounts=(new,)))


def test_targets_are_settled() -> None:
    """LXC mounts nothing below a link, so the caller takes the links out."""
    mount = MountEdit(host_path="/usr", container_path="/lib/x", options=("bind",))
    assert format_edits(Edits(mounts=(mount,)), lambda path: f"/usr{path}") == (
        "lxc.mount.entry = /usr usr/lib/x none bind,create=dir 0 0",
    )


REFUSED = [
    (Edits(device_nodes=(NodeEdit(path="/dev/no-such"),)), HostError, "/dev/no-such .* cannot be looked at: No such"),
    (Edits(device_nodes=(NodeEdit(path="/etc/passwd"),)), HostError, "/etc/passwd is no device node of the kind"),
    (Edits(device_nodes=(NULL.replace(type="b"),)), HostError, "/dev/null is no device node of the kind"),
    (Edits(device_nodes=(NULL.replace(major=195),)), HostError, "/dev/null is device 1:3, but .* says 195:0"),
    (Edits(mounts=(MountEdit(host_path="/no/such", container_path="/x"),)), HostError, "mount source /no/such of"),
    (Edits(env=("A=1\n2",)), InputError, "lxc.environment: a line of LXC's configuration cannot hold a line break"),
    (Edits(hooks=(LINKS.replace(args=("x", "a\nb")),)), InputError, "lxc.hook.mount: a line of LXC's configuration"),
    (Edits(hooks=(LINKS.replace(hook_name="prestart"),)), InputError, "no setting for a hook of the stage prestart"),
    (Edits(intel_rdt=RdtEdit(clos_id="x")), InputError, "LXC has no setting for intelRdt"),
    (Edits(net_devices=(NetworkEdit(host_interface_name="a", name="b"),)), InputError, "no setting for netDevices"),
]


@pytest.mark.parametrize(("edits", "kind", "message"), REFUSED)
def test_what_cannot_be_said_is_refused(edits: Edits, kind: type[Exception], message: str) -> None:
    """With the thing's name; nothing is left out silently."""
    with pytest.raises(kind, match=message):
        write(edits)


def test_a_node_without_a_number_takes_the_hosts() -> None:
    """And rwm where the spec gives no permissions."""
    number = os.stat("/dev/null").st_rdev
    rule = f"c {os.major(number)}:{os.minor(number)} rwm"
    assert write(Edits(device_nodes=(NodeEdit(path="/dev/null"),)))[:2] == (
        f"lxc.cgroup.devices.allow = {rule}",
        f"lxc.cgroup2.devices.allow = {rule}",
    )
