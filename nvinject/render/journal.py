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
        self._endings: list[tuple[str, Callable[[], object]]] = []

    def record(self, what: str, inverse: "Callable[[], object]") -> None:
        """Note a change that has been made; `what` names the thing for people."""
        self._inverses.append((what, inverse))

    def at_end(self, what: str, ending: "Callable[[], object]") -> None:
        """Note what has to be done after the last operation, such as removing a backup."""
        self._endings.append((what, ending))

    def commit(self) -> "tuple[str, ...]":
        """Run the endings in order; returns those that failed and why. Nothing can be undone afterwards."""
        self._inverses.clear()
        problems = _run(self._endings)
        self._endings.clear()
        return problems

    def undo(self) -> "tuple[str, ...]":
        """Run the inverses, the last one first; returns those that failed and why."""
        problems = _run(self._inverses[::-1])
        self._inverses.clear()
        self._endings.clear()
        return problems


def _run(actions: "list[tuple[str, Callable[[], object]]]") -> "tuple[str, ...]":
    problems = []
    for what, action in actions:
        try:
            action()
        except OSError as error:
            problems.append(f"{what} ({error.strerror})")
    return tuple(problems)
