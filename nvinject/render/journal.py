"""A journal of inverse operations: what makes applying a plan all or nothing.

Belongs here: the order of undoing and the list of what could not be undone. Does not belong here: any operation.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Journal:
    """Remembers, for each change, how to take it back and what to do once everything succeeded."""

    def __init__(self) -> None:
        """Begin with nothing done."""
        self._inverses: list[tuple[str, Callable[[], object]]] = []
        self._finishing: list[Callable[[], object]] = []
        self._endings: list[tuple[str, Callable[[], object]]] = []

    def record(self, what: str, inverse: "Callable[[], object]") -> None:
        """Note a change that has been made; `what` names the thing for people."""
        self._inverses.append((what, inverse))

    def before_commit(self, step: "Callable[[], object]") -> None:
        """Note what completes a change after the last operation, such as making a mount read-only; it must succeed."""
        self._finishing.append(step)

    def at_end(self, what: str, ending: "Callable[[], object]") -> None:
        """Note what is tidied up when nothing is undone any more, such as removing a backup."""
        self._endings.append((what, ending))

    def finish(self) -> None:
        """Complete the changes; raises what a step raises, and then everything can still be undone."""
        for step in self._finishing:
            step()
        self._finishing.clear()

    def commit(self) -> "tuple[str, ...]":
        """Run the endings in order; returns those that failed and why. Nothing can be undone afterwards."""
        self._inverses.clear()
        problems = _run(self._endings, attempts=2)
        self._endings.clear()
        return problems

    def undo(self) -> "tuple[str, ...]":
        """Run the inverses, the last one first; returns those that failed and why."""
        problems = _run(self._inverses[::-1])
        self._inverses.clear()
        self._finishing.clear()
        self._endings.clear()
        return problems


def _run(actions: "list[tuple[str, Callable[[], object]]]", attempts: int = 1) -> "tuple[str, ...]":
    problems = []
    for what, action in actions:
        for left in range(attempts)[::-1]:
            try:
                action()
                break
            except OSError as error:
                if not left:
                    problems.append(f"{what} ({error.strerror})")
    return tuple(problems)
