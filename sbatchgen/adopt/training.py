"""The launch of a script that is its training, and what stands beside and behind it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from sbatchgen.adopt.block import Block, blocks
from sbatchgen.adopt.draft import Draft
from sbatchgen.job.launches import Launch
from sbatchgen.job.script import JobScript

REST = "no training is started that could be made a job"
_PLACES = ("function", "loop", "branch", "subshell")
_TOLD = ("echo", "printf", "date", "wait", "exit", "true", "false", "time")


def main(script: JobScript) -> Launch | None:
    """The launch that is the job's training: the last one with srun or a launcher, else the last one."""
    found = script.trainings
    return next((one for one in reversed(found) if one.step or one.launcher), found[-1] if found else None)


def unchained(script: JobScript) -> JobScript:
    """The script with `cd FOLDER || exit; python train.py` where it has `cd FOLDER && python train.py`.

    So what stands before && is a statement of its own, and the training starts only if that went well.
    """
    one = main(script)
    if one is None or one.command.background:
        return script
    home = _home(blocks(script.body), one)
    before = [other for other in home.outer if other.at < one.command.at]
    gaps = [(left.end, right.at) for left, right in pairwise([*before, one.command])]
    text = script.text
    chained = all(text[end:at].strip(" \t\\\n") == "&&" for end, at in gaps)
    if not before or before[0].at != home.start or any(left.test for left in before) or not chained:
        return script
    for end, at in reversed(gaps):
        blank, _, rest = text[end:at].partition("&&")
        semicolon = "" if rest.lstrip(" \t").startswith("\n") else ";"
        text = f"{text[:end]}{blank or ' '}|| exit{semicolon}{rest}{text[at:]}"
    return replace(script, text=text)


def find(draft: Draft, found: Sequence[Block]) -> tuple[Launch, Block] | None:
    """The launch of the training, and where it stands; what else is started is told."""
    chosen = main(draft.script)
    if chosen is None:
        for one in draft.script.launches:
            if not one.is_helper and not one.command.context.substitution:
                what = f"{one.program.name}: no Python program that sbatchgen could start"
                draft.add((one.command.line,), "lost", what)
        return None
    home, context = _home(found, chosen), chosen.command.context
    draft.lines = home.lines
    for name in _PLACES:
        if getattr(context, name) and not (name == "subshell" and chosen.command.background):
            which = f"the function {context.function}" if name == "function" else f"a {name}"
            draft.lose(f"the training is started in {which}: start it outside")
            return None
    for one in draft.script.trainings:
        block = _home(found, one)
        own = one.step or one.launcher or one.command.background or block.start >= home.start
        if one is not chosen and own:
            what = f"a second step, {one.program.name}: a job trains once; make it a job of its own"
            draft.add(block.lines, "lost", what)
    if any(one.exported is False and one.word is None for one in home.sets):
        draft.lose("the launch sets a variable whose value is known only when the job runs")
    if chosen.command.background and any(draft.script.body.traps):
        draft.lose(
            "the training runs in the background while a trap waits: see resume and requeue_on_timeout"
        )
    return chosen, home


def _home(found: Sequence[Block], launch: Launch) -> Block:
    """The block that a launch stands in."""
    return found[bisect_right(found, launch.command.at, key=lambda block: block.start) - 1]


def read_beside(draft: Draft, home: Block, one: Launch) -> None:
    """The other commands of the launch's lines."""
    own = one.command
    for command in home.outer:
        if command is own or (command.pipe is not None and command.pipe is own.pipe):
            continue
        if command.name in _TOLD:
            draft.add(home.lines, "dropped", f"{command.name}: the status of the job is that of the training")
        else:
            draft.lose(f"{command.name} in the statement of the training: put it before")


def read_behind(draft: Draft, block: Block) -> None:
    """What stands after the training."""
    if any(draft.remarks.became(line) == "lost" for line in block.lines):
        return
    if block.only_closes:
        draft.add(block.lines, "dropped", "the job ends here, with the status of the training")
    else:
        what = "runs after the training: make it a job of its own, --dependency=afterok:JOBID"
        draft.add(block.lines, "lost", what)
