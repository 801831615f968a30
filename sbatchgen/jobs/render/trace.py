"""The trace of a script: for each of its lines, the line and the block of the template it comes from.

To find these lines, the templates are rendered with marks in their text. The script is this text without the
marks. Marks leave the rest of the text as it is, because Jinja trims blanks before it gives the tokens of a
template to an extension (`Extension.filter_stream`). Only a template that stores its text as a value may
change the marks, for example by `{% filter upper %}`. For such a template the script is also rendered without
marks, and both scripts must be equal.
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
from sbatchgen.jobs.render.render import filled_template, finished_script, render
from sbatchgen.jobs.render.templates import environment_of, keeps_text
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

# A mark is between two NULs, which no value and no script can hold. It is "text LINE FILE",
# "value LINE FILE", "block NAME" at the start of a block, or "" at the end of a block:
# "\0text 3 /home/ann/job.sh.j2\0echo".
_MARK = re.compile(r"\0([^\0]*)\0")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # "a\nb" -> "a\n", "b"


@frozen()
class TemplateLine:
    """The place in a template from which a line of the script comes."""

    file: Path  # the template
    line: int  # the line in the template, counted from 1
    block: str = ""  # the innermost block around the line, or around the `include` of its file; "" for none
    has_value: bool = False  # whether the line of the script holds a value of the job or the profile


class TracedScript(NamedTuple):
    """A script and the origins of its lines."""

    text: str
    origins: list[TemplateLine] | None  # one for each line; None if a template changes its own text


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
    render_unmarked = partial(render, resolved, code=code, rerun=rerun, folders=folders, cache=cache)
    try:
        marked = filled_template(environment, resolved, code=code)
    except DocumentError:
        # The marks may be the cause. Without them, any other error is raised again.
        return TracedScript(render_unmarked(), None)
    script = finished_script(_MARK.sub("", marked), rerun)
    if keeps_text(environment) and (unmarked := render_unmarked()) != script:
        return TracedScript(unmarked, None)
    origins = []
    previous_line = ""
    for origin, line in _lines_with_origins(marked):
        # `finished_script` removes an empty line that follows another one.
        is_removed = previous_line == line == "\n"
        if not is_removed:
            origins.append(origin)
        previous_line = line
    return TracedScript(script, origins if len(origins) == script.count("\n") else None)


def trace_request(request: Request) -> TracedScript:
    """Return the script of a request, with its trace. Raises like `render`."""
    folders, cache = request.places.folders("templates"), request.places.cache
    return trace(request.resolved, code=bundled("code"), rerun=request.rerun, folders=folders, cache=cache)


def lines_of(request: Request) -> tuple[str, list[TemplateLine]]:
    """Return the script of a request and the origin of each line.

    Raises DocumentError: a template changes its own text, so its lines can't be traced.
    """
    script, origins = trace_request(request)
    if origins is None:
        what = f"the lines of template '{request.resolved.template}' can't be traced"
        raise DocumentError.of(what, fix="don't store and change text in the template")
    return script, origins


class _Marks(Extension):
    """The extension that puts a mark before each line of text and each value, and at both ends of a block."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Yield the tokens of a template and the marks; Jinja calls this method for each template."""
        statement: list[Token] = []  # the tokens so far of an unfinished {% ... %}
        # For each block around the token, outermost first: whether the block is `required`. Jinja allows no
        # text in a required block, not even a mark.
        required: list[bool] = []
        for token in stream:
            if statement or token.type == "block_begin":
                statement.append(token)
                if token.type == "block_end":
                    yield from _marked_statement(statement, required)
                    statement = []
                continue
            if token.type == "variable_begin":
                yield _text_token(token, f"\0value {token.lineno} {stream.filename}\0")
            if token.type == "data" and not any(required):
                lines = enumerate(_LINE.findall(token.value), token.lineno)
                marked = "".join(f"\0text {number} {stream.filename}\0{line}" for number, line in lines)
                yield _text_token(token, marked)
            else:
                yield token


def _marked_statement(statement: list[Token], required: list[bool]) -> Iterator[Token]:
    """Yield the tokens of a statement; if it begins or ends a block, also a mark inside the block.

    `required` has an item for each block around. A `block` adds an item, and `endblock` removes it.
    """
    first = statement[0]
    if statement[1].test("name:endblock") and not required.pop():
        yield _text_token(first, "\0\0")
    yield from statement
    if statement[1].test("name:block"):
        required.append(any(token.test("name:required") for token in statement[3:]))
        if not required[-1]:
            yield _text_token(first, f"\0block {statement[2].value}\0")


def _text_token(neighbour: Token, text: str) -> Token:
    """Return a token of text on the line of another token."""
    return Token(neighbour.lineno, "data", text)


def _lines_with_origins(marked: str) -> Iterator[tuple[TemplateLine, str]]:
    """Yield the origin and the unmarked text of each line of a text with marks."""
    blocks: list[str] = []  # the blocks around the current line, the innermost last
    # A line has the origin of its first piece of text. The last mark has the origin of the next piece.
    line_origin = mark_origin = TemplateLine(Path(), 0)
    line = ""
    for index, piece in enumerate(_MARK.split(marked)):  # text and marks by turns: text, mark, text, ...
        kind, _, rest = piece.partition(" ")
        if index % 2 == 0:
            for part in _LINE.findall(piece):
                if not line:
                    line_origin = replace(mark_origin, block=blocks[-1] if blocks else "")
                elif mark_origin.has_value and not line_origin.has_value:
                    line_origin = replace(line_origin, has_value=True)
                line += part
                if part.endswith("\n"):
                    yield line_origin, line
                    line = ""
        elif kind == "block":
            blocks.append(rest)
        elif kind:
            number, _, file = rest.partition(" ")
            mark_origin = TemplateLine(Path(file), int(number), has_value=kind == "value")
        else:
            blocks.pop()
    if line:
        yield line_origin, line
