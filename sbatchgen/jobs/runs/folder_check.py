"""What a job will find in its run folder, if that can be seen from here.

The training package answers that itself, without torch: `python3 training --look`.
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
from sbatchgen.jobs.slurm.queue import key_of, queue

LOOK_TIMEOUT_S = 30
MOST_VALUES = 64  # values of a sweep that the trainer checks; each takes a twentieth of a second
OTHER_RUN = "start another run: --run-dir runs/NAME"
AFRESH = "start from nothing: --resume off"


@frozen(kw_only=True)
class RunFolderForecast:
    """The start of a job as the trainer predicts it; the attributes are those of training/runfolder.py."""

    state: str  # "new", "afresh", "resume", "done", "changed", "missing", "used" or "evaluate"
    checkpoint: str = ""  # where it resumes
    step: int | None = None  # steps done then; None if not known
    steps: int | None = None  # steps in all; None if not known
    epoch: int | None = None  # epochs done then
    epochs: int | None = None  # epochs in all
    job: str = ""  # the job that saved the checkpoint, or ""
    holder: str = ""  # who uses the folder
    # The old and the new value of each changed setting
    changed: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def says(self) -> str:
        """In short."""
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


def error(resolved: ResolvedJob, key: str, what: str, fix: str) -> Finding:
    """Return what is wrong with a key of a job, with where it was written."""
    return Finding("error", Problem(what, str(resolved.origin(key)), fix))


def inspect_run_folder(
    resolved: ResolvedJob, run_dir: Path, resume: str
) -> tuple[RunFolderForecast | None, list[Finding]]:
    """Return the forecast of the bundled trainer's start, and findings about a useless or failing start."""
    flags = ["--run-dir", str(run_dir), "--resume", resume]
    flags += [resolved.mode.flag] if resolved.mode.flag else []
    if resolved.sweep:
        return None, list(_refused_values(resolved, resolved.sweep, flags))
    main = resolved.main
    answer = _asked([*flags, *main.args], main.nodes * main.nproc_per_node)
    if answer is None:
        return None, []
    if isinstance(answer, Problem):
        return None, [_refused(answer, str(resolved.origin("args")))]
    start = RunFolderForecast(
        **{name: answer[name] for name in RunFolderForecast.__annotations__ if name in answer}
    )
    if start.state == "new" and not any(folder.is_dir() for folder in run_dir.parents[:-1]):
        return None, []  # the folder is in a file system of the nodes
    return start, list(_findings(resolved, run_dir, start))


def _refused_values(resolved: ResolvedJob, sweep: Sweep, flags: Sequence[str]) -> Iterator[Finding]:
    """Yield values of a sweep that the trainer refuses, each asked for once, with the others of its point."""
    asked: set[tuple[str, str]] = set()
    refused: set[str] = set()  # an unknown flag is reported once, a value each time
    for point in sweep.points:
        new = {*zip(sweep.names, point, strict=True)} - asked
        if not new or len(asked) >= MOST_VALUES:
            continue
        asked |= new
        args = [sweep.filled(arg, point) for arg in resolved.args]
        answer = _asked([*flags, *args, *sweep.arguments(point, resolved.placed)], 1)
        if not isinstance(answer, Problem):
            continue
        what = re.sub(r"^(unrecognized arguments: [^ =;]+)=[^;]*", r"\1", answer.what)
        if what not in refused:
            refused.add(what)
            yield _refused(answer._replace(what=what))


def _refused(problem: Problem, at: str = "") -> Finding:
    its_help = f"see its flags: python3 {quoting.word(str(_package()))} --help"
    fix = problem.fix.replace("python -m training --help", its_help)
    unknown = re.search(r"unrecognized arguments: (--[\w-]+)", problem.what)
    ours = {"--yes", "--dry-run", *(flag for option in parameters() for flag in option.opts)}
    if unknown and unknown[1] in ours:
        fix = f"{unknown[1]} is an option of sbatchgen: write it before the --"
    what = f"the trainer refuses its arguments: {problem.what}"
    return Finding("error", Problem(what, at or problem.at, fix))


def _asked(args: Sequence[str], processes: int) -> dict[str, Any] | Problem | None:
    """Return the answer of sbatchgen's own package, or its error; None if it gives neither.

    That of the profile's `paths.code` is not started: a profile may come with somebody's repository.
    """
    try:
        environment = {"WORLD_SIZE": str(processes), "PYTHONUTF8": "1"}
        words = child.python(str(_package()), "--look", *args)
        done = child.run(words, environment, timeout=LOOK_TIMEOUT_S)
    except (OSError, child.LateError, ValueError):
        return None
    if done.returncode:
        return parse_error_line(done.stderr.decode("utf-8", "replace").strip())
    try:
        answer = json.loads(done.stdout)
    except ValueError:  # --help among the arguments
        return None
    return answer if isinstance(answer, dict) else None


def _package() -> Path:
    return bundled("code") / "training"


def _findings(resolved: ResolvedJob, run_dir: Path, start: RunFolderForecast) -> Iterator[Finding]:
    folder, by = str(run_dir), f", trained by job {start.job}" if start.job else ""
    if start.state == "done":
        what = f"nothing left to do in {folder}: {start.epoch} of {start.epochs} epochs are done{by}"
        yield error(resolved, "run_dir", what, f"train longer: -- --epochs N{OR}{OTHER_RUN}{OR}{AFRESH}")
    elif start.state == "changed":
        flags = [(name.replace("_", "-"), old, new) for name, (old, new) in start.changed.items()]
        listed = "; ".join(f"--{flag} was {old}, is {new}" for flag, old, new in flags)
        what = f"the checkpoint in {folder} has other settings: {listed}{by}"
        fix = OR.join(
            ("use the old settings", OTHER_RUN, AFRESH, "accept the settings: -- --allow-config-change")
        )
        yield error(resolved, "run_dir", what, fix)
    elif start.state == "used" and not resolved.options.dependency:
        what = f"{folder} is in use by {start.holder}"
        yield error(resolved, "run_dir", what, f"wait for it, or {OTHER_RUN}")
    elif start.state == "missing" and not resolved.options.dependency:  # of another job, that may make it
        yield _no_checkpoint(resolved, run_dir, start.checkpoint)


def _no_checkpoint(resolved: ResolvedJob, run_dir: Path, name: str) -> Finding:
    """Return an error for a checkpoint that does not exist; a warning if only the nodes may see it."""
    of_run = run_dir / "checkpoints"
    seen = not name.startswith("/") or Path(name).parent.is_dir()
    if "/" not in name:  # submit makes the run folder here, unless it is in a file system of the nodes
        seen = any(folder.is_dir() for folder in run_dir.parents[:-1])
    here = [file.name for file in of_run.glob("*.pt")] if of_run.is_dir() else []
    key = "resume" if resolved.resume not in ("auto", "off") else "args"
    what = f"there is no checkpoint {name}" if key == "resume" else f"there is no file {name} to start from"
    fix = did_you_mean(name, here) if here and key == "resume" else "name a file that exists"
    finding = error(resolved, key, what, fix if key == "args" else f"{fix}, or --resume auto for the newest")
    return finding if seen else finding._replace(severity="warning")


def unset(resolved: ResolvedJob, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield an error for each variable that the job takes from here and that is not set here."""
    for name in resolved.inherited:
        if name not in environment:
            what = f"{name} is not set here: the job takes its value from this shell"
            yield error(
                resolved,
                f"env.{name}",
                what,
                f"export {name} in this shell, with the value that the job needs",
            )


def starts_here(resolved: ResolvedJob, environment: Mapping[str, str]) -> bool:
    """Return whether the job is submitted on this machine, or runs on it."""
    submits = resolved.slurm and bool(search_path.find("sbatch", environment))
    return submits or resolved.profile.scheduler == "none"


def files_there(resolved: ResolvedJob, folder: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each missing file that the job needs; `folder` is the folder of submission.

    A file whose folder is not here either may exist on the nodes. Without sbatch here, the job will be
    submitted elsewhere, and a missing file is a warning.
    """
    certain = starts_here(resolved, environment)
    for finding in _missing(resolved, folder, environment):
        yield finding if certain else finding._replace(severity="warning")


def _missing(resolved: ResolvedJob, folder: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    snapshot = resolved.snapshot_dir if resolved.slurm else None
    working = snapshot or resolved.options.chdir
    chdir = here(working, folder, environment) if working else folder
    if snapshot and chdir and not chdir.is_dir():
        yield error(resolved, "snapshot_dir", f"there is no snapshot {chdir}", "take a new one: --snapshot")
    elif chdir and chdir.parent.is_dir() and not chdir.is_dir():
        what = f"there is no working folder {chdir}: Slurm would start the job in /tmp"
        yield error(resolved, "options.chdir", what, f"mkdir {quoting.word(str(chdir))}, or another --chdir")
    elif chdir:
        yield from _trainers_there(resolved, chdir)
    if chdir and resolved.runtime.mounts_own and (why := unmountable(resolved, str(chdir))):
        what = f"the working folder {chdir} can't be mounted: {why}"
        yield error(resolved, "options.chdir", what, "name a symbolic link with a plain name: --chdir LINK")
    if resolved.trainer and resolved.resume not in ("auto", "off"):
        path = here(ShellPath(resolved.resume), chdir or folder, environment)
        if path and path.parent.is_dir() and not path.exists():
            finding = error(resolved, "resume", f"there is no checkpoint {path}", "name a file that exists")
            yield finding._replace(severity="warning")  # it may be a name that the trainer knows
    at = partial(here, folder=folder, environment=environment)
    lacking = (job.runtime.missing(job, at) for job in resolved.jobs)
    for key, what, fix in dict.fromkeys(itertools.chain.from_iterable(lacking)):
        yield error(resolved, key, what, fix)._replace(severity="warning")  # the nodes may have it
    data = here(resolved.data, folder, environment) if launch.uses_data(resolved) else None
    if data and data.parent.is_dir() and not data.is_dir() and not resolved.options.dependency:
        fix = "make it (`sbatchgen data` makes data sets), or name another: --data-dir"
        finding = error(resolved, "data", f"there is no data folder {data}", fix)
        local = resolved.profile.scheduler == "none"
        yield finding if local else finding._replace(severity="warning")  # another job may make it


def unmountable(resolved: ResolvedJob, folder: str) -> str:
    """Return why a container can't mount a folder at its own path, or ""."""
    split = "," in folder or ":" in folder
    return "the path would be split at the comma or colon" if split else resolved.runtime.unmountable(folder)


def _trainers_there(resolved: ResolvedJob, chdir: Path) -> Iterator[Finding]:
    """Yield an error for each trainer whose file is missing; an absolute path may be one of the image."""
    for trainer in dict.fromkeys(job.trainer or "" for job in resolved.jobs):
        path = chdir / trainer
        is_folder = path.is_dir() and not (path / "__main__.py").exists()
        elsewhere = resolved.runtime.is_container or not path.parent.is_dir()
        is_known = path.exists() or "{env:" in trainer or (trainer.startswith("/") and elsewhere)
        if not trainer_is_file(trainer) or (is_known and not is_folder):
            continue
        siblings = [file.name for file in path.parent.glob("*.py")]
        fix = did_you_mean(path.name, siblings) if siblings else "name a file, relative to this folder"
        if is_folder:
            fix = f"name the program in it: --trainer {quoting.word(trainer.rstrip('/'))}/FILE.py"
        what = f"the trainer {path} is a folder" if is_folder else f"there is no trainer {path}"
        yield error(resolved, "trainer", what, fix)


def here(path: ShellPath, folder: Path, environment: Mapping[str, str]) -> Path | None:
    """Return the path with its variables filled in; None if one is not known here."""
    return None if path.unset(environment) else folder / path.filled(environment)


def queued(run_dir: Path, environment: Mapping[str, str], *, at: str = "") -> Problem | None:
    """Return the problem of a run folder whose job still waits or runs; `at` is where it was named."""
    of_slurm = [submission for submission in record.records(run_dir)[-100:] if submission.process is None]
    clusters = {submission.key: submission.cluster for submission in of_slurm if submission.key}
    live = {}
    try:
        for cluster in {*clusters.values()}:
            for row in queue(environment, cluster=cluster):
                ended = row.state.ended or row.state.name == "COMPLETING"
                if key_of(row.command) in clusters and not ended:
                    live[row.job] = row.state
    except SlurmError:  # the submission will say why Slurm does not answer
        return None
    if not live:
        return None
    job = max(live)
    what = f"job {job} uses this run folder too, and is {live[job].words}: {run_dir}"
    wait = f"wait for that job: --dependency afterany:{job}{OR}scancel {job}"
    fix = f"look at it: sbatchgen status{OR}{OTHER_RUN}{OR}{wait}"
    return Problem(what, at, fix)
