"""The user's own trainer, seen from the folder of submission: its text, and what follows for restarts."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbatchgen.base.finding import Finding
from sbatchgen.base.frozen import cached_property
from sbatchgen.base.units import Resume, ShellPath, Text
from sbatchgen.check.rules import judge
from sbatchgen.check.script.saved_files import SavedFile
from sbatchgen.check.script.trainer_source import TrainerSource, read_trainer
from sbatchgen.jobs.inputs.layers import Layer, Level
from sbatchgen.jobs.judge.job_check import JudgedJob
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob


class TrainerJob(JudgedJob):
    """A resolved job that is submitted here, as rules judge it."""

    def __init__(
        self, resolved: ResolvedJob, here: Path, environment: Mapping[str, str], *, earlier: bool = False
    ) -> None:
        super().__init__(resolved)
        self.here = here  # the folder of submission
        self.environment = environment  # the user's
        self.earlier = earlier  # whether another job has trained in its run folder

    @cached_property
    def working(self) -> Path | None:
        """Where the trainer is looked for; None if that is not here."""
        resolved = self.resolved
        named = (resolved.snapshot_dir if resolved.slurm else None) or resolved.options.chdir
        in_image = resolved.runtime.is_container and (resolved.trainer or "").startswith("/")
        if in_image or (named and ShellPath(named).unset(self.environment)):
            return None
        return self.here / ShellPath(named).filled(self.environment) if named else self.here

    @cached_property
    def source(self) -> TrainerSource | None:
        """The facts in the trainer's source; None for an unreadable source, and for the bundled trainer."""
        trainer = self.resolved.trainer
        return read_trainer(trainer, self.working) if trainer and self.working else None

    @property
    def starts_again(self) -> bool:
        """Whether the job starts again in any case, or continues the training of another job."""
        if promises_restarts(self.resolved) or self.source is None:
            return promises_restarts(self.resolved)
        folder, saved = self.working or self.here, self.source.saved
        is_there = not saved or any((folder / file.name).exists() for file in saved)
        continues = self.resolved.stoppable or self.resolved.never_asks
        return self.earlier and continues and is_there

    @property
    def shared_file(self) -> SavedFile | None:
        """The file into which all points of its sweep, or all elements of its array, save."""
        resolved, names = self.resolved, {*(self.resolved.sweep.names if self.resolved.sweep else ())}
        for file in self.source.saved if self.source else ():
            name = _given(file, resolved.args) if file.option else file.name
            if name and "{" not in name and file.option.lstrip("-") not in names:
                return replace(file, name=name)
        return None


def check_trainer(job: TrainerJob) -> list[Finding]:
    """Return the findings about the trainer of a job in the folder and environment of submission."""
    return [finding for rule in judge.rules(judge.TRAINERS) for finding in judge.findings(rule, job)]


def _given(file: SavedFile, args: Sequence[str]) -> str:
    """Return the file that an option of the trainer names, or its default."""
    for word, following in itertools.zip_longest(args, args[1:], fillvalue=""):
        if word == file.option or word.startswith(f"{file.option}="):
            return str(following if word == file.option else word.partition("=")[2])
    return file.name


# By these a user or a profile says how a job continues.
_RESTART_KEYS = ("resume", "max_restarts", "requeue_on_node_fail", "options.signal")


def restarts_of_source(
    resolved: ResolvedJob, here: Path | None, environment: Mapping[str, str]
) -> Layer | None:
    """Return values without restarts for a job whose own trainer certainly never asks for a restart.

    Where it may handle a signal, bash has to wait for it. Slurm still starts it again after a failure of a
    node, unless it certainly forgets what it has saved. None if the job says how it continues, or the trainer
    can't be read; `here` is None if its files are elsewhere.
    """
    says = any(resolved.origin(key).level > Level.DEFAULT for key in _RESTART_KEYS)
    if here is None or not resolved.trainer or says or promises_restarts(resolved):
        return None
    source = TrainerJob(resolved, here, environment).source
    if source is None or not source.never_asks or not source.lacks_handlers:
        return None
    if resolved.gives_resume_args or "{resume}" in " ".join(resolved.args):
        return None
    values: dict[str, Any] = {"resume": Resume("off")}
    places = {"resume": f"{resolved.trainer} never asks for a restart"}
    if resolved.restartable and not forgets_all(resolved.trainer, source):
        after = {"options.requeue": True, "options.open_mode": Text("append")}
        values |= {key: after[key] for key in after if resolved.origin(key).level is Level.DEFAULT}
    return Layer(Level.DEFAULT, values, dict.fromkeys(values, "a node may fail") | places)


def promises_restarts(resolved: ResolvedJob) -> bool:
    """Return whether the job starts again in any case.

    At its time limit, preempted, in a next job.
    """
    requeues = resolved.partition.preemption == "requeue" and bool(resolved.options.requeue)
    return resolved.restartable and (resolved.consecutive or not resolved.asks_to_stop or requeues)


def fate(resolved: ResolvedJob, source: TrainerSource | None) -> str:
    """Return what is lost at the time limit of a training that is not resumed; "" if it may resume."""
    if source is None or not (resolved.restartable or resolved.never_asks):
        return ""
    forgets = forgets_all(str(resolved.trainer), source)
    if forgets and promises_restarts(resolved):
        return f"{forgets}: each restart begins at the first step{OVERWRITES * source.never_loads}"
    if source.saves_nothing:
        return f"{forgets}: at the time limit its work is lost"
    if source.never_asks and not promises_restarts(resolved):
        how = (
            "let the trainer load its checkpoint, then add --requeue-on-timeout"
            if forgets
            else source.way_to_resume
        )
        why = "never loads what it saves" if forgets else "asks for none"
        return f"none at the time limit, because {resolved.trainer} {why}: {how}"
    return ""


OVERWRITES = ", and may overwrite what it has saved"


def forgets_all(trainer: str, source: TrainerSource | None) -> str:
    """Say that a trainer saves nothing, or never loads; "" if it may resume, or nothing is known."""
    if source and source.saves_nothing:
        return f"{trainer} saves nothing"
    return f"{trainer} never loads what it saves" if source and source.never_loads else ""
