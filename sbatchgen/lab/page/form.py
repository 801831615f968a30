"""The form of the page as data: its fields with their help, and the facts of each cluster."""

from collections.abc import Iterator, Mapping
from typing import Any

from sbatchgen import __version__
from sbatchgen.base.quoting import counted
from sbatchgen.base.units import Text
from sbatchgen.jobs.inputs.flags import GROUPS, JobOption, parameters
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.modes import MODES, Mode
from sbatchgen.jobs.runtimes import RUNTIMES

# The fields that the form always shows, in this order; `files/strings.yaml` has their labels.
MAIN = (
    *("partition", "nodes", "gpus_per_node", "gres", "time", "launcher", "runtime"),
    *("image", "conda_env", "venv", "uv_project", "edf", "trainer", "account", "qos", "job_name"),
)
# Options without a field in the form: only submit takes them, or the page can't know their values.
_HIDDEN_OPTIONS = ("profile", "snapshot_dir")
# The value with which the field `trainer` starts, if the centre has no known copy of the bundled trainer.
OWN_TRAINER = "train.py"


def model(profiles: Mapping[str, Profile], strings: Mapping[str, str], *, has_code: bool) -> dict[str, Any]:
    """Return the data of the page, which shows the first profile at the start.

    `strings` has the texts of the page. `has_code`: the centre has a copy of the bundled trainer.
    """
    order = {name: number for number, name in enumerate(MAIN)}
    options = [option for option in parameters() if option.name not in _HIDDEN_OPTIONS]
    options.sort(key=lambda option: order.get(str(option.name), len(MAIN)))  # further options come last
    return {
        "version": __version__,
        "strings": dict(strings),
        "groups": [group for group in GROUPS if group != "Job"] + ["Job"],
        "modes": [_mode(mode) for mode in MODES.values()],
        "first": "ddp",
        "fields": [_field(option) for option in options],
        "profiles": [_profile(name, profile, has_code=has_code) for name, profile in profiles.items()],
    }


def _field(option: JobOption) -> dict[str, Any]:
    """Return the field of an option, with the values that a user may choose from."""
    choices = ["yes"] if option.is_flag else []
    if option.secondary_opts:
        choices = ["yes", "no"]
    words = str(option.metavar or "").split("|")  # a metavar may list the values: "block|cyclic"
    if not option.is_flag and len(words) > 1 and all(word.islower() for word in words):
        choices = words
    owners = [name for name, runtime in RUNTIMES.items() if option.name in {key.name for key in runtime.keys}]
    return {
        "flag": option.opts[0],
        "no": next(iter(option.secondary_opts), option.opts[0]),
        "key": option.key,
        "name": str(option.name),
        "group": option.group,
        "help": option.help,
        "choices": choices,
        "is_flag": option.is_flag,
        "several": option.multiple,
        "runtimes": owners or None,
        "main": option.name in MAIN,
    }


def _mode(mode: Mode) -> dict[str, Any]:
    """Return a mode with a description, and the fields that the form hides in it."""
    hidden = {
        "nodes": not mode.several_nodes,
        "launcher": not mode.launchers,
        "gpus_per_node": mode.gpus == 0,
        "gres": mode.gpus != 1,  # the field is for shards, which are parts of a single GPU
    }
    nodes = "one or several nodes" if mode.several_nodes else "one node"
    processes = counted(mode.processes, "process") if mode.processes else "a process for each GPU"
    gpus = counted(mode.gpus, "GPU") if mode.gpus else "no GPU"
    if mode.gpus is None:
        gpus = "all its GPUs"
    about = f"{nodes}, {processes}" + ("" if mode.processes is None else f", {gpus}")
    hides = [name for name, is_hidden in hidden.items() if is_hidden]
    return {"name": mode.name, "about": about, "hides": hides}


def _profile(name: str, profile: Profile, *, has_code: bool) -> dict[str, Any]:
    """Return the facts of a profile that the form shows or needs."""
    required = [option.opts[0] for option in parameters() if option.name in profile.required]
    return {
        "name": name,
        "site": profile.site or "",
        "description": profile.description or "",
        "checked": str(profile.checked or ""),
        "runtime": str(profile.runtime or "host"),
        "required": required,
        "trainer": "" if has_code or profile.paths.code else OWN_TRAINER,
        "partitions": [
            {
                "name": partition_name,
                "about": ", ".join(_facts_in_words(partition)),
                "first": partition_name == profile.default_partition,
                "shards": partition.shards_per_gpu is not None,
            }
            for partition_name, partition in profile.partitions.items()
        ],
    }


def _facts_in_words(partition: Partition) -> Iterator[str]:
    """Yield in words what a partition has and allows: GPUs, shards, CPUs, memory and limits."""
    counts = partition.gpu_types or {Text(partition.gpu_type or ""): partition.gpus_per_node or 0}
    gpus = [f"{count} {kind} GPUs".replace("  ", " ") for kind, count in counts.items() if count]
    if gpus or partition.gpus_per_node == 0:
        memory = f" of {partition.gpu_memory}" if partition.gpu_memory and gpus else ""
        yield (" or ".join(gpus) or "no GPUs") + memory
    if partition.shards_per_gpu:
        yield f"{partition.shards_per_gpu} shards a GPU"
    if partition.cpus_per_node:
        yield f"{partition.cpus_per_node} CPUs"
    if partition.mem_per_node:
        yield f"{partition.mem_per_node} of memory"
    elif partition.mem_installed:
        yield f"{partition.mem_installed} of memory, and jobs may have less"
    limits = [str(partition.time_max)] if partition.time_max else []
    limits += [f"{partition.nodes_max} nodes"] if partition.nodes_max else []
    if limits:
        yield f"at most {' and '.join(limits)}"
    if partition.state != "up":
        yield f"now {partition.state}"
