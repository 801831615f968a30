"""Makes the submission of a resolved job: it collects the findings, renders the script, and makes the record.

The submission shows the user everything before sbatch is called. Nothing is written here.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sbatchgen.base import quoting
from sbatchgen.base.errors import CommandLineError, DocumentError, FitError, Problem
from sbatchgen.base.finding import Finding
from sbatchgen.base.frozen import frozen
from sbatchgen.base.units import ShellPath, Text
from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.check.script.trainer_source import TrainerSource
from sbatchgen.jobs.inputs.layers import Level
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.inputs.start_settings import SETUPS
from sbatchgen.jobs.judge.job_check import check, lint_rendered
from sbatchgen.jobs.judge.trainer import TrainerJob, check_trainer
from sbatchgen.jobs.render import SECOND_PART, arguments, launch
from sbatchgen.jobs.render.trace import TracedScript, trace_request
from sbatchgen.jobs.resolved.origins import settings
from sbatchgen.jobs.resolved.request import Request, with_options
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.review import review
from sbatchgen.jobs.runs import folder_check, record, submitted_scripts
from sbatchgen.jobs.runs.record import Code, Record, ResolvedValue
from sbatchgen.jobs.runs.run_folder import why_not_makable, why_not_trusted
from sbatchgen.jobs.runs.snapshot import Snapshot, errors_about_trainer, plan_snapshot, warnings_about_inputs
from sbatchgen.jobs.slurm.refusal import options_of_job
from sbatchgen.jobs.submit.code import snapshot_checksum, trainer_checksums
from sbatchgen.jobs.submit.submission import Submission, log_folders


@frozen(kw_only=True)
class _FolderFacts:
    """What the files of a job tell; empty if these files are on another machine."""

    start: folder_check.RunFolderForecast | None = None  # the forecast of the bundled trainer's start
    findings: Sequence[Finding] = ()  # findings about the run folder, missing files and the trainer
    source: TrainerSource | None = None  # the source of the user's own trainer
    reads: tuple[str, ...] = ()  # rows with a checksum and the name of each file of the trainer


def submission_of_job(
    request: Request,
    environment: Mapping[str, str],
    folder: Path | None,
    *,
    review_only: bool = False,
    ask_squeue: bool = False,
    snapshot: Sequence[str] | None = None,
) -> Submission:
    """Return the submission of a job. Its log goes into its run folder, unless the job names another log.

    Args:
        request: The job.
        environment: The user's environment.
        folder: The current folder; None if the files of the job are on another machine.
        review_only: Also accept a job that can't be submitted from here. It has no run folder then.
        ask_squeue: Whether it is an error if another job of the run folder still waits or runs.
        snapshot: The files to copy that git does not track; None if the job runs no snapshot of its code.

    Raises:
        CommandLineError: The job can't run a snapshot.
        DocumentError: The run folder has a variable that is not set here, or the code can't be copied.
        FitError: The profile has no scheduler that takes jobs.
    """
    review_only = review_only and snapshot is None  # a snapshot is always in a run folder
    resolved = request.resolved
    run_dir = _run_dir(resolved, environment, folder, review_only=review_only) if folder else None
    if snapshot is not None and not folder:
        raise CommandLineError.of("--snapshot needs the job's files, and they are on another machine")
    new_snapshot = None
    if snapshot is not None and run_dir and folder:
        new_snapshot = _new_snapshot(resolved, environment, folder, run_dir, snapshot)
    find_conflict = _conflict_finder(resolved, environment, run_dir) if ask_squeue and run_dir else None
    facts = _FolderFacts()
    if folder:
        facts = _folder_facts(
            resolved, environment, folder, run_dir, new_snapshot, find_conflict=find_conflict
        )
    folder = folder or Path()
    # `sbatchgen plan` takes the arguments of `sbatchgen render`, but not those of `sbatchgen sweep`.
    plan_command = ("sbatchgen", "plan", *request.rerun[2:]) if resolved.sweep is None else ()
    reads = snapshot_checksum(new_snapshot) if new_snapshot else facts.reads
    request = _with_folders(request, run_dir, new_snapshot)
    resolved = request.resolved
    traced, findings = _render_and_check(request, facts.findings, new_snapshot)
    text = traced.text if traced else ""
    code = new_snapshot.code if new_snapshot else _code_of_old_snapshot(resolved, run_dir)
    return Submission(
        script=text.encode(),
        name=submitted_scripts.NEWEST_SCRIPT,
        option_sources=options_of_job(resolved),
        log_folders=log_folders(read_script(text), folder, resolved.name),
        run_dir=run_dir,
        local=not resolved.uses_slurm,
        jobs=resolved.chain,
        review=_review(request, traced, findings, facts, run_dir, code=code, plan_command=plan_command),
        record=replace(_new_record(request, folder), code=code, reads=reads),
        snapshot=new_snapshot,
        find_conflict=find_conflict,
    )


def _review(
    request: Request,
    traced: TracedScript | None,
    findings: Sequence[Finding],
    facts: _FolderFacts,
    run_dir: Path | None,
    *,
    code: Code | None,
    plan_command: Sequence[str],
) -> review.Review:
    """Return the review of a job: what the user sees before the job is submitted."""
    return review.review_of_job(
        request.resolved,
        traced.text if traced else None,
        findings,
        profile_by=request.profile_by,
        start=facts.start,
        last=submitted_scripts.newest_script(run_dir) if run_dir else None,
        own_lines=_own_lines(traced) if traced else [],
        snapshot=code,
        source=facts.source,
        plan_command=plan_command,
    )


def _run_dir(
    resolved: ResolvedJob, environment: Mapping[str, str], folder: Path, *, review_only: bool
) -> Path | None:
    """Return the run folder, or the known part of its path if it has a variable such as ${SLURM_JOB_ID}.

    Only the running job knows the value of such a variable. Return None for a job that is only reviewed and
    can't be submitted from here. Raises the errors of `submission_of_job`.
    """
    path_before, variable, _ = resolved.run_dir.partition("${SLURM_")
    known_part = ShellPath(path_before.rpartition("/")[0] or ".") if variable else resolved.run_dir
    unset_variables = known_part.unset(environment)
    if resolved.profile.scheduler != "env" and not unset_variables:
        return folder / known_part.filled(environment)
    if review_only:
        return None
    if unset_variables:
        name = unset_variables[0]
        what = f"run folder '{known_part}': {name} is not set here, so the folder of the log can't be made"
        raise DocumentError.of(what, fix=f"export {name}, or give --run-dir")
    what = f"profile '{resolved.profile.name}' has no scheduler to submit to: its platform starts the script"
    raise FitError.of(what, fix="render it, and give the script to the platform")


def _conflict_finder(
    resolved: ResolvedJob, environment: Mapping[str, str], run_dir: Path
) -> Callable[[], Problem | None] | None:
    """Return a function that asks Slurm for other jobs of the run folder; None if jobs may share the folder.

    Each job has a folder of its own if the path has a variable such as ${SLURM_JOB_ID}. A job with a
    dependency may share its folder, because it starts after the other jobs.
    """
    has_own_folder = "${SLURM_" in resolved.run_dir
    if not resolved.uses_slurm or has_own_folder or resolved.options.dependency:
        return None
    at = str(resolved.origin("run_dir"))
    return partial(folder_check.conflict_with_job, run_dir, environment, at=at)


def _folder_facts(
    resolved: ResolvedJob,
    environment: Mapping[str, str],
    folder: Path,
    run_dir: Path | None,
    snapshot: Snapshot | None,
    *,
    find_conflict: Callable[[], Problem | None] | None,
) -> _FolderFacts:
    """Return what the run folder, the files of the job and the source of the trainer tell."""
    conflict = find_conflict() if find_conflict else None
    start, findings = _check_files(resolved, environment, folder, run_dir, snapshot, conflict=conflict)
    has_earlier_job = bool(run_dir and submitted_scripts.newest_script(run_dir))
    trainer = TrainerJob(resolved, folder, environment, has_earlier_job=has_earlier_job)
    findings = [*findings, *check_trainer(trainer)]
    findings += warnings_about_inputs(resolved, snapshot, trainer.source) if snapshot else ()
    reads = trainer_checksums(trainer) if resolved.trainer or resolved.programs else ()
    return _FolderFacts(start=start, findings=findings, source=trainer.source, reads=reads)


def _check_files(
    resolved: ResolvedJob,
    environment: Mapping[str, str],
    folder: Path,
    run_dir: Path | None,
    snapshot: Snapshot | None,
    *,
    conflict: Problem | None,
) -> tuple[folder_check.RunFolderForecast | None, list[Finding]]:
    """Return the forecast of the bundled trainer's start, and findings about run folder and missing files.

    `conflict` is the problem that another job uses the run folder; None without such a job.
    """
    folder_problem = why_not_trusted(run_dir) if run_dir else None
    if run_dir and not folder_problem and folder_check.submits_here(resolved, environment):
        folder_problem = why_not_makable(run_dir)
    if folder_problem:
        return None, [Finding("error", folder_problem._replace(at=str(resolved.origin("run_dir"))))]
    start, findings = _forecast(resolved, environment, folder, run_dir)
    if conflict and start and start.state == "used":
        findings = []  # the forecast also reports that another job uses the folder, which `conflict` says
    findings += folder_check.unset_variables(resolved, environment)
    findings += folder_check.missing_files(resolved, folder, environment)
    if snapshot:
        findings += errors_about_trainer(resolved, snapshot)
    return start, findings + ([Finding("error", conflict)] if conflict else [])


def _forecast(
    resolved: ResolvedJob, environment: Mapping[str, str], folder: Path, run_dir: Path | None
) -> tuple[folder_check.RunFolderForecast | None, list[Finding]]:
    """Return the forecast of the bundled trainer's start, and findings about this start.

    The forecast says from which checkpoint the trainer would start. It is None for another trainer, and if
    the start can't be known here.
    """
    code = resolved.profile.paths.code
    if (
        not resolved.is_bundled
        or (resolved.options.array and not resolved.sweep)  # each task of the array has its own folder
        or not run_dir
        or "${SLURM_" in resolved.run_dir  # only the running job knows the name of its run folder
        or any(ShellPath(path).unset(environment) for path in (resolved.resume, code or ""))
    ):
        return None, []
    if code and not (folder / code.filled(environment) / "training/runfolder.py").is_file():
        return None, []  # the package is only on the nodes, or is too old to have this module
    return folder_check.inspect_run_folder(resolved, run_dir, ShellPath(resolved.resume).filled(environment))


def _with_folders(request: Request, run_dir: Path | None, snapshot: Snapshot | None) -> Request:
    """Return the request with the folder of its snapshot, and with its log in the run folder.

    If the job names another log, the log is not changed.
    """
    resolved = request.resolved
    if run_dir and resolved.uses_slurm and resolved.origin("options.output").level is Level.DEFAULT:
        try:
            escaped_folder = Text.parse(str(run_dir)).replace("%", "%%")  # sbatch reads "%" as a pattern
        except ValueError as error:
            fix = "submit from a folder with another name, or give --output"
            raise DocumentError.of(f"the log can't be in the run folder: {error}", fix=fix) from error
        log = ShellPath(f"{escaped_folder}/{resolved.options.output or '%x-%j.out'}")
        resolved = replace(resolved, options=replace(resolved.options, output=log))
        request = with_options(request, resolved, "--output", log)
    if not snapshot:
        return request
    folder = ShellPath(snapshot.copied_work_dir)
    return with_options(request, replace(resolved, snapshot_dir=folder), "--snapshot-dir", folder)


def _render_and_check(
    request: Request, folder_findings: Sequence[Finding], snapshot: Snapshot | None
) -> tuple[TracedScript | None, list[Finding]]:
    """Return the rendered script, and the findings about the job, its files and the script.

    If the findings about the job or its files have an error, no script is rendered.
    """
    resolved = request.resolved
    findings = [*check(resolved, log_folders_made=True), *folder_findings]
    if any(finding.severity == "error" for finding in findings):
        return None, findings
    traced = trace_request(request)
    script = traced.text
    if snapshot and quoting.path(str(snapshot.copied_work_dir)) not in script:
        what = f"template '{resolved.template}' does not go to the snapshot"
        raise DocumentError.of(what, fix="keep the block 'paths' of job.sh.j2, or submit without --snapshot")
    lines = script.split("\n")
    findings_of_lint = lint_rendered(resolved, script) if resolved.uses_slurm else []
    return traced, [*findings, *(_with_place_of_key(resolved, lines, each) for each in findings_of_lint)]


def _with_place_of_key(resolved: ResolvedJob, lines: Sequence[str], finding: Finding) -> Finding:
    """Return a finding about a line of the script with the place of the key that the line comes from.

    The number of the line would not help the user, because the rendered script is not a file yet.
    """
    if not finding.place.line:
        return finding
    line = lines[finding.place.line - 1]
    keys = [key for key in SETUPS if line in getattr(resolved.settings, key)]
    for key in ("args", "launcher_args"):
        words = (arguments.word(arg, resolved) for arg in getattr(resolved, key) if "{" in arg)
        keys += [key for word in words if word in line]
    at = str(resolved.origin(keys[0])) if keys else finding.problem.at
    return finding._replace(problem=finding.problem._replace(at=at))


def _new_snapshot(
    resolved: ResolvedJob,
    environment: Mapping[str, str],
    folder: Path,
    run_dir: Path,
    further_files: Sequence[str],
) -> Snapshot:
    """Return the planned snapshot of the code that the job will run.

    `further_files` are files that git does not track. Raises the errors of `submission_of_job`.
    """
    if not resolved.uses_slurm:
        raise CommandLineError.of("--snapshot needs Slurm: without it the job starts at once")
    package = bundled("code") if launch.uses_code(resolved) and not resolved.profile.paths.code else None
    chdir = resolved.options.chdir
    work_dir = folder / chdir.filled(environment) if chdir and not chdir.unset(environment) else folder
    snapshot = plan_snapshot(work_dir, run_dir / f"code-{secrets.token_hex(4)}", further_files, package)
    try:
        Text.parse(str(snapshot.copied_work_dir))
    except ValueError as error:
        what = f"a job can't run in the snapshot: {error}"
        raise DocumentError.of(what, fix="rename the folder") from error
    return snapshot


def _code_of_old_snapshot(resolved: ResolvedJob, run_dir: Path | None) -> Code | None:
    """Return the code of an existing snapshot that the job will run; None if the job names no snapshot.

    If an earlier job of the run folder has made the snapshot, the code has the commit of that job's record.
    """
    if not resolved.snapshot_dir or not resolved.uses_slurm:
        return None
    place = Path(resolved.snapshot_dir)
    codes = [earlier.code for earlier in record.records(run_dir)] if run_dir else []
    places = (place, *place.parents)
    known = (code for code in codes if code and code.snapshot and Path(code.snapshot) in places)
    return next(known, Code(folder=str(place), snapshot=str(place)))


def _new_record(request: Request, folder: Path) -> Record:
    """Return the record of a job before its submission, without the id of the job."""
    resolved = request.resolved
    rows = settings(request)
    values = (ResolvedValue(name=row.name, value=row.value, by=row.by, at=row.at) for row in rows)
    return Record(
        shared="${SLURM_JOB_ID}" in resolved.run_dir,
        name=resolved.name,
        folder=str(folder),
        command=request.rerun,
        log=str(folder / str(resolved.options.output)) if resolved.options.output else "",
        errors=str(folder / str(resolved.options.error)) if resolved.options.error else "",
        array=str(resolved.options.array or ""),
        profile=str(resolved.profile.name),
        mode=resolved.mode.name,
        values=tuple(values),
    )


def _own_lines(script: TracedScript) -> list[int] | None:
    """Return the numbers of the lines that the user should read, because other jobs have other lines.

    These lines have values of this job, or come from a site's template. The values in the second part of the
    script depend only on the kind of the job, so they do not count. Return None if it is not known from which
    template each line comes.
    """
    if script.origins is None:
        return None
    bundled_templates = bundled("templates")
    lines_of_first_part = script.text.rpartition(SECOND_PART)[0].count("\n")
    return [
        number
        for number, origin in enumerate(script.origins, 1)
        if (origin.has_value and number <= lines_of_first_part)
        or bundled_templates not in origin.file.parents
    ]
