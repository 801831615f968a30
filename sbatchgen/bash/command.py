"""A command: its words, its redirections, and what it stands in.

The grammar's tree tells where a command starts and what it stands in; its words are read here, as bash(1) has
them, because the tree gives the words after a redirection to the redirection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sbatchgen.bash.text import Placed, ShellText
from sbatchgen.bash.word import Piece, Word, elements, scan, skip_blanks

DECLARATIONS = frozenset(("declare", "export", "local", "readonly", "typeset"))


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a command stands in.

    Attributes:
        function: The function's name; "" outside of functions.
        loop: Whether it is in a loop.
        branch: Whether it is run only sometimes: in an if, a case, a loop, or on the right of && or ||.
        condition: Whether its status is asked: in the test of if or while, after !, on the left of && or ||.
        subshell: Whether it is in ( ).
        substitution: Whether it is in $( ), backquotes or <( ).
        trap: The signals of the trap whose string it stands in.
        background: Whether what it stands in is started with &.
    """

    function: str = ""
    loop: bool = False
    branch: bool = False
    condition: bool = False
    subshell: bool = False
    substitution: bool = False
    trap: tuple[str, ...] = ()
    background: bool = False

    @property
    def top(self) -> bool:
        """Whether it is run once, in the script's own shell, whenever the script gets there."""
        return not (self.function or self.branch or self.subshell or self.substitution or self.trap)


@dataclass(slots=True)
class Pipe:
    """A pipeline: its stages, each with the commands in it."""

    stages: list[list[Command]] = field(default_factory=list)

    def add(self, command: Command) -> None:
        """Add a command to its stage."""
        while len(self.stages) <= command.stage:
            self.stages.append([])
        self.stages[command.stage].append(command)


class Redirect(NamedTuple):
    """A redirection.

    Attributes:
        operator: Such as ">", "<<" or "2>&1"'s ">&".
        target: The file, the descriptor, the string of <<< or the delimiter of <<.
    """

    operator: str
    target: Word | None


class Assignment(NamedTuple):
    """A variable that gets a value. Lines and columns count from 1.

    Attributes:
        name: The variable's.
        word: The value as it is written; None for an array, and where a command sets the value.
        items: The words of an array's value; None if it is not an array.
        append: Whether it is +=.
        subscript: What stands in brackets after the name.
        by: The command or word that sets it: "", "export", "declare", "for", "read", "unset" and so on.
        exported: Whether this makes it a variable of the environment.
        prefix: Whether it holds for one command only.
        context: Where it stands.
        at: Where it starts, in characters from 0.
        end: Where it ends.
        line: The line where it starts.
        column: The column where it starts.
    """

    name: str
    word: Word | None
    items: tuple[Word, ...] | None
    append: bool
    subscript: str
    by: str
    exported: bool
    prefix: bool
    context: Context
    at: int
    end: int
    line: int
    column: int

    @property
    def value(self) -> str | None:
        """The string it is set to, where the text tells it."""
        return None if self.word is None or self.append else self.word.value


class VariableUse(NamedTuple):
    """An expansion of a variable. Lines and columns count from 1.

    Attributes:
        name: The variable's, or 1, @, ? and the like.
        operator: "#" and "!" before the name; ":-", ":?", "##" and the like after it.
        at: Where it starts, in characters from 0.
        line: The line where it starts.
        column: The column where it starts.
    """

    name: str
    operator: str
    at: int
    line: int
    column: int


class ShellOption(NamedTuple):
    """An option of the shell that is set or unset, by `set` or the first line.

    Attributes:
        name: Its long name, such as "errexit".
        on: Whether it is set.
        line: The line.
        context: Where the command stands.
    """

    name: str
    on: bool
    line: int
    context: Context


class Command(Placed):
    """A simple command, or a test: [[ ]], [ ] or (( )). Its parts are read when they are asked for.

    Attributes:
        at: Where it starts, in characters from 0.
        context: Where it stands.
        pipe: The pipeline that it is a command of; None outside of one.
        stage: Its place in the pipeline, from 0.
        background: Whether it is started with &, alone or with what it stands in.
        source: The script that it stands in; of a trap's string, that string.
        test: Whether it is a test.
        tree_end: Where the grammar has it end.
        last: Whether it is the last command of the script's own shell: its status is the script's.
    """

    def __init__(
        self,
        source: ShellText,
        at: int,
        tree_end: int,
        context: Context,
        *,
        pipe: Pipe | None,
        stage: int,
        test: bool,
    ) -> None:
        self.source = source
        self.at = at
        self.context = context
        self.pipe = pipe
        self.stage = stage
        self.background = context.background
        self.tree_end = tree_end
        self.test = test
        self.last = False

    def __repr__(self) -> str:
        return f"<Command {self.text!r}, line {self.line}>"

    @cached_property
    def _parts(self) -> tuple[tuple[Word, ...], tuple[Assignment, ...], tuple[Redirect, ...], int]:
        return _test_parts(self) if self.test else _parts(self)

    @property
    def words(self) -> tuple[Word, ...]:
        """Its words: the first is its name; without redirections, and without assignments before the name."""
        return self._parts[0]

    @property
    def prefix(self) -> tuple[Assignment, ...]:
        """The assignments before its name."""
        return self._parts[1]

    @property
    def redirects(self) -> tuple[Redirect, ...]:
        """Its own redirections, in order."""
        return self._parts[2]

    @property
    def end(self) -> int:
        """Where it ends."""
        return self._parts[3]

    @property
    def text(self) -> str:
        """The command as it is written."""
        return self.source.text[self.at : self.end]

    @cached_property
    def path(self) -> str:
        """Its first word; "" where that is an expansion or missing."""
        if self.test:
            return _test_opener(self.source.text, self.at)
        text = self.source.text
        if quick := _NAME.match(text, self.at, self.tree_end):
            return quick[1]
        return (self.words[0].value or "") if self.words else ""

    @property
    def arguments(self) -> list[str]:
        """The values of the words after the first; "" for one that only the running bash knows."""
        return [word.value or "" for word in self.words[1:]]

    @property
    def name(self) -> str:
        """Its first word without the folder."""
        return self.path.rpartition("/")[2]


_NAME = re.compile(r"([\w./+-]+)(?=[ \t\n;]|\Z)")
ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[((?:[^\[\]]|\[[^\]]*\])*)\])?(\+?)=")
_REDIRECT = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})?(&>>|&>|<<<|<<-?|<>|<&|>&|>>|>\||[<>](?!\())")


def _parts(command: Command) -> tuple[tuple[Word, ...], tuple[Assignment, ...], tuple[Redirect, ...], int]:
    """A simple command's words, assignments before them, redirections, and where it ends."""
    source = command.source
    text = source.text
    words: list[Word] = []
    prefix: list[Assignment] = []
    redirects: list[Redirect] = []
    at = end = command.at
    while True:
        at = skip_blanks(text, at)
        if redirect := _REDIRECT.match(text, at):
            found, at = _redirect(source, redirect)
            redirects.append(found)
        elif not words and (assigned := ASSIGNED.match(text, at)):
            assignment, at = assignment_at(source, assigned, command.context, prefix=True)
            prefix.append(assignment)
        else:
            word = None if text[at : at + 1] in "#`" and _is_end(source, at) else scan(source, at)
            if word is None:
                return tuple(words), tuple(prefix), tuple(redirects), end
            if words and words[0].text in DECLARATIONS and text[word.end : word.end + 1] == "(":
                word = _with_array(word)
            words.append(word)
            at = word.end
        end = at


def _is_end(source: ShellText, at: int) -> bool:
    """Whether a comment starts here, or the backquotes end that the command stands in."""
    return source.text[at : at + 1] in ("#", "") or at not in source.spans


def _with_array(word: Word) -> Word:
    """The word NAME= with the array's value that follows it."""
    _, end = elements(word.source, word.end)
    piece = Piece("array", word.source.text[word.end : end], quoted=False, at=word.end)
    return Word((*word.pieces, piece), word.at, end, word.source)


def _redirect(source: ShellText, match: re.Match[str]) -> tuple[Redirect, int]:
    at = skip_blanks(source.text, match.end())
    target = scan(source, at)
    end = target.end if target else match.end()
    return Redirect(match[1], target), end


def assignment_at(
    source: ShellText, match: re.Match[str], context: Context, *, by: str = "", prefix: bool = False
) -> tuple[Assignment, int]:
    """The assignment that NAME= starts, and where it ends."""
    at = match.end()
    name, subscript, append = match.groups()
    word, items = None, None
    if source.text.startswith("(", at):
        items, end = elements(source, at)
    else:
        word = scan(source, at) if not source.text.startswith("`", at) or at in source.spans else None
        word = word or Word((), at, at, source)
        end = word.end
    line, column = source.position(match.start())
    assignment = Assignment(
        name,
        word,
        items,
        bool(append),
        subscript or "",
        by,
        by == "export",
        prefix,
        context,
        match.start(),
        end,
        line,
        column,
    )
    return assignment, end


def _test_opener(text: str, at: int) -> str:
    return text[at : at + 2] if text[at + 1 : at + 2] in ("[", "(") else "["


def _test_parts(
    command: Command,
) -> tuple[tuple[Word, ...], tuple[Assignment, ...], tuple[Redirect, ...], int]:
    """The words of [[ ]], [ ] or (( )): operators are words too, what stands in (( )) is one."""
    source, end = command.source, command.tree_end
    text, at = source.text, command.at
    opener = _test_opener(text, at)
    words = [Word((Piece("text", opener, quoted=False, at=at),), at, at + len(opener), source)]
    at += len(opener)
    if opener == "((":
        inner = Piece("arithmetic", text[at : end - 2], quoted=False, at=at)
        return (*words, Word((inner,), at, end - 2, source)), (), (), end
    while at < end:
        if text[at].isspace() or text.startswith("\\\n", at):
            at += 1 + (text[at] == "\\")
            continue
        word = None if text[at] in ";&|<>()" else scan(source, at, end)
        if word is None:
            operator = _OPERATOR.match(text, at)
            stop = operator.end() if operator else at + 1
            word = Word((Piece("text", text[at:stop], quoted=False, at=at),), at, stop, source)
        words.append(word)
        at = word.end
    return tuple(words), (), (), end


_OPERATOR = re.compile(r"&&|\|\||[;&|<>()]")
