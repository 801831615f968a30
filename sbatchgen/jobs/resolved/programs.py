"""The programs of a job: the share of the job's nodes that each gets, and how they find each other."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sbatchgen.base.texts import ProgramName
from sbatchgen.base.units import Count, Resume, Text
from sbatchgen.jobs.inputs.document import Document
from sbatchgen.jobs.inputs.job_file import KEYS_OF_PROGRAMS, Ready
from sbatchgen.jobs.inputs.layers import Layer, Level
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.modes import COMMAND
from sbatchgen.jobs.resolved.job_share import DEFAULT_CPUS
from sbatchgen.jobs.resolved.program_faults import refuse_faults
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.jobs.resolved.resolved_job import TOGETHER, JobProgram, ResolvedJob, Share
from sbatchgen.jobs.resolved.written_programs import (
    FACT_PATTERN,
    WrittenProgram,
    all_nodes,
    main_program,
    texts_of,
    written_programs,
)

# Variables in the command that probes whether a program is ready: the fact -> the name of its variable.
_PROBE_VARIABLES = {"host": "host", "port": "port"}


def resolve_programs(
    profile: Document[Profile],
    layers: Sequence[Layer],
    *,
    mode_name: str,
    name: str,
    chosen: str = "",
) -> ResolvedJob:
    """Return a job of several programs with every value decided, also those of its programs.

    The job is its main program with all nodes, so the main program's settings decide how the job stops,
    resumes and is requeued. `mode_name` is the mode of a program that names no mode. Raises CommandLineError:
    the programs contradict each other.
    """
    programs = written_programs(layers)
    refuse_faults(programs, layers)

    def resolved(program: WrittenProgram, *more: Layer) -> ResolvedJob:
        mode = COMMAND.name if program.spec.command else program.spec.mode or mode_name
        return resolve(profile, [*layers, *more], mode_name=mode, name=name, chosen=chosen)

    programs, jobs = _resolved_alone(programs, resolved)
    shares = [_share(program, jobs[program.name]) for program in programs]
    main = main_program(programs)
    whole = resolved(
        main,
        _layer(main, programs, whole=True, main=True),
        _allocation(shares),
        *_requeue_layers(main, layers),
    )
    uses_gpus = any(share.gpus for share in shares)
    if uses_gpus and (option := _gpus_option(whole)):
        shares = [replace(share, gpus_option=option) for share in shares]
    job_programs = tuple(
        _job_program(programs, program, jobs[program.name], share)
        for program, share in zip(programs, shares, strict=True)
    )
    return replace(whole, programs=job_programs, gpus_per_node=whole.gpus_per_node if uses_gpus else 0)


def _resolved_alone(
    programs: Sequence[WrittenProgram], resolved: Callable[..., ResolvedJob]
) -> tuple[list[WrittenProgram], dict[str, ResolvedJob]]:
    """Return the programs with their GPUs and CPUs, and, by name, each program as a job of its own."""
    programs, main = [*programs], main_program(programs)
    if main.shared:
        alone = resolved(main, _layer(main, programs, whole=False, main=True))
        programs = [
            _with_remaining_share(program, alone, programs) if program is main else program
            for program in programs
        ]
    jobs: dict[str, ResolvedJob] = {}
    # programs beside others come last, because they get the GPUs of those
    for index in sorted(range(len(programs)), key=lambda index: bool(programs[index].spec.beside)):
        program = programs[index]
        if program.on_node > 1 and program.spec.nodes:
            alone = resolved(program, _layer(program, programs, whole=False, main=False))
            program = _with_replica_share(program, alone)
        elif program.spec.beside:
            program = _with_shared_gpus(program, jobs[program.spec.beside])
        programs[index] = program
        layer = _layer(program, programs, whole=False, main=program.name == main.name)
        jobs[program.name] = resolved(program, layer)
    return programs, jobs


def _requeue_layers(main: WrittenProgram, layers: Sequence[Layer]) -> Iterator[Layer]:
    """Yield a layer with --requeue if the main program is a command and the job has `requeue_on_node_fail`.

    A command is never asked to stop and resume, so it would not be requeued. After a failed node it may start
    again.
    """
    written: dict[str, Any] = {}
    for layer in layers:
        written |= layer.values
    if main.spec.command and written.get("requeue_on_node_fail") and "options.requeue" not in written:
        values = {"options.requeue": True, "options.open_mode": Text("append")}
        yield Layer(Level.JOB, values, dict.fromkeys(values, "requeue_on_node_fail"))


def _share(program: WrittenProgram, job: ResolvedJob) -> Share:
    """Return a program's share of the nodes; `job` is the program as a job of its own."""
    return Share(
        name=program.name,
        main=program.spec.main,
        first=program.first,
        nodes=program.nodes,
        shared=program.shared,
        tasks=job.nproc_per_node if job.launcher == "srun" else 1,
        gpus=job.gpus_per_node,
        cpus=program.spec.cpus or _cpus(job),
        gpus_option="",
        preset=program.spec.preset or "",
        replicas=int(program.spec.replicas or 0),
        on_node=program.on_node,
        beside=program.spec.beside or "",
    )


def _gpus_option(whole: ResolvedJob) -> Any:
    """Return the option with which Slurm steps ask for GPUs; "" if the job has no option for GPUs."""
    options = whole.options
    if "gpu" in (options.gres or ""):
        return "gres"
    return "gpus-per-node" if any((options.gpus_per_node, options.gpus, options.gpus_per_task)) else ""


def _with_replica_share(program: WrittenProgram, alone: ResolvedJob) -> WrittenProgram:
    """Return a program whose replicas share nodes, with the GPUs and CPUs of each replica.

    `alone` is the program as a job of its own.
    """
    gpus, cpus, known = program.spec.gpus, program.spec.cpus, alone.partition.cpus_per_node
    if gpus is None:  # at least one for each replica; a rule reports a node with fewer GPUs
        gpus = max(1, alone.gpus_per_node // program.on_node) if alone.gpus_per_node else 0
    if cpus is None and _cpus(alone):
        cpus = Count(max(1, (known or _cpus(alone)) // program.on_node))
    return program._replace(spec=replace(program.spec, gpus=gpus, cpus=cpus))


def _with_shared_gpus(program: WrittenProgram, other: ResolvedJob) -> WrittenProgram:
    """Return a program that runs on the nodes of another program, with the GPUs of that program."""
    gpus = other.gpus_per_node if program.spec.gpus is None else program.spec.gpus
    return program._replace(spec=replace(program.spec, gpus=gpus, cpus=program.spec.cpus or Count(1)))


def _cpus(job: ResolvedJob) -> int:
    """Return the CPUs of a job on each node; 0 if their number is not known."""
    return (job.options.cpus_per_task or 0) * (job.options.ntasks_per_node or 1)


def _with_remaining_share(
    main: WrittenProgram, alone: ResolvedJob, programs: Sequence[WrittenProgram]
) -> WrittenProgram:
    """Return the main program; if it names no GPUs or CPUs, it gets the rest of its node's.

    `alone` is the main program as a job of its own.
    """
    others = [program.spec for program in programs if program.shared and program.name != main.name]
    gpus, cpus = main.spec.gpus, main.spec.cpus
    taken = sum(spec.gpus or 0 for spec in others)
    if gpus is None and taken and not alone.mode.gpus:
        gpus = max(0, alone.gpus_per_node - taken)
    if known := alone.partition.cpus_per_node:
        remaining = known - sum(spec.cpus or DEFAULT_CPUS for spec in others)
        cpus = cpus or (Count(max(1, min(_cpus(alone), remaining))) if _cpus(alone) else None)
    return main._replace(spec=replace(main.spec, gpus=gpus, cpus=cpus))


def _layer(program: WrittenProgram, programs: Sequence[WrittenProgram], *, whole: bool, main: bool) -> Layer:
    """Return the settings of a program as a layer over the job's layers.

    If `whole`, the layer is for the whole job: it has neither the program's variables nor its share.
    """
    spec = program.spec
    values: dict[str, Any] = {}
    for name in KEYS_OF_PROGRAMS:
        value = getattr(spec, name)
        if value is None or name == "mode" or (whole and name == "env"):
            continue
        if isinstance(value, Mapping):
            for key, text in value.items():
                values[f"{name}.{key}"] = text and _filled(text, program, programs, "${{{}}}")
        elif isinstance(value, tuple):
            values[name] = tuple(_filled(text, program, programs) for text in value)
        else:
            values[name] = _filled(value, program, programs) if isinstance(value, str) else value
    if spec.command:
        values["args"] = tuple(_filled(text, program, programs) for text in spec.command)
    if not whole:  # the program's share as options of a job
        values["options.nodes"] = Count(program.nodes)
        gpus = 0 if spec.gpus is None and program.shared and not (spec.main or spec.nodes) else spec.gpus
        values |= {} if gpus is None else {"options.gpus_per_node": Text(gpus)}
        values |= {"options.cpus_per_task": spec.cpus} if spec.cpus and not spec.nproc_per_node else {}
    if not main or spec.command:  # only a main trainer reads the file with which a script asks it to stop
        values["resume"] = Resume("off")
    return Layer(Level.JOB, values, {})


def _filled(
    text: str,
    program: WrittenProgram,
    programs: Sequence[WrittenProgram],
    variable: str = "{{env:{}}}",
    own: Mapping[str, str] | None = None,
) -> str:
    """Return a text with variables in place of facts, such as {port} and {server.host}.

    `variable` is the form of a variable, with {} for its name. `own` has the names of variables for facts of
    the program itself, if they differ.
    """

    def replacement(match: re.Match[str]) -> str:
        name, fact = ProgramName(match[1] or program.name), match[2]
        if fact == "nodes":
            return str(next(all_nodes(other) for other in programs if other.name == name))
        if own and name == program.name and fact in own:
            return variable.format(own[fact])
        if not match[3]:
            return variable.format(f"{name.variable}_{fact.upper()}")
        # an argument that is nothing but a list becomes as many arguments as the list has words
        is_argument = match[0] == text and variable.startswith("{{env")
        return variable.format(f"{name.variable}_{fact.upper()}_{'LIST[@]' if is_argument else 'WORDS'}")

    return type(text)(FACT_PATTERN.sub(replacement, text))


def _job_program(
    programs: Sequence[WrittenProgram], program: WrittenProgram, job: ResolvedJob, share: Share
) -> JobProgram:
    """Return a program with its job and share; variables replace the facts in the signs that it is ready."""
    written = program.spec.ready
    signs: dict[str, Any] = {
        name: _filled(getattr(written, name), program, programs, own=_PROBE_VARIABLES)
        for name in written.signs
    }
    hosts = written.hosts if not share.preset else "first"  # a preset runs its command on the first node
    ready = Ready(**signs, within=written.within, hosts=hosts)
    lists = tuple(row for row in _named_lists(programs) if row[0] == program.name)
    return JobProgram(job=replace(job, share=share), share=share, spec=program.spec, ready=ready, lists=lists)


def _named_lists(programs: Sequence[WrittenProgram]) -> list[tuple[str, str, str]]:
    """Return program, fact and suffix of each list that texts name, such as ("server", "urls", "[@]").

    The suffix is "[@]" if each word of the list becomes an argument, else "".
    """
    named = {
        (match[1] or program.name, match[2], match[3] or "")
        for program in programs
        for text in texts_of(program.spec)
        for match in FACT_PATTERN.finditer(text)
        if match[2] == "urls" or match[3]
    }
    return sorted(named)


def _allocation(shares: Sequence[Share]) -> Layer:
    """Return the layer with the options of the whole job: per node, the most that the programs use on one."""
    nodes = max(share.first + share.all_nodes for share in shares)
    gpus, cpus = [0] * nodes, [0] * nodes
    for share in shares:
        for node in range(share.first, share.first + share.all_nodes):
            gpus[node] += 0 if share.beside else share.gpus * share.on_node
            cpus[node] += 0 if share.beside else share.cpus * share.on_node
    values: dict[str, Any] = {"options.nodes": Count(nodes), "options.ntasks_per_node": Count(1)}
    if all(share.cpus for share in shares):
        values["options.cpus_per_task"] = Count(max(cpus))
    if max(gpus):
        values["options.gpus_per_node"] = Text(max(gpus))
    else:
        values["gpu_request"] = "none"
    return Layer(Level.JOB, values, dict.fromkeys(values, TOGETHER))
