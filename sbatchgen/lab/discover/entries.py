"""Lines of YAML with comments, made so that nothing in a value or a comment can break them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import visible

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@%+=-]*(?::[A-Za-z0-9_./@%+=-]+)*")
_YAML_WORDS = re.compile(r"yes|no|on|off|true|false|null|y|n|~|[-+.0-9_eExX]+", re.IGNORECASE)  # of YAML 1.1
_MAX_COMMENT = 300  # characters of a comment


@frozen()
class Entry:
    """A key and its value, with comments; only comments if the key is empty."""

    key: str
    value: str = ""  # YAML on one line; or, instead of it, items or entries
    above: Sequence[str] = ()  # lines of comment before it
    items: Sequence[str] = ()  # of a list, with a line each
    entries: Sequence[Entry] = ()  # below the key

    @property
    def flow(self) -> str:
        """Its value on one line."""
        if self.entries:
            return flow({entry.key: entry.flow for entry in self.entries if entry.key})
        return f"[{', '.join(self.items)}]" if self.items else self.value


def lines(entries: Iterable[Entry], indent: int = 0) -> Iterator[str]:
    """Yield the lines of a mapping."""
    pad = " " * indent
    for entry in entries:
        yield from (f"{pad}# {comment(text)}" for text in entry.above)
        if entry.key:
            yield f"{pad}{scalar(entry.key)}: {entry.value}".rstrip()
            yield from lines(entry.entries, indent + 2)
            yield from (f"{pad}  - {item}" for item in entry.items)


def scalar(text: str) -> str:
    """Return a text as YAML: plain if every reader takes it for this text."""
    if _PLAIN.fullmatch(text) and not _YAML_WORDS.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def flow(values: Mapping[str, object]) -> str:
    """Return a mapping on one line; the values are YAML already."""
    return "{" + ", ".join(f"{scalar(key)}: {value}" for key, value in values.items()) + "}"


def listed(texts: Iterable[str]) -> str:
    """Return a list of texts on one line."""
    return f"[{', '.join(map(scalar, texts))}]"


def comment(text: str) -> str:
    """Return a text for a comment: one line, nothing that a terminal would obey, and not too long."""
    one_line = " ".join(visible(text).split())
    return one_line if len(one_line) <= _MAX_COMMENT else f"{one_line[:_MAX_COMMENT]} ..."


def is_clean(text: str) -> bool:
    """Return whether a profile can hold a name from Slurm.

    Bytes that are not UTF-8 have been replaced in it.
    """
    return bool(text) and text.isprintable() and "\ufffd" not in text and len(text) <= 200
