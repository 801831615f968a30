"""sbatch gets the bytes that were reviewed, in a clean environment: SBATCH_* would override the script."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sbatchgen import files
from sbatchgen.errors import DocumentError, SlurmError
from sbatchgen.runs import history
from sbatchgen.slurm.command import Output, run, submit_environment
from sbatchgen.slurm.refusal import Answer, Refusal, refusals, understand
from sbatchgen.submit.submission import Submission

SUBMIT_TIMEOUT_S = 60
ELSEWHERE = "submit on a node that has Slurm's commands, or run here with --profile local"
Note = Callable[[str], None]


@dataclass(frozen=True)
class Accepted:
    """A job that Slurm has accepted: its id, as `sbatch --parsable` prints it, and what sbatch said."""

    job: str
    says: str


def submit(submission: Submission, environment: Mapping[str, str], *, keep_env: bool, note: Note) -> Accepted:
    """Submit. Print the id before anything else can fail, then `record` it.

    Raises:
        SlurmError: Slurm refused, or can't be asked.
        DocumentError: A folder can't be made or written into.
    """
    env, leaks = (dict(environment), []) if keep_env else submit_environment(environment)
    if leaks:
        note(f"note: removed from the environment of sbatch, would change the job: {', '.join(leaks)}")
    make_folders(submission, note)
    if submission.run_dir:
        files.put(submission.run_dir / submission.name, submission.script)
    try:
        answer = _sbatch("--parsable", submission, env)
    except KeyboardInterrupt:
        note("note: the job may have been submitted: see squeue --me")
        raise
    match = re.search(r"^(\d+)(;.*)?$", answer.out, re.MULTILINE)
    if match and answer.failure:  # sbatch waits for the job where the script says --wait
        return Accepted(match[0], "\n".join(line for line in (answer.err.strip(), answer.failure) if line))
    fix = "see with squeue --me whether the job is there before trying again"
    if answer.status is None:
        raise SlurmError.of(answer.failure, fix=fix)
    if answer.status:
        said = refusals(answer.status, answer.err or answer.out, submission.asked)
        raise SlurmError(refusal.problem for refusal in said)
    if match is None:
        raise SlurmError.of(f"sbatch gave no job id, but: {answer.out.strip() or 'nothing'}", fix=fix)
    return Accepted(match[0], answer.err.strip())


def record(submission: Submission, accepted: Accepted, *, note: Note) -> None:
    """Keep the script in the run folder, and print what sbatch said; the job runs even if that fails."""
    if submission.run_dir:
        job = accepted.job.partition(";")[0]
        try:
            history.keep(submission.run_dir, job, submission.script)
        except OSError as error:
            where = f"{submission.run_dir}: {error.strerror}"
            note(f"note: can't keep the script of job {job} in {where}")
    if accepted.says:
        note(accepted.says)


def ask_slurm(submission: Submission, environment: Mapping[str, str]) -> Answer:
    """What the live Slurm says of the script: `sbatch --test-only`, which uses up a job id."""
    try:
        answer = _sbatch("--test-only", submission, submit_environment(environment)[0])
        if answer.status is None:
            raise SlurmError.of(answer.failure, fix="try again later")
    except SlurmError as error:
        problem = error.problems[0]
        return Answer(accepted=False, says="", refusals=(Refusal(says=problem.what, fix=problem.fix),))
    return understand(answer.status, answer.err or answer.out, submission.asked)


def make_folders(submission: Submission, note: Note) -> None:
    """Make the folders of the logs and of the run.

    Raises:
        DocumentError: One can't be made.
    """
    fix = "name a folder that you can write into: --run-dir, or --output for the log"
    for folder in (*submission.log_folders, *([submission.run_dir] if submission.run_dir else [])):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"can't make the folder {folder}: {error.strerror}"
            raise DocumentError.of(what, fix=fix) from error
        if folder != Path("/dev") and not os.access(folder, os.W_OK | os.X_OK):  # a log may be /dev/null
            note(f"note: can't write into {folder}: a job that can't write its log fails without a message")


def _sbatch(option: str, submission: Submission, env: Mapping[str, str]) -> Output:
    """Give sbatch the script, in a folder that only this user can enter.

    Others may write to the run folder, or submit from it at the same moment, and sbatch opens the script by
    its name. The name stays: a job without one is called after its script.

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
        files.put(path, submission.script)
        return run(["sbatch", option, str(path)], env, timeout=SUBMIT_TIMEOUT_S, elsewhere=ELSEWHERE)
