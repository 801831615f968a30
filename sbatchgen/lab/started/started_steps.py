"""Rules about steps in a dry run: steps that Slurm refuses, that wait, or that want the same GPU.

Source: srun(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from sbatchgen.base.quoting import counted
from sbatchgen.check.rules import steps
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.rules.survival import SERVER_COMMAND
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.overlaps import at_once, overlaps, srun_options
from sbatchgen.lab.plan.stand_ins import knows_cpus
from sbatchgen.lab.plan.started import Step
from sbatchgen.lab.plan.step_tasks import number_of
from sbatchgen.lab.started.started_launchers import NCCL, SAME_GPU
from sbatchgen.lab.started.started_variables import nodes_of

RULES: Rules[DryRun] = Rules()

_LOCALHOST = re.compile(r"(?:localhost|127\.0\.0\.1):(\d{2,5})\b")


@RULES.add("SB340", "warning", "a step that Slurm refuses", source="srun(1)")
def _refused(done: DryRun) -> Iterator[Hit]:
    for step in done.steps:
        if step.refusal and not any(nodes_of(done, step)):
            what = f"Slurm refuses this step: {step.refusal}"
            fix = "see -n, -N and -c of srun"
            if "(gres)" in step.refusal and not any(done.grant.gpus):
                what = f"Slurm refuses this step, unless the partition gives whole nodes: {step.refusal}"
                fix = "ask for the GPUs of the job, as by --gpus-per-node, or plan with --profile"
            yield Hit(done.at(step.line), what, fix)


@RULES.add(*SAME_GPU, source=NCCL)
def _same_gpu(done: DryRun) -> Iterator[Hit]:
    """Find programs that the script puts on the same GPU while another GPU of the node is idle."""
    started = [(step, process) for step in done.steps if not step.is_srun for process in step.processes]
    chosen = [
        (step, process.gpus)
        for step, process in started
        if process.gpus and "CUDA_VISIBLE_DEVICES" in process.env
    ]
    for (first, gpus), (second, others) in combinations(chosen, 2):
        used = {gpu for step, numbers in chosen if step.waits == first.waits for gpu in numbers}
        idle = {*range(min(done.grant.gpus))} - used
        shared = {*gpus} & {*others}
        if at_once(first, second) and shared and idle:
            what = f"this program and that of line {first.line} want GPU {min(shared)} at once"
            fix = f"CUDA_VISIBLE_DEVICES={min(idle)} for one of them: this GPU is idle"
            yield Hit(done.at(second.line), what, fix)
            return


@RULES.add("SB347", "warning", "a server on another node than localhost", source="docs/design/slurm.md")
def _server_elsewhere(done: DryRun) -> Iterator[Hit]:
    """Find steps that ask a server at localhost while Slurm runs the server on another node."""
    started = [(step, process) for step in done.steps for process in step.processes if not done.ended.limit]
    listening = [(step, process.node, _possible_ports(process.argv)) for step, process in started]
    lines = set()
    for step, process in started:
        for port in _LOCALHOST.findall(" ".join(process.argv)):
            servers = [(first, node) for first, node, ports in listening if port in ports]
            running = {node: first.line for first, node in servers if at_once(first, step)}
            if running and step.line not in lines and all(node != process.node for _, node in servers):
                lines.add(step.line)
                node, line = min(running.items())
                what = f"this runs on {process.node} and asks localhost:{port}, but the program of line "
                what += f"{line} listens on {node}"
                yield Hit(done.at(step.line), what, "srun -w NODE for both, or the name of the node")


def _possible_ports(argv: Sequence[str]) -> set[str]:
    """Return the words of a command that may be a port; of a word with =, only the part after it."""
    return {word.rpartition("=")[2] for word in argv if "://" not in word}


@RULES.add(
    "SB348", "warning", "a server that runs on when the others have ended", source="docs/design/slurm.md"
)
def _runs_on(done: DryRun) -> Iterator[Hit]:
    """Find steps in which some tasks serve and others end.

    Slurm ends the step only when all tasks have ended, because a task that ends with 0 does not end the
    others.
    """
    if re.search(r"\bscancel\b|\bSLURM_WAIT\b|\bp?kill\b", done.script.text):
        return
    for step in done.steps if not done.ended.limit else ():
        if not step.is_srun or "wait" in srun_options(step) or step.background:
            continue
        last = {process.rank: process for process in step.processes}
        serving = {
            rank: process for rank, process in last.items() if SERVER_COMMAND.search(" ".join(process.argv))
        }
        if serving and len(serving) < len(last):
            rank = min(serving)
            ends = next(process for number, process in last.items() if number not in serving)
            what = f"{serving[rank].argv[0]} of rank {rank} never ends: when {ends.argv[0]} of rank "
            what += f"{ends.rank} has ended, the step holds its nodes until the time limit"
            yield Hit(done.at(step.line), what, "srun --wait=60")


@RULES.add_for_dry_run(steps.RULES, "SB310")
def _waiting(done: DryRun) -> Iterator[Hit]:
    if any(any(nodes_of(done, step)) for step in done.steps if step.is_srun and not step.refusal):
        return
    lines = set()
    for first, second, shared in overlaps(done):
        node = min(shared)
        if first.line in lines or not all(node in step.takes for step in (first, second)):
            continue
        if (why := _why_waiting(done, first, second, node)) is not None:
            lines.add(first.line)
            where, taken, fix = why
            what = f"{where}this step waits until that of line {first.line} ends: each {taken}"
            yield Hit(done.at(second.line), what, fix, "info" if where else None)


def _why_waiting(done: DryRun, first: Step, second: Step, node: str) -> tuple[str, str, str] | None:
    """Return the condition under which the second step waits, what each step takes, and the fix.

    The condition is "" if the step always waits. Returns None if it does not wait.
    """
    parts = [step.takes[node] for step in (first, second)]
    sharing, held = {first.sharing, second.sharing}, min(part.gpus for part in parts)
    if "overlap" in sharing:
        return None
    if "whole" in sharing:
        fix = "srun --overlap --mem=0 to share, or --exact with -n, -c and the GPUs of each step"
        return "", f"takes all of {node}", fix
    if 2 * held > done.grant.asked_gpus[done.grant.nodes.index(node)] and held > (
        asked := _asked_gpus(second, node)
    ):
        option = done.script.resources.gpu_option
        fix = f"srun --{option}={'gpu:' * (option == 'gres')}{asked or 1}, the option of the job"
        return "", f"gets {counted(held, 'GPU')} of {node}", fix
    cpus = done.grant.cpus[done.grant.nodes.index(node)]
    if knows_cpus(done.script) and any(part.cpus >= cpus for part in parts):
        where = "where a job gets only the CPUs that it asks for, "
        return where, f"takes all of {node}", "srun -n and -c of each step, its part of them"
    if _takes_memory(done, first) and _takes_memory(done, second):
        return "where Slurm counts memory, ", "gets all of --mem", "srun --mem=..., the part of each step"
    return None


def _takes_memory(done: DryRun, step: Step) -> bool:
    """Return whether a step takes all memory of the job, because its own options ask for no part."""
    asks = any(name.startswith("mem") for name in srun_options(step) if name != "mem-bind")
    return bool(done.script.resources.mem) and not asks


def _asked_gpus(step: Step, node: str) -> int:
    """Return how many GPUs the options of a step request on a node; 0 if they request none."""
    options = srun_options(step)
    if {"gres", "gpus-per-node"} & options.keys():
        return step.takes[node].gpus
    gpus = number_of(options.get("gpus", "").rpartition(":")[2]) // len(step.takes)
    tasks = sum(process.node == node for process in step.processes)
    return gpus or number_of(options.get("gpus-per-task", "").rpartition(":")[2]) * tasks
