"""The states of jobs and why they wait, in plain words; names that the tables lack are passed on unchanged.

Source of the names: "JOB STATE CODES" of squeue(1) and sacct(1), Slurm 20.11 to 26.05.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.slurm.explanation import TextExplanation, Texts, filled, read_table

Kind = Literal["starts", "never", "person", "ended"]


@frozen()
class State:
    """A state of a job."""

    name: str  # as in `squeue --Format=State`: "PENDING"
    words: str  # the same in plain words
    ended: bool = False  # whether the job is over: it has no processes, and Slurm does nothing more for it


@frozen(kw_only=True)
class StateTexts:
    """All of states.yaml, by the names of states; `nodes`: by flags of nodes that take no jobs."""

    live: Mapping[str, str]
    ended: Mapping[str, str]
    nodes: Mapping[str, str]


def state_texts() -> StateTexts:
    """Return all of states.yaml."""
    return read_table(Path(__file__).with_name("states.yaml"), StateTexts)


@functools.cache
def states() -> dict[str, State]:
    """Return the states that are known, by their names."""
    live = {name: State(name, words) for name, words in state_texts().live.items()}
    return live | {name: State(name, words, ended=True) for name, words in state_texts().ended.items()}


def state(text: str) -> State:
    """Return the state of this name, as in "CANCELLED by 1000"; an unknown name is passed on."""
    name = text.partition(" ")[0]
    return states().get(name) or State(name, name.lower().replace("_", " "))


@frozen(kw_only=True)
class Reason:
    """A reason why a job waits, or how it ended."""

    name: str  # Slurm's own words
    # "starts" by itself, "never" as it is, a "person" must act, it has "ended"; None if not known
    kind: Kind | None = None
    means: str  # the same in plain words
    fix: str = ""


@frozen(kw_only=True)
class ReasonText(TextExplanation):
    """A reason, as reasons.yaml explains it."""

    kind: Kind


@frozen(kw_only=True)
class ReasonTexts:
    """All of reasons.yaml."""

    things: Mapping[str, str]
    texts: tuple[ReasonText, ...]


@functools.cache
def _table() -> tuple[Mapping[str, str], Texts[ReasonText]]:
    known = read_table(Path(__file__).with_name("reasons.yaml"), ReasonTexts)
    return known.things, Texts(known.texts)


def reason(text: str, job: str) -> Reason:
    """Explain the Reason of a job that waits, or did not complete; its id is for the commands to type."""
    name = text.strip()
    if name.startswith("(") and name.endswith(")"):
        name = name[1:-1]
    things, texts = _table()
    match = texts.find(name)
    if match is None:
        return Reason(name=name, means=name)
    known, words = match
    means, fix = filled(known, [things.get(word, word) for word in words], job=job)
    return Reason(name=name, kind=known.kind, means=means, fix=fix)
