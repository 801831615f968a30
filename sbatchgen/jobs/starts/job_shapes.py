"""The shapes of a job: the job in a partition, with the limit that its training needs, as limits allow it."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import final

from sbatchgen.base.errors import FitError, SbatchgenError
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.base.units import Duration
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.resolved.choice import closed
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.slurm.partition import SlurmPartition
from sbatchgen.jobs.starts.account_limits import held_back, longest_s, other_qos, read_limits
from sbatchgen.jobs.starts.holes import Claim, Hole, hole, taken
from sbatchgen.jobs.starts.moment import ClusterMoment
from sbatchgen.jobs.starts.needs import MARGIN, Pace
from sbatchgen.jobs.starts.room import Availability, rooms

Ask = Callable[[Mapping[str, str]], Request]  # returns the request of the job with further options


@frozen(kw_only=True)
class JobShape:
    """A job in a partition, as it fits there."""

    request: Request
    partition: SlurmPartition
    more: Mapping[str, str]  # the options that make it, by their names
    needs_s: float | None  # what the training still needs with these GPUs
    moment: ClusterMoment

    @property
    def job(self) -> ResolvedJob:
        """The job."""
        return self.request.resolved

    @property
    def time_s(self) -> int:
        """Its time limit, or what the partition gives it."""
        asked = self.job.resources.time or self.partition.time_default_s or self.partition.time_max_s
        return asked or 365 * 86400

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells it from the other shapes of the job: partition, nodes and time limit."""
        return self.partition.name, self.job.resources.nodes, self.time_s

    @cached_property
    def room(self) -> Availability:
        """The room for it now."""
        seen = self.moment
        (room,) = rooms(self.job.resources, seen.nodes, seen.gpus, [self.partition], seen.settings)
        return room

    @cached_property
    def _taken(self) -> Mapping[str, Claim]:
        return taken(self.moment, self.partition.tier, self.job.resources.options.get("reservation", ""))

    def hole(self, nodes: int) -> Hole | None:
        """Return the longest hole of so many nodes among those with room for it; None if too few are free."""
        return hole(self.moment, self.room.nodes, self._taken, nodes)

    @property
    def claim(self) -> Claim | None:
        """What ends its hole, or takes the nodes with room before; None if nothing is known to."""
        if here := self.hole(self.room.wanted):
            return here.until
        claims = [self._taken[name] for name in self.room.nodes if name in self._taken]
        return min(claims, key=attrgetter("at")) if self.room.starts else None

    @property
    def errors(self) -> list[str]:
        """What forbids it, by the rules about a resolved job."""
        findings = (each for each in check(self.job) if each.severity == "error")
        return [each.why_not or each.problem.what for each in findings]


@final
class JobShapes:
    """The shapes of one job; they learn why others are out."""

    def __init__(self, ask: Ask, moment: ClusterMoment, environment: Mapping[str, str], pace: Pace) -> None:
        self.moment, self.environment, self.pace = moment, environment, pace
        self._ask, self.asked = ask, ask({})  # the latter as it was asked for
        self.out: dict[str, str] = {}  # why the job is not among the rows, by partition
        self._limits = ""  # of accounts and QOS, as Slurm prints them
        self._longest: dict[str, int] = {}  # what they leave to time limits, by partition

    def of(self, names: Sequence[str]) -> list[JobShape]:
        """Return the job in each of these partitions that it may run in now.

        Raises FitError: none of them is a partition of this cluster.
        """
        moment = self.moment
        shapes = [shape for name in dict.fromkeys(names) for shape in self._in_partition(name)]
        if not shapes and not self.out:
            known = ", ".join(each.name for each in moment.partitions)
            fix = f"known: {known}" if known else "Slurm shows you none: ask the cluster's support"
            raise FitError.of(f"this cluster has no partition {' or '.join(dict.fromkeys(names))}", fix=fix)
        self._limits = "" if moment.is_late else read_limits(moment.settings, self.environment)
        return [allowed for shape in shapes if (allowed := self._allowed(shape))]

    def changed(self, shape: JobShape, **options: str) -> JobShape | None:
        """Return the job with other options, as fewer nodes; None where it can't have them."""
        kept = {name: value for name, value in shape.more.items() if name in ("partition", "qos")}
        try:
            changed = self._fitted({**kept, **options}, shape.partition)
        except SbatchgenError:
            return None
        return None if changed.errors else changed

    def _in_partition(self, name: str) -> Iterator[JobShape]:
        plain = self.asked.resolved
        partition = next((each for each in self.moment.partitions if each.name == name), None)
        if partition is None:
            return
        is_asked = name in (plain.partition_name, plain.directives.get("partition"))
        shape = self._fitted({} if is_asked or not plain.partition_name else {"partition": name}, partition)
        why = shape.errors
        if partition.state != "up":
            why.insert(0, f"the partition is {partition.state}")
        elif not partition.nodes:
            why.insert(0, "the partition has no nodes")
        elif "partition" in shape.more:
            why += closed(shape.job)
        limit = shape.job.resources.time
        if limit and partition.time_max_s is not None and limit > partition.time_max_s:
            why.append(f"its time limit is {Duration(partition.time_max_s)}")
        if why:
            self.out[name] = why[0]
        else:
            yield shape

    def _fitted(self, more: Mapping[str, str], partition: SlurmPartition) -> JobShape:
        """Return the job with further options and the limit that its training needs.

        A training that needs more than the longest limit that it may have gets that limit, and is a piece.
        """
        request = self._ask(more) if more else self.asked
        job = request.resolved
        needs_s = self.pace.needs(job.resources.gpus_in_all)
        if needs_s is not None:
            of_profile = None if job.options.qos else job.partition.time_limit(job.resources.nodes)
            of_account = self._longest.get(partition.name)
            longest = [int(limit) for limit in (partition.time_max_s, of_profile, of_account) if limit]
            limit = Duration(min([max(1, math.ceil(needs_s * MARGIN / 60)) * 60, *longest]))
            more = {**more, "time": str(limit)}
            request = self._ask(more)
        return JobShape(request=request, partition=partition, more=more, needs_s=needs_s, moment=self.moment)

    def _allowed(self, shape: JobShape) -> JobShape | None:
        """Return the job, in another QOS or as a piece where a limit holds it back; None if it must wait."""
        asked = self._qos(shape.job)
        if not (why := self._held(shape, asked)):
            return shape
        self.out[shape.partition.name] = why
        others = other_qos(asked, self.moment.settings.get("ClusterName", ""), self.environment)
        if other := next((name for name in others if not self._held(shape, [name])), None):
            return self.changed(shape, qos=other)
        longest = longest_s(self._limits, shape.job.resources, [*asked, shape.partition.own_qos])
        if shape.needs_s is None or longest is None:
            return None
        self._longest[shape.partition.name] = longest
        piece = self.changed(shape)
        return None if piece is None or self._held(piece, asked) else piece

    def _held(self, shape: JobShape, qos: Sequence[str]) -> str:
        """Return which limit would make the job wait now in a QOS; "" if no limit is known to."""
        return held_back(self._limits, shape.job.resources, shape.time_s, [*qos, shape.partition.own_qos])

    def _qos(self, job: ResolvedJob) -> list[str]:
        """Return the QOS whose limits hold: the job's own, or those of the user's jobs in the queue."""
        if job.options.qos:
            return [str(job.options.qos)]
        mine = [each.qos for each in self.moment.jobs if each.user == os.getuid() and each.qos]
        return mine or ["normal"]
