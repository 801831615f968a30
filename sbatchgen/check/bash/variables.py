"""The values of variables at their uses, if the text shows them: literal assignments, and arrays.

An assignment is certain if the script's own shell always makes it. The value at a use is known if no
uncertain assignment follows the last certain assignment before the use. A loop runs its text again, so a
later assignment in the same loop also hides the value. In a function, the value is known only if the whole
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
from sbatchgen.check.bash.word import Piece, Word, split_at_blanks

DEPTH_MAX = 20  # variables in the values of variables
WORDS_MAX = 10_000  # words that a word may expand to
PIECES_MAX = 500  # pieces that a word may expand to

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DESCRIPTOR = re.compile(r"(?<![$\w])\{([A-Za-z_]\w*)\}(?=[<>])")  # the variable in exec {lock}>file
# NAME++, ++NAME, NAME=1 or NAME+=1 in (( )).
_ARITHMETIC_ASSIGNMENT = re.compile(
    r"(?<![\w$])([A-Za-z_]\w*)[ \t]*(?:\+\+|--|[-+*/%&|^]?=(?!=)|<<=|>>=)|(?:\+\+|--)([A-Za-z_]\w*)"
)
_KEEPING_OPERATORS = ("", ":-", "-", ":?", "?")  # operators that give the value of a set variable as it is
_SPLIT_KINDS = ("variable", "command", "arithmetic")  # kinds of pieces that bash splits without quotes
LOCAL = frozenset(("local", "declare", "typeset"))  # commands that make variables of a function
# Commands whose arguments name variables.
READERS = frozenset(("read", "mapfile", "readarray", "getopts", "unset", "let", "printf"))


class Variables:
    """The variables of a script, and their values at each place."""

    def __init__(self, walk: Walk, uses: Sequence[VariableUse]) -> None:
        self._source = walk.source
        self._functions = _Spans((node.start, node.end) for node in walk.functions)
        self._loops = _Spans((loop.start, loop.end) for loop, _ in walk.loops)
        # Each time that a variable gets or loses a value, in the order of the text.
        self.sets = tuple(sorted(_assignments(walk, uses), key=lambda assignment: assignment.at))
        self._resolved: dict[int, tuple[Word, Word]] = {}  # the id of a word -> the word, and its expansion
        by_name: dict[str, list[Assignment]] = {}
        for assignment in self.sets:
            if not assignment.prefix:
                by_name.setdefault(assignment.name, []).append(assignment)
        self._by_name = {name: _History(assignments) for name, assignments in by_name.items()}

    def resolve(self, word: Word) -> Word:
        """Return the word with the known values of variables in place of their expansions."""
        if word.value is not None:
            return word
        if id(word) not in self._resolved:
            pieces = self._resolve(word, DEPTH_MAX, [PIECES_MAX])
            self._resolved[id(word)] = word, Word(pieces, word.at, word.end, word.source)
        return self._resolved[id(word)][1]

    def expand(self, word: Word) -> tuple[Word, ...]:
        """Return the words that a word expands to; expansions with unknown values stay."""
        return tuple(self._expand(word, DEPTH_MAX, [WORDS_MAX]))

    def _expand(self, word: Word, depth: int, budget: list[int]) -> Iterator[Word]:
        """Yield the words that a word expands to.

        `depth` is how many variables in values may follow. `budget` holds how many words all calls may still
        expand.
        """
        piece = word.only_piece
        budget[0] -= 1
        parts: Sequence[Word] | None = None
        if word.source is self._source and piece and piece.kind == "variable" and depth and budget[0] >= 0:
            is_list = piece.subscript == "@" or (piece.subscript == "*" and not piece.quoted)
            is_split = not piece.quoted and not piece.subscript
            if is_list and not piece.operator:
                parts = self._items_at(piece.name, piece.at)
            elif is_split and not piece.operator and (value := self._value_at(piece.name, piece.at)):
                parts = tuple(split_at_blanks(value))
        if parts is None:
            yield word
            return
        for part in parts:
            yield from self._expand(part if piece and piece.quoted else _split_again(part), depth - 1, budget)

    def _resolve(self, word: Word, depth: int, budget: list[int]) -> tuple[Piece, ...]:
        """Return the pieces of a word, with the pieces of known values in place of expansions.

        `depth` and `budget` are as in `_expand`, with pieces in place of words.
        """
        if word.source is not self._source or word.value is not None:
            return word.pieces
        pieces: list[Piece] = []
        for piece in word.pieces:
            budget[0] -= 1
            value: Word | None = None
            if (
                piece.kind == "variable"
                and piece.subscript in ("", "0")
                and piece.operator in _KEEPING_OPERATORS
            ):
                value = self._value_at(piece.name, piece.at) if depth and budget[0] > 0 else None
            pieces += (piece,) if value is None else self._resolve(value, depth - 1, budget)
        return tuple(pieces)

    def _value_at(self, name: str, at: int) -> Word | None:
        """Return the value of a variable at an offset; None if the value is not known."""
        last, later = self._last_certain(name, at)
        if last is None or next(later, None) is not None:
            return None
        if last.items is not None:
            return last.items[0] if last.items else None
        return last.word

    def _items_at(self, name: str, at: int) -> tuple[Word, ...] | None:
        """Return the elements of an array at an offset, even if a branch appends them; None if unknown."""
        last, later = self._last_certain(name, at)
        if last is None or last.items is None:
            return None
        items = [*last.items]
        for assignment in later:
            if not assignment.append or not assignment.items:
                return None
            items += assignment.items
        return tuple(items)

    def _last_certain(self, name: str, at: int) -> tuple[Assignment | None, Iterator[Assignment]]:
        """Return the last certain assignment before an offset, and uncertain ones that may follow it."""
        history = self._by_name.get(name)
        if history is None:
            return None, iter(())
        if self._functions.end_around(at):
            return history.only, iter(())
        count = bisect_right(history.certain_ends, at)  # the number of certain assignments before the offset
        next_index = history.certain_indices[count - 1] + 1 if count else 0  # after the last of them
        last = history.by_shell[next_index - 1] if count else None
        in_next_round = history.in_rest_of_loop(at, self._loops.end_around(at))
        return last, chain(history.ended_before(at, next_index), in_next_round, history.by_functions)


class _Spans:
    """The outermost parts of one kind in a text, such as loops."""

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


class _History:
    """The assignments of a variable in the order of the text. A use of the variable looks at few of them."""

    def __init__(self, assignments: list[Assignment]) -> None:
        is_only = len(assignments) == 1 and assignments[0].context.top
        # The only assignment, if the script's own shell always makes it; else None.
        self.only = assignments[0] if is_only else None
        functions = (assignment for assignment in assignments if assignment.context.function)
        # The assignments in functions that outlive a call of the function.
        self.by_functions = [assignment for assignment in functions if assignment.setter not in LOCAL]
        self._outside = [assignment for assignment in assignments if not assignment.context.function]
        self._starts = [assignment.at for assignment in self._outside]
        # The assignments that the script's own shell makes, perhaps not always.
        self.by_shell = [assignment for assignment in self._outside if _is_of_own_shell(assignment)]
        # The indices of the certain assignments in `by_shell`, and the offsets where they end.
        self.certain_indices = [
            index for index, assignment in enumerate(self.by_shell) if _is_certain(assignment)
        ]
        self.certain_ends = [self.by_shell[index].end for index in self.certain_indices]

    def ended_before(self, at: int, index: int) -> Iterator[Assignment]:
        """Yield the assignments of `by_shell`, from an index on, that end before an offset."""
        while index < len(self.by_shell) and self.by_shell[index].at <= at:
            if self.by_shell[index].end <= at:
                yield self.by_shell[index]
            index += 1

    def in_rest_of_loop(self, at: int, end: int) -> Iterator[Assignment]:
        """Yield the assignments between an offset and the end of its loop, which the next round sees."""
        index = bisect_left(self._starts, at)
        while index < len(self._outside) and self._starts[index] < end:
            assignment = self._outside[index]
            if assignment.end > at or not _is_of_own_shell(assignment):
                yield assignment
            index += 1


def _is_of_own_shell(assignment: Assignment) -> bool:
    """Return whether the script's own shell makes an assignment, not a subshell."""
    return not (assignment.context.subshell or assignment.context.substitution)


def _is_certain(assignment: Assignment) -> bool:
    """Return whether the script's own shell always makes an assignment that replaces the whole value."""
    return assignment.context.top and not assignment.append and not assignment.subscript


def _assignments(walk: Walk, uses: Sequence[VariableUse]) -> Iterator[Assignment]:
    """Yield each time that a variable gets or loses a value."""
    source = walk.source
    yield from walk.assignments
    for loop, context in walk.loops:
        place = Word((), loop.start, loop.start, source)  # an empty word, for its position
        if loop.kind == "for_statement":
            name = loop.children[0]
            yield _unknown_value(source.text[name.start : name.end], "for", context, place)
        elif loop.kind == "c_style_for_statement":
            yield from _arithmetic_assignments(
                source.text[loop.start : loop.children[-1].start], "for", context, place
            )
    for command in walk.commands:
        if command.is_test:
            arithmetic = command.text if command.path == "((" else ""
            yield from _arithmetic_assignments(arithmetic, "((", command.context, command)
        elif command.name in DECLARATIONS:
            yield from _declared_assignments(command)
        else:
            yield from command.assignments
            yield from _reader_assignments(command) if command.name in READERS else ()
    for match in _DESCRIPTOR.finditer(source.text):
        yield _unknown_value(
            match[1], "exec", Context(branch=True), Word((), match.start(), match.end(), source)
        )
    for use in uses:
        if use.operator in (":=", "="):
            yield _unknown_value(use.name, f"${{{use.operator}}}", Context(branch=True), use)


def _unknown_value(name: str, setter: str, context: Context, place: Placed) -> Assignment:
    """Return an assignment of a value that the text does not show."""
    return Assignment(
        name=name, setter=setter, context=context, at=place.at, end=place.at, source=place.source
    )


def _arithmetic_assignments(text: str, setter: str, context: Context, place: Placed) -> Iterator[Assignment]:
    """Yield the assignments in arithmetic, such as i++."""
    for match in _ARITHMETIC_ASSIGNMENT.finditer(text):
        yield _unknown_value(match[1] or match[2], setter, context, place)


def _declared_assignments(command: Command) -> Iterator[Assignment]:
    """Yield the assignments of export, declare, local, readonly and typeset.

    A name without a value is an assignment only if the command exports the variable.
    """
    flags = "".join(word.text[1:] for word in command.words[1:] if word.text.startswith("-"))
    exported = "x" in flags if command.name in ("declare", "typeset") else command.name == "export"
    if command.name == "export" and ("f" in flags or "n" in flags):
        return
    for assignment in command.assignments:
        is_complete = assignment.prefix or assignment.exported == exported
        yield assignment if is_complete else replace(assignment, exported=exported)
    for word in command.words[1:] if exported else ():
        if _NAME.fullmatch(word.text):
            # An append of nothing: the variable keeps the value that it has.
            no_value = _unknown_value(word.text, command.name, command.context, word)
            yield replace(no_value, exported=True, append=True, items=())


def _reader_assignments(command: Command) -> Iterator[Assignment]:
    """Yield the assignments of read, mapfile, getopts, let, printf -v and unset."""
    words = command.words[1:]
    if command.name == "let":
        for word in words:
            yield from _arithmetic_assignments(word.value or word.text, "let", command.context, command)
        return
    if command.name == "printf":
        words = words[1:2] if words and words[0].text == "-v" else ()
    elif command.name == "getopts":
        words = words[1:2]
    for word in words:
        if _NAME.fullmatch(word.text):
            yield _unknown_value(word.text, command.name, command.context, word)


def _split_again(word: Word) -> Word:
    """Return a word of an unquoted variable's value with its expansions unquoted.

    The quotes in the assignment do not count any more: bash also splits the values of these expansions.
    """
    if not any(piece.quoted and piece.kind in _SPLIT_KINDS for piece in word.pieces):
        return word
    pieces = (piece._replace(quoted=False) if piece.kind in _SPLIT_KINDS else piece for piece in word.pieces)
    return replace(word, pieces=tuple(pieces))
