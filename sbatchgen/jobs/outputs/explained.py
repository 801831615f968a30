"""What `explain` prints, also on a page, which has no sandbox."""

from collections.abc import Iterable, Sequence
from typing import TypedDict

from sbatchgen.jobs.render.trace import TemplateLine
from sbatchgen.jobs.resolved.origins import Setting
from sbatchgen.jobs.review.review import lines_of


class _Line(TypedDict):
    text: str
    file: str
    line: int
    block: str
    value: bool


class _Explained(TypedDict):
    settings: Sequence[Setting]


class ExplainOutput(_Explained, total=False):
    """What `explain` prints; `lines`: with --lines."""

    lines: Sequence[_Line]


def explain_output(
    settings: Iterable[Setting], script: str | None, places: Sequence[TemplateLine]
) -> ExplainOutput:
    """Return the settings of a job and, if there is a script, the place of each line."""
    output: ExplainOutput = {"settings": [*settings]}
    if script is not None:
        output["lines"] = [
            {"text": text, "file": str(at.file), "line": at.line, "block": at.block, "value": at.value}
            for text, at in zip(lines_of(script), places, strict=True)
        ]
    return output
