"""python -m nvfakes."""

try:
    from nvfakes.cli import run
except KeyboardInterrupt:  # as soon as it can be told apart from a mistake
    raise SystemExit(130) from None

run()
