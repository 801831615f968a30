"""Makes the shapes of a job: the job in each partition, with the time limit that its training needs there.

If the training needs a longer time limit than the job may have there, the shape is a piece of the training.
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
from sbatchgen.jobs.starts.account_limits import limit_that_delays, max_time_s, printed_limits, qos_of_user
from sbatchgen.jobs.starts.holes import Claim, Hole, longest_hole, next_claims
from sbatchgen.jobs.starts.moment import ClusterMoment
from sbatchgen.jobs.starts.needs import TIME_MARGIN, Pace
from sbatchgen.jobs.starts.room import Availability, rooms

# A function that returns the request of the job with further options, such as {"time": "01:00:00"}.
RequestWith = Callable[[Mapping[str, str]], Request]


@frozen(kw_only=True)
class JobShape:
    """A job with the options that make it fit into a partition."""

    request: Request
    partition: SlurmPartition
    added_options: Mapping[str, str]  # the options that this shape adds to the job, by their names
    needs_s: float | None  # how many seconds the training still needs with these GPUs; None if not known
    moment: ClusterMoment

    @property
    def job(self) -> ResolvedJob:
        """The resolved job of its request."""
        return self.request.resolved

    @property
    def time_s(self) -> int:
        """Its time limit in seconds, or else the partition's default or longest limit, or else a year."""
        limit = self.job.resources.time or self.partition.time_default_s or self.partition.time_max_s
        return limit or 365 * 86400

    @property
    def key(self) -> tuple[str, int, int]:
        """Its partition, number of nodes and time limit. No other shape of the job has the same three."""
        return self.partition.name, self.job.resources.nodes, self.time_s

    @cached_property
    def room(self) -> Availability:
        """The nodes of the partition on which it could start now."""
        moment = self.moment
        (room,) = rooms(self.job.resources, moment.nodes, moment.gpu_nodes, [self.partition], moment.settings)
        return room

    @cached_property
    def _claims(self) -> Mapping[str, Claim]:
        """The next claim of another job or a reservation on each node, by the name of the node."""
        reservation = self.job.resources.options.get("reservation", "")
        return next_claims(self.moment, self.partition.tier, reservation)

    @cached_property
    def _holes(self) -> dict[int, Hole | None]:
        """The holes that were found, by their number of nodes."""
        return {}

    def hole(self, node_count: int) -> Hole | None:
        """Return the longest hole of `node_count` nodes that have room for the shape; None without a hole."""
        if node_count not in self._holes:
            hole = longest_hole(self.moment, self.room.nodes, self._claims, node_count)
            self._holes[node_count] = hole
        return self._holes[node_count]

    @property
    def claim(self) -> Claim | None:
        """The claim that ends its hole. Without a hole, the first claim on a node that has room for it.

        None if no claim is known, or if too few nodes have room.
        """
        if hole := self.hole(self.room.wanted):
            return hole.claim
        claims = [self._claims[name] for name in self.room.nodes if name in self._claims]
        return min(claims, key=attrgetter("begins_at")) if self.room.starts else None

    @property
    def errors(self) -> list[str]:
        """Why the cluster would refuse it, as the rules about a resolved job say in words."""
        errors = (finding for finding in check(self.job) if finding.severity == "error")
        return [finding.why_not or finding.problem.what for finding in errors]


@final
class JobShapes:
    """The shapes of one job, and the reasons why the job has no shape in some partitions."""

    def __init__(
        self, request_with: RequestWith, moment: ClusterMoment, environment: Mapping[str, str], pace: Pace
    ) -> None:
        self.moment, self.environment, self.pace = moment, environment, pace
        self._request_with = request_with
        self.original = request_with({})  # the request without further options
        self.why_excluded: dict[str, str] = {}  # a partition -> why the job has no shape or no hole there
        self._limits = ""  # the limits of accounts and QOS, as Slurm prints them
        # A partition -> the longest time limit that these limits allow, if a limit delays the shape there
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
        self._limits = "" if moment.is_late else printed_limits(moment.settings, self.environment)
        return [undelayed for shape in shapes if (undelayed := self._without_delay(shape))]

    def with_options(self, shape: JobShape, **options: str) -> JobShape | None:
        """Return a shape with these options, such as fewer nodes; None if the job can't have them.

        The new shape keeps the partition and the QOS, and its time limit is computed again.
        """
        kept = {name: value for name, value in shape.added_options.items() if name in ("partition", "qos")}
        try:
            new_shape = self._with_time_limit({**kept, **options}, shape.partition)
        except SbatchgenError:
            return None
        return None if new_shape.errors else new_shape

    def _in_partition(self, name: str) -> Iterator[JobShape]:
        """Yield the shape of the job in a partition; without a shape, set the reason in `why_excluded`."""
        job = self.original.resolved
        partition = next((candidate for candidate in self.moment.partitions if candidate.name == name), None)
        if partition is None:
            return
        is_chosen = name in (job.partition_name, job.directives.get("partition"))
        added_options = {} if is_chosen or not job.partition_name else {"partition": name}
        shape = self._with_time_limit(added_options, partition)
        reasons = shape.errors
        if partition.state != "up":
            reasons.insert(0, f"the partition is {partition.state}")
        elif not partition.nodes:
            reasons.insert(0, "the partition has no nodes")
        elif "partition" in shape.added_options:
            reasons += why_closed(shape.job)
        limit = shape.job.resources.time
        if limit and partition.time_max_s is not None and limit > partition.time_max_s:
            reasons.append(f"its time limit is {Duration(partition.time_max_s)}")
        if reasons:
            self.why_excluded[name] = reasons[0]
        else:
            yield shape

    def _with_time_limit(self, added_options: Mapping[str, str], partition: SlurmPartition) -> JobShape:
        """Return the shape with these options in a partition, and the time limit that its training needs.

        The time limit is at most the longest that the job may have there. If it is not known how long the
        training needs, the job keeps its own time limit.
        """
        request = self._request_with(added_options) if added_options else self.original
        job = request.resolved
        needs_s = self.pace.needed_s(job.resources.gpus_in_all)
        if needs_s is not None:
            by_profile = None if job.options.qos else job.partition.time_limit(job.resources.nodes)
            by_account = self._max_times_s.get(partition.name)
            maxima_s = [int(limit) for limit in (partition.time_max_s, by_profile, by_account) if limit]
            limit_s = max(1, math.ceil(needs_s * TIME_MARGIN / 60)) * 60  # in whole minutes, as Slurm counts
            added_options = {**added_options, "time": str(Duration(min([limit_s, *maxima_s])))}
            request = self._request_with(added_options)
        return JobShape(
            request=request,
            partition=partition,
            added_options=added_options,
            needs_s=needs_s,
            moment=self.moment,
        )

    def _without_delay(self, shape: JobShape) -> JobShape | None:
        """Return a shape that no limit of an account or a QOS delays; None if each shape is delayed.

        The result is the given shape, or this shape in another QOS, or else a piece of the training that is
        short enough. If a limit delays the given shape, `why_excluded` gets this limit.
        """
        own_qos = self._qos_of(shape.job)
        if not (why := self._delaying_limit(shape, own_qos)):
            return shape
        self.why_excluded[shape.partition.name] = why
        others = qos_of_user(own_qos, self.moment.settings.get("ClusterName", ""), self.environment)
        if other := next((name for name in others if not self._delaying_limit(shape, [name])), None):
            return self.with_options(shape, qos=other)
        longest_s = max_time_s(self._limits, shape.job.resources, [*own_qos, shape.partition.own_qos])
        if shape.needs_s is None or longest_s is None:
            return None
        self._max_times_s[shape.partition.name] = longest_s
        piece = self.with_options(shape)  # the same options, with a time limit of at most `longest_s`
        return None if piece is None or self._delaying_limit(piece, own_qos) else piece

    def _delaying_limit(self, shape: JobShape, qos: Sequence[str]) -> str:
        """Return in words which limit would make the job wait in these QOS; "" if no known limit would."""
        return limit_that_delays(
            self._limits, shape.job.resources, shape.time_s, [*qos, shape.partition.own_qos]
        )

    def _qos_of(self, job: ResolvedJob) -> list[str]:
        """Return the QOS that may apply to a job: its own, or else those of the user's jobs in the queue."""
        if job.options.qos:
            return [str(job.options.qos)]
        user_jobs = (queued for queued in self.moment.jobs if queued.user == os.getuid())
        return [queued.qos for queued in user_jobs if queued.qos] or ["normal"]
