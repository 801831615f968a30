"""Rules about the launchers of PyTorch in a plan: whether they find each other, and have enough GPUs.

Source: torch/distributed/run.py of torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from sbatchgen.base.finding import Severity
from sbatchgen.base.quoting import counted
from sbatchgen.check.executables.launcher import LauncherCall
from sbatchgen.check.executables.program import PROGRAMS, programs
from sbatchgen.check.rules import names, process_counts, rendezvous, rendezvous_fixes, steps
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.overlaps import may_lack_values, overlaps, run_at_once
from sbatchgen.lab.plan.started import StartedLauncher, StartedProcess, Step, launchers_of
from sbatchgen.lab.plan.step_tasks import number_of

RULES: Rules[DryRun] = Rules()

NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html"
SAME_GPU: tuple[str, Severity, str] = ("SB343", "warning", "programs that want the same GPU at once")


def _steps_with_launchers(plan: DryRun) -> list[tuple[Step, list[StartedLauncher]]]:
    """Return all steps, each with its launchers."""
    return [(step, [*launchers_of(step, len(plan.grant.nodes))]) for step in plan.steps]


def _multi_node_launchers(plan: DryRun) -> Iterator[tuple[Step, list[StartedLauncher]]]:
    """Yield the steps whose launchers run on several nodes and wait for each other, with these launchers."""
    for step, launchers in _steps_with_launchers(plan):
        members = [launcher for launcher in launchers if launcher.nodes > 1]
        if len(_nodes_of(members)) > 1 and len({launcher.name for launcher in members}) == 1:
            yield step, members


def _steps_with_ranks(plan: DryRun) -> Iterator[tuple[Step, list[StartedProcess]]]:
    """Yield the steps whose processes find each other by variables, without a launcher, and the processes."""
    for step in plan.steps:
        ranks = [process for process in step.processes if not LauncherCall.from_argv(process.argv)]
        if step.is_srun and len(ranks) > 1 and all(process.env.get("WORLD_SIZE") for process in ranks):
            yield step, ranks


def _nodes_of(launchers: Sequence[StartedLauncher]) -> set[str]:
    """Return the nodes on which launchers run."""
    return {launcher.process.node for launcher in launchers}


def _overfull_launcher(launchers: Sequence[StartedLauncher]) -> StartedLauncher | None:
    """Return the first launcher that starts more processes than it has GPUs; None without such a launcher."""
    overfull = (launcher for launcher in launchers if 0 < len(launcher.process.gpus) < launcher.workers)
    return next(overfull, None)


def _surplus_message(step: Step, launchers: Sequence[StartedLauncher]) -> tuple[str, str]:
    """Return the message that a step starts more launchers than the nodes for which they wait.

    The second text is the launcher's option for the number of nodes. Both texts are "" for any other step.
    """
    first = launchers[0] if step.is_srun and launchers else None
    if not first or not 1 < first.nodes < len(launchers) or _overfull_launcher(launchers):
        return "", ""
    trainings = {(launcher.nodes, launcher.role_option("HOST").value) for launcher in launchers}
    if len(trainings) > 1 or len(_nodes_of(launchers)) < 2:
        return "", ""
    option = PROGRAMS[first.name].option_with_role("NODES")
    return f"{first.name} is for {first.nodes} nodes (--{option}), and starts {len(launchers)} times", option


@RULES.add_for_dry_run(process_counts.RULES, "SB302")
def _launchers_on_same_node(plan: DryRun) -> Iterator[Hit]:
    for step, launchers in _steps_with_launchers(plan):
        what, _ = _surplus_message(step, launchers)
        if what and len(launchers) > len(_nodes_of(launchers)):
            yield Hit(plan.at(step.line), what, "srun --ntasks-per-node=1")
        nodes = [launcher.process.node for launcher in launchers if launcher.port]
        if step.is_srun and len(nodes) > len({*nodes}):
            name, port = launchers[0].name, launchers[0].port
            what = f"srun starts {nodes.count(nodes[0])} {name} on {nodes[0]}, "
            what += f"and each listens on port {port}"
            fix = f"srun --ntasks-per-node=1 {name} ...: it starts the processes of a node itself"
            yield Hit(plan.at(step.line), what, fix)


@RULES.add_for_dry_run(process_counts.RULES, "SB303", "warning")
def _launcher_waits_for_nodes(plan: DryRun) -> Iterator[Hit]:
    """Find launchers that wait for more nodes than the nodes on which a launcher starts."""
    for concurrent in () if plan.result.limit else _concurrent_launchers(plan):
        # By name, number of nodes and address: the lines of the launchers that wait for each other.
        groups: dict[tuple[str, int, str], list[int]] = {}
        for step, launcher in concurrent:
            if launcher.nodes > 1 and launcher.name != "deepspeed":
                key = (launcher.name, launcher.nodes, launcher.role_option("HOST").value)
                groups.setdefault(key, []).append(step.line)
        count = sum(map(len, groups.values()))
        for (name, nodes, _), lines in groups.items():
            if len(lines) < nodes and count < nodes and not _is_started_elsewhere(plan, name):
                option = PROGRAMS[name].option_with_role("NODES")
                what = f"{name} waits for {nodes} nodes (--{option}), and starts on {len(lines)}"
                fix = f"start it with srun on every node: srun --nodes={nodes} --ntasks-per-node=1 {name} ..."
                if nodes > len(plan.grant.nodes):
                    what += f": the job has {counted(len(plan.grant.nodes), 'node')}"
                    fix = f"--{option}=$SLURM_JOB_NUM_NODES, or ask for --nodes={nodes}"
                yield Hit(plan.at(lines[0]), what, fix)


def _is_started_elsewhere(plan: DryRun, name: str) -> bool:
    """Return whether a program such as ssh starts a launcher on other nodes. A plan does not follow ssh."""
    return any(
        entry.text.partition(" ")[0] in programs("elsewhere") and name in entry.text for entry in plan.trace
    )


def _concurrent_launchers(plan: DryRun) -> Iterator[list[tuple[Step, StartedLauncher]]]:
    """Yield groups of launchers that run at the same time. A group has each launcher with its step."""
    todo = [(step, launchers) for step, launchers in _steps_with_launchers(plan) if launchers]
    while todo:
        first = todo[0][0]
        group = [item for item in todo if item[0] is first or run_at_once(first, item[0])]
        todo = [item for item in todo if item not in group]
        yield [(step, launcher) for step, launchers in group for launcher in launchers]


@RULES.add_for_dry_run(process_counts.RULES, "SB304")
def _too_few_gpus_or_nodes(plan: DryRun) -> Iterator[Hit]:
    for step, launchers in _steps_with_launchers(plan):
        if launcher := _overfull_launcher(launchers):
            option, gpus = PROGRAMS[launcher.name].option_with_role("PROCESSES"), len(launcher.process.gpus)
            # accelerate counts the processes of all nodes, and torchrun counts the processes of a node.
            processes = gpus * launcher.nodes if launcher.name.startswith("accelerate") else gpus
            what = f"--{option} {launcher.options[option]}, but a process has {counted(gpus, 'GPU')}"
            fix = f"--{option}={processes}, or ask for {launcher.workers} GPUs on a node"
            yield Hit(plan.at(step.line), what, fix)
        what, option = _surplus_message(step, launchers)
        if what and len(launchers) <= len(_nodes_of(launchers)):
            yield Hit(plan.at(step.line), what, f"--{option}=$SLURM_JOB_NUM_NODES")


@RULES.add_for_dry_run(process_counts.RULES, "SB304")
def _one_process_by_default(plan: DryRun) -> Iterator[Hit]:
    if len({step.line for step in plan.steps}) != 1:  # another step may use the other GPUs
        return
    for step, launchers in _steps_with_launchers(plan):
        single_by_default = [
            launcher for launcher in launchers if launcher.starts_one_by_default and launcher.has_program
        ]
        gpus = max((len(launcher.process.gpus) for launcher in single_by_default), default=0)
        has_number = any("PET_NPROC_PER_NODE" in launcher.process.env for launcher in launchers)
        if gpus > 1 and not has_number and len(launchers) == len(_nodes_of(launchers)):
            what = f"torchrun without --nproc-per-node starts one process, and has {gpus} GPUs"
            yield Hit(plan.at(step.line), what, "--nproc-per-node=$SLURM_GPUS_ON_NODE")


@RULES.add_for_dry_run(rendezvous.RULES, "SB307")
def _different_rendezvous(plan: DryRun) -> Iterator[Hit]:
    for step, launchers in _multi_node_launchers(plan):
        for role, variable in (("HOST", "MASTER_ADDR"), ("PORT", "MASTER_PORT")):
            option = launchers[0].role_option(role).name
            node_by_value = {
                launcher.role_option(role).value: launcher.process.node for launcher in launchers
            }
            if option:
                yield from _different_values(plan, step, f"--{option}", node_by_value, variable)
        yield from _missing_rendezvous(plan, step, launchers[0])
        yield from _rendezvous_at_named_node(
            plan, step, {launcher.role_option("HOST").value for launcher in launchers}
        )
    for step, ranks in _steps_with_ranks(plan):
        for variable in ("MASTER_ADDR", "MASTER_PORT"):
            rank_by_value = {str(process.env.get(variable)): f"rank {process.rank}" for process in ranks}
            yield from _different_values(plan, step, variable, rank_by_value, variable)
        yield from _rendezvous_at_named_node(
            plan, step, {process.env.get("MASTER_ADDR") or "" for process in ranks}
        )


def _rendezvous_at_named_node(plan: DryRun, step: Step, addresses: set[str]) -> Iterator[Hit]:
    """Yield a hit if the processes meet at a node that the script names, because the job may get others."""
    name = rendezvous.node_in_address(addresses.pop()) if len(addresses) == 1 else ""
    is_of_job = name in plan.grant.nodes or "nodelist" in plan.script.options
    if name and name in plan.script.text and not is_of_job:
        what = f"the nodes meet at {name}, which the script names: the job may run on other nodes"
        yield Hit(plan.at(step.line), what, 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1')


def _missing_rendezvous(plan: DryRun, step: Step, first: StartedLauncher) -> Iterator[Hit]:
    """Yield a hit if torchrun gets no address for the rendezvous.

    There is no hit for training/torchrun.py, which finds the address itself.
    """
    # In place of options, torchrun reads variables such as PET_RDZV_ENDPOINT.
    knows_address = any(name.startswith("PET_") for name in first.process.env)
    knows_address |= any(word.endswith("/training/torchrun.py") for word in first.process.argv)
    if first.name == "torchrun" and not first.role_option("HOST").name and not knows_address:
        what = "the nodes don't meet: without --rdzv-endpoint each torchrun waits at its own localhost"
        yield Hit(plan.at(step.line), what, rendezvous_fixes.RDZV_OPTIONS)


def _different_values(
    plan: DryRun, step: Step, name: str, place_by_value: Mapping[str, str], variable: str
) -> Iterator[Hit]:
    """Yield a hit if the address or port `name` is not the same everywhere.

    `place_by_value` has a node or rank for each value.
    """
    if len(place_by_value) > 1:
        (value, place), (other_value, other_place), *_ = place_by_value.items()
        what = f"the nodes don't meet: {name} is {value} on {place}, and {other_value} on {other_place}"
        yield Hit(plan.at(step.line), what, f"set {variable} in the batch script, before srun")


@RULES.add_for_dry_run(steps.RULES, "SB308")
def _rank_expanded_too_early(plan: DryRun) -> Iterator[Hit]:
    for step, launchers in _launchers_with_same_rank(plan):
        option, rank = launchers[0].role_option("RANK")
        if option and _is_variable_in_script(plan, option):
            what = f"all {len(launchers)} nodes get --{option} {rank}: "
            what += "the batch script expands it, not the tasks"
            fix = f"srun bash -c '... --{option} $SLURM_NODEID ...', in single quotes"
            yield Hit(plan.at(step.line), what, fix)
    for step, ranks in _steps_with_ranks(plan):
        numbers = {process.env.get("RANK") for process in ranks}
        if len(numbers) == 1 and None not in numbers:
            what = f"all {step.tasks} processes get RANK={numbers.pop()}: "
            what += "the batch script expands it, not the tasks"
            yield Hit(plan.at(step.line), what, "srun bash -c 'RANK=$SLURM_PROCID ...', in single quotes")


@RULES.add_for_dry_run(rendezvous.RULES, "SB355", "warning")
def _same_node_rank(plan: DryRun) -> Iterator[Hit]:
    """Find launchers on several nodes that all have the node rank 0, or that know no other node."""
    for step, launchers in _launchers_with_same_rank(plan):
        first = launchers[0]
        option, rank = first.role_option("RANK")
        has_address = (
            first.role_option("HOST").name or first.name != "torchrun"
        )  # else SB307 reports the step
        if has_address and (rank or "0") == "0" and not _is_variable_in_script(plan, option):
            same_rank = f"{option}=0" if option else ""
            what, fix = rendezvous_fixes.same_rank_texts(first.name, len(_nodes_of(launchers)), same_rank)
            yield Hit(plan.at(step.line), what, fix)
    for step, launchers in _steps_with_launchers(plan):
        unaware = [launcher for launcher in launchers if not launcher.may_know_other_nodes]
        if step.is_srun and len(_nodes_of(unaware)) > 1:
            what = rendezvous_fixes.missing_hosts_message(len(_nodes_of(unaware)))
            yield Hit(plan.at(step.line), what, rendezvous_fixes.deepspeed_fix())


def _launchers_with_same_rank(plan: DryRun) -> Iterator[tuple[Step, list[StartedLauncher]]]:
    """Yield launchers on several nodes that all get the same node rank, and the first of their steps.

    The launchers belong to one step, or to steps that run at the same time, for example in a loop over nodes.
    """
    # By name, number of nodes and address: the launchers that wait for each other.
    teams: dict[tuple[str, int, str], list[tuple[Step, StartedLauncher]]] = {}
    for step, launchers in _steps_with_launchers(plan):
        for launcher in launchers:
            if launcher.nodes > 1 and launcher.has_static_ranks:
                host = launcher.role_option("HOST").value
                teams.setdefault((launcher.name, launcher.nodes, host), []).append((step, launcher))
    for members in teams.values():
        step = members[0][0]
        team = [launcher for other, launcher in members if other is step or run_at_once(step, other)]
        ranks = {
            launcher.role_option("RANK").value or launcher.process.env.get("PET_NODE_RANK") or ""
            for launcher in team
        }
        if len(_nodes_of(team)) > 1 and len(ranks) == 1:
            yield step, team


def _is_variable_in_script(plan: DryRun, option: str) -> bool:
    """Return whether the value of an option in the script begins with a variable."""
    name = re.escape(option).replace("\\-", "[-_]")
    return bool(option) and re.search(rf"{name}[=\s]+[\"']?[$\\\\]", plan.script.text) is not None


@RULES.add_for_dry_run(names.RULES, "SB425")
def _wrong_world_size(plan: DryRun) -> Iterator[Hit]:
    for step, ranks in _steps_with_ranks(plan):
        size = number_of(ranks[0].env["WORLD_SIZE"])
        # Without LOCAL_RANK, a task may itself start several of the processes that WORLD_SIZE counts.
        has_local_ranks = all(process.env.get("LOCAL_RANK") for process in ranks)
        if size not in (0, step.tasks) and (has_local_ranks or size < step.tasks):
            what = f"WORLD_SIZE is {ranks[0].env['WORLD_SIZE']}, "
            what += f"and this step starts {counted(step.tasks, 'process')}"
            is_of_job = plan.batch_environment.get("SLURM_NTASKS") == str(step.tasks)
            fix = f"export WORLD_SIZE={'$SLURM_NTASKS' if is_of_job else step.tasks}, before this step"
            yield Hit(plan.at(step.line), what, fix)


@RULES.add("SB341", "warning", "a launcher without a program", source="torch/distributed/run.py")
def _launcher_without_program(plan: DryRun) -> Iterator[Hit]:
    if may_lack_values(plan, with_variables=False):
        return
    for step, launchers in _steps_with_launchers(plan):
        bare = next((launcher for launcher in launchers if launcher.lacks_program), None)
        if bare:
            what = f"{bare.name} has no program: its command ends with its options"
            fix = f"print the words before this line: {bare.name} needs the program that it starts"
            yield Hit(plan.at(step.line), what, fix)


@RULES.add("SB342", "warning", "a variable that no shell expands", source="bash(1)")
def _not_expanded(plan: DryRun) -> Iterator[Hit]:
    for step, launchers in _steps_with_launchers(plan):
        if not launchers:
            continue
        for option, value in launchers[0].options.items():
            if match := re.search(r"\$\{?([A-Za-z_]\w*)", value or ""):
                what = f"{launchers[0].name} gets --{option} {value} as it is: no shell expands the variable"
                fix = f"leave out the backslash or the inner single quotes before ${match[1]}"
                yield Hit(plan.at(step.line), what, fix)


@RULES.add(*SAME_GPU, source=NCCL)
def _same_gpus(plan: DryRun) -> Iterator[Hit]:
    for first, second, launcher, shared_gpus in _collisions(plan):
        if shared_gpus:
            numbers = f"GPU{'s' * (len(shared_gpus) > 1)} {', '.join(map(str, shared_gpus))}"
            what = f"this {launcher.name} and that of line {first.line} want {numbers} of "
            what += f"{launcher.process.node} at once"
            yield Hit(plan.at(second.line), what, "CUDA_VISIBLE_DEVICES=..., other GPUs for each of them")


@RULES.add(
    "SB344", "warning", "launchers that listen on the same port at once", source="torch/distributed/run.py"
)
def _same_port(plan: DryRun) -> Iterator[Hit]:
    for first, second, launcher, shared_gpus in _collisions(plan):
        if not shared_gpus:
            what = f"this {launcher.name} and that of line {first.line} listen on port {launcher.port} "
            what += "of a node at once"
            yield Hit(plan.at(second.line), what, "--standalone, or a --master-port of its own for each")


class _Collision(NamedTuple):
    """Two steps that run at the same time, and whose launchers want the same GPUs or the same port."""

    first: Step
    second: Step
    launcher: StartedLauncher  # a launcher of the second step
    shared_gpus: list[int]  # [] if the launchers want the same port


def _collisions(plan: DryRun) -> Iterator[_Collision]:
    """Yield the collisions of launchers on a node."""
    launchers_by_step = {id(step): launchers for step, launchers in _steps_with_launchers(plan)}
    lines = set()  # lines of second steps that were yielded
    for first, second, _ in overlaps(plan):
        pairs = product(launchers_by_step[id(first)], launchers_by_step[id(second)])
        pair = next((pair for pair in pairs if pair[0].process.node == pair[1].process.node), None)
        if not pair or second.line in lines:
            continue
        earlier, later = pair
        workers = earlier.workers + later.workers if earlier.workers and later.workers else 0
        shared_gpus = sorted({*earlier.process.gpus} & {*later.process.gpus})
        all_gpus = {*earlier.process.gpus} | {*later.process.gpus}
        if workers <= len(all_gpus):  # each worker can have a GPU of its own
            shared_gpus = []
        if shared_gpus or (earlier.port and earlier.port == later.port):
            lines.add(second.line)
            yield _Collision(first, second, later, shared_gpus)
