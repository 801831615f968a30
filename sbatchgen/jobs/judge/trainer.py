"""The user's own trainer: the facts in its source, and whether a job that starts again can resume it."""

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
        has_earlier_job: bool = False,
    ) -> None:
        super().__init__(resolved)
        self.submit_folder = submit_folder
        self.environment = environment  # the variables of the user's shell
        self.has_earlier_job = has_earlier_job  # whether an earlier job has trained in this run folder

    @cached_property
    def working_folder(self) -> Path | None:
        """The folder in which the job starts its trainer; None if only the running job knows the folder."""
        resolved = self.resolved
        folder = ShellPath(
            (resolved.snapshot_dir if resolved.uses_slurm else "") or resolved.options.chdir or ""
        )
        may_be_in_image = resolved.runtime.is_container and (resolved.trainer or "").startswith("/")
        if may_be_in_image or folder.unset(self.environment):
            return None
        return self.submit_folder / folder.filled(self.environment)

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
        folder, saved_files = self.working_folder or self.submit_folder, self.source.saved_files
        may_have_checkpoint = not saved_files or any((folder / file.name).exists() for file in saved_files)
        may_continue = self.resolved.stoppable or self.resolved.never_asks_for_restart
        return self.has_earlier_job and may_continue and may_have_checkpoint

    @property
    def shared_file(self) -> SavedFile | None:
        """The one file to which all points of a sweep, or all tasks of an array, save; None without one."""
        sweep = self.resolved.sweep
        parameters = sweep.names if sweep else ()
        if self.source:
            for file in self.source.saved_files:
                name = _named_file(file, self.resolved.args) if file.option else file.name
                differs = "{" in name or file.option.lstrip("-") in parameters  # from point to point
                if name and not differs:
                    return replace(file, name=name)
        return None


def check_trainer(job: TrainerJob) -> list[Finding]:
    """Return the findings about the trainer of a job."""
    return [finding for rule in judge.rules(judge.TRAINERS) for finding in judge.findings(rule, job)]


def _named_file(file: SavedFile, args: Sequence[str]) -> str:
    """Return the name of a saved file: the value of the trainer's option for it, or the option's default."""
    for arg, next_arg in itertools.zip_longest(args, args[1:], fillvalue=""):
        if arg == file.option or arg.startswith(f"{file.option}="):
            return str(next_arg if arg == file.option else arg.partition("=")[2])
    return file.name


# Keys with which a user or a profile decides whether and when a job starts again.
_RESTART_KEYS = ("resume", "max_restarts", "requeue_on_node_fail", "options.signal")


def layer_without_restarts(
    resolved: ResolvedJob, submit_folder: Path | None, environment: Mapping[str, str]
) -> Layer | None:
    """Return a layer with `resume: off` for a job if its own trainer certainly never asks for a restart.

    If the trainer may load what it saves, the layer also has --requeue: Slurm then starts the job again after
    a node fails. Return None if the user or the profile has set a key of restarts, if the trainer may handle
    signals, or if its source can't be read. `submit_folder` is None if the files are on another machine.
    """
    is_decided = any(resolved.origin(key).level > Level.DEFAULT for key in _RESTART_KEYS)
    if submit_folder is None or not resolved.trainer or is_decided or promises_restarts(resolved):
        return None
    source = TrainerJob(resolved, submit_folder, environment).source
    if source is None or not source.never_asks_for_restart or not source.lacks_signal_handlers:
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
    """Return whether the job certainly starts again.

    It may start again at its time limit, after preemption, or as the next job of a chain.
    """
    is_requeued = resolved.partition.preemption == "requeue" and bool(resolved.options.requeue)
    return resolved.restartable and (resolved.consecutive or not resolved.asks_to_stop or is_requeued)


def work_lost(resolved: ResolvedJob, source: TrainerSource | None) -> str:
    """Return a message about work that the time limit or a restart loses; "" if the training may be resumed.

    The review shows the message in its row "restarts".
    """
    if source is None or not (resolved.restartable or resolved.never_asks_for_restart):
        return ""
    fault = checkpoint_fault(str(resolved.trainer), source)
    if fault and promises_restarts(resolved):
        return f"{fault}: each restart begins at the first step{MAY_OVERWRITE * source.never_loads}"
    if source.saves_nothing:
        return f"{fault}: at the time limit its work is lost"
    if source.never_asks_for_restart and not promises_restarts(resolved):
        why, remedy = "asks for none", source.resume_fix
        if fault:
            why = "never loads what it saves"
            remedy = "let the trainer load its checkpoint, then add --requeue-on-timeout"
        return f"none at the time limit, because {resolved.trainer} {why}: {remedy}"
    return ""


MAY_OVERWRITE = ", and may overwrite what it has saved"  # ends a message about a trainer that never loads


def checkpoint_fault(trainer: str, source: TrainerSource | None) -> str:
    """Return a message that a trainer saves nothing, or never loads what it saves; "" if it may resume."""
    if source and source.saves_nothing:
        return f"{trainer} saves nothing"
    return f"{trainer} never loads what it saves" if source and source.never_loads else ""
