"""What a person should see of a resolved job before it is submitted: its request, cost and unexpected values.

The fields of these dataclasses are what `--format json` prints.
None stands for what is not known or does not apply.
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
from sbatchgen.jobs.judge.trainer import fate, promises_restarts
from sbatchgen.jobs.render import launch
from sbatchgen.jobs.resolved.origins import Setting, surprises
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.review import layout, node_share
from sbatchgen.jobs.review.layout import Layout
from sbatchgen.jobs.review.node_share import Allocation, Cost, cost_of
from sbatchgen.jobs.runs.folder_check import RunFolderForecast
from sbatchgen.jobs.runs.record import Code
from sbatchgen.jobs.runs.submitted_scripts import Submitted, difference
from sbatchgen.jobs.slurm.refusal import Answer

FEW_POINTS = 20  # points of a sweep that `folded` leaves in the script
_POINT = re.compile(r" {8}\d+\) (?:param|point_args)=\(")


@frozen(kw_only=True)
class Part:
    """A section of the script: its title, and its first and last line, counted from 1."""

    title: str
    first: int
    last: int


@frozen(kw_only=True)
class Change:
    """The last submission of the run, and the unified diff since then, "" if nothing changed."""

    job: str
    time: str
    file: str
    diff: str


@frozen(kw_only=True)
class JobSummary:
    """What runs, and its folders; data and resume are None where your own trainer does not get them.

    The snapshot is the copy of the code that it runs; None if it runs the files as they are. `restarts` says
    what happens at the time limit to a trainer that does not resume.
    """

    name: str
    mode: str
    launcher: str | None
    runtime: str
    trainer: str
    args: tuple[str, ...]
    run_dir: str
    data: str | None
    resume: str | None
    snapshot: Code | None
    restarts: str = ""
    programs: tuple[str, ...] = ()  # the names of its programs, if it has several


@frozen(kw_only=True)
class Cluster:
    """Where it runs; on the day `checked` the profile was last compared with its source `url`."""

    profile: str
    scheduler: str
    url: str
    checked: str
    partition: str | None
    account: str | None
    qos: str | None
    preemption: str | None = None
    preemption_grace_s: int | None = None


@frozen(kw_only=True)
class Review:
    """All of it."""

    job: JobSummary | None = None
    cluster: Cluster | None = None
    request: Allocation | None = None
    cost: Cost | None = None
    start: RunFolderForecast | None = None  # what the job will find in its run folder
    surprises: tuple[Setting, ...] = ()  # the values that the user may not expect: see `origins.surprises`
    findings: tuple[Finding, ...] = ()
    last: Change | None = None  # what has changed since the last submission
    script: str | None = None  # the script; None if there are errors
    parts: tuple[Part, ...] = ()
    # Numbers of its lines, from 1, that hold a value of the job or the profile
    own_lines: tuple[int, ...] | None = None
    slurm: Answer | None = None  # what the live Slurm says, if it was asked
    starts: Layout | None = None  # what starts where, by the job or the directives; None without a script
    # Stands for the script and the request to Slurm, for `submit --reviewed`; "" without a script
    digest: str = ""


def of_resolved(
    resolved: ResolvedJob,
    script: str | None,
    findings: Sequence[Finding],
    *,
    profile_by: Origin,
    start: RunFolderForecast | None = None,
    last: Submitted | None = None,
    own_lines: Sequence[int] | None = None,
    snapshot: Code | None = None,
    source: TrainerSource | None = None,
    again: Sequence[str] = (),
) -> Review:
    """Return the review of a job; see Review.

    `profile_by`: who named its profile. `source`: its trainer's text. `again`: the command that plans it.
    """
    change = None
    if last and script is not None:
        change = Change(job=last.job, time=last.time, file=str(last.file), diff=difference(last, script))
    restarts = fate(resolved, source)
    ends = bool(restarts) and not promises_restarts(resolved)
    request = node_share.of_resolved(resolved, ends=ends)
    return replace(
        of_script(script),
        job=replace(_job(resolved, snapshot), restarts=restarts),
        cluster=_cluster(resolved),
        request=request,
        cost=cost_of(request, resolved.partition.billing) if resolved.slurm else None,
        start=start,
        surprises=tuple(surprises(resolved, profile_by)),
        findings=tuple(findings),
        last=change,
        own_lines=None if own_lines is None else tuple(own_lines),
        starts=None if script is None else layout.of_resolved(resolved, request, script, again),
    )


def of_script(
    script: str | None,
    job: ResourceRequest | None = None,
    findings: Sequence[Finding] = (),
    again: Sequence[str] = (),
) -> Review:
    """Return the review of a finished script: request and findings; `again` is the command of a plan."""
    request = node_share.of_resources(job, Partition(), gpus=job.gpu_count) if job else None
    return Review(
        starts=layout.of_script(job, request, again) if job and request else None,
        request=request,
        cost=cost_of(request) if request else None,
        findings=tuple(findings),
        script=script,
        parts=tuple(_parts(script or "")),
    )


def _job(resolved: ResolvedJob, snapshot: Code | None) -> JobSummary:
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
    """Return the review with most points of a large sweep left out of its script, for people."""
    lines = lines_of(review.script or "")
    points = [place for place, line in enumerate(lines) if _POINT.match(line)]
    left_out = points[FEW_POINTS - 1 : -1]
    if len(left_out) < 2:
        return review
    first, count = left_out[0], len(left_out)
    lines[first : first + count] = [f"        # ... {count:,} more points ..."]
    decided = review.own_lines and tuple(
        number if number <= first else number - count + 1
        for number in review.own_lines
        if not first < number <= first + count
    )
    script = "\n".join([*lines, ""])
    return replace(review, script=script, own_lines=decided, parts=tuple(_parts(script)))


def lines_of(script: str) -> list[str]:
    """Return the lines as bash and sbatch see them: only a newline ends a line."""
    return script.removesuffix("\n").split("\n") if script else []


def _parts(script: str) -> Iterator[Part]:
    """Yield the parts of a script: its directives, the lines around them, and each section with a title."""
    if not (lines := lines_of(script)):
        return
    starts = {1: "Head"}
    directives = [number for number, line in enumerate(lines, 1) if line.startswith("#SBATCH")]
    if directives:
        starts |= {directives[0]: "Directives", directives[-1] + 1: "Job"}
    titles = (re.fullmatch(r"# (?:---|===) (.+?)(?: ---|:.*)", line) for line in lines)
    starts |= {number: title[1] for number, title in enumerate(titles, 1) if title}
    first = sorted(number for number in starts if number <= len(lines))
    for begin, end in zip(first, [*first[1:], len(lines) + 1], strict=True):
        yield Part(title=starts[begin], first=begin, last=end - 1)
