"""The body of a script: its commands, where they stand, what they set and what they use.

    body = read(text)
    [command.name for command in body.commands]     # "srun", "cd", ...
    body.value(word)                                # with variables whose value the script tells

Nothing is run and no file is read: what a `source`d file sets is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

from sbatchgen.bash.command import Assignment, Command, Context, ShellOption, VariableUse
from sbatchgen.bash.text import Fault, ShellText
from sbatchgen.bash.tools import SHELLS
from sbatchgen.bash.values import Values
from sbatchgen.bash.walk import Walk, walk
from sbatchgen.bash.word import Word, expansion

TOP = Context()


class Body:
    """The body of a script, as far as bash's grammar tells it.

    Attributes:
        language: The shell or the interpreter of the first line: "bash", "sh", "python3" and so on.
        source: The text; empty where the language is not a shell.
    """

    def __init__(self, source: ShellText, language: str, context: Context, flags: str) -> None:
        self.source = source
        self.language = language
        self.context = context
        self.flags = flags

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is not bash to the grammar. Seldom it is bash all the same: `bash -n` has the last word."""
        return self.source.faults

    @cached_property
    def _walk(self) -> Walk:
        return _up_to_exit(walk(self.source, self.context))

    @cached_property
    def end(self) -> int:
        """Where the script ends for sure, in characters from 0: after an exit or exec, or with its text."""
        return min(self._walk.end, len(self.source.text))

    @property
    def commands(self) -> tuple[Command, ...]:
        """All commands in the order of the text, also in functions, loops and substitutions."""
        return self._walk.commands

    @cached_property
    def comments(self) -> tuple[tuple[int, str], ...]:
        """The line and the text of each comment, with its #; directives are comments to bash."""
        text = self.source.text
        return tuple(
            (self.source.position(start)[0], text[start:end].rstrip())
            for start, end, kind in self.source.nodes
            if kind == "comment"
        )

    @cached_property
    def last(self) -> Command | None:
        """The command whose status is the script's, as far as the text tells."""
        return next((command for command in reversed(self.commands) if command.last), None)

    @cached_property
    def _values(self) -> Values:
        return Values(self._walk, lambda: self.uses)

    @property
    def sets(self) -> tuple[Assignment, ...]:
        """Each time that a variable gets or loses a value, in the order of the text."""
        return self._values.sets

    @cached_property
    def uses(self) -> tuple[VariableUse, ...]:
        """Each expansion of a variable, in the order of the text."""
        return tuple(use for use in _uses(self.source) if use.at < self.end)

    @cached_property
    def traps(self) -> tuple[tuple[Command, Body], ...]:
        """The trap commands that set a string, each with the body that the string is."""
        return tuple(_traps(self))

    @cached_property
    def settings(self) -> tuple[ShellOption, ...]:
        """The options that the script sets for its shell, in the order of the text."""
        return tuple(_settings(self))

    def option_at(self, name: str, line: int) -> bool:
        """Whether an option such as "pipefail" is on at the start of a line, as far as the text tells.

        What functions, subshells and branches set is left out.
        """
        on = False
        for setting in self.settings:
            if setting.name == name and setting.line < line and setting.context.top:
                on = setting.on
        return on

    def value(self, word: Word) -> str | None:
        """The string that a word is, with the variables whose value the script tells; else None."""
        literal = word.value
        return self._values.value(word) if literal is None else literal

    def expand(self, word: Word) -> tuple[Word, ...]:
        """The words that a word becomes: "${array[@]}" and $COMMAND are followed to where they are set.

        What can't be followed stays as it is.
        """
        return self._values.expand(word)

    def followed(self, word: Word) -> Word:
        """The word with what variables hold in their place, where the script tells it."""
        return self._values.followed(word)

    def text_of(self, word: Word) -> str:
        """The string that a word is, in which expansions that can't be followed stay as they are written."""
        return self._values.text_of(word)


def _up_to_exit(found: Walk) -> Walk:
    """What a script can run: nothing behind an exit or an exec that it always comes to."""
    for command in found.commands:
        leaves = command.name == "exit" or (command.name == "exec" and len(command.words) > 1)
        if leaves and command.context.top and not command.background and command.pipe is None:
            end = command.end
            command.last = True
            return found._replace(
                commands=tuple(one for one in found.commands if one.at < end),
                standing=tuple(one for one in found.standing if one[0] < end),
                end=end,
            )
    return found


def read(text: str) -> Body:
    """Read a script as bash does, without running it.

    Args:
        text: The whole script, with its first line and its directives; bytes that are no UTF-8 as surrogates.
    """
    language, flags = _language(text)
    source = ShellText(text if language in SHELLS else "")
    return Body(source, language, TOP, flags)


@lru_cache(maxsize=64)  # the rules of a script look into the same strings again and again
def read_string(
    text: str, origin: tuple[int, int], *, fixed: bool = False, context: Context | None = None
) -> Body:
    """Read a string that a shell is given within a script.

    Args:
        text: The string.
        origin: The line and the column of its first character.
        fixed: Whether every position is the origin's, because the string's own can't be told.
        context: Where the commands in it stand.
    """
    return Body(ShellText(text, origin, fixed=fixed), "bash", context or TOP, "")


def _language(text: str) -> tuple[str, str]:
    """The interpreter of the first line and its flags; bash where there is none."""
    if not text.startswith("#!"):
        return "bash", ""
    words = text[2 : text.find("\n") if "\n" in text else None].split()
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if word != "-S" and "=" not in word]
    if not words:
        return "bash", ""
    return words[0].rpartition("/")[2], " ".join(words[1:])


_ARITHMETIC = re.compile(r"\$\{[^}]*\}|\$\w+|\b0[xX]\w+|([A-Za-z_]\w*)")
_NAMED = re.compile(r"\$(?:[A-Za-z_]\w*|[\d@*#?!$-])")


def _uses(source: ShellText) -> Iterator[VariableUse]:
    text = source.text
    last = -1  # where the last expansion starts, whose own $ follows
    for start, end, kind in source.nodes:
        if kind in ("simple_expansion", "expansion"):
            last = text.index("$", start)  # in a string, the grammar takes the blank before it as well
            yield _use(source, text[last:end], last)
        elif kind == "arithmetic_expansion" or (
            kind == "compound_statement" and text.startswith("((", start)
        ):
            for match in _ARITHMETIC.finditer(text, start, end):
                if match[1]:  # a name without a $
                    yield VariableUse(match[1], "", match.start(), *source.position(match.start()))
        elif kind == "$" and start > last and (found := _NAMED.match(text, start)):
            yield _use(source, found[0], start)  # $B of $A/$B/$C


def _use(source: ShellText, text: str, at: int) -> VariableUse:
    piece = expansion(text, at, quoted=False)
    return VariableUse(piece.name, piece.operator, at, *source.position(at))


def _traps(body: Body) -> Iterator[tuple[Command, Body]]:
    for command in body.commands:
        if command.name != "trap" or len(command.words) < 3:
            continue
        words = command.words[2:] if command.words[1].text == "--" else command.words[1:]
        if words[0].text in ("-", "''", '""') or len(words) < 2:
            continue
        signals = tuple((word.value or word.text).upper().removeprefix("SIG") for word in words[1:])
        yield command, string_body(body, words[0], context=Context(trap=signals))


def string_body(body: Body, word: Word, *, context: Context | None = None) -> Body:
    """The body that a string is, such as a trap's or bash -c's, with the variables that can be followed.

    Positions are those in the script where the string stands there as it is; else the word's own.
    """
    text = body.text_of(word)
    at = word.at + 1
    kept = len(word.pieces) == 1 and word.quoted and word.source.text[at : word.end - 1] == text
    line, column = word.source.position(at if kept else word.at)
    return read_string(text, (line, column), fixed=not kept, context=context)


_LETTERS = {"a": "allexport", "e": "errexit", "u": "nounset"}  # those that rules ask for


def _settings(body: Body) -> Iterator[ShellOption]:
    if body.flags:
        yield from _options(body.flags.split(), 1, Context())
    for command in body.commands:
        if command.name == "set":
            yield from _options(command.arguments, command.line, command.context)


def _options(words: list[str], line: int, context: Context) -> Iterator[ShellOption]:
    """Source: bash(1), SHELL BUILTIN COMMANDS, set."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if len(word) < 2 or word[0] not in "+-" or word == "--":
            return
        for letter in word[1:]:
            if letter == "o" and at < len(words):
                yield ShellOption(words[at], word[0] == "-", line, context)
                at += 1
            elif letter in _LETTERS:
                yield ShellOption(_LETTERS[letter], word[0] == "-", line, context)
