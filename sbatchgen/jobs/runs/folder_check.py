"""Checks before a submission what the job will find in its run folder, and which of its files are missing.

Without these checks, a job with a missing file would wait in the queue and then fail. The bundled training
package itself forecasts what it will do with a run folder: `python3 training --look`, which imports no torch.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from sbatchgen.base import quoting
from sbatchgen.base.errors import Problem, SlurmError, did_you_mean, parse_error_line
from sbatchgen.base.finding import Finding
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine import child, search_path
from sbatchgen.base.quoting import OR
from sbatchgen.base.units import ShellPath
from sbatchgen.check.script.trainer_name import trainer_is_file
from sbatchgen.jobs.inputs.flags import parameters
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.render import launch
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.resolved.sweep import Sweep
from sbatchgen.jobs.runs import record
from sbatchgen.jobs.slurm.queue import key_of, squeue_jobs

LOOK_TIMEOUT_S = 30  # the time limit of `python3 training --look`
# The most points of a sweep that the trainer checks for a new value, and for a new pair of values. Each check
# takes 50 ms.
MAX_CHECKED_VALUES, MAX_CHECKED_PAIRS = 64, 32
MAX_CHECKED_RECORDS = 100  # the newest submissions of a run folder whose jobs may still wait or run
# Fixes for a run folder that is in use, or that has a checkpoint with other settings.
FIX_OTHER_RUN = "start another run: --run-dir runs/NAME"
FIX_AFRESH = "start from nothing: --resume off"


@frozen(kw_only=True)
class RunFolderForecast:
    """What a job will do at its start, as the trainer forecasts from the run folder.

    The attributes are the keys of the JSON that training/command.py prints; training/runfolder.py makes it.
    """

    # "new" (an empty folder), "afresh" (old checkpoints are set aside), "resume", "done" (nothing is left to
    # do), "changed" (the checkpoint has other settings), "missing" (no such checkpoint), "used" (another
    # process uses the folder) or "evaluate"
    state: str
    checkpoint: str = ""  # the checkpoint from which it resumes
    step: int | None = None  # steps done in this checkpoint; None if not known
    steps: int | None = None  # steps in all; None if not known
    epoch: int | None = None  # epochs done in this checkpoint
    epochs: int | None = None  # epochs in all
    job: str = ""  # the job that saved the checkpoint, or ""
    holder: str = ""  # who uses the folder
    # The old and the new value of each changed setting, by the setting's name
    changed: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def says(self) -> str:
        """The forecast in words, such as "continues from step 30 of 100"; "" for "evaluate"."""
        by = f", saved by job {self.job}" if self.job else ""
        if self.state == "resume" and self.step is None:
            return f"continues from {self.checkpoint}"
        if self.state == "resume":
            steps = f"step {self.step}" + (f" of {self.steps}" if self.steps else "")
            epochs = "" if self.epoch is None else f" ({self.epoch} of {self.epochs} epochs done)"
            return f"continues from {steps}{epochs}{by}"
        return {
            "new": "new",
            "afresh": "starts from nothing; the checkpoints there are set aside",
            "done": f"nothing left to do: {self.epoch} of {self.epochs} epochs are done{by}",
            "changed": f"the checkpoint there has other settings{by}",
            "missing": f"no checkpoint {self.checkpoint}",
            "used": f"in use by {self.holder}",
        }.get(self.state, "")


def error_at(resolved: ResolvedJob, key: str, what: str, fix: str) -> Finding:
    """Return an error about a key of a job; its place is where the user wrote the key."""
    return Finding("error", Problem(what, str(resolved.origin(key)), fix))


def _as_warning(finding: Finding) -> Finding:
    return finding._replace(severity="warning")


def inspect_run_folder(
    resolved: ResolvedJob, run_dir: Path, resume: str
) -> tuple[RunFolderForecast | None, list[Finding]]:
    """Return the forecast of the bundled trainer's start, and errors if it would do nothing or fail.

    `resume` is the value of --resume. The forecast is None for a sweep, and if this machine does not have the
    file system of the run folder.
    """
    flags = ["--run-dir", str(run_dir), "--resume", resume]
    flags += [resolved.mode.flag] if resolved.mode.flag else []
    if resolved.sweep:
        return None, list(_refused_values(resolved, resolved.sweep, flags))
    answer = _ask_trainer([*flags, *resolved.main.args], _process_count(resolved))
    if answer is None:
        return None, []
    if isinstance(answer, Problem):
        return None, [_refused_arguments(answer, str(resolved.origin("args")))]
    forecast = RunFolderForecast(
        **{name: answer[name] for name in RunFolderForecast.__annotations__ if name in answer}
    )
    if forecast.state == "new" and not _has_visible_parent(run_dir):
        return None, []
    return forecast, list(_findings_of_forecast(resolved, run_dir, forecast))


def _process_count(resolved: ResolvedJob) -> int:
    """Return how many processes of the trainer share a batch; each point of a sweep has as many."""
    return resolved.main.nodes * resolved.main.nproc_per_node


def _has_visible_parent(run_dir: Path) -> bool:
    """Return whether a folder above the run folder exists; if not, only the nodes have its file system."""
    return any(folder.is_dir() for folder in run_dir.parents[:-1])  # the last parent is /


def _refused_values(resolved: ResolvedJob, sweep: Sweep, flags: Sequence[str]) -> Iterator[Finding]:
    """Yield an error for each complaint of the trainer about the points of a sweep."""
    reported: set[str] = set()
    for point in _points_to_check(sweep):
        args = [sweep.filled(arg, point) for arg in resolved.args]
        args += sweep.arguments(point, resolved.placeholder_names)
        answer = _ask_trainer([*flags, *args], _process_count(resolved))
        if not isinstance(answer, Problem):
            continue
        # "unrecognized arguments: --flag=0.1" differs for each point. Without the value it is reported once.
        what = re.sub(r"^(unrecognized arguments: [^ =;]+)=[^;]*", r"\1", answer.what)
        if what not in reported:
            reported.add(what)
            yield _refused_arguments(answer._replace(what=what))


def _points_to_check(sweep: Sweep) -> list[tuple[str, ...]]:
    """Return the points that the trainer checks, so that all values and pairs of values are checked.

    The points in which a value occurs for the first time come first, because most mistakes are in one value.
    Points with a new pair of values follow, because the trainer may refuse two values only together. The
    numbers of both are limited, and a large sweep has points that are not checked.
    """
    seen: set[tuple[tuple[str, str], ...]] = set()  # values and pairs of values, each with its parameter
    with_new_value: list[tuple[str, ...]] = []
    with_new_pair: list[tuple[str, ...]] = []
    for point in sweep.points:
        settings = [*zip(sweep.names, point, strict=True)]
        values, pairs = {(setting,) for setting in settings}, {*itertools.combinations(settings, 2)}
        if not values <= seen:
            with_new_value.append(point)
        elif not pairs <= seen:
            with_new_pair.append(point)
        seen |= values | pairs
    return [*with_new_value[:MAX_CHECKED_VALUES], *with_new_pair[:MAX_CHECKED_PAIRS]]


def _refused_arguments(problem: Problem, at: str = "") -> Finding:
    """Return the trainer's complaint about its arguments as an error of the job."""
    see_flags = f"see its flags: python3 {quoting.word(str(_training_package()))} --help"
    fix = problem.fix.replace("python -m training --help", see_flags)
    unknown = re.search(r"unrecognized arguments: (--[\w-]+)", problem.what)
    our_options = {"--yes", "--dry-run", *(flag for option in parameters() for flag in option.opts)}
    if unknown and unknown[1] in our_options:
        fix = f"{unknown[1]} is an option of sbatchgen: write it before the --"
    what = f"the trainer refuses its arguments: {problem.what}"
    return Finding("error", Problem(what, at or problem.at, fix))


def _ask_trainer(args: Sequence[str], processes: int) -> dict[str, Any] | Problem | None:
    """Return the forecast that the bundled training package prints as JSON, or its error message.

    Return None if it prints neither. The training package in the profile's `paths.code` is not run, because
    it may be a stranger's code.
    """
    try:
        environment = {"WORLD_SIZE": str(processes), "PYTHONUTF8": "1"}
        words = child.python(str(_training_package()), "--look", *args)
        ended = child.run(words, environment, timeout=LOOK_TIMEOUT_S)
    except (OSError, child.LateError, ValueError):
        return None
    if ended.returncode:
        return parse_error_line(ended.stderr.decode("utf-8", "replace").strip())
    try:
        answer = json.loads(ended.stdout)
    except ValueError:  # the arguments have --help, so the trainer has printed its help
        return None
    return answer if isinstance(answer, dict) else None


def _training_package() -> Path:
    return bundled("code") / "training"


def _findings_of_forecast(
    resolved: ResolvedJob, run_dir: Path, forecast: RunFolderForecast
) -> Iterator[Finding]:
    """Yield an error if the trainer forecasts that it would have nothing to do, or would fail."""
    folder, by = str(run_dir), f"trained by job {forecast.job}" if forecast.job else ""
    if forecast.state == "done":
        what = f"nothing left to do in {folder}: {forecast.epoch} of {forecast.epochs} epochs are done"
        what += f", {by}" if by else ""
        fix = f"train longer: -- --epochs N{OR}{FIX_OTHER_RUN}{OR}{FIX_AFRESH}"
        yield error_at(resolved, "run_dir", what, fix)
    elif forecast.state == "changed":
        flags = [(name.replace("_", "-"), old, new) for name, (old, new) in forecast.changed.items()]
        listed = "; ".join(f"--{flag} was {old}, is {new}" for flag, old, new in flags)
        by_job = f", {by}," if by else ""
        what = f"the checkpoint in {folder}{by_job} has other settings: {listed}"
        accept = "continue with the new settings: -- --allow-config-change"
        fix = OR.join(("use the old settings", FIX_OTHER_RUN, FIX_AFRESH, accept))
        yield error_at(resolved, "run_dir", what, fix)
    elif forecast.state == "used" and not resolved.options.dependency:
        what = f"{folder} is in use by {forecast.holder}"
        yield error_at(resolved, "run_dir", what, f"wait for it, or {FIX_OTHER_RUN}")
    elif forecast.state == "missing" and not resolved.options.dependency:  # that job may write the checkpoint
        yield _missing_checkpoint(resolved, run_dir, forecast.checkpoint)


def _missing_checkpoint(resolved: ResolvedJob, run_dir: Path, name: str) -> Finding:
    """Return an error for a missing checkpoint; a warning if only the nodes may see its folder."""
    checkpoints = run_dir / "checkpoints"
    is_visible = not name.startswith("/") or Path(name).parent.is_dir()
    if "/" not in name:  # the name of a file in the run folder
        is_visible = _has_visible_parent(run_dir)
    names = [file.name for file in checkpoints.glob("*.pt")] if checkpoints.is_dir() else []
    # If --resume names no checkpoint, an argument of the trainer does, such as --init-from.
    key = "resume" if resolved.resume not in ("auto", "off") else "args"
    what = f"there is no checkpoint {name}" if key == "resume" else f"there is no file {name} to start from"
    fix = did_you_mean(name, names) if names and key == "resume" else "name a file that exists"
    fix += ", or --resume auto for the newest" if key == "resume" else ""
    finding = error_at(resolved, key, what, fix)
    return finding if is_visible else _as_warning(finding)


def unset_variables(resolved: ResolvedJob, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield an error for each variable whose value the job takes from this shell, if the shell lacks it."""
    for name in resolved.inherited:
        if name not in environment:
            what = f"{name} is not set here: the job takes its value from this shell"
            fix = f"export {name} in this shell, with the value that the job needs"
            yield error_at(resolved, f"env.{name}", what, fix)


def submits_here(resolved: ResolvedJob, environment: Mapping[str, str]) -> bool:
    """Return whether this machine can start the job: with its sbatch, or itself if there is no scheduler."""
    submits = resolved.uses_slurm and bool(search_path.find("sbatch", environment))
    return submits or resolved.profile.scheduler == "none"


def missing_files(resolved: ResolvedJob, folder: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each missing file that the job needs; `folder` is the folder of submission.

    If this machine does not have the folder of a file, the file does not count as missing: the nodes may have
    the folder and the file. If this machine can't submit the job, a missing file is a warning, because the
    machine that submits it may have the file.
    """
    can_submit = submits_here(resolved, environment)
    for finding in _missing_files(resolved, folder, environment):
        yield finding if can_submit else _as_warning(finding)


def _missing_files(resolved: ResolvedJob, folder: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each missing file, with its severity on a machine that submits the job."""
    snapshot = resolved.snapshot_dir if resolved.uses_slurm else None
    named_folder = snapshot or resolved.options.chdir  # the job's working folder, if an option names one
    chdir = filled_path(named_folder, folder, environment) if named_folder else folder
    if chdir:
        yield from _errors_in_work_dir(resolved, chdir, is_snapshot=bool(snapshot))
    if resolved.trainer and resolved.resume not in ("auto", "off"):
        path = filled_path(ShellPath(resolved.resume), chdir or folder, environment)
        if path and path.parent.is_dir() and not path.exists():
            what = f"there is no checkpoint {path}"
            finding = error_at(resolved, "resume", what, "name a file that exists")
            yield _as_warning(finding)  # it may be a name that the trainer knows
    find_path = partial(filled_path, folder=folder, environment=environment)
    missing_of_runtimes = (job.runtime.missing_files(job, find_path) for job in resolved.jobs)
    for key, what, fix in dict.fromkeys(itertools.chain.from_iterable(missing_of_runtimes)):
        yield _as_warning(error_at(resolved, key, what, fix))  # the nodes may have it
    data = filled_path(resolved.data, folder, environment) if launch.uses_data(resolved) else None
    if data and data.parent.is_dir() and not data.is_dir() and not resolved.options.dependency:
        fix = "make it (`sbatchgen data` makes data sets), or name another: --data-dir"
        finding = error_at(resolved, "data", f"there is no data folder {data}", fix)
        is_local = resolved.profile.scheduler == "none"
        yield finding if is_local else _as_warning(finding)  # another job may make it


def _errors_in_work_dir(resolved: ResolvedJob, chdir: Path, *, is_snapshot: bool) -> Iterator[Finding]:
    """Yield errors if the job's working folder is missing, lacks a trainer, or can't be mounted."""
    if is_snapshot and not chdir.is_dir():
        what = f"there is no snapshot {chdir}"
        yield error_at(resolved, "snapshot_dir", what, "take a new one: --snapshot")
    elif chdir.parent.is_dir() and not chdir.is_dir():
        what = f"there is no working folder {chdir}: Slurm would start the job in /tmp"
        fix = f"mkdir {quoting.word(str(chdir))}, or another --chdir"
        yield error_at(resolved, "options.chdir", what, fix)
    else:
        yield from _missing_trainers(resolved, chdir)
    mounting_jobs = (job for job in resolved.jobs if job.runtime.mounts_run_folders)
    if why := next(filter(None, (why_unmountable(job, str(chdir)) for job in mounting_jobs)), ""):
        what = f"the working folder {chdir} can't be mounted: {why}"
        fix = "name a symbolic link with a plain name: --chdir LINK"
        yield error_at(resolved, "options.chdir", what, fix)


def why_unmountable(resolved: ResolvedJob, folder: str) -> str:
    """Return why a container can't mount a folder at the folder's own path; "" if it can."""
    if "," in folder or ":" in folder:
        return "the path would be split at the comma or colon"
    return resolved.runtime.why_unmountable(folder)


def _missing_trainers(resolved: ResolvedJob, chdir: Path) -> Iterator[Finding]:
    """Yield an error for each trainer whose file is missing, or is a folder without __main__.py.

    An absolute path may exist only in the image of the container in which the trainer runs.
    """
    for trainer, in_container in dict.fromkeys(
        (job.trainer or "", job.runtime.is_container) for job in resolved.jobs
    ):
        path = chdir / trainer
        is_folder = path.is_dir() and not (path / "__main__.py").exists()
        may_be_elsewhere = in_container or not path.parent.is_dir()
        may_exist = path.exists() or "{env:" in trainer or (trainer.startswith("/") and may_be_elsewhere)
        if not trainer_is_file(trainer) or (may_exist and not is_folder):
            continue
        siblings = [file.name for file in path.parent.glob("*.py")]
        fix = did_you_mean(path.name, siblings) if siblings else "name a file, relative to this folder"
        if is_folder:
            fix = f"name the program in it: --trainer {quoting.word(trainer.rstrip('/'))}/FILE.py"
        what = f"the trainer {path} is a folder" if is_folder else f"there is no trainer {path}"
        yield error_at(resolved, "trainer", what, fix)


def filled_path(path: ShellPath, folder: Path, environment: Mapping[str, str]) -> Path | None:
    """Return a path with the values of its variables; None if a variable is not set.

    A relative path is relative to `folder`.
    """
    return None if path.unset(environment) else folder / path.filled(environment)


def conflict_with_job(run_dir: Path, environment: Mapping[str, str], *, at: str = "") -> Problem | None:
    """Return a problem if a job of the run folder still waits or runs; None otherwise.

    `at` is the place where the user named the folder, for the problem.
    """
    newest = record.records(run_dir)[-MAX_CHECKED_RECORDS:]
    to_slurm = [submission for submission in newest if submission.process is None]
    clusters = {submission.key: submission.cluster for submission in to_slurm if submission.key}
    active_states = {}  # the states of the folder's jobs that wait or run, by their ids
    try:
        for cluster in {*clusters.values()}:
            for row in squeue_jobs(environment, cluster=cluster):
                has_ended = row.state.ended or row.state.name == "COMPLETING"
                if key_of(row.command) in clusters and not has_ended:
                    active_states[row.base_id] = row.state
    except SlurmError:  # the submission reports why Slurm does not answer
        return None
    if not active_states:
        return None
    job = max(active_states)
    what = f"job {job} uses this run folder too, and is {active_states[job].words}: {run_dir}"
    wait_or_cancel = f"wait for that job: --dependency afterany:{job}{OR}scancel {job}"
    fix = f"look at it: sbatchgen status{OR}{FIX_OTHER_RUN}{OR}{wait_or_cancel}"
    return Problem(what, at, fix)
