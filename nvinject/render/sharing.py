"""Keeping what is mounted in a container from appearing on the host.

A runtime makes the container's mounts shared where a volume asks for it (docker run -v A:B:shared, a Kubernetes volume
with Bidirectional propagation); a mount below would appear on the host too, and stay there when the container is gone.
Belongs here: finding the shared mounts and cutting them off. Does not belong here: mounting.
"""

from nvinject import leanos as os
from nvinject.errors import ContainerError
from nvinject.formats.mountinfo import parse_mountinfo
from nvinject.linux import inroot, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvinject.formats.mountinfo import Mount


class SharedMounts:
    """The shared mounts of the mount namespace that this process has entered, until they are cut off."""

    def __init__(self, proc_fd: int, descriptors_fd: int) -> None:
        """Read the mounts of the container's process."""
        self._descriptors_fd = descriptors_fd
        with os.fdopen(os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd), "rb") as file:
            lines = os.fsdecode(file.read()).splitlines()
        # A host has hundreds of mounts and a container hardly ever a shared one: only candidates are parsed.
        candidates = parse_mountinfo("\n".join(line for line in lines if " shared:" in line))
        self._shared: dict[int, Mount] = {
            mount.mount_id: mount for mount in candidates if any(tag.startswith("shared:") for tag in mount.optional)
        }

    def stop(self, target_fd: int, path: str) -> None:
        """Make the mount that the target lies on a slave: the host's mounts still arrive there, ours do not leave."""
        mount = self._shared.get(mounts.mount_id(target_fd)) if self._shared else None
        if mount is None:
            return
        mount_fd = self._open(mount)
        try:
            if mounts.mount_id(mount_fd) != mount.mount_id:
                raise ContainerError(
                    f"{path} lies on a shared mount that another one hides ({mount.mount_point})",
                    "mount the volume without shared propagation",
                )
            mounts.stop_sharing(mount_fd, self._descriptors_fd)
        finally:
            os.close(mount_fd)
        del self._shared[mount.mount_id]

    def _open(self, mount: "Mount") -> int:
        # The text of a mount point is no safe path; what it leads to is compared by its id.
        namespace_fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return inroot.open_in_root(namespace_fd, mount.mount_point, os.O_PATH | os.O_NOFOLLOW)
        finally:
            os.close(namespace_fd)
