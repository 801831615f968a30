"""The user's own trainer: the facts in its source, and their consequences for restarts of the job."""

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
    """A resolved job with its trainer and the folder of submission, as the rules of trainers judge it."""

    def __init__(
        self,
        resolved: ResolvedJob,
        submit_folder: Path,
        environment: Mapping[str, str],
        *,
        earlier: bool = False,
    ) -> None:
        super().__init__(resolved)
        self.submit_folder = submit_folder
        self.environment = environment  # the variables of the user's shell
        self.earlier = earlier  # whether an earlier job has trained in the run folder

    @cached_property
    def working_folder(self) -> Path | None:
        """The folder in which the job starts its trainer; None if only the running job knows the folder."""
        resolved = self.resolved
        named = (resolved.snapshot_dir if resolved.slurm else None) or resolved.options.chdir
        in_image = resolved.runtime.is_container and (resolved.trainer or "").startswith("/")
        if in_image or (named and ShellPath(named).unset(self.environment)):
            return None
        return self.submit_folder / ShellPath(named).filled(self.environment) if named else self.submit_folder

    @cached_property
    def source(self) -> TrainerSource | None:
        """The facts in the trainer's source; None for an unreadable source, and for the bundled trainer."""
        trainer = self.resolved.trainer
        return read_trainer(trainer, self.working_folder) if trainer and self.working_folder else None

    @property
    def starts_again(self) -> bool:
        """Whether the job certainly starts again, or continues the training of an earlier job."""
        if promises_restarts(self.resolved) or self.source is None:
            return promises_restarts(self.resolved)
        folder, saved = self.working_folder or self.submit_folder, self.source.saved
        has_checkpoint = not saved or any((folder / file.name).exists() for file in saved)
        continues = self.resolved.stoppable or self.resolved.never_asks
        return self.earlier and continues and has_checkpoint

    @property
    def shared_file(self) -> SavedFile | None:
        """The file to which all points of a sweep, or all tasks of an array, save, or None."""
        resolved, names = self.resolved, {*(self.resolved.sweep.names if self.resolved.sweep else ())}
        for file in self.source.saved if self.source else ():
            name = _named_file(file, resolved.args) if file.option else file.name
            if name and "{" not in name and file.option.lstrip("-") not in names:
                return replace(file, name=name)
        return None


def check_trainer(job: TrainerJob) -> list[Finding]:
    """Return the findings about the trainer of a job."""
    return [finding for rule in judge.rules(judge.TRAINERS) for finding in judge.findings(rule, job)]


def _named_file(file: SavedFile, args: Sequence[str]) -> str:
    """Return the name of a saved file: the value of the trainer's option for it, or the option's default."""
    for word, following in itertools.zip_longest(args, args[1:], fillvalue=""):
        if word == file.option or word.startswith(f"{file.option}="):
            return str(following if word == file.option else word.partition("=")[2])
    return file.name


# Keys with which a user or a profile decides how a job continues.
_RESTART_KEYS = ("resume", "max_restarts", "requeue_on_node_fail", "options.signal")


def layer_without_restarts(
    resolved: ResolvedJob, submit_folder: Path | None, environment: Mapping[str, str]
) -> Layer | None:
    """Return a layer with `resume: off` for a job whose own trainer certainly never asks for a restart.

    Slurm still starts the job again after a node fails, unless the trainer never loads what it saves.

    Return None if the job decides how it continues, if the trainer may handle signals, or if its source can't
    be read. `submit_folder` is None if the files are on another machine.
    """
    decides = any(resolved.origin(key).level > Level.DEFAULT for key in _RESTART_KEYS)
    if submit_folder is None or not resolved.trainer or decides or promises_restarts(resolved):
        return None
    source = TrainerJob(resolved, submit_folder, environment).source
    if source is None or not source.never_asks or not source.lacks_handlers:
        return None
    if resolved.gives_resume_args or "{resume}" in " ".join(resolved.args):
        return None
    values: dict[str, Any] = {"resume": Resume("off")}
    places = {"resume": f"{resolved.trainer} never asks for a restart"}
    if resolved.restartable and not checkpoint_fault(resolved.trainer, source):
        requeue = {"options.requeue": True, "options.open_mode": Text("append")}
        values |= {key: requeue[key] for key in requeue if resolved.origin(key).level is Level.DEFAULT}
    return Layer(Level.DEFAULT, values, dict.fromkeys(values, "a node may fail") | places)


def promises_restarts(resolved: ResolvedJob) -> bool:
    """Return whether the job certainly starts again: at its limit, after preemption, or as the next job."""
    requeues = resolved.partition.preemption == "requeue" and bool(resolved.options.requeue)
    return resolved.restartable and (resolved.consecutive or not resolved.asks_to_stop or requeues)


def work_lost(resolved: ResolvedJob, source: TrainerSource | None) -> str:
    """Return a message about work that is lost if the training is not resumed; "" if it may be resumed."""
    if source is None or not (resolved.restartable or resolved.never_asks):
        return ""
    fault = checkpoint_fault(str(resolved.trainer), source)
    if fault and promises_restarts(resolved):
        return f"{fault}: each restart begins at the first step{MAY_OVERWRITE * source.never_loads}"
    if source.saves_nothing:
        return f"{fault}: at the time limit its work is lost"
    if source.never_asks and not promises_restarts(resolved):
        how, why = source.way_to_resume, "asks for none"
        if fault:
            how = "let the trainer load its checkpoint, then add --requeue-on-timeout"
            why = "never loads what it saves"
        return f"none at the time limit, because {resolved.trainer} {why}: {how}"
    return ""


MAY_OVERWRITE = ", and may overwrite what it has saved"


def checkpoint_fault(trainer: str, source: TrainerSource | None) -> str:
    """Return a message that a trainer saves nothing, or never loads; "" if it may resume, or is not known."""
    if source and source.saves_nothing:
        return f"{trainer} saves nothing"
    return f"{trainer} never loads what it saves" if source and source.never_loads else ""
