"""What is read about namespaces before they are entered; entering itself is tested with whole plans in tests/render."""

import os

from nvinject.linux import mounts, namespaces


def test_own_namespaces_are_recognised() -> None:
    proc_fd = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)
    try:
        for kind in ("mnt", "user"):
            namespace_fd = namespaces.open_namespace(proc_fd, kind)
            assert namespaces.is_ours(namespace_fd, kind)
            assert not os.get_inheritable(namespace_fd)
            os.close(namespace_fd)
        lines = namespaces.read_id_map(proc_fd, "uid_map")
    finally:
        os.close(proc_fd)
    assert all(len(line) == 3 for line in lines)


def test_mount_flags_are_named_as_in_mount_8() -> None:
    assert mounts.attributes(()) == 0
    assert mounts.attributes(("ro", "nosuid", "nodev", "noexec")) == 0b1111
