"""Engines: edits to the configuration files of docker, containerd, CRI-O and podman, which others own."""
