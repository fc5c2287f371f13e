"""Engines: podman, docker and containerd as what starts a case's container, instead of runc or crun alone."""
