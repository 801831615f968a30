"""Replaces statements of an old script by simpler ones, for example `${NAME:-DEFAULT}` by the default.

`adopt` simplifies a script first, so that its other modules need to know fewer forms of bash. Lines keep
their numbers, so that messages can cite the old script.
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

# The name and the default in ${NAME:-DEFAULT} or ${NAME:=DEFAULT}.
_DEFAULT_EXPANSION = re.compile(r"\$\{(\w+):?[-=](.+)\}", re.DOTALL)
# Variables that Slurm, the cluster or the user usually sets. A default in the script then has no effect, and
# must not replace the variable.
_OUTER_VARIABLE = re.compile(
    r"SLURM_.*|\w+_VISIBLE_DEVICES|(?:LD_LIBRARY_|PYTHON)?PATH|HOME|USER|TMPDIR|SCRATCH|HOSTNAME"
)
_SCRIPT_VARIABLES = frozenset(("CODE_DIR", "RUN_DIR"))  # variables that a rendered script assigns itself
# Builtins of bash, which srun can't start. So they are not a prefix of the training.
_BASH_BUILTINS = frozenset((".", "alias", "builtin", "command", "coproc", "eval", "exec", "source", "trap"))
# Commands that start no trainer, although `python` may be among their words.
_NO_TRAINER_COMMANDS = HELPERS | CLOSING | {"enroot", "make", "mpiexec", "mpirun", "sbatch", "sudo", "xargs"}
# The heads of the functions that prepare and start the training of a rendered script, such as
# `environment() {`. The `exec` before the trainer belongs to a head, because `exec` outside of the function
# would end the script.
_CALLED_FUNCTION = re.compile(r"environment\(\) \{|train\(\) \{(?: #.*)?\n +exec ")
# A word without quotes and expansions. `eval` reads it a second time with the same result.
_PLAIN_WORD = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
# A program that starts a file of Python, such as /opt/conda/bin/python3.11.
_PYTHON_STARTER = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed)")


class OptionalWord(NamedTuple):
    """A word of a launch, such as $NET, that stands for options only if a condition of the script holds."""

    word: Word  # the word, which is a variable
    options: str  # the value of the variable if the condition holds, such as "--network=host"


@frozen(kw_only=True)
class SimplifiedScript:
    """A script with simpler statements, and the words that it had in their place."""

    script: JobScript
    defaults: dict[str, str]  # variable -> its default, which replaces the variable
    optional_words: list[OptionalWord]  # the words of launches that the simple script lacks
    prefix_words: tuple[str, ...]  # the removed words before Python, such as `poetry run`; () without them
    new_names: dict[str, str]  # old name of a variable or of a positional parameter, such as "1" -> new name


def simplify(script: JobScript) -> SimplifiedScript:
    """Return a script with simpler statements that start the same programs.

    The order of the steps matters: each step reads the script that the step before has simplified.
    """
    script, new_names = _with_new_names(script)
    script, defaults = _with_defaults(script)
    script, optional_words = _without_optional_words(script)
    script = _without_eval(script)
    script, prefix_words = _without_prefix(script)
    script = split_chain(script)
    return SimplifiedScript(
        script=script,
        defaults=defaults,
        optional_words=optional_words,
        prefix_words=prefix_words,
        new_names=new_names,
    )


class _Edit(NamedTuple):
    """The replacement of a span of the script's text by a new text."""

    start: int  # the offset of the span
    end: int  # the offset after the span
    new_text: str


def without_functions(rendered: JobScript) -> JobScript:
    """Return the first part of a rendered script, without the heads of the functions environment and train.

    Their statements are then outside of functions, as in an old script, with which `proof` compares them. The
    part ends before SECOND_PART, and lines keep their numbers.
    """
    script = replace(rendered, text=rendered.text.rpartition(SECOND_PART)[0])
    edits = []
    for node in script.body.source.nodes[0].children:
        head = _CALLED_FUNCTION.match(script.text, node.start)
        if node.kind == "function_definition" and head:
            # Without the head and the closing brace, the statements of the function are outside of it.
            edits += [_blank(script, *head.span()), _blank(script, node.end - 1, node.end)]
    return _edited(script, edits)


def _edited(script: JobScript, edits: Iterable[_Edit]) -> JobScript:
    """Return a script after edits, which must not overlap."""
    text = script.text
    for start, end, new_text in sorted(edits, reverse=True):  # from the end, so that offsets stay right
        text = text[:start] + new_text + text[end:]
    return script if text == script.text else replace(script, text=text)


def _blank(script: JobScript, start: int, end: int) -> _Edit:
    """Return the edit that replaces a span of the script's text by blanks.

    Line breaks stay, and so do the backslashes before them, so that lines keep their numbers.
    """
    return _Edit(start, end, re.sub(r"\\(?!\n)|[^\n\\]", " ", script.text[start:end]))


def _with_new_names(script: JobScript) -> tuple[JobScript, dict[str, str]]:
    """Return the script after renaming variables that would mean something else in a rendered script.

    The parameter $1 becomes $ARG1. A variable that a rendered script assigns, such as RUN_DIR, becomes
    OLD_RUN_DIR. The second value maps the old names to the new names.
    """
    body = script.body
    functions = [node for node in body.source.nodes if node.kind == "function_definition"]

    def is_script_parameter(name: str, at: int) -> bool:
        # In a function, $1 is an argument of the function.
        return name.isdigit() and not any(function.start < at < function.end for function in functions)

    new_names: dict[str, str] = {}
    if not _changes_parameters(script):
        for use in body.variable_uses:
            if is_script_parameter(use.name, use.at) and use.name != "0":
                new_names[use.name] = f"ARG{use.name}"
    # The name of an exported variable stays, because programs may read the variable by its name. So does a
    # name that a string of the script assigns, as in `bash -c`, because edits can't change this string.
    fixed_names = {
        assignment.name
        for assignment in body.assignments
        if assignment.is_exported or assignment.source is not body.source
    }
    for name in _SCRIPT_VARIABLES & (script.assigned_names - fixed_names):
        new_names[name] = f"OLD_{name}"
    occurrences = [(assignment.at, assignment.name) for assignment in body.assignments]
    occurrences += [(script.text.index(use.name, use.at), use.name) for use in body.variable_uses]
    edits = {}  # by their offsets, because the same occurrence may be listed twice
    for at, name in occurrences:
        if name in new_names and (not name.isdigit() or is_script_parameter(name, at)):
            new_name = new_names[name]
            if script.text[at - 1] == "$":  # $1x becomes ${ARG1}x, because $ARG1x is another variable
                new_name = f"{{{new_name}}}"
            edits[at] = _Edit(at, at + len(name), new_name)
    return _edited(script, edits.values()), new_names


def _changes_parameters(script: JobScript) -> bool:
    """Return whether $1 may be another value later in the script, as after `shift`."""
    outer_commands = [command for command in script.body.commands if not command.context.function]
    return any(
        command.name in ("getopts", "shift") or (command.name == "set" and "--" in command.arguments)
        for command in outer_commands
    )


class _DefaultExpansion(NamedTuple):
    """An expansion that has a default, such as ${NAME:-DEFAULT}."""

    piece: Piece
    start: int  # the offset of the text to replace
    end: int  # the offset after the text to replace
    replacement: str  # the new text, with {} for the default


def _with_defaults(script: JobScript) -> tuple[JobScript, dict[str, str]]:
    """Return the script with DEFAULT for ${NAME:-DEFAULT} and NAME=DEFAULT for `: ${NAME:=DEFAULT}`.

    The second value maps the variables to their defaults.
    """
    edits, defaults = {}, {}
    for piece, start, end, replacement in _default_expansions(script):
        match = _DEFAULT_EXPANSION.fullmatch(piece.text)
        earlier_assignments = [
            assignment for assignment in script.body.assignments_of(piece.name) if assignment.end <= piece.at
        ]
        is_set = any(not assignment.context.in_branch for assignment in earlier_assignments)
        if match and not is_set and not _OUTER_VARIABLE.fullmatch(piece.name):
            default = match[2]
            defaults[piece.name] = default.strip("\"'")
            edits[start] = _Edit(start, end, replacement.format(default))
    return _edited(script, edits.values()), defaults


def _default_expansions(script: JobScript) -> Iterator[_DefaultExpansion]:
    """Yield the expansions with a default in launches, assignments, and commands such as `: ${A:=1}`."""
    yield from _expansions_in_words(script)
    for command in script.body.commands:
        if command.name != ":" or not command.context.is_top_level:
            continue
        expansion = command.words[-1].only_piece
        if expansion is None or expansion.operator not in (":=", "="):
            continue
        # For `: ${NAME:=A B}`, the new text would be NAME=A B, with which bash starts B.
        if expansion.is_quoted or " " not in expansion.text:
            quotes = '"' * expansion.is_quoted
            replacement = f"{expansion.name}={quotes}{{}}{quotes}"
            yield _DefaultExpansion(expansion, command.at, command.end, replacement)


def _expansions_in_words(script: JobScript) -> Iterator[_DefaultExpansion]:
    """Yield the expansions with a default in launches and assignments, such as A=${B:-1}."""
    body = script.body
    # Each word, and the variable to which the script assigns it; "" for a word of a launch.
    names_and_words = [("", word) for launch in script.launches for word in launch.command.words]
    for assignment in body.assignments:
        if assignment.context.is_top_level:
            values = (assignment.word, *(assignment.items or ()))
            names_and_words += [(assignment.name, word) for word in values if word]
    for name, word in names_and_words:
        if word.source is not body.source:  # a word of a string in the script, as in `bash -c`
            continue
        for piece in word.pieces:
            # := sets a variable for later lines, except in an assignment of the same variable: A=${A:=1}.
            if piece.operator in (":-", "-") or (piece.operator in (":=", "=") and piece.name == name):
                yield _DefaultExpansion(piece, piece.at, piece.at + len(piece.text), "{}")


def _without_optional_words(script: JobScript) -> tuple[JobScript, list[OptionalWord]]:
    """Return the script without the optional words of its launches, and these words.

    An optional word is a variable that the script sets only under a condition, and to options. For example:
    `if ((SLURM_NNODES > 1)); then NET="--network=host"; fi; srun $NET python train.py`.
    """
    launch_words = [word for launch in script.launches for word in _words_before_program(launch)]
    options_by_word = {word: _optional_options(script, word) for word in launch_words}
    optional_words = [OptionalWord(word, options) for word, options in options_by_word.items() if options]
    edits = (_blank(script, word.at, word.end) for word, _ in optional_words)
    return _edited(script, edits), optional_words


def _optional_options(script: JobScript, word: Word) -> str:
    """Return the options that a word stands for under a condition, such as "--network=host".

    Returns "" for a word that is not optional.
    """
    body, piece = script.body, word.only_piece
    if word.source is not body.source or piece is None or piece.kind != "variable" or piece.operator:
        return ""
    assignments = [assignment for assignment in body.assignments_of(piece.name) if assignment.at < word.at]
    unconditional_values = [
        assignment.items or (assignment.word and assignment.word.value)
        for assignment in assignments
        if assignment.context.is_top_level
    ]
    conditional = [assignment for assignment in assignments if not assignment.context.is_top_level]
    # "$NAME" in quotes is a word even if it is empty.
    is_always_a_word = piece.is_quoted and piece.subscript != "@"
    if len(conditional) != 1 or any(unconditional_values) or is_always_a_word:
        return ""
    (assignment,) = conditional
    # If a test such as [ -z $NAME ] reads the variable before, the user may set it outside of the script.
    is_tested = any(use.name == piece.name and use.at < assignment.at for use in body.variable_uses)
    values = assignment.items or ([assignment.word] if assignment.word else [])
    text = " ".join(map(body.text_of, values))
    has_condition = assignment.context.in_branch and not assignment.context.in_loop
    return text if text.startswith("-") and has_condition and not is_tested else ""


def _words_before_program(launch: Launch) -> Iterator[Word]:
    """Yield the words of a launch before its program or Python, such as srun and its options.

    A variable among these words may hold options.
    """
    program_word, body = launch.program.words[0], launch.tools[0].body
    program_piece = program_word.only_piece
    # A word such as $NET may be taken for the program only because its value is not known.
    is_known = not (program_piece and program_piece.kind == "variable")
    for word in launch.command.words:
        expanded = body.expand(word)
        is_program = program_word in expanded and is_known
        values = [body.value(expanded_word) or "" for expanded_word in expanded]
        if is_program or any(map(_PYTHON_STARTER.fullmatch, values)):
            return
        yield word


def _without_eval(script: JobScript) -> JobScript:
    """Return the script with `python train.py` in place of `eval python train.py`.

    The word `eval` stays in a command with a word that bash could read in another way the second time.
    """
    body = script.body
    eval_commands = [
        command for command in body.commands if command.name == "eval" and len(command.words) > 2
    ]
    edits = []
    for command in eval_commands:
        eval_word, *other_words = command.words
        are_plain = all(_PLAIN_WORD.fullmatch(body.text_of(word)) for word in other_words)
        if are_plain and eval_word.source is body.source:
            edits.append(_blank(script, eval_word.at, eval_word.end))
    return _edited(script, edits)


def _without_prefix(script: JobScript) -> tuple[JobScript, tuple[str, ...]]:
    """Return the script without the words of an unknown program before Python, and these words.

    For example, `my-launcher --fast python train.py` becomes `python train.py`. With the unknown program, the
    script has no known launch.
    """
    if main_launch(script):  # a launch is known, so no unknown program hides it
        return script, ()
    body, launch_by_command = script.body, {launch.command: launch for launch in script.launches}
    for command in reversed(body.commands):
        launch = launch_by_command.get(command)
        is_inner = command.is_test or command.context.in_substitution
        starts_no_trainer = is_inner or command.name in _NO_TRAINER_COMMANDS or not command.words
        if not command.context.is_top_level or (launch.is_helper if launch else starts_no_trainer):
            continue
        program_word = launch.program.words[0] if launch else command.words[0]
        # Each word after expanding variables, and the word of the script that gives it.
        pairs = [(expanded, written) for written in command.words for expanded in body.expand(written)]
        # The index of the unknown program, after words such as `srun -n 4`.
        indices = (index for index, (expanded, _) in enumerate(pairs) if expanded == program_word)
        begin = next(indices, len(pairs))
        values = [body.value(expanded) or "" for expanded, _ in pairs[begin:]]
        # The prefix ends before Python. It is empty if the program is Python, or if no Python follows.
        length = next((index for index, value in enumerate(values) if _PYTHON_STARTER.fullmatch(value)), 0)
        if not length or not all(values[:length]) or values[0] in _BASH_BUILTINS:
            continue
        start, end = pairs[begin][1].at, pairs[begin + length][1].at
        is_separate = start < end  # otherwise one variable holds the prefix and Python
        if is_separate and "-c" not in values[length:]:  # python -c has no file that a job could name
            return _edited(script, [_blank(script, start, end)]), tuple(values[:length])
    return script, ()
