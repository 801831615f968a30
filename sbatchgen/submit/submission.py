"""A script about to be submitted, with its review: of a job that is rendered, or of a finished script."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sbatchgen import files, quoting
from sbatchgen.errors import CommandLineError, DocumentError, FitError, Problem
from sbatchgen.finding import Finding
from sbatchgen.inputs.layers import Level
from sbatchgen.inputs.search import Places, bundled
from sbatchgen.job.script import JobScript
from sbatchgen.lint.linter import lint_rendered
from sbatchgen.lint.settings import findings_of, settings_of
from sbatchgen.lint.source import whole
from sbatchgen.plan.origins import explanations
from sbatchgen.plan.plan import Plan
from sbatchgen.plan.request import Request, with_log, with_snapshot
from sbatchgen.render import launch
from sbatchgen.render.render import render_request
from sbatchgen.render.trace import trace_request
from sbatchgen.review import review
from sbatchgen.rules.judge import check
from sbatchgen.runs import record, scripts, start
from sbatchgen.runs.folder import refusal
from sbatchgen.runs.record import Code, Record, Value
from sbatchgen.runs.snapshot import Snapshot, find, missing
from sbatchgen.sbatch.getopt import Option
from sbatchgen.sbatch.reader import Script, read
from sbatchgen.slurm.refusal import Asked, asked_by, asked_in
from sbatchgen.units import ShellPath, Text


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A script about to be submitted.

    Attributes:
        script: Its bytes.
        name: The name of its file.
        asked: Its options by long name.
        log_folders: The folders of its logs.
        run_dir: Its run folder, as far as its name is known; None for a finished script.
        local: Whether bash runs it here.
        jobs: How many jobs of it go on with one training, one after the other.
        review: What people see.
        about: What its record will say.
        snapshot: The copy of its code that is still to be made.
        queued: Returns what is wrong if another job uses its run folder; None where that is fine.
    """

    script: bytes
    name: str
    asked: Mapping[str, Asked]
    log_folders: tuple[Path, ...]
    run_dir: Path | None
    local: bool
    jobs: int = 1
    review: review.Review
    about: Record
    snapshot: Snapshot | None = None
    queued: Callable[[], Problem | None] | None = None


def of_job(
    request: Request,
    environment: Mapping[str, str],
    folder: Path,
    *,
    ask_squeue: bool = False,
    snapshot: Sequence[str] | None = None,
) -> Submission:
    """The submission of a job; its log goes into the run folder, unless the job says where.

    Args:
        request: The job.
        environment: The user's.
        folder: The current folder.
        ask_squeue: Whether earlier jobs of the run folder that still wait or run are errors.
        snapshot: For a job that runs a copy of its code: the files that are copied besides those of git.

    Raises:
        CommandLineError: The job can't run a copy.
        DocumentError: The run folder holds a variable that is not set here, or the code can't be copied.
    """
    plan = request.plan
    if plan.profile.scheduler == "env":
        what = f"profile '{plan.profile.name}' has no scheduler to submit to: its platform starts the script"
        raise FitError.of(what, fix="render it, and give the script to the platform")
    known = _known_here(plan.run_dir)
    if unset := known.unset(environment):
        what = f"run folder '{known}': {unset[0]} is not set here, so its log folder can't be made"
        raise DocumentError.of(what, fix=f"export {unset[0]}, or give --run-dir")
    run_dir = folder / known.filled(environment)
    code = None if snapshot is None else _snapshot(plan, environment, folder, run_dir, snapshot)
    return _of_plan(request, environment, folder, run_dir, ask_squeue=ask_squeue, snapshot=code)


def look(request: Request, environment: Mapping[str, str], folder: Path) -> Submission:
    """Like `of_job`, but also for a job that can't be submitted from here; that one has no run folder."""
    plan = request.plan
    if plan.profile.scheduler == "env" or _known_here(plan.run_dir).unset(environment):
        return _of_plan(request, environment, folder, None)
    return of_job(request, environment, folder)


def _of_plan(
    request: Request,
    environment: Mapping[str, str],
    folder: Path,
    run_dir: Path | None,
    *,
    ask_squeue: bool = False,
    snapshot: Snapshot | None = None,
) -> Submission:
    plan = request.plan
    if run_dir and plan.slurm and plan.origin("options.output").level is Level.DEFAULT:
        pattern = str(plan.options.output or "%x-%j.out")
        request = with_log(request, f"{_in_directive(run_dir)}/{pattern}")
    if snapshot:
        request = with_snapshot(request, str(snapshot.folder))
    queued = None
    if ask_squeue and run_dir and plan.slurm and not plan.options.dependency and _is_known(plan.run_dir):
        queued = partial(start.queued, run_dir, environment, at=str(plan.origin("run_dir")))
    begins, found = _found_here(
        plan, environment, folder, run_dir, snapshot, used=queued() if queued else None
    )
    findings = [*check(request.plan, log_folders_made=True), *found]
    broken = any(finding.severity == "error" for finding in findings)
    script = "" if broken else render_request(request)
    if script and plan.slurm:
        findings += lint_rendered(plan, script)
    if snapshot and script and quoting.path(str(snapshot.folder)) not in script:
        what = f"template '{plan.template}' does not go to the snapshot"
        raise DocumentError.of(what, fix="keep the block 'paths' of job.sh.j2, or submit without --snapshot")
    code = snapshot.code if snapshot else _code_of(plan, run_dir)
    shown = review.of_plan(
        request.plan,
        None if broken else script,
        findings,
        profile_by=request.profile_by,
        start=begins,
        last=scripts.last(run_dir) if run_dir else None,
        own_lines=_own_lines(request, script),
        snapshot=code,
    )
    return Submission(
        script=script.encode(),
        name="job.slurm",
        asked=asked_by(request.plan),
        log_folders=log_folders(read(script), folder, plan.name),
        run_dir=run_dir,
        local=not plan.slurm,
        jobs=plan.chain,
        review=shown,
        about=replace(_about(request, folder), code=code),
        snapshot=snapshot,
        queued=queued,
    )


def _snapshot(
    plan: Plan, environment: Mapping[str, str], folder: Path, run_dir: Path, named: Sequence[str]
) -> Snapshot:
    """The copy of the code that a job is to run. Raises what `of_job` does."""
    if not plan.slurm:
        raise CommandLineError.of("--snapshot needs Slurm: without it the job starts at once")
    package = bundled("code") if launch.uses_code(plan) and not plan.profile.paths.code else None
    chdir = plan.options.chdir
    working = folder / chdir.filled(environment) if chdir and not chdir.unset(environment) else folder
    found = find(working, run_dir / f"code-{secrets.token_hex(4)}", named, package)
    try:
        Text.parse(str(found.folder))
    except ValueError as error:
        raise DocumentError.of(
            f"a job can't run in the snapshot: {error}", fix="rename the folder"
        ) from error
    return found


def _code_of(plan: Plan, run_dir: Path | None) -> Code | None:
    """The snapshot that a job runs again; None if it runs the files as they are."""
    if not plan.snapshot_dir or not plan.slurm:
        return None
    place = Path(plan.snapshot_dir)
    known = [one.code for one in record.records(run_dir)] if run_dir else []
    of_run = (one for one in known if one and one.snapshot and Path(one.snapshot) in (place, *place.parents))
    return next(of_run, Code(folder=str(place), snapshot=str(place)))


def _about(request: Request, folder: Path) -> Record:
    """The record of a job, as far as it is known before the job is submitted."""
    plan = request.plan
    values = (
        Value(name=one.name, value=one.said.value, by=one.said.by, at=one.said.at)
        for one in explanations(request)
    )
    return Record(
        shared="${SLURM_JOB_ID}" in plan.run_dir,
        name=plan.name,
        folder=str(folder),
        command=request.rerun,
        log=str(folder / str(plan.options.output)) if plan.options.output else "",
        errors=str(folder / str(plan.options.error)) if plan.options.error else "",
        array=str(plan.options.array or ""),
        profile=str(plan.profile.name),
        values=tuple(values),
    )


def _found_here(
    plan: Plan,
    environment: Mapping[str, str],
    folder: Path,
    run_dir: Path | None,
    snapshot: Snapshot | None,
    *,
    used: Problem | None,
) -> tuple[start.Start | None, list[Finding]]:
    """What the job will find in its run folder; what is wrong with that, and what it needs and is missing."""
    if refused := refusal(run_dir) if run_dir else None:
        return None, [Finding("error", refused._replace(at=str(plan.origin("run_dir"))))]
    begins, findings = _start(plan, environment, folder, run_dir)
    if used and begins and begins.state == "used":
        findings = []  # by that job
    findings += [*start.unset(plan, environment), *start.files_there(plan, folder, environment)]
    if snapshot:
        findings += missing(plan, snapshot)
    return begins, findings + ([Finding("error", used)] if used else [])


def _start(
    plan: Plan, environment: Mapping[str, str], folder: Path, run_dir: Path | None
) -> tuple[start.Start | None, list[Finding]]:
    """What the job will find in its run folder, and what is wrong with that."""
    code = plan.profile.paths.code
    if (
        plan.trainer
        or (plan.options.array and not plan.sweep)  # each element has a folder of its own
        or not run_dir
        or not _is_known(plan.run_dir)
        or any(ShellPath(path).unset(environment) for path in (plan.resume, code or ""))
    ):
        return None, []
    package = folder / code.filled(environment) if code else bundled("code")
    return start.look(plan, run_dir, package, ShellPath(plan.resume).filled(environment))


def _is_known(run_dir: ShellPath) -> bool:
    """Whether the run folder's name is known before the job runs."""
    return "${SLURM_" not in run_dir


def _known_here(run_dir: ShellPath) -> ShellPath:
    """The run folder, or its parent that is known before the job runs."""
    before, variable, _ = run_dir.partition("${SLURM_")
    return ShellPath(before.rpartition("/")[0] or ".") if variable else run_dir


def _in_directive(run_dir: Path) -> str:
    """The run folder as the start of a log's name."""
    try:
        return Text.parse(str(run_dir)).replace("%", "%%")
    except ValueError as error:
        fix = "submit from a folder with another name, or give --output"
        raise DocumentError.of(f"the log can't be in the run folder: {error}", fix=fix) from error


def _own_lines(request: Request, script: str) -> list[int] | None:
    """The lines with a value in them; None where a site's template can't be traced."""
    try:
        places = trace_request(request, script) if script else []
    except DocumentError:
        return None
    return [number for number, place in enumerate(places, 1) if place.value]


def of_script(
    path: Path,
    given: Mapping[str, Any],
    args: tuple[str, ...],
    environment: Mapping[str, str],
    folder: Path,
    *,
    keep_env: bool = False,
) -> Submission:
    """The submission of a finished script; of a job's options only `--profile` goes with it.

    Args:
        path: The script.
        given: The options of a job.
        args: Arguments of a trainer.
        environment: For SBATCHGEN_PROFILE and the search paths.
        folder: The current folder.
        keep_env: Whether sbatch will see SBATCH_* of the environment.

    Raises:
        CommandLineError: Other options of a job were given: the script has its own.
        DocumentError: It can't be read.
    """
    others = [value for name, value in given.items() if name != "profile"]
    if args or any(value is not None and value != () for value in others):
        what = f"{path} is a finished script: options of a job can't change it"
        raise CommandLineError.of(what, fix="edit the script, or render the job again with these options")
    source = whole(str(path))
    settings = replace(
        settings_of(Places(folder, environment), given.get("profile")),
        environment=environment if keep_env else {},
        makes_log_folders=True,
    )
    parsed = read(source.data)
    options = _values(parsed.options)
    job = JobScript(file=str(path), text=source.text).resources
    name = options.get("job-name") or path.name
    array, working = options.get("array", ""), folder / options.get("chdir", "")
    log = options.get("output") or ("slurm-%A_%a.out" if array else "slurm-%j.out")  # sbatch(1), --output
    return Submission(
        script=source.data,
        name=path.name,
        asked=asked_in(parsed, str(path)),
        log_folders=log_folders(parsed, folder, name),
        run_dir=None,
        local=False,
        review=review.of_script(source.text, job, findings_of(source, settings)),
        about=Record(
            shared=False,
            name=name,
            folder=str(folder),
            script=str(folder / path),
            log=str(working / log),
            errors=str(working / error) if (error := options.get("error")) else "",
            array=array,
        ),
    )


def _values(options: Mapping[str, Option]) -> dict[str, str]:
    """The options of a script as text, "" for a flag."""
    return {name: option.value or "" for name, option in options.items()}


def is_script(job: str) -> bool:
    """Whether JOB is a finished script: by its name, or by its first line."""
    path = Path(job)
    if job.endswith((".yaml", ".yml")) or not path.exists():
        return False
    if job.endswith((".slurm", ".sbatch", ".sh", ".job")):
        return True
    return path.is_file() and files.read(path, 2) == b"#!"


def log_folders(script: Script, folder: Path, name: str) -> tuple[Path, ...]:
    """The folders of the script's logs; Slurm makes none (sbatch(1), "filename pattern").

    Raises:
        DocumentError: A folder's name is known only once the job runs.
    """
    folders = []
    for component in script.components:
        options = _values(component.options)
        for option in ("output", "error"):
            parent = options.get(option, "").rpartition("/")[0]
            if not parent:
                continue
            known = parent.replace("%%", "\0").replace("%x", name)
            if "%" in known:
                what = f"the log folder '{parent}' is known only once the job runs: it can't be made before"
                raise DocumentError.of(what, fix="use patterns like %j in the name of the file only")
            folders.append(folder / options.get("chdir", "") / known.replace("\0", "%"))
    return tuple(folders)
