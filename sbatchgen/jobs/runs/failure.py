"""Finds the causes of a failed run, with their fixes, in the end of its job and the lines of its log.

All causes are in failures.yaml; none is guessed.
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
from sbatchgen.jobs.slurm.explanation import Explanation, filled, read_table

# The ranks of causes in the order in which they are shown. failures.yaml explains them; "own" is for an error
# message that the script or trainer prints.
Rank = Literal["outside", "cause", "own", "limit", "effect"]
RANKS: tuple[Rank, ...] = ("outside", "cause", "own", "limit", "effect")
OWN = "own-words"  # the cause of an error of the script or the trainer
LONGEST = 1000  # characters that are read of a line, or of each part of a line
PIECES = 1000  # parts that are read of a line, in which a progress bar has overwritten itself

# What may precede a message: numbers of srun --label, torchrun's prefixes, times, levels, NCCL's place.
_PREFIXES = re.compile(
    r"\A(?:\s+|\[[^\]]{1,80}\]:?|\d{1,6}: |\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|(?:ERROR|CRITICAL):"
    r"|[\w.-]{1,64}:\d+:\d+(?= \[\d+\])|[\w./-]{1,64}:\d+ (?=NCCL))*"
)
# Releases such as 26.05 print this time instead of "slurmstepd-NODE: "; errors of sbatchgen have no time.
_STEPD = re.compile(r"\A((?:\d{1,6}: )?)\[\d{4}-\d\d-\d\dT[\d:.]{8,20}\] (?=error: )")
_INNER = re.compile(
    r"\(((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception): .*)\)$"
)  # the exception in an error message of sbatchgen
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:$|: \S)")
_LOOKS_BAD = re.compile(
    rf"{_EXCEPTION.pattern}"
    r"|.*\b(?:error|Error|ERROR|fatal|FATAL|Killed|Aborted|panic|[Ee]xit(?:ed with)? (?:status|code))\b"
)
_EXITED = re.compile(r"srun: error: \S+: tasks? \S+ Exited with")  # the job's state says as much

AT_END = 100  # lines at the end of a log in which the words of a crashed program are looked for
_CRASH = re.compile(
    r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError"
    r"|srun: error: \S+: tasks? \S+ (?:Exited with exit code [1-9]|Killed$|Out Of Memory"
    r"|Segmentation fault|Aborted|Bus error|Illegal instruction)"
    r"|(?:\S*slurm_script|\S*bash|\S+\.sh): line \d+: +\d+ (?:Killed|Segmentation fault|Aborted|Bus error)\b"
)
# Messages with which Slurm ends a whole job; later messages of its programs follow from that end.
_JOB_ENDS = re.compile(
    r"slurmstepd\S*: error: \*\*\* (?:JOB \S+ ON|STEP .* DUE TO (?:TIME|PREEMPTION|NODE)) "
)
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:$|: \S)")
_PASSED_ON = re.compile(r"[\w.]+: Caught \w+ in ")  # an exception of a loader, before its traceback
_RANK = re.compile(r"\[(?:default|rank)(\d+)\]: ?|(\d{1,6}): ")
_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+)')
_NOT_RUN = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b")  # these errors have no traceback
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<")
# The line before the traceback of an exception that the program has caught.
_HANDLED = re.compile(
    r"\b(?:ERROR|CRITICAL|WARN(?:ING)?)\b|Exception (?:in thread|ignored)|(?i:caught|retry|skip|ignor)"
)


class NextStart:
    """The command that starts a run again: a fix has {resume}, or {resume:--mem 64G} with options."""

    continues = "continues from the last checkpoint"  # the effect of the command, in words

    def __init__(self, run: str) -> None:
        self.run = run

    def __format__(self, options: str) -> str:
        return f"sbatchgen resume {self.run} {options}".rstrip()


class FixFacts(NamedTuple):
    """The facts about a job that its fixes mention or depend on."""

    has_gpus: bool | None = None  # whether the job asked for GPUs; None if unknown
    is_script: bool = False  # whether the user wrote the script; False if sbatchgen rendered it
    as_group: str = ""  # if the job's mode has one process: the options that start it in mode ddp
    memory: str = "64G"  # the memory for the next start: twice the last memory, or an example if unknown
    time: str = "8:00:00"  # the time limit for the next start: twice the last limit, or an example
    one_gpu: str = "--gpus-per-node 1"  # the option that asks for a GPU
    resume: NextStart | None = None  # the command that starts its run again; None for sbatchgen resume


@frozen(kw_only=True)
class FailureText(Explanation):
    """A cause in failures.yaml, with the patterns that show it, and its fixes for several kinds of jobs."""

    cause: str
    ended: str = ""  # a pattern for the end of a job, such as "TIMEOUT 0:15"
    log: tuple[str, ...] = ()  # patterns for lines of the log
    fix_script: str = ""
    fix_one_process: str = ""
    fix_with_gpus: str = ""
    fix_without_gpus: str = ""
    rank: Rank = "cause"
    last: bool = False  # whether its last line in the log is shown, not its first
    source: str

    def fix_for(self, facts: FixFacts) -> str:
        """Return the fix for a job with these facts."""
        by_gpus = {True: self.fix_with_gpus, False: self.fix_without_gpus, None: ""}[facts.has_gpus]
        of_kind = self.fix_script if facts.is_script else self.fix_one_process if facts.as_group else ""
        return by_gpus or of_kind or self.fix


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


def causes() -> tuple[FailureText, ...]:
    """Return the causes in failures.yaml, in the order of the file."""
    return read_table(Path(__file__).with_name("failures.yaml"), FailureTexts).causes


def text_of(cause: str) -> FailureText:
    """Return the cause in failures.yaml that has this name."""
    return next(entry for entry in causes() if entry.cause == cause)


@functools.cache
def _texts() -> tuple[re.Pattern[str], tuple[tuple[re.Pattern[str], FailureText], ...]]:
    """Return one pattern that combines all patterns for logs, and each pattern with its cause.

    Most lines of a log match no pattern, so the combined one saves time.
    """
    pairs = [(text, entry) for entry in causes() for text in entry.log]
    any_text = re.compile("|".join(f"(?:{text})" for text, _ in pairs))
    return any_text, tuple((re.compile(text), entry) for text, entry in pairs)


def failures(
    ended: str, log: Iterable[tuple[int, str]], run: str, facts: FixFacts | None = None
) -> list[Failure]:
    """Return the causes of a failure, the likeliest first.

    `ended` has Slurm's state, exit code and signal, such as "FAILED 1:0"; "" if they are not known. `log` has
    lines of the log with their numbers. The fixes name the run `run`.

    Each cause is returned once, with its first line, or with its last line if failures.yaml says `last`. A
    time limit, and causes outside the training, are read from the log only if `ended` is empty, because the
    log may hold earlier starts of the job.
    """
    facts, by_cause = facts or FixFacts(), dict[str, Failure]()
    for entry in causes():
        if entry.ended and (match := re.fullmatch(entry.ended, ended)):
            by_cause[entry.cause] = _failure(entry, match, run, facts, ended=ended)
    last = {entry.cause for entry in causes() if entry.last}
    seen_last: list[Failure] = []
    by_slurm = bool(ended) and not ended.startswith("FAILED")
    is_over = False
    for number, line in log:
        is_over = is_over or (by_slurm and ends_job(line))
        seen_last = [*_causes_in_line(number, line, run, facts)]
        for failure in seen_last:
            if is_over and failure.rank in ("cause", "own"):
                continue  # the error follows from the end of the job
            seen = by_cause.get(failure.cause)
            new = seen is None and not (ended and failure.rank in ("outside", "limit"))
            if new or failure.cause in last:
                by_cause[failure.cause] = failure
            elif seen and not seen.says:
                by_cause[failure.cause] = replace(failure, ended=seen.ended)
    if ended.startswith("FAILED") and seen_last and seen_last[-1].cause == OWN:  # this error ended the script
        del by_cause[OWN]
        by_cause = {OWN: replace(seen_last[-1], rank="cause"), **by_cause}
    return sorted(by_cause.values(), key=_order)


def ends_job(line: str) -> bool:
    """Return whether a line of a log is Slurm's message that it ends the whole job."""
    return "***" in line and any(map(_JOB_ENDS.match, pieces(line)))


def lines_before_end(log: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
    """Return the lines of a log before Slurm's message that it ends the job; all lines without a message."""
    return [*itertools.takewhile(lambda numbered: not ends_job(numbered[1]), log)]


def merge_causes(several: Iterable[Sequence[Failure]]) -> list[Failure]:
    """Merge the causes that several logs show: each cause once, in the order of the function `failures`."""
    by_cause: dict[str, Failure] = {}
    for failure in itertools.chain.from_iterable(several):
        seen = by_cause.setdefault(failure.cause, failure)
        if failure.says and not seen.says:
            by_cause[failure.cause] = failure
    return sorted(by_cause.values(), key=_order)


def crash(log: Sequence[tuple[int, str]]) -> tuple[int, str] | None:
    """Return the number and text of a line near the end of a log that shows a program's crash; else None.

    An exception is preferred to messages of srun, which may be in the middle of its traceback.
    """
    ended = (
        (number, piece) for number, line in log[-AT_END:] for piece in pieces(line) if _CRASH.match(piece)
    )
    return next(uncaught_exceptions(log), None) or next(ended, None)


def uncaught_exceptions(log: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each uncaught exception, below its traceback, at the end of a log."""
    before, tracebacks = "", 0
    for number, line in log[-AT_END:]:
        for piece in pieces(line):
            if tracebacks and _RAISED.match(piece) and not _PASSED_ON.match(piece):
                tracebacks -= 1
                yield number, piece
            tracebacks += piece == _TRACEBACK and not _HANDLED.search(before)
        before = line


def unexplained_exception(log: Sequence[tuple[int, str]]) -> tuple[int, str] | None:
    """Return the first exception at the end of a log that failures.yaml doesn't explain; None without one."""
    is_known = _texts()[0].match
    for number, exception in uncaught_exceptions(log):
        if not is_known(exception) and not _CRASH.match(exception):
            return number, exception
    return None


def place_of_exception(log: Sequence[tuple[int, str]], number: int) -> str:
    """Return where the exception in line `number` was raised: "train.py:12, rank 3"; "" without a traceback.

    The place is the last file of the traceback that is not in an installed package.
    """
    start = next((place for place, (line, _) in enumerate(log) if line == number), 0)
    rank = _RANK.match(log[start][1]) if log else None
    before = rank[0] if rank else ""
    who = f", rank {rank[1] or rank[2]}" if rank else ""
    is_bare = log and _NOT_RUN.match(log[start][1][len(before) :])
    frame = ""
    for _, line in reversed(log[max(0, start - AT_END) : start]):
        if not line.startswith(before):
            continue
        if _TRACEBACK in line or (is_bare and frame):
            return f"{frame}{who}" if frame else ""
        match = _FRAME.match(line[len(before) :])
        if match and not frame and not _INSTALLED.search(match[1]):
            frame = f"{match[1]}:{match[2]}"
    return f"{frame}{who}" if is_bare and frame else ""


def _order(failure: Failure) -> tuple[int, bool, float]:
    """Return the sort key of a cause: its rank; then, among effects, a killed process and the first line."""
    is_effect = failure.rank == "effect"
    is_felt = is_effect and failure.cause != "killed"  # other effects follow from a killed process
    first = failure.line or math.inf  # a cause with a line comes before Slurm's state
    return RANKS.index(failure.rank), is_felt, first if is_effect else 0


def _causes_in_line(number: int, line: str, run: str, facts: FixFacts) -> Iterator[Failure]:
    """Yield the causes in a line of the log, which has several parts if a progress bar overwrote it."""
    any_text, texts = _texts()
    for piece in pieces(line):
        problem = parse_error_line(piece)
        inner = _INNER.search(problem.what) if problem else None
        text = inner[1] if inner else piece
        if any_text.match(text):
            for pattern, entry in texts:
                if match := pattern.match(text):
                    yield _failure(entry, match, run, facts, line=number, says=piece)
                    break
        elif problem:
            means = f"{problem.what} ({problem.at})" if problem.at else problem.what
            yield Failure(cause=OWN, rank="own", means=means, fix=problem.fix, line=number, says=piece)


def _failure(entry: FailureText, match: re.Match[str], run: str, facts: FixFacts, **seen: Any) -> Failure:
    """Return a cause of failures.yaml with its texts filled in; `seen` has the fields about its place."""
    words = [group.strip() for group in match.groups("") if group] or [""]
    slots = facts._asdict() | {"run": run, "resume": facts.resume or NextStart(run)}
    means, fix = filled(replace(entry, fix=entry.fix_for(facts)), words, **slots)
    return Failure(cause=entry.cause, rank=entry.rank, means=means.rstrip(" :"), fix=fix.rstrip(" :"), **seen)


def pieces(line: str) -> Iterator[str]:
    """Yield the messages in a line, without their prefixes."""
    for part in line.rsplit("\r", PIECES):
        piece = _STEPD.sub(r"\1slurmstepd: ", part[:LONGEST])
        if message := _PREFIXES.sub("", piece, count=1).rstrip():
            yield message


def suspicious_lines(log: Sequence[tuple[int, str]], max_lines: int = 5) -> list[tuple[int, str]]:
    """Return at most `max_lines` lines at the end of a log that look like errors, each with its number.

    Each text is returned once. If no line looks like an error, the last lines are returned. The last
    exceptions are always among them, even if srun prints many lines after them.
    """
    texts: dict[str, int] = {}

    def take(count: int, accepts: Callable[[str], object]) -> None:
        for number, line in reversed(log):
            for piece in pieces(line):
                if len(texts) < count and accepts(piece):
                    texts.setdefault(piece, number)

    take(max_lines // 2, _EXCEPTION.match)
    take(max_lines, lambda piece: _LOOKS_BAD.match(piece) and not _EXITED.match(piece))
    if not texts:
        take(max_lines, lambda piece: not _EXITED.match(piece))
    take(max_lines, _EXITED.match)
    return sorted(((number, piece) for piece, number in texts.items()), key=lambda shown: shown[0])
