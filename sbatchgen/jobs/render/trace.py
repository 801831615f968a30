"""The trace of a script: the line of a template that each line of the script comes from, with its block.

The templates are rendered with marks in their text; the text without the marks is the script. The marks
change nothing else, because Jinja gives an extension the tokens of a template after trimming blanks
(`Extension.filter_stream`). Only a template that stores text as a value could change the marks. In this case
the script is also rendered without marks, and both must be equal, byte for byte.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.render.render import fill, finish, render
from sbatchgen.jobs.render.templates import environment_of, keeps_text
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

# A mark is between two NULs, which no value and no script can hold. It is "text LINE FILE",
# "value LINE FILE", "block NAME" at the start of a block, or nothing at its end.
_MARK = re.compile(r"\0([^\0]*)\0")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@frozen()
class TemplateLine:
    """The origin of a line of the script."""

    file: Path  # the template
    line: int  # the line in the template, counted from 1
    block: str = ""  # the innermost block around the line, perhaps of an including template; "" for none
    value: bool = False  # whether the line of the script holds a value of the job or the profile


class TracedScript(NamedTuple):
    """A script and the origins of its lines, which are None if a template changes its own text."""

    text: str
    lines: list[TemplateLine] | None


def trace(
    resolved: ResolvedJob,
    *,
    code: Path,
    rerun: Sequence[str],
    folders: Sequence[Path],
    cache: Path | None = None,
) -> TracedScript:
    """Return the script that `render` returns for these arguments, with its trace. Raises like `render`."""
    environment = environment_of(tuple(folders), cache, _Marks)
    plain = partial(render, resolved, code=code, rerun=rerun, folders=folders, cache=cache)
    try:
        marked = fill(environment, resolved, code=code)
    except DocumentError:  # a template has failed on the marks, or is broken, and then `plain` also raises
        return TracedScript(plain(), None)
    script = finish(_MARK.sub("", marked), rerun)
    if keeps_text(environment) and (rendered := plain()) != script:
        return TracedScript(rendered, None)
    lines = list(_placed(marked))
    # `finish` leaves only the first of several empty lines
    blank = [text == "\n" for _, text in lines]
    after_blank = [False, *blank[:-1]]
    removed = [is_blank and follows for is_blank, follows in zip(blank, after_blank, strict=True)]
    origins = [origin for (origin, _), is_removed in zip(lines, removed, strict=True) if not is_removed]
    return TracedScript(script, origins if len(origins) == script.count("\n") else None)


def trace_request(request: Request) -> TracedScript:
    """Return the script of a request, with its trace. Raises like `render`."""
    folders, cache = request.places.folders("templates"), request.places.cache
    return trace(request.resolved, code=bundled("code"), rerun=request.rerun, folders=folders, cache=cache)


def lines_of(request: Request) -> tuple[str, list[TemplateLine]]:
    """Return the script of a request and the origin of each line.

    Raises DocumentError: a template changes its own text, so its lines can't be traced.
    """
    script, lines = trace_request(request)
    if lines is None:
        what = f"the lines of template '{request.resolved.template}' can't be traced"
        raise DocumentError.of(what, fix="don't store and change text in the template")
    return script, lines


class _Marks(Extension):
    """The extension that puts a mark before each line of text and each value, and at both ends of a block."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        statement: list[Token] = []
        # for each block around, whether it is required: Jinja allows no text in such a block, not even a mark
        required: list[bool] = []
        for token in stream:
            if statement or token.type == "block_begin":
                statement.append(token)
                if token.type == "block_end":
                    yield from _marked_statement(statement, required)
                    statement = []
                continue
            if token.type == "variable_begin":
                yield _text(token, f"\0value {token.lineno} {stream.filename}\0")
            if token.type == "data" and not any(required):
                lines = enumerate(_LINE.findall(token.value), token.lineno)
                yield _text(token, "".join(f"\0text {at} {stream.filename}\0{line}" for at, line in lines))
            else:
                yield token


def _marked_statement(statement: list[Token], required: list[bool]) -> Iterator[Token]:
    """Yield the tokens of a statement; if it begins or ends a block, also a mark inside the block.

    `required` has an item for each block around, and is changed at the ends of a block.
    """
    first = statement[0]
    if statement[1].test("name:endblock") and not required.pop():
        yield _text(first, "\0\0")
    yield from statement
    if statement[1].test("name:block"):
        required.append(any(token.test("name:required") for token in statement[3:]))
        if not required[-1]:
            yield _text(first, f"\0block {statement[2].value}\0")


def _text(neighbour: Token, text: str) -> Token:
    """Return a token of text on the line of another token."""
    return Token(neighbour.lineno, "data", text)


def _placed(marked: str) -> Iterator[tuple[TemplateLine, str]]:
    """Yield each line of a text with marks, without the marks, after its origin."""
    blocks: list[str] = []  # around the present line, the innermost last
    first = place = TemplateLine(Path(), 0)  # the origin of the line's first text, and of the present text
    line = ""
    for index, piece in enumerate(_MARK.split(marked)):
        kind, _, about = piece.partition(" ")
        if index % 2 == 0:
            for part in _LINE.findall(piece):
                if not line:
                    first = replace(place, block=blocks[-1] if blocks else "")
                elif place.value and not first.value:
                    first = replace(first, value=True)
                line += part
                if part.endswith("\n"):
                    yield first, line
                    line = ""
        elif kind == "block":
            blocks.append(about)
        elif kind:
            number, _, file = about.partition(" ")
            place = TemplateLine(Path(file), int(number), value=kind == "value")
        else:
            blocks.pop()
    if line:
        yield first, line
