"""What a script starts in a dry run, as two scripts can have it in common: ranks and GPUs of each node."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sbatchgen.errors import SbatchgenError
from sbatchgen.inputs.profile import Profile
from sbatchgen.job.script import JobScript
from sbatchgen.plan.planning import plan_of
from sbatchgen.plan.started import Step, launchers_of

HOME = {"HOME": "/home/user", "USER": "user"}


class Start(NamedTuple):
    """The processes of a training on a node."""

    node: str
    ranks: int  # 0 if the launcher's options do not say it
    gpus: int  # that they see together


def starts(script: JobScript, profile: Profile, folder: Path) -> list[Start] | None:
    """Return what the last step of a script starts on each node; None if a dry run does not come so far."""
    try:
        done = plan_of(replace(script, profile=profile), HOME, folder)
    except SbatchgenError:
        return None
    steps = [step for step in done.steps if step.processes and not step.refusal]
    return _of_step(steps[-1], len(done.grant.nodes)) if steps else None


def _of_step(step: Step, nodes: int) -> list[Start]:
    ranks: Counter[str] = Counter()
    gpus: dict[str, set[int]] = {}
    workers = {launcher.process.rank: launcher.workers for launcher in launchers_of(step, nodes)}
    for process in step.processes:
        ranks[process.node] += workers.get(process.rank, 1)
        gpus.setdefault(process.node, set()).update(process.gpus)
    return [Start(node, ranks[node], len(gpus[node])) for node in sorted(gpus)]


def same(documented: list[Start], made: list[Start]) -> bool:
    """Whether both start as many ranks, if both say how many, with as many GPUs on as many nodes."""
    pairs = zip(documented, made, strict=False)
    alike = all(a.gpus == b.gpus and (a.ranks == b.ranks or 0 in (a.ranks, b.ranks)) for a, b in pairs)
    return alike and len(documented) == len(made)
