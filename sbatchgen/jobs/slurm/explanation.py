"""The form of a table of texts in YAML: an entry has what a text means in plain words, and a fix.

The tables are reasons.yaml and refusals.yaml beside this module, and runs/failures.yaml. A state in
states.yaml has a name in place of a text, and no fix.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.inputs.document import read_document

Table = TypeVar("Table")


@frozen(kw_only=True)
class Explanation:
    """An entry of a table. Its means and its fix have slots: {0} is the first group, others have names."""

    means: str
    fix: str


@frozen(kw_only=True)
class TextExplanation(Explanation):
    """The explanation of a text that Slurm prints."""

    text: str  # a regular expression for the whole text


Entry = TypeVar("Entry", bound=TextExplanation)


class Texts(Generic[Entry]):
    """The entries of a table, of which the first that matches a text explains the text."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.patterns = tuple((re.compile(entry.text), entry) for entry in entries)

    def find(self, text: str) -> tuple[Entry, Sequence[str]] | None:
        """Return the entry for a whole text, and the groups of its pattern; None if no entry matches."""
        for pattern, entry in self.patterns:
            if match := pattern.fullmatch(text):
                return entry, match.groups("")
        return None


def read_table(file: Path, kind: type[Table]) -> Table:
    """Return a table of this kind from its YAML file, which is read once."""
    hashable: Any = kind
    table: Table = _read(file, hashable)
    return table


@functools.cache
def _read(file: Path, kind: Any) -> Any:
    return read_document(file, kind).value


def filled(explanation: Explanation, words: Sequence[str], **slots: object) -> tuple[str, str]:
    """Return the means and the fix of an entry with the words of the text in place of the slots."""
    return explanation.means.format(*words, **slots), explanation.fix.format(*words, **slots)
