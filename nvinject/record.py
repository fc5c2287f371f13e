"""Record: immutable, slotted, typed values that cost next to nothing at start-up.

Twenty frozen dataclasses cost 13 to 20 ms to define; twenty Records cost half a millisecond. Belongs here: the base
class. Does not belong here: any concrete value, serialisation, validation.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self, dataclass_transform
else:

    def dataclass_transform(**_):
        """Stand in for typing.dataclass_transform, which only type checkers look at."""
        return lambda decorated: decorated


_MISSING = object()


def _annotated_names(namespace: "dict[str, Any]") -> "list[str]":
    annotations = namespace.get("__annotations__")
    if annotations is None:
        # Python 3.14 keeps annotations lazy (PEP 649): the class body holds a function in their place.
        annotate = namespace.get("__annotate_func__") or namespace.get("__annotate__")
        annotations = {} if annotate is None else _evaluate_lazily(annotate)
    return [name for name in annotations if not name.startswith("__")]


def _evaluate_lazily(annotate: "Any") -> "dict[str, Any]":
    import annotationlib  # type: ignore[import-not-found, unused-ignore]  # Python 3.14 and newer

    found: dict[str, Any] = annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF)
    return found


@dataclass_transform(kw_only_default=True, frozen_default=True)
class RecordType(type):
    """Turns the annotations of a class body into slots and remembers the defaults."""

    _fields: "tuple[str, ...]"
    _defaults: "dict[str, Any]"
    _places: "list[tuple[str, Any, Any]] | None"

    def __new__(mcs, name: str, bases: "tuple[type, ...]", namespace: "dict[str, Any]") -> "RecordType":
        """Build the class with one slot for each annotated name."""
        own = _annotated_names(namespace)
        defaults: dict[str, Any] = {}
        inherited: list[str] = []
        for base in bases:
            if isinstance(base, RecordType):
                inherited += [field for field in base._fields if field not in inherited]
                defaults.update(base._defaults)
        defaults.update({field: namespace.pop(field) for field in own if field in namespace})
        added = [field for field in own if field not in inherited] if inherited else own
        fields = (*inherited, *added)
        namespace.update(
            __slots__=tuple(added), __match_args__=fields, _fields=fields, _defaults=defaults, _places=None
        )
        return super().__new__(mcs, name, bases, namespace)


def _bind(kind: RecordType) -> "list[tuple[str, Any, Any]]":
    """Look up how each field is set, once for a class and not before its first record: most classes get none."""
    defaults = kind._defaults
    places = [(field, getattr(kind, field).__set__, defaults.get(field, _MISSING)) for field in kind._fields]
    kind._places = places
    return places


class Record(metaclass=RecordType):
    """A value with named, typed fields; built by keyword, compared by content, never changed.

    Raises TypeError for a missing or unknown field and AttributeError on assignment.
    """

    def __init__(self, **values: "Any") -> None:
        """Set every field from the keywords, else from the class's defaults."""
        take = values.pop
        kind = type(self)
        for field, put, default in kind._places or _bind(kind):
            value = take(field, default)
            if value is _MISSING:
                raise TypeError(f"{type(self).__name__} needs a value for {field}")
            put(self, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(values))}")

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a Record never changes."""
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: records do not change")

    def __delattr__(self, name: str) -> None:
        """Refuse: a Record never changes."""
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted: records do not change")

    def __eq__(self, other: object) -> bool:
        """Compare kind and every field."""
        if type(other) is not type(self):
            return NotImplemented
        for field in type(self)._fields:  # noqa: SIM110 # all() over a generator takes twice the time
            if getattr(self, field) != getattr(other, field):
                return False
        return True

    def __hash__(self) -> int:
        """Hash kind and every field."""
        kind = type(self)
        return hash((kind, *[getattr(self, field) for field in kind._fields]))

    def __repr__(self) -> str:
        """Show the value as the call that builds it."""
        kind = type(self)
        return f"{kind.__name__}({', '.join(f'{field}={getattr(self, field)!r}' for field in kind._fields)})"

    def replace(self, **changes: "Any") -> "Self":
        """Return a copy with the given fields changed."""
        kind = type(self)
        for field in kind._fields:
            if field not in changes:
                changes[field] = getattr(self, field)
        return kind(**changes)
