"""Finds the cause of a failed start of a rehearsed job: the first error in its log, with its place."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from sbatchgen.base.quoting import ALSO
from sbatchgen.jobs.runs.failure import OWN_MESSAGE, failures

# The start of a line that the job script or Slurm printed, not the trainer.
_SBATCHGEN_LINE = re.compile(r"Job \d+ on |Rank (\d+) of the training ended|srun: |slurmstepd")
_RANK_PREFIX = re.compile(r"\s*\[rank(\d+)\]:\s?")  # [rank0]: before each line of a traceback
_TRACEBACK_FILE = re.compile(r'\s*File "([^"<]+)", line (\d+)')  # the file and the line in a traceback
_LIBRARY_PATH = re.compile(r"/(?:site|dist)-packages/|/lib/python3")
# A line such as torch.OutOfMemoryError: CUDA out of memory.
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)(?::|$)")
# An exception of a program that did not load.
_NOT_LOADED = re.compile(r"(?:ImportError|ModuleNotFoundError|SyntaxError|IndentationError|TabError)\b")
# A word of an error that shows that the program looked for a GPU.
_NEEDS_GPU = re.compile(r"cuda|nvidia|nccl|accelerator|\bgpus?\b|\bhip\b", re.IGNORECASE)
_MAX_TEXT = 300  # characters of the text of a cause


class Cause(NamedTuple):
    """The cause of a failed start."""

    what: str  # the cause in words
    fix: str = ""  # the fix; "" if it is not known
    lacks_gpu: bool = False  # whether the trainer looked for a GPU


def cause_of(status: int, log: str) -> Cause:
    """Return the cause of a failed start, by the first error in its log or else by the log's last line."""
    printed_lines = [line for line in log.splitlines() if line.strip()]
    trainer_lines = [line for line in printed_lines if not _SBATCHGEN_LINE.match(line)]
    place, error, rank = _first_error(trainer_lines)
    matches = (_SBATCHGEN_LINE.match(line) for line in printed_lines)
    rank = rank or next((match[1] for match in matches if match and match[1]), "")
    causes = [
        failure
        for failure in failures(f"FAILED {status}:0", enumerate(trainer_lines, 1), "NAME")
        if failure.says and (failure.rank == "cause" or failure.cause == OWN_MESSAGE)
    ]
    # A cause that sbatchgen explains is preferred to the program's own message.
    failure = min(causes, key=lambda failure: failure.cause == OWN_MESSAGE, default=None)
    where = "".join(f" ({text})" for text in (place, f"rank {rank}" if rank else "") if text)
    if failure and (not error or failure.says.strip() == error.strip()):
        fix = "" if "sbatchgen" in failure.fix else failure.fix  # commands of sbatchgen need a submitted job
        if failure.cause == "package-missing":
            fix += f"{ALSO}if it is in a folder that the job does not see here: --see FOLDER"
        return Cause(f"{failure.means}{where}"[:_MAX_TEXT], fix, bool(_NEEDS_GPU.search(failure.says)))
    # "rror" stands for Error and error.
    error_lines = [line for line in trainer_lines if "rror" in line or "No such file" in line]
    last_line = trainer_lines[-1] if trainer_lines else "it printed nothing"
    text = error or (error_lines[-1] if error_lines else last_line)
    return Cause(f"{text.strip()[:_MAX_TEXT]}{where}", lacks_gpu=bool(_NEEDS_GPU.search(text)))


def has_error(log: str) -> bool:
    """Return whether a log has an exception of Python."""
    return bool(_first_error(log.splitlines()).text)


def never_began(log: str) -> bool:
    """Return whether the first exception of a log shows that the program did not load.

    A program that ran until a signal stopped it has no such exception in its log.
    """
    return bool(_NOT_LOADED.match(_first_error(log.splitlines()).text))


def ends_in_traceback(log: str) -> bool:
    """Return whether a log ends with an exception of Python that ended the program."""
    last_lines = [line for line in log.splitlines() if line.strip()][-40:]
    has_traceback = any(line.startswith("Traceback (most recent call last)") for line in last_lines)
    is_ignored = any("ignored" in line for line in last_lines)  # Python ignores an exception in __del__
    return bool(has_traceback and not is_ignored and _EXCEPTION.match(last_lines[-1]))


class _LoggedError(NamedTuple):
    """An exception of Python in a log; the texts are "" if the log has none."""

    place: str = ""  # the last line of the user's source in the traceback, such as train.py:12
    text: str = ""  # the line of the exception
    rank: str = ""  # the rank that printed it; "" if the line does not show it


def _first_error(lines: Sequence[str]) -> _LoggedError:
    """Return the first exception in a log."""
    place = ""
    for line in lines:
        rank = _RANK_PREFIX.match(line)
        text = line[rank.end() :] if rank else line
        if source := _TRACEBACK_FILE.match(text):
            file, number = source.groups()
            if not _LIBRARY_PATH.search(file):
                place = f"{file.rpartition('/')[2]}:{number}"
        elif text.startswith("Traceback (most recent call last)"):
            place = ""
        elif _EXCEPTION.match(text):
            return _LoggedError(place, text, rank[1] if rank else "")
    return _LoggedError()
