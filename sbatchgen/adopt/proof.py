"""The old script and the new one compared: what both ask of Slurm, what they start, what lint finds."""

from __future__ import annotations

from collections.abc import Sequence

from sbatchgen.adopt import training
from sbatchgen.adopt.directives import options_of
from sbatchgen.adopt.draft import Draft
from sbatchgen.bash import Word
from sbatchgen.finding import Finding
from sbatchgen.job.launches import Launch
from sbatchgen.job.script import JobScript
from sbatchgen.plan.plan import Plan
from sbatchgen.sbatch.values import mebibytes, minutes

_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu", "tmp")


def compare(draft: Draft, plan: Plan, new: JobScript) -> None:
    """Tell what differs, as lost."""
    old = draft.script
    asked, asks = _asked(old), _asked(new)
    asked.setdefault("job-name", draft.options.get("job_name", ""))
    for option in sorted(asked.keys() | asks.keys()):
        before, after = asked.get(option, ""), asks.get(option, "")
        if before != after and option not in draft.changed:
            what = f"--{option}: {before or 'none'} in the old script, {after or 'none'} in the new one"
            draft.add((), "lost", what)
    setup = {*draft.setup}
    kept = {number for number, line in enumerate(new.lines, start=1) if line in setup}
    for name in _overwritten(draft, plan, new, kept):
        what = f"the new script sets {name} too: write its value as plain text, or give it another name"
        draft.add((), "lost", what)
    for name, lines in _redefined(draft, new, kept).items():
        draft.add(lines, "lost", f"the new script has its own function {name}: give this one another name")
    started = _started(old, draft), _started(new, draft)
    if started[0] != started[1] and not draft.remarks.any_lost:
        draft.add((), "lost", f"the old script starts {started[0]}, the new one {started[1]}")


def _asked(script: JobScript) -> dict[str, str]:
    """What is asked of Slurm, each value as Slurm counts."""
    found = {}
    for name, use in options_of(script).items():
        text = "set" if use.value is None else use.value
        if name in ("time", "time-min"):
            text = str(minutes(text))
        elif name in _MEMORY:
            text = str(mebibytes(text))
        found[name] = text
    return found


def _overwritten(draft: Draft, plan: Plan, new: JobScript, kept: set[int]) -> list[str]:
    """The variables that kept lines set for the trainer, and the new script sets anew."""
    folders = ("CODE_DIR", "DATA_DIR", *(["RUN_DIR"] if plan.runtime in ("apptainer", "enroot") else []))
    sets = [one for one in new.body.sets if not one.prefix]
    theirs = {one.name for one in sets if one.line in kept and (one.exported or one.name in folders)}
    ours = {
        one.name
        for one in sets
        if one.line not in kept and not (one.word and one.name in one.word.variables)  # PATH=FOLDER:$PATH
    }
    return sorted((theirs & ours) - draft.meeting - draft.env.keys())


def _redefined(draft: Draft, new: JobScript, kept: set[int]) -> dict[str, list[int]]:
    """The functions of kept lines that would replace those of the new script, each with its old lines."""
    ours = {one.context.function for one in new.body.commands if one.line not in kept} - {""}
    found: dict[str, list[int]] = {}
    for one in draft.script.body.commands:
        if one.context.function in ours and draft.remarks.became(one.line) == "kept":
            found.setdefault(one.context.function, []).append(one.line)
    return found


def _started(script: JobScript, draft: Draft) -> tuple[object, ...]:
    """What the training of a script starts: processes on a node, program and arguments."""
    chosen = training.main(script)
    if chosen is None:
        return ()
    launcher = chosen.launcher
    workers = chosen.workers or (script.resources.gpu_count if launcher else 1)
    agents = 1 if launcher else chosen.tasks_per_node
    words = chosen.program.rest if chosen.program.name != "python" else chosen.program.rest[1:]
    return (workers, agents, _arguments(words, chosen, draft))


def _arguments(words: Sequence[Word], chosen: Launch, draft: Draft) -> tuple[str, ...]:
    body = chosen.program.body
    texts = ((draft.argument(word, body), word.text) for word in words)
    return tuple(as_written if text is None else text for text, as_written in texts)


def mended_and_left(
    draft: Draft, before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """The old script's findings that the new one does not have, told at their lines, and the others."""
    still = {one.rule for one in after}
    mended = [one for one in before if one.rule not in still]
    for finding in mended:
        if line := finding.place.line:
            kept = finding.rule.startswith("SB1") and draft.remarks.became(line) == "understood"
            as_read = "as Slurm reads it today, " if kept else ""
            draft.add((line,), "mended", f"{as_read}{finding.rule}: {finding.problem.what}")
    return mended, [one for one in before if one.rule in still]
