"""python -m nvinject."""

from nvinject.cli.main import run

run()
