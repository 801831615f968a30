"""Fast replacements for frozen dataclasses and for functools.cached_property."""

from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import dataclass_transform

    _Kind = TypeVar("_Kind", bound=type[Any])

    @dataclass_transform(frozen_default=True, field_specifiers=(field,))
    def frozen(*, kw_only: bool = False, slots: bool = False, eq: bool = True) -> Callable[[_Kind], _Kind]:
        """Make a class a dataclass whose fields must not be set again; only mypy checks that."""

else:

    def frozen(*, kw_only: bool = False, slots: bool = False, eq: bool = True) -> Any:
        """Make a class a dataclass. Only its __init__ is compiled, because all six functions take 0.35 ms."""

        def decorate(kind: Any) -> Any:
            if eq:
                kind.__eq__, kind.__hash__ = _equal, _hash
            if "__repr__" not in vars(kind):
                kind.__repr__ = _repr
            return dataclass(eq=False, repr=False, kw_only=kw_only, slots=slots)(kind)

        return decorate


@cache
def _comparison_key(kind: Any) -> Any:
    """Return a function from a value of a class to its compared fields and its class."""
    return attrgetter(*(key.name for key in fields(kind) if key.compare), "__class__")


def _equal(self: Any, other: object) -> Any:
    """Compare two values by their fields; the __eq__ of frozen classes."""
    kind: Any = self.__class__
    return (
        _comparison_key(kind)(self) == _comparison_key(kind)(other)
        if isinstance(other, kind)
        else NotImplemented
    )


def _hash(self: Any) -> int:
    """Return the hash of the compared fields; the __hash__ of frozen classes."""
    return hash(_comparison_key(self.__class__)(self))


def _repr(self: Any) -> str:
    """Return the class with its fields, as a dataclass does."""
    shown = (f"{key.name}={getattr(self, key.name)!r}" for key in fields(self) if key.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


if TYPE_CHECKING:
    from functools import cached_property as cached_property  # noqa: PLC0414 - other modules import the name
else:

    class cached_property:  # noqa: N801 - as in functools
        """A property that is computed at its first use, and is an attribute from then on.

        Two threads may both compute the property, but they get the same value. The property of functools
        takes a lock in Python 3.11, and may give each thread a value of its own from 3.12 on.
        """

        def __init__(self, function: Any) -> None:
            self.function, self.__doc__ = function, function.__doc__
            self.name = function.__name__

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """Return the value, and store it in the instance, where it hides this property."""
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.name, self.function(instance))
