"""The states of jobs and the reasons why they wait, in plain words; unknown names are shown unchanged.

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

    name: str  # Slurm's long name, as in `squeue --Format=State`: "PENDING"
    words: str  # the state in plain words
    ended: bool = False  # whether the job is over: it has no processes, and Slurm does nothing more for it


@frozen(kw_only=True)
class StateTexts:
    """The contents of states.yaml: plain words by Slurm's names."""

    live: Mapping[str, str]  # states of jobs that have not ended
    ended: Mapping[str, str]  # states of jobs that have ended
    nodes: Mapping[str, str]  # flags of nodes that take no jobs


def state_texts() -> StateTexts:
    """Return the contents of states.yaml."""
    return read_table(Path(__file__).with_name("states.yaml"), StateTexts)


@functools.cache
def states() -> dict[str, State]:
    """Return the states in states.yaml by their names."""
    live = {name: State(name, words) for name, words in state_texts().live.items()}
    return live | {name: State(name, words, ended=True) for name, words in state_texts().ended.items()}


def state(text: str) -> State:
    """Return the state that a text such as "CANCELLED by 1000" names, also if the name is unknown."""
    name = text.partition(" ")[0]
    return states().get(name) or State(name, name.lower().replace("_", " "))


@frozen(kw_only=True)
class Reason:
    """A reason why a job waits, or how it ended."""

    name: str  # Slurm's name of the reason
    # "starts": the job starts by itself; "never": it can't start unless it is changed; "person": a person
    # must act; "ended": it has ended; None if not known
    kind: Kind | None = None
    means: str  # the reason in plain words
    fix: str = ""  # what to do; "" if nothing is known


@frozen(kw_only=True)
class ReasonText(TextExplanation):
    """A reason, as reasons.yaml explains it."""

    kind: Kind


@frozen(kw_only=True)
class ReasonTexts:
    """The contents of reasons.yaml."""

    things: Mapping[str, str]  # plain words for names in reasons, such as names of limits
    texts: tuple[ReasonText, ...]


@functools.cache
def _table() -> tuple[Mapping[str, str], Texts[ReasonText]]:
    table = read_table(Path(__file__).with_name("reasons.yaml"), ReasonTexts)
    return table.things, Texts(table.texts)


def reason(text: str, job: str) -> Reason:
    """Explain the Reason of a job that waits or did not complete; the fix names the id `job`."""
    name = text.strip()
    if name.startswith("(") and name.endswith(")"):
        name = name[1:-1]
    things, texts = _table()
    match = texts.find(name)
    if match is None:
        return Reason(name=name, means=name)
    entry, words = match
    means, fix = filled(entry, [things.get(word, word) for word in words], job=job)
    return Reason(name=name, kind=entry.kind, means=means, fix=fix)
