"""The words of a command: where each ends, and what it is without quotes, as far as the text says it.

Source: bash(1), QUOTING, EXPANSION and REDIRECTION.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from sbatchgen.bash.text import Placed, ShellText


class Piece(NamedTuple):
    """A part of a word.

    Attributes:
        kind: "text", "glob" (* ? and [), "variable", "command" ($( ) and backquotes), "process" (<( )),
            "arithmetic", "brace" ({a,b}) or "tilde".
        text: The characters that a text or a glob stands for, without quotes; of others the source.
        quoted: Whether it stands in quotes, or is one.
        at: Where it starts in the script.
        name: The variable's name.
        subscript: What stands in the variable's brackets, such as @.
        operator: Of ${...}: "#" and "!" before the name, ":-", ":?", "##" and the like after it.
    """

    kind: str
    text: str
    quoted: bool
    at: int
    name: str = ""
    subscript: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Word(Placed):
    """A word as bash splits a command. Lines and columns count from 1.

    Attributes:
        pieces: Its parts.
        at: Where it starts, in characters from 0.
        end: Where it ends.
        source: The script that it stands in.
    """

    pieces: tuple[Piece, ...]
    at: int
    end: int
    source: ShellText

    @property
    def text(self) -> str:
        """The word as it is written."""
        return self.source.text[self.at : self.end]

    @property
    def value(self) -> str | None:
        """The string that it is, without quotes; None where it depends on an expansion.

        The names of files that * ? and [ stand for are not looked for: as in bash, where there are none, the
        characters stay.
        """
        if len(self.pieces) == 1:
            piece = self.pieces[0]
            return piece.text if piece.kind in LITERAL else None
        if all(piece.kind in LITERAL for piece in self.pieces):
            return "".join(piece.text for piece in self.pieces)
        return None

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables that it expands, without those in its substitutions."""
        return tuple(piece.name for piece in self.pieces if piece.kind == "variable")

    @property
    def quoted(self) -> bool:
        """Whether all of it stands in quotes."""
        return bool(self.pieces) and all(piece.quoted for piece in self.pieces)


LITERAL = frozenset(("text", "glob"))
_PLAIN = re.compile(r"[\w./:,=%@^+\-\]}]+")
_REST = re.compile(
    r"""[^\w./:,=%@^+\-\]}\s;&|<>()"'\\$`{~*?\[]+"""
)  # neither plain nor of a meaning, as # and \x01
_QUOTED = re.compile(r'[^"\\$`]+')
_BRACE = re.compile(r"\{(?:[^\s{},;|&<>()]|\{[^\s{}]*\})*(?:,|\.\.)[^\s;|&<>()]*\}")
_TILDE = re.compile(r"~[\w+.-]*(?=[/\s;|&<>():]|\Z)")
_SIMPLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|([0-9@*#?$!-]))")
_EXPANSION = re.compile(
    r"\$\{([!#]?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(?:\[((?:[^\[\]]|\[[^\]]*\])*)\])?"
    r"(:[-=?+]|##?|%%?|//|/[#%]?|\^\^?|,,?|@[A-Za-z]|[-=?+:*@]|).*\}",
    re.DOTALL,
)
_ESCAPES = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|c(.))",
    re.DOTALL,
)
_NAMED = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
_ENDS = frozenset(" \t\n;&|<>()")


def scan(source: ShellText, at: int, stop: int | None = None) -> Word | None:
    """The word that starts at an offset; None where none does."""
    text = source.text
    stop = len(text) if stop is None else stop
    start = at
    if plain := _PLAIN.match(text, at, stop):
        at = plain.end()
        if at == stop or text[at] in _ENDS:
            return Word((Piece("text", plain[0], quoted=False, at=start),), start, at, source)
        pieces = [Piece("text", plain[0], quoted=False, at=start)]
    else:
        pieces = []
    while at < stop and (text[at] not in _ENDS or _is_inside(text, at, start)):
        if text[at] == "`" and at not in source.spans:  # it ends the substitution that the word stands in
            break
        found, end = _piece(source, at, stop, first=at == start)
        if not found and end <= at:
            break
        pieces += found
        at = end
    return Word(_joined(pieces), start, at, source) if at > start else None


def _is_inside(text: str, at: int, start: int) -> bool:
    """Whether <( >( or a pattern's +( is part of a word."""
    if text[at] in "<>":
        return text[at + 1 : at + 2] == "("
    return text[at] == "(" and at > start and text[at - 1] in "?*+@!"


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """The pieces, with neighbours of one kind as one."""
    if len(pieces) < 2:
        return tuple(pieces)
    joined: list[Piece] = []
    for _, same in groupby(pieces, key=lambda piece: piece.quoted if piece.kind == "text" else id(piece)):
        first, *others = same
        joined.append(
            first._replace(text="".join((first.text, *(one.text for one in others)))) if others else first
        )
    return tuple(joined)


def _piece(source: ShellText, at: int, stop: int, *, first: bool) -> tuple[list[Piece], int]:  # noqa: C901, PLR0911 (a return for each kind)
    """The pieces at an offset, and where they end."""
    text = source.text
    character = text[at]
    if plain := _PLAIN.match(text, at, stop):
        return [Piece("text", plain[0], quoted=False, at=at)], plain.end()
    if character == '"':
        return _double(source, at, at + 1, stop)
    if character == "'":
        end = text.find("'", at + 1, stop)
        end = stop if end < 0 else end
        return [Piece("text", text[at + 1 : end], quoted=True, at=at)], min(end + 1, stop)
    if character == "\\":
        if text.startswith("\\\n", at):
            return [], at + 2
        return [Piece("text", text[at + 1 : at + 2] or "\\", quoted=True, at=at)], min(at + 2, stop)
    if character in "$`<>":
        return _dollar(source, at, stop, quoted=False)
    if character == "{" and (brace := _BRACE.match(text, at, stop)):
        return [Piece("brace", brace[0], quoted=False, at=at)], brace.end()
    if character == "~" and (first or text[at - 1] in "=:") and (tilde := _TILDE.match(text, at, stop)):
        kind = "tilde" if first or _is_assigned(text, at) else "text"
        return [Piece(kind, tilde[0], quoted=False, at=at)], tilde.end()
    if character == "(":
        end = close(source, at, stop)
        return [Piece("glob", text[at:end], quoted=False, at=at)], end
    if character in "*?[":
        return [Piece("glob", character, quoted=False, at=at)], at + 1
    rest = _REST.match(text, at, stop)
    found = rest[0] if rest else character
    return [Piece("text", found, quoted=False, at=at)], at + len(found)


def _is_assigned(text: str, at: int) -> bool:
    """Whether a ~ after = or : stands in the value of an assignment."""
    before = re.split(r"[\s;&|()]", text[max(0, at - 256) : at])[-1]
    return re.match(r"[A-Za-z_]\w*\+?=", before) is not None


def _double(source: ShellText, start: int, at: int, stop: int) -> tuple[list[Piece], int]:
    """What stands in double quotes; `at` is the first character in them."""
    text = source.text
    pieces: list[Piece] = []
    while at < stop:
        character = text[at]
        if character == '"':
            at += 1
            break
        if plain := _QUOTED.match(text, at, stop):
            pieces.append(Piece("text", plain[0], quoted=True, at=at))
            at = plain.end()
        elif character == "\\":
            following = text[at + 1 : at + 2]
            if following != "\n":
                kept = following if following in '$`"\\' else character + following
                pieces.append(Piece("text", kept or "\\", quoted=True, at=at))
            at += 2
        else:
            found, at = _dollar(source, at, stop, quoted=True)
            pieces += found
    return pieces or [Piece("text", "", quoted=True, at=start)], min(at, stop)


def _dollar(source: ShellText, at: int, stop: int, *, quoted: bool) -> tuple[list[Piece], int]:  # noqa: PLR0911 (a return for each kind)
    """What starts with $ ` <( or >(."""
    text = source.text
    following = text[at + 1 : at + 2]
    if text[at] != "$":
        end = close(source, at, stop)
        kind = "command" if text[at] == "`" else "process"
        return [Piece(kind, text[at:end], quoted=quoted, at=at)], end
    if following == "(":
        end = close(source, at, stop)
        kind = "arithmetic" if text.startswith("$((", at) and text.endswith("))", 0, end) else "command"
        return [Piece(kind, text[at:end], quoted=quoted, at=at)], end
    if following == "{":
        end = close(source, at, stop)
        return [expansion(text[at:end], at, quoted=quoted)], end
    if following == "[":
        end = close(source, at, stop)
        return [Piece("arithmetic", text[at:end], quoted=quoted, at=at)], end
    if simple := _SIMPLE.match(text, at, stop):
        return [Piece("variable", simple[0], quoted=quoted, at=at, name=simple[1] or simple[2])], simple.end()
    if following == '"' and not quoted:
        return _double(source, at, at + 2, stop)
    if following == "'" and not quoted:
        return _ansi(text, at, stop)
    return [Piece("text", "$", quoted=quoted, at=at)], at + 1


def expansion(text: str, at: int, *, quoted: bool) -> Piece:
    """The piece that $NAME or ${...} is."""
    if simple := _SIMPLE.fullmatch(text):
        return Piece("variable", text, quoted=quoted, at=at, name=simple[1] or simple[2])
    match = _EXPANSION.fullmatch(text) if text.endswith("}") else None
    if not match:
        return Piece("variable", text, quoted=quoted, at=at, operator="?")
    before, name, subscript, after = match.groups()
    return Piece(
        "variable",
        text,
        quoted=quoted,
        at=at,
        name=name,
        subscript=subscript or "",
        operator=before + after,
    )


def _ansi(text: str, at: int, stop: int) -> tuple[list[Piece], int]:
    """What stands in $'...'."""
    match = re.compile(r"\$'((?:\\.|[^'\\])*)'?", re.DOTALL).match(text, at, stop)
    if not match:
        return [Piece("text", "$", quoted=False, at=at)], at + 1
    value = _ESCAPES.sub(_unescaped, match[1]).split("\0", 1)[0]
    return [Piece("text", value, quoted=True, at=at)], match.end()


def _unescaped(match: re.Match[str]) -> str:
    name, octal, hexadecimal, short, long, control = match.groups()
    if name:
        return _NAMED[name]
    if octal or hexadecimal:
        code = int(octal, 8) & 0xFF if octal else int(hexadecimal, 16)
        return chr(code) if code < 128 else chr(0xDC00 + code)
    if control:
        return chr(ord(control) & 0x1F)
    code = int(short or long, 16)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


_CLOSERS = {"(": ")", "{": "}", "[": "]"}


def close(source: ShellText, at: int, stop: int) -> int:
    """Where the substitution, expansion or bracket at an offset ends."""
    end = source.spans.get(at)
    if end is not None and end <= stop:
        return end
    text = source.text
    if text[at] == "`":
        found = re.compile(r"`(?:\\.|[^`\\])*`?", re.DOTALL).match(text, at, stop)
        return found.end() if found else stop
    return _bracket_end(text, at, stop)


_BRACKETS = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|[(){}\[\]]""", re.DOTALL)


def _bracket_end(text: str, at: int, stop: int) -> int:
    """Where the first bracket from an offset is closed; where the text ends if it is not."""
    opener, depth = "", 0
    for match in _BRACKETS.finditer(text, at, stop):
        opener = opener or (match[0] if match[0] in _CLOSERS else "")
        if not opener:
            return match.end()
        depth += (match[0] == opener) - (match[0] == _CLOSERS[opener])
        if depth == 0:
            return match.end()
    return stop


_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_GAP = re.compile(r"(?:[ \t\n]|\\\n|(?<![^ \t\n(])#[^\n]*)+")


def skip_blanks(text: str, at: int) -> int:
    """Where the blanks and continued lines from an offset end."""
    match = _BLANK.match(text, at)
    return match.end() if match else at


def elements(source: ShellText, at: int) -> tuple[tuple[Word, ...], int]:
    """The words of an array's value and where it ends; `at` is its opening parenthesis."""
    text = source.text
    words: list[Word] = []
    at += 1
    while True:
        gap = _GAP.match(text, at)
        at = gap.end() if gap else at
        word = scan(source, at)
        if word is None:
            return tuple(words), at + 1
        words.append(word)
        at = word.end


def split(word: Word) -> Iterator[Word]:
    """The words that a string becomes where it is expanded without quotes: blanks part it."""
    pieces: list[Piece] = []
    for piece in word.pieces:
        if piece.kind not in LITERAL:
            pieces.append(piece)
            continue
        parts = re.split(r"[ \t\n]+", piece.text)
        for index, part in enumerate(parts):
            if index and pieces:
                yield Word(tuple(pieces), word.at, word.end, word.source)
                pieces = []
            if part:
                pieces.append(piece._replace(text=part))
    if pieces:
        yield Word(tuple(pieces), word.at, word.end, word.source)
