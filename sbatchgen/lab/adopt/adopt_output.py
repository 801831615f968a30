"""The output of `adopt --format json`, as a type."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from sbatchgen.lab.adopt.adoption import Adoption
from sbatchgen.lab.adopt.remarks import Outcome


class _Row(TypedDict):
    lines: Sequence[int]
    outcome: Outcome
    what: str


class AdoptOutput(TypedDict):
    """The document that `adopt --format json` prints."""

    script: str
    lines: Mapping[str, Outcome]
    rows: Sequence[_Row]
    mended: Sequence[str]
    as_before: Sequence[str]
    notes: Sequence[str]
    files: Mapping[str, str]


def adopt_output(adoption: Adoption) -> AdoptOutput:
    """Return an adoption as the document that `adopt` prints."""
    return {
        "script": adoption.script,
        "lines": {str(number): outcome for number, outcome in adoption.lines.items()},
        "rows": [{"lines": row.lines, "outcome": row.outcome, "what": row.reason} for row in adoption.rows],
        "mended": sorted({finding.rule for finding in adoption.mended}),
        "as_before": sorted({finding.rule for finding in adoption.remaining}),
        "notes": adoption.notes,
        "files": adoption.files,
    }
