"""Layers -> resolved job: the layers laid over each other, and what follows from them.

The higher layer wins: defaults < profile < partition < mode < sbatchgen.yaml < job < command line. Nothing
here reads a file or the environment, and nothing is refused: `check` judges the resolved job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sbatchgen.inputs.document import Document
from sbatchgen.inputs.job_file import CHOOSING, RUNTIME_KEYS
from sbatchgen.inputs.layers import (
    BY_DEFAULT,
    Layer,
    Level,
    Origin,
    below_key,
    option_values,
    settings_layer,
    settings_of,
)
from sbatchgen.inputs.options import GPU_OPTIONS
from sbatchgen.inputs.profile import NodeFacts, NodeShape, Partition, Profile
from sbatchgen.inputs.start_settings import NETWORK_VARIABLES
from sbatchgen.modes import MODES, Mode
from sbatchgen.resolved.resolved_job import ResolvedJob, one_at_a_time
from sbatchgen.runtimes import RUNTIMES
from sbatchgen.sbatch.gres import is_slice, parted, requested, requested_gpus
from sbatchgen.units import Duration, Gres, JobName, Memory, Resume, ShellPath, Text

DEFAULT_LAUNCHER = "torchrun"
LAUNCHER_ARGS = "launchers.args"  # of the profile
DEFAULT_TIME = Duration(3600)
FIRST = "the first that fits"  # of the partitions
GUESS = "a guess"  # how the reason starts that a number has where the profile lacks a fact
DEFAULT_CPUS = 4  # per process, where nothing is known of the node
LONGEST_WARNING_S = 300
REQUEUE_S = 120  # slurmctld looks at time limits every half minute
DEFAULT_ARGS = ("--dataset", "mnist", "--epochs", "10")
_MEMORY_KEYS = ("options.mem", "options.mem_per_cpu", "options.mem_per_gpu")
_GPU_KEYS = tuple(f"options.{name}" for name in GPU_OPTIONS)


def resolve(
    profile: Document[Profile], layers: Sequence[Layer], *, mode_name: str, name: str, chosen: str = ""
) -> ResolvedJob:
    """The resolved job of a job on a cluster; of the layers the last one wins."""
    cluster, mode = profile.value, MODES[mode_name]
    partition_name = chosen or _partition_name(cluster, layers, mode)
    partition = _partition(cluster, partition_name)
    values = _Values()
    for layer in [*_profile_layers(profile, partition_name, partition, mode, layers), *layers]:
        values.lay(layer)
    if chosen:
        values.set("options.partition", Text(chosen), Origin(Level.DEFAULT, FIRST))
    _join_args(values, layers)
    _choose_runtime(values, layers)
    _derive_runtime(values)
    _derive_job(values, cluster, mode, name)
    alone = cluster.scheduler == "none" or partition.nodes_max == 1
    values.derive("options.nodes", 1 if alone else mode.nodes, f"mode {mode.name}")
    others = _take_other_gres(values)
    gpus, shards = _gpus(values, cluster, partition, mode)
    nproc = _derive_tasks(values, gpus, shards, mode)
    _derive_cpus(values, partition, gpus, shards, mode)
    _derive_limits(values, cluster, partition, gpus)
    _emit_gpus(values, partition, gpus)
    _add_other_gres(values, *others)
    return _plan(values, cluster, partition_name, mode, gpus=gpus, nproc=nproc)


class _Values:
    """The layers laid over each other, with origins and overridden values."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.overridden: dict[str, tuple[tuple[Any, Origin], ...]] = {}
        self.why_gpus = "mode and partition"
        self.ranks: dict[str, int] = {}  # of the layer of each value

    def lay(self, over: Layer) -> None:
        rank = max(self.ranks.values(), default=0) + 1
        for key, value in over.values.items():
            place = over.places.get(key)  # none for a default of the profile's own
            self.set(key, value, Origin(over.level, place) if place else BY_DEFAULT)
            self.ranks[key] = rank

    def set(self, key: str, value: Any, origin: Origin) -> None:
        if key in self.values:
            self.overridden[key] = ((self.values[key], self.origins[key]), *self.overridden.get(key, ()))
        self.values[key] = value
        self.origins[key] = origin

    def derive(self, key: str, value: Any, why: str) -> None:
        """Set what no layer sets, and note the rule it follows from."""
        if value is not None and key not in self.values:
            self.set(key, value, Origin(Level.DEFAULT, why))

    def drop(self, key: str) -> None:
        self.values.pop(key, None)
        self.origins.pop(key, None)

    def highest(self, rivals: Sequence[str]) -> list[str]:
        """Drop all but the highest layer's values of keys that exclude each other, and return their keys."""
        given = [key for key in rivals if key in self.values]
        top = max((self.ranks.get(key, 0) for key in given), default=0)
        for key in given:
            if self.ranks.get(key, 0) < top:
                self.drop(key)
        return [key for key in given if key in self.values]

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)


def _partition(profile: Profile, name: str) -> Partition:
    known = profile.partitions.get(Text(name.split(",", maxsplit=1)[0]))
    return Partition() if known is None else known


def named_partition(layers: Sequence[Layer]) -> str:
    """The partition that a job names; "" if it names none."""
    given = [each.values["options.partition"] for each in layers if "options.partition" in each.values]
    return str(given[-1] if given else "")


def _partition_name(profile: Profile, layers: Sequence[Layer], mode: Mode) -> str:
    of_mode = profile.modes[mode.name].partition if mode.name in profile.modes else None
    fallback = of_mode or profile.options.partition or profile.default_partition
    return str(named_partition(layers) or fallback or "")


def _profile_layers(
    profile: Document[Profile], partition_name: str, partition: Partition, mode: Mode, layers: Sequence[Layer]
) -> Iterator[Layer]:
    """The profile's own layers: its settings, those of the partition, and the options of the mode."""
    cluster, places = profile.value, profile.places
    facts: dict[str, Any] = {f"extra_options.{name}": value for name, value in cluster.extra_options.items()}
    optional = {
        "template": cluster.template,
        "data": cluster.paths.data,
        "options.partition": cluster.default_partition,
    }
    facts |= {key: value for key, value in optional.items() if value}
    where = {"data": places.get("paths.data", ""), "options.partition": places.get("default_partition", "")}
    yield Layer(Level.PROFILE, facts, {**places, **where})
    first = partition_name.split(",", maxsplit=1)[0]
    given = [each.values["launcher"] for each in layers if "launcher" in each.values]
    launcher = given[-1] if given else partition.launcher or cluster.launcher or DEFAULT_LAUNCHER
    uses_gpus = mode.uses_gpus and partition.gpus_per_node != 0
    parts = [("gpu_options.", "options.")] * uses_gpus + [(f"launchers.{launcher}.", "")] * bool(
        mode.launchers
    )
    yield from _with_parts(settings_layer(Level.PROFILE, cluster, places, defaults=True), parts)
    own = settings_layer(Level.PARTITION, partition, places, f"partitions.{first}.")
    yield from _with_parts(own, parts)
    if mode.name in cluster.modes:
        of_mode, start = cluster.modes[mode.name], f"modes.{mode.name}"
        values = option_values(of_mode)
        written = {key: key.replace("options", start, 1) for key in values}
        written |= {f"step.{name}": f"{start}.step.{name}" for name in of_mode.step}
        values |= {f"step.{name}": value for name, value in of_mode.step.items()}
        yield Layer(Level.PARTITION, values, {key: places.get(name, name) for key, name in written.items()})


def _with_parts(settings: Layer, parts: Sequence[tuple[str, str]]) -> Iterator[Layer]:
    """Yield settings without their parts, then each part that holds for this job: the start of its keys."""
    level, values, places = settings
    plain = {
        key: value for key, value in values.items() if not key.startswith(("gpu_options.", "launchers."))
    }
    yield Layer(level, plain, places)
    for start, instead in parts:
        keys = {key: f"{instead}{key.removeprefix(start)}" for key in values if key.startswith(start)}
        keys |= {key: LAUNCHER_ARGS for key, name in keys.items() if name == "args"}  # the trainer has others
        where = {name: places[key] for key, name in keys.items() if key in places}
        yield Layer(level, {name: values[key] for key, name in keys.items()}, where)


def _join_args(values: _Values, layers: Sequence[Layer]) -> None:
    """Arguments that come after others, where they win: those of the job after those of the profile."""
    given = [each for each in layers if "args" in each.values]
    if len(given) > 1 and given[-1].level is Level.COMMAND_LINE:
        values.values["args"] = (*given[-2].values["args"], *given[-1].values["args"])
    if here := values.get(LAUNCHER_ARGS):
        by = values.origins.get("launcher_args", values.origins[LAUNCHER_ARGS])
        values.set("launcher_args", (*here, *values.get("launcher_args", ())), by)


def _choose_runtime(values: _Values, layers: Sequence[Layer]) -> None:
    """Take the runtime that requires what the highest layer gives, as an image; SB043 judges contradictions.

    Of several, the one that the job would use anyway, else the only one that the cluster has settings of.
    """
    layer = next((each for each in reversed(layers) if {"runtime", *CHOOSING} & each.values.keys()), None)
    key = next((key for key in CHOOSING if layer and key in layer.values), "")
    if layer is None or not key or "runtime" in layer.values:
        return
    able = [runtime for runtime in RUNTIMES.values() if runtime.requires and runtime.requires.key == key]
    known = [name for name, origin in values.origins.items() if origin.level > Level.DEFAULT]
    reading = [
        each for each in able if each.image_ending and str(layer.values[key]).endswith(each.image_ending)
    ]
    used = [each for each in able if each.name == values.get("runtime")]
    having = [each for each in able if any(name.startswith(f"runtimes.{each.name}.") for name in known)]
    fitting = reading or used or having or able
    if len(fitting) == 1 and fitting != used:
        values.set("runtime", fitting[0].name, values.origins[key])


def _derive_runtime(values: _Values) -> None:
    """What the chosen runtime needs, from the profile unless the job sets it; lists of both are joined."""
    for name, default in (
        ("gpu_request", "gpus_per_node"),
        ("runtime", "host"),
        ("launcher", DEFAULT_LAUNCHER),
    ):
        values.derive(name, default, "default")
    runtime = RUNTIMES[values.get("runtime")]
    for key in runtime.keys:
        written = f"runtimes.{runtime.name}.{key.fact}"
        value, origin = values.get(written), values.origins.get(written, BY_DEFAULT)
        if isinstance(value, tuple) and value:
            values.set(key.name, (*value, *values.get(key.name, ())), values.origins.get(key.name, origin))
        elif value and key.name not in values.values:
            values.set(key.name, value, origin)
            values.overridden[key.name] = values.overridden.get(written, ())


def _derive_job(values: _Values, profile: Profile, mode: Mode, name: str) -> None:
    values.derive("options.job_name", JobName(name), "the name of the mode or the job file")
    values.derive("resume", Resume("auto"), "default")
    for key, value in (("max_restarts", 10), ("chain", 1), ("requeue_on_node_fail", False)):
        values.derive(key, value, "default")
    requeues = _requeues_itself(values, profile)
    values.derive("requeue_on_timeout", requeues, "resume_args" if requeues else "default")
    values.derive("template", "job.sh.j2", "default")
    values.derive("data", ShellPath("data"), "default")
    runs = profile.paths.runs or "runs"
    job_name = str(values.get("options.job_name"))
    values.derive("run_dir", ShellPath(f"{runs}/{job_name}"), "the job's name")
    if not values.get("trainer"):
        values.derive("args", DEFAULT_ARGS, "the bundled trainer")
    for fact in NETWORK_VARIABLES if mode.several_processes else ():
        values.derive(f"env.{fact.upper()}", values.get(f"network.{fact}"), "network of the profile")


def _requeues_itself(values: _Values, profile: Profile) -> bool:
    """Whether the trainer resumes by itself, and no other job follows at the time limit."""
    others = values.get("chain") > 1 or one_at_a_time(values.get("options.array") or "")
    restarts = values.get("resume") != "off" and values.get("max_restarts") > 0
    by_itself = values.get("resume_args") and not values.get("requeue_on_node_fail")
    return bool(by_itself and restarts and not others and profile.scheduler == "slurm")


def _take_other_gres(values: _Values) -> tuple[str, Origin]:
    """Leave in --gres what it asks for of GPUs; return the rest, as local disk, which has no part in that."""
    of_gpus, others, origin = "", "", BY_DEFAULT
    if text := values.get("options.gres"):
        of_gpus, others = parted(text)
        origin = values.origins["options.gres"]
    if others and not of_gpus:  # GPUs that a lower level asks for are not overridden
        for lower, where in reversed(values.overridden.get("options.gres", ())):
            if of_gpus := parted(lower)[0]:
                values.origins["options.gres"] = where
                break
    if of_gpus:
        values.values["options.gres"] = Gres(of_gpus)
    elif others:
        values.drop("options.gres")
    return others, origin


def _add_other_gres(values: _Values, others: str, origin: Origin) -> None:
    """Give --gres back what is not about GPUs."""
    if others:
        of_gpus = values.get("options.gres")
        values.values["options.gres"] = Gres(f"{of_gpus},{others}" if of_gpus else others)
        values.origins["options.gres"] = origin


def _gpus(values: _Values, profile: Profile, partition: Partition, mode: Mode) -> tuple[int, int]:
    """GPUs and shards of the job on each node; only the highest layer's GPU options are kept."""
    unwanted = not mode.uses_gpus or values.get("gpu_request") == "none"
    for name in values.highest(_GPU_KEYS):
        level = values.origins[name].level
        if unwanted and level < Level.PROJECT:
            values.drop(name)
        elif mode.gpus and level < Level.PROJECT:
            values.values[name] = _at_most(values.get(name), mode.gpus)
    if not mode.uses_gpus:
        return 0, 0
    gpus, shards = (
        sum(count for name, _, count in requested(values.get("options.gres") or "") if name == wanted)
        for wanted in ("gpu", "shard")
    )
    if values.get("options.gpus_per_node"):
        return _count(values, "gpus_per_node"), shards
    if gpus or shards:
        return gpus, shards
    if values.get("options.gpus_per_task") or values.get("options.gpus"):
        return _gpus_of_job(values, partition, mode), 0
    if profile.scheduler == "env":  # its platform hands out what was asked for there
        return (mode.gpus or values.get("nproc_per_node") or _alike(partition) or 0), 0
    return mode.gpus or _most_gpus(values, profile, partition), 0


def _gpus_of_job(values: _Values, partition: Partition, mode: Mode) -> int:
    """GPUs on a node of a job that asks for a number per task, or for all nodes together."""
    if values.get("options.gpus_per_task"):
        each = max(1, _count(values, "gpus_per_task"))  # `check` refuses 0
        here, by_srun = _alike(partition), values.get("launcher") == "srun" and mode.launchers
        fitting = here // each if here and by_srun else 1
        return int(each * (values.get("options.ntasks_per_node") or max(1, fitting)))
    return _count(values, "gpus") // max(1, int(values.get("options.nodes")))


def _most_gpus(values: _Values, profile: Profile, partition: Partition) -> int:
    """The most whole GPUs of one type that enough nodes have, and a QOS allows; else one slice."""
    nodes, kinds = max(1, values.get("options.nodes")), partition.kinds()
    counts = sorted({count for kind in kinds for count in kind.whole_gpus.values()}, reverse=True)
    having = [(count, _nodes_with(kinds, count, nodes)) for count in counts]
    most, why = counts[0] if counts else 0, "mode and partition"
    if enough := [count for count, number in having if number >= nodes]:
        most = enough[0]
        if most < counts[0]:
            why = f"{having[0][1]} of the nodes have {counts[0]} GPUs, and the job wants {nodes}"
    elif any(kind.gpu_types for kind in kinds):
        most, why = 1, "a slice of a GPU: NCCL uses no others"
    names = (partition.partition_qos, values.get("options.qos"))
    limits = [(limit, name) for name in names if name and (limit := _gpus_of(profile, name)) is not None]
    if limits and nodes * most > min(limits)[0] >= nodes:
        most, why = min(limits)[0] // nodes, f"qos {min(limits)[1]} allows {min(limits)[0]} GPUs"
    slices = any(is_slice(kind) for node in kinds for kind in node.gpu_types)
    types = {kind for node in kinds for kind, count in node.whole_gpus.items() if count >= most and kind}
    if slices and types and not values.get("options.gpus_per_node"):  # a count alone may bring slices
        values.set("options.gpus_per_node", Text(f"{min(types)}:{most}"), Origin(Level.DEFAULT, "whole GPUs"))
    values.why_gpus = why
    return most


def _nodes_with(kinds: Sequence[NodeFacts], gpus: int, unknown: int) -> int:
    """The number of nodes that have so many GPUs of one type."""
    having = [kind for kind in kinds if max(kind.whole_gpus.values(), default=0) >= gpus]
    return sum(kind.nodes if isinstance(kind, NodeShape) and kind.nodes else unknown for kind in having)


def _gpus_of(profile: Profile, qos: str) -> int | None:
    limits = profile.qos.get(Text(qos))
    return limits.gpus_max if limits else None


def _at_most(request: Text, most: int) -> Text:
    """A request for GPUs of one type, with no more of them than the mode uses."""
    kind, _, count = request.rpartition(":")
    several = count.isdecimal() and int(count) > most and "," not in request and not kind.startswith("shard")
    return type(request)(f"{kind}:{most}".removeprefix(":")) if several else request


def _alike(partition: Partition) -> int | None:
    """The most GPUs of one type that a node has: a job that names no type may not get several."""
    counts = [count for kind in partition.kinds() for count in kind.whole_gpus.values()]
    return max(counts, default=partition.gpus_per_node)


def _count(values: _Values, option: str) -> int:
    """GPUs that an option asks for, of all types."""
    return sum(count for _, count in requested_gpus(values.get(f"options.{option}")) or ())


def _derive_tasks(values: _Values, gpus: int, shards: int, mode: Mode) -> int:
    """Processes and tasks on each node; returns the processes."""
    by_srun = bool(mode.launchers) and values.get("launcher") == "srun"
    nproc = 1
    if mode.several_processes:
        given = values.get("nproc_per_node") or (values.get("options.ntasks_per_node") if by_srun else None)
        each = max(1, _count(values, "gpus_per_task")) if by_srun else 1
        nproc = given or gpus // each or (1 if shards else 2)
        values.derive("nproc_per_node", nproc, "one process per GPU" if gpus else "no whole GPUs")
    why = "one task per process" if by_srun else "one task per node"
    values.derive("options.ntasks_per_node", nproc if by_srun else 1, why)
    return int(nproc)


def _derive_cpus(values: _Values, partition: Partition, gpus: int, shards: int, mode: Mode) -> None:
    """CPUs of a task: the share of the node that goes with its GPUs; none of a whole node of unknown size."""
    nodes = _nodes(values, partition, gpus, shards)
    limits = [node.cpus_per_node for node in nodes] + [partition.cpus_per_node_max]
    most = min(filter(None, limits), default=None)
    share = partition.cpus_per_gpu or _share(nodes, "cpus_per_node", 1)
    if share and shards and partition.shards_per_gpu:
        share = max(1, share * shards // partition.shards_per_gpu)
    if not share and not most and (values.get("options.exclusive") or partition.exclusive):
        return
    guessed = not share and (gpus or shards)
    if share is None or not mode.uses_gpus or not (gpus or shards):
        share = min(DEFAULT_CPUS, most or DEFAULT_CPUS)
    tasks = values.get("options.ntasks_per_node") or 1
    processes = values.get("nproc_per_node") if mode.several_processes else max(1, gpus)
    cpus = share * max(1, processes // tasks)
    if most:
        cpus = max(1, min(cpus, most // tasks))
    why = (
        f"{GUESS}; write cpus_per_gpu of the partition into the profile"
        if guessed
        else f"{share} per process or GPU"
    )
    values.derive("options.cpus_per_task", cpus, why)


def _nodes(values: _Values, partition: Partition, gpus: int, shards: int) -> list[NodeFacts]:
    """Return the kinds of nodes that the job may get; all if no kind has what it asks for."""
    typed = [(kind, n) for name, kind, n in requested(values.get("options.gres") or "") if name == "gpu"]
    asked = typed or requested_gpus(values.get("options.gpus_per_node")) or (("", gpus),)
    having = partition.kinds(asked)
    return [node for node in having if node.shards_per_gpu or not shards] or having or partition.kinds()


def _share(nodes: Iterable[NodeFacts], name: str, gpus: int) -> int | None:
    """What goes with so many GPUs on each of these nodes, if one of them is known."""
    shares = [
        max(1, whole * min(gpus, node.gpus_per_node) // node.gpus_per_node)
        for node in nodes
        if (whole := getattr(node, name)) and node.gpus_per_node
    ]
    return min(shares, default=None)


def _derive_limits(values: _Values, profile: Profile, partition: Partition, gpus: int) -> None:
    """Time, memory, log, requeue and warning signal."""
    limits = profile.qos.get(partition.partition_qos or Text(""))
    known = (partition.time_limit(values.get("options.nodes")), limits.time_max if limits else None)
    longest = min((limit for limit in known if limit is not None), default=DEFAULT_TIME)
    values.derive("options.time", max(Duration(60), min(DEFAULT_TIME, longest)), "default")
    _derive_memory(values, profile, partition, gpus)
    log = "%x-%A_%a.out" if values.get("options.array") else "%x-%j.out"
    values.derive("options.output", ShellPath(log), "default")
    consecutive = values.get("chain") > 1 or one_at_a_time(values.get("options.array") or "")
    restart = values.get("resume") != "off" and (values.get("max_restarts") > 0 or consecutive)
    values.derive("options.open_mode", Text("append") if restart else None, "--requeue")
    if restart and consecutive:
        values.derive("options.requeue", False, "the next job continues")
    values.derive("options.requeue", restart, "resume and max_restarts")
    if restart and profile.scheduler == "slurm":
        saves = not values.get("requeue_on_timeout")
        most, why = (LONGEST_WARNING_S, "time to save") if saves else (REQUEUE_S, "time to requeue")
        lead = max(1, min(most, int(values.get("options.time")) // 4))
        values.derive("options.signal", Text(f"B:USR1@{lead}"), f"{why} before the limit")


def _derive_memory(values: _Values, profile: Profile, partition: Partition, gpus: int) -> None:
    """The GPUs' share; and all of a node where the partition's default is more than that."""
    if not gpus and values.origins.get("options.mem_per_gpu", BY_DEFAULT).level < Level.PROJECT:
        values.drop("options.mem_per_gpu")
    if values.highest(_MEMORY_KEYS):
        return
    nodes = _nodes(values, partition, gpus, 0)
    smallest = min((node.mem_per_node for node in nodes if node.mem_per_node), default=None)
    most = min(filter(None, (smallest, partition.mem_per_node_max)), default=0)
    if gpus and values.get("options.exclusive") is None:
        mem = min(filter(None, (_share(nodes, "mem_per_node", gpus), partition.mem_per_node_max)), default=0)
        values.derive("options.mem", Memory(mem) if mem > 1 else None, "the GPUs' share of a node")
    elif most > 1 and partition.mem_per_cpu_default and profile.limits.memory_consumable is not False:
        cpus = (values.get("options.ntasks_per_node") or 1) * (values.get("options.cpus_per_task") or 1)
        if values.get("options.exclusive"):
            cpus = max((node.cpus_per_node or cpus for node in nodes), default=cpus)
        if partition.mem_per_cpu_default * cpus > most:
            why = f"the default of {partition.mem_per_cpu_default} per CPU is more than a node has"
            values.derive("options.mem", Memory(most), why)


def _emit_gpus(values: _Values, partition: Partition, gpus: int) -> None:
    """The one GPU option, in the form that the cluster wants; a user's own other form stays."""
    form = values.get("gpu_request")
    given = [name for name in _GPU_KEYS if name in values.values]
    if not gpus or given not in ([], ["options.gpus_per_node"]) or (form == "none" and not given):
        return
    count, origin = str(gpus), Origin(Level.DEFAULT, values.why_gpus)
    if given and form != "none":
        count, origin = values.get("options.gpus_per_node"), values.origins["options.gpus_per_node"]
        values.drop("options.gpus_per_node")
    if partition.gpu_type_required and ":" not in count:
        count = f"{partition.only_type()}:{count}"
    if form == "gpus" and "," not in count:
        kind, _, each = count.rpartition(":")
        total = int(each) * max(1, values.get("options.nodes"))
        values.set("options.gpus", Text(f"{kind}:{total}".removeprefix(":")), origin)
    elif form == "gres":
        values.set("options.gres", Gres(f"gpu:{count}"), origin)
    elif form == "gpus_per_task":
        kind, tasks = count.rpartition(":")[0], values.get("options.ntasks_per_node") or 1
        per_task = str(max(1, gpus // tasks))
        values.set("options.gpus_per_task", Text(f"{kind}:{per_task}" if kind else per_task), origin)
    elif form in ("gpus", "gpus_per_node"):
        values.set("options.gpus_per_node", Text(count), origin)


def _plan(
    values: _Values, profile: Profile, partition_name: str, mode: Mode, *, gpus: int, nproc: int
) -> ResolvedJob:
    name = str(values.get("options.job_name"))
    default = profile.default_partition or partition_name
    for option in profile.omit:
        if option == "partition" and partition_name != default:
            continue  # without it the job would go to the default one
        if values.origins.get(f"options.{option}", BY_DEFAULT).level < Level.PROJECT:
            values.drop(f"options.{option}")
    settings = settings_of(values.values)
    same = (
        "trainer data run_dir checkpoint resume metrics max_restarts chain requeue_on_timeout "
        "requeue_on_node_fail snapshot_dir template"
    )

    return ResolvedJob(
        profile=profile,
        partition=_partition(profile, partition_name),
        partition_name=partition_name,
        mode=mode,
        launcher=values.get("launcher") if mode.launchers else None,
        runtime=RUNTIMES[values.get("runtime")],
        settings=settings,
        step=below_key(values.values, "step"),
        software={key: values.get(key) for key in RUNTIME_KEYS if values.get(key)},
        options=settings.options,
        extra_options=below_key(values.values, "extra_options"),
        gpus_per_node=gpus,
        nproc_per_node=nproc,
        name=name,
        args=tuple(values.get("args", ())),
        resume_args=tuple(values.get("resume_args", ())),
        launcher_args=tuple(values.get("launcher_args", ())),
        env=below_key(values.values, "env"),
        origins=values.origins,
        overridden=values.overridden,
        **{key: values.get(key) for key in same.split()},
    )
