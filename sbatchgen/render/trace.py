"""Script -> where each of its lines came from: a line of a template, and the block that it stands in.

The templates are rendered a second time, with marks. Jinja hands an extension the tokens of a template before
it parses them (Jinja's documentation, "Extensions", `Extension.filter_stream`): after all trimming of blanks,
so that a mark changes nothing but the text that it is put into. What is left once the marks are out must
be the script, byte for byte, and that is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import jinja2
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from sbatchgen.errors import DocumentError
from sbatchgen.inputs.search import bundled
from sbatchgen.plan.plan import Plan
from sbatchgen.plan.request import Request
from sbatchgen.render.render import environment_of, fill, finish

# Neither a value nor a script can hold a NUL. Between two of them stands the number of what is marked: a
# place or the name of a block that begins here; or nothing, where a block ends.
_MARK = re.compile(r"\0(\d*)\0")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True)
class TemplateLine:
    """Where a line of the script came from.

    Attributes:
        file: The template.
        line: The line there, counted from 1.
        block: The innermost block around it, also of a template that includes this one; "" for none.
        value: Whether a value of the job or the profile stands in it.
    """

    file: Path
    line: int
    block: str = ""
    value: bool = False


def trace(
    plan: Plan, script: str, *, code: Path, rerun: Sequence[str], folders: Sequence[Path]
) -> list[TemplateLine]:
    """The place of each line of the script that `render` made of the plan.

    Raises:
        DocumentError: A template does with its own text what it would not do with marks in it.
    """
    # Marked templates are compiled apart from the others, and never kept.
    environment = environment_of(tuple(folders), None).overlay(extensions=[_Marks], bytecode_cache=None)
    marks = cast("_Marks", environment.extensions[_Marks.identifier])
    marked = fill(environment, plan, code=code)
    places = _without_doubled_blanks(list(_placed(marked, marks.made)))
    if finish(_MARK.sub("", marked), rerun) != script or len(places) != script.count("\n"):
        what = f"the lines of template '{plan.template}' can't be traced"
        raise DocumentError.of(what, fix="text that a template keeps and changes has no line: write it out")
    return [place for place, _ in places]


def trace_request(request: Request, script: str) -> list[TemplateLine]:
    """The place of each line of the script of a request.

    Raises:
        DocumentError: A template does with its own text what can't be followed.
    """
    folders = request.places.folders("templates")
    try:
        return trace(request.plan, script, code=bundled("code"), rerun=request.rerun, folders=folders)
    except (LookupError, ValueError) as error:
        what = f"the lines of template '{request.plan.template}' can't be traced"
        raise DocumentError.of(what, fix="use explain without --lines") from error


class _Marks(Extension):
    """Puts a mark before each line of text and each value, and at both ends of each block."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.made: list[TemplateLine | str] = []

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """The tokens of a template, with marks between them."""
        file = Path(stream.filename or "")
        statement: list[Token] = []
        required: list[bool] = []  # of the blocks around: such a one may hold no text, not even a mark
        for token in stream:
            here = TemplateLine(file, token.lineno)
            if statement or token.type == "block_begin":
                statement.append(token)
                if token.type == "block_end":
                    yield from self._around(statement, required)
                    statement = []
                continue
            if token.type == "variable_begin":
                yield self._text(token, self._mark(replace(here, value=True)))
            is_text = token.type == "data" and not any(required)
            yield self._text(token, self._marked(token.value, here)) if is_text else token

    def _around(self, statement: list[Token], required: list[bool]) -> Iterator[Token]:
        """A statement; inside a block that begins or ends with it, the mark of that."""
        first = statement[0]
        if statement[1].test("name:endblock") and not required.pop():
            yield self._text(first, "\0\0")
        yield from statement
        if statement[1].test("name:block"):
            required.append(any(token.test("name:required") for token in statement[3:]))
            if not required[-1]:
                yield self._text(first, self._mark(str(statement[2].value)))

    def _text(self, beside: Token, text: str) -> Token:
        return Token(beside.lineno, "data", text)

    def _mark(self, of: TemplateLine | str) -> str:
        self.made.append(of)
        return f"\0{len(self.made) - 1}\0"

    def _marked(self, text: str, start: TemplateLine) -> str:
        lines = enumerate(_LINE.findall(text))
        return "".join(self._mark(replace(start, line=start.line + offset)) + line for offset, line in lines)


def _placed(marked: str, made: Sequence[TemplateLine | str]) -> Iterator[tuple[TemplateLine, str]]:
    """Each line of a marked text, and where its first character is from."""
    blocks: list[str] = []
    place, line = TemplateLine(Path(), 0), ""
    first = place
    for index, piece in enumerate(_MARK.split(marked)):
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
        elif not piece:
            blocks.pop()
        elif isinstance(mark := made[int(piece)], TemplateLine):
            place = mark
        else:
            blocks.append(mark)
    if line:
        yield first, line


def _without_doubled_blanks(lines: list[tuple[TemplateLine, str]]) -> list[tuple[TemplateLine, str]]:
    """As `finish` leaves them: of several empty lines, the first."""
    return [
        one for index, one in enumerate(lines) if one[1] != "\n" or not index or lines[index - 1][1] != "\n"
    ]
