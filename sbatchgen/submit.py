"""From a script to a running job: log folders first, a clean environment, and the very bytes shown.

Only this module starts processes, but for shellcheck. Slurm's behaviour relied on: sbatch(1), "INPUT
ENVIRONMENT VARIABLES" (SBATCH_* beats the script) and "filename pattern" (no folder is made for a log).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from sbatchgen import history, review
from sbatchgen.check import check
from sbatchgen.errors import CommandLineError, DocumentError, FitError, SlurmError
from sbatchgen.lint.linter import read_closely
from sbatchgen.lint.settings import findings_of, settings_of
from sbatchgen.lint.source import whole
from sbatchgen.plan import Source
from sbatchgen.refusal import Answer, Asked, Refusal, asked_by, asked_in, reasons, understand
from sbatchgen.request import Resolved, with_log
from sbatchgen.rules.ask import DEFAULT_SLURM
from sbatchgen.rules.subject import Subject
from sbatchgen.script import Script, read
from sbatchgen.search import Places
from sbatchgen.units import ShellPath

SUBMIT_TIMEOUT_S = 60
Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A script about to be submitted; `asked` holds its options by long name."""

    script: bytes
    name: str
    asked: Mapping[str, Asked]
    log_folders: tuple[Path, ...]
    run_dir: Path | None
    local: bool
    review: review.Review


def of_job(resolved: Resolved, environment: Mapping[str, str], folder: Path) -> Submission:
    """The submission of a job; its log goes into the run folder, unless the job says where.

    Raises:
        DocumentError: The run folder holds a variable that is not set here.
    """
    if resolved.plan.profile.scheduler == "env":
        name = resolved.plan.profile.name
        what = f"profile '{name}' has no scheduler to submit to: its platform starts the script"
        raise FitError.of(what, fix="render it, and give the script to the platform")
    run_dir = folder / expand(resolved.plan.run_dir, environment)
    return _of_plan(resolved, folder, run_dir)


def look(resolved: Resolved, environment: Mapping[str, str], folder: Path) -> Submission:
    """Like `of_job`, but also for a job that can't be submitted from here; that one has no run folder."""
    plan = resolved.plan
    names = ShellPath.VARIABLE.findall(plan.run_dir)
    if plan.profile.scheduler == "env" or not all(environment.get(name) for name in names):
        return _of_plan(resolved, folder, None)
    return of_job(resolved, environment, folder)


def _of_plan(resolved: Resolved, folder: Path, run_dir: Path | None) -> Submission:
    plan = resolved.plan
    if run_dir and plan.slurm and plan.origin("options.output").source is Source.DEFAULT:
        pattern = str(plan.options.output or "%x-%j.out")
        resolved = with_log(resolved, f"{str(run_dir).replace('%', '%%')}/{pattern}")
    findings = check(resolved.plan, log_folders_made=True)
    broken = any(finding.severity == "error" for finding in findings)
    script = "" if broken else resolved.script()
    if script and plan.slurm:  # what a template, the profile's setup or extra_options brought in
        extra = tuple(f"{name}{'=' * (value != 'true')}" for name, value in plan.extra_options.items())
        subject = Subject(
            file="job.slurm",
            text=script,
            slurm=plan.profile.slurm or DEFAULT_SLURM,
            profile=plan.profile,
            known_options=extra,
        )
        # SB304 counts processes and GPUs, which `check` has done with the places of the plan.
        findings += [finding for finding in read_closely(subject) if finding.rule != "SB304"]
    shown = review.of_plan(
        resolved.plan,
        None if broken else script,
        findings,
        profile_by=resolved.profile_by,
        last=history.last(run_dir) if run_dir else None,
        own_lines=_own_lines(resolved, script),
    )
    return Submission(
        script=script.encode(),
        name="job.slurm",
        asked=asked_by(resolved.plan),
        log_folders=log_folders(read(script), folder, plan.name),
        run_dir=run_dir,
        local=not plan.slurm,
        review=shown,
    )


def _own_lines(resolved: Resolved, script: str) -> list[int] | None:
    """The lines with a value in them; None where a site's template can't be traced."""
    try:
        places = resolved.trace(script) if script else []
    except DocumentError:
        return None
    return [number for number, place in enumerate(places, 1) if place.value]


def of_script(
    path: Path,
    given: Mapping[str, Any],
    args: tuple[str, ...],
    environment: Mapping[str, str],
    *,
    keep: bool = False,
) -> Submission:
    """The submission of a script as it stands; of the options of a job it may have a profile to be judged by.

    Args:
        path: The script.
        given: The options of a job.
        args: Arguments of a trainer.
        environment: For SBATCHGEN_PROFILE and the search paths.
        keep: Whether SBATCH_ variables of the environment will count.

    Raises:
        CommandLineError: Other options of a job were given: the script has its own.
        DocumentError: It can't be read.
    """
    others = {name: value for name, value in given.items() if name != "profile"}
    if args or any(value is not None and value != () for value in others.values()):
        what = f"{path} is a finished script: options of a job can't change it"
        raise CommandLineError.of(what, fix="edit the script, or render the job again with these options")
    source = whole(str(path))
    settings = replace(
        settings_of(Places(Path.cwd(), environment), given.get("profile")),
        environment=environment if keep else {},
        makes_log_folders=True,
    )
    script, text = source.data, source.text
    found = findings_of(source, settings)
    parsed = read(script)
    name = parsed.options.get("job-name")
    return Submission(
        script=script,
        name=path.name,
        asked=asked_in(parsed, str(path)),
        log_folders=log_folders(parsed, path.cwd(), (name.value if name else None) or path.name),
        run_dir=None,
        local=False,
        review=review.of_script(text, Subject(file=str(path), text=text).job, found),
    )


def expand(path: ShellPath, environment: Mapping[str, str]) -> str:
    """The path with ${USER} and its like as they are here.

    Raises:
        DocumentError: A variable is not set here, or is known only to the running job.
    """

    def value(match: re.Match[str]) -> str:
        if not environment.get(match[1]):
            what = f"run folder '{path}': {match[1]} is not set here, so its log folder can't be made"
            raise DocumentError.of(what, fix=f"export {match[1]}, or give --run-dir")
        return environment[match[1]]

    return ShellPath.VARIABLE.sub(value, path)


def log_folders(script: Script, folder: Path, name: str) -> tuple[Path, ...]:
    """The folders that the script's logs go to; Slurm makes none, and a job without its log dies silently.

    Raises:
        DocumentError: A folder's name is known only once the job runs.
    """
    folders = []
    for component in script.components:
        chdir = component.options.get("chdir")
        start = folder / (chdir.value or "") if chdir else folder
        for option in ("output", "error"):
            given = component.options.get(option)
            parent = ((given.value if given else None) or "").rpartition("/")[0]
            if not parent:
                continue
            known = parent.replace("%%", "\0").replace("%x", name)
            if "%" in known:
                what = f"the log folder '{parent}' is known only once the job runs: it can't be made before"
                raise DocumentError.of(what, fix="use patterns like %j in the name of the file only")
            folders.append(start / known.replace("\0", "%"))
    return tuple(folders)


def clean_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment without what would change the script or leak from a job; and the names left out."""
    leaks = [name for name in environment if name.startswith(("SBATCH_", "SLURM_")) and name != "SLURM_CONF"]
    return {name: value for name, value in environment.items() if name not in leaks}, sorted(leaks)


def _make_folders(submission: Submission) -> None:
    for folder in (*submission.log_folders, *([submission.run_dir] if submission.run_dir else [])):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DocumentError.of(f"can't make the folder {folder}: {error.strerror}") from error


def submit_to_slurm(submission: Submission, environment: Mapping[str, str], *, keep: bool, note: Note) -> str:
    """Submit, and return the job id, as `sbatch --parsable` prints it.

    Raises:
        SlurmError: Slurm refused, or there is none.
        DocumentError: A folder can't be made.
    """
    env, leaks = (dict(environment), []) if keep else clean_environment(environment)
    if leaks:
        note(f"note: left out of the environment, where they would change the job: {', '.join(leaks)}")
    _make_folders(submission)
    # A new file with the bytes that were shown: the one they came from may have changed since.
    with tempfile.TemporaryDirectory(prefix="sbatchgen-") as folder:
        path = (submission.run_dir or Path(folder)) / submission.name
        history.put(path, submission.script)
        status, out, err = _sbatch(["--parsable", str(path)], env)
    if status:
        raise SlurmError(refusal.problem for refusal in reasons(status, err or out, submission.asked))
    if err.strip():
        note(err.strip())
    match = re.search(r"^(\d+)(;.*)?$", out, re.MULTILINE)
    if match is None:
        raise SlurmError.of(f"sbatch gave no job id, but: {out.strip() or 'nothing'}")
    if submission.run_dir:
        _keep(submission, submission.run_dir, match[1], note)
    return match[0]


def _keep(submission: Submission, run_dir: Path, job: str, note: Note) -> None:
    """Keep what was submitted; the job is on its way also where that fails."""
    try:
        history.keep(run_dir, job, submission.script)
    except OSError as error:
        note(f"note: can't keep the script of job {job} in {run_dir}: {error.strerror}")


def ask_slurm(submission: Submission, environment: Mapping[str, str], *, keep: bool = False) -> Answer:
    """What the live Slurm says of the script: `sbatch --test-only`, as `submit_to_slurm` would submit it.

    Slurm uses up a job id for that.
    """
    env = dict(environment) if keep else clean_environment(environment)[0]
    with tempfile.TemporaryDirectory(prefix="sbatchgen-") as folder:
        path = Path(folder) / submission.name
        path.write_bytes(submission.script)
        try:
            status, out, err = _sbatch(["--test-only", str(path)], env)
        except SlurmError as error:
            problem = error.problems[0]
            return Answer(accepted=False, says="", refusals=(Refusal(says=problem.what, fix=problem.fix),))
    return understand(status, err or out, submission.asked)


def _sbatch(arguments: list[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of sbatch."""
    try:
        done = subprocess.run(
            ["sbatch", *arguments],
            env=env,
            check=False,
            capture_output=True,
            text=True,
            timeout=SUBMIT_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        fix = "submit on a node that has Slurm's commands, or run here with --profile local"
        raise SlurmError.of("there is no sbatch here", fix=fix) from error
    except subprocess.TimeoutExpired as error:
        fix = "see with squeue --me whether the job is there before trying again"
        raise SlurmError.of(f"sbatch did not answer in {SUBMIT_TIMEOUT_S} s", fix=fix) from error
    return done.returncode, done.stdout, done.stderr


def run_locally(submission: Submission, environment: Mapping[str, str], *, note: Note) -> int:
    """Run the script with bash in the background and follow its log; the exit status of the script.

    It runs in a session of its own: an interrupt ends the following, not the training.
    """
    _make_folders(submission)
    run_dir = submission.run_dir or Path.cwd()
    script = run_dir / submission.name
    history.put(script, submission.script)
    started = time.strftime("%Y%m%d-%H%M%S")
    log = run_dir / f"{run_dir.name}-{started}.out"
    env, _ = clean_environment(environment)
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", str(script)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    note(f"note: process {process.pid}, log {log}")
    _keep(submission, run_dir, started, note)
    try:
        with log.open("rb") as stream:
            while process.poll() is None:
                _copy(stream)
                time.sleep(0.1)
            _copy(stream)
    except KeyboardInterrupt:
        note(f"note: still running; to stop it with a checkpoint: touch {run_dir}/stop")
        return 130
    return process.returncode


def _copy(stream: IO[bytes]) -> None:
    sys.stdout.buffer.write(stream.read())
    sys.stdout.buffer.flush()
