"""Computes the nodes and GPUs that Slurm gives a step while other steps still run.

A dry run first runs each step on the first nodes of the job. From the records of these steps, `placements`
finds the steps that Slurm would start on other nodes or GPUs. The dry run then runs the script once more.

Source: steps on Slurm 22.05 and 26.05 (tests/plan/test_truth.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sbatchgen.base.frozen import frozen
from sbatchgen.lab.plan.batch_job import Grant
from sbatchgen.lab.plan.started import NodeShare, StartRecord
from sbatchgen.lab.plan.step_tasks import NEW_STEPS

_MAX_STEPS = 400  # steps that are placed; only a script that forges records has more in a dry run
StepGpus = dict[str, list[int]]  # by node: the numbers of the step's GPUs


def placements(
    starts: Sequence[StartRecord], grant: Grant, release: str, *, knows_cpus: bool
) -> dict[str, StepGpus]:
    """Return the nodes and GPUs of each step that gets other nodes or GPUs than the first of the job.

    Such a step starts while running steps hold the first nodes and GPUs. The keys of the result are
    `StartRecord.step_name`. `knows_cpus`: the job says how many CPUs it has on each node.
    """
    gpus_by_step: dict[str, StepGpus] = {}
    for step in _placed_steps(starts, grant, is_new=release >= NEW_STEPS, knows_cpus=knows_cpus):
        has_other_nodes = step.takes.keys() != step.start.takes.keys()
        has_other_gpus = any(gpus != [*range(len(gpus))] for gpus in step.gpus.values())
        if has_other_nodes or has_other_gpus:
            gpus_by_step[step.start.step_name] = step.gpus
    return gpus_by_step


@frozen()
class _PlacedStep:
    """A step on the nodes that Slurm gives it, which may differ from the nodes of its record."""

    start: StartRecord
    takes: Mapping[str, NodeShare]  # by node: the numbers of CPUs and GPUs that it takes
    gpus: StepGpus


def _placed_steps(
    starts: Sequence[StartRecord], grant: Grant, *, is_new: bool, knows_cpus: bool
) -> Iterator[_PlacedStep]:
    """Yield the steps in the order of their starts, each on the nodes that Slurm gives it."""
    background_steps: list[_PlacedStep] = []
    next_node = 0  # the index of the node after the last step's nodes, where new releases begin to look
    # A forged record may name nodes that the job does not have, or that the step excludes.
    valid_starts = [start for start in starts if start.takes and _has_valid_nodes(start, grant)]
    for start in valid_starts[:_MAX_STEPS]:
        shares = [*start.takes.values()]
        # A `wait` of the script ends the steps that started before.
        running = [step for step in background_steps if step.start.waits == start.waits]
        nodes = _Nodes(grant, running, knows_cpus=knows_cpus)
        candidates = tuple(name for name in grant.nodes if name not in start.excluded_nodes)
        if is_new and len(candidates) == len(grant.nodes):
            candidates = grant.nodes[next_node:] + grant.nodes[:next_node]
        names: Sequence[str] = [*start.takes]
        if len(candidates) > len(names):  # otherwise the step needs all candidates, and there is no choice
            names = nodes.choose(candidates, start.sharing, shares, is_new=is_new)
            if start.moves_next_node:
                next_node = (grant.nodes.index(max(names, key=candidates.index)) + 1) % len(grant.nodes)
        takes = dict(zip(sorted(names, key=grant.nodes.index), shares, strict=True))
        starts_at_once = all(nodes.fits(name, start.sharing, share) for name, share in takes.items())
        has_own_gpus = starts_at_once and start.sharing != "overlap"
        gpus_on = nodes.free_gpus if has_own_gpus else nodes.all_gpus
        gpus = {name: gpus_on(name)[: share.gpus] for name, share in takes.items()}
        step = _PlacedStep(start, takes, gpus)
        yield step
        if start.background and starts_at_once:
            background_steps.append(step)


def _has_valid_nodes(start: StartRecord, grant: Grant) -> bool:
    """Return whether the job has all nodes of a step, and the step excludes none of them."""
    return start.takes.keys() <= {*grant.nodes} - start.excluded_nodes


class _Nodes:
    """The nodes of a job, and the CPUs and GPUs that running steps hold on them."""

    def __init__(self, grant: Grant, running: Sequence[_PlacedStep], *, knows_cpus: bool) -> None:
        self._grant, self._knows_cpus = grant, knows_cpus
        self._running: dict[str, list[_PlacedStep]] = defaultdict(list)  # the running steps of each node
        for step in running:
            for name in step.takes:
                self._running[name].append(step)

    def choose(
        self, candidates: Sequence[str], sharing: str, shares: Sequence[NodeShare], *, is_new: bool
    ) -> Sequence[str]:
        """Return the nodes that a step gets: first idle nodes, then nodes with room next to other steps.

        `candidates` has the nodes in the order in which Slurm looks at them. `shares` has the CPUs and GPUs
        that the step takes of each node. A step that must wait for other steps gets the first candidates.
        """
        idle_nodes = [name for name in candidates if not self._running[name]]
        if len(idle_nodes) >= len(shares):
            return idle_nodes[: len(shares)]
        fitting_nodes = [name for name in candidates if self.fits(name, sharing, max(shares))]
        if len(fitting_nodes) < len(shares):
            return candidates[: len(shares)]
        if is_new:  # old releases do not prefer idle nodes to other nodes with room
            fitting_nodes = [*idle_nodes, *(name for name in fitting_nodes if name not in idle_nodes)]
        return fitting_nodes[: len(shares)]

    def all_gpus(self, name: str) -> list[int]:
        """Return the numbers of all GPUs of a node."""
        return [*range(self._grant.gpus[self._grant.nodes.index(name)])]

    def free_gpus(self, name: str) -> list[int]:
        """Return the numbers of a node's GPUs that no running step holds."""
        held_gpus = {gpu for step in self._holding_steps(name) for gpu in step.gpus[name]}
        count = self._grant.asked_gpus[self._grant.nodes.index(name)]
        return [gpu for gpu in range(count) if gpu not in held_gpus]

    def fits(self, name: str, sharing: str, share: NodeShare) -> bool:
        """Return whether a step that takes `share` of a node can start there next to the running steps."""
        others = self._holding_steps(name)
        if sharing == "overlap" or not others:
            return True
        if sharing == "whole" or any(step.start.sharing == "whole" for step in others):
            return False
        node_cpus = self._grant.cpus[self._grant.nodes.index(name)]
        free_cpus = node_cpus - sum(step.takes[name].cpus for step in others)
        has_cpus = share.cpus <= free_cpus or not self._knows_cpus
        return has_cpus and share.gpus <= len(self.free_gpus(name))

    def _holding_steps(self, name: str) -> list[_PlacedStep]:
        """Return the running steps that hold CPUs or GPUs of a node."""
        return [step for step in self._running[name] if step.start.sharing != "overlap"]
