"""The conversion of the trainer's arguments into `args` of a job.

An argument of a job is a string. Parts of the string may be placeholders, such as {env:NAME}, for values that
only the running job knows.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from sbatchgen.check.bash import Assignment, Body, Piece, Word
from sbatchgen.lab.adopt.draft import Draft

_ALL_ARGUMENTS = ("@", "*")  # the variables for all of the script's own arguments
_NAME = re.compile(r"[A-Za-z_]\w*")  # a name of a variable
# Text in an argument that a job would replace, such as {run_dir} or {env:HOME}.
_PLACEHOLDER = re.compile(r"\{(?:run_dir|data_dir|resume|env:)")
# Variables with another value in each task. The batch script does not know these values.
_TASK_VARIABLES = re.compile(r"SLURM_(?:PROCID|LOCALID|NODEID)|SLURMD_NODENAME|HOSTNAME")
# Variables that srun sets for its step. In the batch script they may be unset, or have other values.
_STEP_VARIABLES = re.compile(r"SLURM_STEP\w*|\w*RANK|\w+_DEVICES|RANDOM|SECONDS")
# Variables whose values are one word: bash does not split them.
_ONE_WORD_VARIABLE = re.compile(r"SLURM|(?:USER|HOME)$")
_PLAIN_OPERATORS = ("", ":-", "-", ":?", "?")  # operators of expansions that leave a set value unchanged
# Characters at which bash splits a value without quotes, or for which it looks for names of files.
_SPLITTING = re.compile(r"[\s*?\[]")
_MAX_DEPTH = 8  # variables that are followed, each in the value of another
# Commands that print a single word, such as $(hostname) and $(nodes | head -n 1).
_ONE_WORD_COMMAND = re.compile(
    r"(?:\$\(|`)\s*(?:basename|date|dirname|expr|hostname|id|mktemp|nproc|pwd|readlink|realpath|uuidgen|whoami)\b"
    r"|\|\s*(?:(?:head|tail|wc)\b[^|]*|awk\b[^|]*\{ *print \$\d+[ ;}][^|]*)$"
)


class ConvertedWord(NamedTuple):
    """A word of the old script, and its string in the job."""

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
        if (piece := word.only_piece) and piece.subscript and piece.name in draft.argument_names:
            # A variable for an array, which `_as_array` has given to the rendered script.
            yield ConvertedWord(word, f"{{env:{piece.name}[@]}}")
            continue
        texts = [
            text for piece in word.pieces for text in _piece_texts(draft, word, piece, body, in_task=in_task)
        ]
        if None not in texts:
            yield ConvertedWord(word, "".join(filter(None, texts)))
        else:
            yield ConvertedWord(word, None if in_task else _as_array(draft, word))


def _piece_texts(draft: Draft, word: Word, piece: Piece, body: Body, *, in_task: bool) -> list[str | None]:
    """Return the strings in the job for a piece of a word; [None] if no string expresses the piece."""
    # The piece itself, or the pieces of its value if it is a variable that the script sets.
    resolved = body.resolve(replace(word, pieces=(piece,)))
    known_texts = [draft.text_of(part) for part in resolved.pieces]
    is_known = None not in known_texts
    # Without quotes, bash splits a value at blanks, replaces a pattern by names of files, and drops an empty
    # value. Then the value is not one word, and its text can't be written into the job.
    if is_known and piece.kind == "variable" and not piece.is_quoted:
        is_known = not _SPLITTING.search("".join(filter(None, known_texts)) or " ")
    if is_known:
        return [None if text and _PLACEHOLDER.search(text) else text for text in known_texts]
    if not in_task:
        return [_batch_argument(draft, piece, word)]
    inner = resolved.only_piece or piece
    return [_task_argument(draft, inner, body) or _task_argument(draft, piece, body)]


def _as_array(draft: Draft, word: Word) -> str | None:
    """Return the placeholder for an array with the words to which `word` expands: {env:argument_1[@]}.

    The rendered script sets the array, as in argument_1=($EXTRA_ARGS). Returns None if the value may change
    before the launch, or if the word is not in the batch script itself.
    """
    array = f"({word.text})"
    is_in_script = array in draft.argument_variables or word.source is draft.body.source
    may_change = any(piece.kind == "variable" and _may_change(draft, piece, word) for piece in word.pieces)
    if not is_in_script or may_change or not word.text.isprintable():
        return None
    draft.needed_variables |= {*_NAME.findall(word.text)}
    return f"{{env:{draft.argument_variable(array)}[@]}}"


def _may_change(draft: Draft, piece: Piece, word: Word) -> bool:
    """Return whether a variable may have another value at the launch than in this word.

    The value may differ if the script sets the variable before the word and again after it. The value of a
    special parameter, such as $? or $1, may always differ.
    """
    assignments = draft.body.assignments_of(piece.name)
    is_set_before = any(assignment.at < piece.at for assignment in assignments)
    is_set_after = any(assignment.at >= piece.at for assignment in assignments)
    may_differ = word.source is draft.body.source and is_set_before and is_set_after
    return not piece.name.isidentifier() or may_differ


def _batch_argument(draft: Draft, piece: Piece, word: Word) -> str | None:
    """Return the string in the job for a piece of a word that the batch script expands.

    Returns None if the piece may expand to several words, or to none.
    """
    if piece.kind not in ("variable", "arithmetic", "command"):
        return draft.user_value(piece)
    if piece.kind == "command":
        is_one_word = _ONE_WORD_COMMAND.search(piece.text) is not None
    else:
        is_one_word = _seems_one_word(draft, piece, word)
    may_change = piece.kind == "variable" and _may_change(draft, piece, word)
    if may_change or piece.subscript in ("@", "*") or not (piece.is_quoted or is_one_word):
        return None
    draft.needed_variables |= {*_NAME.findall(piece.text)}
    if piece.kind == "variable" and not piece.subscript and not piece.operator:
        return f"{{env:{piece.name}}}"
    value = f'"{piece.text}"' if piece.is_quoted else piece.text
    return f"{{env:{draft.argument_variable(value)}}}"


def _seems_one_word(draft: Draft, piece: Piece, word: Word) -> bool:
    """Return whether a variable or an arithmetic expansion in a word most likely expands to one word."""
    values = [
        assignment.word.value for assignment in draft.body.assignments_of(piece.name) if assignment.word
    ]
    assignments = _value_assignments(draft, piece.name)
    # "${NAME:+--flag value}" may be empty or several words.
    may_be_empty = piece.kind == "variable" and (" " in piece.text or piece.operator.endswith("+"))
    has_array = any(assignment.items is not None for assignment in assignments)
    has_blank = any(value == "" or " " in (value or "") for value in values)
    is_one_word = not (may_be_empty or has_array or has_blank)
    if piece.kind == "variable" and not piece.is_quoted:
        is_one_word = is_one_word and (_has_one_word(draft, piece) or _begins_path(piece, word))
        # An item of an array such as NODES=($(scontrol show hostnames)) has no blanks.
        is_one_word = is_one_word or (piece.subscript.isdigit() and _are_split_outputs(assignments))
    return is_one_word


def _value_assignments(draft: Draft, name: str) -> list[Assignment]:
    """Return the assignments of a variable that may change its value.

    `export NAME` does not change the value. In a Body it is an assignment that appends no items.
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
    following = [part for part in word.pieces if part.at > piece.at]
    return bool(following) and following[0].kind == "text" and following[0].text.startswith("/")


def _has_one_word(draft: Draft, piece: Piece, depth: int = 0) -> bool:
    """Return whether an unquoted variable expands to exactly one word.

    A variable that the script does not set, such as $EXTRA_ARGS, may hold no word or several words. `depth`
    is 1 for a variable in the value of another variable, and 2 for a variable in that variable's value.
    """
    if _ONE_WORD_VARIABLE.match(piece.name) or piece.name in draft.argument_names:
        return True
    assignments = _value_assignments(draft, piece.name)
    is_set = any(assignment.context.is_top_level and assignment.word for assignment in assignments)
    if not is_set or depth > _MAX_DEPTH or piece.operator not in _PLAIN_OPERATORS:
        return False
    values = [assignment.word for assignment in assignments]
    return all(value is not None and _is_one_word(draft, value, depth) for value in values)


def _is_one_word(draft: Draft, word: Word, depth: int) -> bool:
    """Return whether the value of a variable is one word: not empty, and without blanks and patterns."""
    for piece in word.pieces:
        if piece.kind == "variable":
            if not _has_one_word(draft, piece, depth + 1):
                return False
        elif piece.kind == "command":
            if not _ONE_WORD_COMMAND.search(piece.text):
                return False
        elif _SPLITTING.search(piece.text):
            return False
    return bool(word.pieces) and word.text not in ("", '""', "''")


def _task_argument(draft: Draft, piece: Piece, body: Body) -> str | None:
    """Return the string in the job for a piece that a shell in each task expands; None without a string."""
    if piece.kind == "glob" and piece.text.startswith("["):  # a list, such as layers=[64,64]
        why = "bash would replace it only by names of files that match it as a pattern"
        draft.note(f"{piece.text} stays as it is: {why}")
        return piece.text
    is_plain = piece.kind == "variable" and not piece.subscript and not piece.operator
    if is_plain and _TASK_VARIABLES.fullmatch(piece.name):
        # The job has the mark @NAME@ as argument. This line of setup_per_task replaces it in each task.
        lines = draft.profile.setdefault("setup_per_task", [])
        line = f'set -- "${{@//@{piece.name}@/${piece.name}}}"'
        lines += [] if line in lines else [line]
        return f"@{piece.name}@"
    # ${NAME:-DEFAULT} has the same value in the batch script if the script does not set NAME.
    is_plain = is_plain or (piece.operator in (":-", "-") and piece.name not in draft.script.assigned_names)
    is_set_in_task = any(assignment.name == piece.name for assignment in body.assignments)
    is_of_step = _STEP_VARIABLES.fullmatch(piece.name) is not None
    is_same = is_plain and not is_set_in_task and not is_of_step
    is_same = is_same or _is_in_batch_script(draft, piece, only_launch=is_of_step)
    return _batch_argument(draft, piece, word=Word((), 0, 0, body.source)) if is_same else None


def _is_in_batch_script(draft: Draft, piece: Piece, *, only_launch: bool) -> bool:
    r"""Return whether the batch script expands a piece too. The task then gets the value of the batch script.

    The piece is then in a text outside of single quotes and without a backslash, such as the string of
    `bash -c "python train.py $X"`. With `only_launch`, only strings with commands count, which are in the
    statement of the launch or in the value of a variable there.
    """
    words = [assignment.word for assignment in draft.body.assignments if assignment.word]
    words += [word for command in draft.body.commands for word in command.words]
    if only_launch:
        launch_words = [word for word in words if word.line in draft.launch_lines]
        names = {name for word in launch_words for name in word.variables}
        assignments = [assignment for name in names for assignment in draft.body.assignments_of(name)]
        launch_words += [assignment.word for assignment in assignments if assignment.word]
        words = [word for word in launch_words if re.search(r"\s", word.text)]
    end = r"\b" if piece.text[-1:].isidentifier() else ""  # $RANK is not in $RANKS
    expansion = re.compile(rf"(?<!\\){re.escape(piece.text)}{end}")
    return any(expansion.search(word.text) for word in words if not word.text.startswith("'"))
