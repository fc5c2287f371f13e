"""python -m nvconform."""

from nvconform.cli import run

run()
