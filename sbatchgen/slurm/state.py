"""The states of jobs, as squeue(1) and sacct(1) name them: "JOB STATE CODES" of Slurm 20.11 to 26.05."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """A state of a job.

    Attributes:
        name: As in `squeue --Format=State`: "PENDING".
        compact: As in `squeue --Format=StateCompact`: "PD"; "" if it has none.
        words: The same in plain words.
        ended: Whether the job is over: it has no processes, and Slurm does nothing more for it.
        may_return: Whether a job in this state may start again under its id (requeue).
    """

    name: str
    compact: str
    words: str
    ended: bool = False
    may_return: bool = False


STATES = (
    State("PENDING", "PD", "waiting"),
    State("RUNNING", "R", "running"),
    State("SUSPENDED", "S", "suspended"),
    State("COMPLETED", "CD", "completed", ended=True),
    State("CANCELLED", "CA", "cancelled", ended=True),
    State("FAILED", "F", "failed", ended=True),
    State("TIMEOUT", "TO", "ended by the time limit", ended=True),
    State("NODE_FAIL", "NF", "ended by the failure of a node", ended=True, may_return=True),
    State("PREEMPTED", "PR", "ended to make room for another job", ended=True, may_return=True),
    State("BOOT_FAIL", "BF", "ended because a node did not boot", ended=True, may_return=True),
    State("DEADLINE", "DL", "ended by its deadline", ended=True),
    State("OUT_OF_MEMORY", "OOM", "ended for lack of memory", ended=True),
    State("REVOKED", "RV", "runs on another cluster of the federation", ended=True),
    # Flags: shown in place of one of the states above
    State("CONFIGURING", "CF", "starting"),
    State("COMPLETING", "CG", "ending", may_return=True),
    State("REQUEUED", "RQ", "being put back into the queue", may_return=True),
    State("REQUEUE_HOLD", "RH", "put back into the queue, and held", may_return=True),
    State("REQUEUE_FED", "RF", "put back into the queue of the federation", may_return=True),
    State("SPECIAL_EXIT", "SE", "put back into the queue, and held", may_return=True),
    State("RESV_DEL_HOLD", "RD", "held because its reservation was deleted"),
    State("RESIZING", "RS", "running, changing its size"),
    State("SIGNALING", "SI", "running, being signalled"),
    State("STAGE_OUT", "SO", "ending"),
    State("STOPPED", "ST", "stopped by a signal, keeps its nodes"),
    # Of scontrol and the REST interface
    State("LAUNCH_FAILED", "", "failed to start", may_return=True),
    State("POWER_UP_NODE", "", "waiting for nodes to be switched on"),
    State("RECONFIG_FAIL", "", "a node could not be reconfigured"),
    State("EXPEDITING", "", "being put back to the head of the queue", may_return=True),
    State("UPDATE_DB", "", "being written to the database"),
)


@functools.cache
def _by_name() -> Mapping[str, State]:
    names = {state.name: state for state in STATES}
    return names | {state.compact: state for state in STATES if state.compact}


def state(text: str) -> State:
    """The state of this long or compact name, as in "CANCELLED by 1000"; a name unknown here is passed on."""
    name = text.partition(" ")[0]
    return _by_name().get(name) or State(name, "", name.lower().replace("_", " "))
