"""The values of variables at their uses, if the text shows them: literal assignments, and arrays.

An assignment is certain if the script's own shell always makes it. The value at a use is known if the last
certain assignment before the use is followed by no uncertain assignment. A loop runs its text again, so there
no later assignment in the loop may set the variable. In a function the value is known only if the whole
script has a single assignment.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from sbatchgen.check.bash.statement import DECLARATIONS, Assignment, Command, Context, VariableUse
from sbatchgen.check.bash.text import Placed
from sbatchgen.check.bash.walk import Walk
from sbatchgen.check.bash.word import Piece, Word, split

DEPTH_MAX = 20  # variables in the values of variables
WORDS_MAX = 10_000  # words that a word may expand to
PIECES_MAX = 500  # pieces that a word may expand to

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DESCRIPTOR = re.compile(r"(?<![$\w])\{([A-Za-z_]\w*)\}(?=[<>])")  # the variable in exec {lock}>file
_COUNTED = re.compile(
    r"(?<![\w$])([A-Za-z_]\w*)[ \t]*(?:\+\+|--|[-+*/%&|^]?=(?!=)|<<=|>>=)|(?:\+\+|--)([A-Za-z_]\w*)"
)
_DEFAULTS = ("", ":-", "-", ":?", "?")
_EXPANSIONS = ("variable", "command", "arithmetic")
LOCAL = frozenset(("local", "declare", "typeset"))  # commands that make variables of a function
READERS = frozenset(("read", "mapfile", "readarray", "getopts", "unset", "let", "printf"))


class Variables:
    """The variables of a script."""

    def __init__(self, walk: Walk, uses: Sequence[VariableUse]) -> None:
        self._source = walk.source
        self._functions = _Spans((node.start, node.end) for node in walk.functions)
        self._loops = _Spans((loop.start, loop.end) for loop, _ in walk.loops)
        # Each time that a variable gets or loses a value, in the order of the text.
        self.sets = tuple(sorted(_assignments(walk, uses), key=lambda assignment: assignment.at))
        self._known: dict[int, tuple[Word, Word]] = {}  # a word and its expansion, by the word's id
        by_name: dict[str, list[Assignment]] = {}
        for assignment in self.sets:
            if not assignment.prefix:
                by_name.setdefault(assignment.name, []).append(assignment)
        self._by_name = {name: _Sets(known) for name, known in by_name.items()}

    def resolve(self, word: Word) -> Word:
        """Return the word with the known values of variables in place of their expansions."""
        if word.value is not None:
            return word
        if id(word) not in self._known:
            pieces = self._followed(word, DEPTH_MAX, [PIECES_MAX])
            self._known[id(word)] = word, Word(pieces, word.at, word.end, word.source)
        return self._known[id(word)][1]

    def expand(self, word: Word) -> tuple[Word, ...]:
        """Return the words that a word expands to; expansions with unknown values stay."""
        return tuple(self._expanded(word, DEPTH_MAX, [WORDS_MAX]))

    def _expanded(self, word: Word, depth: int, left: list[int]) -> Iterator[Word]:
        piece = word.only_piece
        left[0] -= 1
        parts: Sequence[Word] | None = None
        if word.source is self._source and piece and piece.kind == "variable" and depth and left[0] >= 0:
            if piece.operator:
                pass
            elif piece.subscript == "@" or (piece.subscript == "*" and not piece.quoted):
                parts = self._items(piece.name, piece.at)
            elif not piece.quoted and not piece.subscript and (value := self._value(piece.name, piece.at)):
                parts = tuple(split(value))
        if parts is None:
            yield word
        for part in parts or ():
            yield from self._expanded(part if piece and piece.quoted else _split_again(part), depth - 1, left)

    def _followed(self, word: Word, depth: int, left: list[int]) -> tuple[Piece, ...]:
        """Return the pieces of a word, with the pieces of variables in place of their expansions."""
        if word.source is not self._source or word.value is not None:
            return word.pieces
        pieces: list[Piece] = []
        for piece in word.pieces:
            left[0] -= 1
            value: Word | None = None
            if piece.kind == "variable" and piece.subscript in ("", "0") and piece.operator in _DEFAULTS:
                value = self._value(piece.name, piece.at) if depth and left[0] > 0 else None
            pieces += (piece,) if value is None else self._followed(value, depth - 1, left)
        return tuple(pieces)

    def _value(self, name: str, at: int) -> Word | None:
        """Return the value of a variable at an offset; None if the value is not known."""
        last, later = self._last(name, at)
        if last is None or next(later, None) is not None:
            return None
        if last.items is not None:
            return last.items[0] if last.items else None
        return last.word

    def _items(self, name: str, at: int) -> tuple[Word, ...] | None:
        """Return the elements of an array at an offset, also those that a branch may append."""
        last, later = self._last(name, at)
        if last is None or last.items is None:
            return None
        items = [*last.items]
        for each in later:
            if not each.append or not each.items:
                return None
            items += each.items
        return tuple(items)

    def _last(self, name: str, at: int) -> tuple[Assignment | None, Iterator[Assignment]]:
        """Return the last certain assignment before an offset, and the uncertain assignments after it."""
        sets = self._by_name.get(name)
        if sets is None:
            return None, iter(())
        if self._functions.end_around(at):
            return sets.only, iter(())
        index = bisect_right(sets.ends, at)
        following = sets.always[index - 1] + 1 if index else 0
        last = sets.own[following - 1] if index else None
        later = chain(
            sets.made_before(at, following), sets.made_again(at, self._loops.end_around(at)), sets.by_calls
        )
        return last, later


class _Spans:
    """The outermost parts of a kind in a text, such as loops."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(spans):
            if not self._ends or start >= self._ends[-1]:
                self._starts.append(start)
                self._ends.append(end)

    def end_around(self, at: int) -> int:
        """Return the end of the part around an offset; 0 outside of all parts."""
        index = bisect_right(self._starts, at)
        return self._ends[index - 1] if index and at < self._ends[index - 1] else 0


class _Sets:
    """The assignments of a variable, by place: a use of the variable looks at few of them."""

    def __init__(self, known: list[Assignment]) -> None:
        self.only = known[0] if len(known) == 1 and known[0].context.top else None
        self.by_calls = [each for each in known if each.context.function and each.setter not in LOCAL]
        self._outside = [each for each in known if not each.context.function]
        self._starts = [each.at for each in self._outside]
        self.own = [each for each in self._outside if _is_own(each)]  # not of subshells
        # The indices of the certain assignments in `own`, and the offsets where they end.
        self.always = [at for at, each in enumerate(self.own) if _is_whole(each)]
        self.ends = [self.own[at].end for at in self.always]

    def made_before(self, at: int, index: int) -> Iterator[Assignment]:
        """Yield the assignments of `own` from an index on that end before an offset."""
        while index < len(self.own) and self.own[index].at <= at:
            if self.own[index].end <= at:
                yield self.own[index]
            index += 1

    def made_again(self, at: int, end: int) -> Iterator[Assignment]:
        """Yield the assignments between an offset and the end of the loop around the offset."""
        index = bisect_left(self._starts, at)
        while index < len(self._outside) and self._starts[index] < end:
            each = self._outside[index]
            if each.end > at or not _is_own(each):
                yield each
            index += 1


def _is_own(assignment: Assignment) -> bool:
    return not (assignment.context.subshell or assignment.context.substitution)


def _is_whole(assignment: Assignment) -> bool:
    return assignment.context.top and not assignment.append and not assignment.subscript


def _assignments(walk: Walk, uses: Sequence[VariableUse]) -> Iterator[Assignment]:
    source = walk.source
    yield from walk.assignments
    for loop, context in walk.loops:
        place = Word((), loop.start, loop.start, source)
        if loop.kind == "for_statement":
            name = loop.children[0]
            yield _unknown(source.text[name.start : name.end], "for", context, place)
        elif loop.kind == "c_style_for_statement":
            yield from _counted(source.text[loop.start : loop.children[-1].start], "for", context, place)
    for command in walk.commands:
        if command.test:
            counts = command.text if command.path == "((" else ""
            yield from _counted(counts, "((", command.context, command)
        elif command.name in DECLARATIONS:
            yield from _declared(command)
        else:
            yield from command.assignments
            yield from _read_by(command) if command.name in READERS else ()
    for match in _DESCRIPTOR.finditer(source.text):
        yield _unknown(match[1], "exec", Context(branch=True), Word((), match.start(), match.end(), source))
    for use in uses:
        if use.operator in (":=", "="):
            yield _unknown(use.name, f"${{{use.operator}}}", Context(branch=True), use)


def _unknown(name: str, setter: str, context: Context, place: Placed) -> Assignment:
    """Return an assignment of a value that the text does not show."""
    return Assignment(
        name=name, setter=setter, context=context, at=place.at, end=place.at, source=place.source
    )


def _counted(text: str, setter: str, context: Context, place: Placed) -> Iterator[Assignment]:
    """Yield the assignments in arithmetic, such as i++."""
    for match in _COUNTED.finditer(text):
        yield _unknown(match[1] or match[2], setter, context, place)


def _declared(command: Command) -> Iterator[Assignment]:
    """Yield the assignments of export, declare, local, readonly and typeset.

    A name without a value is an assignment only if the command exports the variable.
    """
    flags = "".join(word.text[1:] for word in command.words[1:] if word.text.startswith("-"))
    exported = "x" in flags if command.name in ("declare", "typeset") else command.name == "export"
    if command.name == "export" and ("f" in flags or "n" in flags):
        return
    for assignment in command.assignments:
        is_as_said = assignment.prefix or assignment.exported == exported
        yield assignment if is_as_said else replace(assignment, exported=exported)
    for word in command.words[1:] if exported else ():
        if _NAME.fullmatch(word.text):
            name = _unknown(word.text, command.name, command.context, word)
            yield replace(name, exported=True, append=True, items=())


def _read_by(command: Command) -> Iterator[Assignment]:
    """Yield the assignments of read, mapfile, getopts, let, printf -v and unset."""
    words = command.words[1:]
    if command.name == "let":
        for word in words:
            yield from _counted(word.value or word.text, "let", command.context, command)
        return
    if command.name == "printf":
        words = words[1:2] if words and words[0].text == "-v" else ()
    elif command.name == "getopts":
        words = words[1:2]
    for word in words:
        if _NAME.fullmatch(word.text):
            yield _unknown(word.text, command.name, command.context, word)


def _split_again(word: Word) -> Word:
    """Return a word from an unquoted variable: bash also splits the parts that had quotes in the value."""
    if not any(piece.quoted and piece.kind in _EXPANSIONS for piece in word.pieces):
        return word
    pieces = (piece._replace(quoted=False) if piece.kind in _EXPANSIONS else piece for piece in word.pieces)
    return replace(word, pieces=tuple(pieces))
