"""What an injector costs a container start: pieces (pytest-benchmark) and whole processes (python -m benchmarks)."""
