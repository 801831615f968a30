"""The request of a script or a resolved job: nodes, tasks, CPUs, GPUs, memory and time.

From its options, a request derives what the job gets on a node and in total. Source: sbatch(1) and gres.html,
Slurm 22.05.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property
from sbatchgen.base.keys import record
from sbatchgen.check.sbatch.gres import split_gpu_items

GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")  # each of them may ask for a job's GPUs
UNLIMITED = 1 << 40  # the number of seconds that stands for --time=UNLIMITED and --time=0

Amounts = tuple[tuple[str, int], ...]  # types of GPUs ("" for any type), each with a number


def split_among_nodes(total: int, nodes: int, node_size: int | None = None) -> tuple[int, ...]:
    """Return how many GPUs or tasks of a total each node gets, if all nodes are idle and alike.

    Slurm fills the first nodes, and leaves at least one GPU or task for each other node. `node_size` is the
    number that fits on a node; None if unknown. Nodes that other jobs use get other shares.
    Source: jobs on Slurm 22.05 and 26.05 (tests/resolved/test_split.py).
    """
    shares = []
    for later_nodes in range(nodes - 1, -1, -1):
        shares.append(max(min(total - later_nodes, node_size or total), 0))
        total -= shares[-1]
    return tuple(shares)


@record
class ResourceRequest:
    """The options with which a job asks for resources; None is an unset option.

    Memory is in MiB, and times are in seconds.
    """

    options: Mapping[str, str]  # long name of each set option -> its value as text; "" for a flag
    places: Mapping[str, Place]  # long name of each set option -> where it was written
    unset_place: Place = field(default_factory=Place)  # the place that messages show for an unset option
    nodes_min: int | None = None
    nodes_max: int | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    ntasks_per_gpu: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    gpus: Amounts | None = None
    gpus_per_node: Amounts | None = None
    gpus_per_task: Amounts | None = None
    gres: tuple[tuple[str, str, int], ...] = ()  # the name, the type and the count of each item, per node
    mem: int | None = None  # per node; 0 for all memory of a node
    mem_per_cpu: int | None = None
    mem_per_gpu: int | None = None
    time: int | None = None
    time_min: int | None = None
    default_partition: str | None = None
    processes_per_node: int | None = None  # how many processes a launcher starts on a node; None if unknown

    def place(self, option: str) -> Place:
        """Return the place where an option was written, or the place for unset options."""
        return self.places.get(option, self.unset_place)

    def __contains__(self, option: str) -> bool:
        return option in self.options

    @property
    def is_exclusive(self) -> bool:
        """Whether the job gets all CPUs and GPUs of its nodes by --exclusive, but not by --exclusive=user.

        Source: sbatch(1), --exclusive.
        """
        return self.options.get("exclusive") in ("", "exclusive")

    @cached_property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that the job may run in; without --partition, the cluster's default."""
        names = self.options.get("partition") or self.default_partition or ""
        partitions = tuple(name for name in names.split(",") if name)
        return partitions or ((self.default_partition,) if self.default_partition else ())

    @cached_property
    def nodes(self) -> int:
        """The smallest number of nodes that the job accepts."""
        if self.nodes_min is not None:
            return self.nodes_min
        if self.ntasks and self.ntasks_per_node:
            return -(-self.ntasks // self.ntasks_per_node)
        return 1

    def with_most_nodes(self, nodes_max: int | None) -> ResourceRequest:
        """Return the request with the largest number of nodes that Slurm may give the job.

        `nodes_max` is the limit of nodes for any job; None if unknown.
        """
        if self.nodes_min is not None:
            return replace(self, nodes_min=self.nodes_max or self.nodes_min)
        # Without --nodes, Slurm may give each task or each GPU a node of its own.
        usable_nodes = max(self.ntasks or 1, *(count for _, count in self.gpus or ()), 1)
        return replace(self, nodes_min=min(nodes_max or usable_nodes, self.ntasks or usable_nodes))

    @property
    def tasks_per_node(self) -> int:
        """The number of tasks on a node; the largest number if the tasks are spread evenly."""
        if self.ntasks_per_node:
            return self.ntasks_per_node
        return -(-self.ntasks // max(self.nodes, 1)) if self.ntasks else 1

    @cached_property
    def gpus_on_node(self) -> Amounts:
        """The types of the GPUs on a node, each with its number. Those of --gpus count as spread evenly."""
        from_gres = tuple((gpu_type, count) for name, gpu_type, count in self.gres if name == "gpu" and count)
        if from_gres:
            return from_gres
        if self.gpus_per_node:
            return self.gpus_per_node
        if self.gpus_per_task:
            return tuple((gpu_type, count * self.tasks_per_node) for gpu_type, count in self.gpus_per_task)
        if self.gpus:
            return tuple((gpu_type, -(-count // max(self.nodes, 1))) for gpu_type, count in self.gpus)
        return ()

    @property
    def gpus_in_all(self) -> int:
        """The number of GPUs of the whole job, of all types."""
        if self.gpu_option == "gpus" and not (self.gpus_per_node or self.is_exclusive):
            return sum(count for _, count in self.gpus or ())
        if self.gpu_option == "gpus-per-task" and self.ntasks and not self.is_exclusive:
            return self.ntasks * sum(count for _, count in self.gpus_per_task or ())
        return max(self.nodes, 1) * self.gpu_count

    def splits_gpus(self, node_gpus: Collection[int] = (), *, whole_nodes: bool = False) -> bool:
        """Return whether Slurm may give the job's nodes different numbers of GPUs.

        Slurm may do so if only --gpus gives a number. `node_gpus` are the numbers of GPUs of the known kinds
        of nodes. `whole_nodes` is true if the job gets whole nodes, which may still differ in their GPUs.
        Source: jobs on Slurm 22.05 and 26.05 (tests/resolved/test_split.py).
        """
        total, nodes = sum(count for _, count in self.gpus or ()), self.nodes
        per_task = sum(count for _, count in self.gpus_per_task or ())
        if not total or nodes < 2 or self.gpu_option == "gres" or self.gpus_per_node:
            return False
        if "ntasks-per-gpu" in self.options or (
            per_task and (self.ntasks_per_node or total == per_task * nodes)
        ):
            return False  # each node gets the same number of tasks, and so of GPUs
        if (whole_nodes or self.is_exclusive) and not node_gpus:
            return False  # the job may get all GPUs of its nodes
        largest_node = max(node_gpus, default=0)
        gets_one_each, gets_all = total == nodes, largest_node and total >= nodes * largest_node
        return not (len(self.gpus or ()) == 1 and (gets_one_each or gets_all))

    @property
    def gpu_types(self) -> dict[str, str]:
        """The requested types of GPUs, each with the option that names the type."""
        items = [("gres", gpu_type) for name, gpu_type, count in self.gres if name == "gpu" and count]
        for option, amounts in (
            ("gpus-per-node", self.gpus_per_node),
            ("gpus-per-task", self.gpus_per_task),
            ("gpus", self.gpus),
        ):
            items += [(option, gpu_type) for gpu_type, _ in amounts or ()]
        return {gpu_type: option for option, gpu_type in items if gpu_type}

    @property
    def gpu_option(self) -> str:
        """The option whose number of GPUs Slurm uses; "" if no option asks for GPUs."""
        candidates = ["gres"] if split_gpu_items(self.options.get("gres", ""))[0] else []
        candidates += ["gpus-per-node", "gpus-per-task", "gpus", "gpus-per-socket"]
        return next((name for name in candidates if name in self.options), "")

    @cached_property
    def gpu_count(self) -> int:
        """The number of GPUs in `gpus_on_node`, of all types."""
        return sum(count for _, count in self.gpus_on_node)

    @property
    def shards(self) -> int:
        """The number of shards of GPUs on a node."""
        return sum(count for name, _, count in self.gres if name == "shard")

    @property
    def cpus_on_node(self) -> int:
        """The number of CPUs on a node, for its GPUs or its tasks."""
        if self.cpus_per_gpu and self.gpu_count:
            return self.cpus_per_gpu * self.gpu_count
        return self.tasks_per_node * (self.cpus_per_task or 1)

    @property
    def mem_on_node(self) -> int | None:
        """The MiB of memory on a node; None for the cluster's default, 0 for all memory of the node."""
        return self.mem_with(self.cpus_on_node, self.gpu_count)

    def mem_with(self, cpus: int, gpus: int) -> int | None:
        """Return the MiB of memory on a node where the job has this number of CPUs and of GPUs."""
        if self.mem_per_cpu is not None:
            return self.mem_per_cpu * cpus
        if self.mem_per_gpu is not None:
            return self.mem_per_gpu * gpus
        return self.mem
