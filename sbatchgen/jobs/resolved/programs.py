"""Resolves a job of several programs: each program gets a share of the job's nodes, GPUs and CPUs.

Texts of a program may name facts of programs, such as {server.host}. The script sets a variable for each
fact, and `_filled` puts the variable into the text.
"""

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
from sbatchgen.jobs.resolved.resolved_job import BY_PROGRAMS, JobProgram, NamedList, ResolvedJob, Share
from sbatchgen.jobs.resolved.written_programs import (
    FACT_PATTERN,
    WrittenProgram,
    all_nodes,
    main_program,
    texts_of,
    written_programs,
)

# A fact -> its variable in the command that probes whether a program is ready.
_PROBE_VARIABLES = {"host": "host", "port": "port"}


def resolve_programs(
    profile: Document[Profile],
    layers: Sequence[Layer],
    *,
    mode_name: str,
    name: str,
    chosen: str = "",
) -> ResolvedJob:
    """Return a job of several programs with every value decided, also the values of its programs.

    The job has the values of its main program, but the nodes of all programs. So the main program decides how
    the job stops, resumes and is requeued. `mode_name` is the mode of a program that names no mode. `name`
    and `chosen` are those of `resolve`. Raises CommandLineError if the programs contradict each other.
    """
    programs = written_programs(layers)
    refuse_faults(programs, layers)

    def resolve_program(program: WrittenProgram, *higher_layers: Layer) -> ResolvedJob:
        mode = COMMAND.name if program.spec.command else program.spec.mode or mode_name
        return resolve(profile, [*layers, *higher_layers], mode_name=mode, name=name, chosen=chosen)

    programs, jobs = _resolve_each(programs, resolve_program)
    shares = [_share_of(program, jobs[program.name]) for program in programs]
    main = main_program(programs)
    whole_job = resolve_program(
        main,
        _layer_of_main_settings(main, programs),
        _layer_of_allocation(shares),
        *_requeue_layers(main, layers),
    )
    uses_gpus = any(share.gpus_per_node for share in shares)
    if uses_gpus and (option := _gpu_option(whole_job)):
        shares = [replace(share, gpu_option=option) for share in shares]
    job_programs = tuple(
        _job_program(programs, program, jobs[program.name], share)
        for program, share in zip(programs, shares, strict=True)
    )
    gpus_per_node = whole_job.gpus_per_node if uses_gpus else 0
    return replace(whole_job, programs=job_programs, gpus_per_node=gpus_per_node)


def _resolve_each(
    programs: Sequence[WrittenProgram], resolve_program: Callable[..., ResolvedJob]
) -> tuple[list[WrittenProgram], dict[str, ResolvedJob]]:
    """Return the programs with their GPUs and CPUs, and each program by its name as a job of its own.

    GPUs and CPUs that the user did not write follow from `whole_nodes_job`, which is a program that has its
    nodes without the other programs.
    """
    programs, main = [*programs], main_program(programs)
    if main.shares_node:
        whole_nodes_job = resolve_program(main, _layer_of_program(main, programs, is_main=True))
        programs = [
            _with_remaining_share(program, whole_nodes_job, programs) if program is main else program
            for program in programs
        ]
    jobs: dict[str, ResolvedJob] = {}
    # Programs with `beside` come last, because each gets the GPUs of another program.
    for index in sorted(range(len(programs)), key=lambda index: bool(programs[index].spec.beside)):
        program = programs[index]
        if program.replicas_per_node > 1 and program.spec.nodes:
            whole_nodes_job = resolve_program(program, _layer_of_program(program, programs, is_main=False))
            program = _with_replica_share(program, whole_nodes_job)
        elif program.spec.beside:
            program = _with_gpus_of(program, jobs[program.spec.beside])
        programs[index] = program
        layer = _layer_of_program(program, programs, is_main=program.name == main.name)
        jobs[program.name] = resolve_program(program, layer)
    return programs, jobs


def _requeue_layers(main: WrittenProgram, layers: Sequence[Layer]) -> Iterator[Layer]:
    """Yield a layer with --requeue if the main program is a command and the job has `requeue_on_node_fail`.

    Slurm needs --requeue to start the job again after a node has failed. Without this layer, a job whose main
    program is a command has no --requeue, because a command can't resume.
    """
    written: dict[str, Any] = {}
    for layer in layers:
        written |= layer.values
    if main.spec.command and written.get("requeue_on_node_fail") and "options.requeue" not in written:
        values = {"options.requeue": True, "options.open_mode": Text("append")}
        yield Layer(Level.JOB, values, dict.fromkeys(values, "requeue_on_node_fail"))


def _share_of(program: WrittenProgram, job: ResolvedJob) -> Share:
    """Return a program's share of the job's nodes; `job` is the program as a job of its own."""
    return Share(
        name=program.name,
        is_main=program.spec.main,
        first_node=program.first_node,
        nodes=program.nodes,
        shares_node=program.shares_node,
        tasks_per_node=job.nproc_per_node if job.launcher == "srun" else 1,
        gpus_per_node=job.gpus_per_node,
        cpus_per_node=program.spec.cpus or _cpus_per_node(job),
        gpu_option="",
        preset=program.spec.preset or "",
        replicas=int(program.spec.replicas or 0),
        replicas_per_node=program.replicas_per_node,
        beside_program=program.spec.beside or "",
    )


def _gpu_option(whole_job: ResolvedJob) -> Any:
    """Return the option with which srun requests GPUs for a program; "" if the job has no option for GPUs."""
    options = whole_job.options
    if "gpu" in (options.gres or ""):
        return "gres"
    return "gpus-per-node" if any((options.gpus_per_node, options.gpus, options.gpus_per_task)) else ""


def _with_replica_share(program: WrittenProgram, whole_nodes_job: ResolvedJob) -> WrittenProgram:
    """Return a program whose replicas share nodes, with the GPUs and CPUs of each replica."""
    gpus, cpus = program.spec.gpus, program.spec.cpus
    node_gpus, job_cpus = whole_nodes_job.gpus_per_node, _cpus_per_node(whole_nodes_job)
    if gpus is None:  # each replica gets at least one GPU; a rule reports a node with too few
        gpus = max(1, node_gpus // program.replicas_per_node) if node_gpus else 0
    if cpus is None and job_cpus:
        node_cpus = whole_nodes_job.partition.cpus_per_node or job_cpus
        cpus = Count(max(1, node_cpus // program.replicas_per_node))
    return program._replace(spec=replace(program.spec, gpus=gpus, cpus=cpus))


def _with_gpus_of(program: WrittenProgram, other: ResolvedJob) -> WrittenProgram:
    """Return a program that runs beside another program, with the other program's GPUs and one CPU.

    GPUs and CPUs that the user wrote are not changed. `other` is the other program as a job of its own.
    """
    gpus = other.gpus_per_node if program.spec.gpus is None else program.spec.gpus
    return program._replace(spec=replace(program.spec, gpus=gpus, cpus=program.spec.cpus or Count(1)))


def _cpus_per_node(job: ResolvedJob) -> int:
    """Return the number of CPUs that a job requests on each node; 0 if it does not request CPUs."""
    return (job.options.cpus_per_task or 0) * (job.options.ntasks_per_node or 1)


def _with_remaining_share(
    main: WrittenProgram, whole_nodes_job: ResolvedJob, programs: Sequence[WrittenProgram]
) -> WrittenProgram:
    """Return the main program with the GPUs and CPUs that the other programs on its node do not use.

    GPUs and CPUs that the user wrote are not changed.
    """
    others = [program.spec for program in programs if program.shares_node and program.name != main.name]
    gpus, cpus = main.spec.gpus, main.spec.cpus
    used_gpus = sum(spec.gpus or 0 for spec in others)
    if gpus is None and used_gpus and not whole_nodes_job.mode.gpus:
        gpus = max(0, whole_nodes_job.gpus_per_node - used_gpus)
    job_cpus, node_cpus = _cpus_per_node(whole_nodes_job), whole_nodes_job.partition.cpus_per_node
    if cpus is None and job_cpus and node_cpus:
        remaining_cpus = node_cpus - sum(spec.cpus or DEFAULT_CPUS for spec in others)
        cpus = Count(max(1, min(job_cpus, remaining_cpus)))
    return main._replace(spec=replace(main.spec, gpus=gpus, cpus=cpus))


def _layer_of_main_settings(main: WrittenProgram, programs: Sequence[WrittenProgram]) -> Layer:
    """Return the layer with the main program's settings for the whole job, without its variables.

    A variable of the main program must not reach the other programs.
    """
    values = {key: value for key, value in _settings(main, programs) if not key.startswith("env.")}
    if main.spec.command:  # a command does not read the file with which the script asks a trainer to stop
        values["resume"] = Resume("off")
    return Layer(Level.JOB, values, {})


def _layer_of_program(program: WrittenProgram, programs: Sequence[WrittenProgram], *, is_main: bool) -> Layer:
    """Return the layer that makes a program a job of its own: its settings, and its share as options."""
    spec, values = program.spec, dict(_settings(program, programs))
    values["options.nodes"] = Count(program.nodes)
    # On a node that it shares, a program gets GPUs only if it names their number.
    gets_no_gpus = spec.gpus is None and program.shares_node and not (spec.main or spec.nodes)
    gpus = 0 if gets_no_gpus else spec.gpus
    values |= {} if gpus is None else {"options.gpus_per_node": Text(gpus)}
    values |= {"options.cpus_per_task": spec.cpus} if spec.cpus and not spec.nproc_per_node else {}
    if not is_main or spec.command:  # only a main trainer reads the file that asks it to stop
        values["resume"] = Resume("off")
    return Layer(Level.JOB, values, {})


def _settings(program: WrittenProgram, programs: Sequence[WrittenProgram]) -> Iterator[tuple[str, Any]]:
    """Yield the flat key and the value of each key of a program that jobs also have.

    Variables take the place of the facts that the values name.
    """
    for name in KEYS_OF_PROGRAMS:
        value = getattr(program.spec, name)
        if value is None or name == "mode":
            continue
        if isinstance(value, Mapping):
            for key, text in value.items():
                yield f"{name}.{key}", text and _filled(text, program, programs, "${{{}}}")
        elif isinstance(value, tuple):
            yield name, tuple(_filled(text, program, programs) for text in value)
        else:
            yield name, _filled(value, program, programs) if isinstance(value, str) else value
    if program.spec.command:
        yield "args", tuple(_filled(text, program, programs) for text in program.spec.command)


def _filled(
    text: str,
    program: WrittenProgram,
    programs: Sequence[WrittenProgram],
    variable_format: str = "{{env:{}}}",
    own_variables: Mapping[str, str] | None = None,
) -> str:
    """Return a text with variables in place of facts, such as {port} and {server.host}.

    `variable_format` is how the text names a variable; {} stands for the name of the variable. An argument
    names it as {env:NAME}, and a value of `env` as ${NAME}. `own_variables` maps facts of the program itself
    to other names of variables.
    """

    def replacement(match: re.Match[str]) -> str:
        name, fact = ProgramName(match[1] or program.name), match[2]
        if fact == "nodes":
            return str(next(all_nodes(other) for other in programs if other.name == name))
        if own_variables and name == program.name and fact in own_variables:
            return variable_format.format(own_variables[fact])
        if not match[3]:
            return variable_format.format(f"{name.variable}_{fact.upper()}")
        # An argument such as "{server.urls[@]}" becomes one argument for each item of the list. In a longer
        # text, the items become words.
        is_whole_argument = match[0] == text and variable_format.startswith("{{env")
        suffix = "LIST[@]" if is_whole_argument else "WORDS"
        return variable_format.format(f"{name.variable}_{fact.upper()}_{suffix}")

    return type(text)(FACT_PATTERN.sub(replacement, text))


def _job_program(
    programs: Sequence[WrittenProgram], program: WrittenProgram, job: ResolvedJob, share: Share
) -> JobProgram:
    """Return a program with its job and share.

    Variables take the place of the facts that the signs of its readiness name, such as {port}.
    """
    written_ready = program.spec.ready
    signs: dict[str, Any] = {
        name: _filled(getattr(written_ready, name), program, programs, own_variables=_PROBE_VARIABLES)
        for name in written_ready.signs
    }
    # A program with a preset runs its command only on the first of its nodes.
    hosts = "first" if share.preset else written_ready.hosts
    ready = Ready(**signs, within=written_ready.within, hosts=hosts)
    lists = tuple(named for named in _named_lists(programs) if named.program == program.name)
    return JobProgram(job=replace(job, share=share), share=share, spec=program.spec, ready=ready, lists=lists)


def _named_lists(programs: Sequence[WrittenProgram]) -> list[NamedList]:
    """Return the lists that texts of the programs name, such as {server.urls}, without repetitions."""
    named = {
        NamedList(match[1] or program.name, match[2], match[3] or "")
        for program in programs
        for text in texts_of(program.spec)
        for match in FACT_PATTERN.finditer(text)
        if match[2] == "urls" or match[3]
    }
    return sorted(named)


def _layer_of_allocation(shares: Sequence[Share]) -> Layer:
    """Return the layer with the nodes, GPUs and CPUs of the whole job.

    A job has the same number of GPUs and CPUs on each node. This is the most that the programs use on a node.
    """
    nodes = max(share.first_node + share.all_nodes for share in shares)
    gpus, cpus = [0] * nodes, [0] * nodes  # the sums of the programs on each node
    for share in shares:
        for node in range(share.first_node, share.first_node + share.all_nodes):
            gpus[node] += 0 if share.beside_program else share.gpus_per_node * share.replicas_per_node
            cpus[node] += 0 if share.beside_program else share.cpus_per_node * share.replicas_per_node
    values: dict[str, Any] = {"options.nodes": Count(nodes), "options.ntasks_per_node": Count(1)}
    if all(share.cpus_per_node for share in shares):
        values["options.cpus_per_task"] = Count(max(cpus))
    if max(gpus):
        values["options.gpus_per_node"] = Text(max(gpus))
    else:
        values["gpu_request"] = "none"
    return Layer(Level.JOB, values, dict.fromkeys(values, BY_PROGRAMS))
