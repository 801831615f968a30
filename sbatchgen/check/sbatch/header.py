"""The header of a script as sbatch reads it: the directives and their words, and files that sbatch refuses.

sbatch has rules of quoting that differ from those of a shell. Source: Slurm's sbatch, releases 20.11 to
26.05, and the behaviour of sbatch 22.05.8.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.option_table import major_release
from sbatchgen.check.sbatch.values import BLANKS, Message, RefusedError

_BLANKS = re.compile(f"[{BLANKS}]*")
_COMMAND = re.compile(r"^[ \t\v\f\r]*[^# \t\n\v\f\r]", re.MULTILINE)  # the start of a line, not of a comment
# A line that may be a directive. The pattern starts with the literal #, so that the search is fast. Its
# repetition is bounded, as each # of a long line may start a match.
_CANDIDATE = re.compile(r"#(?<!##)[ \t#]{0,99}(?:SBATCH|SLURM|PBS|BSUB)[^\n]*", re.IGNORECASE)
# A line that sbatch ignores, such as ` #SBATCH`, `# SBATCH` and `##SBATCH`.
_LOOKALIKE = re.compile(r"[ \t]*#+[ \t]*#*[ \t]*SBATCH(?![A-Za-z_])", re.IGNORECASE)
_DISABLED = re.compile(r"##|#[ \t]+##")  # the start of `##SBATCH` and `# ##SBATCH`
# A piece of a word: plain characters, an escaped character, or a quoted string.
_PIECE = r"""[^ \t\v\f\r\\"'#]+|\\[^ \t\v\f\r]|"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'"""
# Before 24.05, a backslash and a space end a word. Since 24.05 they are a space in the word.
_WORDS = {  # whether a word may hold an escaped space -> the pattern of a word
    False: re.compile(rf"(?:{_PIECE})*"),
    True: re.compile(rf"(?:{_PIECE}|\\ )*"),
}
_PIECES = re.compile(rf"{_PIECE}|\\ ")
_QUOTING = re.compile(r"""["'\\#]""")  # a word without these characters stays as it is
_ESCAPE = re.compile(r"\\(.)")
# The word in `#SBATCH hetjob`, which starts the next component of a heterogeneous job.
_SEPARATOR = re.compile(f"(?:packjob|hetjob)(?=[{BLANKS}]|\\Z)", re.IGNORECASE | re.ASCII)
# sbatch reads a #PBS or #BSUB line only if at most this number of lines before it begin without a #.
_FOREIGN_LINE_LIMIT = 100

_DIRECTIVE_OF_SLURM = re.compile(r"^[ \t]*#[ \t#]*(?:SBATCH|SLURM)\b", re.MULTILINE | re.IGNORECASE)
# The directives of other schedulers. Sources: qsub(1) of PBS, of Grid Engine and of Cobalt, bsub(1) of LSF,
# RFC 36 of Flux.
_SCHEDULERS = {
    "PBS": re.compile(r"^#PBS[ \t]+-.*", re.MULTILINE),
    "LSF": re.compile(r"^#BSUB[ \t]+-.*", re.MULTILINE),
    "Flux": re.compile(r"^#+[ \t]*(?:flux|FLUX):[ \t]*-.*", re.MULTILINE),
    "Grid Engine": re.compile(r"^#\$[ \t]+-[a-zA-Z].*", re.MULTILINE),
    "Cobalt": re.compile(r"^#COBALT[ \t]+-.*", re.MULTILINE),
}


class Kind(Enum):
    """The kinds of lines that are directives for sbatch, or look like directives."""

    SBATCH = "directive"
    SEPARATOR = "start of the next component"
    LOOKALIKE = "comment that looks like a directive"  # ` #SBATCH`, `# SBATCH`, `#sbatch`
    DISABLED = "directive switched off"  # `##SBATCH`
    LATE = "directive after the first command"
    PBS = "PBS directive"
    BSUB = "LSF directive"


READ_KINDS = (Kind.SBATCH, Kind.SEPARATOR)  # lines that sbatch reads
FOREIGN_KINDS = (Kind.PBS, Kind.BSUB)  # sbatch translates these lines; this module does not
_MARKS = {"#SBATCH": Kind.SBATCH, "#SLURM": Kind.SBATCH, "#PBS": Kind.PBS, "#BSUB": Kind.BSUB}


@frozen(kw_only=True, slots=True)
class Token:
    """A word of a directive without its quotes and escapes. Lines and columns count from 1."""

    text: str
    line: int
    column: int  # the column where the word starts
    end: int  # the column after the word

    def span(self, start: int) -> tuple[int, int]:
        """Return the first column of the word without its first `start` characters, and the column after it.

        For a quoted word the result is its whole span, as the columns of its characters are not known.
        """
        is_plain = self.end - self.column == len(self.text)
        return self.column + start * is_plain, self.end


@frozen(kw_only=True, slots=True)
class Directive:
    """A line of the script that is a directive, or looks like a directive."""

    kind: Kind  # the meaning of the line for sbatch
    text: str
    line: int  # the number of the line
    column: int  # the column of the #
    # The number of the component of a heterogeneous job, from 0. It is -1 for a line that sbatch ignores, and
    # for #PBS and #BSUB lines, which are for all components.
    component: int = -1
    words: tuple[Token, ...] = ()  # empty for a line that sbatch ignores
    fault: Message | None = None  # the error for which sbatch refuses the line, such as an open quote


class OtherScheduler(NamedTuple):
    """A scheduler other than Slurm, and its directives in a script."""

    name: str  # such as PBS
    lines: tuple[int, ...]  # the numbers of the lines with directives
    mark: str  # the start of each directive, such as #PBS


def check_file(script: bytes) -> None:
    """Raise RefusedError for a file that sbatch does not accept as a script."""
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


def other_scheduler(text: str) -> OtherScheduler | None:
    """Return the scheduler, other than Slurm, for which a script has directives before its first command.

    None without such directives, or if a line looks like a directive of Slurm.
    """
    if _DIRECTIVE_OF_SLURM.search(text):
        return None
    command = _COMMAND.search(text)
    for name, pattern in _SCHEDULERS.items():
        if matches := [*pattern.finditer(text, 0, command.start() if command else len(text))]:
            lines = tuple(text.count("\n", 0, match.start()) + 1 for match in matches)
            return OtherScheduler(name, lines, matches[0][0].partition("-")[0].rstrip())
    return None


def directives(text: str, *, slurm: str) -> tuple[Directive, ...]:
    """Return the lines of a script that are directives or look like directives, as a release reads them."""
    # Without an escaped space in the text, all releases read the same words, and share one cached result.
    takes_escaped_space = major_release(slurm) >= "24.05" or "\\ " not in text
    return _cached_directives(text, takes_escaped_space=takes_escaped_space)


@lru_cache(maxsize=2)  # rules read the same script for several releases
def _cached_directives(text: str, *, takes_escaped_space: bool) -> tuple[Directive, ...]:
    """Return the result of `directives`; `takes_escaped_space` says how to read words, as in _WORDS."""
    return tuple(_find_directives(text, takes_escaped_space=takes_escaped_space))


def _find_directives(text: str, *, takes_escaped_space: bool) -> Iterator[Directive]:
    """Yield the lines that are directives or look like directives."""
    command = _COMMAND.search(text)
    first_command = command.start() if command else len(text)
    component, number = 0, 1  # the numbers of the current component and the current line
    comments, at = 0, 0  # the number of earlier lines that begin with #, and the offset of the current line
    for match in _CANDIDATE.finditer(text):
        start = text.rfind("\n", at, match.start()) + 1 or at
        line = text[start : match.end()]
        if line[: match.start() - start].strip(" \t"):
            continue  # a comment after a command
        number += text.count("\n", at, start)
        comments += text.count("\n#", max(at - 1, 0), start)
        at = start
        mark = next((mark for mark in _MARKS if line.startswith(mark)), "")
        kind = _MARKS.get(mark)
        if kind in FOREIGN_KINDS:
            if (
                number - comments - 2 <= _FOREIGN_LINE_LIMIT
            ):  # sbatch counts neither the first line nor this line
                yield _parse_directive(line, number, -1, mark, takes_escaped_space=takes_escaped_space)
        elif kind and at > first_command:
            yield Directive(kind=Kind.LATE, text=line, line=number, column=1)
        elif kind:
            separator = _SEPARATOR.match(line, _skip_blanks(line, len(mark)))
            component += separator is not None
            directive = _parse_directive(
                line, number, component, mark, takes_escaped_space=takes_escaped_space
            )
            yield replace(directive, kind=Kind.SEPARATOR) if separator else directive
        elif _LOOKALIKE.match(line):
            column = line.index("#") + 1
            kind = Kind.DISABLED if _DISABLED.match(line, column - 1) else Kind.LOOKALIKE
            yield Directive(kind=kind, text=line, line=number, column=column)


def _parse_directive(
    line: str, number: int, component: int, mark: str, *, takes_escaped_space: bool
) -> Directive:
    """Return the directive in a line that starts with `mark`, with its words up to a fault."""
    at = _skip_blanks(line, len(mark))
    words: list[Token] = []
    fault = ""
    while not _SEPARATOR.match(line, start := _skip_blanks(line, at)):
        match = _WORDS[takes_escaped_space].match(line, start)
        stop = match.end() if match else start
        if line[start : start + 1] == ":":
            fault = f"Unexpected `:` in [{line[at:]}]"
        elif line[stop : stop + 1] in ("'", '"'):
            fault = f"Unmatched `{line[stop]}` in [{line[at:]}]"
        text = _unquoted(line[start:stop])
        if fault or not text:  # no word follows: the line ends, a comment begins, or the quotes are empty
            break
        words.append(Token(text=text, line=number, column=start + 1, end=stop + 1))
        ends_with_backslash = line[stop : stop + 1] == "\\"  # of an escaped space that ends the word
        at = stop + ends_with_backslash
    return Directive(
        kind=_MARKS[mark],
        text=line,
        line=number,
        column=1,
        component=component,
        words=tuple(words),
        fault=Message(fault, number, start + 1) if fault else None,
    )


def _unquoted(word: str) -> str:
    """Return a word without its quotes and escapes."""
    if not _QUOTING.search(word):
        return word
    pieces = (match[0] for match in _PIECES.finditer(word))
    return "".join(_ESCAPE.sub(r"\1", piece[1:-1] if piece[0] in "'\"" else piece) for piece in pieces)


def _skip_blanks(line: str, at: int) -> int:
    """Return the offset of the first character from `at` on that is not a blank."""
    match = _BLANKS.match(line, at)
    return match.end() if match else at
