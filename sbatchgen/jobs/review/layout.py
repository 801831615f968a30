"""The layout of a job: the tasks and processes on each node, for the review.

It is computed from the resource request. Nothing is run, unlike in a dry run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sbatchgen.base import quoting
from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import counted, cut, table
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.inputs.start_settings import SETUPS
from sbatchgen.jobs.render import launch
from sbatchgen.jobs.resolved.resolved_job import JobProgram, ResolvedJob
from sbatchgen.jobs.review.node_share import Allocation

_MAX_ROWS = 3  # rows of nodes. With more nodes, all nodes between the first and the last share a row.
_COMMAND_WIDTH = 100  # characters in a line of the command


@frozen(kw_only=True)
class NodeStarts:
    """What starts on a node, or on each of several similar nodes; None for unknown numbers."""

    first: int  # the first node, counted from 0 like SLURM_NODEID
    last: int  # the last node
    tasks: int | None  # Slurm's tasks on each node
    first_rank: int | None  # the lowest rank of the processes on these nodes
    last_rank: int | None  # the highest rank of the processes on these nodes
    gpus: int | None  # GPUs that the job gets on each node
    shards: int | None  # shards that the job gets on each node
    cpus: int | None  # CPUs that the job gets on each node


@frozen(kw_only=True)
class ProgramStarts:
    """The processes of one program in a job with several programs, and their nodes."""

    name: str  # its name in the job
    main: bool  # whether the job ends with this program
    first: int  # its first node, counted from 0
    last: int  # its last node
    replicas: int  # how often it runs, spread over its nodes; 0 without replicas
    beside: str  # the program with which it shares nodes, GPUs and CPUs; "" if it shares none
    optional: bool  # whether the job continues after the program has ended
    ready: str  # the sign that it is ready, such as "ready once its url answers"; "" without one
    tasks: int  # Slurm's tasks on all of its nodes
    gpus: int  # GPUs on each of its nodes
    cpus: int  # CPUs on each of its nodes; 0 for all
    runtime: str  # its own runtime; "" if it has the job's
    preset: str  # what runs on each of its nodes, such as ray; "" if only its command runs
    after: tuple[str, ...]  # the programs that must be ready before it starts
    command: str  # the command of a task, as in the script


@frozen(kw_only=True)
class Layout:
    """The tasks and processes that a job starts on its nodes."""

    nodes: tuple[NodeStarts, ...]  # the nodes, in order
    tasks: int | None  # Slurm's tasks on all nodes; None without Slurm
    command: str = ""  # the command of a task, as in the script; "" if it is not known
    programs: tuple[ProgramStarts, ...] = ()  # the programs in order, if the job has several
    plan: str = ""  # the command of a dry run, if the script starts more than this layout shows


def layout_of_job(
    resolved: ResolvedJob, request: Allocation, script: str, plan_command: Sequence[str]
) -> Layout:
    """Return the layout of a rendered script; `plan_command` is the command of its dry run."""
    if resolved.programs:
        layout = layout_of_script(resolved.resources, request, plan_command)
        programs = tuple(_program_starts(program, resolved) for program in resolved.programs)
        return replace(layout, programs=programs)
    command_lines = launch.program_lines(resolved)
    is_known = all(line in script for line in command_lines)  # a site's template may start another command
    has_setup = any(getattr(resolved.settings, name) for name in SETUPS)
    may_start_more = has_setup or not is_known or (resolved.trainer or "").endswith(".sh")
    layout = layout_of_script(resolved.resources, request, plan_command if may_start_more else ())
    layout = replace(layout, command=" ".join(command_lines) if is_known else "")
    if resolved.uses_slurm:
        return layout
    without_tasks = tuple(replace(row, tasks=None) for row in layout.nodes)
    return replace(layout, nodes=without_tasks, tasks=None)


def _program_starts(program: JobProgram, resolved: ResolvedJob) -> ProgramStarts:
    """Return the processes of one program of a job, and their nodes."""
    share = program.share
    return ProgramStarts(
        name=program.name,
        main=share.is_main,
        first=share.first_node,
        last=share.first_node + share.all_nodes - 1,
        replicas=share.replicas,
        beside=share.beside_program,
        optional=program.spec.optional,
        ready=_ready_sign(program),
        tasks=share.instances * share.nodes * share.tasks_per_node,
        gpus=share.gpus_per_node,
        cpus=share.cpus_per_node,
        runtime="" if program.has_runtime_of(resolved) else program.job.runtime.name,
        preset=program.spec.preset or "",
        after=program.spec.needs,
        command=" ".join(launch.program_lines(program.job)),
    )


# The signs that a program is ready, in words, by the keys of `ready` in a job.
_SIGNS = {
    "url": "its url answers",
    "port": "its port is open",
    "file": "it has written its file",
    "log": "its log has a line",
}


def _ready_sign(program: JobProgram) -> str:
    """Return the sign that a program is ready: "ready once its url answers on each node"; "" without one."""
    sign = next(iter(program.ready.signs), "")
    if not sign:
        return ""
    has_sign_per_node = program.share.nodes > 1 and sign != "file"
    where = {"all": " on each node", "first": " on the first node"}[program.ready.hosts]
    return f"ready once {_SIGNS[sign]}{where if has_sign_per_node else ''}"


def layout_of_script(job: ResourceRequest, request: Allocation, plan_command: Sequence[str]) -> Layout:
    """Return the layout of a script with the resource request `job`.

    `plan_command` is the command of its dry run.
    """
    node_count = max(request.nodes, 1)
    tasks = job.ntasks or node_count * job.tasks_per_node
    # Slurm may give nodes unequal numbers of tasks if only --ntasks is set and the nodes are shared.
    is_per_node = job.ntasks_per_node or not job.ntasks or job.is_exclusive
    is_even = tasks == node_count or bool(is_per_node and tasks % node_count == 0)
    ranks_on_node = None if request.processes is None else request.processes // node_count
    last_node = node_count - 1
    rows = [(0, last_node)]  # the first and the last node of each row
    if ranks_on_node is not None:  # each node has other ranks, so the first and the last node get rows
        rows_between = [(1, last_node - 1)]
        if node_count <= _MAX_ROWS:
            rows_between = [(node, node) for node in range(1, last_node)]
        rows = [(0, 0), *rows_between, *([(last_node, last_node)] if last_node else [])]
    nodes = (
        NodeStarts(
            first=first,
            last=last,
            tasks=tasks // node_count if is_even else None,
            first_rank=None if ranks_on_node is None else first * ranks_on_node,
            last_rank=None if ranks_on_node is None else (last + 1) * ranks_on_node - 1,
            gpus=request.gpus.given,
            shards=request.shards.given,
            cpus=request.cpus.given if is_even else None,
        )
        for first, last in rows
    )
    return Layout(nodes=tuple(nodes), tasks=tasks, plan=quoting.words(tuple(plan_command)))


def as_text(starts: Layout) -> str:
    """Return the layout as text of at most six lines; for several programs, three for each and one more."""
    if starts.programs:
        rows = [row for program in starts.programs for row in _program_rows(program)]
        return f"{table(rows)}{starts.plan} shows in a dry run what they start\n"
    rows = [
        (_span("node", row.first, row.last), ", ".join(_node_parts(row, starts.tasks)))
        for row in starts.nodes
    ]
    lines = cut(starts.command, _COMMAND_WIDTH)
    rows += [("command" if number == 0 else "", line) for number, line in enumerate(lines)]
    what = "what else the script starts" if starts.command else "what the script starts"
    return table(rows) + (f"{starts.plan} shows {what}\n" if starts.plan else "")


def _program_rows(program: ProgramStarts) -> Iterator[tuple[str, str]]:
    """Yield the rows of a program in the table: its nodes and resources, then its command."""
    on_each = " on each" if program.last > program.first else ""
    on_each = " for each" if program.replicas else on_each
    parts = [_span("node", program.first, program.last)]
    parts += [counted(program.replicas, "replica")] if program.replicas else []
    parts += [counted(program.tasks, "task")]
    parts += [f"{counted(program.gpus, 'GPU') if program.gpus else 'no GPUs'}{on_each}"]
    parts += [f"{counted(program.cpus, 'CPU')}{on_each}"] if program.cpus else []
    parts += [f"runtime {program.runtime}"] if program.runtime else []
    parts += [f"the same as {program.beside} has"] if program.beside else []
    if program.preset:
        logs = f"RUN_DIR/programs/{program.name}-logs"
        parts += [f"{program.preset} on each, the command on the first, its logs are kept in {logs}"]
    verb = "is" if len(program.after) == 1 else "are"
    parts += [f"once {' and '.join(program.after)} {verb} ready"] if program.after else []
    parts += [program.ready] if program.ready else []
    parts += ["the job ends with it"] * program.main
    parts += ["the job continues without it"] * program.optional
    yield program.name, ", ".join(parts)
    yield from (("", line) for line in cut(program.command, _COMMAND_WIDTH))


def _node_parts(row: NodeStarts, tasks: int | None) -> Iterator[str]:
    """Yield the parts of a row of nodes in words; `tasks` is the number of tasks on all nodes."""
    on_each = " on each" if row.last > row.first else ""
    if row.tasks is not None:
        yield f"{counted(row.tasks, 'task')}{on_each}"
    elif tasks is not None:
        yield f"{counted(tasks, 'task')} in all"
    if row.first_rank is not None and row.last_rank is not None:
        yield _span("rank", row.first_rank, row.last_rank)
    if row.shards:
        yield f"{counted(row.shards, 'shard')} of a GPU{on_each}"
    elif row.gpus is not None:
        yield f"{counted(row.gpus, 'GPU') if row.gpus else 'no GPUs'}{on_each}"
    if row.cpus is not None:
        yield f"{counted(row.cpus, 'CPU')}{on_each}"


def _span(noun: str, first: int, last: int) -> str:
    """Return a range in words: "nodes 0-3", or "node 2"."""
    return f"{noun}s {first}-{last}" if last > first else f"{noun} {first}"
