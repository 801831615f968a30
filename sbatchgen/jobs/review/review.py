"""The review of a job: what a person should see before it is submitted.

`review_of_job` makes it for a job, and `review_of_script` for a finished script. `--format json` prints the
fields of these records. None stands for a value that is not known or does not apply.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sbatchgen.base.finding import Finding
from sbatchgen.base.frozen import frozen
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.check.script.trainer_source import TrainerSource
from sbatchgen.jobs.inputs.layers import Origin
from sbatchgen.jobs.inputs.profile import Partition
from sbatchgen.jobs.judge.trainer import promises_restarts, work_lost
from sbatchgen.jobs.render import launch
from sbatchgen.jobs.resolved.origins import Setting, surprises
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.review import layout, node_share
from sbatchgen.jobs.review.layout import Layout
from sbatchgen.jobs.review.node_share import Allocation, Cost, cost_of
from sbatchgen.jobs.runs.folder_check import RunFolderForecast
from sbatchgen.jobs.runs.record import Code
from sbatchgen.jobs.runs.submitted_scripts import SubmittedScript, difference
from sbatchgen.jobs.slurm.refusal import Answer

MAX_POINTS = 20  # points of a sweep that `folded` leaves in the script
_POINT_LINE = re.compile(r" {8}\d+\) (?:param|point_args)=\(")  # the line of a point: "        3) param=("


@frozen(kw_only=True)
class Part:
    """A section of the script: its title, and its first and last line, counted from 1."""

    title: str
    first: int
    last: int


@frozen(kw_only=True)
class Change:
    """The changes in the script of a run since the last submission."""

    job: str  # the id of the last job
    time: str  # when it was submitted: "2026-11-20 21:38"
    file: str  # the file of its script
    diff: str  # the unified diff since then; "" if nothing has changed


@frozen(kw_only=True)
class JobSummary:
    """What a job runs, and its folders."""

    name: str
    mode: str
    launcher: str | None
    runtime: str
    trainer: str
    args: tuple[str, ...]
    run_dir: str
    data: str | None  # the data folder; None if the user's own trainer does not get it
    resume: str | None  # the checkpoint from which it resumes; None if the user's own trainer does not get it
    snapshot: Code | None  # the copy of the code that it runs; None if it runs the files themselves
    restarts: str = ""  # what happens at the time limit to a trainer that does not resume; "" for others
    programs: tuple[str, ...] = ()  # the names of its programs, if it has several


@frozen(kw_only=True)
class Cluster:
    """The cluster on which a job runs."""

    profile: str
    scheduler: str
    url: str  # the source of the profile
    checked: str  # the day on which the profile was last compared with its source
    partition: str | None
    account: str | None
    qos: str | None
    preemption: str | None = None
    preemption_grace_s: int | None = None


@frozen(kw_only=True)
class Review:
    """The review of a resolved job or of a finished script."""

    job: JobSummary | None = None
    cluster: Cluster | None = None
    request: Allocation | None = None
    cost: Cost | None = None
    start: RunFolderForecast | None = None  # what the job will find in its run folder
    surprises: tuple[Setting, ...] = ()  # the values that the user may not expect: see `origins.surprises`
    findings: tuple[Finding, ...] = ()
    last: Change | None = None  # the changes since the last submission; None for the first
    script: str | None = None  # the script; None if there are errors
    parts: tuple[Part, ...] = ()  # the sections of the script
    # Numbers of lines, from 1, with a value of the job or the profile; None if they are not known
    own_lines: tuple[int, ...] | None = None
    slurm: Answer | None = None  # the answer of the live Slurm, if it was asked
    starts: Layout | None = None  # what starts on which node; None without a script
    # A checksum of the script and the request to Slurm, for `submit --reviewed`; "" without a script
    digest: str = ""


def review_of_job(
    resolved: ResolvedJob,
    script: str | None,
    findings: Sequence[Finding],
    *,
    profile_by: Origin,
    start: RunFolderForecast | None = None,
    last: SubmittedScript | None = None,
    own_lines: Sequence[int] | None = None,
    snapshot: Code | None = None,
    source: TrainerSource | None = None,
    plan_command: Sequence[str] = (),
) -> Review:
    """Return the review of a resolved job and its rendered script.

    `profile_by` is where the user named the job's profile. `source` has the facts in the trainer's source.
    `last` is the script of the run's last job. `plan_command` is the command of the dry run. Each other
    argument is a field of the review or of its `JobSummary`.
    """
    change = None
    if last and script is not None:
        change = Change(job=last.job, time=last.time, file=str(last.file), diff=difference(last, script))
    lost_work = work_lost(resolved, source)
    ends_at_limit = bool(lost_work) and not promises_restarts(resolved)
    request = node_share.allocation_of_job(resolved, ends_at_limit=ends_at_limit)
    return replace(
        review_of_script(script),
        job=replace(_job_summary(resolved, snapshot), restarts=lost_work),
        cluster=_cluster(resolved),
        request=request,
        cost=cost_of(request, resolved.partition.billing) if resolved.uses_slurm else None,
        start=start,
        surprises=tuple(surprises(resolved, profile_by)),
        findings=tuple(findings),
        last=change,
        own_lines=None if own_lines is None else tuple(own_lines),
        starts=None if script is None else layout.layout_of_job(resolved, request, script, plan_command),
    )


def review_of_script(
    script: str | None,
    job: ResourceRequest | None = None,
    findings: Sequence[Finding] = (),
    plan_command: Sequence[str] = (),
) -> Review:
    """Return the review of a finished script; `job` is its request, `plan_command` starts its dry run."""
    request = node_share.allocation_of_request(job, Partition(), gpus=job.gpu_count) if job else None
    return Review(
        starts=layout.layout_of_script(job, request, plan_command) if job and request else None,
        request=request,
        cost=cost_of(request) if request else None,
        findings=tuple(findings),
        script=script,
        parts=tuple(_parts(script or "")),
    )


def _job_summary(resolved: ResolvedJob, snapshot: Code | None) -> JobSummary:
    """Return the summary of a job; `snapshot` is the copy of the code that it runs."""
    gets_resume = resolved.is_bundled or launch.gives_resume(resolved)
    resume = str(resolved.resume) if gets_resume else None
    if resolved.gives_resume_args and resolved.resume == "auto":
        resume = f"the newest {resolved.checkpoint}, if any"
    return JobSummary(
        name=resolved.name,
        mode=resolved.mode.name,
        programs=tuple(program.name for program in resolved.programs),
        launcher=resolved.launcher,
        runtime=resolved.runtime.name,
        trainer=resolved.trainer or "training",
        args=tuple(map(str, resolved.args)),
        run_dir=str(resolved.run_dir),
        data=str(resolved.data) if resolved.is_bundled or launch.uses_data(resolved) else None,
        resume=resume,
        snapshot=snapshot,
    )


def _cluster(resolved: ResolvedJob) -> Cluster:
    """Return the review's facts of the cluster on which a job runs."""
    return Cluster(
        profile=resolved.profile.name,
        scheduler=resolved.profile.scheduler,
        url=resolved.profile.url,
        checked=resolved.profile.checked,
        partition=resolved.options.partition,
        account=resolved.options.account,
        qos=resolved.options.qos,
        preemption=resolved.partition.preemption,
        preemption_grace_s=resolved.partition.preemption_grace,
    )


def folded(review: Review) -> Review:
    """Return the review without most points of a large sweep in its script, which people need not read.

    MAX_POINTS points stay, the last point among them.
    """
    lines = lines_of(review.script or "")
    points = [index for index, line in enumerate(lines) if _POINT_LINE.match(line)]
    removed = points[MAX_POINTS - 1 : -1]
    if len(removed) < 2:
        return review
    first, count = removed[0], len(removed)
    lines[first : first + count] = [f"        # ... {count:,} more points ..."]
    # One line replaces the removed lines, so the lines after them have lower numbers.
    own_lines = review.own_lines and tuple(
        number if number <= first else number - count + 1
        for number in review.own_lines
        if not first < number <= first + count
    )
    script = "\n".join([*lines, ""])
    return replace(review, script=script, own_lines=own_lines, parts=tuple(_parts(script)))


def lines_of(script: str) -> list[str]:
    """Return the lines of a script as bash and sbatch see them: only a newline ends a line, no form feed."""
    return script.removesuffix("\n").split("\n") if script else []


def _parts(script: str) -> Iterator[Part]:
    """Yield the parts of a script: its head, its directives, the rest, and each section with a title."""
    if not (lines := lines_of(script)):
        return
    titles_by_line = {1: "Head"}
    directives = [number for number, line in enumerate(lines, 1) if line.startswith("#SBATCH")]
    if directives:
        titles_by_line |= {directives[0]: "Directives", directives[-1] + 1: "Job"}
    matches = (re.fullmatch(r"# (?:---|===) (.+?)(?: ---|:.*)", line) for line in lines)  # "# --- Setup ---"
    titles_by_line |= {number: match[1] for number, match in enumerate(matches, 1) if match}
    first_lines = sorted(number for number in titles_by_line if number <= len(lines))
    next_first_lines = [*first_lines[1:], len(lines) + 1]
    for first, next_first in zip(first_lines, next_first_lines, strict=True):
        yield Part(title=titles_by_line[first], first=first, last=next_first - 1)
