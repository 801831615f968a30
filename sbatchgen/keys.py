"""A key of a job or a profile: a field with its help, from which flags, schemas and pages are made."""

from dataclasses import Field, field, fields
from typing import Any


def described(help_text: str, default: Any = None, *, make: Any = None, **more: Any) -> Any:
    """Return a field with its help.

    Args:
        help_text: One line.
        default: Its default.
        make: Makes a default that can't be shared.
        more: Of a key that is also a flag: `group` in the help, `common` if the short help shows it,
            `metavar`, and `flag` if it has another name. `key` if YAML has another name than Python.
    """
    metadata = {"help": help_text, **more}
    return (
        field(default_factory=make, metadata=metadata) if make else field(default=default, metadata=metadata)
    )


def required(help_text: str) -> Any:
    """Return a field that must be set, with its help."""
    return field(metadata={"help": help_text})


def keys_of(record: Any) -> dict[str, Field[Any]]:
    """Return the fields of a record by their names in YAML."""
    return {key.metadata.get("key", key.name): key for key in fields(record)}
