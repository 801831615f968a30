"""Explains Slurm's states of jobs, and the reasons why jobs wait, in plain words.

The words are in states.yaml and reasons.yaml. They have all names in "JOB STATE CODES" of squeue(1) and
sacct(1), Slurm 20.11 to 26.05. Other names are shown unchanged.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.slurm.explanation import TextExplanation, Texts, filled_texts, read_table

# What becomes of a job with a reason: it starts by itself ("starts"), it can't start unless it is changed
# ("never"), a person must act ("person"), or it has ended ("ended").
Kind = Literal["starts", "never", "person", "ended"]


@frozen()
class State:
    """A state of a job."""

    name: str  # Slurm's long name, as in `squeue --Format=State`: "PENDING"
    words: str  # the state in plain words
    ended: bool = False  # whether the job has no processes any more, and Slurm will not start it again


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
def known_states() -> dict[str, State]:
    """Return the states in states.yaml by their names."""
    live = {name: State(name, words) for name, words in state_texts().live.items()}
    return live | {name: State(name, words, ended=True) for name, words in state_texts().ended.items()}


def state_named(text: str) -> State:
    """Return the state that a text such as "CANCELLED by 1000" names.

    The words for an unknown name are the name in lower case.
    """
    name = text.partition(" ")[0]
    return known_states().get(name) or State(name, name.lower().replace("_", " "))


@frozen(kw_only=True)
class Reason:
    """A reason why a job waits, or how it ended."""

    name: str  # Slurm's name of the reason, such as "QOSMaxGRESPerUser"
    kind: Kind | None = None  # None if reasons.yaml does not have the reason
    means: str  # the reason in plain words
    fix: str = ""  # what the user can do; "" if reasons.yaml does not have the reason


@frozen(kw_only=True)
class ReasonText(TextExplanation):
    """The explanation of a reason in reasons.yaml."""

    kind: Kind


@frozen(kw_only=True)
class ReasonTexts:
    """The contents of reasons.yaml."""

    resources: Mapping[str, str]  # plain words for the resources that names of limits hold: "GRES" -> "GPUs"
    texts: tuple[ReasonText, ...]


@functools.cache
def _reason_texts() -> tuple[Mapping[str, str], Texts[ReasonText]]:
    """Return the contents of reasons.yaml: words for resources, and the explanations of reasons."""
    table = read_table(Path(__file__).with_name("reasons.yaml"), ReasonTexts)
    return table.resources, Texts(table.texts)


def explain_reason(text: str, job: str) -> Reason:
    """Return the reason that squeue or sacct prints for a job that waits or did not complete.

    `text` is the printed reason, such as "Priority" or "(Priority)". `job` is the id of the job for the fix.
    """
    name = text.strip()
    if name.startswith("(") and name.endswith(")"):
        name = name[1:-1]
    resources, texts = _reason_texts()
    match = texts.find(name)
    if match is None:
        return Reason(name=name, means=name)
    # A word is the resource in the name of a limit, such as GRES in "QOSMaxGRESPerUser".
    entry, words = match
    means, fix = filled_texts(entry, [resources.get(word, word) for word in words], job=job)
    return Reason(name=name, kind=entry.kind, means=means, fix=fix)
