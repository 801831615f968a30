"""Rules about the steps of a plan: steps that Slurm refuses, that wait, or that want the same GPU.

Source: srun(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from sbatchgen.base.quoting import counted
from sbatchgen.check.rules import steps
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.rules.survival import SERVER_COMMAND
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.overlaps import overlaps, run_at_once, srun_options
from sbatchgen.lab.plan.stand_ins import knows_cpus
from sbatchgen.lab.plan.started import Step
from sbatchgen.lab.plan.step_tasks import number_of
from sbatchgen.lab.started.started_launchers import NCCL, SAME_GPU
from sbatchgen.lab.started.started_variables import bad_node_options

RULES: Rules[DryRun] = Rules()

# An address such as localhost:8000, with its port.
_LOCALHOST = re.compile(r"(?:localhost|127\.0\.0\.1):(\d{2,5})\b")


@RULES.add("SB340", "warning", "a step that Slurm refuses", source="srun(1)")
def _refused_step(plan: DryRun) -> Iterator[Hit]:
    for step in plan.steps:
        if step.refusal and not any(bad_node_options(plan, step)):
            what = f"Slurm refuses this step: {step.refusal}"
            fix = "check -n, -N and -c of this srun"
            if "(gres)" in step.refusal and not any(plan.grant.gpus):
                what = f"Slurm refuses this step, unless the partition gives whole nodes: {step.refusal}"
                fix = "ask for the GPUs of the job, as by --gpus-per-node, or plan with --profile"
            yield Hit(plan.at(step.line), what, fix)


@RULES.add(*SAME_GPU, source=NCCL)
def _programs_on_same_gpu(plan: DryRun) -> Iterator[Hit]:
    """Find programs that the script puts on the same GPU while another GPU of the node is idle."""
    # The programs for which the script sets CUDA_VISIBLE_DEVICES, and their GPUs.
    with_gpus = [
        (step, process.gpus)
        for step in plan.steps
        if not step.is_srun
        for process in step.processes
        if process.gpus and "CUDA_VISIBLE_DEVICES" in process.env
    ]
    for (first, gpus), (second, second_gpus) in combinations(with_gpus, 2):
        used = {gpu for step, numbers in with_gpus if step.waits == first.waits for gpu in numbers}
        idle = {*range(min(plan.grant.gpus))} - used
        shared = {*gpus} & {*second_gpus}
        if run_at_once(first, second) and shared and idle:
            what = f"this program and that of line {first.line} want GPU {min(shared)} at once"
            fix = f"CUDA_VISIBLE_DEVICES={min(idle)} for one of them: this GPU is idle"
            yield Hit(plan.at(second.line), what, fix)
            return


@RULES.add("SB347", "warning", "a server on another node than localhost", source="docs/design/slurm.md")
def _server_on_other_node(plan: DryRun) -> Iterator[Hit]:
    """Find steps that ask a server at localhost while Slurm runs the server on another node."""
    started = [(step, process) for step in plan.steps for process in step.processes if not plan.result.limit]
    listening = [(step, process.node, _possible_ports(process.argv)) for step, process in started]
    lines = set()  # lines with a hit
    for step, process in started:
        for port in _LOCALHOST.findall(" ".join(process.argv)):
            servers = [(server, node) for server, node, ports in listening if port in ports]
            running = {node: server.line for server, node in servers if run_at_once(server, step)}
            if running and step.line not in lines and all(node != process.node for _, node in servers):
                lines.add(step.line)
                node, line = min(running.items())
                what = f"this runs on {process.node} and asks localhost:{port}, but the program of line "
                what += f"{line} listens on {node}"
                yield Hit(plan.at(step.line), what, "srun -w NODE for both, or the name of the node")


def _possible_ports(argv: Sequence[str]) -> set[str]:
    """Return the words of a command that may be a port. In a word such as --port=8000, this is the end."""
    return {word.rpartition("=")[2] for word in argv if "://" not in word}


@RULES.add(
    "SB348", "warning", "a server that runs on when the others have ended", source="docs/design/slurm.md"
)
def _server_never_ends(plan: DryRun) -> Iterator[Hit]:
    """Find steps in which some tasks are servers, which never end, and the other tasks end.

    A task that ends with 0 does not end the others, so the step holds its nodes while the servers run.
    """
    if re.search(r"\bscancel\b|\bSLURM_WAIT\b|\bp?kill\b", plan.script.text):
        return  # the script itself ends the server
    if plan.result.limit:
        return
    for step in plan.steps:
        if not step.is_srun or "wait" in srun_options(step) or step.background:
            continue
        last_by_rank = {process.rank: process for process in step.processes}  # the last program of each task
        servers = {
            rank: process
            for rank, process in last_by_rank.items()
            if SERVER_COMMAND.search(" ".join(process.argv))
        }
        if servers and len(servers) < len(last_by_rank):
            rank = min(servers)
            client = next(process for number, process in last_by_rank.items() if number not in servers)
            what = f"{servers[rank].argv[0]} of rank {rank} never ends: when {client.argv[0]} of rank "
            what += f"{client.rank} has ended, the step holds its nodes until the time limit"
            yield Hit(plan.at(step.line), what, "srun --wait=60")


@RULES.add_for_dry_run(steps.RULES, "SB310")
def _step_waits_for_step(plan: DryRun) -> Iterator[Hit]:
    if any(any(bad_node_options(plan, step)) for step in plan.steps if step.is_srun and not step.refusal):
        return
    lines = set()  # lines of first steps for which another step waits
    for first, second, shared in overlaps(plan):
        node = min(shared)
        if first.line in lines or not all(node in step.takes for step in (first, second)):
            continue
        if (cause := _cause_of_waiting(plan, first, second, node)) is not None:
            lines.add(first.line)
            what = f"{cause.where}this step waits until that of line {first.line} ends: each {cause.taken}"
            yield Hit(plan.at(second.line), what, cause.fix, "info" if cause.where else None)


class _WaitCause(NamedTuple):
    """Why a step waits until another step ends."""

    where: str  # the beginning of the message: the clusters on which the step waits; "" for all clusters
    taken: str  # the end of the message: the thing that each of the two steps takes
    fix: str


def _cause_of_waiting(plan: DryRun, first: Step, second: Step, node: str) -> _WaitCause | None:
    """Return why the second step waits for the first on a node; None if it does not wait."""
    shares = [step.takes[node] for step in (first, second)]
    sharing, gpus = {first.sharing, second.sharing}, min(share.gpus for share in shares)
    node_index = plan.grant.nodes.index(node)
    if "overlap" in sharing:
        return None
    if "whole" in sharing:
        fix = "srun --overlap --mem=0 to share, or --exact with -n, -c and the GPUs of each step"
        return _WaitCause("", f"takes all of {node}", fix)
    requested = _requested_gpus(second, node)
    if 2 * gpus > plan.grant.asked_gpus[node_index] and gpus > requested:
        option = plan.script.resources.gpu_option
        fix = f"srun --{option}={'gpu:' * (option == 'gres')}{requested or 1}, the option of the job"
        return _WaitCause("", f"gets {counted(gpus, 'GPU')} of {node}", fix)
    if knows_cpus(plan.script) and any(share.cpus >= plan.grant.cpus[node_index] for share in shares):
        where = "where a job gets only the CPUs that it asks for, "
        return _WaitCause(where, f"takes all of {node}", "srun -n and -c of each step, its part of them")
    if _takes_all_memory(plan, first) and _takes_all_memory(plan, second):
        fix = "srun --mem=..., the part of each step"
        return _WaitCause("where Slurm counts memory, ", "gets all of --mem", fix)
    return None


def _takes_all_memory(plan: DryRun, step: Step) -> bool:
    """Return whether a step takes all memory of the job, because its own options ask for no part."""
    asks_for_part = any(name.startswith("mem") for name in srun_options(step) if name != "mem-bind")
    return bool(plan.script.resources.mem) and not asks_for_part


def _requested_gpus(step: Step, node: str) -> int:
    """Return how many GPUs the options of a step request on a node; 0 if they request none."""
    options = srun_options(step)
    if {"gres", "gpus-per-node"} & options.keys():
        return step.takes[node].gpus
    gpus = number_of(options.get("gpus", "").rpartition(":")[2]) // len(step.takes)
    tasks = sum(process.node == node for process in step.processes)
    return gpus or number_of(options.get("gpus-per-task", "").rpartition(":")[2]) * tasks
