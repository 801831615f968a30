"""Finds the causes of a failed run, with their fixes.

A cause shows in the end of the run's job as Slurm reports it, or in a line of the log. The causes that can be
found are in failures.yaml, with the patterns of these texts. `diagnose` shows what this module finds.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sbatchgen.base.errors import parse_error_line
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.runs.job_log import NumberedLine
from sbatchgen.jobs.slurm.explanation import Explanation, filled_texts, read_table

# The ranks of causes, in the order in which causes are shown. "own" is for an error message of the script or
# the trainer in the form of sbatchgen: "error: WHAT; fix: FIX". failures.yaml explains the other ranks.
Rank = Literal["outside", "cause", "own", "limit", "effect"]
RANKS: tuple[Rank, ...] = ("outside", "cause", "own", "limit", "effect")
OWN_MESSAGE = "own-words"  # the name of the cause that an error message in this form shows
# A progress bar overwrites its line with \r, so that one line of a log has many parts.
MAX_PARTS = 1000  # parts that are read of a line, from its end
MAX_PART_CHARS = 1000  # characters that are read of each part

# The text before a message: the rank of `srun --label` ("3: "), torchrun's prefix ("[rank3]:"), a time, a
# level ("ERROR:"), or the place where NCCL logs ("n1:271:301 [0] init.cc:50 NCCL WARN").
_PREFIXES = re.compile(
    r"\A(?:\s+|\[[^\]]{1,80}\]:?|\d{1,6}: |\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|(?:ERROR|CRITICAL):"
    r"|[\w.-]{1,64}:\d+:\d+(?= \[\d+\])|[\w./-]{1,64}:\d+ (?=NCCL))*"
)
# "[2026-11-02T09:30:00.123] error: " of Slurm 26.05: older releases print "slurmstepd-NODE: error: " there.
_STEPD_TIME = re.compile(r"\A((?:\d{1,6}: )?)\[\d{4}-\d\d-\d\dT[\d:.]{8,20}\] (?=error: )")
# The exception at the end of an error message of sbatchgen: "can't load the model (OSError: no space left)".
_INNER_EXCEPTION = re.compile(r"\(((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception): .*)\)$")
# An exception by its usual name, such as "torch.OutOfMemoryError: CUDA out of memory".
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:$|: \S)")
# A message that looks like an error, such as "fatal: no space left" or "Exited with exit code 1".
_LOOKS_BAD = re.compile(
    rf"{_EXCEPTION.pattern}"
    r"|.*\b(?:error|Error|ERROR|fatal|FATAL|Killed|Aborted|panic|[Ee]xit(?:ed with)? (?:status|code))\b"
)
# srun's line about a task's exit status. Slurm's state of the job says the same.
_TASK_EXITED = re.compile(r"srun: error: \S+: tasks? \S+ Exited with")

CRASH_LINES = 100  # lines at the end of a log that are searched for the messages of a crashed program
# A message of torchrun, srun or bash that a program has crashed: "srun: error: n1: task 0: Killed".
_CRASH = re.compile(
    r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError"
    r"|srun: error: \S+: tasks? \S+ (?:Exited with exit code [1-9]|Killed$|Out Of Memory"
    r"|Segmentation fault|Aborted|Bus error|Illegal instruction)"
    r"|(?:\S*slurm_script|\S*bash|\S+\.sh): line \d+: +\d+ (?:Killed|Segmentation fault|Aborted|Bus error)\b"
)
# Slurm's message that it ends a whole job: "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT ...". Errors
# that programs print after this message follow from the end of the job.
_JOB_ENDS = re.compile(
    r"slurmstepd\S*: error: \*\*\* (?:JOB \S+ ON|STEP .* DUE TO (?:TIME|PREEMPTION|NODE)) "
)
_TRACEBACK = "Traceback (most recent call last):"
# The exception below its traceback. There the class may have any name, such as "KeyboardInterrupt".
_EXCEPTION_BELOW_TRACEBACK = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:$|: \S)")
# "ValueError: Caught ValueError in DataLoader worker process 0.": the traceback in the worker follows.
_EXCEPTION_OF_WORKER = re.compile(r"[\w.]+: Caught \w+ in ")
# The rank before a line: "[rank3]: " of torchrun, or "3: " of `srun --label`.
_RANK_PREFIX = re.compile(r"\[(?:default|rank)(\d+)\]: ?|(\d{1,6}): ")
# A line of a traceback: '  File "/home/me/train.py", line 12, in main'.
_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+)')
# Python prints these errors of the parser without "Traceback (most recent call last):".
_PARSER_ERROR = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b")
# A file that the user did not write: a file of a package or of Python itself, or "<frozen runpy>".
_INSTALLED_FILE = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<")
# Words in the line before a traceback which say that the program has caught the exception, and logs it. Such
# an exception did not end the program: "WARNING: download failed, will retry".
_CAUGHT = re.compile(
    r"\b(?:ERROR|CRITICAL|WARN(?:ING)?)\b|Exception (?:in thread|ignored)|(?i:caught|retry|skip|ignor)"
)


class NextStart:
    """The command that starts a run again, for the slot {resume} in the fixes of failures.yaml.

    With options, the slot is {resume:--mem 64G}: these options are the format specification.
    """

    continues = "continues from the last checkpoint"  # what the command does: {resume.continues}

    def __init__(self, run: str) -> None:
        self.run = run

    def __format__(self, options: str) -> str:
        return f"sbatchgen resume {self.run} {options}".rstrip()


class FixFacts(NamedTuple):
    """Facts about a job, which are filled into fixes or choose one of several fixes."""

    has_gpus: bool | None = None  # whether the job asked for GPUs; None if unknown
    is_script: bool = False  # whether the user wrote the script; False if sbatchgen rendered it
    as_group: str = ""  # if the job's mode has one process: the options that start it in mode ddp
    memory: str = "64G"  # the memory for the next start: twice the last memory, or an example if unknown
    time: str = "8:00:00"  # the time limit for the next start: twice the last limit, or an example
    one_gpu: str = "--gpus-per-node 1"  # the option that asks for a GPU
    resume: NextStart | None = None  # the command that starts its run again; None for `sbatchgen resume`


@frozen(kw_only=True)
class FailureText(Explanation):
    """A cause in failures.yaml, with the patterns that show it, and its fixes for several kinds of jobs."""

    cause: str  # its name
    ended: str = ""  # a pattern for the end of a job, such as "TIMEOUT 0:15"
    log: tuple[str, ...] = ()  # patterns for lines of the log
    fix_script: str = ""  # the fix for a job with a finished script
    fix_one_process: str = ""  # the fix for a job whose mode has one process
    fix_with_gpus: str = ""  # the fix for a job that asked for GPUs
    fix_without_gpus: str = ""  # the fix for a job that asked for no GPUs
    rank: Rank = "cause"
    last: bool = False  # whether the last line of the log that shows it is reported, not the first
    source: str  # where the patterns and their meaning come from

    def fix_for(self, facts: FixFacts) -> str:
        """Return the most special fix for a job with these facts, or else the fix for all jobs."""
        fix_by_gpus = {True: self.fix_with_gpus, False: self.fix_without_gpus, None: ""}[facts.has_gpus]
        fix_by_kind = self.fix_script if facts.is_script else self.fix_one_process if facts.as_group else ""
        return fix_by_gpus or fix_by_kind or self.fix


@frozen(kw_only=True)
class FailureTexts:
    """The contents of failures.yaml."""

    causes: tuple[FailureText, ...]


@frozen(kw_only=True)
class Failure:
    """A cause that the end of the job or a line of a log shows."""

    cause: str  # its name in failures.yaml, or "own-words"
    rank: Rank  # its place among several causes
    means: str  # the explanation
    fix: str  # what to do about it
    ended: str = ""  # the end of the job that shows the cause: "TIMEOUT 0:15"
    # The number of the first line that shows the cause, from 1; 0 without a line or without numbers.
    line: int = 0
    says: str = ""  # the text of this line
    file: str = ""  # the log with this line


def known_causes() -> tuple[FailureText, ...]:
    """Return the causes in failures.yaml, in the order of the file."""
    return read_table(Path(__file__).with_name("failures.yaml"), FailureTexts).causes


def known_cause(name: str) -> FailureText:
    """Return the cause in failures.yaml that has this name."""
    return next(entry for entry in known_causes() if entry.cause == name)


class _LogPatterns(NamedTuple):
    """The patterns in failures.yaml for lines of logs."""

    # All patterns in one. Most lines of a log match no pattern, and one search with this pattern shows that.
    combined: re.Pattern[str]
    by_cause: tuple[tuple[re.Pattern[str], FailureText], ...]  # each pattern with its cause


@functools.cache
def _log_patterns() -> _LogPatterns:
    """Return the compiled patterns for lines of logs."""
    pairs = [(text, entry) for entry in known_causes() for text in entry.log]
    combined = re.compile("|".join(f"(?:{text})" for text, _ in pairs))
    return _LogPatterns(combined, tuple((re.compile(text), entry) for text, entry in pairs))


def failures(
    end_text: str, log: Iterable[NumberedLine], run: str, facts: FixFacts | None = None
) -> list[Failure]:
    """Return the causes of a failure, the likeliest first.

    Each cause is returned once, with the first line that shows it, or with the last line if failures.yaml
    says `last`. Causes of the ranks "outside" and "limit" are read from the log only if `end_text` is
    empty, because the log may hold earlier starts of the job.

    Args:
        end_text: Slurm's state, exit code and signal, such as "FAILED 1:0"; "" if they are not known.
        log: Lines of the log.
        run: The name of the run, for the commands in the fixes.
        facts: Facts about the job, for the fixes; None if nothing is known.
    """
    facts, by_cause = facts or FixFacts(), dict[str, Failure]()
    for entry in known_causes():
        if entry.ended and (match := re.fullmatch(entry.ended, end_text)):
            by_cause[entry.cause] = _failure(entry, match, run, facts, ended=end_text)
    shown_by_last_line = {entry.cause for entry in known_causes() if entry.last}
    in_last_line: list[Failure] = []
    ended_by_slurm = bool(end_text) and not end_text.startswith("FAILED")
    is_over = False  # whether Slurm ended the job in this line or before
    for number, line in log:
        is_over = is_over or (ended_by_slurm and ends_job(line))
        in_last_line = [*_causes_in_line(number, line, run, facts)]
        for failure in in_last_line:
            if is_over and failure.rank in ("cause", "own"):
                continue  # the error follows from the end of the job
            known = by_cause.get(failure.cause)
            is_new = known is None and not (end_text and failure.rank in ("outside", "limit"))
            if is_new or failure.cause in shown_by_last_line:
                by_cause[failure.cause] = failure
            elif known and not known.says:  # the end of the job has shown this cause, and now a line shows it
                by_cause[failure.cause] = replace(failure, ended=known.ended)
    # An error message in the last line has ended the script, so it comes before other causes.
    if end_text.startswith("FAILED") and in_last_line and in_last_line[-1].cause == OWN_MESSAGE:
        del by_cause[OWN_MESSAGE]
        by_cause = {OWN_MESSAGE: replace(in_last_line[-1], rank="cause"), **by_cause}
    return sorted(by_cause.values(), key=_sort_key)


def ends_job(line: str) -> bool:
    """Return whether a line of a log is Slurm's message that it ends the whole job."""
    return "***" in line and any(map(_JOB_ENDS.match, messages_in(line)))


def lines_before_end(log: Sequence[NumberedLine]) -> Sequence[NumberedLine]:
    """Return the lines of a log before Slurm's message that it ends the job; all lines without a message."""
    end = next((position for position, (_, line) in enumerate(log) if ends_job(line)), len(log))
    return log[:end]


def merge_causes(causes_of_logs: Iterable[Sequence[Failure]]) -> list[Failure]:
    """Return the causes that several logs show: each cause once, the likeliest first.

    A cause that a line shows replaces the same cause from the end of the job.
    """
    by_cause: dict[str, Failure] = {}
    for failure in itertools.chain.from_iterable(causes_of_logs):
        known = by_cause.setdefault(failure.cause, failure)
        if failure.says and not known.says:
            by_cause[failure.cause] = failure
    return sorted(by_cause.values(), key=_sort_key)


def crash_line(log: Sequence[NumberedLine]) -> NumberedLine | None:
    """Return a line near the end of a log which shows that a program crashed; None without such a line.

    An exception is preferred to a message of srun, because srun may print into the middle of a traceback.
    """
    end = log[-CRASH_LINES:]
    crashes = (
        (number, message) for number, line in end for message in messages_in(line) if _CRASH.match(message)
    )
    return next(uncaught_exceptions(log), None) or next(crashes, None)


def uncaught_exceptions(log: Sequence[NumberedLine]) -> Iterator[NumberedLine]:
    """Yield the line of each exception at the end of a log that has a traceback and was not caught."""
    line_before, open_tracebacks = "", 0  # several ranks may print their tracebacks at the same time
    for number, line in log[-CRASH_LINES:]:
        for message in messages_in(line):
            is_exception = _EXCEPTION_BELOW_TRACEBACK.match(message)
            if open_tracebacks and is_exception and not _EXCEPTION_OF_WORKER.match(message):
                open_tracebacks -= 1
                yield number, message
            open_tracebacks += message == _TRACEBACK and not _CAUGHT.search(line_before)
        line_before = line


def unexplained_exception(log: Sequence[NumberedLine]) -> NumberedLine | None:
    """Return the first exception at the end of a log that failures.yaml doesn't explain; None without one."""
    known = _log_patterns().combined
    for number, exception in uncaught_exceptions(log):
        if not known.match(exception) and not _CRASH.match(exception):
            return number, exception
    return None


def place_of_exception(log: Sequence[NumberedLine], number: int) -> str:
    """Return where the exception in line `number` was raised: "train.py:12, rank 3"; "" without a traceback.

    The place is the last file of the traceback that is not in an installed package.
    """
    with_number = ((index, line) for index, (line_number, line) in enumerate(log) if line_number == number)
    position, exception = next(with_number, (0, ""))
    rank = _RANK_PREFIX.match(exception)
    prefix = rank[0] if rank else ""
    rank_suffix = f", rank {rank[1] or rank[2]}" if rank else ""
    is_parser_error = bool(_PARSER_ERROR.match(exception[len(prefix) :]))  # without a "Traceback" line
    frame = ""
    for _, line in reversed(log[max(0, position - CRASH_LINES) : position]):
        if not line.startswith(prefix):  # the line of another rank
            continue
        if _TRACEBACK in line or (is_parser_error and frame):
            return f"{frame}{rank_suffix}" if frame else ""
        match = _FRAME.match(line[len(prefix) :])
        if match and not frame and not _INSTALLED_FILE.search(match[1]):
            frame = f"{match[1]}:{match[2]}"
    return f"{frame}{rank_suffix}" if is_parser_error and frame else ""


def _sort_key(failure: Failure) -> tuple[int, bool, float]:
    """Return the key that sorts causes by their ranks, and the effects also among each other.

    The effect "killed" comes first, because the other effects may follow from a killed process. They come in
    the order of their lines.
    """
    is_effect = failure.rank == "effect"
    may_follow_from_kill = is_effect and failure.cause != "killed"
    line = failure.line or math.inf  # an effect that only Slurm's state shows comes last
    return RANKS.index(failure.rank), may_follow_from_kill, line if is_effect else 0


def _causes_in_line(number: int, line: str, run: str, facts: FixFacts) -> Iterator[Failure]:
    """Yield the causes that a line of the log shows; each part of an overwritten line may show one."""
    patterns = _log_patterns()
    for message in messages_in(line):
        problem = parse_error_line(message)
        inner = _INNER_EXCEPTION.search(problem.what) if problem else None
        text = inner[1] if inner else message
        if patterns.combined.match(text):
            for pattern, entry in patterns.by_cause:
                if match := pattern.match(text):
                    yield _failure(entry, match, run, facts, line=number, says=message)
                    break
        elif problem:
            means = f"{problem.what} ({problem.at})" if problem.at else problem.what
            fix = problem.fix
            yield Failure(cause=OWN_MESSAGE, rank="own", means=means, fix=fix, line=number, says=message)


def _failure(entry: FailureText, match: re.Match[str], run: str, facts: FixFacts, **seen: Any) -> Failure:
    """Return a cause of failures.yaml with the slots of its texts filled in.

    `match` is the match of one of its patterns. `seen` has the fields `ended`, or `line` and `says`.
    """
    words = [group.strip() for group in match.groups("") if group] or [""]
    slots = facts._asdict() | {"run": run, "resume": facts.resume or NextStart(run)}
    means, fix = filled_texts(replace(entry, fix=entry.fix_for(facts)), words, **slots)
    return Failure(cause=entry.cause, rank=entry.rank, means=means.rstrip(" :"), fix=fix.rstrip(" :"), **seen)


def messages_in(line: str) -> Iterator[str]:
    """Yield the messages in a line, without prefixes such as "[rank3]: " or a time.

    A line that a progress bar has overwritten has several messages.
    """
    for part in line.rsplit("\r", MAX_PARTS):
        text = _STEPD_TIME.sub(r"\1slurmstepd: ", part[:MAX_PART_CHARS])
        if message := _PREFIXES.sub("", text, count=1).rstrip():
            yield message


def suspicious_lines(log: Sequence[NumberedLine], max_lines: int = 5) -> list[NumberedLine]:
    """Return at most `max_lines` lines at the end of a log that look like errors, without their prefixes.

    Each text is returned once. If no line looks like an error, the last lines are returned. The last
    exceptions are always returned, because srun may print many lines after them.
    """
    texts: dict[str, int] = {}  # the numbers of the lines, by their texts

    def take(count: int, accepts: Callable[[str], object]) -> None:
        """Add accepted messages, the last of the log first, until there are `count` texts."""
        for number, line in reversed(log):
            for message in messages_in(line):
                if len(texts) < count and accepts(message):
                    texts.setdefault(message, number)

    take(max_lines // 2, _EXCEPTION.match)
    take(max_lines, lambda message: _LOOKS_BAD.match(message) and not _TASK_EXITED.match(message))
    if not texts:
        take(max_lines, lambda message: not _TASK_EXITED.match(message))
    take(max_lines, _TASK_EXITED.match)
    return sorted(((number, message) for message, number in texts.items()), key=lambda shown: shown[0])
