"""Rules about values of options that any Slurm refuses, or reads differently than people expect.

`constraints` and `limits` judge values that depend on the cluster, such as names of nodes and licences.
benchmarks/values.py compares each verdict with a real slurmctld. Sources: slurmctld 22.05 to 26.05, as named
in the readers of values in `sbatchgen.check.sbatch`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from sbatchgen.base.finding import Severity
from sbatchgen.base.units import Duration, meant_time
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.sbatch.option_table import value_kinds
from sbatchgen.check.script.job import Job
from sbatchgen.check.script.resource_request import UNLIMITED

RULES: Rules[Job] = Rules()

# The id, the severity and the title of a rule that scripts and resolved jobs have. `misread_values` and
# `sbatchgen.jobs.judge` each add it with a function of their own.
BAD_VALUE: tuple[str, Severity, str] = ("SB126", "error", "a value that sbatch refuses")
FULL_HOURS = frozenset((24, 36, 48, 72, 96, 100, 120, 168))  # usual time limits in hours
FEW_HOURS = 16  # a time limit up to this number, for a training, is usually meant in hours
FEW_MIB = 128  # an amount of memory up to this number is usually meant in gigabytes
LARGEST_ARRAY = 4000001  # the largest MaxArraySize that slurm.conf may have: slurm.conf(5)
_TRES_KINDS = (  # kinds of trackable resources, which Slurm calls TRES
    "bb",
    "billing",
    "cpu",
    "energy",
    "fs",
    "gres",
    "ic",
    "license",
    "mem",
    "node",
    "pages",
    "vmem",
)


@cache
def _examples() -> dict[str, str]:
    """Return an example of a value for each option and for each kind of value."""
    from sbatchgen.check.executables.word_table import rows  # a job without mistakes needs no examples

    return dict(rows(__file__, "value_examples.txt"))


def sbatch_refusal(name: str, value: str, slurm: str) -> tuple[str, str] | None:
    """Return the message and the fix for a value that sbatch refuses (SB126); None for other values."""
    from sbatchgen.check.sbatch.values import RefusedError, check_value

    try:
        check_value(name, value, slurm=slurm)
    except RefusedError as error:
        if not error.args:
            return None
        is_time = value_kinds().get(name) == "time" or name == "time"
        corrected_time = meant_time(value) if is_time else ""
        example = f"--{name}={corrected_time}" if corrected_time else _examples().get(name)
        fix = f"write it as in {_with_gpu_type(example, value)}" if example else "see sbatch(1)"
        fix = "write the value out: sbatch does not expand variables in directives" if "$" in value else fix
        return f"'{value}' is not a value for --{name}: sbatch says \"{error}\"", fix
    return None


def _with_gpu_type(example: str, value: str) -> str:
    """Return an example such as gpu:TYPE:2, with the type of GPU that the wrong value names for TYPE."""
    gpu_type = re.search(r"(?:^|gpu:|,)([A-Za-z]\w*):\d", value) or re.search(r"gpu:([A-Za-z]\w*)", value)
    return example.replace("TYPE", gpu_type[1]) if gpu_type and gpu_type[1] != "gpu" else example


@RULES.add("SB127", "warning", "a time limit that is read as minutes")
def _time_in_minutes(job: Job) -> Iterator[Hit]:
    for name in ("time", "time-min"):
        value = job.written_value(name)
        match = re.fullmatch(r"(\d{1,6})(?::(\d{1,2}))?", value)
        if match is None:
            continue
        minutes, seconds = int(match[1]), match[2]
        is_round = minutes % 5 == 0
        # 24 and 120:00 are likely meant in hours. 120 is likely meant in minutes, as two hours.
        means_hours = minutes in FULL_HOURS and not (seconds is None and is_round)
        may_mean_minutes = is_round or minutes > FEW_HOURS or not job.trains
        if may_mean_minutes and not means_hours and int(seconds or 0) == 0:
            continue  # 30 and 30:00 are half an hour
        if seconds is not None:
            what = f"--{name}={value} is {minutes} minutes and {seconds} seconds"
            fix = f"write {value}:00 for hours, or 00:{minutes:02}:{seconds}"
            yield Hit(job.at_value(name), what, fix)
        elif minutes > 1:
            what = f"--{name}={value} is {minutes} minutes"
            yield Hit(job.at_value(name), what, f"write {minutes}:00:00 for hours, or 00:{minutes:02}:00")


@RULES.add("SB138", "warning", "memory that is read as megabytes")
def _memory_in_megabytes(job: Job) -> Iterator[Hit]:
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        value = job.written_value(name)
        largest = FEW_MIB if name == "mem" else FEW_MIB // 4  # a CPU or GPU needs less than a node
        if re.fullmatch(r"0*[1-9]\d{0,2}", value) and int(value) <= largest:
            what = f"--{name}={value} is {value} megabytes"
            yield Hit(job.at_value(name), what, f"write {value}G for gigabytes, or {value}M")


def _is_named_by_letter(job: Job, name: str) -> bool:
    """Return whether the job is a script that names an option by its letter, such as -p."""
    from sbatchgen.check.script.script import JobScript

    return isinstance(job, JobScript) and not job.options[name].word.text.startswith("--")


@RULES.add("SB140", "error", "a value that slurmctld refuses")
def _refused_value(job: Job) -> Iterator[Hit]:
    for option, text in job.resources.options.items():
        kind = value_kinds().get(option, "")
        try:
            _check_value(kind, text, job)
        except ValueError as error:
            what = f"Slurm refuses --{option}={text[:80]}: {error}"
            yield Hit(option, what, _with_gpu_type(_examples()[f"kind {kind}"].format(option), text))
    partition = job.resources.options.get("partition", "")
    if partition.startswith("=") and not _is_named_by_letter(job, "partition"):  # SB111 reports -p=NAME
        what = f"--partition={partition} asks for a partition named '{partition}': Slurm refuses the job"
        name = partition.lstrip("=")  # of --partition==NAME
        yield Hit("partition", what, f"--partition={name}" if name else "name one, or remove the line")
    yield from _too_long_nodelist(job)
    yield from _privileged_options(job)
    refuses_empty_values = job.is_script and job.slurm < EMPTY_VALUES_SINCE
    if refuses_empty_values:
        for name in ("gres", "partition"):
            if job.resources.options.get(name) == "":
                yield Hit(name, f"--{name} has no value: Slurm {job.slurm} refuses the job", "remove it")
    batch, constraint = job.resources.options.get("batch", ""), job.resources.options.get("constraint", "")
    if batch and (lacking := {*re.findall(r"\w+", batch)} - {*re.findall(r"\w+", constraint)}):
        what = f"--batch={batch}: {min(lacking)} is not in --constraint, so Slurm refuses the job"
        yield Hit("batch", what, f"--constraint={batch}" if not constraint else "name it in --constraint too")
    time, time_min = job.resources.time, job.resources.time_min
    if time and time_min and time < time_min:
        what = f"--time-min={job.written_value('time-min')} is above --time={job.written_value('time')}: "
        what += "Slurm refuses it"
        yield Hit("time-min", what, "give --time the larger of both times")


def _privileged_options(job: Job) -> Iterator[Hit]:
    """Find options that Slurm only takes from root or an operator."""
    if job.is_script:
        for name in ("uid", "gid"):
            if name in job.resources.options:
                what = f"sbatch takes --{name} from root alone: it refuses the script of everybody else"
                yield Hit(name, what, "remove it")
    nice = job.resources.options.get("nice", "")
    if re.match(r"\s*-0*[1-9]", nice):
        what = f"--nice={nice}: Slurm takes a negative number from operators alone, and refuses the jobs of "
        what += "others"
        yield Hit("nice", what, "remove it")


def _too_long_nodelist(job: Job) -> Iterator[Hit]:
    """Find a --nodelist that names more nodes than --nodes asks for.

    Source: sbatch 22.05 and 26.05, and CHANGES of Slurm 23.02.
    """
    nodes, nodelist = job.resources.options.get("nodes", ""), job.resources.options.get("nodelist", "")
    if not nodes.replace("-", "").isdecimal() or {"/", "{", "$", "<"} & {*nodelist}:
        return  # a file of nodes, a function, a variable or a placeholder
    from sbatchgen.check.sbatch.hostlist import hosts

    nodes_max, count = job.resources.nodes_max or job.resources.nodes, len({*hosts(nodelist)})
    if not 0 < nodes_max < count:
        return
    what = f"--nodes={nodes}, but --nodelist names {count} nodes: "
    is_accepted = not job.is_release_assumed and job.slurm >= PART_OF_NODELIST_SINCE
    what += f"the job gets {nodes_max} of them" if is_accepted else "sbatch refuses the job"
    if job.is_release_assumed:  # the release of Slurm is not known
        what += f", or gives it {nodes_max} of them from Slurm {PART_OF_NODELIST_SINCE} on"
    yield Hit("nodes", what, f"--nodes={count}, or name fewer nodes", "info" if is_accepted else None)


PART_OF_NODELIST_SINCE = "23.02"  # the first release that uses only some nodes of a long --nodelist
EMPTY_VALUES_SINCE = "23.02"  # 22.05 refuses an empty --gres or --partition, and 26.05 takes it


def slurmctld_refuses(option: str, text: str, job: Job) -> bool:
    """Return whether slurmctld refuses the value of an option on any cluster."""
    try:
        _check_value(value_kinds().get(option, ""), text, job)
    except ValueError:
        return True
    return False


def time_limit(seconds: int) -> str:
    """Return a time limit as Slurm shows it."""
    return "UNLIMITED" if seconds >= UNLIMITED else str(Duration(seconds))


def _check_value(kind: str, text: str, job: Job) -> None:
    """Raise ValueError for a value that slurmctld refuses.

    `kind` is the kind of the option's values in the table of options, such as "array" or "hosts".
    """
    match kind:
        case "array":
            _check_array(text)
        case "dependency" | "features" | "licenses":
            from sbatchgen.check.sbatch import lists

            readers = {
                "dependency": lists.check_dependency,
                "features": lists.features,
                "licenses": lists.licenses,
            }
            readers[kind](text)
        case "hosts":
            _check_hosts(text, job)
        case "gres" | "gpus" if job.is_script:  # the keys of a resolved job were checked before
            from sbatchgen.check.sbatch.gres import as_gres, gres_items

            # The iteration raises ValueError at the first bad item.
            for _ in gres_items(as_gres(text) if kind == "gpus" else text, slurm=job.slurm):
                pass
        case "tres" if job.slurm >= "24.05":
            # cpu and gres of cpu=4,gres/gpu:2.
            kinds = [re.split("[/:=]", item, maxsplit=1)[0] for item in text.split(",") if {*item} & {*":="}]
            unknown = next((name for name in kinds if name not in _TRES_KINDS), None)
            if unknown is not None:
                hint = ": write gres/gpu" if unknown == "gpu" else ""
                raise ValueError(f"'{unknown}' is not a kind of resource{hint}")


def _check_array(text: str) -> None:
    """Raise ValueError for a value of --array that no cluster takes."""
    from sbatchgen.check.sbatch.array import indices

    ranges = indices(text)
    if ranges is None:
        raise ValueError("not a list of indices")
    if any(indexes[-1] >= LARGEST_ARRAY or indexes.step >= LARGEST_ARRAY for indexes in ranges):
        raise ValueError(f"no cluster has indices of {LARGEST_ARRAY} or more")


def _check_hosts(text: str, job: Job) -> None:
    """Raise ValueError for a malformed list of nodes, and for a node in both --nodelist and --exclude."""
    from sbatchgen.check.sbatch.hostlist import expand, hosts

    may_be_file_or_function = {"/", "{"} & {*text}
    if not may_be_file_or_function:
        expand(text)  # raises ValueError for a malformed list
    if text == job.resources.options.get("exclude"):
        named = hosts(job.option("nodelist"))
        sizes = (job.resources.ntasks, job.resources.nodes_min)
        may_use_part = any(size is not None and size < len(named) for size in sizes)
        if common := set() if may_use_part else {*hosts(text)} & {*named}:
            raise ValueError(f"{', '.join(sorted(common)[:3])} is in --nodelist too")
