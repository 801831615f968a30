"""What variables hold where they are used, as far as the text tells: literal assignments, and arrays.

An assignment counts where it is made in the script's own shell each time the script gets there. A value is
told where the last such assignment before it is followed by none that may or may not be made. In a loop,
where time does not follow the text, none may set the variable later; in a function, only one in the script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from sbatchgen.bash.command import (
    ASSIGNED,
    DECLARATIONS,
    Assignment,
    Command,
    Context,
    VariableUse,
    assignment_at,
)
from sbatchgen.bash.walk import Walk
from sbatchgen.bash.word import LITERAL, Piece, Word, split

DEPTH_MAX = 20  # of variables that hold variables
WORDS_MAX = 10_000  # that the words of arrays may become
PIECES_MAX = 500  # that a word may become

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOR = re.compile(r"(?:for|select)[ \t]+([A-Za-z_]\w*)")
_COUNTED = re.compile(
    r"(?<![\w$])([A-Za-z_]\w*)(?:\+\+|--|[-+*/%&|^]?=(?!=)|<<=|>>=)|(?:\+\+|--)([A-Za-z_]\w*)"
)
_DEFAULT = re.compile(r"\$\{\w+:?=")
_CAT = re.compile(r"\$\(\s*(?:/bin/)?cat\s+(<<-?)")
LOCAL = frozenset(("local", "declare", "typeset"))  # in a function
READERS = frozenset(("read", "mapfile", "readarray", "getopts", "unset", "let", "printf"))


class Values:
    """The variables of a script.

    Attributes:
        sets: Each time that a variable gets or loses a value, in the order of the text.
    """

    def __init__(self, walk: Walk, uses: Callable[[], Sequence[VariableUse]]) -> None:
        self._walk = walk
        self.sets = tuple(sorted(_assignments(walk, uses), key=lambda assignment: assignment.at))
        self._by_name: dict[str, list[Assignment]] = {}
        for assignment in self.sets:
            if not assignment.prefix:
                self._by_name.setdefault(assignment.name, []).append(assignment)

    def value(self, word: Word) -> str | None:
        """The string that a word is, with the variables that can be followed; else None."""
        pieces = self._followed(word, DEPTH_MAX, [PIECES_MAX])
        if all(piece.kind in LITERAL for piece in pieces):
            return "".join(piece.text for piece in pieces)
        return None

    def followed(self, word: Word) -> Word:
        """The word with the variables that can be followed in their place."""
        pieces = self._followed(word, DEPTH_MAX, [PIECES_MAX])
        return Word(pieces, word.at, word.end, word.source)

    def text_of(self, word: Word) -> str:
        """The string that a word is, in which expansions that can't be followed stay as they are written."""
        return "".join(piece.text for piece in self._followed(word, DEPTH_MAX, [PIECES_MAX]))

    def expand(self, word: Word) -> tuple[Word, ...]:
        """The words that a word becomes, as far as they can be followed."""
        return tuple(self._expanded(word, DEPTH_MAX, [WORDS_MAX]))

    def _expanded(self, word: Word, depth: int, left: list[int]) -> Iterator[Word]:
        piece = word.pieces[0] if len(word.pieces) == 1 else None
        left[0] -= 1
        if (
            word.source is not self._walk.source
            or piece is None
            or piece.kind != "variable"
            or piece.operator
            or depth == 0
            or left[0] < 0
        ):
            yield word
        elif piece.subscript == "@" or (piece.subscript == "*" and not piece.quoted):
            items = self._items(piece.name, piece.at)
            for item in (word,) if items is None else items:
                yield from self._expanded(item, depth - 1 if item is not word else 0, left)
        elif piece.quoted or piece.subscript:
            yield word
        else:
            held = self._held(piece.name, piece.at)
            for part in (word,) if held is None else split(held):
                yield from self._expanded(part, depth - 1 if part is not word else 0, left)

    def _followed(self, word: Word, depth: int, left: list[int]) -> tuple[Piece, ...]:
        """The pieces of a word, with those of the variables that it expands in their place."""
        is_plain = len(word.pieces) == 1 and word.pieces[0].kind in LITERAL
        if is_plain or word.source is not self._walk.source:
            return word.pieces
        pieces: list[Piece] = []
        for piece in word.pieces:
            left[0] -= 1
            held = self._word_of(word, piece) if depth and left[0] > 0 else None
            if held is None:
                pieces.append(piece)
            else:
                pieces += self._followed(held, depth - 1, left)
        return tuple(pieces)

    def _word_of(self, word: Word, piece: Piece) -> Word | None:
        """What a piece stands for; None where that can't be told."""
        if (
            piece.kind == "variable"
            and piece.subscript in ("", "0")
            and piece.operator in ("", ":-", "-", ":?", "?")
        ):
            return self._held(piece.name, piece.at)
        if piece.kind == "command" and (match := _CAT.match(piece.text)):
            return _heredoc(word, piece, match)
        return None

    def _held(self, name: str, at: int) -> Word | None:
        """What a variable holds at an offset; None where that can't be told."""
        last, later = self._last(name, at)
        if last is None or later:
            return None
        if last.items is not None:
            return last.items[0] if last.items else None
        return last.word

    def _items(self, name: str, at: int) -> tuple[Word, ...] | None:
        """The elements of an array at an offset; those that are appended sometimes are among them."""
        last, later = self._last(name, at)
        if last is None or last.items is None or not all(each.append and each.items for each in later):
            return None
        return last.items + tuple(item for each in later for item in each.items or ())

    def _last(self, name: str, at: int) -> tuple[Assignment | None, list[Assignment]]:
        """The last assignment that is always made before an offset, and those after it that may count."""
        known = self._by_name.get(name, [])
        around = [span for span in self._walk.timeless if span[0] <= at < span[1]]
        if not self._walk.function_spans.isdisjoint(around):
            only = known[0] if len(known) == 1 and known[0].context.top else None
            return only, []
        before = [each for each in known if each.end <= at]
        last: Assignment | None = None
        later: list[Assignment] = []
        for each in before:
            if each.context.top and not each.append and not each.subscript:
                last, later = each, []
            elif not each.context.subshell and not each.context.substitution:
                later.append(each)
        if around:
            later += [each for each in known if at <= each.at < around[0][1]]
        later += [
            each for each in known if each.context.function and each.by not in LOCAL and each not in later
        ]
        return last, later


def _heredoc(word: Word, piece: Piece, match: re.Match[str]) -> Word | None:
    """The text of $(cat <<'END'), where nothing in it is expanded."""
    at = piece.at + match.start(1)
    source = word.source
    if at not in source.heredocs or source.text[at + len(match[1]) :].lstrip()[:1] not in ("'", '"', "\\"):
        return None
    text, start = source.heredocs[at]
    text = text.rstrip("\n")
    return Word((Piece("text", text, quoted=True, at=start),), start, start + len(text), source)


def _assignments(walk: Walk, uses: Callable[[], Sequence[VariableUse]]) -> Iterator[Assignment]:
    for at, context in walk.standing:
        yield from _standing(walk, at, context)
    for command in walk.commands:
        if command.test:
            if command.words[0].text == "((":
                yield from _counted(command, command.words[1].text)
            continue
        if ASSIGNED.match(command.source.text, command.at):
            yield from command.prefix
        if command.name in DECLARATIONS:
            yield from _declared(command)
        elif command.name in READERS:
            yield from _read_by(command)
    for use in uses() if _DEFAULT.search(walk.source.text) else ():
        if use.operator in (":=", "="):
            yield _unknown(
                use.name, f"${{{use.operator}}}", Context(branch=True), use.at, (use.line, use.column)
            )


def _standing(walk: Walk, at: int, context: Context) -> Iterator[Assignment]:
    """The assignments that a line or the head of a loop makes."""
    source = walk.source
    if match := ASSIGNED.match(source.text, at):
        yield assignment_at(source, match, context)[0]
    elif match := _FOR.match(source.text, at):
        yield _unknown(match[1], "for", context, at, source.position(at))
    elif source.text.startswith("for", at):
        head = source.text[at : at + 1000].split("))", 1)[0]
        for counted in _COUNTED.finditer(head):
            yield _unknown(counted[1] or counted[2], "for", context, at, source.position(at))


def _unknown(name: str, by: str, context: Context, at: int, position: tuple[int, int]) -> Assignment:
    """A variable that gets a value which the text does not tell."""
    return Assignment(name, None, None, False, "", by, False, False, context, at, at, *position)


def _counted(command: Command, text: str) -> Iterator[Assignment]:
    for match in _COUNTED.finditer(text):
        yield _unknown(
            match[1] or match[2], "((", command.context, command.at, (command.line, command.column)
        )


def _declared(command: Command) -> Iterator[Assignment]:
    """What export, declare, local, readonly and typeset set; a name without a value may be exported by it."""
    flags = "".join(word.text[1:] for word in command.words[1:] if word.text.startswith("-"))
    exported = command.name == "export" and "n" not in flags
    exported = exported or (command.name in ("declare", "typeset") and "x" in flags)
    if command.name == "export" and "f" in flags:
        return
    for word in command.words[1:]:
        if match := ASSIGNED.match(word.source.text, word.at, word.end):
            made, _ = assignment_at(word.source, match, command.context, by=command.name)
            yield made._replace(exported=exported)
        elif exported and _NAME.fullmatch(word.text):
            yield _unknown(
                word.text, command.name, command.context, word.at, (word.line, word.column)
            )._replace(exported=True, append=True, items=())


def _read_by(command: Command) -> Iterator[Assignment]:
    """What read, mapfile, getopts, let, printf -v and unset do to variables."""
    words = command.words[1:]
    if command.name == "let":
        for word in words:
            yield from _counted(command, word.value or word.text)
        return
    if command.name == "printf":
        words = words[1:2] if words and words[0].text == "-v" else ()
    elif command.name == "getopts":
        words = words[1:2]
    for word in words:
        if _NAME.fullmatch(word.text):
            yield _unknown(word.text, command.name, command.context, word.at, (word.line, word.column))
