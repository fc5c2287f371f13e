"""What comes in deploy/: the Debian package, the Kubernetes manifests and the node image, put to use."""
