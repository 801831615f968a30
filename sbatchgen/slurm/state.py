"""The states of jobs, as squeue(1) and sacct(1) name them: "JOB STATE CODES" of Slurm 20.11 to 26.05."""

import functools
from collections.abc import Mapping
from pathlib import Path

from sbatchgen.frozen import frozen
from sbatchgen.inputs.document import read_document


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


@functools.cache
def state_texts() -> StateTexts:
    """Return all of states.yaml."""
    return read_document(Path(__file__).with_name("states.yaml"), StateTexts).value


@functools.cache
def states() -> dict[str, State]:
    """Return the states that are known, by their names."""
    live = {name: State(name, words) for name, words in state_texts().live.items()}
    return live | {name: State(name, words, ended=True) for name, words in state_texts().ended.items()}


def state(text: str) -> State:
    """Return the state of this name, as in "CANCELLED by 1000"; a name unknown here is passed on."""
    name = text.partition(" ")[0]
    return states().get(name) or State(name, name.lower().replace("_", " "))
