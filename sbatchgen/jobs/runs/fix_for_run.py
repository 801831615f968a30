"""The fix of a cause as a run takes it: of a sweep, of a finished script, of plain sbatch, without Slurm."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sbatchgen.base.quoting import ALSO, word, words
from sbatchgen.check.script.trainer_source import WELL_KNOWN
from sbatchgen.jobs.runs.failure import Failure, text_of
from sbatchgen.jobs.runs.job_end import JobEnd
from sbatchgen.jobs.runs.plain_job import PlainJob, again
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.remedy import Case, at_hand, within_nodes, without
from sbatchgen.jobs.runs.submitted_scripts import forgets, parsed

_MAY_CONTINUE = "starts it again, which continues if it loads its checkpoint"
_OPENS = "opens another shell"
_RESUME = re.compile(r"sbatchgen resume \S+")
_AGAIN = re.compile(r"sbatchgen resume \S+((?: --[\w-]+ [^\s,;]+)*)")
_EXPORTS = re.compile(r"sbatchgen resume \S+ --env ([^\s,;]+)")
_OF_SLURM = re.compile(r"sbatchgen resume \S+ --(?:mem|time|exclude|gpus-per-node)\b|sacct|--mem\b")


def fixes_for_run(
    causes: Sequence[Failure], end: JobEnd, environment: Mapping[str, str]
) -> Iterator[Failure]:
    """Yield causes with fixes as they are typed for this run, on this machine."""
    state, record = end.state, end.record
    for cause in causes:
        if record is None:
            yield cause
            continue
        known = at_hand(cause, Case(run=state.run.name, record=record, row=end.row, environment=environment))
        if state.plain:
            script, to_type = state.plain.script, _to_type_plain(known, state.plain)
        else:
            folder = state.run.folder
            script, to_type = parsed(folder, record.job), _to_type(known, record, folder)
        yield within_nodes(to_type, script, environment)


def _to_type(cause: Failure, record: Record, run_dir: Path) -> Failure:
    """Return a cause with the fix for this run: for a sweep, a finished script, or a run without Slurm."""
    cause = _hidden(cause, record)
    fix = _not_copied(cause, record) or cause.fix
    cause = replace(cause, means=cause.means.replace(f"({record.folder}/", "(", 1))
    if record.process:  # nothing more can be asked of Slurm
        fix = without(fix, _OF_SLURM)
    elif record.command[1:2] == ("shell",):  # resume refuses a shell
        again = words(("sbatchgen", *record.command[1:]))
        fix = _RESUME.sub(lambda _: again, fix).replace("continues from the last checkpoint", _OPENS)
    elif record.command[1:2] == ("sweep",):
        fix = fix.replace("sbatchgen resume ", "sbatchgen resubmit ")
    elif record.script:
        name = Path(record.script).name
        fix = _EXPORTS.sub(rf"export \1 in {name}, and submit it again", fix)
    trainer = record.value("trainer") or Path(record.script).name
    if not trainer or not re.search("sbatchgen res(?:ume|ubmit)", fix):
        return replace(cause, fix=fix)
    loss = forgets(record, run_dir)
    again = f"starts {trainer} again" + ", which continues if it loads its checkpoint" * (not loss)
    fix = fix.replace("continues from the last checkpoint", again)
    return replace(cause, fix=ALSO.join(filter(None, (fix, *(loss.lines() if loss else ())))))


def _to_type_plain(cause: Failure, job: PlainJob) -> Failure:
    """Return a cause with the fix for a job of plain sbatch: another sbatch, or a line of its script."""
    record = job.record
    script = Path(record.script).name or "its script"
    fix = _EXPORTS.sub(rf"export \1 in {script}, and submit it again", cause.fix)

    def command(match: re.Match[str]) -> str:
        words = match[1].split()
        options = [f"{name}={value}" for name, value in zip(words[::2], words[1::2], strict=True)]
        typed = again(job, options, Path.cwd()) if not job.owner else ""
        return typed or " ".join(["submit it again", *(["with", *options] if options else ())])

    fix = _AGAIN.sub(command, fix)
    means = cause.means.replace(f"({record.folder}/", "(", 1)
    return replace(cause, means=means, fix=fix.replace("continues from the last checkpoint", _MAY_CONTINUE))


def _hidden(cause: Failure, record: Record) -> Failure:
    """Return the cause that an own file hides a package, if it lacks what the program wants of that."""
    lacks = re.match(r"AttributeError: module '(\w+)' has no attribute ", cause.says)
    name = lacks[1] if lacks else ""
    beside = Path(record.folder, record.value("trainer") or "script").parent
    if name not in WELL_KNOWN | sys.stdlib_module_names or not (beside / f"{name}.py").is_file():
        return cause
    known = text_of("own-module")
    return replace(cause, cause=known.cause, means=known.means.format(name), fix=known.fix.format(name))


def _not_copied(cause: Failure, record: Record) -> str:
    """Return the fix for a file that is missing since the snapshot lacks it; "" for another failure."""
    missing = re.match("there is no '([^/'][^']*)'", cause.means) if cause.cause == "file-missing" else None
    copied = record.code and record.code.snapshot
    if not missing or not copied or not Path(record.folder, name := missing[1]).exists():
        return ""
    again = f"sbatchgen resume {record.run} --snapshot --snapshot-file {word(name.partition('/')[0])}"
    return f"{again}{ALSO}the snapshot lacks the file, because git does not know it"
