"""What `explain` prints as JSON, as a type. The page in a browser shows the same output."""

from collections.abc import Iterable, Sequence
from typing import TypedDict

from sbatchgen.jobs.render.trace import TemplateLine
from sbatchgen.jobs.resolved.origins import Setting
from sbatchgen.jobs.review.review import lines_of


class _Line(TypedDict):
    text: str  # the line of the script
    file: str  # the template that has the line
    line: int  # the number of the line in this template
    block: str  # the block of the template
    value: bool  # whether the line has a value of the job or the profile


class _Explained(TypedDict):
    settings: Sequence[Setting]


class ExplainOutput(_Explained, total=False):
    """What `explain` prints."""

    lines: Sequence[_Line]  # only with --lines


def explain_output(
    settings: Iterable[Setting], script: str | None, places: Sequence[TemplateLine]
) -> ExplainOutput:
    """Return the settings of a job and, with a script, the text of each line and its place in a template."""
    output: ExplainOutput = {"settings": [*settings]}
    if script is not None:
        output["lines"] = [
            {"text": text, "file": str(at.file), "line": at.line, "block": at.block, "value": at.has_value}
            for text, at in zip(lines_of(script), places, strict=True)
        ]
    return output
