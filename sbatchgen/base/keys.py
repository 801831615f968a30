"""Keys of jobs and profiles: fields with their help, from which flags, schemas and pages are made."""

import types
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform


def described(help_text: str, default: Any = None, *, make: Any = None, **more: Any) -> Any:
    """Return a field with its help, which is one line. `make` returns a default that records can't share.

    `more` describes the key. A key that is also a flag has a `group` in the help, `common` if the short help
    shows the flag, a `metavar`, and a `flag` if the flag has another name. `values` is the kind of names that
    a profile lists for the key (see `completion.known_names`). `key` is the name in YAML if it differs from
    the name in Python. `extended` marks a list to which `KEY+` adds.
    """
    metadata = {"help": help_text, **more}
    if make:
        return field(default_factory=make, metadata=metadata)
    return field(default=default, metadata=metadata)


def required(help_text: str) -> Any:
    """Return a field that must be set, with its help."""
    return field(metadata={"help": help_text})


if TYPE_CHECKING:
    _Kind = TypeVar("_Kind", bound=type[Any])

    @dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
    def record(kind: _Kind) -> _Kind:
        """Make a class a dataclass with keyword arguments and without a comparison by value."""

else:

    def record(kind: Any) -> Any:
        """Make a class a dataclass. No function of it is compiled, which would take 4 ms at each start."""
        new_class = dataclass(init=False, kw_only=True, eq=False, repr=False)(kind)
        new_class.__init__ = _fill
        return new_class


def make_record(name: str, about: str, keys: list[tuple[str, Any, Any]], module: str, *bases: Any) -> Any:
    """Return a new record class with the docstring `about`. Each key is a name, a type and a field."""
    space = {"__doc__": about, "__module__": module}
    return make_dataclass(name, keys, bases=bases, namespace=space, kw_only=True, eq=False, repr=False)


def _fill(self: Any, **values: Any) -> None:
    """Set the attributes of a record from keyword arguments and defaults, as a dataclass's __init__ does."""
    keys = type(self).__dataclass_fields__
    if unknown := values.keys() - keys.keys():
        raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
    for name, key in keys.items():
        value = values.get(name, key.default)
        if value is MISSING:
            if key.default_factory is MISSING:
                raise TypeError(f"{type(self).__name__} needs {name}")
            value = key.default_factory()
        setattr(self, name, value)
    if hasattr(self, "__post_init__"):
        self.__post_init__()


def keys_of(record: Any) -> dict[str, Field[Any]]:
    """Return the fields of a record by their names in YAML, own fields before the fields of its bases.

    The fields of a base with the attribute KEYS_FIRST count as own fields.
    """
    return _keys_of(record if isinstance(record, type) else type(record))


@cache
def _keys_of(kind: Any) -> dict[str, Field[Any]]:
    """Return what `keys_of` returns for a class."""
    inherited = _inherited(kind)
    for base in kind.__mro__[1:]:
        if "KEYS_FIRST" in vars(base):
            inherited -= {key.name for key in fields(base)} - _inherited(base)
    keys = sorted(fields(kind), key=lambda key: key.name in inherited)
    return {key.metadata.get("key", key.name): key for key in keys}


def _inherited(kind: Any) -> set[str]:
    """Return the names of the fields that a record inherits from its bases."""
    return {key.name for base in kind.__mro__[1:] if is_dataclass(base) for key in fields(base)}


def key_of(record: Any, name: str) -> Field[Any] | None:
    """Return the field of a key; `KEY+` has the field of KEY, the list to which `KEY+` adds."""
    keys = keys_of(record)
    extended = keys.get(name[:-1]) if name.endswith("+") else None
    return extended if extended and extended.metadata.get("extended") else keys.get(name)


def without_none(kind: Any) -> Any:
    """Return the type of an optional value without None; return any other type unchanged."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return next(member for member in get_args(kind) if member is not type(None))
