"""Reads the tables that explain texts of Slurm and of logs in plain words, each with a fix.

The tables are reasons.yaml and refusals.yaml in this folder, and runs/failures.yaml. states.yaml is also read
here, but it only has plain words for the names of states.
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
    """The explanation in an entry of a table.

    Its two texts may have slots. {0} stands for the first group of the entry's regular expression, and a name
    such as {run} for a value that the caller knows.
    """

    means: str  # the meaning in plain words
    fix: str  # what the user can do


@frozen(kw_only=True)
class TextExplanation(Explanation):
    """The explanation of a text that Slurm prints."""

    text: str  # a regular expression for the whole text


Entry = TypeVar("Entry", bound=TextExplanation)


class Texts(Generic[Entry]):
    """The entries of a table, which are searched for the text that Slurm has printed."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.patterns = tuple((re.compile(entry.text), entry) for entry in entries)

    def find(self, text: str) -> tuple[Entry, Sequence[str]] | None:
        """Return the first entry that matches the whole text, and the words that its groups have matched.

        Return None if no entry matches.
        """
        for pattern, entry in self.patterns:
            if match := pattern.fullmatch(text):
                return entry, match.groups("")
        return None


def read_table(file: Path, kind: type[Table]) -> Table:
    """Return the table in a YAML file as a record of the class `kind`; each file is read only once."""
    hashable: Any = kind  # mypy does not know that a class is hashable if its type is a type variable
    table: Table = _read_once(file, hashable)
    return table


@functools.cache
def _read_once(file: Path, kind: Any) -> Any:
    return read_document(file, kind).value


def filled_texts(explanation: Explanation, words: Sequence[str], **slots: object) -> tuple[str, str]:
    """Return the meaning and the fix of an explanation, with their slots filled in.

    `words` fill the slots with numbers, and `slots` the slots with names.
    """
    return explanation.means.format(*words, **slots), explanation.fix.format(*words, **slots)
