"""nvinject puts NVIDIA GPUs into Linux containers.

Holds the version and nothing else: every import here would be paid by each container start.
"""

__version__ = "0.1.0"
