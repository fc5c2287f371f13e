"""python -m nvfakes."""

from nvfakes.cli import run

run()
