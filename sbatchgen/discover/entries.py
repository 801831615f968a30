"""Lines of YAML with comments, made so that nothing in a value or a comment can break them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sbatchgen.quoting import visible

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@%+=-]*(?::[A-Za-z0-9_./@%+=-]+)*")
_OTHER = re.compile(r"yes|no|on|off|true|false|null|y|n|~|[-+.0-9_eExX]+", re.IGNORECASE)  # of YAML 1.1
_MOST = 300  # characters of a comment


@dataclass(frozen=True)
class Entry:
    """A key and its value, with comments; only comments if there is no key.

    Attributes:
        key: The key.
        value: YAML on one line, the items of a list with a line each, or entries below the key.
        above: Lines of comment before it.
    """

    key: str
    value: str | Sequence[str] | Sequence[Entry] = ""
    above: Sequence[str] = field(default=())

    @property
    def entries(self) -> list[Entry] | None:
        """What is below the key; None if it has a value."""
        if isinstance(self.value, str) or not self.value:
            return None
        below = [one for one in self.value if isinstance(one, Entry)]
        return below or None

    def written(self, indent: int) -> str:
        """Its value behind the key, with what follows on lines of its own."""
        if isinstance(self.value, str):
            return f" {self.value}"
        pad = " " * (indent + 2)
        if self.entries is not None:
            return "\n" + "\n".join(lines(self.entries, indent + 2))
        return "".join(f"\n{pad}- {item}" for item in self.value)

    @property
    def flow(self) -> str:
        """Its value on one line."""
        if isinstance(self.value, str):
            return self.value
        if self.entries is not None:
            return flow({one.key: one.flow for one in self.entries if one.key})
        return f"[{', '.join(map(str, self.value))}]"


def lines(entries: Iterable[Entry], indent: int = 0) -> Iterator[str]:
    """The lines of a mapping."""
    pad = " " * indent
    for entry in entries:
        yield from (f"{pad}# {comment(text)}" for text in entry.above)
        if entry.key:
            yield f"{pad}{scalar(entry.key)}:{entry.written(indent)}"


def scalar(text: str) -> str:
    """A text as YAML: plain if every reader takes it for this text."""
    if _PLAIN.fullmatch(text) and not _OTHER.fullmatch(text):
        return text
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if char.isprintable() and not "\ud800" <= char <= "\udfff":
        return char
    return f"\\U{ord(char):08x}"


def flow(values: Mapping[str, object]) -> str:
    """A mapping on one line; the values are YAML already."""
    return "{" + ", ".join(f"{scalar(key)}: {value}" for key, value in values.items()) + "}"


def listed(texts: Iterable[str]) -> str:
    """A list of texts on one line."""
    return f"[{', '.join(map(scalar, texts))}]"


def comment(text: str) -> str:
    """A text for a comment: one line, nothing that a terminal would obey, and not too long."""
    one_line = " ".join(visible(text).split())
    return one_line if len(one_line) <= _MOST else f"{one_line[:_MOST]} ..."


def is_clean(text: str) -> bool:
    """Whether a name from Slurm can stand in a profile: bytes that are no UTF-8 have been replaced in it."""
    return bool(text) and text.isprintable() and "\ufffd" not in text and len(text) <= 200
