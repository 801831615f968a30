"""The header of an sbatch script: whether sbatch accepts the file, its directives, and their words.

The words are not shell: sbatch has its own quoting. Source: Slurm's sbatch, releases 20.11 to
26.05, and the behaviour of sbatch 22.05.8.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from sbatchgen.sbatch.option_table import line_of
from sbatchgen.sbatch.values import BLANKS, RefusedError

_BLANKS = re.compile(f"[{BLANKS}]*")
_COMMAND = re.compile(r"^[ \t\v\f\r]*[^# \t\n\v\f\r]", re.MULTILINE)
_CANDIDATE = re.compile(r"^[ \t]*#[ \t#]*(?:SBATCH|SLURM|PBS|BSUB)[^\n]*", re.MULTILINE | re.IGNORECASE)
_LOOKALIKE = re.compile(r"[ \t]*#+[ \t]*#*[ \t]*SBATCH(?![A-Za-z_])", re.IGNORECASE)
_PLAIN = re.compile(r"""[^ \t\n\v\f\r\\"'#]+(?=[ \t\n\v\f\r#]|\Z)""")
_RUNS = {
    "": re.compile(r"""[^ \t\n\v\f\r\\"'#]+"""),
    '"': re.compile(r'[^\\"]+'),
    "'": re.compile(r"[^\\']+"),
}
_SEPARATOR = re.compile(f"(?:packjob|hetjob)(?=[{BLANKS}]|\\Z)", re.IGNORECASE | re.ASCII)
_FOREIGN_LINES = 100  # sbatch looks for #PBS and #BSUB until it saw more lines than these without a #


class Kind(Enum):
    """The meaning for sbatch of a line that looks like a directive."""

    SBATCH = "directive"
    SLURM = "directive with an old name"  # read, with a complaint
    SEPARATOR = "start of the next component"
    LOOKALIKE = "comment that looks like a directive"  # ` #SBATCH`, `# SBATCH`, `#sbatch`
    DISABLED = "directive switched off"  # `##SBATCH`
    LATE = "directive after the first command"
    PBS = "PBS directive"
    BSUB = "LSF directive"


READ = (Kind.SBATCH, Kind.SLURM, Kind.SEPARATOR)
FOREIGN = (Kind.PBS, Kind.BSUB)  # sbatch translates them, which is not done here
_MAGIC = {Kind.SBATCH: 7, Kind.SLURM: 6, Kind.PBS: 4, Kind.BSUB: 5}  # how long the word is that marks them


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """An argument as sbatch reads it: quotes and escapes are gone. Lines and columns count from 1.

    Attributes:
        text: The argument.
        line: Its line.
        offsets: Where in the text each run of characters that are together in the line starts.
        columns: Where in the line each of these runs starts.
        end: The column after the word.
    """

    text: str
    line: int
    offsets: Sequence[int] = (0,)
    columns: Sequence[int] = (0,)
    end: int = 0

    @property
    def column(self) -> int:
        """Return the column in which it starts."""
        return self.columns[0]

    def span(self, start: int) -> tuple[int, int]:
        """Return the columns of what follows the first `start` characters, the end exclusive."""
        run = bisect_right(self.offsets, start) - 1
        return min(self.columns[run] + start - self.offsets[run], self.end), self.end


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message of sbatch that refuses a script.

    Attributes:
        text: Its text; "" where sbatch only prints a help text.
        line: The line that it is about; 0 for no single one.
        column: Where in the line.
    """

    text: str
    line: int = 0
    column: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Directive:
    """A line of the script that sbatch reads as a directive, or that looks like one.

    Attributes:
        kind: Its meaning for sbatch.
        text: The line.
        line: Its number.
        column: The column of the #.
        component: Its component of a heterogeneous job, from 0; -1 where sbatch reads nothing, and for #PBS
            and #BSUB, which count in each.
        words: Its arguments; empty where sbatch reads nothing.
        fault: The error that ends the reading in this line, such as an open quote.
    """

    kind: Kind
    text: str
    line: int
    column: int
    component: int = -1
    words: tuple[Token, ...] = ()
    fault: Message | None = None


def check_file(script: bytes) -> None:
    """Refuse a file that is not a script for sbatch.

    Raises:
        RefusedError: It is not one.
    """
    if not script:
        raise RefusedError("Batch script is empty!", 1, 1)
    if not script.partition(b"\0")[0].strip(BLANKS.encode()):
        raise RefusedError("Batch script contains only whitespace!", 1, 1)
    if not script.startswith(b"#!"):
        raise RefusedError("This does not look like a batch script", 1, 1)
    if b"\0" in script:
        raise RefusedError("The Slurm controller does not allow scripts that contain a NULL character", 1, 1)
    if b"\r\n" in script:
        raise RefusedError("Batch script contains DOS line breaks", 1, 1)


def directives(text: str, *, slurm: str) -> Iterator[Directive]:
    """Yield the directives of a script, and the lines that look like one, in order."""
    command = _COMMAND.search(text)
    end = command.start() if command else len(text)
    spaces = line_of(slurm) >= "24.05"  # whether `\ ` is a space within a word: before, it ended the word
    component, number, comments, at = 0, 1, 0, 0
    for match in _CANDIDATE.finditer(text):
        line = match[0]
        number += text.count("\n", at, match.start())
        comments += text.count("\n#", max(at - 1, 0), match.start())
        at = match.start()
        if line.startswith(("#PBS", "#BSUB")):
            kind = Kind.PBS if line.startswith("#P") else Kind.BSUB
            if number - comments - 2 <= _FOREIGN_LINES:
                yield _read(line, number, -1, kind, spaces=spaces)
        elif line.startswith(("#SBATCH", "#SLURM")):
            if at > end:
                yield Directive(kind=Kind.LATE, text=line, line=number, column=1)
                continue
            kind = Kind.SBATCH if line.startswith("#SB") else Kind.SLURM
            separator = _SEPARATOR.match(line, _skip_blanks(line, _MAGIC[kind]))
            component += separator is not None
            read = _read(line, number, component, kind, spaces=spaces)
            yield replace(read, kind=Kind.SEPARATOR) if separator else read
        elif _LOOKALIKE.match(line):
            yield _lookalike(line, number)


def _lookalike(line: str, number: int) -> Directive:
    column = line.index("#") + 1
    kind = Kind.DISABLED if line[column - 1 :].startswith("##") else Kind.LOOKALIKE
    return Directive(kind=kind, text=line, line=number, column=column)


def _read(line: str, number: int, component: int, kind: Kind, *, spaces: bool) -> Directive:
    at = _MAGIC[kind]
    if component >= 0:
        at = _skip_blanks(line, at)
    words: list[Token] = []
    fault = None
    while True:
        start = _skip_blanks(line, at)
        if _SEPARATOR.match(line, start):
            break
        if line.startswith(":", start):
            fault = Message(text=f"Unexpected `:` in [{line[at:]}]", line=number, column=start + 1)
            break
        word, end, quote = _word(line, start, number, spaces=spaces)
        if quote:
            fault = Message(text=f"Unmatched `{quote}` in [{line[at:]}]", line=number, column=start + 1)
            break
        if word is None:
            break
        words.append(word)
        at = end
    return Directive(
        kind=kind,
        text=line,
        line=number,
        column=1,
        component=component,
        words=tuple(words),
        fault=fault,
    )


def _word(line: str, start: int, number: int, *, spaces: bool) -> tuple[Token | None, int, str]:
    """Return the word at `start`, where it ends, and the quote that is left open.

    There is no word at the end, at a comment, and in empty quotes.
    """
    if plain := _PLAIN.match(line, start):
        word = Token(text=plain[0], line=number, columns=(start + 1,), end=plain.end() + 1)
        return word, plain.end(), ""
    return _quoted_word(line, start, number, spaces=spaces)


def _quoted_word(line: str, start: int, number: int, *, spaces: bool) -> tuple[Token | None, int, str]:
    at, quote, length = start, "", 0
    runs: list[str] = []
    offsets, columns = array("Q"), array("Q")
    while at < len(line):
        character = line[at]
        if not quote and character in BLANKS + "#":
            break
        if character == quote:
            quote = ""
            at += 1
            continue
        if not quote and character in "\"'":
            quote = character
            at += 1
            continue
        if character == "\\":
            at += 1
            run = line[at : at + 1]
            if not run or (not quote and run in BLANKS and not (spaces and run == " ")):
                break
        else:
            match = _RUNS[quote].match(line, at)
            run = match[0] if match else ""
        runs.append(run)
        offsets.append(length)
        columns.append(at + 1)
        length += len(run)
        at += len(run)
    if not runs:
        return None, at, quote
    return (
        Token(text="".join(runs), line=number, offsets=offsets, columns=columns, end=at + 1),
        at,
        quote,
    )


def _skip_blanks(line: str, at: int) -> int:
    match = _BLANKS.match(line, at)
    return match.end() if match else at
