"""What the rules find in a resolved job and in its trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbatchgen.base.finding import Finding
from sbatchgen.check.rules import judge
from sbatchgen.jobs.judge.judged_job import JudgedJob
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

if TYPE_CHECKING:
    from sbatchgen.jobs.judge.trainer import TrainerJob


def check(resolved: ResolvedJob, *, log_folders_made: bool = False) -> list[Finding]:
    """All findings of a resolved job, errors first; `log_folders_made`: its logs' folders will be created."""
    job = JudgedJob(resolved, makes_log_folders=log_folders_made)
    wanted = judge.rules((*judge.RESOLVED, *judge.JOBS) if resolved.slurm else judge.RESOLVED)
    every = [finding for rule in wanted for finding in judge.findings(rule, job) if not finding.pedantic]
    # that no partition fits follows from the others
    return sorted(every, key=lambda finding: (finding.severity != "error", finding.rule == "SB203"))


def check_trainer(job: TrainerJob) -> list[Finding]:
    """Return what the folder and the environment of submission say of a resolved job's trainer."""
    return [finding for rule in judge.rules(judge.TRAINERS) for finding in judge.findings(rule, job)]
