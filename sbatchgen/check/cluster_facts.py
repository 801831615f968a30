"""The facts of a cluster that rules about scripts need: partitions, QOS, limits and users.

The records of a profile extend these records with settings of jobs. The records are neither frozen nor
comparable, so that the command starts faster.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from sbatchgen.base.keys import described, record, required
from sbatchgen.base.texts import Citation, CpuList
from sbatchgen.base.units import (
    Count,
    Duration,
    Memory,
    Moment,
    NodeRange,
    Release,
    Text,
    Weights,
)
from sbatchgen.check.sbatch.gres import is_slice


def restriction(option: str, allowed: Sequence[str]) -> str:
    """Return a partition's restriction in words, such as "only for account lab or gpu"."""
    return f"only for {option} {' or '.join(allowed)}"


class StartFacts:
    """The facts about the start of jobs. These defaults mean "not known"; profiles override them."""

    @property
    def job_env(self) -> Iterator[tuple[str, str]]:
        """The names and values of the variables that all jobs get, whatever launcher they use."""
        return iter(())

    @property
    def job_qos(self) -> str:
        """The quality of service of a job that sbatchgen renders; "" for Slurm's default."""
        return ""

    @property
    def interfaces(self) -> Mapping[str, str]:
        """The names of network interfaces, by the variable that holds them, such as NCCL_SOCKET_IFNAME."""
        return {}


@record
class NodeFacts:
    """The hardware of a node; None means "not known"."""

    cpus_per_node: Count | None = described("CPUs of a node.")
    threads_per_core: Count | None = described("Hardware threads of a core.")
    mem_per_node: Memory | None = described("Memory of a node that jobs may have.")
    mem_installed: Memory | None = described(
        "Memory built into a node, as tables of hardware list it. Jobs may have less."
    )
    mem_largest: Memory | None = described("Memory of the largest node, if nodes differ slightly.")
    gpus_per_node: int | None = described("GPUs of a node.")
    gpu_memory: Memory | None = described("Memory of a GPU.")
    gpu_types: Mapping[Text, int] = described("GPUs of a node by type, as gres.conf has them.", make=dict)
    shards_per_gpu: Count | None = described("Shards of a GPU.")
    features: tuple[Text, ...] | None = described("Features that its nodes have, for --constraint.")
    gres: Mapping[Text, Count] | None = described(
        "Generic resources of a node apart from GPUs, such as {nvme: 3600}."
    )
    tmp_per_node: Memory | None = described("Local disk of a node, for --tmp (TmpDisk).")

    @property
    def whole_gpus(self) -> dict[str, int]:
        """The whole GPUs of a node by type ("" for any type), without slices (MIG)."""
        if self.gpu_types:
            return {str(kind): count for kind, count in self.gpu_types.items() if not is_slice(kind)}
        return {"": self.gpus_per_node} if self.gpus_per_node else {}


# The keys of `GpuLimits`, each with the holder of the GPUs that the key limits.
GPU_HOLDERS = {"gpus_max": "a job", "gpus_max_user": "a user", "gpus_max_account": "an account"}

OLD_DAYS = 180  # after this many days, somebody should verify the facts of a profile again


@record
class GpuLimits:
    """Limits of GPUs in use at a time; None means "not known"."""

    gpus_max: int | None = described("Most GPUs of a job.")
    gpus_max_user: int | None = described("Most GPUs of all running jobs of a user (MaxTRESPerUser).")
    gpus_max_account: int | None = described(
        "Most GPUs of all running jobs of an account (MaxTRESPerAccount)."
    )


@record
class NodeShape(NodeFacts):
    """A kind of node of a partition."""

    nodes: Count | None = described("Number of nodes of this kind.")


@record
class PartitionFacts(NodeFacts, GpuLimits, StartFacts):
    """The limits of a partition, per node if the name of the key says so; None means "not known"."""

    KEYS_FIRST: ClassVar = True

    time_max: Duration | None = described("Longest time limit (MaxTime).")
    time_default: Duration | None = described("Time limit of a job that sets none (DefaultTime).")
    time_by_nodes: Mapping[NodeRange, Duration] = described(
        "Longest time limit by number of nodes, such as {1-91: 02:00:00, 92-: 12:00:00}.", make=dict
    )
    node_minutes_max: Count | None = described("Most nodes x minutes of a job.")
    nodes: Text | None = described("Host names, such as n[1-16].")
    nodes_max: Count | None = described("Most nodes of a job (MaxNodes).")
    nodes_min: Count | None = described("Fewest nodes of a job (MinNodes).")
    cpus_per_gpu: Count | None = described("CPUs that go with a GPU.")
    processes_per_gpu: Count = described(
        "Processes of a job on each GPU, such as 2 if each of two tiles is a device.", make=lambda: Count(1)
    )
    gpu_cpus: tuple[CpuList, ...] = described(
        "CPUs close to each GPU, in the order of local ranks, for `step: {cpu-bind: gpu_cpus}`.", ()
    )
    gpu_type: Text | None = described(
        "Type of the GPUs, such as a100; if there are several, the type for jobs that name none."
    )
    gpus_typed: bool = described(
        "Whether gres.conf gives the GPUs a type; if false, a job that names a type never starts.", True
    )
    gpu_type_required: bool = described("Whether a request for GPUs must name their type.", False)
    mem_per_cpu_default: Memory | None = described("Memory per CPU if a job sets none (DefMemPerCPU).")
    mem_per_cpu_max: Memory | None = described("Most memory per CPU (MaxMemPerCPU).")
    mem_per_gpu_default: Memory | None = described("Memory per GPU if a job sets none (DefMemPerGPU).")
    mem_per_node_default: Memory | None = described("Memory of a node if a job sets none (DefMemPerNode).")
    mem_per_node_max: Memory | None = described("Most memory of a job on a node (MaxMemPerNode).")
    cpus_per_node_max: Count | None = described("Most CPUs of all jobs on a node (MaxCPUsPerNode).")
    shapes: tuple[NodeShape, ...] = described(
        "Kinds of its nodes, if they differ. The largest sets its cpus_per_node and mem_per_node.",
        (),
    )
    accounts: tuple[Text, ...] = described("Accounts that may use it; empty: any.", ())
    accounts_denied: tuple[Text, ...] = described("Accounts that may not use it.", ())
    qos: tuple[Text, ...] = described("Qualities of service that may use it; empty: any.", ())
    qos_denied: tuple[Text, ...] = described("Qualities of service that may not use it.", ())
    groups: tuple[Text, ...] = described("Groups of users who may use it (AllowGroups); empty: any.", ())
    submit_hosts: Text | None = described("Hosts from which jobs may be submitted (AllocNodes).")
    partition_qos: Text | None = described("A quality of service with limits for all jobs of the partition.")
    preemption: Literal["requeue", "cancel", "suspend"] | None = described(
        "How jobs of partitions with a higher priority stop its jobs (PreemptMode)."
    )
    preemption_grace: Duration | None = described("How long a preempted job runs on (GraceTime).")
    billing: Weights | None = described("The cost of a unit of each resource (TRESBillingWeights).")
    hidden: bool = described("Whether only jobs that name the partition get it (Hidden).", False)
    state: Literal["up", "down", "drain", "inactive"] = described("Whether the partition takes jobs.", "up")
    exclusive: bool = described("Whether jobs get whole nodes (OverSubscribe=EXCLUSIVE).", False)
    oversubscribed: bool = described(
        "Whether jobs share CPUs, even with --exclusive (OverSubscribe=FORCE:2 or more).", False
    )
    reservation_only: bool = described("Whether only jobs with a reservation may use it (ReqResv).", False)
    internet: bool | None = described("Whether its nodes reach the internet.")

    def __post_init__(self) -> None:
        """Fill in missing keys: those of the partition from its kinds of nodes, and the other way round."""
        for name in ("cpus_per_node", "mem_per_node", "mem_installed", "gpus_per_node", "tmp_per_node"):
            values = [getattr(shape, name) for shape in self.shapes]
            if name == "mem_per_node":  # the memory of the largest node counts
                values = [shape.mem_largest or shape.mem_per_node for shape in self.shapes]
            if getattr(self, name) is None and None not in values:
                setattr(self, name, max(values, default=None))
        if self.features is None and self.shapes and all(shape.features is not None for shape in self.shapes):
            names = (name for shape in self.shapes for name in shape.features or ())
            self.features = tuple(dict.fromkeys(names))
        for shape in self.shapes:  # a key of the partition holds for each kind of nodes
            for name in ("features", "gres", "tmp_per_node"):
                if getattr(shape, name) is None:
                    setattr(shape, name, getattr(self, name))
        shards = [shape.shards_per_gpu for shape in self.shapes if shape.shards_per_gpu]
        self.shards_per_gpu = self.shards_per_gpu or max(shards, default=None)
        threads = [shape.threads_per_core or Count(1) for shape in self.shapes]
        self.threads_per_core = self.threads_per_core or min(threads, default=None)
        if not self.gpu_types:
            counts = [item for shape in self.shapes for item in shape.gpu_types.items()]
            self.gpu_types = {
                gpu_type: max(count for name, count in counts if name == gpu_type) for gpu_type, _ in counts
            }

    def time_limit(self, nodes: int) -> Duration | None:
        """Return the longest time limit of a job with this number of nodes; None if there is no limit."""
        limits_by_range = self.time_by_nodes.items()
        limits = [limit for span, limit in limits_by_range if span.first <= nodes <= span.last]
        limits += [self.time_max] if self.time_max else []
        if self.node_minutes_max and nodes > 0:
            limits.append(Duration(self.node_minutes_max // nodes * 60))  # Slurm counts whole minutes
        return min(limits, default=None)

    def default_gpu_type(self) -> str:
        """Return the type of the GPUs of a job that names no type; "" if the partition has no such type.

        The type is `gpu_type`, or the only type of `gpu_types`.
        """
        return str(self.gpu_type or (next(iter(self.gpu_types)) if len(self.gpu_types) == 1 else ""))

    def node_kinds(self, gpus: Iterable[tuple[str, int]] = ()) -> list[NodeFacts]:
        """Return the kinds of nodes that may have these GPUs; without `gpus`, all kinds.

        `gpus` are types ("" for any type), each with the number of GPUs that a node needs. A partition
        without `shapes` has one kind of nodes, which the partition itself describes.
        """
        needed = [*gpus]
        total = sum(count for _, count in needed)
        kinds: list[NodeFacts] = []
        for kind in self.shapes or (self,):
            types = kind.gpu_types
            may_have_types = not types or all(
                count <= types.get(Text(name), 0) for name, count in needed if name
            )
            if may_have_types and (kind.gpus_per_node is None or total <= kind.gpus_per_node):
                kinds.append(kind)
        return kinds

    def gpus_of_node_kinds(self, gpus: Iterable[tuple[str, int]]) -> list[int]:
        """Return how many GPUs of the types in `gpus` a node of each kind has, without kinds that have none.

        `gpus` is a request, as in `node_kinds`. Only its types count, and not its numbers.
        """
        types = [Text(name) for name, _ in gpus]
        counts: list[int | None] = []
        for kind in self.node_kinds():
            if kind.gpu_types and "" not in types:
                counts.append(sum(kind.gpu_types.get(name, 0) for name in types))
            else:
                counts.append(kind.gpus_per_node)
        return [count for count in counts if count]

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield each contradiction between values: the key, what is wrong, and a fix."""
        gpus = self.gpus_per_node
        # With shapes, gpu_types holds the GPUs of several kinds of nodes, which no node has together.
        types = {} if self.shapes else self.gpu_types
        if gpus is not None and gpus < 0:
            yield "gpus_per_node", f"a node can't have {gpus} GPUs", "write 0 or more"
        elif gpus is not None and types and sum(types.values()) != gpus:
            what = f"gpu_types has {sum(types.values())} GPUs, but gpus_per_node is {gpus}"
            yield "gpu_types", what, "correct gpu_types or gpus_per_node"
        for low, high in (
            ("time_default", "time_max"),
            ("nodes_min", "nodes_max"),
            ("mem_per_cpu_default", "mem_per_cpu_max"),
            ("mem_per_node_default", "mem_per_node_max"),
            ("mem_per_node", "mem_largest"),
            ("mem_per_node", "mem_installed"),
        ):
            minimum, maximum = getattr(self, low), getattr(self, high)
            if minimum is not None and maximum is not None and minimum > maximum:
                yield low, f"{minimum} is more than {high} {maximum}", f"write {low}: {maximum}, or less"
        if self.gpu_cpus and gpus is not None and len(self.gpu_cpus) != gpus:
            yield "gpu_cpus", f"{len(self.gpu_cpus)} lists for {gpus} GPUs", "write a list for each GPU"
        if self.gpu_type_required and not (self.gpus_typed and (self.default_gpu_type() or self.gpu_types)):
            yield "gpu_type_required", "no key gives the type for which jobs ask", "write gpu_type: TYPE"
        elif self.gpu_type_required and self.gpu_types and self.gpu_type not in (None, *self.gpu_types):
            yield (
                "gpu_type",
                f"no node has GPUs of type {self.gpu_type}",
                f"write {' or '.join(self.gpu_types)}",
            )
        yield from self._range_faults()

    def _range_faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield the faults of time_by_nodes: ranges that overlap, and times above time_max."""
        previous: NodeRange | None = None
        for span in sorted(self.time_by_nodes, key=lambda span: span.first):
            if previous and span.first <= previous.last:
                what = f"the ranges {previous} and {span} overlap"
                yield "time_by_nodes", what, "give each number of nodes one limit"
            if self.time_max and self.time_by_nodes[span] > self.time_max:
                what = f"{self.time_by_nodes[span]} for {span} nodes is more than time_max {self.time_max}"
                yield "time_by_nodes", what, f"write {span}: {self.time_max}, or less"
            previous = span


@record
class Qos(GpuLimits):
    """Limits of a quality of service."""

    time_max: Duration | None = described("Longest time limit.")
    nodes_max: int | None = described("Most nodes of a job.")
    cpus_max: int | None = described("Most CPUs of a job.")
    nodes_min: int | None = described("Fewest nodes of a job (MinTRES).")
    gpus_min: int | None = described("Fewest GPUs of a job (MinTRES).")
    cpus_min: int | None = described("Fewest CPUs of a job (MinTRES).")
    jobs_max: int | None = described("Most jobs of a user at a time, with waiting jobs (MaxSubmitPU).")
    deny_on_limit: bool = described(
        "Whether Slurm refuses a job over the limit (DenyOnLimit); otherwise the job waits.", False
    )
    overrides: tuple[Literal["time_max", "nodes_max", "nodes_min", "partition_qos"], ...] = described(
        "Limits of the partition that do not hold for its jobs (PartitionTimeLimit, OverPartQOS, ...).", ()
    )

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield each contradiction between values: the key, what is wrong, and a fix."""
        for unit in ("nodes", "gpus", "cpus"):
            minimum, maximum = getattr(self, f"{unit}_min"), getattr(self, f"{unit}_max")
            if minimum is not None and maximum is not None and minimum > maximum:
                what = f"{minimum} is more than {unit}_max {maximum}"
                yield f"{unit}_min", what, f"write {maximum}, or less"


@record
class Limits:
    """Settings of slurm.conf for all partitions; None means "not known"."""

    enforce_part_limits: Literal["no", "any", "all"] | None = described("EnforcePartLimits of slurm.conf.")
    enforce_accounts: bool | None = described("Whether AccountingStorageEnforce has associations.")
    enforce_qos: bool | None = described(
        "Whether AccountingStorageEnforce has qos, so that Slurm refuses an unknown QOS."
    )
    max_array_size: int | None = described("MaxArraySize of slurm.conf.")
    max_array_tasks: int | None = described("max_array_tasks of SchedulerParameters.")
    memory_consumable: bool | None = described(
        "Whether jobs on a node share out its memory (SelectTypeParameters with MEMORY)."
    )
    several_gpus_per_sharing_job: bool = described(
        "Whether SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ.", False
    )
    select_type: Literal["cons_tres", "cons_res", "linear"] | None = described(
        "SelectType of slurm.conf: cons_res and linear know no --gpus and the like."
    )
    topology: Literal["tree", "block", "flat"] | None = described(
        "TopologyPlugin of slurm.conf: --switches needs tree, --segment block."
    )
    switch_nodes: Count | None = described("Nodes of the largest leaf switch (topology tree).")


@record
class Reservation:
    """A reservation of nodes; None means "not known"."""

    partitions: tuple[Text, ...] = described(
        "Partitions with nodes in the reservation; empty: not known.", ()
    )
    until: Moment | None = described("When the reservation ends, and its jobs with it.")


@record
class User:
    """Slurm's facts about one user. Rules use them only if this user runs sbatchgen."""

    name: Text = required("The user's name.")
    groups: tuple[Text, ...] = described("The user's groups that partitions name.", ())
    host: Text | None = described("The host on which the profile was discovered.")
    account: Text | None = described("The account of a job that names none.")
    accounts: Mapping[Text, tuple[Text, ...]] = described(
        "Accounts, each with its qualities of service; Slurm refuses others.", make=dict
    )
    qos: Text | None = described("The quality of service of a job that names none.")


@record
class FactSource:
    """The lines in a cluster's documentation from which facts are."""

    at: Citation = required(
        "Lines of a public repository, OWNER/REPOSITORY@COMMIT PATH:LINES DIGEST, or https://..."
    )
    keys: tuple[Text, ...] = described("The keys whose values are from these lines.", ())


@record
class KnownCluster(StartFacts):
    """The facts of a cluster that rules of scripts need; None means "not known"."""

    KEYS_FIRST: ClassVar = True
    places: ClassVar[Mapping[str, str]] = {}  # key -> its place in a file: "required" -> "/etc/x.yaml:4"

    name: Text = required("The name of the cluster.")
    url: Text = required("The guide of the cluster from which the facts are.")
    checked: Text = required("Date on which the facts were last verified, such as 2026-01-31.")
    until: Moment | None = described("When the cluster ended or will end, such as 2026-08-31.")
    successor: Text | None = described("The profile of the cluster that replaces this cluster after `until`.")
    site: Text | None = described("The centre that runs the cluster.")
    contact: Text | None = described("Whom users may ask for help.")
    description: Text | None = described("The cluster in one line.")
    slurm: Release | None = described("Release of Slurm, such as 24.05.")
    scheduler: Literal["slurm", "none", "env"] = described(
        "slurm; none: this machine; env: a platform that starts the script on each node.", "slurm"
    )
    partitions: Mapping[Text, PartitionFacts] = described("Partitions by name.", make=dict)
    default_partition: Text | None = described(
        "The partition of a job that names none. A job that can't run there gets the first that fits."
    )
    limits: Limits = described("Limits of slurm.conf.", make=Limits)
    qos: Mapping[Text, Qos] = described("Limits of qualities of service, by name.", make=dict)
    gres_types: tuple[Text, ...] | None = described("Names that --gres may have here (GresTypes).")
    licenses: Mapping[Text, int] | None = described("Licenses that exist here, with their numbers.")
    reservations: Mapping[Text, Reservation] = described(
        "Reservations by name, for the user who discovered the profile.", make=dict
    )
    plugin_options: tuple[Text, ...] | None = described(
        "Options that the site's plugins add to sbatch; with = at the end if they take a value."
    )
    user: User | None = described("The user who discovered the profile; remove it in a profile for others.")
    policies: Mapping[Text, Literal["error", "warning", "info", "off"]] = described(
        "Severity of rules by id: error, warning, info or off.", make=dict
    )
    gpu_vendor: Literal["nvidia", "amd", "intel"] = described(
        "The maker of the GPUs. On Intel's GPUs only a trainer of your own trains, with xccl or ccl.",
        "nvidia",
    )
    required: tuple[Text, ...] = described("Options that every job must set, such as account.", ())
    omit: tuple[Text, ...] = described("Options that scripts do not get, such as partition.", ())
    sources: tuple[FactSource, ...] = described("Where the documentation states the facts.", ())

    def key_place(self, key: str) -> str:
        """Return the end of a message that shows a key's place, " (FILE:LINE)"; "" if no file has the key."""
        place = self.places.get(key, "")
        return f" ({place[place.rfind('/') + 1 :]})" if place else ""

    @property
    def age_days(self) -> int:
        """The number of days since the facts were verified; 0 if `checked` is not a date."""
        try:
            return int(time.time() - Moment.parse(self.checked).epoch) // 86400
        except ValueError:
            return 0


def has_documented_facts(profile: KnownCluster) -> bool:
    """Return whether a profile's facts are from the site's documentation, which may be incomplete.

    `sbatchgen profile discover` asks Slurm for all facts instead, and writes the user into the profile.
    """
    return bool(profile.sources) and profile.user is None
