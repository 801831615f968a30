"""Resolves a job: lays the layers of a profile and a job over each other, and derives all other values.

A higher layer overrides a lower one: defaults < profile < partition < mode < sbatchgen.yaml < job < command
line. Nothing here reads a file or the environment. No value is refused here, because rules judge the resolved
job later.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sbatchgen.base.texts import JobName
from sbatchgen.base.units import Duration, Resume, ShellPath, Text
from sbatchgen.jobs.inputs.document import Document
from sbatchgen.jobs.inputs.job_file import KEYS_CHOOSING_RUNTIME, RUNTIME_KEYS
from sbatchgen.jobs.inputs.layers import (
    BY_DEFAULT,
    DecidedValues,
    Layer,
    Level,
    Origin,
    record_of,
    settings_layer,
    values_below,
)
from sbatchgen.jobs.inputs.options import NAMES
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.inputs.start_settings import NETWORK_VARIABLES, JobSettings
from sbatchgen.jobs.modes import COMMAND, MODES, Mode
from sbatchgen.jobs.resolved.job_share import (
    add_other_gres,
    decide_gpus,
    derive_cpus,
    derive_memory,
    derive_tasks,
    set_gpu_option,
    take_other_gres,
)
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob, runs_one_by_one
from sbatchgen.jobs.runtimes import RUNTIMES

DEFAULT_LAUNCHER = "torchrun"
DEFAULT_TIME = Duration(3600)  # the time limit in seconds
FIRST_THAT_FITS = "the first that fits"  # the reason for the partition that sbatchgen has chosen
LONGEST_WARNING_S = 300  # the longest time from the warning signal to the time limit
# The same time for a job that only requeues itself at the signal. It can't be much shorter, because slurmctld
# checks time limits every half minute.
LONGEST_REQUEUE_WARNING_S = 120
DEFAULT_ARGS = ("--dataset", "mnist", "--epochs", "10")  # the arguments of the bundled trainer
_DEFAULTS = {
    "gpu_request": "gpus_per_node",
    "runtime": "host",
    "launcher": DEFAULT_LAUNCHER,
    "resume": Resume("auto"),
    "max_restarts": 10,
    "chain": 1,
    "requeue_on_node_fail": False,
    "template": "job.sh.j2",
    "data": ShellPath("data"),
}
# Keys whose values are copied to attributes of the resolved job.
_COPIED_KEYS = (
    *("trainer", "data", "run_dir", "checkpoint", "resume", "metrics", "hang", "max_restarts", "chain"),
    *("requeue_on_timeout", "requeue_on_node_fail", "snapshot_dir", "template"),
)
LAUNCHER_ARGS = "launchers.args"  # flat key of the profile's arguments for the job's launcher


def resolve(
    profile: Document[Profile], layers: Sequence[Layer], *, mode_name: str, name: str, chosen: str = ""
) -> ResolvedJob:
    """Return a job with every value decided for its cluster.

    `layers` are the layers above the profile, the highest last. `mode_name` is a mode or "command". `name` is
    the default name of the job. `chosen` is the partition that sbatchgen has chosen, or "" if the job is for
    the named or the default partition.
    """
    cluster, mode = profile.value, {**MODES, COMMAND.name: COMMAND}[mode_name]
    partition_name = chosen or partition_name_of(cluster, layers, mode)
    partition = partition_of(cluster, partition_name)
    values = DecidedValues()
    for layer in [*profile_layers(profile, partition_name, partition, mode, layers), *layers]:
        values.lay(layer)
    if chosen:
        values.set("options.partition", Text(chosen), Origin(Level.DEFAULT, FIRST_THAT_FITS))
    profile_args = values.get(LAUNCHER_ARGS)
    if profile_args and values.get("launcher_args") != ():  # an empty list removes the profile's arguments
        # The job's arguments come last, because torchrun uses the last of two equal options.
        origin = values.origins.get("launcher_args", values.origins[LAUNCHER_ARGS])
        values.set("launcher_args", (*profile_args, *values.get("launcher_args", ())), origin)
    _choose_runtime(values, layers)
    for key, value in _DEFAULTS.items():
        values.derive(key, value, "default")
    _derive_runtime(values)
    _derive_job(values, cluster, mode, name)
    _derive_nodes(values, cluster, partition, mode)
    others = take_other_gres(values)
    gpus, shards = decide_gpus(values, cluster, partition, mode)
    nproc = derive_tasks(values, partition, gpus, shards, mode)
    derive_cpus(values, partition, gpus, shards, mode)
    _derive_options(values, cluster, partition, gpus)
    set_gpu_option(values, partition, gpus)
    add_other_gres(values, *others)
    return _resolved_job(values, cluster, partition_name, mode, gpus=gpus, nproc=nproc)


def _choose_runtime(values: DecidedValues, layers: Sequence[Layer]) -> None:
    """Choose the runtime by a key that only some runtimes need, such as `image` or `venv`.

    The highest layer with such a key decides, unless it also names a runtime. If several runtimes need the
    key, the function prefers first the runtimes that read files with the value's ending, then the runtime
    that the job has without this key, and then the runtimes with settings in the profile.
    """
    layer = next(
        (layer for layer in reversed(layers) if {"runtime", *KEYS_CHOOSING_RUNTIME} & layer.values.keys()),
        None,
    )
    key = next((key for key in KEYS_CHOOSING_RUNTIME if layer and key in layer.values), "")
    if layer is None or not key or "runtime" in layer.values:
        return
    candidates = [
        runtime for runtime in RUNTIMES.values() if runtime.requires and runtime.requires.key == key
    ]
    value = str(layer.values[key])
    written_keys = [name for name, origin in values.origins.items() if origin.level > Level.DEFAULT]
    by_ending = [
        runtime for runtime in candidates if runtime.image_ending and value.endswith(runtime.image_ending)
    ]
    current = [runtime for runtime in candidates if runtime.name == values.get("runtime")]
    with_settings = [
        runtime
        for runtime in candidates
        if any(name.startswith(f"runtimes.{runtime.name}.") for name in written_keys)
    ]
    fitting = by_ending or current or with_settings or candidates
    if len(fitting) == 1 and fitting != current:
        values.set("runtime", fitting[0].name, values.origins[key])


def _derive_runtime(values: DecidedValues) -> None:
    """Set the job's keys of the chosen runtime from the profile, unless the job sets them.

    A list of the profile and a list of the job are joined. An empty list in the job removes the profile's.
    """
    runtime = RUNTIMES[values.get("runtime")]
    for key in runtime.keys:
        profile_key = f"runtimes.{runtime.name}.{key.fact}"  # "runtimes.venv.path" for the job's key `venv`
        value, origin = values.get(profile_key), values.origins.get(profile_key, BY_DEFAULT)
        if isinstance(value, tuple) and value and values.get(key.name) != ():
            values.set(key.name, (*value, *values.get(key.name, ())), values.origins.get(key.name, origin))
        elif value and values.ranks.get(profile_key, 0) > values.ranks.get(key.name, 0):
            values.set(key.name, value, origin)
            values.overridden[key.name] = values.overridden.get(profile_key, ())


def _derive_job(values: DecidedValues, profile: Profile, mode: Mode, name: str) -> None:
    """Derive the job's name, its run folder, its arguments and its variables of the network.

    The function also derives whether the job is requeued at its time limit.
    """
    values.derive("options.job_name", JobName(name), "the name of the mode or the job file")
    consecutive = values.get("chain") > 1 or runs_one_by_one(values.get("options.array") or "")
    may_restart = values.get("resume") != "off" and values.get("max_restarts") > 0
    # A trainer with `resume_args` continues from its newest checkpoint, even if no one has asked it to save.
    can_continue = values.get("resume_args") and not values.get("requeue_on_node_fail")
    requeues = bool(can_continue and may_restart and not consecutive and profile.scheduler == "slurm")
    values.derive("requeue_on_timeout", requeues, "resume_args" if requeues else "default")
    run_dir = f"{profile.paths.runs or 'runs'}/{values.get('options.job_name')}"
    values.derive("run_dir", ShellPath(run_dir), "the job's name")
    if not values.get("trainer"):
        values.derive("args", DEFAULT_ARGS, "the bundled trainer")
    if not mode.several_processes:
        return
    for fact in NETWORK_VARIABLES:
        if interfaces := values.get(f"network.{fact}"):
            values.derive_variable(fact.upper(), interfaces, "network of the profile")


def _derive_nodes(values: DecidedValues, profile: Profile, partition: Partition, mode: Mode) -> None:
    """Derive the number of nodes: that of the mode, or 1 if the cluster or partition allows only one."""
    nodes, why = mode.nodes, f"mode {mode.name}"
    if nodes > 1 and profile.scheduler == "none":
        nodes, why = 1, "a machine without Slurm"
    elif nodes > 1 and partition.nodes_max == 1:
        nodes, why = 1, "the partition allows one node"
    values.derive("options.nodes", nodes, why)


def _derive_time(values: DecidedValues, profile: Profile, partition: Partition) -> None:
    """Derive the time limit: the default, or a shorter limit of the partition or of the partition's QOS."""
    qos = profile.qos.get(partition.partition_qos or Text(""))
    limits = [
        (DEFAULT_TIME, "default"),
        (partition.time_limit(values.get("options.nodes")), "the partition's time limit"),
        (qos.time_max if qos else None, f"the time limit of QOS {partition.partition_qos}"),
    ]
    time, why = min(((limit, why) for limit, why in limits if limit is not None), key=lambda pair: pair[0])
    values.derive("options.time", max(Duration(60), time), why)  # at least a minute, Slurm's unit of limits


def _derive_options(values: DecidedValues, profile: Profile, partition: Partition, gpus: int) -> None:
    """Derive the options for time, memory, log, requeue and the warning signal before the time limit."""
    _derive_time(values, profile, partition)
    derive_memory(values, profile, partition, gpus)
    log = "%x-%A_%a.out" if values.get("options.array") else "%x-%j.out"
    values.derive("options.output", ShellPath(log), "default")
    consecutive = values.get("chain") > 1 or runs_one_by_one(values.get("options.array") or "")
    may_restart = values.get("resume") != "off" and (values.get("max_restarts") > 0 or consecutive)
    values.derive("options.open_mode", Text("append") if may_restart else None, "--requeue")
    if may_restart and consecutive:
        values.derive("options.requeue", False, "the next job continues")
    values.derive("options.requeue", may_restart, "resume and max_restarts")  # no effect if derived above
    if may_restart and profile.scheduler == "slurm":
        longest, why = LONGEST_REQUEUE_WARNING_S, "time to requeue"
        if not values.get("requeue_on_timeout"):
            longest, why = LONGEST_WARNING_S, "time to save"
        time_limit = values.get("options.time_min") or values.get("options.time")
        seconds = max(1, min(longest, int(time_limit) // 4))
        values.derive("options.signal", Text(f"B:USR1@{seconds}"), f"{why} before the limit")


def _resolved_job(
    values: DecidedValues, profile: Profile, partition_name: str, mode: Mode, *, gpus: int, nproc: int
) -> ResolvedJob:
    """Return the resolved job with the decided values, without the options that the profile omits."""
    default_partition = profile.default_partition or partition_name
    for option in profile.omit:
        if option == "partition" and partition_name != default_partition:
            continue  # without the option, the job would run in the default partition
        if values.origins.get(f"options.{option}", BY_DEFAULT).level < Level.PROJECT:
            values.drop(f"options.{option}")
    settings: JobSettings = record_of(JobSettings, values.values)
    decided: dict[str, Any] = {key: values.get(key) for key in _COPIED_KEYS}
    decided |= {key: tuple(values.get(key, ())) for key in ("args", "resume_args", "launcher_args")}
    decided |= {key: values_below(values.values, key) for key in ("step", "env", "extra_options")}
    return ResolvedJob(
        profile=profile,
        partition=partition_of(profile, partition_name),
        partition_name=partition_name,
        mode=mode,
        launcher=values.get("launcher") if mode.launchers else None,
        runtime=RUNTIMES[values.get("runtime")],
        settings=settings,
        software={key: values.get(key) for key in RUNTIME_KEYS if values.get(key)},
        options=settings.options,
        gpus_per_node=gpus,
        nproc_per_node=nproc,
        name=str(values.get("options.job_name")),
        origins=values.origins,
        overridden=values.overridden,
        **decided,
    )


def partition_of(profile: Profile, name: str) -> Partition:
    """Return the profile's facts of a partition; `name` may be a list such as "a,b", whose first counts."""
    return profile.partitions.get(Text(name.partition(",")[0])) or Partition()


def named_partition(layers: Sequence[Layer]) -> str:
    """Return the partition that the highest layer names; "" if no layer names a partition."""
    names = [layer.values["options.partition"] for layer in layers if "options.partition" in layer.values]
    return str(names[-1] if names else "")


def partition_name_of(profile: Profile, layers: Sequence[Layer], mode: Mode) -> str:
    """Return the partition that the job names, or the profile's default for its mode; "" without one."""
    mode_partition = profile.modes[mode.name].partition if mode.name in profile.modes else None
    profile_partition = mode_partition or profile.options.partition or profile.default_partition
    return str(named_partition(layers) or profile_partition or "")


def profile_layers(
    profile: Document[Profile], partition_name: str, partition: Partition, mode: Mode, layers: Sequence[Layer]
) -> Iterator[Layer]:
    """Yield the layers of the profile, the lowest first: of the profile itself, the partition and the mode.

    `layers` are the layers above the profile, which may choose another launcher.
    """
    cluster, places = profile.value, profile.places
    yield _layer_of_other_keys(profile)
    first_partition = partition_name.partition(",")[0]
    launchers = [layer.values["launcher"] for layer in layers if "launcher" in layer.values]
    launcher = launchers[-1] if launchers else partition.launcher or cluster.launcher or DEFAULT_LAUNCHER
    parts = []
    if mode.uses_gpus and partition.gpus_per_node != 0:
        parts.append(("gpu_options.", "options."))
    if mode.launchers:
        parts.append((f"launchers.{launcher}.", ""))
    yield from _with_parts(settings_layer(Level.PROFILE, cluster, places, kind=JobSettings), parts)
    partition_layer = settings_layer(
        Level.PARTITION, partition, places, f"partitions.{first_partition}.", kind=JobSettings
    )
    yield from _with_parts(partition_layer, parts)
    if mode.name in cluster.modes:
        mode_layer = settings_layer(Level.PARTITION, cluster.modes[mode.name], places, f"modes.{mode.name}.")
        keys = {key: f"options.{key}" if key in NAMES else key for key in mode_layer.values}
        values = {name: mode_layer.values[key] for key, name in keys.items()}
        yield Layer(Level.PARTITION, values, {name: mode_layer.places[key] for key, name in keys.items()})


def _layer_of_other_keys(profile: Document[Profile]) -> Layer:
    """Return the layer of the profile's keys that jobs have under other names.

    For example, the key `default_partition` of the profile becomes "options.partition".
    """
    cluster, places = profile.value, profile.places
    values: dict[str, Any] = {f"extra_options.{name}": text for name, text in cluster.extra_options.items()}
    optional_values = {
        "template": cluster.template,
        "data": cluster.paths.data,
        "options.partition": cluster.default_partition,
    }
    values |= {key: value for key, value in optional_values.items() if value}
    places_by_new_key = {
        "data": places.get("paths.data", ""),
        "options.partition": places.get("default_partition", ""),
    }
    return Layer(Level.PROFILE, values, {**places, **places_by_new_key})


def _with_parts(settings: Layer, parts: Sequence[tuple[str, str]]) -> Iterator[Layer]:
    """Yield the layer of the settings for all jobs, and the layer of each part that holds for this job.

    A part is `gpu_options`, or the settings of one launcher. Each pair in `parts` has the start of the part's
    keys, and the start that replaces it. For example, the pair ("gpu_options.", "options.") turns the key
    "gpu_options.mem" into "options.mem".
    """
    level, values, places = settings
    common_values = {
        key: value for key, value in values.items() if not key.startswith(("gpu_options.", "launchers."))
    }
    yield Layer(level, common_values, places)
    for start, new_start in parts:
        keys = {key: f"{new_start}{key.removeprefix(start)}" for key in values if key.startswith(start)}
        # A launcher's `args` gets a key of its own, because "args" holds the trainer's arguments.
        keys |= {key: LAUNCHER_ARGS for key, new_key in keys.items() if new_key == "args"}
        new_places = {new_key: places[key] for key, new_key in keys.items() if key in places}
        yield Layer(level, {new_key: values[key] for key, new_key in keys.items()}, new_places)
