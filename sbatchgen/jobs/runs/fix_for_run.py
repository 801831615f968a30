"""Adapts the fixes of failures to the run, because each kind of run is started again in another way.

A run may be a sweep, a shell, a finished script, a job of plain sbatch or a run without Slurm.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sbatchgen.base.quoting import ALSO, word, words
from sbatchgen.check.script.trainer_source import WELL_KNOWN_PACKAGES
from sbatchgen.jobs.runs.failure import Failure, NextStart, known_cause
from sbatchgen.jobs.runs.job_end import JobEnd
from sbatchgen.jobs.runs.plain_job import PlainJob, command_to_submit_again
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.remedy import FailedRun, drop_parts, limit_memory, with_local_fix
from sbatchgen.jobs.runs.submitted_scripts import loss_on_restart, parsed_script

_ENV_OPTION = re.compile(r"--env (\S+)$")  # "--env NCCL_DEBUG=INFO"
# Parts of fixes that only a run on Slurm can use: "sbatchgen resume ddp --mem 64G"
_SLURM_ONLY = re.compile(r"sbatchgen resume \S+ --(?:mem|time|exclude|gpus-per-node)\b|sacct|--mem\b")


class NextStartOfRun(NextStart):
    """The command that starts a run again, which depends on how the run was submitted."""

    def __init__(self, run: str, record: Record | None, run_dir: Path, plain: PlainJob | None) -> None:
        super().__init__(run)
        self._record, self._run_dir, self._plain = record, run_dir, plain

    def __format__(self, options: str) -> str:
        """Return the command with these options, or an instruction in words if no command does the same."""
        record, exports = self._record, _ENV_OPTION.match(options)
        if record is None or record.process:  # with record.process it runs without Slurm
            return super().__format__(options)
        if exports and (self._plain or record.script):
            script = Path(record.script).name or "its script"
            return f"export {exports[1]} in {script}, and submit it again"
        if self._plain:
            return _command_for_plain_job(self._plain, options.split())
        if record.command[1:2] == ("shell",):  # resume refuses a shell
            return f"{words(('sbatchgen', *record.command[1:]))} {options}".rstrip()
        if record.command[1:2] == ("sweep",):
            return f"sbatchgen resubmit {self.run} {options}".rstrip()
        return super().__format__(options)

    @property
    def continues(self) -> str:  # type: ignore[override]
        """What the command does, in words. Only the bundled trainer is known to continue."""
        record = self._record
        if self._plain:
            return "starts it again, which continues if it loads its checkpoint"
        if record and not record.process and record.command[1:2] == ("shell",):
            return "opens another shell"
        trainer = _name_of_own_program(record) if record else ""
        if not record or not trainer:
            return super().continues
        loss = loss_on_restart(record, self._run_dir)
        return f"starts {trainer} again" + ("" if loss else ", which continues if it loads its checkpoint")


def next_start(end: JobEnd) -> NextStart:
    """Return the command that starts the run of a job again."""
    state = end.state
    return NextStartOfRun(state.run.name, end.record, state.run.folder, state.plain)


def _command_for_plain_job(job: PlainJob, typed: Sequence[str]) -> str:
    """Return the command that submits a job of plain sbatch again, or an instruction in words.

    `typed` has options, each followed by its value: "--mem", "64G".
    """
    options = [f"{name}={value}" for name, value in zip(typed[::2], typed[1::2], strict=True)]
    command = command_to_submit_again(job, options, Path.cwd()) if not job.owner else ""
    return command or " ".join(["submit it again", *(["with", *options] if options else ())])


def _name_of_own_program(record: Record) -> str:
    """Return the user's own trainer, or the name of a finished script; "" for the bundled trainer."""
    return record.value("trainer") or Path(record.script).name


def fixes_for_run(
    causes: Sequence[Failure], end: JobEnd, environment: Mapping[str, str]
) -> Iterator[Failure]:
    """Yield the causes, each with a fix that the user can type for this run on this machine."""
    state, record = end.state, end.record
    for cause in causes:
        if record is None:
            yield cause
            continue
        failed = FailedRun(next_start=next_start(end), record=record, row=end.row, environment=environment)
        adapted = with_local_fix(cause, failed)
        # "(/home/me/train.py:12)" becomes "(train.py:12)" if the job was submitted from /home/me.
        adapted = replace(adapted, means=adapted.means.replace(f"({record.folder}/", "(", 1))
        if state.plain:
            script = state.plain.script
        else:
            folder = state.run.folder
            script = parsed_script(folder, record.job)
            adapted = _with_fix_for_record(adapted, record, folder, failed.next_start)
        yield limit_memory(adapted, script, environment)


def _with_fix_for_record(cause: Failure, record: Record, run_dir: Path, resume: NextStart) -> Failure:
    """Return a cause with the fix for this submission; the fix also says what another start would lose."""
    cause = _as_hidden_package_cause(cause, record)
    fix = _fix_for_snapshot(cause, record, resume) or cause.fix
    fix = drop_parts(fix, _SLURM_ONLY) if record.process else fix
    loss = None
    if _name_of_own_program(record) and re.search("sbatchgen res(?:ume|ubmit)", fix):
        loss = loss_on_restart(record, run_dir)
    return replace(cause, fix=ALSO.join(filter(None, (fix, *(loss.lines() if loss else ())))))


def _as_hidden_package_cause(cause: Failure, record: Record) -> Failure:
    """Return the cause "own-module" if a file beside the trainer hides a package; else the unchanged cause.

    If the file is called random.py, `import random` imports it. Then the program misses what the package has.
    """
    # The line of such an error is "AttributeError: module 'random' has no attribute 'seed'".
    match = re.match(r"AttributeError: module '(\w+)' has no attribute ", cause.says)
    name = match[1] if match else ""
    folder = Path(record.folder, record.value("trainer") or "script").parent
    is_package = name in WELL_KNOWN_PACKAGES | sys.stdlib_module_names
    if not is_package or not (folder / f"{name}.py").is_file():
        return cause
    text = known_cause("own-module")
    return replace(cause, cause=text.cause, means=text.means.format(name), fix=text.fix.format(name))


def _fix_for_snapshot(cause: Failure, record: Record, resume: NextStart) -> str:
    """Return the fix if the job failed because its snapshot lacks a file; "" for any other failure."""
    missing = re.match("there is no '([^/'][^']*)'", cause.means) if cause.cause == "file-missing" else None
    has_snapshot = record.code and record.code.snapshot
    if not missing or not has_snapshot or not Path(record.folder, name := missing[1]).exists():
        return ""
    file = word(name.partition("/")[0])
    why = "the snapshot lacks the file, because git does not know it"
    return f"{resume:--snapshot --snapshot-file {file}}{ALSO}{why}"
