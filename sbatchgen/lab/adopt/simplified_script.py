"""A script with simpler statements, for example with defaults in place of `${NAME:-DEFAULT}`.

`adopt` simplifies a script before it reads the lines. Lines keep their numbers.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from sbatchgen.base.frozen import frozen
from sbatchgen.check.bash import Piece, Word
from sbatchgen.check.script.launches import HELPERS, Launch
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.render import SECOND_PART
from sbatchgen.lab.adopt.block import CLOSING
from sbatchgen.lab.adopt.training import main_launch, split_chain

_DEFAULT = re.compile(r"\$\{(\w+):?[-=](.+)\}", re.DOTALL)  # the name and the default, as in ${NAME:-DEFAULT}
# Variables that Slurm, the cluster or the user sets, so that a default in the script does not count.
_JOB_VARIABLES = re.compile(
    r"SLURM_.*|\w+_VISIBLE_DEVICES|(?:LD_LIBRARY_|PYTHON)?PATH|HOME|USER|TMPDIR|SCRATCH|HOSTNAME"
)
_SCRIPT_VARIABLES = frozenset(("CODE_DIR", "RUN_DIR"))  # variables that a rendered script sets
# Words that only bash knows, so that srun can't start them.
_BASH_WORDS = frozenset((".", "alias", "builtin", "command", "coproc", "eval", "exec", "source", "trap"))
# Commands that start no trainer, although `python` may be among their words.
_NO_TRAINER_COMMANDS = HELPERS | CLOSING | {"enroot", "make", "mpiexec", "mpirun", "sbatch", "sudo", "xargs"}
# The beginnings of functions that a rendered script calls one after the other. `exec` would end the script.
_CALLED_FUNCTION = re.compile(r"environment\(\) \{|train\(\) \{(?: #.*)?\n +exec ")
_PLAIN_WORD = re.compile(r"[\w@%+=:,./-]+", re.ASCII)  # a word that bash reads twice with the same result
_PYTHON_STARTER = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed)")  # .../bin/python3.11


class OptionalWord(NamedTuple):
    """A word of a launch: a variable that holds options only under a condition."""

    word: Word
    options: str  # the options if the condition holds


@frozen(kw_only=True)
class SimplifiedScript:
    """A script with simpler statements, and the parts that were replaced or removed."""

    script: JobScript
    defaults: dict[str, str]  # the variables that were replaced by their defaults
    optional: list[OptionalWord]  # the removed words of launches
    prefix: tuple[str, ...]  # the removed words before Python, such as `poetry run`; () without such words
    renamed: dict[str, str]  # the new names of variables and of positional parameters, by their old names


def simplify(script: JobScript) -> SimplifiedScript:
    """Return a script with simpler statements that start the same programs."""
    script, renamed = _with_other_names(script)
    script, defaults = _with_defaults(script)
    script, optional = _without_optional(script)
    script = _without_eval(script)
    script, prefix = _without_prefix(script)
    script = split_chain(script)
    return SimplifiedScript(
        script=script, defaults=defaults, optional=optional, prefix=prefix, renamed=renamed
    )


def without_functions(new: JobScript) -> JobScript:
    """Return the first part of a rendered script with the bodies of its functions as statements.

    `adopt` can then read the statements like those of an old script. Lines keep their numbers.
    """
    first = replace(new, text=new.text.rpartition(SECOND_PART)[0])
    edits = []
    for node in first.body.source.nodes[0].children:
        if node.kind == "function_definition" and (begins := _CALLED_FUNCTION.match(first.text, node.start)):
            edits += [_blank(first, *begins.span()), _blank(first, node.end - 1, node.end)]
    return _edited(first, edits)


def _edited(script: JobScript, edits: Iterable[tuple[int, int, str]]) -> JobScript:
    """Return a script after edits. An edit has the start, the end and the new text of a part."""
    text = script.text
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return script if text == script.text else replace(script, text=text)


def _blank(script: JobScript, start: int, end: int) -> tuple[int, int, str]:
    """Return the edit that replaces a part of the text by blanks and keeps its line breaks."""
    return start, end, re.sub(r"\\(?!\n)|[^\n\\]", " ", script.text[start:end])


def _with_other_names(script: JobScript) -> tuple[JobScript, dict[str, str]]:
    """Return the script with $ARG1 for $1, and OLD_NAME for variables that a rendered script sets.

    The second value holds the new names by the old names.
    """
    body = script.body
    functions = [node for node in body.source.nodes if node.kind == "function_definition"]
    outer = [command for command in body.commands if not command.context.function]

    def is_in_function(at: int) -> bool:
        return any(function.start < at < function.end for function in functions)

    changes_parameters = any(
        command.name in ("getopts", "shift") or (command.name == "set" and "--" in command.arguments)
        for command in outer
    )
    renamed: dict[str, str] = {}
    for use in () if changes_parameters else body.variable_uses:
        if use.name.isdigit() and use.name != "0" and not is_in_function(use.at):
            renamed[use.name] = f"ARG{use.name}"
    exported = {part.name for part in body.assignments if part.is_exported or part.source is not body.source}
    renamed |= {name: f"OLD_{name}" for name in _SCRIPT_VARIABLES & (script.assigned_names - exported)}
    occurrences = [(part.at, part.name) for part in body.assignments]
    occurrences += [(script.text.index(use.name, use.at), use.name) for use in body.variable_uses]
    edits = {}
    for at, name in occurrences:
        if name in renamed and not (name.isdigit() and is_in_function(at)):
            new_name = renamed[name]
            if script.text[at - 1] == "$":  # $1x becomes ${ARG1}x, because $ARG1x is another variable
                new_name = f"{{{new_name}}}"
            edits[at] = (at, at + len(name), new_name)
    return _edited(script, edits.values()), renamed


class _DefaultExpansion(NamedTuple):
    """An expansion that has a default, such as ${NAME:-DEFAULT}."""

    piece: Piece
    start: int  # the offset of the text to replace
    end: int  # the offset after the text to replace
    replacement: str  # the new text, with {} for the default


def _with_defaults(script: JobScript) -> tuple[JobScript, dict[str, str]]:
    """Return the script with DEFAULT for ${NAME:-DEFAULT} and NAME=DEFAULT for `: ${NAME:=DEFAULT}`.

    The second value holds the defaults by their variables.
    """
    edits, defaults = {}, {}
    for piece, start, end, replacement in _default_expansions(script):
        match = _DEFAULT.fullmatch(piece.text)
        sets = [
            assignment for assignment in script.body.assignments_of(piece.name) if assignment.end <= piece.at
        ]
        is_set = any(not assignment.context.in_branch for assignment in sets)
        if match and not is_set and not _JOB_VARIABLES.fullmatch(piece.name):
            defaults[piece.name] = match[2].strip("\"'")
            edits[start] = (start, end, replacement.format(match[2]))
    return _edited(script, edits.values()), defaults


def _default_expansions(script: JobScript) -> Iterator[_DefaultExpansion]:
    """Yield the expansions with a default in launches, assignments, and commands such as `: ${A:=1}`."""
    body = script.body
    words = [("", word) for launch in script.launches for word in launch.command.words]
    for assignment in body.assignments:
        values = (assignment.word, *(assignment.items or ())) if assignment.context.is_top_level else ()
        words += [(assignment.name, word) for word in values if word]
    for name, word in words:
        for piece in word.pieces if word.source is body.source else ():
            # := sets a variable for later lines, except in an assignment of the same variable: A=${A:=1}.
            if piece.operator in (":-", "-") or (piece.operator in (":=", "=") and piece.name == name):
                yield _DefaultExpansion(piece, piece.at, piece.at + len(piece.text), "{}")
    for command in body.commands:
        expansion = (
            command.words[-1].only_piece if command.name == ":" and command.context.is_top_level else None
        )
        # NAME=A B, without quotes, would start B.
        if (
            expansion
            and expansion.operator in (":=", "=")
            and (expansion.is_quoted or " " not in expansion.text)
        ):
            quotes = '"' * expansion.is_quoted
            replacement = f"{expansion.name}={quotes}{{}}{quotes}"
            yield _DefaultExpansion(expansion, command.at, command.end, replacement)


def _without_optional(script: JobScript) -> tuple[JobScript, list[OptionalWord]]:
    """Return the script without the optional words of its launches, and these words."""
    body, optional = script.body, []
    words = [word for launch in script.launches for word in _words_before_program(launch)]
    for word in dict.fromkeys(words):
        piece = word.only_piece
        if word.source is not body.source or piece is None or piece.kind != "variable" or piece.operator:
            continue
        sets = [part for part in body.assignments_of(piece.name) if part.at < word.at]
        certain_values = [
            part.items or (part.word and part.word.value) for part in sets if part.context.is_top_level
        ]
        conditional = [part for part in sets if not part.context.is_top_level]
        # "$NAME" in quotes is a word even if it is empty.
        if len(conditional) != 1 or any(certain_values) or (piece.is_quoted and piece.subscript != "@"):
            continue
        (assignment,) = conditional
        # A variable that a test such as [ -z $NAME ] reads before may also have a value from elsewhere.
        is_tested = any(use.name == piece.name and use.at < assignment.at for use in body.variable_uses)
        values = assignment.items or ([assignment.word] if assignment.word else [])
        text = " ".join(map(body.text_of, values))
        context = assignment.context
        if text.startswith("-") and not is_tested and not context.in_loop and context.in_branch:
            optional.append(OptionalWord(word, text))
    return _edited(script, (_blank(script, word.at, word.end) for word, _ in optional)), optional


def _words_before_program(launch: Launch) -> Iterator[Word]:
    """Yield the words of a launch before its program, such as srun and its options.

    A variable among these words may hold options.
    """
    first, body = launch.program.words[0], launch.tools[0].body
    for word in launch.command.words:
        expanded = body.expand(word)
        is_program = first in expanded and not (first.only_piece and first.only_piece.kind == "variable")
        if is_program or any(_PYTHON_STARTER.fullmatch(body.value(part) or "") for part in expanded):
            return
        yield word


def _without_eval(script: JobScript) -> JobScript:
    """Return the script with `python train.py` in place of `eval python train.py`, if all words are plain."""
    body = script.body
    words = [command.words for command in body.commands if command.name == "eval" and len(command.words) > 2]
    evals = [
        first
        for first, *others in words
        if first.source is body.source and all(_PLAIN_WORD.fullmatch(body.text_of(word)) for word in others)
    ]
    return _edited(script, (_blank(script, word.at, word.end) for word in evals))


def _without_prefix(script: JobScript) -> tuple[JobScript, tuple[str, ...]]:
    """Return the script without the words of an unknown program before Python, and these words."""
    if main_launch(script):
        return script, ()
    body, launched = script.body, {launch.command: launch for launch in script.launches}
    for command in reversed(body.commands):
        launch = launched.get(command)
        is_inner = command.is_test or command.context.in_substitution
        starts_nothing = is_inner or command.name in _NO_TRAINER_COMMANDS or not command.words
        if not command.context.is_top_level or (launch.is_helper if launch else starts_nothing):
            continue
        first = launch.program.words[0] if launch else command.words[0]
        # Each word after expanding variables, and the word of the script that gives it.
        pairs = [(expanded, written) for written in command.words for expanded in body.expand(written)]
        begin = next((index for index, (expanded, _) in enumerate(pairs) if expanded == first), len(pairs))
        words = [body.value(expanded) or "" for expanded, _ in pairs[begin:]]
        # The prefix ends before Python. It is empty if the program is Python, or if no Python follows.
        length = next((index for index, word in enumerate(words) if _PYTHON_STARTER.fullmatch(word)), 0)
        if not length or not all(words[:length]) or words[0] in _BASH_WORDS:
            continue
        start, end = pairs[begin][1].at, pairs[begin + length][1].at
        is_separate = start < end  # otherwise one variable holds the prefix and Python
        if is_separate and "-c" not in words[length:]:  # python -c has no file that a job could name
            return _edited(script, [_blank(script, start, end)]), tuple(words[:length])
    return script, ()
