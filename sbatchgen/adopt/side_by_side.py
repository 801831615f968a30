"""Steps that run side by side, `srun ... &` and `wait`, as the programs of a job.

Only where it is certain which nodes each gets: all are in the background, and together they have the nodes of
the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sbatchgen.adopt.block import Block
from sbatchgen.adopt.draft import Draft
from sbatchgen.adopt.trainer_arguments import arguments
from sbatchgen.bash.chain import Tool
from sbatchgen.job.launches import Launch
from sbatchgen.resolved.programs import MOST
from sbatchgen.units import ProgramName

# Options of srun: those of a program's share, and those that change nothing of what starts where.
_SHARES = {"cpus-per-task": "cpus", "gpus": "gpus", "gpus-per-node": "gpus", "gres": "gpus"}
_SAME = """
error exact exclusive job-name label mem mem-per-cpu nodes ntasks ntasks-per-node output overlap unbuffered
"""
_ENDS = "a program that fails ends the job, with its status: `wait` would wait for the others, and end with 0"


class BackgroundStep(NamedTuple):
    """A step in the background, and the statement that starts it."""

    launch: Launch
    block: Block
    program: dict[str, Any]  # its keys in the job file


def find_steps(draft: Draft, statements: Sequence[Block]) -> list[BackgroundStep]:
    """Return the steps that become programs; none unless that is certain."""
    launches = [each for each in draft.script.launches if not each.is_helper]
    if not 2 <= len(launches) <= MOST:
        return []
    steps = []
    for launch in launches:
        block = next((each for each in statements if each.start <= launch.command.at < each.end), None)
        program = _program(draft, launch) if block and _is_alone(launch, block) else None
        if block is None or program is None:
            return []
        steps.append(BackgroundStep(launch, block, program))
    rest = _after(steps, statements)
    nodes = sum(step.program["nodes"] for step in steps)
    waits = [command for block in rest for command in block.commands if command.name == "wait"]
    is_certain = nodes == draft.script.resources.nodes and draft.script.resources.tasks_per_node == 1
    for_all = bool(waits) and all(len(command.words) == 1 for command in waits)
    closes = for_all and all(block.only_closes for block in rest)
    return steps if is_certain and closes and not any(draft.body.traps) else []


def adopt_steps(draft: Draft, steps: Sequence[BackgroundStep], statements: Sequence[Block]) -> None:
    """Take over the steps."""
    programs = draft.job["programs"] = {}
    for (launch, block, program), name in zip(steps, _names(steps), strict=True):
        programs[name] = program
        draft.add(block.lines, "understood", f"program {name}: {launch.program.words[0].text}")
    for block in _after(steps, statements):
        draft.add(block.lines, "dropped", "the job ends with the last of its programs")
    for option in ("nodes", "ntasks", "ntasks_per_node"):
        draft.options.pop(option, None)
    draft.changed |= {"ntasks", "ntasks-per-node"}
    draft.note(_ENDS)


def _after(steps: Sequence[BackgroundStep], statements: Sequence[Block]) -> list[Block]:
    """Return the other statements after the first step."""
    ours = [step.block for step in steps]
    return [block for block in statements if block.start > ours[0].start and block not in ours]


def _is_alone(launch: Launch, block: Block) -> bool:
    """Whether a statement is a step in the background, and nothing else."""
    command = launch.command
    is_step = bool(launch.tools) and launch.tools[0] is launch.step
    plain = command.background and command.context.top and not command.pipe and not command.prefix
    writes = all(redirect.operator.startswith((">", "&>")) for redirect in command.redirects)
    return is_step and plain and writes and [*block.commands] == [command]


def _program(draft: Draft, launch: Launch) -> dict[str, Any] | None:
    step = launch.step
    if step is None or {option.name for option in step.given} - {*_SAME.split(), *_SHARES}:
        return None
    words = [value for _, value in arguments(draft, step.rest, draft.body, in_task=False)]
    nodes, tasks = launch.nodes, launch.tasks
    if None in words or "nodes" not in step.options or nodes is None or tasks != nodes:
        return None
    share = dict(_share(step))
    return None if None in share.values() else {"command": words, "nodes": nodes, **share}


def _share(step: Tool) -> Iterator[tuple[str, int | None]]:
    """Yield the GPUs and CPUs that a step asks for on each node; None for what is not a number."""
    for option in step.given:
        if key := _SHARES.get(option.name):
            match = re.fullmatch(r"(?:gpu:)?(?:[a-z][\w.]*:)?(\d+)", option.value or "")
            is_known = match and (option.name != "gpus" or step.options["nodes"] == "1")
            yield key, int(match[1]) if match and is_known else None


def _names(steps: Sequence[BackgroundStep]) -> list[str]:
    """Return a name for each program: that of its file, with a number where two would have the same."""
    names: list[str] = []
    for launch, *_ in steps:
        words = launch.program.rest if launch.program.name == "python" else launch.program.words
        file = words[0].text.rpartition("/")[2].partition(".")[0] if words else ""
        stem = re.sub("[^a-z0-9]+", "-", file.lower()).strip("-0123456789") or "program"
        taken = stem in names or stem in ProgramName.TAKEN
        names.append(f"{stem}-{len(names) + 1}" if taken else stem)
    return names
