"""Plain text for people: tables that also read well in a log file.

Belongs here: layout of rows and of a plan. Does not belong here: colours and progress (the commands use rich for those)
and any decision about what is shown.
"""

from nvinject.core.plan import Operation, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


WIDEST_COLUMN = 80  # characters; a longer cell pushes the rest of its own row only


def format_table(head: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> str:
    """Return rows in columns under a head, each line ended by a newline; the last column is never padded."""
    widths = [
        max(len(row[column]) for row in (head, *rows) if len(row[column]) <= WIDEST_COLUMN)
        for column in range(len(head))
    ]
    lines = []
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def format_plan(plan: Plan) -> str:
    """Return a plan as a table of operations with their reasons, and the notes below."""
    rows = [
        (str(number), operation.describe(), operation.reason) for number, operation in enumerate(plan.operations, 1)
    ]
    notes = "".join(f"note: {note}\n" for note in plan.notes)
    return format_table(("", "operation", "reason"), rows) + notes


def plan_values(plan: Plan) -> "dict[str, object]":
    """Return a plan as plain values for JSON: every operation with its kind, its fields and its reason."""
    return {"operations": [operation_values(operation) for operation in plan.operations], "notes": list(plan.notes)}


def operation_values(operation: Operation) -> "dict[str, object]":
    """Return one operation as plain values."""
    return plain({"operation": type(operation).__name__}, operation)


def plain(start: "dict[str, object]", record: object) -> "dict[str, object]":
    """Return the fields of a record as values that JSON knows."""
    values = dict(start)
    for field in type(record)._fields:  # type: ignore[attr-defined]
        values[field] = plain_value(getattr(record, field))
    return values


def plain_value(value: object) -> object:
    """Return a field's value with tuples as lists and records as maps."""
    if isinstance(value, tuple):
        return [plain_value(item) for item in value]
    if hasattr(type(value), "_fields"):
        return plain({}, value)
    return value
