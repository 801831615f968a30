"""The words of a command, and the strings that they stand for, without their quotes.

The syntax tree shows where a word and its expansions start and end. It does not show what quotes do, so this
module reads them itself. Source: bash(1), QUOTING and EXPANSION.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from sbatchgen.check.bash.text import ShellText, TextRange


class Piece(NamedTuple):
    """A part of a word: a text or an expansion. The word "$DIR"/a.* has the pieces "$DIR", /a. and *."""

    # "text", "glob" (* ? and [), "variable", "command" ($( ) and backquotes), "process" (<( )), "arithmetic",
    # "array" (NAME=( )), "brace" ({a,b}) or "tilde".
    kind: str
    text: str  # a text or a glob without its quotes; an expansion as written
    is_quoted: bool  # whether the piece is in quotes
    at: int  # the offset of its first character
    # The attributes below are "" for pieces that are not variables.
    name: str = ""  # the variable's name
    subscript: str = ""  # the text in brackets, such as @ in ${NAME[@]}
    operator: str = ""  # in ${ }: "#" or "!" before the name, ":-", ":?", "##" and the like after the name


# The class is not frozen, because frozen classes take twice the time to make. No code changes a word.
@dataclass(slots=True, unsafe_hash=True)
class Word(TextRange):
    """A word of a command, such as a name, an option or a path."""

    pieces: tuple[Piece, ...]
    at: int  # the offset of the first character
    end: int  # the offset after the last character
    source: ShellText  # the text that holds the word

    @property
    def text(self) -> str:
        """The word as it is written."""
        return self.source.text[self.at : self.end]

    @property
    def value(self) -> str | None:
        """The string that the word stands for, without its quotes; None if it depends on an expansion.

        The characters * ? and [ of patterns stay, as in bash if no file matches. This reader never looks
        for files.
        """
        if len(self.pieces) == 1:  # most words have one piece
            piece = self.pieces[0]
            return piece.text if piece.kind in LITERAL_KINDS else None
        is_literal = LITERAL_KINDS.issuperset([piece.kind for piece in self.pieces])
        return "".join([piece.text for piece in self.pieces]) if is_literal else None

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the expanded variables, without the variables in substitutions."""
        return tuple(piece.name for piece in self.pieces if piece.kind == "variable")

    @property
    def is_quoted(self) -> bool:
        """Whether the whole word is in quotes."""
        return bool(self.pieces) and all(piece.is_quoted for piece in self.pieces)

    @property
    def only_piece(self) -> Piece | None:
        """The piece of a word with a single piece; None for other words."""
        return self.pieces[0] if len(self.pieces) == 1 else None


LITERAL_KINDS = frozenset(("text", "glob"))  # kinds of pieces that do not depend on an expansion
# The start of an assignment: NAME=, NAME+= or NAME[SUBSCRIPT]=.
ASSIGNMENT_START = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[((?:[^\[\]]|\[[^\]]*\])*)\])?(\+?)=")
# Most words are plain, in quotes without an expansion, or a variable. Others are read piece by piece.
_PLAIN = re.compile(r"[\w./:,=%@^+\-\]}]+")
_QUOTED = re.compile(r"""\"[^"\\$`]+"|'[^']*'""")
_ONE_VARIABLE = re.compile(r"""("?)\$([A-Za-z_][A-Za-z0-9_]*)\1""")
_VARIABLE = r"\$(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])"
# The next part of a word outside of double quotes. The name of the group that matches is the part's kind. A
# backslash and a line break match without a group.
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
        # `_pieces` begins a piece after a double quote, but at a single quote. So does this short way.
        piece_at = at + (text[at] == '"')
        return Word((Piece("text", text[at + 1 : end - 1], True, piece_at),), at, end, source)
    if variable := _ONE_VARIABLE.fullmatch(text, at, end):
        name_at, name_end = variable.span(2)
        piece = Piece("variable", text[name_at - 1 : name_end], bool(variable[1]), name_at - 1, variable[2])
        return Word((piece,), at, end, source)
    pieces: list[Piece] = []
    # The last piece if it is a text, else None. The next text is joined to it, unless only one is in quotes.
    last: Piece | None = None
    for piece in _pieces(source, at, end):
        if piece.kind != "text":
            last = None
        elif last and last.is_quoted == piece.is_quoted:
            pieces[-1] = last = last._replace(text=last.text + piece.text)
            continue
        else:
            last = piece
        pieces.append(piece)
    return Word(tuple(pieces), at, end, source)


def _pieces(source: ShellText, start: int, end: int) -> Iterator[Piece]:
    """Yield the pieces of the word between two offsets. Neighbouring texts are not joined yet."""
    text, end_by_start, at = source.text, source.end_by_start, start
    in_quotes = False  # whether `at` is in double quotes
    while at < end:
        if at in end_by_start and end_by_start[at] <= end:
            yield read_expansion(text[at : end_by_start[at]], at, is_quoted=in_quotes)
            at = end_by_start[at]
            continue
        match = (_QUOTED_PART if in_quotes else _UNQUOTED_PART).match(text, at, end)
        kind = match.lastgroup if match else None
        if match is None or kind is None:  # a backslash and a line break, which bash removes
            at += 2
            continue
        if kind in ("open", "close"):  # a double quote
            in_quotes = kind == "open"
        elif kind == "name":
            yield read_expansion(match[0], at, is_quoted=in_quotes)
        elif (
            kind == "tilde"
            and at > start  # within a word, ~ is a folder only in the value of an assignment
            and not (text[at - 1] in "=:" and ASSIGNMENT_START.match(text, start, at))
        ):
            yield Piece("text", match[0], is_quoted=in_quotes, at=at)
        elif kind in _SPECIAL_PARTS:
            yield Piece(kind, match[0], is_quoted=in_quotes, at=at)
        else:
            value = _ESCAPE.sub(_unescape, match[kind]) if kind == "ansi" else match[kind]
            yield Piece("text", value, is_quoted=in_quotes or kind in _QUOTING_PARTS, at=at)
        at = match.end()


def _unescape(match: re.Match[str]) -> str:
    r"""Return the character for an escape in $'...', such as \n or \x41."""
    octal, *hexadecimals, character = match.groups()
    if character:
        return _ESCAPED_CHARACTERS.get(character, character if character in "\\'\"?" else match[0])
    code = int(octal, 8) if octal else int("".join(filter(None, hexadecimals)), 16)
    return chr(code) if code < 0x110000 else "\ufffd"


def read_expansion(text: str, at: int, *, is_quoted: bool) -> Piece:
    """Return the piece for an expansion such as ${NAME:-x} or $(date), which begins at the offset `at`."""
    if text.startswith("${"):
        match = _EXPANSION.fullmatch(text)
        # A form that the pattern does not know gets no name, so that no value is taken for it.
        before, name, subscript, after = match.groups() if match else ("", "", "", "?")
        return Piece("variable", text, is_quoted, at, name, subscript or "", before + after)
    if text.startswith("$") and text[1:2] not in ("(", "["):
        return Piece("variable", text, is_quoted, at, text[1:])
    if text.startswith("$"):
        is_command = text[1] == "(" and not (text.startswith("$((") and text.endswith("))"))
        return Piece("command" if is_command else "arithmetic", text, is_quoted, at)
    return Piece(_KIND_BY_START.get(text[0], "text"), text, is_quoted, at)


def split_at_blanks(value: Word) -> Iterator[Word]:
    """Yield the words that bash makes of a variable's value if the variable is expanded without quotes."""
    pieces: list[Piece] = []  # the pieces of the next word
    for piece in value.pieces:
        texts = re.split(r"[ \t\n]+", piece.text) if piece.kind in LITERAL_KINDS else ()
        for index, text in enumerate(texts):
            if index and pieces:
                yield replace(value, pieces=tuple(pieces))
                pieces = []
            if text:
                pieces.append(piece._replace(text=text))
        if not texts:  # an expansion, whose value is not known
            pieces.append(piece)
    if pieces:
        yield replace(value, pieces=tuple(pieces))
