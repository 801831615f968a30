"""The words of a command, as strings without quotes.

The syntax tree shows where a word and its expansions start and end; the quotes are read here.
Source: bash(1), QUOTING and EXPANSION.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from sbatchgen.check.bash.text import Placed, ShellText


class Piece(NamedTuple):
    """A part of a word."""

    # "text", "glob" (* ? and [), "variable", "command" ($( ) and backquotes), "process" (<( )), "arithmetic",
    # "array" (NAME=( )), "brace" ({a,b}) or "tilde".
    kind: str
    text: str  # a text or a glob without its quotes; an expansion as written
    quoted: bool  # whether the piece is in quotes
    at: int  # the offset of its first character
    name: str = ""  # the variable's name
    subscript: str = ""  # the text in the variable's brackets, such as @
    operator: str = ""  # in ${...}: "#" and "!" before the name, ":-", ":?", "##" and the like after the name


@dataclass(slots=True, unsafe_hash=True)  # not frozen: frozen classes take twice the time to make
class Word(Placed):
    """A word of a command, which never changes. Lines and columns count from 1."""

    pieces: tuple[Piece, ...]  # the parts of the word
    at: int  # the offset of its first character
    end: int  # the offset after its last character
    source: ShellText  # the script that holds the word

    @property
    def text(self) -> str:
        """The word as it is written."""
        return self.source.text[self.at : self.end]

    @property
    def value(self) -> str | None:
        """The string without its quotes; None if the string depends on an expansion.

        The patterns * ? and [ stay, as in bash if no file matches. This reader looks for no files.
        """
        if len(self.pieces) == 1:  # most words have one piece
            piece = self.pieces[0]
            return piece.text if piece.kind in LITERAL else None
        is_literal = LITERAL.issuperset([piece.kind for piece in self.pieces])
        return "".join([piece.text for piece in self.pieces]) if is_literal else None

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the expanded variables, without the variables in substitutions."""
        return tuple(piece.name for piece in self.pieces if piece.kind == "variable")

    @property
    def quoted(self) -> bool:
        """Whether the whole word is in quotes."""
        return bool(self.pieces) and all(piece.quoted for piece in self.pieces)

    @property
    def only_piece(self) -> Piece | None:
        """The piece of a word with a single piece; None for other words."""
        return self.pieces[0] if len(self.pieces) == 1 else None


LITERAL = frozenset(("text", "glob"))  # kinds of pieces that do not depend on an expansion
# The start of an assignment: NAME=, NAME+= or NAME[SUBSCRIPT]=.
ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[((?:[^\[\]]|\[[^\]]*\])*)\])?(\+?)=")
# Most words are plain, in quotes without an expansion, or a variable. Others are read piece by piece.
_PLAIN = re.compile(r"[\w./:,=%@^+\-\]}]+")
_QUOTED = re.compile(r"""\"[^"\\$`]+"|'[^']*'""")
_ONE_VARIABLE = re.compile(r"""("?)\$([A-Za-z_][A-Za-z0-9_]*)\1""")
_VARIABLE = r"\$(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])"
# The next part of a word outside of double quotes. The group that matches names the kind of the part.
_UNQUOTED_PART = re.compile(
    r"""(?P<text>[^\\'"$`~{*?\[(<>]+) | \\\n | \\(?P<escaped>.) | '(?P<single>[^']*)' | "(?P<empty>)"
    | \$'(?P<ansi>(?:\\.|[^'\\])*)' | (?P<open>\$?") | (?P<glob>[*?\[])
    | (?P<brace>\{(?:[^\s{},]|\{[^\s{}]*\})*(?:,|\.\.)\S*\}) | (?P<tilde>~[\w+.-]*(?=[/:]|\Z)) | """
    + _VARIABLE
    + "| (?P<other>.)",
    re.DOTALL | re.VERBOSE,
)
# The next part of a word in double quotes.
_QUOTED_PART = re.compile(
    r"""(?P<text>[^"\\$`]+) | \\\n | \\(?P<escaped>[$`"\\]) | (?P<close>") | """
    + _VARIABLE
    + "| (?P<other>.)",
    re.DOTALL | re.VERBOSE,
)
_SPECIAL_PARTS = frozenset(("name", "glob", "brace", "tilde"))  # parts that bash expands
_QUOTING_PARTS = frozenset(("escaped", "single", "ansi", "empty"))  # parts with quotes of their own
# An escape in $'...': octal, hexadecimal, Unicode, or a character.
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,6})|(.))", re.DOTALL
)
_ESCAPED_CHARACTERS = dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True))
# ${NAME}: the ! or # before the name, the name, the subscript, and the operator after the name.
_EXPANSION = re.compile(
    r"\$\{([!#]?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(?:\[((?:[^\[\]]|\[[^\]]*\])*)\])?"
    r"(:[-=?+]|##?|%%?|//|/[#%]?|\^\^?|,,?|@[A-Za-z]|[-=?+:*@]|).*\}",
    re.DOTALL,
)
# The first character of an expansion without $ -> the kind of the piece.
_KIND_BY_START = {"`": "command", "<": "process", ">": "process", "(": "array"}


def read_word(source: ShellText, at: int, end: int) -> Word:
    """Return the word between two offsets."""
    text = source.text
    if _PLAIN.fullmatch(text, at, end):
        return Word((Piece("text", text[at:end], False, at),), at, end, source)
    if _QUOTED.fullmatch(text, at, end):
        piece_at = at + (text[at] == '"')  # as in `_pieces`, '...' is one piece from its quote on
        return Word((Piece("text", text[at + 1 : end - 1], True, piece_at),), at, end, source)
    if variable := _ONE_VARIABLE.fullmatch(text, at, end):
        start, stop = variable.span(2)
        piece = Piece("variable", text[start - 1 : stop], bool(variable[1]), start - 1, variable[2])
        return Word((piece,), at, end, source)
    pieces: list[Piece] = []
    last: Piece | None = None  # the last piece if it is a text: texts with the same quotes are joined
    for piece in _pieces(source, at, end):
        if piece.kind != "text":
            last = None
        elif last and last.quoted == piece.quoted:
            pieces[-1] = last = last._replace(text=last.text + piece.text)
            continue
        else:
            last = piece
        pieces.append(piece)
    return Word(tuple(pieces), at, end, source)


def _pieces(source: ShellText, start: int, end: int) -> Iterator[Piece]:
    """Yield the pieces between two offsets; neighbouring texts are separate pieces."""
    text, spans, at = source.text, source.spans, start
    quoted = False
    while at < end:
        if at in spans and spans[at] <= end:
            yield read_expansion(text[at : spans[at]], at, quoted=quoted)
            at = spans[at]
            continue
        match = (_QUOTED_PART if quoted else _UNQUOTED_PART).match(text, at, end)
        kind = match.lastgroup if match else None
        if match is None or kind is None:  # a backslash and a line break, which bash removes
            at += 2
            continue
        if kind in ("open", "close"):  # a double quote
            quoted = kind == "open"
        elif kind == "name":
            yield read_expansion(match[0], at, quoted=quoted)
        elif (
            kind == "tilde"
            and at > start  # within a word, ~ is a folder only in the value of an assignment
            and not (text[at - 1] in "=:" and ASSIGNED.match(text, start, at))
        ):
            yield Piece("text", match[0], quoted=quoted, at=at)
        elif kind in _SPECIAL_PARTS:
            yield Piece(kind, match[0], quoted=quoted, at=at)
        else:
            value = _ESCAPE.sub(_unescape, match[kind]) if kind == "ansi" else match[kind]
            yield Piece("text", value, quoted=quoted or kind in _QUOTING_PARTS, at=at)
        at = match.end()


def _unescape(match: re.Match[str]) -> str:
    r"""Return the character for an escape in $'...', such as \n or \x41."""
    octal, *hexadecimals, character = match.groups()
    if character:
        return _ESCAPED_CHARACTERS.get(character, character if character in "\\'\"?" else match[0])
    code = int(octal, 8) if octal else int("".join(filter(None, hexadecimals)), 16)
    return chr(code) if code < 0x110000 else "\ufffd"


def read_expansion(text: str, at: int, *, quoted: bool) -> Piece:
    """Return an expansion, such as ${NAME:-x} or $(date), as a piece."""
    if text.startswith("${"):
        match = _EXPANSION.fullmatch(text)
        before, name, subscript, after = match.groups() if match else ("", "", "", "?")
        return Piece("variable", text, quoted, at, name, subscript or "", before + after)
    if text.startswith("$") and text[1:2] not in ("(", "["):
        return Piece("variable", text, quoted, at, text[1:])
    if text.startswith("$"):
        is_command = text[1] == "(" and not (text.startswith("$((") and text.endswith("))"))
        return Piece("command" if is_command else "arithmetic", text, quoted, at)
    return Piece(_KIND_BY_START.get(text[0], "text"), text, quoted, at)


def split_at_blanks(whole: Word) -> Iterator[Word]:
    """Yield the words into which bash splits a value that it expands without quotes."""
    pieces: list[Piece] = []
    for piece in whole.pieces:
        parts = re.split(r"[ \t\n]+", piece.text) if piece.kind in LITERAL else ()
        for index, part in enumerate(parts):
            if index and pieces:
                yield replace(whole, pieces=tuple(pieces))
                pieces = []
            if part:
                pieces.append(piece._replace(text=part))
        if not parts:
            pieces.append(piece)
    if pieces:
        yield replace(whole, pieces=tuple(pieces))
