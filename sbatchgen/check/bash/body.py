"""The body of a script: its commands and their contexts, and the variables that it sets and uses.

    body = read_body(text)
    [command.name for command in body.commands]     # "srun", "cd", ...
    body.value(word)                                # the string of a word such as "$DIR/train.py"

The reader runs nothing and reads no files, so it does not know the variables that a `source`d file sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from sbatchgen.base.frozen import cached_property
from sbatchgen.check.bash.statement import Assignment, Command, Context, ShellOption, VariableUse
from sbatchgen.check.bash.text import Fault, ShellText
from sbatchgen.check.bash.variables import Variables
from sbatchgen.check.bash.walk import Statements, find_statements
from sbatchgen.check.bash.word import Word, read_expansion
from sbatchgen.check.executables.program import SHELLS

TOP_LEVEL = Context()  # the context of a command outside of all constructs


@dataclass(eq=False, repr=False)
class Body:
    """The body of a script, or a string in a script that a shell runs, such as the string of bash -c.

    Each part is read from the text when it is first asked for.
    """

    source: ShellText  # the text; empty if the language is not a shell
    language: str  # the shell or the interpreter of the first line: "bash", "sh", "python3" and so on
    context: Context  # the constructs around the whole text, such as the trap whose string it is
    flags: str  # the options of the shell in the first line, such as "-l" in #!/bin/bash -l

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The places that the grammar does not understand. It may be wrong, so `bash -n` decides."""
        return self.source.faults

    @cached_property
    def _statements(self) -> Statements:
        return _cut_at_exit(find_statements(self.source, self.context))

    @cached_property
    def end(self) -> int:
        """The offset of the script's end: after an exit or exec that always runs, or the text's end."""
        return min(self._statements.end, len(self.source.text))

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """All commands in the order of the text, also in functions, loops and substitutions."""
        return tuple(self._statements.commands)

    @property
    def tests(self) -> list[Command]:
        """The tests, such as [ -n "$PBS_JOBID" ]."""
        return [command for command in self.commands if command.is_test or command.name == "test"]

    @cached_property
    def comments(self) -> tuple[tuple[int, str], ...]:
        """The line and the text of each comment, with its #. Directives are comments to bash."""
        text = self.source.text
        return tuple(
            (self.source.position(node.start)[0], text[node.start : node.end].rstrip())
            for node in self.source.nodes
            if node.kind == "comment"
        )

    @property
    def loop_spans(self) -> tuple[tuple[int, int], ...]:
        """The offsets where each loop starts and ends, in the order of the text."""
        return tuple((node.start, node.end) for node, _ in self._statements.loops)

    @cached_property
    def last_command(self) -> Command | None:
        """The command whose status is the script's status; None if the text does not show the command."""
        return next((command for command in reversed(self.commands) if command.ends_script), None)

    def command_around(self, at: int) -> Command | None:
        """Return the innermost command around an offset; None outside of commands."""
        # An inner command comes after the command around it.
        commands_around = (command for command in reversed(self.commands) if command.at <= at < command.end)
        return next(commands_around, None)

    @cached_property
    def _variables(self) -> Variables:
        return Variables(self._statements, self.variable_uses)

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """Each place where a variable gets or loses a value, in the order of the text."""
        return self._variables.assignments

    def assignments_of(self, name: str) -> tuple[Assignment, ...]:
        """Return each place where the variable `name` gets or loses a value, in the order of the text."""
        return self._assignments_by_name.get(name, ())

    @cached_property
    def _assignments_by_name(self) -> dict[str, tuple[Assignment, ...]]:
        by_name: dict[str, list[Assignment]] = {}
        for assignment in self.assignments:
            by_name.setdefault(assignment.name, []).append(assignment)
        return {name: tuple(assignments) for name, assignments in by_name.items()}

    @cached_property
    def variable_uses(self) -> tuple[VariableUse, ...]:
        """Each expansion of a variable, in the order of the text."""
        return tuple(use for use in _variable_uses(self.source) if use.at < self.end)

    @cached_property
    def traps(self) -> tuple[tuple[Command, Body], ...]:
        """The `trap` commands that set an action, each with the action's string as a body."""
        traps = []
        for command in self.commands:
            words = command.trap_words
            if words and words[0].text not in ("-", "''", '""'):
                signals = tuple((word.value or word.text).upper().removeprefix("SIG") for word in words[1:])
                context = Context(trap_signals=signals)
                traps.append((command, string_body(self, words[0], context=context)))
        return tuple(traps)

    @cached_property
    def function_by_line(self) -> dict[int, str]:
        """The name of the function around each line with a command, by the number of the line.

        Lines outside of functions are missing.
        """
        functions: dict[int, str] = {}
        for command in self.commands:
            if command.context.function:
                lines = range(command.line, command.end_line + 1)
                functions.update(dict.fromkeys(lines, command.context.function))
        return functions

    @cached_property
    def shell_options(self) -> tuple[ShellOption, ...]:
        """Each place where the script turns an option of its shell on or off, in the order of the text."""
        options = [*_shell_options(self.flags.split(), 1, TOP_LEVEL)]
        for command in self.commands:
            if command.name == "set":
                options += _shell_options(command.arguments, command.line, command.context)
        return tuple(options)

    def is_option_on(self, name: str, line: int) -> bool:
        """Return whether an option such as "pipefail" is on at the start of a line.

        A `set` in a subshell, a branch or another function is ignored.
        """
        is_on, function = False, self.function_by_line.get(line, "")
        for option in self.shell_options:
            context = option.context
            if context.function == function:
                context = context._replace(function="")  # within the function, its own options count
            if option.name == name and option.line < line and context.is_top_level:
                is_on = option.is_on
        return is_on

    def value(self, word: Word) -> str | None:
        """Return the string that a word stands for; None if the string depends on an unknown value."""
        literal = word.value  # without expansions
        return self.resolve(word).value if literal is None else literal

    def expand(self, word: Word) -> tuple[Word, ...]:
        """Return the words that bash makes of a word, such as the elements of "${array[@]}".

        An expansion with an unknown value stays as it is.
        """
        return self._variables.expand(word)

    def resolve(self, word: Word) -> Word:
        """Return a single word, with the known values of variables in place of their expansions."""
        return self._variables.resolve(word)

    def text_of(self, word: Word) -> str:
        """Return the string that a word stands for. Expansions with unknown values stay as written."""
        literal = word.value  # without expansions
        return "".join(piece.text for piece in self.resolve(word).pieces) if literal is None else literal


def _cut_at_exit(statements: Statements) -> Statements:
    """Return the statements without those after an `exit` or `exec` that always runs."""
    for command in statements.commands:
        # `exec` without a program only redirects the output of the script.
        leaves_shell = command.name == "exit" or (command.name == "exec" and len(command.words) > 1)
        is_certain = command.context.is_top_level and not command.in_background and command.pipe is None
        if leaves_shell and is_certain:
            end = command.end
            command.ends_script = True
            statements.commands = [other for other in statements.commands if other.at < end]
            statements.assignments = [
                assignment for assignment in statements.assignments if assignment.at < end
            ]
            statements.loops = [loop for loop in statements.loops if loop[0].start < end]
            statements.end = end
            break
    return statements


def read_body(text: str) -> Body:
    """Return the body of a whole script. In `text`, bytes outside UTF-8 are surrogates."""
    language, flags = _language(text)
    source = ShellText(text if language in SHELLS else "")
    return Body(source, language, TOP_LEVEL, flags)


@lru_cache(maxsize=64)  # the rules of a script look into the same strings again and again
def _read_string(
    text: str, origin: tuple[int, int], context: Context, *, has_one_position: bool = False
) -> Body:
    """Return the body of a string that a shell runs; `origin` and `has_one_position` are as in ShellText."""
    return Body(ShellText(text, origin, has_one_position=has_one_position), "bash", context, "")


def _language(text: str) -> tuple[str, str]:
    """Return the interpreter of the first line and its flags; "bash" and "" if the line has no #!."""
    if not text.startswith("#!"):
        return "bash", ""
    words = text[2 : text.find("\n") if "\n" in text else None].split()
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if word != "-S" and "=" not in word]
    if not words:
        return "bash", ""
    return words[0].rpartition("/")[2], " ".join(words[1:])


# A part of arithmetic such as $((N + ${M} + 0x1F)). Group 1 is a variable without a $, such as N.
_ARITHMETIC_PART = re.compile(r"\$\{[^}]*\}|\$\w+|\b0[xX]\w+|([A-Za-z_]\w*)")
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?!$-])")


def _variable_uses(source: ShellText) -> Iterator[VariableUse]:
    """Yield each expansion of a variable, and each variable without a $ in arithmetic."""
    text = source.text
    for node in source.nodes:
        if node.kind == "expansion":
            piece = read_expansion(text[node.start : node.end], node.start, is_quoted=False)
            yield VariableUse(piece.name, piece.operator, node.start, node.end, source)
        elif node.kind in ("simple_expansion", "$"):  # for $B in $A/$B/$C, the grammar has only a node "$"
            if name := _VARIABLE.match(text, node.start):
                yield VariableUse(name[1], "", *name.span(), source)
        elif node.kind == "arithmetic_expansion" or (
            node.kind == "compound_statement" and text.startswith("((", node.start)
        ):
            for part in _ARITHMETIC_PART.finditer(text, node.start, node.end):
                if part[1]:  # others have nodes of their own
                    yield VariableUse(part[1], "", *part.span(), source)


def string_body(body: Body, word: Word, *, context: Context | None = None) -> Body:
    """Return the body of a string that a word holds, such as the string of a trap or of bash -c.

    If the word shows the string unchanged, as in '...', each command of the string has its own position in
    the script. Otherwise, all have the position of the word. Without `context`, the commands of the string
    are at its top level.
    """
    text = body.text_of(word)
    at = word.at + 1  # after the quote
    is_literal = len(word.pieces) == 1 and word.is_quoted and word.source.text[at : word.end - 1] == text
    origin = word.source.position(at if is_literal else word.at)
    return _read_string(text, origin, context or TOP_LEVEL, has_one_position=not is_literal)


def input_body(command: Command) -> Body | None:
    """Return the body of the here-document that a shell reads, such as that of bash <<'END'.

    The result is None without a here-document. It is also None if this shell changes the text before the
    command reads it, because the text has expansions and the delimiter no quotes.
    """
    delimiters = [redirect.target for redirect in command.redirects if redirect.operator in ("<<", "<<-")]
    delimiter = delimiters[0] if len(delimiters) == 1 else None
    if delimiter is None or delimiter.value is None:
        return None
    text = command.source.text
    at = text.find("\n", delimiter.end) + 1
    end = re.compile(rf"^\t*{re.escape(delimiter.value)}$", re.MULTILINE).search(text, at) if at else None
    if end is None:
        return None
    inner = text[at : end.start()]
    if not delimiter.is_quoted and "\\" not in delimiter.text and re.search(r"[$`\\]", inner):
        return None
    return _read_string(inner, command.source.position(at), TOP_LEVEL)


# The letter of an option of `set` -> its long name, for the options that rules ask about.
_OPTION_BY_LETTER = {"a": "allexport", "e": "errexit", "u": "nounset"}


def _shell_options(words: list[str], line: int, context: Context) -> Iterator[ShellOption]:
    """Yield the options that the words after `set` turn on or off, such as -eu and +o pipefail.

    Source: bash(1), SHELL BUILTIN COMMANDS.
    """
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
            elif letter in _OPTION_BY_LETTER:
                yield ShellOption(_OPTION_BY_LETTER[letter], word[0] == "-", line, context)
