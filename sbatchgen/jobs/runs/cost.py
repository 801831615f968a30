"""Makes the report of a run: what its jobs asked for, what they used, and what to ask for next time.

The figures come from Slurm's database and from the events "resources" that the training writes
(docs/reference/run-folder.md). A figure that is in neither is not known.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import counted, table, visible
from sbatchgen.base.units import Duration, Memory, as_requested, elapsed
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.runs.points import DONE
from sbatchgen.jobs.runs.program_states import ProgramState
from sbatchgen.jobs.runs.seen_jobs import state_in_words
from sbatchgen.jobs.runs.status import RunState
from sbatchgen.jobs.runs.usage import RunUsage, run_usage

UNKNOWN = "-"  # stands for an unknown figure in the table
TIME, MEMORY, CPUS, GPUS = "time", "memory of a node", "CPUs on average", "GPUs"  # names of the table's rows
# The advised amount divided by the amount in use. It is larger for CPUs, because their use is an average.
MARGIN_FACTOR, CPU_MARGIN_FACTOR = 1.25, 1.5
MIN_MARGIN_MIB = 1024  # the least margin of memory, for programs other than the training
# CPUs are busy if at least the first share of them is in use, and idle if less than the second share is.
BUSY_SHARE, IDLE_SHARE = 0.8, 0.5
# A wait for data is too long from the first share of the training's time on, and negligible below the second.
LONG_WAIT_SHARE, SHORT_WAIT_SHARE = 0.15, 0.05


@frozen(kw_only=True)
class Advice:
    """Advice on what to ask for next time; `option` and `value` are "" for advice without a number."""

    about: str  # the name of the table's row
    option: str  # the option of sbatch, such as "--mem"
    value: str  # the advised value of the option
    why: str


@frozen(kw_only=True)
class Report:
    """What a run asked for and used, with advice; None for a figure that is not known."""

    name: str  # the name of the run
    state: str  # the state of the run
    done: bool  # whether it has ended well, with nothing left to do
    source: str  # where times and allocations come from: "sacct", or "script" for the script and run folder
    jobs: int  # how many jobs it had
    starts: int | None  # how often its jobs were started
    nodes: int | None  # nodes of the newest job
    gpus: int | None  # GPUs of the newest job, in all
    cpus: int | None  # CPUs of the newest job, in all
    memory_mib: int | None  # memory of each node that the newest job had
    limit_s: int | None  # time limit of the newest job
    used_s: float | None  # how long its jobs ran, all together
    gpu_hours: float | None  # hours of all GPUs that were allocated
    cpu_hours: float | None  # hours of all CPUs that were allocated
    cpus_used: float | None  # CPUs that were in use, on average
    memory_bytes: int | None  # the most memory that was in use on a node
    gpu_utilization: float | None  # how long the GPUs were busy, in percent
    gpu_allocated_bytes: int | None  # the most memory that tensors took on the fullest GPU
    gpu_reserved_bytes: int | None  # the most memory that torch took on the fullest GPU
    gpu_bytes: int | None  # the memory that the fullest GPU has
    processes: int | None  # processes of the last training
    samples_per_s: float | None  # samples of the training, over all of its time
    waiting: float | None  # the share of the time that went into waiting for data
    programs: tuple[ProgramState, ...] = ()  # the programs of the last start, if the job has several
    advice: tuple[Advice, ...] = ()  # what to ask for next time
    problems: tuple[str, ...] = ()  # why something is not known


def make_report(state: RunState, environment: Mapping[str, str]) -> Report:
    """Return the report of a run so far."""
    usage = run_usage(state, environment)
    starts, trainings, newest = usage.starts, usage.trainings, usage.starts[-1]
    used_s, trained_s = [start.used_s for start in starts], sum(_figures(trainings, "seconds"))
    is_done = _is_done(state)
    memory_bytes = [
        *_figures(trainings, "memory_bytes"),
        *(start.memory_bytes for start in starts if start.memory_bytes),
    ]
    with_fullest_gpu = max(
        trainings, key=lambda training: training.get("gpu_reserved_bytes", 0.0), default={}
    )
    report = Report(
        name=state.run.name,
        state=DONE if is_done else state_in_words(state.last_job) if state.last_job else "no job",
        done=is_done and all(job.ended for job in state.jobs),
        source=usage.source,
        jobs=len(state.jobs),
        # If a time is not known, a start may be unknown too. A count with restarts is right even then.
        starts=usage.start_count if all(used_s) or usage.start_count > len(state.jobs) else None,
        **{name: getattr(newest, name) for name in ("nodes", "gpus", "cpus", "memory_mib", "limit_s")},
        used_s=sum(used_s) if all(used_s) else None,
        gpu_hours=_hours([(start.gpus, start.used_s) for start in starts]),
        cpu_hours=_hours([(start.cpus, start.used_s) for start in starts]),
        cpus_used=_cpus_used(usage),
        memory_bytes=_as_int(max(memory_bytes, default=None)),
        gpu_utilization=_gpu_utilization(trainings),
        gpu_allocated_bytes=_as_int(with_fullest_gpu.get("gpu_allocated_bytes")),
        gpu_reserved_bytes=_as_int(with_fullest_gpu.get("gpu_reserved_bytes")),
        gpu_bytes=_as_int(with_fullest_gpu.get("gpu_bytes")),
        processes=_as_int(trainings[-1].get("processes")) if trainings else None,
        samples_per_s=sum(_figures(trainings, "samples")) / trained_s if trained_s else None,
        waiting=min(sum(_figures(trainings, "data_s")) / trained_s, 1.0) if trained_s else None,
        programs=tuple(state.programs),
        problems=tuple(usage.problems),
    )
    ran_out_of_memory = any(job.state == "OUT_OF_MEMORY" for job in state.jobs)
    return replace(report, advice=tuple(_advice(report, usage.request, ran_out_of_memory=ran_out_of_memory)))


def _is_done(state: RunState) -> bool:
    """Return whether the newest start of a run, or each point of its sweep, has ended well."""
    if state.sweep:
        return [*state.sweep.numbers_by_state] == [DONE]
    job_state = state.last_job.state if state.last_job else ""
    end = (state.progress and state.progress.state) or job_state
    return end in (DONE, "COMPLETED")


def _cpus_used(usage: RunUsage) -> float | None:
    """Return how many CPUs were in use on average, as Slurm or the trainer measured; None if neither did.

    Each of them misses some processes, so the greater number is nearer to the truth.
    """
    by_slurm = _rate([(start.cpu_s, start.used_s) for start in usage.starts if start.cpu_s])
    by_trainer = _rate(
        [(training["cpu_s"], training["seconds"]) for training in usage.trainings if "cpu_s" in training]
    )
    return max((cpus for cpus in (by_slurm, by_trainer) if cpus is not None), default=None)


def _gpu_utilization(trainings: Sequence[Mapping[str, float]]) -> float | None:
    """Return how long the GPUs were busy, in percent of the time of all trainings; None if not measured."""
    measured = [training for training in trainings if "gpu_utilization" in training]
    times_s = [training["seconds"] for training in measured]
    percents = [training["gpu_utilization"] for training in measured]
    return _rate([(percent * time_s, time_s) for percent, time_s in zip(percents, times_s, strict=True)])


def _figures(trainings: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """Return the values of a field in the events "resources" that have the field."""
    return [training[name] for training in trainings if name in training]


def _hours(starts: Sequence[tuple[int | None, int]]) -> float | None:
    """Return the hours of all GPUs or CPUs, from pairs of a count and seconds; None if one is not known."""
    if any(count is None or not seconds for count, seconds in starts):
        return None
    return sum((count or 0) * seconds for count, seconds in starts) / 3600


def _rate(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the sum of the amounts per second, from pairs (amount, seconds); None without pairs."""
    return sum(amount for amount, _ in pairs) / sum(time for _, time in pairs) if pairs else None


def _as_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _advice(report: Report, request: ResourceRequest | None, *, ran_out_of_memory: bool) -> Iterator[Advice]:
    """Yield advice on each resource of the next request for which there are enough figures."""
    # There is no advice on the time of an array: all tasks together have taken it, and each has the limit.
    if report.done and report.used_s and report.limit_s and not (request and "array" in request):
        step_s = 300 if report.used_s < 3600 else 1800  # the advised time is a multiple of it
        advised = Duration(math.ceil(report.used_s * MARGIN_FACTOR / step_s) * step_s)
        why = "a quarter more than it took in all"
        yield Advice(about=TIME, option="--time", value=str(advised), why=why)
    if report.done and report.memory_bytes and report.memory_mib and not ran_out_of_memory:
        yield from _memory_advice(request, report.memory_bytes / (1 << 20), report.memory_mib)
    if report.cpus_used is not None and report.cpus and report.waiting is not None:
        yield from _cpu_advice(report, request, report.cpus_used, report.cpus, report.waiting)


def _memory_advice(request: ResourceRequest | None, used_mib: float, had_mib: int) -> Iterator[Advice]:
    """Yield advice on the script's option for memory: --mem, --mem-per-cpu or --mem-per-gpu."""
    option, parts = "mem", 1
    if request and "mem-per-cpu" in request:
        option, parts = "mem-per-cpu", request.cpus_on_node
    elif request and "mem-per-gpu" in request:
        option, parts = "mem-per-gpu", request.gpu_count
    needed_mib = max(used_mib * MARGIN_FACTOR, used_mib + MIN_MARGIN_MIB) / max(parts, 1)
    unit_mib = 1024 if parts == 1 else 256  # the advised value is a multiple of it
    advised_mib = math.ceil(needed_mib / unit_mib) * unit_mib
    # Never advise more: the measured use may exceed the allocation, because shared pages count once for each
    # process.
    if advised_mib * parts < had_mib:
        why = "a quarter more than the most that was in use, at least 1G more"
        yield Advice(about=MEMORY, option=f"--{option}", value=str(Memory(advised_mib)), why=why)


def _cpu_advice(
    report: Report, request: ResourceRequest | None, used_cpus: float, had_cpus: int, waiting_share: float
) -> Iterator[Advice]:
    """Yield advice on CPUs: more if the training waited for data, fewer if most of them were idle."""
    if waiting_share >= LONG_WAIT_SHARE:
        why = "it waited for data and CPUs were free: most likely more --workers help, or faster storage"
        if used_cpus >= BUSY_SHARE * had_cpus:
            why = "it waited for data and the CPUs were busy: most likely more CPUs and --workers help"
        yield Advice(about=CPUS, option="", value="", why=why)
        return
    were_idle = used_cpus < IDLE_SHARE * had_cpus
    if waiting_share < SHORT_WAIT_SHARE and were_idle and request and "exclusive" not in request:
        # The job had `per_part` CPUs for each of its `parts`, which are tasks or GPUs.
        option, per_part = "--cpus-per-task", request.cpus_per_task or 1
        parts = request.tasks_per_node * request.nodes
        if request.cpus_per_gpu and report.gpus:
            option, per_part, parts = "--cpus-per-gpu", request.cpus_per_gpu, report.gpus
        needed_cpus = max(used_cpus * CPU_MARGIN_FACTOR, report.processes or report.gpus or 1)
        advised_per_part = math.ceil(needed_cpus / parts)
        if advised_per_part < per_part:
            why = "half more than were in use on average, at least one for each process"
            why += "; it hardly waited for data"
            yield Advice(about=CPUS, option=option, value=str(advised_per_part), why=why)


def in_short(report: Report) -> str:
    """Return a line with the time, memory, CPUs and GPUs that a run used; "" if nothing is known."""
    return ", ".join(
        f"{name} {used}" + (f" of {had}" if had != UNKNOWN and name != GPUS else "")
        for name, had, used, _ in _rows(report)
        if name in (TIME, MEMORY, CPUS, GPUS) and used != UNKNOWN
    )


def as_text(report: Report) -> str:
    """Return a page: the cost, a table, reasons for the advice, and ways to get the unknown figures."""
    cost = [counted(count, noun) for count, noun in ((report.jobs, "job"), (report.starts, "start")) if count]
    hours = [(report.gpu_hours, "GPU-hours"), (report.cpu_hours, "CPU-hours")]
    cost += [f"{count:,.2f} {noun}" for count, noun in hours if count]
    heading = ("", "ALLOCATED" if report.source == "sacct" else "ASKED FOR", "USED", "NEXT TIME")
    paragraphs = [
        [f"{report.name}: {report.state}; {', '.join(cost)}"],
        [table([heading, *_rows(report)]).removesuffix("\n")],
        [f"program {program.name}: {program.state} {program.why}".rstrip() for program in report.programs],
        [f"{advice.about}: {advice.why}" for advice in report.advice],
        [f"{UNKNOWN} {text}" for text in _hints_for_unknown(report)],
    ]
    return visible("\n\n".join("\n".join(lines) for lines in paragraphs if lines)) + "\n"


class _Row(NamedTuple):
    """A row of the table."""

    resource: str
    had: str  # how much of it the run had
    used: str  # how much of it the run used
    next_time: str  # the option for the next request


def _rows(report: Report) -> Iterator[_Row]:
    """Yield the rows of the table; a row without figures is only shown for time, memory, CPUs and GPUs."""
    has_shards = not report.gpus and report.gpu_utilization is not None
    had_gpus = "shards" if has_shards else _figure_as_text(report.gpus)
    next_time = {advice.about: f"{advice.option} {advice.value}" for advice in report.advice if advice.option}
    for name, had, used in (
        (TIME, _figure_as_text(report.limit_s, elapsed), _figure_as_text(report.used_s, elapsed)),
        (MEMORY, _size_as_text(report.memory_mib, 20), _size_as_text(report.memory_bytes)),
        (CPUS, _figure_as_text(report.cpus), _figure_as_text(report.cpus_used, "{:.1f}".format)),
        (GPUS, had_gpus, _figure_as_text(report.gpu_utilization, "{:.0f}% busy".format)),
        ("GPU memory", _size_as_text(report.gpu_bytes), _size_as_text(report.gpu_reserved_bytes)),
        ("samples/s", UNKNOWN, _figure_as_text(report.samples_per_s)),
        ("waiting for data", UNKNOWN, _figure_as_text(report.waiting, "{:.0%} of the time".format)),
    ):
        if name in (TIME, MEMORY, CPUS) or used != UNKNOWN or (name == GPUS and report.gpus):
            yield _Row(name, had, used, next_time.get(name, ""))


def _hints_for_unknown(report: Report) -> Iterator[str]:
    """Yield a sentence about each unknown figure, which says how to get the figure."""
    if report.used_s is None:
        yield "time: sacct does not have it; if sacct lists no job of yours, this Slurm keeps no accounting"
    if report.cpus_used is None or report.memory_bytes is None:
        yield "CPUs and memory: sacct has them after the job, the bundled trainer after an epoch"
    if report.gpus and report.gpu_utilization is None:
        shows = f"sbatchgen exec {report.name} -- nvidia-smi (AMD: rocm-smi) shows how busy they are"
        if report.processes:
            shows = "the bundled trainer shows how busy they are with nvidia-ml-py, for AMD with amdsmi"
        yield f"GPUs: {shows}"


def _figure_as_text(figure: float | None, in_words: Callable[[float], str] = "{:.0f}".format) -> str:
    """Return a figure in words, or UNKNOWN."""
    return UNKNOWN if figure is None else in_words(figure)


def _size_as_text(amount: int | None, power: int = 0) -> str:
    """Return an amount, in units of 2**power bytes, in the form in which people request memory: "64G"."""
    return UNKNOWN if amount is None else as_requested(amount << power >> 20)
