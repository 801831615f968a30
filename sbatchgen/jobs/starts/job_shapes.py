"""The shapes of a job: the job in each partition, with the time limit that its training needs there.

If the training needs a longer limit than it may have, the shape is a piece of the training.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import final

from sbatchgen.base.errors import FitError, SbatchgenError
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.base.units import Duration
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.resolved.choice import why_closed
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.slurm.partition import SlurmPartition
from sbatchgen.jobs.starts.account_limits import limit_that_delays, max_time_s, other_qos, read_limits
from sbatchgen.jobs.starts.holes import Claim, Hole, longest_hole, next_claims
from sbatchgen.jobs.starts.moment import ClusterMoment
from sbatchgen.jobs.starts.needs import MARGIN, Pace
from sbatchgen.jobs.starts.room import Availability, rooms

RequestWith = Callable[[Mapping[str, str]], Request]  # returns the request of the job with further options


@frozen(kw_only=True)
class JobShape:
    """A job with the options that make it fit a partition."""

    request: Request
    partition: SlurmPartition
    more: Mapping[str, str]  # the options that are added to the job for this shape, by their names
    needs_s: float | None  # how many seconds the training still needs with these GPUs; None if not known
    moment: ClusterMoment

    @property
    def job(self) -> ResolvedJob:
        """The resolved job of its request."""
        return self.request.resolved

    @property
    def time_s(self) -> int:
        """Its time limit in seconds, or else the partition's; a year if there is no limit."""
        limit = self.job.resources.time or self.partition.time_default_s or self.partition.time_max_s
        return limit or 365 * 86400

    @property
    def key(self) -> tuple[str, int, int]:
        """Its partition, nodes and time limit, which no other shape of the job has."""
        return self.partition.name, self.job.resources.nodes, self.time_s

    @cached_property
    def room(self) -> Availability:
        """The room for it now."""
        moment = self.moment
        (room,) = rooms(self.job.resources, moment.nodes, moment.gpu_nodes, [self.partition], moment.settings)
        return room

    @cached_property
    def _claims(self) -> Mapping[str, Claim]:
        """The next claim of others on each node, by the node's name."""
        reservation = self.job.resources.options.get("reservation", "")
        return next_claims(self.moment, self.partition.tier, reservation)

    @cached_property
    def _holes(self) -> dict[int, Hole | None]:
        """The holes that were found, by their number of nodes."""
        return {}

    def hole(self, node_count: int) -> Hole | None:
        """Return the longest hole of so many nodes among those with room for it; None without a hole."""
        if node_count not in self._holes:
            hole = longest_hole(self.moment, self.room.nodes, self._claims, node_count)
            self._holes[node_count] = hole
        return self._holes[node_count]

    @property
    def claim(self) -> Claim | None:
        """The claim that ends its hole, or the first on a node with room; None if no claim is known."""
        if hole := self.hole(self.room.wanted):
            return hole.until
        claims = [self._claims[name] for name in self.room.nodes if name in self._claims]
        return min(claims, key=attrgetter("at")) if self.room.starts else None

    @property
    def errors(self) -> list[str]:
        """Why the cluster would refuse it, by the rules about a resolved job."""
        errors = (finding for finding in check(self.job) if finding.severity == "error")
        return [finding.why_not or finding.problem.what for finding in errors]


@final
class JobShapes:
    """Makes the shapes of one job, and keeps why the job has no shape in some partitions."""

    def __init__(
        self, request_with: RequestWith, moment: ClusterMoment, environment: Mapping[str, str], pace: Pace
    ) -> None:
        self.moment, self.environment, self.pace = moment, environment, pace
        self._request_with = request_with
        self.original = request_with({})  # the request without further options
        self.why_excluded: dict[str, str] = {}  # why the job has no shape or no hole, by partition
        self._limits = ""  # the limits of accounts and QOS, as Slurm prints them
        # The longest time limits that they allow, by partition; set if a limit delays the shape there
        self._max_times_s: dict[str, int] = {}

    def in_partitions(self, names: Sequence[str]) -> list[JobShape]:
        """Return a shape of the job for each of these partitions in which the job may run now.

        Raises FitError if the cluster has none of these partitions.
        """
        moment = self.moment
        shapes = [shape for name in dict.fromkeys(names) for shape in self._in_partition(name)]
        if not shapes and not self.why_excluded:
            known = ", ".join(partition.name for partition in moment.partitions)
            fix = f"known: {known}" if known else "Slurm shows you none: ask the cluster's support"
            raise FitError.of(f"this cluster has no partition {' or '.join(dict.fromkeys(names))}", fix=fix)
        self._limits = "" if moment.is_late else read_limits(moment.settings, self.environment)
        return [allowed for shape in shapes if (allowed := self._allowed(shape))]

    def changed(self, shape: JobShape, **options: str) -> JobShape | None:
        """Return the shape with other options, such as fewer nodes; None if the job can't have them."""
        kept = {name: value for name, value in shape.more.items() if name in ("partition", "qos")}
        try:
            changed = self._with_time_limit({**kept, **options}, shape.partition)
        except SbatchgenError:
            return None
        return None if changed.errors else changed

    def _in_partition(self, name: str) -> Iterator[JobShape]:
        """Yield the shape of the job in a partition, or keep why the job has no shape there."""
        job = self.original.resolved
        partition = next((candidate for candidate in self.moment.partitions if candidate.name == name), None)
        if partition is None:
            return
        is_chosen = name in (job.partition_name, job.directives.get("partition"))
        more = {} if is_chosen or not job.partition_name else {"partition": name}
        shape = self._with_time_limit(more, partition)
        reasons = shape.errors
        if partition.state != "up":
            reasons.insert(0, f"the partition is {partition.state}")
        elif not partition.nodes:
            reasons.insert(0, "the partition has no nodes")
        elif "partition" in shape.more:
            reasons += why_closed(shape.job)
        limit = shape.job.resources.time
        if limit and partition.time_max_s is not None and limit > partition.time_max_s:
            reasons.append(f"its time limit is {Duration(partition.time_max_s)}")
        if reasons:
            self.why_excluded[name] = reasons[0]
        else:
            yield shape

    def _with_time_limit(self, more: Mapping[str, str], partition: SlurmPartition) -> JobShape:
        """Return the job with further options and the time limit that its training needs.

        If this limit is longer than the longest that the job may have, the shape has the longest one. If
        it is not known how long the training needs, the job keeps its own time limit.
        """
        request = self._request_with(more) if more else self.original
        job = request.resolved
        needs_s = self.pace.needs(job.resources.gpus_in_all)
        if needs_s is not None:
            by_profile = None if job.options.qos else job.partition.time_limit(job.resources.nodes)
            by_account = self._max_times_s.get(partition.name)
            maxima_s = [int(limit) for limit in (partition.time_max_s, by_profile, by_account) if limit]
            limit_s = max(1, math.ceil(needs_s * MARGIN / 60)) * 60  # in whole minutes, as Slurm counts
            more = {**more, "time": str(Duration(min([limit_s, *maxima_s])))}
            request = self._request_with(more)
        return JobShape(request=request, partition=partition, more=more, needs_s=needs_s, moment=self.moment)

    def _allowed(self, shape: JobShape) -> JobShape | None:
        """Return a shape that no limit of an account delays; None without one.

        The shape is unchanged, or in another QOS, or else a piece of the training. If it is changed,
        `why_excluded` gets the limit that delays the unchanged shape.
        """
        own_qos = self._qos(shape.job)
        if not (why := self._delaying_limit(shape, own_qos)):
            return shape
        self.why_excluded[shape.partition.name] = why
        others = other_qos(own_qos, self.moment.settings.get("ClusterName", ""), self.environment)
        if other := next((name for name in others if not self._delaying_limit(shape, [name])), None):
            return self.changed(shape, qos=other)
        longest_s = max_time_s(self._limits, shape.job.resources, [*own_qos, shape.partition.own_qos])
        if shape.needs_s is None or longest_s is None:
            return None
        self._max_times_s[shape.partition.name] = longest_s
        piece = self.changed(shape)  # with the time limit that was set here
        return None if piece is None or self._delaying_limit(piece, own_qos) else piece

    def _delaying_limit(self, shape: JobShape, qos: Sequence[str]) -> str:
        """Return in words which limit would make the job wait in these QOS; "" if no known limit would."""
        return limit_that_delays(
            self._limits, shape.job.resources, shape.time_s, [*qos, shape.partition.own_qos]
        )

    def _qos(self, job: ResolvedJob) -> list[str]:
        """Return the QOS that apply: the job's own, or else those of the user's jobs in the queue."""
        if job.options.qos:
            return [str(job.options.qos)]
        mine = [queued.qos for queued in self.moment.jobs if queued.user == os.getuid() and queued.qos]
        return mine or ["normal"]
