"""From a script to a running job: log folders first, a clean environment, and the very bytes shown.

Only this module and `start` start processes, but for shellcheck. Slurm's behaviour relied on: sbatch(1),
"INPUT ENVIRONMENT VARIABLES" (SBATCH_* beats the script) and
"filename pattern" (no folder is made for a log).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from sbatchgen.errors import CommandLineError, DocumentError, FitError, SbatchgenError, SlurmError
from sbatchgen.finding import Finding
from sbatchgen.inputs.layers import Level
from sbatchgen.inputs.search import Places, bundled
from sbatchgen.lint.linter import read_closely
from sbatchgen.lint.settings import findings_of, settings_of
from sbatchgen.lint.source import whole
from sbatchgen.plan.request import Request, with_log
from sbatchgen.quoting import word
from sbatchgen.render.render import render_request
from sbatchgen.render.trace import trace_request
from sbatchgen.review import review
from sbatchgen.rules.plans import check
from sbatchgen.runs import history, start
from sbatchgen.sbatch import Script, read
from sbatchgen.slurm.refusal import Answer, Asked, Refusal, asked_by, asked_in, refusals, understand
from sbatchgen.subject.ask import DEFAULT_SLURM
from sbatchgen.subject.subject import Subject
from sbatchgen.units import ShellPath, Text

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


def of_job(
    request: Request, environment: Mapping[str, str], folder: Path, *, ask: bool = False
) -> Submission:
    """The submission of a job; its log goes into the run folder, unless the job says where.

    With `ask`, squeue says whether earlier jobs of the run folder are still there.

    Raises:
        DocumentError: The run folder holds a variable that is not set here.
    """
    if request.plan.profile.scheduler == "env":
        name = request.plan.profile.name
        what = f"profile '{name}' has no scheduler to submit to: its platform starts the script"
        raise FitError.of(what, fix="render it, and give the script to the platform")
    run_dir = folder / expand(_known_here(request.plan.run_dir), environment)
    return _of_plan(request, environment, folder, run_dir, ask=ask)


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
    ask: bool = False,
) -> Submission:
    plan = request.plan
    if run_dir and plan.slurm and plan.origin("options.output").level is Level.DEFAULT:
        pattern = str(plan.options.output or "%x-%j.out")
        request = with_log(request, f"{_in_directive(run_dir)}/{pattern}")
    findings = check(request.plan, log_folders_made=True)
    begins, about_start = _start(request, environment, folder, run_dir)
    findings += [*about_start, *start.files_there(plan, folder, environment)]
    if ask and run_dir and plan.slurm and _known_here(plan.run_dir) == plan.run_dir:
        findings += start.queued(run_dir, plan, environment)
    broken = any(finding.severity == "error" for finding in findings)
    script = "" if broken else render_request(request)
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
        request.plan,
        None if broken else script,
        findings,
        profile_by=request.profile_by,
        start=begins,
        last=history.last(run_dir) if run_dir else None,
        own_lines=_own_lines(request, script),
    )
    return Submission(
        script=script.encode(),
        name="job.slurm",
        asked=asked_by(request.plan),
        log_folders=log_folders(read(script), folder, plan.name),
        run_dir=run_dir,
        local=not plan.slurm,
        review=shown,
    )


def _start(
    request: Request, environment: Mapping[str, str], folder: Path, run_dir: Path | None
) -> tuple[start.Start | None, list[Finding]]:
    """What the job will find in its run folder, and what is wrong with that."""
    plan = request.plan
    code = plan.profile.paths.code
    if (
        plan.trainer
        or plan.options.array  # each element has a folder of its own
        or not run_dir
        or _known_here(plan.run_dir) != plan.run_dir
        or any(ShellPath(path).unset(environment) for path in (plan.resume, code or ""))
    ):
        return None, []
    here = folder / code.filled(environment) if code else bundled("code")
    return start.look(plan, run_dir, here, ShellPath(plan.resume).filled(environment))


def _known_here(run_dir: ShellPath) -> ShellPath:
    """The folder, or of one that only the running job can name, the folder around it."""
    before, variable, _ = run_dir.partition("${SLURM_")
    return ShellPath(before.rpartition("/")[0] or ".") if variable else run_dir


def _in_directive(run_dir: Path) -> str:
    """The run folder as the start of a log's name.

    Raises:
        DocumentError: No directive can hold it: there is a line break in it, or it is not UTF-8.
    """
    try:
        return Text.parse(str(run_dir)).replace("%", "%%")
    except ValueError as error:
        fix = "submit from a folder with another name, or give --output"
        raise DocumentError.of(f"the log can't lie in the run folder: {error}", fix=fix) from error


def _own_lines(request: Request, script: str) -> list[int] | None:
    """The lines with a value in them; None where a site's template can't be traced."""
    try:
        places = trace_request(request, script) if script else []
    except (DocumentError, LookupError, ValueError):
        return None
    return [number for number, place in enumerate(places, 1) if place.value]


def of_script(
    path: Path,
    given: Mapping[str, Any],
    args: tuple[str, ...],
    environment: Mapping[str, str],
    folder: Path,
    *,
    keep: bool = False,
) -> Submission:
    """The submission of a script as it stands; of the options of a job it may have a profile to be judged by.

    Args:
        path: The script.
        given: The options of a job.
        args: Arguments of a trainer.
        environment: For SBATCHGEN_PROFILE and the search paths.
        folder: The current folder.
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
        settings_of(Places(folder, environment), given.get("profile")),
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
        log_folders=log_folders(parsed, folder, (name.value if name else None) or path.name),
        run_dir=None,
        local=False,
        review=review.of_script(text, Subject(file=str(path), text=text).job, found),
    )


def expand(path: ShellPath, environment: Mapping[str, str]) -> str:
    """The path with ${USER} and its like as they are here.

    Raises:
        DocumentError: A variable is not set here, or is known only to the running job.
    """
    if missing := path.unset(environment):
        what = f"run folder '{path}': {missing[0]} is not set here, so its log folder can't be made"
        raise DocumentError.of(what, fix=f"export {missing[0]}, or give --run-dir")
    return path.filled(environment)


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


def _make_folders(submission: Submission, note: Note) -> None:
    """Make the folders of the logs and of the run."""
    fix = "name a folder that you can write into: --run-dir, or --output for the log"
    for folder in (*submission.log_folders, *([submission.run_dir] if submission.run_dir else [])):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"can't make the folder {folder}: {error.strerror}"
            raise DocumentError.of(what, fix=fix) from error
        if folder != Path("/dev") and not os.access(folder, os.W_OK | os.X_OK):  # a log may be /dev/null
            note(f"note: can't write into {folder}: a job that can't write its log dies without a word")


@dataclass(frozen=True)
class Accepted:
    """A job that Slurm has taken.

    Attributes:
        job: Its id, with its cluster if there are several, as `sbatch --parsable` prints it.
        says: What sbatch said besides.
    """

    job: str
    says: str


def submit_to_slurm(
    submission: Submission, environment: Mapping[str, str], *, keep: bool, note: Note
) -> Accepted:
    """Submit. Tell the id before anything else can fail, then `record` it.

    Raises:
        SlurmError: Slurm refused, or there is none.
        DocumentError: A folder can't be made or written into.
    """
    env, leaks = (dict(environment), []) if keep else clean_environment(environment)
    if leaks:
        note(f"note: left out of the environment, where they would change the job: {', '.join(leaks)}")
    _make_folders(submission, note)
    if submission.run_dir:
        history.put(submission.run_dir / submission.name, submission.script)
    try:
        answer = _sbatch("--parsable", submission, env)
    except KeyboardInterrupt:
        note("note: see with squeue --me whether the job is there")
        raise
    match = re.search(r"^(\d+)(;.*)?$", answer.out, re.MULTILINE)
    if match and answer.ended:  # sbatch waits for the job where the script says --wait
        return Accepted(match[0], "\n".join(line for line in (answer.err.strip(), answer.ended) if line))
    fix = "see with squeue --me whether the job is there before trying again"
    if answer.status is None:
        raise SlurmError.of(answer.ended, fix=fix)
    if answer.status:
        said = refusals(answer.status, answer.err or answer.out, submission.asked)
        raise SlurmError(refusal.problem for refusal in said)
    if match is None:
        raise SlurmError.of(f"sbatch gave no job id, but: {answer.out.strip() or 'nothing'}", fix=fix)
    return Accepted(match[0], answer.err.strip())


def record(submission: Submission, accepted: Accepted, *, note: Note) -> None:
    """Keep what was submitted in the run folder, and tell what sbatch said."""
    if submission.run_dir:
        _keep(submission, submission.run_dir, accepted.job.partition(";")[0], note)
    if accepted.says:
        note(accepted.says)


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
    try:
        answer = _sbatch("--test-only", submission, env)
        if answer.status is None:
            raise SlurmError.of(answer.ended, fix="try again later")
    except SlurmError as error:
        problem = error.problems[0]
        return Answer(accepted=False, says="", refusals=(Refusal(says=problem.what, fix=problem.fix),))
    return understand(answer.status, answer.err or answer.out, submission.asked)


@dataclass(frozen=True)
class _Said:
    """What sbatch gave; its exit status is None if it was still running after SUBMIT_TIMEOUT_S."""

    status: int | None
    out: str
    err: str

    @property
    def ended(self) -> str:
        """How it ended, if not well."""
        if self.status is None:
            return f"sbatch did not end within {SUBMIT_TIMEOUT_S} s"
        return f"sbatch ended with exit status {self.status}" if self.status else ""


def _sbatch(option: str, submission: Submission, env: Mapping[str, str]) -> _Said:
    """Give sbatch the script, in a folder that only this user can enter.

    Others may write to the run folder, or submit from it at the same moment, and sbatch opens the script by
    its name. That stays the file's own: a job without a name is called after it.

    Raises:
        SlurmError: sbatch can't be started.
        DocumentError: There is no room for the file.
    """
    try:
        private = tempfile.TemporaryDirectory(prefix="sbatchgen-")
    except OSError as error:
        what = f"can't make a folder for temporary files: {error.strerror}"
        raise DocumentError.of(what, fix="export TMPDIR=FOLDER, one that you can write into") from error
    with private as folder:
        path = Path(folder) / submission.name
        history.put(path, submission.script)
        try:
            done = subprocess.run(
                ["sbatch", option, str(path)],
                env=env,
                check=False,
                capture_output=True,
                timeout=SUBMIT_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            return _Said(None, _text(error.stdout), _text(error.stderr))
        except OSError as error:
            raise _no_sbatch(error, env) from error
    return _Said(_as_in_shell(done.returncode), _text(done.stdout), _text(done.stderr))


def _as_in_shell(returncode: int) -> int:
    """The exit status as a shell has it, where a process may also be ended by a signal."""
    return returncode if returncode >= 0 else 128 - returncode


def _text(said: bytes | None) -> str:
    """What a command of Slurm wrote; a plugin of the site may write anything, in any encoding."""
    return (said or b"").decode("utf-8", "replace")


def _no_sbatch(error: OSError, env: Mapping[str, str]) -> SbatchgenError:
    """Why sbatch can't be started."""
    found = shutil.which("sbatch", mode=os.F_OK, path=env.get("PATH"))
    fix = "submit on a node that has Slurm's commands, or run here with --profile local"
    if found is None:
        return SlurmError.of("there is no sbatch here", fix=fix)
    return SlurmError.of(
        f"can't start {found}: {error.strerror}", fix="see what it is: ls -lL " + word(found)
    )


def run_locally(submission: Submission, environment: Mapping[str, str], *, note: Note) -> int:
    """Run the script with bash in the background and follow its log; the exit status of the script.

    It runs in a session of its own: an interrupt ends the following, not the training.
    """
    _make_folders(submission, note)
    run_dir = submission.run_dir or Path.cwd()
    history.put(run_dir / submission.name, submission.script)
    output, started = _new_log(run_dir)
    script = history.keep(run_dir, started, submission.script)  # nobody writes another one of this name
    env, _ = clean_environment(environment)
    with output:
        process = subprocess.Popen(
            ["bash", str(script)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    note(f"note: process {process.pid}, log {output.name}")
    try:
        _follow(process, Path(output.name))
    except KeyboardInterrupt:
        note(f"note: still running; to stop it with a checkpoint: touch {run_dir}/stop")
        return 130
    except OSError:  # nobody reads what is printed here
        note(f"note: still running; to stop it with a checkpoint: touch {run_dir}/stop")
        raise
    return _as_in_shell(process.returncode)


def _new_log(run_dir: Path) -> tuple[IO[bytes], str]:
    """A log that was not there before, and the time of the start that is in its name."""
    started, count = time.strftime("%Y%m%d-%H%M%S"), 1
    while True:
        name = started if count == 1 else f"{started}-{count}"
        try:
            return (run_dir / f"{run_dir.name}-{name}.out").open("xb"), name
        except FileExistsError:  # another start in the same second
            count += 1


def _follow(process: subprocess.Popen[bytes], log: Path) -> None:
    """Copy a log to stdout until the process that writes it has ended."""
    with log.open("rb") as stream:
        while process.poll() is None:
            _copy(stream)
            time.sleep(0.1)
        _copy(stream)


def _copy(stream: IO[bytes]) -> None:
    sys.stdout.buffer.write(stream.read())
    sys.stdout.buffer.flush()
