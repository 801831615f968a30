"""A script with the origin of each line: a line of a template, and the block around it.

The templates are rendered with marks in their text. Jinja gives an extension the tokens of a template after
it has trimmed blanks (`Extension.filter_stream`), so that marks change nothing else. The text without its
marks is the script. Only a template that keeps text as a value could change the marks: then the script is
rendered without marks too, and the two must be the same, byte for byte.
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
from sbatchgen.jobs.render.render import environment_of, fill, finish, keeps_text, render
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

# Neither a value nor a script can hold a NUL. Between two of them is a mark: "text LINE FILE",
# "value LINE FILE", "block NAME" where a block begins, or nothing where it ends.
_MARK = re.compile(r"\0([^\0]*)\0")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@frozen()
class TemplateLine:
    """Where a line of the script came from."""

    file: Path  # of the template
    line: int  # the line there, counted from 1
    block: str = ""  # the innermost block around it, also of a template that includes this one; "" for none
    value: bool = False  # whether it holds a value of the job or the profile


class TracedScript(NamedTuple):
    """A script, and the origin of each of its lines; None if a template changes its own text."""

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
    """Return the script that `render` makes of these arguments, traced. Raises what `render` does."""
    environment = environment_of(tuple(folders), cache, _Marks)
    plain = partial(render, resolved, code=code, rerun=rerun, folders=folders, cache=cache)
    try:
        marked = fill(environment, resolved, code=code)
    except DocumentError:  # of marks in a text that a template changes, or of the template itself
        return TracedScript(plain(), None)
    script = finish(_MARK.sub("", marked), rerun)
    if keeps_text(environment) and (rendered := plain()) != script:
        return TracedScript(rendered, None)
    lines = list(_placed(marked))
    blank = [text == "\n" for _, text in lines]  # `finish` leaves the first of several empty lines
    shown = [line for line, *both in zip(lines, blank, [False, *blank[:-1]], strict=True) if not all(both)]
    return TracedScript(script, [line for line, _ in shown] if len(shown) == script.count("\n") else None)


def trace_request(request: Request) -> TracedScript:
    """Return the script of a request, traced. Raises what `render` does."""
    folders, cache = request.places.folders("templates"), request.places.cache
    return trace(request.resolved, code=bundled("code"), rerun=request.rerun, folders=folders, cache=cache)


def lines_of(request: Request) -> tuple[str, list[TemplateLine]]:
    """Return the script of a request and the origin of each line.

    Raises DocumentError: a template changes its own text, which can't be followed.
    """
    script, lines = trace_request(request)
    if lines is None:
        what = f"the lines of template '{request.resolved.template}' can't be traced"
        raise DocumentError.of(what, fix="don't store and change text in the template")
    return script, lines


class _Marks(Extension):
    """Puts a mark before each line of text and each value, and at both ends of a block."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        statement: list[Token] = []
        required: list[bool] = []  # of the blocks around: a required one may hold no text, not even a mark
        for token in stream:
            if statement or token.type == "block_begin":
                statement.append(token)
                if token.type == "block_end":
                    yield from _around(statement, required)
                    statement = []
                continue
            if token.type == "variable_begin":
                yield _text(token, f"\0value {token.lineno} {stream.filename}\0")
            if token.type == "data" and not any(required):
                lines = enumerate(_LINE.findall(token.value), token.lineno)
                yield _text(token, "".join(f"\0text {at} {stream.filename}\0{line}" for at, line in lines))
            else:
                yield token


def _around(statement: list[Token], required: list[bool]) -> Iterator[Token]:
    """Yield a statement; where it begins or ends a block, with a mark inside the block."""
    first = statement[0]
    if statement[1].test("name:endblock") and not required.pop():
        yield _text(first, "\0\0")
    yield from statement
    if statement[1].test("name:block"):
        required.append(any(token.test("name:required") for token in statement[3:]))
        if not required[-1]:
            yield _text(first, f"\0block {statement[2].value}\0")


def _text(beside: Token, text: str) -> Token:
    return Token(beside.lineno, "data", text)


def _placed(marked: str) -> Iterator[tuple[TemplateLine, str]]:
    blocks: list[str] = []
    first = place = TemplateLine(Path(), 0)
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
