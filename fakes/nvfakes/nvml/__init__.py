"""The fake libnvidia-ml.so.1 and its nvidia-smi: C sources, their build, and the machine's data inside the library."""
