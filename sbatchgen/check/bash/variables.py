"""The values that variables have at each place of a script, where its text shows them.

An assignment is certain if the script's own shell always makes it. The value at a place is known if no
uncertain assignment follows the last certain assignment before the place. A loop runs its text again, so a
later assignment in the same loop also makes the value unknown. In a function, the value is known only if the
whole script has a single assignment of the variable.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from sbatchgen.check.bash.statement import DECLARATIONS, Assignment, Command, Context, VariableUse
from sbatchgen.check.bash.text import TextRange
from sbatchgen.check.bash.walk import Statements
from sbatchgen.check.bash.word import Piece, Word, split_at_blanks

DEPTH_MAX = 20  # variables in the values of variables, one within the other
WORDS_MAX = 10_000  # words that a word may expand to
PIECES_MAX = 500  # pieces that a word may expand to

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DESCRIPTOR = re.compile(r"(?<![$\w])\{([A-Za-z_]\w*)\}(?=[<>])")  # the variable in exec {lock}>file
# NAME++, ++NAME, NAME=1 or NAME+=1 in (( )).
_ARITHMETIC_ASSIGNMENT = re.compile(
    r"(?<![\w$])([A-Za-z_]\w*)[ \t]*(?:\+\+|--|[-+*/%&|^]?=(?!=)|<<=|>>=)|(?:\+\+|--)([A-Za-z_]\w*)"
)
# Operators of ${NAME...} that leave the value of a set variable as it is, such as the :- of ${NAME:-x}.
_KEEPING_OPERATORS = ("", ":-", "-", ":?", "?")
# Kinds of pieces that bash splits at blanks if they are not in quotes.
_SPLIT_KINDS = ("variable", "command", "arithmetic")
LOCAL = frozenset(("local", "declare", "typeset"))  # commands that make variables of a function
# Commands that set or unset the variables that their arguments name, without NAME=VALUE.
READERS = frozenset(("read", "mapfile", "readarray", "getopts", "unset", "let", "printf"))


class Variables:
    """The variables of a script, and their values at each place."""

    def __init__(self, statements: Statements, uses: Sequence[VariableUse]) -> None:
        self._source = statements.source
        self._functions = _OutermostSpans((node.start, node.end) for node in statements.functions)
        self._loops = _OutermostSpans((loop.start, loop.end) for loop, _ in statements.loops)
        # Each place where a variable gets or loses a value, in the order of the text.
        self.assignments = tuple(sorted(_assignments(statements, uses), key=lambda assignment: assignment.at))
        # The id of a word -> the word, kept so that no other word gets its id, and the resolved word.
        self._resolved: dict[int, tuple[Word, Word]] = {}
        by_name: dict[str, list[Assignment]] = {}
        for assignment in self.assignments:
            if not assignment.is_prefix:
                by_name.setdefault(assignment.name, []).append(assignment)
        self._history_of = {name: _History(assignments) for name, assignments in by_name.items()}

    def resolve(self, word: Word) -> Word:
        """Return a single word, with the known values of variables in place of their expansions."""
        if word.value is not None:
            return word
        if id(word) not in self._resolved:
            pieces = self._resolve(word, DEPTH_MAX, [PIECES_MAX])
            self._resolved[id(word)] = word, Word(pieces, word.at, word.end, word.source)
        return self._resolved[id(word)][1]

    def expand(self, word: Word) -> tuple[Word, ...]:
        """Return the words that bash makes of a word: several for "${ARRAY[@]}" and for an unquoted $NAME.

        An expansion with an unknown value stays as it is.
        """
        return tuple(self._expand(word, DEPTH_MAX, [WORDS_MAX]))

    def _expand(self, word: Word, depth: int, budget: list[int]) -> Iterator[Word]:
        """Yield the words that bash makes of a word.

        A value may hold expansions again: `depth` is how many such levels may follow. `budget` has one item,
        the number of words that all calls together may still expand.
        """
        piece = word.only_piece
        budget[0] -= 1
        parts: Sequence[Word] | None = None  # the words of the value; None if the value is not known
        if word.source is self._source and piece and piece.kind == "variable" and depth and budget[0] >= 0:
            is_list = piece.subscript == "@" or (piece.subscript == "*" and not piece.is_quoted)
            is_split = not piece.is_quoted and not piece.subscript
            if is_list and not piece.operator:
                parts = self._items_at(piece.name, piece.at)
            elif is_split and not piece.operator and (value := self._value_at(piece.name, piece.at)):
                parts = tuple(split_at_blanks(value))
        if parts is None:
            yield word
            return
        for part in parts:
            inner = part if piece and piece.is_quoted else _without_quotes(part)
            yield from self._expand(inner, depth - 1, budget)

    def _resolve(self, word: Word, depth: int, budget: list[int]) -> tuple[Piece, ...]:
        """Return the pieces of a word, with the pieces of known values in place of expansions.

        `depth` is as in `_expand`. `budget` has one item, the number of pieces that all calls together may
        still resolve.
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
        last_certain, uncertain = self._last_assignments(name, at)
        if last_certain is None or next(uncertain, None) is not None:
            return None
        if last_certain.items is not None:  # $ARRAY is the first element
            return last_certain.items[0] if last_certain.items else None
        return last_certain.word

    def _items_at(self, name: str, at: int) -> tuple[Word, ...] | None:
        """Return the elements of an array at an offset; None if they are not known.

        Elements that the script appends in a branch are in the result, because a command may get them.
        """
        last_certain, uncertain = self._last_assignments(name, at)
        if last_certain is None or last_certain.items is None:
            return None
        items = [*last_certain.items]
        for assignment in uncertain:
            if not assignment.is_append or not assignment.items:
                return None
            items += assignment.items
        return tuple(items)

    def _last_assignments(self, name: str, at: int) -> tuple[Assignment | None, Iterator[Assignment]]:
        """Return the last certain assignment before an offset, and the uncertain ones that may follow it."""
        history = self._history_of.get(name)
        if history is None:
            return None, iter(())
        if self._functions.end_around(at):  # it is not known when a function runs
            return history.only_assignment, iter(())
        count = bisect_right(history.certain_ends, at)  # the number of certain assignments before the offset
        next_index = history.certain_indices[count - 1] + 1 if count else 0  # after the last of them
        last_certain = history.by_own_shell[next_index - 1] if count else None
        in_next_round = history.in_rest_of_loop(at, self._loops.end_around(at))
        uncertain = chain(history.ended_before(at, next_index), in_next_round, history.by_functions)
        return last_certain, uncertain


class _OutermostSpans:
    """The spans of a text that are in no other span of the same kind, such as the outermost loops."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(spans):
            if not self._ends or start >= self._ends[-1]:
                self._starts.append(start)
                self._ends.append(end)

    def end_around(self, at: int) -> int:
        """Return the offset where the span around an offset ends; 0 outside of all spans."""
        index = bisect_right(self._starts, at)
        return self._ends[index - 1] if index and at < self._ends[index - 1] else 0


class _History:
    """All assignments of one variable, in lists where the few that matter at an offset are quick to find.

    A script may have thousands of assignments and uses of a variable. A search through all assignments for
    each use would be slow.
    """

    def __init__(self, assignments: list[Assignment]) -> None:
        is_only = len(assignments) == 1 and assignments[0].context.is_top_level
        # The variable's only assignment, if the script's own shell always makes it; else None.
        self.only_assignment = assignments[0] if is_only else None
        in_functions = (assignment for assignment in assignments if assignment.context.function)
        # The assignments in functions whose values stay when the function returns.
        self.by_functions = [assignment for assignment in in_functions if assignment.setter not in LOCAL]
        outside_functions = [assignment for assignment in assignments if not assignment.context.function]
        self._outside_functions = outside_functions
        self._starts = [assignment.at for assignment in outside_functions]
        # The assignments outside of functions that the script's own shell makes, perhaps not always.
        self.by_own_shell = [assignment for assignment in outside_functions if _is_of_own_shell(assignment)]
        # The indices of the certain assignments in `by_own_shell`, and the offsets where they end.
        self.certain_indices = [
            index for index, assignment in enumerate(self.by_own_shell) if _is_certain(assignment)
        ]
        self.certain_ends = [self.by_own_shell[index].end for index in self.certain_indices]

    def ended_before(self, at: int, index: int) -> Iterator[Assignment]:
        """Yield the assignments of `by_own_shell`, from an index on, that end before an offset."""
        while index < len(self.by_own_shell) and self.by_own_shell[index].at <= at:
            if self.by_own_shell[index].end <= at:
                yield self.by_own_shell[index]
            index += 1

    def in_rest_of_loop(self, at: int, end: int) -> Iterator[Assignment]:
        """Yield the assignments between an offset and the end of its loop, which the next round sees."""
        index = bisect_left(self._starts, at)
        while index < len(self._outside_functions) and self._starts[index] < end:
            assignment = self._outside_functions[index]
            if assignment.end > at or not _is_of_own_shell(assignment):
                yield assignment
            index += 1


def _is_of_own_shell(assignment: Assignment) -> bool:
    """Return whether the script's own shell makes an assignment, not a subshell."""
    return not (assignment.context.in_subshell or assignment.context.in_substitution)


def _is_certain(assignment: Assignment) -> bool:
    """Return whether the script's own shell always makes an assignment that replaces the whole value."""
    return assignment.context.is_top_level and not assignment.is_append and not assignment.subscript


def _assignments(statements: Statements, uses: Sequence[VariableUse]) -> Iterator[Assignment]:
    """Yield each place where a variable gets or loses a value, in any order."""
    source = statements.source
    yield from statements.assignments
    for loop, context in statements.loops:
        place = Word((), loop.start, loop.start, source)  # an empty word that stands for the loop's start
        if loop.kind == "for_statement":
            name = loop.children[0]
            yield _unknown_value(source.text[name.start : name.end], "for", context, place)
        elif loop.kind == "c_style_for_statement":
            yield from _arithmetic_assignments(
                source.text[loop.start : loop.children[-1].start], "for", context, place
            )
    for command in statements.commands:
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
            match[1], "exec", Context(in_branch=True), Word((), match.start(), match.end(), source)
        )
    for use in uses:
        if use.operator in (":=", "="):
            yield _unknown_value(use.name, f"${{{use.operator}}}", Context(in_branch=True), use)


def _unknown_value(name: str, setter: str, context: Context, place: TextRange) -> Assignment:
    """Return an assignment at the start of `place`, of a value that the text does not show."""
    return Assignment(
        name=name, setter=setter, context=context, at=place.at, end=place.at, source=place.source
    )


def _arithmetic_assignments(
    text: str, setter: str, context: Context, place: TextRange
) -> Iterator[Assignment]:
    """Yield the assignments in a text of arithmetic, such as i++."""
    for match in _ARITHMETIC_ASSIGNMENT.finditer(text):
        yield _unknown_value(match[1] or match[2], setter, context, place)


def _declared_assignments(command: Command) -> Iterator[Assignment]:
    """Yield the assignments of export, declare, local, readonly and typeset.

    A name without a value, as in `export NAME`, is an assignment only if the command exports the variable.
    """
    flags = "".join(word.text[1:] for word in command.words[1:] if word.text.startswith("-"))
    exports = "x" in flags if command.name in ("declare", "typeset") else command.name == "export"
    if command.name == "export" and ("f" in flags or "n" in flags):
        return  # -f exports functions, and -n ends the export of a variable
    for assignment in command.assignments:
        is_correct = assignment.is_prefix or assignment.is_exported == exports
        yield assignment if is_correct else replace(assignment, is_exported=exports)
    if not exports:
        return
    for word in command.words[1:]:
        if _NAME.fullmatch(word.text):
            # `export NAME` keeps the value that the variable has, as if the script appended nothing to it.
            no_value = _unknown_value(word.text, command.name, command.context, word)
            yield replace(no_value, is_exported=True, is_append=True, items=())


def _reader_assignments(command: Command) -> Iterator[Assignment]:
    """Yield the assignments of `READERS`: read, mapfile, getopts, let, printf -v and unset."""
    words = command.words[1:]  # those that may be names of variables
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


def _without_quotes(word: Word) -> Word:
    """Return a word of a variable's value, with its expansions unquoted.

    After A="$B", an unquoted $A also splits the value of $B at blanks. The quotes around $B kept the value
    whole only in the assignment.
    """
    if not any(piece.is_quoted and piece.kind in _SPLIT_KINDS for piece in word.pieces):
        return word
    pieces = (
        piece._replace(is_quoted=False) if piece.kind in _SPLIT_KINDS else piece for piece in word.pieces
    )
    return replace(word, pieces=tuple(pieces))
