"""Conformance cases for GPU injectors: data, the runtimes that replay it, and the verdict."""
