"""Script -> where each of its lines came from: a line of a template, and the block around it.

The templates are rendered a second time, with marks in their text. Jinja gives an extension the tokens of a
template after it has trimmed blanks (`Extension.filter_stream`), so that marks change nothing else. The text
without its marks must be the script, byte for byte, and that is checked.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jinja2
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.render.render import environment_of, fill, finish
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


def trace(
    resolved: ResolvedJob, script: str, *, code: Path, rerun: Sequence[str], folders: Sequence[Path]
) -> list[TemplateLine]:
    """Return the place of each line of the script that `render` made of the resolved job.

    Raises DocumentError: a template changes its own text, which can't be followed.
    """
    marked = fill(_marking(tuple(folders)), resolved, code=code)
    lines = list(_placed(marked))
    blank = [text == "\n" for _, text in lines]  # `finish` leaves the first of several empty lines
    places = [line for line, *both in zip(lines, blank, [False, *blank[:-1]], strict=True) if not all(both)]
    if finish(_MARK.sub("", marked), rerun) != script or len(places) != script.count("\n"):
        what = f"the lines of template '{resolved.template}' can't be traced"
        raise DocumentError.of(what, fix="don't store and change text in the template")
    return [place for place, _ in places]


@functools.cache
def _marking(folders: tuple[Path, ...]) -> jinja2.Environment:
    """Return Jinja with marks; its templates are compiled apart, and not kept after this process."""
    return environment_of(folders, None).overlay(extensions=[_Marks], bytecode_cache=None)


def trace_request(request: Request, script: str) -> list[TemplateLine]:
    """Return the place of each line of the script of a request. Raises what `trace` does."""
    folders = request.places.folders("templates")
    try:
        return trace(request.resolved, script, code=bundled("code"), rerun=request.rerun, folders=folders)
    except (LookupError, ValueError) as error:
        what = f"the lines of template '{request.resolved.template}' can't be traced"
        raise DocumentError.of(what, fix="use explain without --lines") from error


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
