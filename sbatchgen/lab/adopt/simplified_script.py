"""A script that `adopt` has simplified without moving a line: with defaults filled in, for example."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sbatchgen.base.frozen import frozen
from sbatchgen.check.bash import Piece, Word
from sbatchgen.check.script.launches import HELPERS, Launch
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.render import SECOND_PART
from sbatchgen.lab.adopt.block import CLOSING
from sbatchgen.lab.adopt.training import main, split_chain

_DEFAULT = re.compile(r"\$\{(\w+):?[-=](.+)\}", re.DOTALL)
# Variables that a job has without its script.
_JOB_VARIABLES = re.compile(
    r"SLURM_.*|\w+_VISIBLE_DEVICES|(?:LD_LIBRARY_|PYTHON)?PATH|HOME|USER|TMPDIR|SCRATCH|HOSTNAME"
)
_SCRIPT_VARIABLES = frozenset(("CODE_DIR", "RUN_DIR"))  # variables that a rendered script sets
_NO_PREFIX = (
    HELPERS | CLOSING | {"alias", "enroot", "make", "mpiexec", "mpirun", "sbatch", "sudo", "trap", "xargs"}
)
# The beginnings of functions that a rendered script calls one after the other. `exec` would end the script.
_CALLED_FUNCTION = re.compile(r"environment\(\) \{|train\(\) \{(?: #.*)?\n +exec ")
_PYTHON = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed)")


@frozen(kw_only=True)
class SimplifiedScript:
    """A script with simpler statements, and the parts that were replaced or left out."""

    script: JobScript
    defaults: dict[str, str]  # the variables that are replaced by their defaults
    # words of launches that are left out, with the options that they are if a condition holds
    optional: list[tuple[Word, str]]
    prefix: tuple[str, ...]  # words of an unknown program that starts Python, left out
    renamed: dict[str, str]  # the new names of variables and of positional parameters


def simplify(script: JobScript) -> SimplifiedScript:
    """Return a script with simpler statements that start the same programs."""
    script, renamed = _with_other_names(script)
    script, defaults = _with_defaults(script)
    script, optional = _without_optional(script)
    script, prefix = _without_prefix(script)
    script = split_chain(script)
    return SimplifiedScript(
        script=script, defaults=defaults, optional=optional, prefix=prefix, renamed=renamed
    )


def without_functions(new: JobScript) -> JobScript:
    """Return the first part of a rendered script with the bodies of its functions as statements.

    Then the statements are read like the statements of an old script. Lines keep their numbers.
    """
    first = replace(new, text=new.text.rpartition(SECOND_PART)[0])
    edits = []
    for node in first.body.source.nodes[0].children:
        if node.kind == "function_definition" and (begins := _CALLED_FUNCTION.match(first.text, node.start)):
            edits += [_blank(first, *begins.span()), _blank(first, node.end - 1, node.end)]
    return _edited(first, edits)


def _edited(script: JobScript, edits: Iterable[tuple[int, int, str]]) -> JobScript:
    text = script.text
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return script if text == script.text else replace(script, text=text)


def _blank(script: JobScript, start: int, end: int) -> tuple[int, int, str]:
    """Return the edit that replaces a part of the text by blanks and keeps its line breaks."""
    return start, end, re.sub(r"\\(?!\n)|[^\n\\]", " ", script.text[start:end])


def _with_other_names(script: JobScript) -> tuple[JobScript, dict[str, str]]:
    """Return the script with $ARG1 for $1, and OLD_NAME for variables that a rendered script sets."""
    body = script.body
    functions = [node for node in body.source.nodes if node.kind == "function_definition"]
    outer = [command for command in body.commands if not command.context.function]
    changes = any(
        command.name in ("getopts", "shift") or (command.name == "set" and "--" in command.arguments)
        for command in outer
    )
    renamed = {
        use.name: f"ARG{use.name}"
        for use in body.uses
        if use.name.isdigit()
        and use.name != "0"
        and not changes
        and not any(each.start < use.at < each.end for each in functions)
    }
    exported = {each.name for each in body.sets if each.exported or each.source is not body.source}
    renamed |= {name: f"OLD_{name}" for name in _SCRIPT_VARIABLES & (script.assigned - exported)}
    places = [(each.at, each.name) for each in body.sets]
    places += [(script.text.index(use.name, use.at), use.name) for use in body.uses]
    edits = {}
    for at, name in places:
        if name in renamed and not (name.isdigit() and any(each.start < at < each.end for each in functions)):
            braces = "{}" if script.text[at - 1] == "$" else ("", "")
            edits[at] = (at, at + len(name), renamed[name].join(braces))
    return _edited(script, edits.values()), renamed


def _with_defaults(script: JobScript) -> tuple[JobScript, dict[str, str]]:
    """Return the script with DEFAULT for ${NAME:-DEFAULT} and `: ${NAME:=DEFAULT}`, and the defaults."""
    edits, defaults = {}, {}
    for piece, start, end, form in _defaults(script):
        match = _DEFAULT.fullmatch(piece.text)
        sets = [each for each in script.body.sets_of(piece.name) if each.end <= piece.at]
        before = any(not each.context.branch for each in sets)
        if match and not before and not _JOB_VARIABLES.fullmatch(piece.name):
            defaults[piece.name] = match[2].strip("\"'")
            edits[start] = (start, end, form.format(match[2]))
    return _edited(script, edits.values()), defaults


def _defaults(script: JobScript) -> Iterator[tuple[Piece, int, int, str]]:
    """Yield expansions with a default, each with the part of the text to replace and the new form."""
    body = script.body
    words = [("", word) for launch in script.launches for word in launch.command.words]
    for each in body.sets:
        values = (each.word, *(each.items or ())) if each.context.top else ()
        words += [(each.name, word) for word in values if word]
    for name, word in words:
        for piece in word.pieces if word.source is body.source else ():
            if piece.operator in (":-", "-") or (piece.operator in (":=", "=") and piece.name == name):
                yield piece, piece.at, piece.at + len(piece.text), "{}"
    for command in body.commands:
        only = command.words[-1].only_piece if command.name == ":" and command.context.top else None
        if only and only.operator in (":=", "=") and (only.quoted or " " not in only.text):
            yield only, command.at, command.end, f'{only.name}="{{}}"' if only.quoted else f"{only.name}={{}}"


def _without_optional(script: JobScript) -> tuple[JobScript, list[tuple[Word, str]]]:
    """Return the script without variables in a launch that hold options only under a condition."""
    body, optional = script.body, []
    before = [word for launch in script.launches for word in _before_program(launch)]
    for word in dict.fromkeys(before):
        piece = word.only_piece
        if word.source is not body.source or piece is None or piece.kind != "variable" or piece.operator:
            continue
        sets = [each for each in body.sets_of(piece.name) if each.at < word.at]
        certain = [each.items or (each.word and each.word.value) for each in sets if each.context.top]
        others = [each for each in sets if not each.context.top]
        if len(others) != 1 or any(certain) or (piece.quoted and piece.subscript != "@"):
            continue
        sometimes = others[0]
        asked = any(use.name == piece.name and use.at < sometimes.at for use in body.uses)  # [ -z $NAME ]
        values = sometimes.items or ([sometimes.word] if sometimes.word else [])
        text = " ".join(map(body.text_of, values))
        if text.startswith("-") and not asked and not sometimes.context.loop and sometimes.context.branch:
            optional.append((word, text))
    return _edited(script, (_blank(script, word.at, word.end) for word, _ in optional)), optional


def _before_program(launch: Launch) -> Iterator[Word]:
    """Yield the words of a launch before its program, with variables that may be options."""
    first, body = launch.program.words[0], launch.tools[0].body
    for word in launch.command.words:
        expanded = body.expand(word)
        named = first in expanded and not (first.only_piece and first.only_piece.kind == "variable")
        if named or any(_PYTHON.fullmatch(body.value(each) or "") for each in expanded):
            return
        yield word


def _without_prefix(script: JobScript) -> tuple[JobScript, tuple[str, ...]]:
    """Return the script without the words of an unknown program that starts Python, and these words."""
    if main(script):
        return script, ()
    body, launched = script.body, {launch.command: launch for launch in script.launches}
    for command in reversed(body.commands):
        launch = launched.get(command)
        inner = command.test or command.context.substitution
        known = inner or command.name in _NO_PREFIX or not command.words
        if not command.context.top or (launch.is_helper if launch else known):
            continue
        first = launch.program.words[0] if launch else command.words[0]
        pairs = [(expanded, written) for written in command.words for expanded in body.expand(written)]
        at = next((index for index, (expanded, _) in enumerate(pairs) if expanded == first), len(pairs))
        words = [body.value(expanded) or "" for expanded, _ in pairs[at:]]
        count = next((index for index, word in enumerate(words) if _PYTHON.fullmatch(word)), 0)
        if not count or not all(words[:count]):
            continue
        start, end = pairs[at][1].at, pairs[at + count][1].at
        if start < end and "-c" not in words[count:]:
            return _edited(script, [_blank(script, start, end)]), tuple(words[:count])
    return script, ()
