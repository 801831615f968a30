"""Prepares the session of a job, which has a shell on the job's nodes in place of its training.

A session is a batch job that runs the job's own script up to the training. So the shell has the training's
environment, and InactiveLimit of slurm.conf(5), which ends idle interactive jobs, does not end the session.
The shell is a child of the script. A step of srun passes the terminal on to it (templates/shell/on_node.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbatchgen.base.errors import CommandLineError, Problem
from sbatchgen.base.finding import Finding
from sbatchgen.base.units import Duration
from sbatchgen.check.sbatch.array import indices
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob, runs_one_by_one
from sbatchgen.jobs.review import review
from sbatchgen.jobs.runs import index
from sbatchgen.jobs.runs.record import Record, run_name
from sbatchgen.jobs.slurm.queue import new_key
from sbatchgen.jobs.submit.submission import Submission

DEFAULT_TIME = Duration(3600)  # the default time limit of a session
SESSION_WORD = "shell"  # the second word of a record's command marks a session, as in `sbatchgen shell`
CONNECT, RELAY, JUPYTER = "connect", "relay", "jupyter"  # modes of templates/shell/on_node.py
OPENED_LINE = "sbatchgen: the first terminal is here"  # the line that on_node.py writes to the log


def session_options(given: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    """Return the options of a job's session: the `given` options, and the profile's defaults for others.

    A session without a time limit gets `DEFAULT_TIME`.
    """
    interactive = profile.interactive
    time = interactive.time or DEFAULT_TIME
    defaults = {"partition": interactive.partition, "qos": interactive.qos, "time": time}
    return {
        **given,
        **{name: str(value) for name, value in defaults.items() if value and not given.get(name)},
    }


def session_submission(
    job: Request, request: Request, base: Submission, environment: Mapping[str, str]
) -> Submission:
    """Return the submission of a session, whose script has a shell in place of the training.

    `job` is the request of the job, and `request` the same with the options of the session. `base` is the
    submission of `request` with the training. Raises CommandLineError for an array with several elements.
    """
    array = request.resolved.options.array
    elements = [number for span in indices(array or "") or () for number in span]
    if len(elements) > 1 and not runs_one_by_one(str(array)):
        what = f"the job is an array of several elements ({array}), and a shell has the environment of one"
        raise CommandLineError.of(what, at="--array", fix="name one element: --array 0")
    if not request.resolved.uses_slurm or base.review.script is None:
        text = render_request(request, session=True) if base.review.script else ""
        return replace(base, script=text.encode(), review=_session_review(base, text, ()))
    text = render_request(request, session=True)
    name = f"{run_name(base.record.name)}-{SESSION_WORD}"
    folder = index.index_file(environment).parent / "runs" / f"{name}-{new_key()}"
    log = folder / f"{SESSION_WORD}.out"
    # If the elements of an array run one by one, the session takes the place of the first element.
    array_of_one = [f"--array={elements[0]}"] if len(elements) > 1 else []
    options = (*array_of_one, f"--job-name={name}", f"--output={str(log).replace('%', '%%')}", "--no-requeue")
    limit_s = request.resolved.options.time
    # The signal lets the session warn its terminals before the time limit.
    options += (f"--signal=B:USR1@{min(300, limit_s // 4)}",) if limit_s else ()
    record = replace(
        base.record, name=name, log=str(log).replace("%", "%%"), errors="", shared=False, mode="", values=(),
        command=("sbatchgen", SESSION_WORD, *base.record.command[2:]),
    )  # fmt: skip
    differing = (*_differing_options(job, request), *options)
    return replace(
        base, script=text.encode(), name=f"{SESSION_WORD}.sh", options=options, run_dir=folder, jobs=1,
        record=record, log_folders=(), review=_session_review(base, text, differing),
    )  # fmt: skip


def _differing_options(job: Request, request: Request) -> Iterator[str]:
    """Yield the options of sbatch by which a session differs from its job."""
    job_directives, session_directives = job.resolved.directives, request.resolved.directives
    yield from (
        f"--{name}={text}" for name, text in session_directives.items() if job_directives.get(name) != text
    )
    yield from (f"no --{name}" for name in job_directives if name not in session_directives)


def _session_review(base: Submission, text: str, differing: Sequence[str]) -> review.Review:
    """Return the review of a session, with a finding about the options by which it differs from the job."""
    if not text:
        return base.review
    findings = base.review.findings
    if differing:
        # If an option is given twice, sbatch takes the last value.
        last_by_name = {text.partition("=")[0]: text for text in differing}
        values = " ".join(last_by_name.values())
        what = f"a shell in place of the training; what differs from the job: {values}"
        findings = (*findings, Finding("info", Problem(what)))
    # A session has --no-requeue, so its cost has no restarts.
    allocation = base.review.request and replace(base.review.request, restarts=0)
    parts = review.review_of_script(text).parts
    return replace(base.review, script=text, parts=parts, findings=findings, request=allocation)


def refuse_rank(job: ResolvedJob, rank: int | None) -> None:
    """Raise CommandLineError if --debug can't stop `rank` in pdb; None is the rank without --debug.

    A rank can't be stopped in a job of several programs, or if it is not on the first node. Only this node
    has the terminal.
    """
    ranks_on_first_node = job.nproc_per_node if job.mode.several_processes else 1
    if rank is not None and job.programs:
        what = "--debug is for one training, and this job has several programs"
        raise CommandLineError.of(what, fix="leave --debug out")
    if rank is not None and rank >= ranks_on_first_node:
        what = f"the first node, where the shell is, has the ranks 0 to {ranks_on_first_node - 1}"
        raise CommandLineError.of(what, at=f"--debug {rank}", fix="--debug 0")


def is_session(record: Record | None) -> bool:
    """Return whether a record is about the session of a job."""
    return record is not None and record.command[1:2] == (SESSION_WORD,)


def srun_command(
    job: str, node: str, command: Sequence[str], *, has_tty: bool, is_first: bool, mode: str = CONNECT
) -> list[str]:
    """Return the srun that connects this terminal to the session of a job on its first `node`.

    The session runs `command`, which gets a terminal if `has_tty`. `is_first`: the session still waits for
    its first terminal. `mode` is CONNECT, RELAY or JUPYTER.
    """
    code = (bundled("templates") / SESSION_WORD / "on_node.py").read_text()
    start = 'PATH=/usr/bin:/bin:$PATH exec python3 -I -S -c "$0" "$@"'  # with the node's own Python
    placement = ("--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}")
    words = ["srun", f"--jobid={job}", *placement, "--disable-status", *["--pty"] * has_tty]
    words += ["--unbuffered"] * (mode == RELAY)  # without it, Slurm keeps output until the end of a line
    return [*words, "bash", "-c", start, code, "later-" * (not is_first) + mode, job, *command]


def was_opened(record: Record) -> bool:
    """Return whether a terminal has ever connected to a session, which then ends with its last terminal."""
    return OPENED_LINE in _log_lines(record)


def why_ended(record: Record) -> str:
    """Return the error that ended the script of a session before its shell; "" without such an error.

    Once a terminal has connected, the result is "", because programs of the session may print errors too.
    """
    lines = () if was_opened(record) else reversed(_log_lines(record))
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")


def _log_lines(record: Record) -> list[str]:
    """Return the lines of a session's log; [] for a log that can't be read."""
    try:
        return Path(record.log.replace("%%", "%")).read_text(errors="replace").splitlines()
    except OSError:
        return []
