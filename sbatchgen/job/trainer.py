"""A trainer of one's own, seen from the folder of submission: its text, and what follows for restarts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from sbatchgen.job.job import PlannedJob
from sbatchgen.job.trainer_source import TrainerSource, read_trainer
from sbatchgen.plan.plan import Plan
from sbatchgen.units import ShellPath


class TrainerJob(PlannedJob):
    """The job of a plan that is submitted here.

    Attributes:
        here: The folder of submission.
        environment: The user's.
    """

    def __init__(self, plan: Plan, here: Path, environment: Mapping[str, str]) -> None:
        super().__init__(plan)
        self.here = here
        self.environment = environment

    @cached_property
    def working(self) -> Path | None:
        """Where the trainer is looked for; None if that is not here."""
        plan = self.plan
        named = (plan.snapshot_dir if plan.slurm else None) or plan.options.chdir
        in_image = plan.runtime.is_container and (plan.trainer or "").startswith("/")
        if in_image or (named and ShellPath(named).unset(self.environment)):
            return None
        return self.here / ShellPath(named).filled(self.environment) if named else self.here

    @cached_property
    def source(self) -> TrainerSource | None:
        """What the trainer's text says; None if it can't be read from here, or is the bundled one's."""
        trainer = self.plan.trainer
        return read_trainer(trainer, self.working) if trainer and self.working else None


def promises_restarts(plan: Plan) -> bool:
    """Whether the job is started again whatever the trainer says: at its time limit, or in the next job."""
    return plan.restartable and (plan.consecutive or not plan.asks_to_stop)


def fate(plan: Plan, source: TrainerSource | None) -> str:
    """Say what happens to a training at its time limit where it is not resumed; "" if it may be."""
    if source is None or not plan.restartable:
        return ""
    if source.saves_nothing and promises_restarts(plan):
        return f"{plan.trainer} saves nothing: each restart begins at the beginning"
    if source.saves_nothing:
        return f"{plan.trainer} saves nothing: at the time limit its work is lost"
    if source.never_asks and not promises_restarts(plan):
        return f"{plan.trainer} asks for none: at the time limit the job ends; see --requeue-on-timeout"
    return ""
