"""The conversion of the trainer's arguments into arguments of a job: texts and variables of the job."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sbatchgen.check.bash import Assignment, Body, Piece, Word
from sbatchgen.lab.adopt.draft import Draft

_ALL_ARGUMENTS = ("@", "*")  # the variables for all of the script's own arguments
_NAME = re.compile(r"[A-Za-z_]\w*")
# Text in an argument that a job would replace, such as {run_dir} or {env:HOME}.
_PLACEHOLDER = re.compile(r"\{(?:run_dir|data_dir|resume|env:)")
# Variables that differ in each task.
_TASK_VARIABLES = re.compile(r"SLURM_(?:PROCID|LOCALID|NODEID)|SLURMD_NODENAME|HOSTNAME")
# Variables that a step sets again, so that the batch script may have other values.
_STEP_VARIABLES = re.compile(r"SLURM_STEP\w*|\w*RANK|\w+_DEVICES|RANDOM|SECONDS")
# Variables whose values have no blanks.
_NEVER_BLANK = re.compile(r"SLURM|(?:USER|HOME)$")
_PLAIN_OPERATORS = ("", ":-", "-", ":?", "?")  # operators of expansions that leave a set value unchanged
_SPLITTING = re.compile(r"[\s*?\[]")  # bash splits a value here, or expands it to names of files
_MAX_DEPTH = 8  # depth of variables in the values of variables
# Commands that print a single word, such as $(hostname) and $(nodes | head -n 1).
_ONE_WORD_COMMAND = re.compile(
    r"(?:\$\(|`)\s*(?:basename|date|dirname|expr|hostname|id|mktemp|nproc|pwd|readlink|realpath|uuidgen|whoami)\b"
    r"|\|\s*(?:(?:head|tail|wc)\b[^|]*|awk\b[^|]*\{ *print \$\d+[ ;}][^|]*)$"
)


def arguments(
    draft: Draft, words: Iterable[Word], body: Body, *, in_task: bool
) -> Iterator[tuple[Word, str | None]]:
    """Yield each word with its string in the job; None if no string expresses the word.

    In the string, {env:NAME} is a variable of the job, and {env:NAME[@]} stands for the words of an array.
    `in_task`: a shell in each task expands the words, not the batch script.
    Words that stand for all arguments of the script are not yielded.
    """
    for word in words:
        pieces = body.resolve(word).pieces
        if pieces and all(piece.kind == "variable" and piece.name in _ALL_ARGUMENTS for piece in pieces):
            draft.note("the script's own arguments come after --: sbatchgen submit JOB.yaml -- ARGUMENTS")
            continue
        if (piece := word.only_piece) and piece.subscript and piece.name in draft.argument_names:
            yield word, f"{{env:{piece.name}[@]}}"  # an array of the rendered script
            continue
        texts = []  # of each piece; None for a piece that no string expresses
        for piece in word.pieces:
            # The piece, or the pieces of its value if it is a variable that the script sets.
            resolved = body.resolve(replace(word, pieces=(piece,)))
            known_texts = [draft.text_of(part) for part in resolved.pieces]
            is_unquoted = piece.kind == "variable" and not piece.is_quoted
            is_known = None not in known_texts
            # Without quotes, bash splits a value at blanks, replaces a pattern by names of files, and drops
            # an empty value.
            is_split = is_known and _SPLITTING.search("".join(filter(None, known_texts)) or " ")
            if is_unquoted and is_split:
                known_texts = [None]
            if None not in known_texts:
                texts += [None if text and _PLACEHOLDER.search(text) else text for text in known_texts]
            elif in_task:
                inner = resolved.only_piece or piece
                texts.append(_task_argument(draft, inner, body) or _task_argument(draft, piece, body))
            else:
                texts.append(_batch_argument(draft, piece, word))
        if None in texts:
            yield word, None if in_task else _as_array(draft, word)
        else:
            yield word, "".join(filter(None, texts))


def _as_array(draft: Draft, word: Word) -> str | None:
    """Return the placeholder of an array with the words to which `word` expands, such as {env:argument_1[@]}.

    Returns None if the value may change before the launch, or if the word is not in the batch script itself.
    """
    is_of_script = f"({word.text})" in draft.argument_variables or word.source is draft.body.source
    has_changed = any(piece.kind == "variable" and _may_change(draft, piece, word) for piece in word.pieces)
    if not is_of_script or has_changed or not word.text.isprintable():
        return None
    draft.needed_variables |= {*_NAME.findall(word.text)}
    return f"{{env:{draft.argument_variable(f'({word.text})')}[@]}}"


def _may_change(draft: Draft, piece: Piece, word: Word) -> bool:
    """Return whether a variable may have another value at the launch than in this word."""
    sets = draft.body.assignments_of(piece.name)
    is_set_before = any(assignment.at < piece.at for assignment in sets)
    is_set_after = any(assignment.at >= piece.at for assignment in sets)
    may_differ = word.source is draft.body.source and is_set_before and is_set_after
    return not piece.name.isidentifier() or may_differ


def _batch_argument(draft: Draft, piece: Piece, word: Word) -> str | None:
    """Return the string in the job for a piece of a word that the batch script expands.

    Returns None if the piece may expand to several words, or to none.
    """
    if piece.kind not in ("variable", "arithmetic", "command"):
        return draft.user_value(piece)
    values = [
        assignment.word.value for assignment in draft.body.assignments_of(piece.name) if assignment.word
    ]
    if piece.kind == "command":
        is_one_word = _ONE_WORD_COMMAND.search(piece.text) is not None
    else:
        # "${NAME:+--flag value}" may be empty or several words.
        may_be_empty = piece.kind == "variable" and (" " in piece.text or piece.operator.endswith("+"))
        sets = [
            assignment
            for assignment in draft.body.assignments_of(piece.name)
            if assignment.setter != "export"
        ]
        has_array = any(assignment.items is not None for assignment in sets)
        has_blank = any(value == "" or " " in (value or "") for value in values)
        is_one_word = not (may_be_empty or has_array or has_blank)
    has_changed = piece.kind == "variable" and _may_change(draft, piece, word)
    if piece.kind == "variable" and not piece.is_quoted:
        is_one_word = is_one_word and (_has_one_word(draft, piece) or _is_folder(piece, word))
        is_one_word = is_one_word or (piece.subscript.isdigit() and _are_split_outputs(sets))
    if has_changed or piece.subscript in ("@", "*") or not (piece.is_quoted or is_one_word):
        return None
    draft.needed_variables |= {*_NAME.findall(piece.text)}
    if piece.kind == "variable" and not piece.subscript and not piece.operator:
        return f"{{env:{piece.name}}}"
    value = f'"{piece.text}"' if piece.is_quoted else piece.text
    return f"{{env:{draft.argument_variable(value)}}}"


def _are_split_outputs(sets: Iterable[Assignment]) -> bool:
    """Return whether the items of an array are unquoted outputs of commands, which bash splits at blanks."""
    items = [item.only_piece for assignment in sets for item in assignment.items or ()]
    return bool(items) and all(item and item.kind == "command" and not item.is_quoted for item in items)


def _is_folder(piece: Piece, word: Word) -> bool:
    """Return whether a variable begins a path, such as $SCRATCH/x.

    The value of such a variable has no blanks: with blanks the old script would fail.
    """
    following = [part for part in word.pieces if part.at > piece.at]
    return bool(following) and following[0].kind == "text" and following[0].text.startswith("/")


def _has_one_word(draft: Draft, piece: Piece, depth: int = 0) -> bool:
    """Return whether an unquoted variable expands to exactly one word.

    A variable that the script does not set, such as $EXTRA_ARGS, may hold no word or several words. `depth`
    counts the variables whose values led to this variable.
    """
    if _NEVER_BLANK.match(piece.name) or piece.name in draft.argument_names:
        return True
    sets = [
        assignment for assignment in draft.body.assignments_of(piece.name) if assignment.setter != "export"
    ]
    is_set = any(assignment.context.is_top_level and assignment.word for assignment in sets)
    if not is_set or depth > _MAX_DEPTH or piece.operator not in _PLAIN_OPERATORS:
        return False
    values = [assignment.word for assignment in sets]
    return all(value is not None and _is_one_word(draft, value, depth) for value in values)


def _is_one_word(draft: Draft, word: Word, depth: int) -> bool:
    """Return whether a value is not empty and has no blanks."""
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
        # setup_per_task replaces the mark @NAME@ by the value of each task.
        lines = draft.profile.setdefault("setup_per_task", [])
        line = f'set -- "${{@//@{piece.name}@/${piece.name}}}"'
        lines += [] if line in lines else [line]
        return f"@{piece.name}@"
    # ${NAME:-DEFAULT} has the same value in the batch script if the script does not set NAME.
    is_plain = is_plain or (piece.operator in (":-", "-") and piece.name not in draft.script.assigned_names)
    is_set_in_task = any(assignment.name == piece.name for assignment in body.assignments)
    differs = is_set_in_task or _STEP_VARIABLES.fullmatch(piece.name)
    # If the batch script also expands the text somewhere, the batch script and the task have the same value.
    words = [assignment.word for assignment in draft.body.assignments if assignment.word]
    words += [word for command in draft.body.commands for word in command.words]
    texts = [word.text for word in words if not word.text.startswith("'")]
    is_in_batch_script = any(piece.text in text and f"\\{piece.text}" not in text for text in texts)
    is_same = is_in_batch_script or (is_plain and not differs)
    return _batch_argument(draft, piece, word=Word((), 0, 0, body.source)) if is_same else None
