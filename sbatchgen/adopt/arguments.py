"""The arguments of the trainer -> those of a job: text, and variables of the job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sbatchgen.adopt.draft import Draft
from sbatchgen.bash import Word
from sbatchgen.bash.body import Body
from sbatchgen.bash.word import Piece

_OWN = ("@", "*")  # the script's own arguments
_NAME = re.compile(r"[A-Za-z_]\w*")
# Variables that a task of a step has values of its own for, and those that are not the same there.
_OF_TASKS = re.compile(r"SLURM_(?:PROCID|LOCALID|NODEID)|SLURMD_NODENAME|HOSTNAME")
_DIFFERENT = re.compile(r"SLURM_STEP\w*|\w*RANK|\w+_DEVICES|RANDOM|SECONDS")
_NEVER_BLANK = re.compile(r"SLURM|(?:USER|HOME)$")
# Commands that print a single word.
_ONE_WORD = re.compile(
    r"(?:\$\(|`)\s*(?:basename|date|dirname|expr|hostname|id|mktemp|nproc|pwd|readlink|realpath|uuidgen|whoami)\b"
    r"|\|\s*(?:head|tail|wc)\b[^|]*$"
)


def arguments(
    draft: Draft, words: Iterable[Word], body: Body, *, in_task: bool
) -> Iterator[tuple[Word, str | None]]:
    """Yield words with the string that a job has for each; None if it can't have one.

    {env:NAME} is a variable of the job. The script's own arguments are left out.

    Args:
        draft: The job.
        words: The words.
        body: The script that holds them.
        in_task: Whether that is a string, which a shell in each task reads.
    """
    for word in words:
        pieces = body.followed(word).pieces
        if pieces and all(piece.kind == "variable" and piece.name in _OWN for piece in pieces):
            draft.note("the script's own arguments come after --: sbatchgen submit JOB.yaml -- ARGUMENTS")
            continue
        texts = []
        for piece in word.pieces:
            followed = body.followed(replace(word, pieces=(piece,)))
            known = [draft.text_of(each) for each in followed.pieces]
            if None not in known:
                texts += known
            elif in_task:
                texts.append(_in_task(draft, followed.only_piece or piece, body))
            else:
                texts.append(_in_batch(draft, piece, word))
        yield word, None if None in texts else "".join(filter(None, texts))


def _in_batch(draft: Draft, piece: Piece, word: Word) -> str | None:
    """Return what a job has for an expansion that the batch script makes."""
    if piece.kind not in ("variable", "arithmetic", "command"):
        return draft.of_user(piece)
    sets = [each for each in draft.body.sets if each.name == piece.name]
    values = [word.value for each in sets for word in (each.word, *(each.items or ())) if word]
    if piece.kind == "command":
        one_word = _ONE_WORD.search(piece.text) is not None
    else:
        blank = piece.kind == "variable" and (" " in piece.text or piece.operator.endswith("+"))
        one_word = not blank and not any(value == "" or " " in (value or "") for value in values)
    changed = word.source is draft.body.source and len({each.at < piece.at for each in sets}) > 1
    nameless = piece.kind == "variable" and not piece.name.isidentifier()
    if nameless or changed or piece.subscript in ("@", "*") or not (piece.quoted or one_word):
        return None
    if not piece.quoted and piece.kind == "variable" and not _NEVER_BLANK.match(piece.name):
        draft.unquoted[piece.text] = None
    draft.needed |= {*_NAME.findall(piece.text)}
    if piece.kind == "variable" and not piece.subscript and not piece.operator:
        return f"{{env:{piece.name}}}"
    value = f'"{piece.text}"' if piece.quoted else piece.text
    return f"{{env:{draft.made.setdefault(value, f'argument_{len(draft.made) + 1}')}}}"


def _in_task(draft: Draft, piece: Piece, body: Body) -> str | None:
    """Return what a job has for an expansion in a string, which a task may make."""
    plain = piece.kind == "variable" and not piece.subscript and not piece.operator
    if plain and _OF_TASKS.fullmatch(piece.name):  # a mark, for which each task sets its value
        lines = draft.profile.setdefault("setup_per_task", [])
        line = f'set -- "${{@//@{piece.name}@/${piece.name}}}"'
        lines += [] if line in lines else [line]
        return f"@{piece.name}@"
    own = any(each.name == piece.name for each in body.sets) or _DIFFERENT.fullmatch(piece.name)
    words = [each.word for each in draft.body.sets if each.word]
    words += [each for command in draft.body.commands for each in command.words]
    texts = [word.text for word in words if not word.text.startswith("'")]
    of_batch = any(piece.text in text and f"\\{piece.text}" not in text for text in texts)
    return (
        _in_batch(draft, piece, word=Word((), 0, 0, body.source)) if (plain and not own) or of_batch else None
    )
