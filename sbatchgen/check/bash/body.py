"""The body of a script: its commands and their contexts, the variables that they set and use.

    body = read_body(text)
    [command.name for command in body.commands]     # "srun", "cd", ...
    body.value(word)                                # with the values of variables that the script shows

Nothing is run and no file is read, so the variables of a `source`d file are not known.
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
from sbatchgen.check.bash.walk import Walk, walk
from sbatchgen.check.bash.word import Word, read_expansion
from sbatchgen.check.executables.program import SHELLS

TOP = Context()  # outside of all constructs


@dataclass(eq=False, repr=False)
class Body:
    """The body of a script."""

    source: ShellText  # the text; empty if the language is not a shell
    language: str  # the shell or the interpreter of the first line: "bash", "sh", "python3" and so on
    context: Context  # the constructs around the whole text
    flags: str  # the options of the shell in the first line

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The errors that the grammar finds. The grammar may be wrong, so `bash -n` decides."""
        return self.source.faults

    @cached_property
    def _walk(self) -> Walk:
        return _cut_at_exit(walk(self.source, self.context))

    @cached_property
    def end(self) -> int:
        """The offset where the script surely ends: after an exit or exec, or at the end of the text."""
        return min(self._walk.end, len(self.source.text))

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """All commands in the order of the text, also in functions, loops and substitutions."""
        return tuple(self._walk.commands)

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
    def loops(self) -> tuple[tuple[int, int], ...]:
        """The offsets where each loop starts and ends, in the order of the text."""
        return tuple((node.start, node.end) for node, _ in self._walk.loops)

    @cached_property
    def last(self) -> Command | None:
        """The command whose status is the script's status; None if the text does not show the command."""
        return next((command for command in reversed(self.commands) if command.ends_script), None)

    def command_around(self, at: int) -> Command | None:
        """Return the innermost command around an offset; None outside of commands."""
        around = (command for command in reversed(self.commands) if command.at <= at < command.end)
        return next(around, None)

    @cached_property
    def _variables(self) -> Variables:
        return Variables(self._walk, self.uses)

    @property
    def sets(self) -> tuple[Assignment, ...]:
        """Each time that a variable gets or loses a value, in the order of the text."""
        return self._variables.sets

    def sets_of(self, name: str) -> tuple[Assignment, ...]:
        """Return each time that this variable gets or loses a value, in the order of the text."""
        return self._sets_by_name.get(name, ())

    @cached_property
    def _sets_by_name(self) -> dict[str, tuple[Assignment, ...]]:
        by_name: dict[str, list[Assignment]] = {}
        for assignment in self.sets:
            by_name.setdefault(assignment.name, []).append(assignment)
        return {name: tuple(sets) for name, sets in by_name.items()}

    @cached_property
    def uses(self) -> tuple[VariableUse, ...]:
        """Each expansion of a variable, in the order of the text."""
        return tuple(use for use in _uses(self.source) if use.at < self.end)

    @cached_property
    def traps(self) -> tuple[tuple[Command, Body], ...]:
        """The trap commands that set a string, and each string as a body."""
        traps = []
        for command in self.commands:
            words = command.trap_words
            if words and words[0].text not in ("-", "''", '""'):
                signals = tuple((word.value or word.text).upper().removeprefix("SIG") for word in words[1:])
                traps.append((command, string_body(self, words[0], context=Context(trap=signals))))
        return tuple(traps)

    @cached_property
    def functions(self) -> dict[int, str]:
        """The name of the function that holds a command, by the numbers of the command's lines."""
        functions: dict[int, str] = {}
        for command in self.commands:
            if command.context.function:
                lines = range(command.line, command.end_line + 1)
                functions.update(dict.fromkeys(lines, command.context.function))
        return functions

    @cached_property
    def settings(self) -> tuple[ShellOption, ...]:
        """The options that the script sets for its shell, in the order of the text."""
        settings = [*_options(self.flags.split(), 1, TOP)]
        for command in self.commands:
            if command.name == "set":
                settings += _options(command.arguments, command.line, command.context)
        return tuple(settings)

    def option_at(self, name: str, line: int) -> bool:
        """Return whether an option such as "pipefail" is on at the start of a line.

        The options that subshells, branches and other functions set are ignored.
        """
        is_on, function = False, self.functions.get(line, "")
        for setting in self.settings:
            context = setting.context
            if context.function == function:
                context = context._replace(function="")  # within the function, its own options count
            if setting.name == name and setting.line < line and context.top:
                is_on = setting.on
        return is_on

    def value(self, word: Word) -> str | None:
        """Return the string that a word stands for; None if the string depends on an unknown value."""
        literal = word.value
        return self.resolve(word).value if literal is None else literal

    def expand(self, word: Word) -> tuple[Word, ...]:
        """Return the words that a word expands to, such as the elements of "${array[@]}".

        An expansion with an unknown value stays as it is.
        """
        return self._variables.expand(word)

    def resolve(self, word: Word) -> Word:
        """Return the word with the known values of variables in place of their expansions."""
        return self._variables.resolve(word)

    def text_of(self, word: Word) -> str:
        """Return the string that a word stands for; expansions with unknown values stay as written."""
        literal = word.value
        return "".join(piece.text for piece in self.resolve(word).pieces) if literal is None else literal


def _cut_at_exit(walked: Walk) -> Walk:
    """Return the walk without the commands, assignments and loops after an unconditional exit or exec."""
    for command in walked.commands:
        leaves = command.name == "exit" or (command.name == "exec" and len(command.words) > 1)
        if leaves and command.context.top and not command.background and command.pipe is None:
            end = command.end
            command.ends_script = True
            walked.commands = [other for other in walked.commands if other.at < end]
            walked.assignments = [assignment for assignment in walked.assignments if assignment.at < end]
            walked.loops = [loop for loop in walked.loops if loop[0].start < end]
            walked.end = end
            break
    return walked


def read_body(text: str) -> Body:
    """Read a whole script as bash does, without running the script; bytes outside UTF-8 are surrogates."""
    language, flags = _language(text)
    source = ShellText(text if language in SHELLS else "")
    return Body(source, language, TOP, flags)


@lru_cache(maxsize=64)  # the rules of a script look into the same strings again and again
def _read_string(text: str, origin: tuple[int, int], context: Context, *, fixed: bool) -> Body:
    """Read a string that a script gives a shell; `origin` and `fixed` are as in ShellText."""
    return Body(ShellText(text, origin, fixed=fixed), "bash", context, "")


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


# In arithmetic, a name is a variable without a $ (group 1).
_ARITHMETIC = re.compile(r"\$\{[^}]*\}|\$\w+|\b0[xX]\w+|([A-Za-z_]\w*)")
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?!$-])")


def _uses(source: ShellText) -> Iterator[VariableUse]:
    """Yield each expansion of a variable, also in arithmetic."""
    text = source.text
    for node in source.nodes:
        if node.kind == "expansion":
            piece = read_expansion(text[node.start : node.end], node.start, quoted=False)
            yield VariableUse(piece.name, piece.operator, node.start, node.end, source)
        elif node.kind in ("simple_expansion", "$"):  # "$" is $B of $A/$B/$C
            if name := _VARIABLE.match(text, node.start):
                yield VariableUse(name[1], "", *name.span(), source)
        elif node.kind == "arithmetic_expansion" or (
            node.kind == "compound_statement" and text.startswith("((", node.start)
        ):
            for name in _ARITHMETIC.finditer(text, node.start, node.end):
                if name[1]:  # without a $
                    yield VariableUse(name[1], "", *name.span(), source)


def string_body(body: Body, word: Word, *, context: Context | None = None) -> Body:
    """Return the body of a string, such as the string of a trap or of bash -c.

    If the script holds the string unchanged, positions in the body are positions in the script. Otherwise,
    each position is the place of the word.
    """
    text = body.text_of(word)
    at = word.at + 1
    is_literal = len(word.pieces) == 1 and word.quoted and word.source.text[at : word.end - 1] == text
    line, column = word.source.position(at if is_literal else word.at)
    return _read_string(text, (line, column), context or TOP, fixed=not is_literal)


def input_body(command: Command) -> Body | None:
    """Return the body of a command's here-document; None without a here-document, or if bash expands it."""
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
    if not delimiter.quoted and "\\" not in delimiter.text and re.search(r"[$`\\]", inner):
        return None
    return _read_string(inner, command.source.position(at), TOP, fixed=False)


_LETTERS = {"a": "allexport", "e": "errexit", "u": "nounset"}  # letters of options that rules look at


def _options(words: list[str], line: int, context: Context) -> Iterator[ShellOption]:
    """Yield the options that the words of a `set` turn on or off. Source: bash(1), SHELL BUILTIN COMMANDS."""
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
