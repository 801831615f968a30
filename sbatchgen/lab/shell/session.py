"""The session of a job: a batch job that runs the job's own script up to its training, and holds the nodes.

A batch job, since only its script has what the script of the job has. The shell is a child of the script: a
step of srun only hands the terminal over (templates/shell/on_node.py). InactiveLimit of slurm.conf(5) ends no
batch job.
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
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob, one_at_a_time
from sbatchgen.jobs.review import review
from sbatchgen.jobs.runs import index
from sbatchgen.jobs.runs.record import Record, run_name
from sbatchgen.jobs.slurm.queue import new_key
from sbatchgen.jobs.submit.submission import Submission

TIME = Duration(3600)
VERB = "shell"  # in the command of the record
CONNECT, RELAY, JUPYTER = "connect", "relay", "jupyter"  # what a terminal asks templates/shell/on_node.py for
OPENED = "sbatchgen: the first terminal is here"  # in the log, by templates/shell/on_node.py


def shape(given: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    """Return the options of a job's session: those that were given, else the profile's, else an hour."""
    of_profile = profile.interactive
    known = {"partition": of_profile.partition, "qos": of_profile.qos, "time": of_profile.time or TIME}
    return {**given, **{name: str(value) for name, value in known.items() if value and not given.get(name)}}


def submission(
    job: Request, request: Request, base: Submission, environment: Mapping[str, str]
) -> Submission:
    """Return the submission of a session: the `base` of its `request`, with another end of the script.

    `job` is the request without the options of the session. Raises CommandLineError: it has several elements.
    """
    array = request.resolved.options.array
    elements = [number for span in indices(array or "") or () for number in span]
    if len(elements) > 1 and not one_at_a_time(str(array)):
        what = f"the job is an array of several elements ({array}), and a shell has the environment of one"
        raise CommandLineError.of(what, at="--array", fix="name one element: --array 0")
    if not request.resolved.slurm or base.review.script is None:
        text = render_request(request, session=True) if base.review.script else ""
        return replace(base, script=text.encode(), review=_review(base, text, ()))
    text = render_request(request, session=True)
    name = f"{run_name(base.record.name)}-{VERB}"
    folder = index.place(environment).parent / "runs" / f"{name}-{new_key()}"
    log = folder / f"{VERB}.out"
    array_of_one = [f"--array={first}" for first in elements[: len(elements) > 1]]
    options = (*array_of_one, f"--job-name={name}", f"--output={str(log).replace('%', '%%')}", "--no-requeue")
    limit = request.resolved.options.time
    options += (f"--signal=B:USR1@{min(300, limit // 4)}",) if limit else ()
    about = replace(
        base.record, name=name, log=str(log).replace("%", "%%"), errors="", shared=False, mode="", values=(),
        command=("sbatchgen", VERB, *base.record.command[2:]),
    )  # fmt: skip
    return replace(
        base, script=text.encode(), name=f"{VERB}.sh", options=options, run_dir=folder, jobs=1, record=about,
        log_folders=(), review=_review(base, text, (*differences(job, request), *options)),
    )  # fmt: skip


def differences(job: Request, request: Request) -> Iterator[str]:
    """Yield the options of sbatch that a session has, and its job has not, or has otherwise."""
    before, now = job.resolved.directives, request.resolved.directives
    yield from (f"--{name}={text}" for name, text in now.items() if before.get(name) != text)
    yield from (f"no --{name}" for name in before if name not in now)


def _review(base: Submission, text: str, differs: Sequence[str]) -> review.Review:
    """Return what people see: the review of the job, and what differs from the job."""
    if not text:
        return base.review
    findings = base.review.findings
    if differs:
        # Of an option that is given twice, sbatch takes the last.
        last = {text.partition("=")[0]: text for text in differs}
        what = f"a shell in place of the training; what differs from the job: {' '.join(last.values())}"
        findings = (*findings, Finding("info", Problem(what)))
    allocation = base.review.request and replace(base.review.request, restarts=0)  # Slurm does not requeue it
    parts = review.review_of_script(text).parts
    return replace(base.review, script=text, parts=parts, findings=findings, request=allocation)


def refuse_rank(job: ResolvedJob, rank: int | None) -> None:
    """Raise CommandLineError: a rank that pdb is to stop is not on the first node, as the terminal is."""
    here = job.nproc_per_node if job.mode.several_processes else 1
    if rank is not None and job.programs:
        what = "--debug is for one training, and this job has several programs"
        raise CommandLineError.of(what, fix="leave --debug out")
    if rank is not None and rank >= here:
        what = f"the first node, where the shell is, has the ranks 0 to {here - 1}"
        raise CommandLineError.of(what, at=f"--debug {rank}", fix="--debug 0")


def is_session(record: Record | None) -> bool:
    """Return whether a submission is the session of a job."""
    return record is not None and record.command[1:2] == (VERB,)


def attachment(
    job: str, node: str, command: Sequence[str], *, tty: bool, first: bool, how: str = CONNECT
) -> list[str]:
    """Return the step that hands this terminal to the session of a job on its first node.

    `how` is a word of on_node.py: connect, relay or jupyter. The session waits for its `first` terminal.
    """
    code = (bundled("templates") / VERB / "on_node.py").read_text()
    start = 'PATH=/usr/bin:/bin:$PATH exec python3 -I -S -c "$0" "$@"'  # the node's own Python
    place = ("--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}")
    words = ["srun", f"--jobid={job}", *place, "--disable-status", *["--pty"] * tty]
    words += ["--unbuffered"] * (how == RELAY)  # else Slurm keeps output until a line ends
    return [*words, "bash", "-c", start, code, "later-" * (not first) + how, job, *command]


def was_opened(about: Record) -> bool:
    """Return whether a terminal has come to a session, which then ends with its last terminal."""
    return OPENED in _log(about)


def why_ended(about: Record) -> str:
    """Return the error with which the script of a session has ended before its shell, or "".

    Lines of `setup` may print errors, and the script continues: no line counts once a terminal has come.
    """
    lines = () if was_opened(about) else reversed(_log(about))
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")


def _log(about: Record) -> list[str]:
    try:
        return Path(about.log.replace("%%", "%")).read_text(errors="replace").splitlines()
    except OSError:
        return []
