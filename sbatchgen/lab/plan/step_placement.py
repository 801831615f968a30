"""The nodes and GPUs that Slurm gives a step, while other steps still run.

Source: steps on Slurm 22.05 and 26.05 (tests/plan/test_truth.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sbatchgen.base.frozen import frozen
from sbatchgen.lab.plan.batch_job import Grant
from sbatchgen.lab.plan.started import StartRecord, Taken
from sbatchgen.lab.plan.step_tasks import NEW_STEPS

_MAX_STEPS = 400  # a plan with more steps has reached its limit, unless the script forges records
StepGpus = dict[str, list[int]]  # the numbers of a step's GPUs on each of its nodes


def placements(
    starts: Sequence[StartRecord], held: Grant, release: str, *, cpus_known: bool
) -> dict[str, StepGpus]:
    """Return the nodes and GPUs of the steps that do not get the first nodes and GPUs of the job.

    A step gets other nodes or GPUs if steps that still run hold the first. The keys are the names of the
    steps: `StartRecord.place`. `cpus_known`: whether the job says how many CPUs it has on each node.
    """
    return {
        step.start.place: step.gpus
        for step in _steps(starts, held, later=release >= NEW_STEPS, cpus_known=cpus_known)
        if step.takes.keys() != step.start.takes.keys()
        or any(gpus != [*range(len(gpus))] for gpus in step.gpus.values())
    }


@frozen()
class _Placed:
    """A step on its nodes: the CPUs and GPUs that it takes of each node, and the numbers of its GPUs."""

    start: StartRecord
    takes: Mapping[str, Taken]  # by node
    gpus: StepGpus


def _steps(starts: Sequence[StartRecord], held: Grant, *, later: bool, cpus_known: bool) -> Iterator[_Placed]:
    """Yield the steps in the order of their starts, each on the nodes that Slurm gives it."""
    running: list[_Placed] = []
    starts = [start for start in starts if start.takes and start.takes.keys() <= {*held.nodes} - start.not_on]
    next_node = 0  # the node after the last step's nodes, with which later releases begin
    for start in starts[:_MAX_STEPS]:
        parts = [*start.takes.values()]
        still_running = [step for step in running if step.start.waits == start.waits]
        nodes = _Nodes(held, still_running, cpus_known=cpus_known)
        order = tuple(name for name in held.nodes if name not in start.not_on)
        if later and len(order) == len(held.nodes):
            order = held.nodes[next_node:] + held.nodes[:next_node]
        names: Sequence[str] = [*start.takes]
        if len(order) > len(names):  # the step names no nodes
            names = nodes.choose(order, start.sharing, parts, later=later)
            if start.takes_turn:
                next_node = (held.nodes.index(max(names, key=order.index)) + 1) % len(held.nodes)
        takes = dict(zip(sorted(names, key=held.nodes.index), parts, strict=True))
        starts_now = all(nodes.fits(name, start.sharing, part) for name, part in takes.items())
        has_own_gpus = starts_now and start.sharing != "overlap"
        choice = nodes.free_gpus if has_own_gpus else nodes.all_gpus
        step = _Placed(start, takes, {name: choice(name)[: part.gpus] for name, part in takes.items()})
        yield step
        if start.background and starts_now:
            running.append(step)


class _Nodes:
    """The nodes of a job, with the CPUs and GPUs that running steps leave free."""

    def __init__(self, held: Grant, running: Sequence[_Placed], *, cpus_known: bool) -> None:
        self._held, self._cpus_known = held, cpus_known
        self._running: dict[str, list[_Placed]] = defaultdict(list)  # the running steps of each node
        for step in running:
            for name in step.takes:
                self._running[name].append(step)

    def choose(
        self, order: Sequence[str], sharing: str, parts: Sequence[Taken], *, later: bool
    ) -> Sequence[str]:
        """Return the nodes that a step gets, idle nodes first.

        A step that must wait for other steps gets the first nodes of `order`.
        """
        idle = [name for name in order if not self._running[name]]
        if len(idle) < len(parts):
            room = [name for name in order if self.fits(name, sharing, max(parts))]
            if len(room) < len(parts):
                return order[: len(parts)]
            idle = [*idle, *(name for name in room if name not in idle)] if later else room
        return idle[: len(parts)]

    def all_gpus(self, name: str) -> list[int]:
        """Return the numbers of all GPUs of a node."""
        return [*range(self._held.gpus[self._held.nodes.index(name)])]

    def free_gpus(self, name: str) -> list[int]:
        """Return the numbers of a node's GPUs that no running step holds."""
        taken = {gpu for step in self._holders(name) for gpu in step.gpus[name]}
        asked = self._held.asked_gpus[self._held.nodes.index(name)]
        return [gpu for gpu in range(asked) if gpu not in taken]

    def fits(self, name: str, sharing: str, part: Taken) -> bool:
        """Return whether a step can start on a node next to the running steps."""
        others = self._holders(name)
        if sharing == "overlap" or not others:
            return True
        if sharing == "whole" or any(step.start.sharing == "whole" for step in others):
            return False
        cpus = self._held.cpus[self._held.nodes.index(name)] - sum(step.takes[name].cpus for step in others)
        return part.gpus <= len(self.free_gpus(name)) and (part.cpus <= cpus or not self._cpus_known)

    def _holders(self, name: str) -> list[_Placed]:
        """Return the running steps that hold CPUs or GPUs of a node."""
        return [step for step in self._running[name] if step.start.sharing != "overlap"]
