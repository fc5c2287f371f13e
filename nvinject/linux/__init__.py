"""The kernel's interface, one function per call under the kernel's name. Decides nothing."""
