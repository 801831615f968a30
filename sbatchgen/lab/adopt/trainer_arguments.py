"""The conversion of the trainer's arguments into `args` of a job.

An argument of a job is a string. Parts of the string may be placeholders, such as {env:NAME}, for values that
only the running job knows. `job_arguments` converts words of the old script into such strings.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from sbatchgen.check.bash import Assignment, Body, Piece, Word
from sbatchgen.lab.adopt.draft import Draft

_ALL_ARGUMENTS = ("@", "*")  # the names of $@ and $*, which hold the script's own arguments
_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*")
# Text in an argument that a job would replace, such as {run_dir} or {env:HOME}.
_PLACEHOLDER = re.compile(r"\{(?:run_dir|data_dir|resume|env:)")
# Variables with another value in each task. The batch script does not know these values.
_TASK_VARIABLE = re.compile(r"SLURM_(?:PROCID|LOCALID|NODEID)|SLURMD_NODENAME|HOSTNAME")
# Variables that srun sets for its step. In the batch script they may be unset, or have other values.
_STEP_VARIABLE = re.compile(r"SLURM_STEP\w*|\w*RANK|\w+_DEVICES|RANDOM|SECONDS")
# Variables whose values are one word, such as SLURM_JOB_ID and HOME. Bash does not split these values.
_ONE_WORD_VARIABLE = re.compile(r"SLURM|(?:USER|HOME)$")
# Operators with which an expansion such as ${NAME:-DEFAULT} gives the value of a variable that is set.
_PLAIN_OPERATORS = ("", ":-", "-", ":?", "?")
# The blanks at which bash splits a value without quotes, and the characters of patterns for names of files.
_BLANK_OR_PATTERN = re.compile(r"[\s*?\[]")
# How many variables `_variable_is_one_word` follows at most: in A=$B and B=$C, it follows A to B and B to C.
_MAX_DEPTH = 8
# Commands that print a single word, such as $(hostname) and $(nodes | head -n 1).
_ONE_WORD_COMMAND = re.compile(
    r"(?:\$\(|`)\s*(?:basename|date|dirname|expr|hostname|id|mktemp|nproc|pwd|readlink|realpath|uuidgen|whoami)\b"
    r"|\|\s*(?:(?:head|tail|wc)\b[^|]*|awk\b[^|]*\{ *print \$\d+[ ;}][^|]*)$"
)


class ConvertedWord(NamedTuple):
    """A word of the old script, and the string that the job has for it."""

    word: Word
    text: str | None  # the string; None if no string expresses the word


def job_arguments(
    draft: Draft, words: Iterable[Word], body: Body, *, in_task: bool
) -> Iterator[ConvertedWord]:
    """Yield the string in the job for each word of the old script.

    In the string, {env:NAME} is a variable of the job, and {env:NAME[@]} stands for the words of an array.
    `in_task` says that a shell in each task expands the words. Otherwise the batch script expands them.
    A word that stands for all arguments of the script, such as "$@", is left out: users give these arguments
    when they submit the job.
    """
    for word in words:
        pieces = body.resolve(word).pieces
        if pieces and all(piece.kind == "variable" and piece.name in _ALL_ARGUMENTS for piece in pieces):
            draft.note("the script's own arguments come after --: sbatchgen submit JOB.yaml -- ARGUMENTS")
            continue
        if array_name := _argument_array(draft, word):
            yield ConvertedWord(word, f"{{env:{array_name}[@]}}")
            continue
        texts = [_piece_text(draft, word, piece, body, in_task=in_task) for piece in word.pieces]
        if None not in texts:
            yield ConvertedWord(word, "".join(filter(None, texts)))
        else:
            yield ConvertedWord(word, None if in_task else _array_placeholder(draft, word))


def _argument_array(draft: Draft, word: Word) -> str:
    """Return "argument_1" for the word "${argument_1[@]}" of a rendered script; "" for other words.

    `_array_placeholder` has named the array. `proof` then reads the words of the rendered script.
    """
    piece = word.only_piece
    return piece.name if piece and piece.subscript and piece.name in draft.argument_names else ""


def _piece_text(draft: Draft, word: Word, piece: Piece, body: Body, *, in_task: bool) -> str | None:
    """Return the string in the job for a piece of a word; None if no string expresses the piece."""
    # The pieces of the value, if the piece is a variable that the script sets. Otherwise the piece itself.
    resolved = body.resolve(replace(word, pieces=(piece,)))
    texts = [draft.text_of(value_piece) for value_piece in resolved.pieces]
    known_text = None if None in texts else "".join(filter(None, texts))
    is_one_word = True
    if known_text is not None and piece.kind == "variable" and not piece.is_quoted:
        # Without quotes, bash splits a value at blanks, replaces a pattern by names of files, and drops an
        # empty value. Then the value is not one word, and the job can't have its text as an argument.
        is_one_word = known_text != "" and not _BLANK_OR_PATTERN.search(known_text)
    if known_text is not None and is_one_word:
        # The job would replace a placeholder that the script means as plain text.
        has_placeholder = any(_PLACEHOLDER.search(text) for text in texts if text)
        return None if has_placeholder else known_text
    if not in_task:
        return _batch_text(draft, piece, word)
    # A variable with the value $SLURM_PROCID stands for SLURM_PROCID, so the value is tried first.
    value_piece = resolved.only_piece or piece
    return _task_text(draft, value_piece, body) or _task_text(draft, piece, body)


def _array_placeholder(draft: Draft, word: Word) -> str | None:
    """Return the placeholder for an array with the words to which `word` expands: {env:argument_1[@]}.

    The rendered script sets the array before the launch, as in argument_1=($EXTRA_ARGS). Returns None if the
    expansion there could differ from the expansion in the launch.
    """
    array = f"({word.text})"
    # A word of another text, such as the string of `bash -c`, may have other values than in the batch script.
    is_in_script = array in draft.argument_variables or word.source is draft.body.source
    may_differ = any(
        piece.kind == "variable" and _may_differ_at_launch(draft, piece, word) for piece in word.pieces
    )
    is_one_line = word.text.isprintable()  # a profile can't hold other characters
    if not is_in_script or may_differ or not is_one_line:
        return None
    draft.needed_names |= {*_VARIABLE_NAME.findall(word.text)}
    return f"{{env:{draft.argument_variable(array)}[@]}}"


def _may_differ_at_launch(draft: Draft, piece: Piece, word: Word) -> bool:
    """Return whether a variable may have another value at the launch than in this word.

    The value may differ if the script sets the variable before the word and again after it. The value of a
    special parameter, such as $? or $1, may always differ.
    """
    assignments = draft.body.assignments_of(piece.name)
    is_set_before = any(assignment.at < piece.at for assignment in assignments)
    is_set_after = any(assignment.at >= piece.at for assignment in assignments)
    is_set_twice = word.source is draft.body.source and is_set_before and is_set_after
    return is_set_twice or not piece.name.isidentifier()


def _batch_text(draft: Draft, piece: Piece, word: Word) -> str | None:
    """Return the string in the job for a piece of a word that the batch script expands.

    Returns None if the piece may expand to several words, or to none.
    """
    if piece.kind not in ("variable", "arithmetic", "command"):
        return draft.user_value(piece)  # the user's HOME for ~, and None for others, such as {a,b}
    if piece.is_quoted or piece.kind == "arithmetic":
        is_one_word = True
    elif piece.kind == "command":
        is_one_word = _ONE_WORD_COMMAND.search(piece.text) is not None
    else:
        is_one_word = _is_probably_one_word(draft, piece, word)
    is_whole_array = piece.subscript in ("@", "*")
    may_differ = piece.kind == "variable" and _may_differ_at_launch(draft, piece, word)
    if may_differ or is_whole_array or not is_one_word:
        return None
    draft.needed_names |= {*_VARIABLE_NAME.findall(piece.text)}
    if piece.kind == "variable" and not piece.subscript and not piece.operator:
        return f"{{env:{piece.name}}}"
    value = f'"{piece.text}"' if piece.is_quoted else piece.text
    return f"{{env:{draft.argument_variable(value)}}}"


def _is_probably_one_word(draft: Draft, piece: Piece, word: Word) -> bool:
    """Return whether an unquoted variable in a word most likely expands to exactly one word."""
    assignments = _value_assignments(draft, piece.name)
    # An item of an array such as NODES=($(scontrol show hostnames)) has no blanks.
    if piece.subscript.isdigit() and _are_split_outputs(assignments):
        return True
    # ${NAME:+--flag value} and ${NAME:---flag value} may give no word or several words.
    has_optional_words = piece.operator.endswith("+") or " " in piece.text
    has_array = any(assignment.items is not None for assignment in assignments)
    values = [assignment.word.value for assignment in assignments if assignment.word]
    has_empty_value = "" in values
    has_blank_in_value = any(" " in value for value in values if value)
    if has_optional_words or has_array or has_empty_value or has_blank_in_value:
        return False
    return _variable_is_one_word(draft, piece) or _begins_path(piece, word)


def _value_assignments(draft: Draft, name: str) -> list[Assignment]:
    """Return the assignments of a variable, without `export NAME`, which leaves the value unchanged.

    The reader of bash lists `export NAME` as an assignment too, with the form of NAME+=().
    """
    assignments = draft.body.assignments_of(name)
    return [assignment for assignment in assignments if assignment.items != () or not assignment.is_append]


def _are_split_outputs(assignments: Iterable[Assignment]) -> bool:
    """Return whether the items of an array are unquoted outputs of commands, which bash splits at blanks."""
    items = [item.only_piece for assignment in assignments for item in assignment.items or ()]
    return bool(items) and all(item and item.kind == "command" and not item.is_quoted for item in items)


def _begins_path(piece: Piece, word: Word) -> bool:
    """Return whether a variable is the beginning of a path in a word, such as $SCRATCH/x.

    Its value can't have blanks, because bash would then split the path and the old script would fail.
    """
    later_pieces = [other for other in word.pieces if other.at > piece.at]
    return bool(later_pieces) and later_pieces[0].kind == "text" and later_pieces[0].text.startswith("/")


def _variable_is_one_word(draft: Draft, piece: Piece, depth: int = 0) -> bool:
    """Return whether an unquoted variable expands to exactly one word.

    A variable that the script does not set, such as $EXTRA_ARGS, may hold no word or several words. `depth`
    is 1 for a variable in the value of another variable, and 2 for a variable in that variable's value.
    """
    if _ONE_WORD_VARIABLE.match(piece.name) or piece.name in draft.argument_names:
        return True
    assignments = _value_assignments(draft, piece.name)
    is_always_set = any(assignment.context.is_top_level and assignment.word for assignment in assignments)
    if not is_always_set or depth > _MAX_DEPTH or piece.operator not in _PLAIN_OPERATORS:
        return False
    values = [assignment.word for assignment in assignments]
    return all(value is not None and _value_is_one_word(draft, value, depth) for value in values)


def _value_is_one_word(draft: Draft, value: Word, depth: int) -> bool:
    """Return whether the value of a variable is one word: not empty, and without blanks and patterns."""
    for piece in value.pieces:
        if piece.kind == "variable":
            if not _variable_is_one_word(draft, piece, depth + 1):
                return False
        elif piece.kind == "command":
            if not _ONE_WORD_COMMAND.search(piece.text):
                return False
        elif _BLANK_OR_PATTERN.search(piece.text):
            return False
    return bool(value.pieces) and value.text not in ("", '""', "''")


def _task_text(draft: Draft, piece: Piece, body: Body) -> str | None:
    """Return the string in the job for a piece that a shell in each task expands.

    Returns None if the value in the task may differ from the value in the batch script, and no setup of the
    tasks gives it.
    """
    if piece.kind == "glob" and piece.text.startswith("["):  # a list, such as layers=[64,64]
        why = "bash would replace it only by names of files that match it as a pattern"
        draft.note(f"{piece.text} stays as it is: {why}")
        return piece.text
    is_plain = piece.kind == "variable" and not piece.subscript and not piece.operator
    if is_plain and _TASK_VARIABLE.fullmatch(piece.name):
        # The job has the mark @NAME@ as argument. This line of setup_per_task replaces the mark in each task.
        setup_lines = draft.profile.setdefault("setup_per_task", [])
        replacing_line = f'set -- "${{@//@{piece.name}@/${piece.name}}}"'
        if replacing_line not in setup_lines:
            setup_lines.append(replacing_line)
        return f"@{piece.name}@"
    # ${NAME:-DEFAULT} has the same value in the batch script if the script does not set NAME.
    is_unset_with_default = piece.operator in (":-", "-") and piece.name not in draft.script.assigned_names
    is_set_in_task = any(assignment.name == piece.name for assignment in body.assignments)
    is_of_step = _STEP_VARIABLE.fullmatch(piece.name) is not None
    has_same_value = (is_plain or is_unset_with_default) and not is_set_in_task and not is_of_step
    if not has_same_value and not _batch_script_expands(draft, piece, only_launch=is_of_step):
        return None
    # The empty word belongs to the task's shell: the order of the batch script's lines says nothing about it.
    return _batch_text(draft, piece, word=Word((), 0, 0, body.source))


def _batch_script_expands(draft: Draft, piece: Piece, *, only_launch: bool) -> bool:
    """Return whether the batch script expands the text of a piece before a shell in the task reads it.

    In `bash -c "python train.py --lr $LR"`, the batch script expands $LR. In single quotes, or with a
    backslash before it, $LR reaches the task unchanged. With `only_launch`, only strings with commands count,
    which are in the statement of the launch or in the value of a variable there.
    """
    words = [assignment.word for assignment in draft.body.assignments if assignment.word]
    words += [word for command in draft.body.commands for word in command.words]
    if only_launch:
        launch_words = [word for word in words if word.line in draft.launch_lines]
        names = {name for word in launch_words for name in word.variables}
        assignments = [assignment for name in names for assignment in draft.body.assignments_of(name)]
        launch_words += [assignment.word for assignment in assignments if assignment.word]
        words = [word for word in launch_words if re.search(r"\s", word.text)]  # strings with commands
    end = r"\b" if piece.text[-1:].isidentifier() else ""  # $RANK is not in $RANKS
    expansion = re.compile(rf"(?<!\\){re.escape(piece.text)}{end}")
    return any(expansion.search(word.text) for word in words if not word.text.startswith("'"))
