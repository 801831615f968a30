"""The launch of a script that is its training, and what stands beside and behind it."""

from __future__ import annotations

from collections.abc import Sequence

from sbatchgen.adopt.block import Block
from sbatchgen.adopt.draft import Draft
from sbatchgen.job.launches import Launch

REST = "no training is started that could be made a job"
_PLACES = ("function", "loop", "branch", "subshell")
_TOLD = ("echo", "printf", "date", "wait", "exit", "true", "false", "time")


def find(draft: Draft, found: Sequence[Block]) -> tuple[Launch, Block] | None:
    """The launch of the training, and where it stands; what else is started is told."""
    trainings = [one for one in draft.script.trainings if one.command.name != "command"]
    homes = {id(one): block for one in trainings for block in found if one.command.line in block.lines}
    trainings = [one for one in trainings if id(one) in homes]
    if not trainings:
        for one in draft.script.launches:
            if not one.is_helper and not one.command.context.substitution:
                what = f"{one.program.name}: no Python program that this tool could start"
                draft.add((one.command.line,), "lost", what)
        return None
    chosen = next((one for one in reversed(trainings) if one.step or one.launcher), trainings[-1])
    home, context = homes[id(chosen)], chosen.command.context
    draft.lines = home.lines
    for name in _PLACES:
        if getattr(context, name) and not (name == "subshell" and chosen.command.background):
            which = f"the function {context.function}" if name == "function" else f"a {name}"
            draft.lose(f"the training is started in {which}: start it outside")
            return None
    for one in trainings:
        block = homes[id(one)]
        own = one.step or one.launcher or one.command.background or block.first > home.last or block is home
        if one is not chosen and own:
            what = f"a second step, {one.program.name}: a job trains once; make it a job of its own"
            draft.add(block.lines, "lost", what)
    if any(one.exported is False and one.word is None for one in home.sets):
        draft.lose("what is started depends on more than the text tells")
    if chosen.command.background and any(draft.script.body.traps):
        draft.lose(
            "the training runs in the background while a trap waits: see resume and requeue_on_timeout"
        )
    return chosen, home


def read_beside(draft: Draft, home: Block, one: Launch) -> None:
    """The other commands of the launch's lines."""
    own = one.command
    for command in home.outer:
        same = command is own or (command.line == own.line and command.name in ("eval", "tee"))
        if same or (command.pipe is not None and command.pipe is own.pipe):
            continue
        if command.name in _TOLD:
            draft.add(home.lines, "dropped", f"{command.name}: the status of the job is that of the training")
        else:
            draft.lose(f"{command.name} beside the training")


def read_behind(draft: Draft, block: Block) -> None:
    """What stands after the training."""
    if any(draft.remarks.became(line) == "lost" for line in block.lines):
        return
    if block.only_closes:
        draft.add(block.lines, "dropped", "the job ends here, with the status of the training")
    else:
        what = "runs after the training: make it a job of its own, --dependency=afterok:JOBID"
        draft.add(block.lines, "lost", what)
