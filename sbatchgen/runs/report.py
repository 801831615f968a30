"""What a run has cost: what its jobs asked for, what they used of it, and what to ask for next time.

Slurm's database tells of jobs what it has seen; of a training more is in its own events "resources"
(docs/reference/run-folder.md). What neither tells stays out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from sbatchgen.plan.resources import Resources
from sbatchgen.quoting import visible
from sbatchgen.runs import usage
from sbatchgen.runs.points import DONE
from sbatchgen.runs.screen import duration
from sbatchgen.runs.status import RunState, words
from sbatchgen.runs.usage import RunUsage
from sbatchgen.slurm.accounting import JobUsage
from sbatchgen.table import table
from sbatchgen.units import Duration, Memory

SCHEMA = 1
UNKNOWN = "-"
TIME, MEMORY, CPUS, GPUS = "time", "memory of a node", "CPUs on average", "GPUs"  # names of figures
MARGIN, CPU_MARGIN = 1.25, 1.5  # of what is asked for next time over what was used; CPUs were so on average
LITTLE_MIB = 1024  # the least margin of memory: of programs beside the training
BUSY, IDLE = 0.8, 0.5  # shares of the CPUs
WAITS, SELDOM = 0.15, 0.05  # shares of the time that go into waiting for data


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to ask for next time; `option` and `value` are "" where that is no number."""

    about: str
    option: str
    value: str
    why: str


class Row(NamedTuple):
    """A line of the table."""

    name: str
    had: str
    used: str
    next_time: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run has cost; None for what is not known.

    Attributes:
        name, state: Of the run.
        done: Whether it has ended well, with nothing left to do.
        source: Where the times of its jobs and what was allocated are from: "sacct", or "script".
        jobs, starts: How many.
        nodes, gpus, cpus: What the newest job had in all.
        memory_mib, limit_s: What it had of each node, and its time limit.
        used_s: How long its jobs ran, all together.
        gpu_hours, cpu_hours: What was allocated, over the time that it was.
        cpus_used: CPUs that were in use, on average.
        memory_bytes: The most that was in use on a node.
        gpu_utilization: How long the GPUs were busy, in percent.
        gpu_allocated_bytes, gpu_reserved_bytes: The most that tensors took of the fullest GPU, and torch.
        gpu_bytes: The memory of that GPU.
        processes: That trained last.
        samples_per_s: Samples of the training, over all of its time.
        waiting: The share of the time that went into waiting for data.
        advice: What to ask for next time.
        problems: Why something is not known.
    """

    name: str
    state: str
    done: bool
    source: str
    jobs: int
    starts: int | None
    nodes: int | None
    gpus: int | None
    cpus: int | None
    memory_mib: int | None
    limit_s: int | None
    used_s: float | None
    gpu_hours: float | None
    cpu_hours: float | None
    cpus_used: float | None
    memory_bytes: int | None
    gpu_utilization: float | None
    gpu_allocated_bytes: int | None
    gpu_reserved_bytes: int | None
    gpu_bytes: int | None
    processes: int | None
    samples_per_s: float | None
    waiting: float | None
    advice: tuple[Advice, ...] = ()
    problems: tuple[str, ...] = ()


def look(one: RunState, environment: Mapping[str, str]) -> Report:
    """What a run has cost so far."""
    known = usage.look(one, environment)
    found = _put_together(one, known)
    killed = any(job.state == "OUT_OF_MEMORY" for job in one.jobs)
    return replace(found, advice=tuple(_advice(found, known.asked, killed=killed)))


def _put_together(one: RunState, known: RunUsage) -> Report:
    """The figures of all starts."""
    starts, told = known.starts, known.told
    newest, used, seconds = starts[-1], [start.used_s for start in starts], sum(_all(told, "seconds"))
    if one.sweep:
        done = [*one.sweep.counts] == [DONE]
    else:
        state = one.progress.state if one.progress else one.last.state if one.last else ""
        done = state in (DONE, "COMPLETED")
    memory = [*_all(told, "memory_bytes"), *(start.memory_bytes for start in starts if start.memory_bytes)]
    fullest = max(told, key=lambda facts: facts.get("gpu_reserved_bytes", 0.0), default={})
    return Report(
        name=one.run.name,
        state=DONE if done else words(one.last) if one.last else "no job",
        done=done and all(job.ended for job in one.jobs),
        source=known.source,
        jobs=len(one.jobs),
        starts=len(starts) if all(used) else None,
        nodes=newest.nodes,
        gpus=newest.gpus,
        cpus=newest.cpus,
        memory_mib=newest.memory_mib,
        limit_s=newest.limit_s,
        used_s=sum(used) if all(used) else None,
        gpu_hours=_hours(starts, [start.gpus for start in starts]),
        cpu_hours=_hours(starts, [start.cpus for start in starts]),
        cpus_used=_cpus_used(starts, told),
        memory_bytes=_whole(max(memory, default=None)),
        gpu_utilization=_mean(told, "gpu_utilization"),
        gpu_allocated_bytes=_whole(fullest.get("gpu_allocated_bytes")),
        gpu_reserved_bytes=_whole(fullest.get("gpu_reserved_bytes")),
        gpu_bytes=_whole(fullest.get("gpu_bytes")),
        processes=_whole(told[-1].get("processes")) if told else None,
        samples_per_s=sum(_all(told, "samples")) / seconds if seconds else None,
        waiting=min(sum(_all(told, "data_s")) / seconds, 1.0) if seconds else None,
        problems=tuple(known.problems),
    )


def _all(told: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """A figure of all starts that tell it."""
    return [facts[name] for facts in told if name in facts]


def _hours(starts: Sequence[JobUsage], counts: Sequence[int | None]) -> float | None:
    """Hours of GPUs or CPUs over all starts, each with its count; None if a time or a count is not known."""
    if not all(start.used_s for start in starts) or None in counts:
        return None
    return sum((count or 0) * start.used_s for start, count in zip(starts, counts, strict=True)) / 3600


def _cpus_used(starts: Sequence[JobUsage], told: Sequence[Mapping[str, float]]) -> float | None:
    """CPUs that were in use on average; both sources miss processes, so the greater is nearer."""
    of_slurm = [(float(start.cpu_s), float(start.used_s)) for start in starts if start.cpu_s]
    of_trainer = [(facts["cpu_s"], facts["seconds"]) for facts in told if "cpu_s" in facts]
    means = [_divided(pairs) for pairs in (of_slurm, of_trainer) if pairs]
    return max(means, default=None)


def _divided(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(amount for amount, _ in pairs) / sum(seconds for _, seconds in pairs)


def _mean(told: Sequence[Mapping[str, float]], name: str) -> float | None:
    """The mean of a figure over the time of all starts that tell it."""
    pairs = [(facts[name] * facts["seconds"], facts["seconds"]) for facts in told if name in facts]
    return _divided(pairs) if pairs else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _advice(found: Report, asked: Resources | None, *, killed: bool) -> Iterator[Advice]:
    """What to ask for next time, as far as the figures carry that."""
    if found.done and found.used_s and found.limit_s and not (asked and "array" in asked):
        step = 300 if found.used_s < 3600 else 1800
        needed = math.ceil(found.used_s * MARGIN / step) * step
        yield Advice(
            about=TIME,
            option="--time",
            value=str(Duration(needed)),
            why="a quarter more than it took in all",
        )
    if found.done and found.memory_bytes and found.memory_mib and not killed:
        yield from _memory(asked, found.memory_bytes / (1 << 20), found.memory_mib)
    if found.cpus_used is not None and found.cpus and found.waiting is not None:
        yield from _cpus(found, asked, found.cpus_used, found.cpus, found.waiting)


def _memory(asked: Resources | None, used_mib: float, had_mib: int) -> Iterator[Advice]:
    option, parts = "mem", 1
    if asked and "mem-per-cpu" in asked:
        option, parts = "mem-per-cpu", asked.cpus_on_node
    elif asked and "mem-per-gpu" in asked:
        option, parts = "mem-per-gpu", asked.gpu_count
    needed = max(used_mib * MARGIN, used_mib + LITTLE_MIB) / max(parts, 1)
    whole = 1024 if parts == 1 else 256
    value = math.ceil(needed / whole) * whole
    if value * parts >= had_mib:  # and pages that processes share may be counted for each of them
        return
    why = "a quarter more than the most that was in use, at least 1G more"
    yield Advice(about=MEMORY, option=f"--{option}", value=str(Memory(value)), why=why)


def _cpus(found: Report, asked: Resources | None, used: float, had: int, waiting: float) -> Iterator[Advice]:
    if waiting >= WAITS and used >= BUSY * had:
        why = "it waited for data and the CPUs were busy: most likely more CPUs and --workers help"
        yield Advice(about=CPUS, option="", value="", why=why)
    elif waiting >= WAITS:
        why = "it waited for data and CPUs were free: most likely more --workers help, or faster storage"
        yield Advice(about=CPUS, option="", value="", why=why)
    elif waiting < SELDOM and used < IDLE * had and asked and "exclusive" not in asked:
        yield from _fewer_cpus(found, asked, used)


def _fewer_cpus(found: Report, asked: Resources, used: float) -> Iterator[Advice]:
    if asked.cpus_per_gpu and found.gpus:
        option, had, parts = "--cpus-per-gpu", asked.cpus_per_gpu, found.gpus
    else:
        option, had, parts = "--cpus-per-task", asked.cpus_per_task or 1, asked.tasks_per_node * asked.nodes
    enough = math.ceil(max(used * CPU_MARGIN, found.processes or found.gpus or 1) / parts)
    if enough < had:
        why = (
            "half more than were in use on average, at least one for each process; it hardly waited for data"
        )
        yield Advice(about=CPUS, option=option, value=str(enough), why=why)


def in_short(found: Report) -> str:
    """What a run has used of what it had, in a line; "" if nothing is known."""
    rows = [row for row in _rows(found) if row.name in (TIME, MEMORY, CPUS, GPUS) and row.used != UNKNOWN]
    of = (f" of {row.had}" if row.had != UNKNOWN and row.name != GPUS else "" for row in rows)
    return ", ".join(f"{row.name} {row.used}{more}" for row, more in zip(rows, of, strict=True))


def as_text(found: Report) -> str:
    """A page: what it cost, a table, why it gives advice, and how to get what is not known."""
    counts = [(found.jobs, "job"), (found.starts, "start")]
    cost = [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count]
    hours = [(found.gpu_hours, "GPU-hours"), (found.cpu_hours, "CPU-hours")]
    cost += [f"{count:,.2f} {noun}" for count, noun in hours if count]
    had = "ALLOCATED" if found.source == "sacct" else "ASKED FOR"
    rows = [Row("", had, "USED", "NEXT TIME"), *_rows(found)]
    parts = [
        [f"{found.name}: {found.state}; {', '.join(cost)}"],
        [table(rows).removesuffix("\n")],
        [f"{advice.about}: {advice.why}" for advice in found.advice],
        [f"{UNKNOWN} {text}" for text in _missing(found)],
    ]
    return visible("\n\n".join("\n".join(part) for part in parts if part)) + "\n"


def as_json(found: Report) -> str:
    """The same for programs; an incompatible change raises SCHEMA."""
    return json.dumps({"schema": SCHEMA, **asdict(found)}, indent=2) + "\n"


def _rows(found: Report) -> Iterator[Row]:
    """The lines of the table."""
    next_time = {one.about: f"{one.option} {one.value}" for one in found.advice if one.option}
    busy = UNKNOWN if found.gpu_utilization is None else f"{found.gpu_utilization:.0f}% busy"
    waits = UNKNOWN if found.waiting is None else f"{found.waiting:.0%} of the time"
    figures = {
        TIME: (_time(found.limit_s), _time(found.used_s)),
        MEMORY: (_size(found.memory_mib, 20), _size(found.memory_bytes)),
        CPUS: (_count(found.cpus, 0), _count(found.cpus_used, 1)),
        GPUS: (_count(found.gpus, 0), busy),
        "GPU memory": (_size(found.gpu_bytes), _size(found.gpu_reserved_bytes)),
        "samples/s": (UNKNOWN, _count(found.samples_per_s, 0)),
        "waiting for data": (UNKNOWN, waits),
    }
    for name, (had, used) in figures.items():
        if name in (TIME, MEMORY, CPUS) or used != UNKNOWN or (name == GPUS and found.gpus):
            yield Row(name, had, used, next_time.get(name, ""))


def _missing(found: Report) -> Iterator[str]:
    """How to get what is not known."""
    if found.used_s is None:
        yield "time: sacct has it where Slurm keeps accounting"
    if found.cpus_used is None or found.memory_bytes is None:
        yield "CPUs and memory: sacct has them after the job, the bundled trainer after an epoch"
    if found.gpus and found.gpu_utilization is None:
        yield (
            "GPUs: the bundled trainer tells how busy they are where nvidia-ml-py is installed beside torch"
            if found.processes
            else f"GPUs: sbatchgen exec {found.name} -- nvidia-smi shows how busy they are while it runs"
        )


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else duration(round(seconds))


def _count(things: float | None, digits: int) -> str:
    return UNKNOWN if things is None else f"{things:.{digits}f}"


def _size(amount: int | None, power: int = 0) -> str:
    """An amount of 2**power bytes in the unit that people ask for memory in."""
    if amount is None:
        return UNKNOWN
    mib = amount << power >> 20
    return f"{mib}M" if mib < 1024 else f"{mib / 1024:.1f}".removesuffix(".0") + "G"
