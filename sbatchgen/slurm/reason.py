"""Why a job waits, or how it ended: squeue's Reason in plain words, and what to do about it.

A text that reasons.yaml does not know is passed on as it is.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from sbatchgen.frozen import frozen
from sbatchgen.inputs.document import read_document

Kind = Literal["starts", "never", "person", "ended"]


@frozen(kw_only=True)
class Reason:
    """A reason why a job waits, or how it ended."""

    name: str  # Slurm's own words; in reasons.yaml a pattern of them
    # "starts" by itself, "never" as it is, a "person" must act, it has "ended"; None if not known
    kind: Kind | None = None
    means: str  # the same in plain words
    fix: str = ""


@frozen(kw_only=True)
class ReasonTexts:
    """All of reasons.yaml."""

    things: Mapping[str, str]
    texts: tuple[Reason, ...]


@functools.cache
def _table() -> tuple[Mapping[str, str], tuple[tuple[re.Pattern[str], Reason], ...]]:
    known = read_document(Path(__file__).with_name("reasons.yaml"), ReasonTexts).value
    return known.things, tuple((re.compile(entry.name), entry) for entry in known.texts)


def reason(text: str, job: str) -> Reason:
    """Explain the Reason of a job that waits, or did not complete; its id is for the commands to type."""
    name = text.strip()
    if name.startswith("(") and name.endswith(")"):
        name = name[1:-1]
    things, texts = _table()
    for pattern, known in texts:
        if match := pattern.fullmatch(name):
            words = [things.get(word, word) for word in match.groups("")]
            fix = known.fix.format(*words, job=job)
            return replace(known, name=name, means=known.means.format(*words), fix=fix)
    return Reason(name=name, means=name)
