"""Entries of a profile, and the lines of YAML that they become. No value and no comment can break a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import visible

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@%+=-]*(?::[A-Za-z0-9_./@%+=-]+)*")
# Values that YAML 1.1 does not read as texts unless they have quotes, such as no and 1e3.
_YAML_WORDS = re.compile(r"yes|no|on|off|true|false|null|y|n|~|[-+.0-9_eExX]+", re.IGNORECASE)
_MAX_COMMENT = 300  # characters of a comment


@frozen()
class Entry:
    """A key with its value and comments. Without a key, the entry has only comments."""

    key: str
    value: str = ""  # the value as YAML on one line; "" if `items` or `entries` has the value
    comments: Sequence[str] = ()  # lines of comment before the key
    items: Sequence[str] = ()  # the items of a list, as YAML
    entries: Sequence[Entry] = ()  # the entries of a mapping

    @property
    def flow(self) -> str:
        """The value on one line, as YAML."""
        if self.entries:
            return flow_mapping({entry.key: entry.flow for entry in self.entries if entry.key})
        return f"[{', '.join(self.items)}]" if self.items else self.value


def lines(entries: Iterable[Entry], indent: int = 0) -> Iterator[str]:
    """Yield the lines of a mapping, with comments."""
    pad = " " * indent
    for entry in entries:
        yield from (f"{pad}# {comment(text)}" for text in entry.comments)
        if entry.key:
            yield f"{pad}{scalar(entry.key)}: {entry.value}".rstrip()
            yield from lines(entry.entries, indent + 2)
            yield from (f"{pad}  - {item}" for item in entry.items)


def scalar(text: str) -> str:
    """Return a text as YAML. It has quotes only if a reader of YAML might else read another value."""
    if _PLAIN.fullmatch(text) and not _YAML_WORDS.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def flow_mapping(values: Mapping[str, object]) -> str:
    """Return a mapping as YAML on one line; the values are already YAML."""
    return "{" + ", ".join(f"{scalar(key)}: {value}" for key, value in values.items()) + "}"


def flow_list(texts: Iterable[str]) -> str:
    """Return a list of texts as YAML on one line."""
    return f"[{', '.join(map(scalar, texts))}]"


def comment(text: str) -> str:
    """Return a text as a comment: one line, without control characters, of limited length."""
    one_line = " ".join(visible(text).split())
    return one_line if len(one_line) <= _MAX_COMMENT else f"{one_line[:_MAX_COMMENT]} ..."


def is_clean(text: str) -> bool:
    """Return whether a profile can hold a name from Slurm.

    A profile holds no name with U+FFFD, which replaces bytes of Slurm's output that are not UTF-8.
    """
    return bool(text) and text.isprintable() and "\ufffd" not in text and len(text) <= 200
