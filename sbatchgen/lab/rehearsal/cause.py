"""Finds the cause of a failed start of a rehearsed job: the first error in its log, with its place."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from sbatchgen.base.quoting import ALSO
from sbatchgen.jobs.runs.failure import OWN_MESSAGE, failures

# The start of a line that the job script or Slurm printed, not the trainer.
_SBATCHGEN_LINE = re.compile(r"Job \d+ on |Rank (\d+) of the training ended|srun: |slurmstepd")
_RANK_PREFIX = re.compile(r"\s*\[rank(\d+)\]:\s?")  # [rank0]: before each line of a traceback
_TRACEBACK_FILE = re.compile(r'\s*File "([^"<]+)", line (\d+)')
_LIBRARY_PATH = re.compile(r"/(?:site|dist)-packages/|/lib/python3")
# A line such as torch.OutOfMemoryError: CUDA out of memory.
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)(?::|$)")
# An exception of a program that did not load.
_NOT_LOADED = re.compile(r"(?:ImportError|ModuleNotFoundError|SyntaxError|IndentationError|TabError)\b")
# A word of an error that shows that the program looked for a GPU.
_NEEDS_GPU = re.compile(r"cuda|nvidia|nccl|accelerator|\bgpus?\b|\bhip\b", re.IGNORECASE)
_MAX_TEXT = 300  # characters of a cause


class Cause(NamedTuple):
    """The cause of a failed start."""

    what: str  # the cause in words
    fix: str = ""  # the fix; "" if it is not known
    lacks_gpu: bool = False  # whether the trainer looked for a GPU


def cause_of(status: int, log: str) -> Cause:
    """Return the cause by the first error in a log, or else by the last line of the log."""
    printed = [line for line in log.splitlines() if line.strip()]
    lines = [line for line in printed if not _SBATCHGEN_LINE.match(line)]
    place, error, rank = _first_error(lines)
    matches = (_SBATCHGEN_LINE.match(line) for line in printed)
    rank = rank or next((match[1] for match in matches if match and match[1]), "")
    causes = [
        failure
        for failure in failures(f"FAILED {status}:0", enumerate(lines, 1), "NAME")
        if failure.says and (failure.rank == "cause" or failure.cause == OWN_MESSAGE)
    ]
    # A cause that sbatchgen explains is preferred to the program's own message.
    known = min(causes, key=lambda failure: failure.cause == OWN_MESSAGE, default=None)
    where = "".join(f" ({part})" for part in (place, f"rank {rank}" if rank else "") if part)
    if known and (not error or known.says.strip() == error.strip()):
        fix = "" if "sbatchgen" in known.fix else known.fix  # commands of sbatchgen need a submitted job
        if known.cause == "package-missing":
            fix += f"{ALSO}if it is in a folder that the job does not see here: --see FOLDER"
        return Cause(f"{known.means}{where}"[:_MAX_TEXT], fix, bool(_NEEDS_GPU.search(known.says)))
    # "rror" stands for Error and error.
    last_error = next((line for line in reversed(lines) if "rror" in line or "No such file" in line), None)
    text = error or last_error or (lines[-1] if lines else "it printed nothing")
    return Cause(f"{text.strip()[:_MAX_TEXT]}{where}", lacks_gpu=bool(_NEEDS_GPU.search(text)))


def has_error(log: str) -> bool:
    """Return whether a log has an exception of Python."""
    return bool(_first_error(log.splitlines())[1])


def never_began(log: str) -> bool:
    """Return whether the first exception of a log shows that the program did not load.

    A program that ran until a signal stopped it has no such exception.
    """
    return bool(_NOT_LOADED.match(_first_error(log.splitlines())[1]))


def ends_in_traceback(log: str) -> bool:
    """Return whether a log ends with an exception of Python that ended the program."""
    lines = [line for line in log.splitlines() if line.strip()][-40:]
    has_traceback = any(line.startswith("Traceback (most recent call last)") for line in lines)
    is_ignored = any("ignored" in line for line in lines)  # Python ignores an exception in __del__
    return bool(has_traceback and not is_ignored and _EXCEPTION.match(lines[-1]))


def _first_error(lines: Sequence[str]) -> tuple[str, str, str]:
    """Return the place, the text and the rank of the first exception; empty texts without one.

    The place is the last line of the user's source in the traceback.
    """
    place, source = "", ""
    for line in lines:
        rank = _RANK_PREFIX.match(line)
        text = line[rank.end() :] if rank else line
        if file := _TRACEBACK_FILE.match(text):
            source = "" if _LIBRARY_PATH.search(file[1]) else f"{file[1].rpartition('/')[2]}:{file[2]}"
            place = source or place
        elif text.startswith("Traceback (most recent call last)"):
            place = ""
        elif _EXCEPTION.match(text):
            return place, text, rank[1] if rank else ""
    return "", "", ""
