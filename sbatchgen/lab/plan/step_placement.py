"""Computes the nodes and GPUs that Slurm gives a step while other steps still run.

A dry run first runs each step on the first nodes of the job. From the records of these steps, this module
finds the steps that Slurm would start on other nodes or GPUs.

Source: steps on Slurm 22.05 and 26.05 (tests/plan/test_truth.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sbatchgen.base.frozen import frozen
from sbatchgen.lab.plan.batch_job import Grant
from sbatchgen.lab.plan.started import StartRecord, Taken
from sbatchgen.lab.plan.step_tasks import NEW_STEPS

_MAX_STEPS = 400  # a dry run ends before it reaches more steps, unless the script forges records
StepGpus = dict[str, list[int]]  # by node: the numbers of the step's GPUs


def placements(
    starts: Sequence[StartRecord], grant: Grant, release: str, *, knows_cpus: bool
) -> dict[str, StepGpus]:
    """Return, by `StartRecord.step_name`, the GPUs on each node of a step that does not get the first ones.

    A step gets other nodes or GPUs if running steps hold the first nodes and GPUs of the job. `knows_cpus`:
    the job says how many CPUs it has on each node.
    """
    return {
        step.start.step_name: step.gpus
        for step in _placed_steps(starts, grant, is_new=release >= NEW_STEPS, knows_cpus=knows_cpus)
        if step.takes.keys() != step.start.takes.keys()
        or any(gpus != [*range(len(gpus))] for gpus in step.gpus.values())
    }


@frozen()
class _PlacedStep:
    """A step on the nodes that Slurm gives it, which may differ from the nodes of its record."""

    start: StartRecord
    takes: Mapping[str, Taken]  # by node: the CPUs and GPUs that it takes
    gpus: StepGpus


def _placed_steps(
    starts: Sequence[StartRecord], grant: Grant, *, is_new: bool, knows_cpus: bool
) -> Iterator[_PlacedStep]:
    """Yield the steps in the order of their starts, each on the nodes that Slurm gives it."""
    running: list[_PlacedStep] = []
    next_node = 0  # the index of the node after the last step's nodes, where new releases begin to look
    # A forged record may name nodes that the job does not have, or that the step excludes.
    valid = [start for start in starts if start.takes and _has_valid_nodes(start, grant)]
    for start in valid[:_MAX_STEPS]:
        shares = [*start.takes.values()]
        # A `wait` of the script ends the steps that started before.
        still_running = [step for step in running if step.start.waits == start.waits]
        nodes = _Nodes(grant, still_running, knows_cpus=knows_cpus)
        order = tuple(name for name in grant.nodes if name not in start.excluded_nodes)
        if is_new and len(order) == len(grant.nodes):
            order = grant.nodes[next_node:] + grant.nodes[:next_node]
        names: Sequence[str] = [*start.takes]
        if len(order) > len(names):  # else the step needs all nodes in `order`, and there is no choice
            names = nodes.choose(order, start.sharing, shares, is_new=is_new)
            if start.moves_next_node:
                next_node = (grant.nodes.index(max(names, key=order.index)) + 1) % len(grant.nodes)
        takes = dict(zip(sorted(names, key=grant.nodes.index), shares, strict=True))
        starts_at_once = all(nodes.fits(name, start.sharing, share) for name, share in takes.items())
        has_own_gpus = starts_at_once and start.sharing != "overlap"
        gpus_of = nodes.free_gpus if has_own_gpus else nodes.all_gpus
        step = _PlacedStep(start, takes, {name: gpus_of(name)[: share.gpus] for name, share in takes.items()})
        yield step
        if start.background and starts_at_once:
            running.append(step)


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
        self, order: Sequence[str], sharing: str, shares: Sequence[Taken], *, is_new: bool
    ) -> Sequence[str]:
        """Return the nodes that a step gets: first idle nodes, then nodes with room next to other steps.

        `order` has the nodes in the order in which Slurm looks at them. `shares` has the CPUs and GPUs that
        the step takes of each node. A step that must wait for other steps gets the first nodes of `order`.
        """
        chosen = [name for name in order if not self._running[name]]
        if len(chosen) < len(shares):
            with_room = [name for name in order if self.fits(name, sharing, max(shares))]
            if len(with_room) < len(shares):
                return order[: len(shares)]
            # Old releases do not prefer idle nodes to other nodes with room.
            chosen = [*chosen, *(name for name in with_room if name not in chosen)] if is_new else with_room
        return chosen[: len(shares)]

    def all_gpus(self, name: str) -> list[int]:
        """Return the numbers of all GPUs of a node."""
        return [*range(self._grant.gpus[self._grant.nodes.index(name)])]

    def free_gpus(self, name: str) -> list[int]:
        """Return the numbers of a node's GPUs that no running step holds."""
        taken = {gpu for step in self._holders(name) for gpu in step.gpus[name]}
        count = self._grant.asked_gpus[self._grant.nodes.index(name)]
        return [gpu for gpu in range(count) if gpu not in taken]

    def fits(self, name: str, sharing: str, share: Taken) -> bool:
        """Return whether a step that takes `share` of a node can start there next to the running steps."""
        others = self._holders(name)
        if sharing == "overlap" or not others:
            return True
        if sharing == "whole" or any(step.start.sharing == "whole" for step in others):
            return False
        node_cpus = self._grant.cpus[self._grant.nodes.index(name)]
        free_cpus = node_cpus - sum(step.takes[name].cpus for step in others)
        has_cpus = share.cpus <= free_cpus or not self._knows_cpus
        return has_cpus and share.gpus <= len(self.free_gpus(name))

    def _holders(self, name: str) -> list[_PlacedStep]:
        """Return the running steps that hold CPUs or GPUs of a node."""
        return [step for step in self._running[name] if step.start.sharing != "overlap"]
