"""Reads tables in YAML whose entries explain texts of Slurm or of logs in plain words, with a fix.

The tables are reasons.yaml and refusals.yaml in this folder, and runs/failures.yaml. states.yaml has names of
states in place of texts, and no fixes.
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
    """An entry of a table.

    Its texts have slots: {0} for the first group of the pattern, and slots with names such as {run}.
    """

    means: str  # the meaning in plain words
    fix: str  # what to do


@frozen(kw_only=True)
class TextExplanation(Explanation):
    """The explanation of a text that Slurm prints."""

    text: str  # a regular expression for the whole text


Entry = TypeVar("Entry", bound=TextExplanation)


class Texts(Generic[Entry]):
    """The entries of a table; the first entry that matches a text explains it."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.patterns = tuple((re.compile(entry.text), entry) for entry in entries)

    def find(self, text: str) -> tuple[Entry, Sequence[str]] | None:
        """Return the entry for a whole text, and the groups of its pattern; None if no entry matches."""
        for pattern, entry in self.patterns:
            if match := pattern.fullmatch(text):
                return entry, match.groups("")
        return None


def read_table(file: Path, kind: type[Table]) -> Table:
    """Return a table from its YAML file, as the record `kind`; each file is read once."""
    hashable: Any = kind  # for mypy, which takes no class of a type variable for hashable
    table: Table = _read(file, hashable)
    return table


@functools.cache
def _read(file: Path, kind: Any) -> Any:
    return read_document(file, kind).value


def filled(explanation: Explanation, words: Sequence[str], **slots: object) -> tuple[str, str]:
    """Return the meaning and the fix of an entry, with their slots filled in."""
    return explanation.means.format(*words, **slots), explanation.fix.format(*words, **slots)
