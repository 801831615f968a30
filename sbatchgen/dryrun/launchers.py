"""The launchers of PyTorch that a script starts: whether they meet, and have the GPUs that they want."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from sbatchgen.dryrun.found import found, may_follow, meetings
from sbatchgen.dryrun.run import DryRun
from sbatchgen.dryrun.starts import StartedProcess, Step
from sbatchgen.executables.launcher import LauncherCall
from sbatchgen.executables.program import PROGRAMS
from sbatchgen.finding import Finding
from sbatchgen.quoting import counted


@dataclass(frozen=True, kw_only=True)
class StartedLauncher(LauncherCall):
    """A process that is a launcher."""

    process: StartedProcess


def of_launchers(done: DryRun) -> Iterator[Finding]:
    """Yield what is wrong with the launchers of a script."""
    of_steps = [(step, [*_started(step, len(done.grant.nodes))]) for step in done.steps]
    for step, launchers in of_steps:
        yield from _apart(done, step, [launcher for launcher in launchers if launcher.nodes > 1])
        yield from _counts(done, step, launchers)
        yield from _programs(done, step, launchers)
    yield from _absent(done, [launcher for _, launchers in of_steps for launcher in launchers])
    yield from _crowded(done, of_steps)


def _started(step: Step, nodes: int) -> Iterator[StartedLauncher]:
    """Yield the launchers among the processes of a step, in a job with so many nodes."""
    for process in step.processes:
        if call := StartedLauncher.from_argv(process.argv, process=process, job_nodes=nodes):
            yield call


def _programs(done: DryRun, step: Step, launchers: Sequence[StartedLauncher]) -> Iterator[Finding]:
    """Launchers without a program, and options that no shell has expanded."""
    bare = next((each for each in launchers if each.lacks_program), None)
    if bare and not may_follow(done, variables=False):
        fix = f"print the words before this line: {bare.name} needs the program that it starts"
        yield found(done, step.line, f"{bare.name} has no program: its command ends with its options", fix)
    for option, value in (item for each in launchers[:1] for item in each.options.items()):
        if match := re.search(r"\$\{?([A-Za-z_]\w*)", value or ""):
            what = f"{launchers[0].name} gets --{option} {value} as it is: no shell expands the variable"
            fix = f"leave out the backslash or the inner single quotes before ${match[1]}"
            yield found(done, step.line, what, fix)


def _apart(done: DryRun, step: Step, launchers: Sequence[StartedLauncher]) -> Iterator[Finding]:
    """Launchers of one step that have different places to meet, or the same number."""
    if (
        len({launcher.process.node for launcher in launchers}) < 2
        or len({each.name for each in launchers}) > 1
    ):
        return
    for role, variable in (("HOST", "MASTER_ADDR"), ("PORT", "MASTER_PORT")):
        option = launchers[0].of_role(role)[0]
        values = {launcher.of_role(role)[1]: launcher.process.node for launcher in launchers}
        if option and len(values) > 1:
            yield found(done, step.line, *apart(f"--{option}", values, variable), rule="SB307")
    option, rank = launchers[0].of_role("RANK")
    backend = launchers[0].options.get("rdzv-backend", "static")
    if rank and backend == "static" and {each.options.get(option) for each in launchers} == {rank}:
        what = f"all {len(launchers)} nodes get --{option} {rank}: the batch script expands it, not the tasks"
        fix = f"srun bash -c '... --{option} $SLURM_NODEID ...', in single quotes"
        yield found(done, step.line, what, fix, rule="SB308")


def apart(name: str, values: Mapping[str, str], variable: str) -> tuple[str, str]:
    """Return what is wrong with a place to meet that differs, and a fix.

    Args:
        name: Where it is given.
        values: A node for each value.
        variable: What should hold it.
    """
    (value, at), (other, there), *_ = values.items()
    what = f"the nodes don't meet: {name} is {value} on {at}, and {other} on {there}"
    return what, f"set {variable} in the batch script, before srun"


def _counts(done: DryRun, step: Step, launchers: Sequence[StartedLauncher]) -> Iterator[Finding]:
    """A launcher that starts more processes than it has GPUs, and more launchers than one waits for."""
    for launcher in launchers:
        has = len(launcher.process.gpus)
        if has and launcher.workers > has:
            option = PROGRAMS[launcher.name].role("PROCESSES")
            total = has * launcher.nodes if launcher.name == "accelerate launch" else has
            what = f"--{option} {launcher.options[option]}, but a process has {counted(has, 'GPU')}"
            fix = f"--{option}={total}, or ask for {launcher.workers} GPUs on a node"
            yield found(done, step.line, what, fix, rule="SB304")
            return
    first = launchers[0] if step.is_srun and launchers else None
    if first and 1 < first.nodes < step.tasks:
        alike = {(each.nodes, each.of_role("HOST")[1]) for each in launchers}
        if len(alike) == 1 and len({each.process.node for each in launchers}) > 1:
            option = PROGRAMS[first.name].role("NODES")
            what = f"{first.name} is for {first.nodes} nodes (--{option}), and starts {step.tasks} times"
            on_node = step.tasks > len({each.process.node for each in launchers})
            fix = "srun --ntasks-per-node=1" if on_node else f"--{option}=$SLURM_JOB_NUM_NODES"
            yield found(done, step.line, what, fix, rule="SB302" if on_node else "SB304")


def _absent(done: DryRun, launchers: Sequence[StartedLauncher]) -> Iterator[Finding]:
    """Launchers that wait for more nodes than start one."""
    if done.ended.limit:
        return
    of = [launcher for launcher in launchers if launcher.nodes > 1 and launcher.name != "deepspeed"]
    groups: dict[tuple[str, int, str], list[StartedLauncher]] = {}
    for launcher in of:
        groups.setdefault((launcher.name, launcher.nodes, launcher.of_role("HOST")[1]), []).append(launcher)
    for (name, nodes, _), members in groups.items():
        if len(members) < nodes and len(of) < nodes:
            line = next(s.line for s in done.steps if members[0].process in s.processes)
            option = PROGRAMS[name].role("NODES")
            what = f"{name} waits for {nodes} nodes (--{option}), and starts on {len(members)}"
            fix = f"start it with srun on every node: srun --nodes={nodes} --ntasks-per-node=1 {name} ..."
            yield found(done, line, what, fix, rule="SB303")


def _crowded(done: DryRun, of_steps: Sequence[tuple[Step, Sequence[StartedLauncher]]]) -> Iterator[Finding]:
    """Launchers that run at the same time on a node, and listen on the same port or want the same GPUs."""
    for step, launchers in of_steps:
        nodes = [each.process.node for each in launchers if each.port]
        if step.is_srun and len(nodes) > len({*nodes}):
            name, port = launchers[0].name, launchers[0].port
            what = (
                f"srun starts {nodes.count(nodes[0])} {name} on {nodes[0]}, and each listens on port {port}"
            )
            fix = f"srun --ntasks-per-node=1 {name} ...: it starts the processes of a node itself"
            yield found(done, step.line, what, fix, rule="SB302")
    said, started = set(), {id(step): launchers for step, launchers in of_steps}
    for first, second, _ in meetings(done):
        both = product(started[id(first)], started[id(second)])
        pairs = [(a, b) for a, b in both if a.process.node == b.process.node]
        if not pairs or second.line in said:
            continue
        a, b = pairs[0]
        shared = sorted({*a.process.gpus} & {*b.process.gpus})
        wanted = a.workers + b.workers if a.workers and b.workers else 0
        others = {*a.process.gpus} | {*b.process.gpus}
        if shared and wanted > len(others):
            said.add(second.line)
            gpus = f"GPU{'s' * (len(shared) > 1)} {', '.join(map(str, shared))}"
            what = f"this {b.name} and that of line {first.line} want {gpus} of {b.process.node} at once"
            yield found(done, second.line, what, "CUDA_VISIBLE_DEVICES=..., other GPUs for each of them")
        elif a.port and a.port == b.port:
            said.add(second.line)
            what = f"this {b.name} and that of line {first.line} listen on port {b.port} of a node at once"
            yield found(done, second.line, what, "--standalone, or a --master-port of its own for each")
