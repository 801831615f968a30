"""Shows a review as text for people, with colours on a terminal. `brief` shows a shorter text of it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sbatchgen.base.errors import Problem
from sbatchgen.base.quoting import counted, fix_lines, one_line, table
from sbatchgen.base.units import Duration, Memory, in_bytes
from sbatchgen.jobs.inputs.search import short_place
from sbatchgen.jobs.render import SECOND_PART
from sbatchgen.jobs.render.trace import TemplateLine
from sbatchgen.jobs.resolved.origins import Setting
from sbatchgen.jobs.review import layout
from sbatchgen.jobs.review.node_share import Allocation, Amount, Cost
from sbatchgen.jobs.review.review import Cluster, JobSummary, Review, lines_of
from sbatchgen.jobs.slurm.refusal import UNCHECKED, Answer

# Patterns of the text above the script, each with its colour as a code of ECMA-48.
_STYLES = (
    (r"(?m)^\S.*(?=\n  )", "1"),  # the title of a section
    (r"(?m)^[a-z][a-z ]*?(?=  )", "36"),  # the name of a row
    (r"(?m)^  (?:error|refuses)\b", "1;31"),
    (r"(?m)^  warning\b", "1;33"),
    (r"(?m)^  info\b", "1;34"),
    (r"(?m)^  (?:\+.*|would\b)", "32"),  # "+#SBATCH --mem=8G" of a diff, or "would accept the job"
    (r"(?m)^  -(?!-\w).*", "31"),  # "-#SBATCH --mem=4G" of a diff, but not "--mem 4G"
)


def as_text(review: Review, folder: Path, *, whole: bool = False) -> str:
    """Return the text of a review: a table, sections such as the findings, and the script.

    Paths are relative to `folder`. The script is shown as by `shown_script`.
    """
    blocks = [table(table_rows(review))]
    for title, section in sections(review, folder):
        lines = (f"  {line}\n" if line else "\n" for line in section.splitlines())
        blocks.append("".join([f"{title}\n", *lines]))
    if review.script is not None:
        blocks.append(shown_script(review, whole=whole))
    return "\n".join(block for block in blocks if block)


def coloured(text: str) -> str:
    """Return the text of a review with colours. The script in it gets none.

    The text must have no control characters except line breaks.
    """
    text_above_script, *script = re.split(r"(?m)^(?=#!)", text, maxsplit=1)
    for pattern, style in _STYLES:
        text_above_script = re.sub(pattern, f"\x1b[{style}m\\g<0>\x1b[0m", text_above_script)
    return "".join([text_above_script, *script])


def shown_script(review: Review, *, whole: bool = False) -> str:
    """Return the script of a review, without its second part if that is the same in all similar jobs.

    The number of its lines replaces the second part. The second part stays if the caller asks for the `whole`
    script, or if it may hold lines of this job alone, as with a site's own template.
    """
    script = review.script or ""
    first_part, mark, second_part = script.rpartition(SECOND_PART)
    has_known_lines = review.own_lines is not None
    last_own_line = max(review.own_lines or (), default=0)
    is_second_part_common = has_known_lines and last_own_line <= first_part.count("\n")
    if whole or not mark or not is_second_part_common:
        return script
    jobs, _, rest = second_part.partition(":")  # " every job of this kind, with the runtime venv: ..."
    return f"{first_part}and {rest.count(chr(10))} lines that are the same in{jobs}: sbatchgen help script\n"


def sections(review: Review, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each section between the table and the script."""
    if review.surprises:
        lines = [
            (f"{setting.name} {setting.value}"[:60], origin_in_words(setting, folder))
            for setting in review.surprises
        ]
        yield "Not typed by you", table(lines)
    if review.findings:
        finding_lines: list[str] = []
        for finding in review.findings:
            finding_lines += _problem_lines(f"{finding.severity} {finding.rule}".rstrip(), finding.problem)
        yield "Findings", "\n".join(finding_lines)
    if review.starts:
        yield "What starts where", layout.as_text(review.starts)
    if review.slurm:
        yield "Slurm", "\n".join(_answer_lines(review.slurm))
    if last := review.last:
        yield f"Since job {last.job}, submitted {last.time}", last.diff or "the same script"


def table_rows(review: Review) -> list[tuple[str, str]]:
    """Return the rows of the review's table, each a name and a text, such as ("time", "8:00:00")."""
    job, cluster, request, cost = review.job, review.cluster, review.request, review.cost
    lines = []
    if job:
        lines.append(("job", f"{job.name}: {_job_in_words(job)}"))
    if cluster:
        lines.append(("cluster", ", ".join(_cluster_parts(cluster))))
    if request:
        programs = job.programs if job else ()
        trainer_spawns = job is not None and job.launcher == "spawn" and job.trainer != "training"
        lines.append(_size_row(request, trainer_spawns=trainer_spawns, programs=programs))
    if request and cost:
        limit = "the partition's limit" if request.time_s is None else str(Duration(request.time_s))
        if request.consecutive:
            limit = f"{request.jobs} jobs of at most {limit}, one after the other, until the training is done"
        lines += [("each node", _amounts_in_words(request)), ("time", limit)]
        lines.append(("cost", _cost_in_words(cost, request)))
    if job:
        resume_texts = {"auto": "the newest checkpoint, if any", "off": "off: starts from nothing"}
        says = f": {review.start.says}" if review.start and review.start.says else ""
        lines.append(("run folder", f"{job.run_dir}{says}"))
        if cluster and cluster.scheduler == "slurm":
            lines.append(("code", _code_in_words(job)))
        if job.data is not None:
            lines.append(("data", job.data))
        is_in_findings = any(finding.problem.what == job.restarts for finding in review.findings)
        restarts = "" if is_in_findings else job.restarts
        optional = [("resume", resume_texts.get(job.resume or "", job.resume)), ("restarts", restarts)]
        lines += [(name, text) for name, text in optional if text]
    if review.digest:
        lines.append(("digest", review.digest))
    return lines


def _job_in_words(job: JobSummary) -> str:
    """Return in words what the job starts: mode, launcher, runtime and trainer, or its programs."""
    if job.programs:
        return f"{len(job.programs)} programs, runtime {job.runtime}"
    launcher = f"launcher {job.launcher}" if job.launcher else "one process"
    trainer = "" if job.trainer == "training" else f", trainer {job.trainer}"
    return f"mode {job.mode}, {launcher}, runtime {job.runtime}{trainer}"


def _code_in_words(job: JobSummary) -> str:
    """Return in words whether the job runs the user's files or a copy of them."""
    if job.snapshot is None:
        return "the files as they are when the job starts"
    files = counted(job.snapshot.files, "file")
    added = f", with {one_line(job.snapshot.added)}" if job.snapshot.added else ""
    return f"snapshot of {job.snapshot.at}: {files}, {in_bytes(job.snapshot.size)}{added}"


def _size_row(request: Allocation, *, trainer_spawns: bool, programs: Sequence[str]) -> tuple[str, str]:
    """Return the row with the numbers of processes and nodes, or with the names of the job's programs.

    `trainer_spawns` is whether the user's own trainer starts more processes.
    """
    if programs:
        return "programs", f"{', '.join(programs)} on {counted(request.nodes, 'node')}"
    is_array = request.jobs > 1 and not request.consecutive
    jobs = f", in each of {request.jobs} jobs of an array" if is_array else ""
    if request.processes is None or request.processes < 1:
        return "nodes", f"{request.nodes}{jobs}"
    others = "; your trainer starts the others" if trainer_spawns else ""
    return "processes", f"{request.processes} on {counted(request.nodes, 'node')}{jobs}{others}"


def _cluster_parts(cluster: Cluster) -> Iterator[str]:
    """Yield in words the parts of the row about the cluster: profile, partition, account and others."""
    yield cluster.profile
    if cluster.scheduler == "slurm":
        yield f"partition {cluster.partition}" if cluster.partition else "its default partition"
        yield f"account {cluster.account}" if cluster.account else "your default account"
    if cluster.preemption:
        grace = f" after {Duration(cluster.preemption_grace_s)}" if cluster.preemption_grace_s else ""
        yield f"jobs of other partitions may preempt it ({cluster.preemption}{grace})"
    if cluster.qos:
        yield f"QOS {cluster.qos}"
    yield f"profile checked {cluster.checked}"


def in_short(review: Review) -> str:
    """Return the job in a few words for the question whether to submit it: name, nodes and GPU-hours."""
    job, request, cost = review.job, review.request, review.cost
    text = job.name if job else "this script"
    if request and (cost is not None or job is None):
        text += f" on {counted(request.nodes, 'node')}"
    if cost and (hours := cost.gpu_hours or cost.cpu_hours):
        text += f", {_number(hours)} {'GPU' if cost.gpu_hours else 'CPU'}-hours"
    return text


def _amounts_in_words(request: Allocation) -> str:
    """Return in words the amounts that the job gets on each node."""
    shards, memory = request.shards, request.memory_mib
    gpus = f"{_share(shards, 'shard')} of a GPU" if shards.given else _share(request.gpus, "GPU")
    gpus = "all GPUs" if request.exclusive and request.gpus.given is None else gpus
    gpus = f"some of {counted(request.gpus_in_all, 'GPU')}" if request.gpus_in_all else gpus
    gpus += f" of {Memory(request.gpu_memory_mib)}" if request.gpu_memory_mib and request.gpus.given else ""
    amounts = [gpus, "all CPUs" if request.cpus.given is None else _share(request.cpus, "CPU")]
    if memory.given is None:
        amounts.append("the cluster's default memory")
    else:
        of_node = f" of {Memory(memory.of)}" if memory.of else ""
        amounts.append(f"{Memory(memory.given)}{of_node} of memory" if memory.given else "all of its memory")
    share = f": {100 * request.share:.0f} % of it" if request.share is not None and request.share < 1 else ""
    return ", ".join(amounts) + ("; exclusive" if request.exclusive else share)


def _share(amount: Amount, noun: str) -> str:
    """Return an amount in words: "2 of 8 GPUs", "2 GPUs" or "no GPUs"."""
    if amount.of and amount.given:
        return f"{amount.given} of {amount.of} {noun}s"
    return counted(amount.given, noun) if amount.given else f"no {noun}s"


def _cost_in_words(cost: Cost, request: Allocation) -> str:
    """Return the hours that the job costs in words, or why they are not known."""
    hours = [(cost.gpu_hours, "GPU-hours"), (cost.cpu_hours, "CPU-hours")]
    hours += [(cost.billing_hours, "billing-hours of the site")]
    text = ", ".join(f"{_number(count)} {name}" for count, name in hours if count)
    if not text:
        return "not known without a time limit" if request.time_s is None else "not known: the nodes differ"
    text += f" for all {request.jobs} jobs" if request.consecutive else ""
    for_restarts = f"; as much again for each of up to {counted(request.restarts, 'restart')}"
    return f"{text} at the time limit{for_restarts if request.restarts else ''}"


def origin_in_words(setting: Setting, folder: Path) -> str:
    """Return the place where a value was set, and the values that it overrode."""
    others = [f"over {other.value} of {short_place(other.at, folder)}" for other in setting.overrode]
    return ", ".join([short_place(setting.at, folder), *others])


def _number(count: float) -> str:
    """Return a number with at most two decimals: "1,024.5"."""
    return f"{count:,.2f}".rstrip("0").rstrip(".")


def _problem_lines(title: str, problem: Problem) -> Iterator[str]:
    """Yield the lines of a finding or a refusal: its title and the problem, the place, and the fix."""
    yield f"{title}: {problem.what}"
    if problem.at:
        yield f"  at:  {problem.at}"
    yield from fix_lines(problem.fix, indent=2)


def _answer_lines(answer: Answer) -> Iterator[str]:
    """Yield the lines of Slurm's answer: whether it would accept the job, or its refusals."""
    if answer.accepted:
        starts = f", to start by {answer.start} on {answer.nodes}" if answer.start else ""
        yield f"would accept the job{starts}"
        yield from answer.warnings
        yield f"not checked: {'; '.join(UNCHECKED)}"
        return
    for refusal in answer.refusals:
        yield from _problem_lines("refuses the job", refusal.problem)


def explanation(settings: Iterable[Setting]) -> str:
    """Return the table of `explain`: each setting with its value, its origin and its documentation."""
    cells = []
    for setting in settings:
        others = "; ".join(f"{other.at} said {other.value}" for other in setting.overrode)
        additions = (f"  ({text})" for text in (others, " ".join(setting.documented)) if text)
        cells.append((setting.name, setting.value, "".join([setting.at, *additions])))
    return table(cells, widest=40)


def blame(script: str, places: Sequence[TemplateLine], folder: Path) -> str:
    """Return a table of the script's lines: number, place in a template, block of the template, and line.

    `places` has the origin of each line.
    """
    numbered_lines = enumerate(zip(lines_of(script), places, strict=True), 1)
    return table(
        (f"{number:>4}", f"{short_place(str(place.file), folder)}:{place.line}", place.block, line)
        for number, (line, place) in numbered_lines
    )
