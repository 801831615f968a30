"""The states of jobs, as squeue(1) and sacct(1) name them: "JOB STATE CODES" of Slurm 20.11 to 26.05."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """A state of a job."""

    name: str  # as in `squeue --Format=State`: "PENDING"
    words: str  # the same in plain words
    ended: bool = False  # whether the job is over: it has no processes, and Slurm does nothing more for it


STATES = (
    State("PENDING", "waiting"),
    State("RUNNING", "running"),
    State("SUSPENDED", "suspended"),
    State("COMPLETED", "completed", ended=True),
    State("CANCELLED", "cancelled", ended=True),
    State("FAILED", "failed", ended=True),
    State("TIMEOUT", "ended by the time limit", ended=True),
    State("NODE_FAIL", "ended by the failure of a node", ended=True),
    State("PREEMPTED", "ended to make room for another job", ended=True),
    State("BOOT_FAIL", "ended because a node did not boot", ended=True),
    State("DEADLINE", "ended by its deadline", ended=True),
    State("OUT_OF_MEMORY", "ended for lack of memory", ended=True),
    State("REVOKED", "runs on another cluster of the federation", ended=True),
    # Flags: shown in place of one of the states above
    State("CONFIGURING", "starting"),
    State("COMPLETING", "ending"),
    State("REQUEUED", "being put back into the queue"),
    State("REQUEUE_HOLD", "put back into the queue, and held"),
    State("REQUEUE_FED", "put back into the queue of the federation"),
    State("SPECIAL_EXIT", "put back into the queue, and held"),
    State("RESV_DEL_HOLD", "held because its reservation was deleted"),
    State("RESIZING", "running, changing its size"),
    State("SIGNALING", "running, being signalled"),
    State("STAGE_OUT", "ending"),
    State("STOPPED", "stopped by a signal, keeps its nodes"),
    # Of scontrol and the REST interface
    State("LAUNCH_FAILED", "failed to start"),
    State("POWER_UP_NODE", "waiting for nodes to be switched on"),
    State("RECONFIG_FAIL", "a node could not be reconfigured"),
    State("EXPEDITING", "being put back to the head of the queue"),
    State("UPDATE_DB", "being written to the database"),
)
_BY_NAME = {state.name: state for state in STATES}


def state(text: str) -> State:
    """Return the state of this name, as in "CANCELLED by 1000"; a name unknown here is passed on."""
    name = text.partition(" ")[0]
    return _BY_NAME.get(name) or State(name, name.lower().replace("_", " "))
