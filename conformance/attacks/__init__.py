"""Attacks that need a tracer or a fuzzer: run with `pytest conformance/attacks`."""
