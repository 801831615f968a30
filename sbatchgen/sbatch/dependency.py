"""The conditions of --dependency, as slurmctld reads them. Whether a job is there is not judged.

Source: update_job_dependency of slurmctld, 22.05 to 25.05 and, in another form, 25.11 and 26.05;
benchmarks/values.py asks slurmctld 22.05.8 and 26.05.5.
"""

from __future__ import annotations

import re

from sbatchgen.sbatch.grammar import fold

_KINDS = ("after", "afterany", "afterok", "afternotok", "aftercorr", "expand")
_BURST = "afterburstb"  # all that slurmctld compares of afterburstbuffer
_STATE = re.compile(r"[^$]\(")
_TASKS = re.compile(r"_\[[^\]]+\]")
_ID = r"\s*[+-]?0*[1-9][0-9]*"
_JOB = re.compile(rf"{_ID}(_(\*|\s*[+-]?[0-9]*))?")
_JOB_AND_MINUTES = re.compile(rf"{_JOB.pattern}(\+\s*\+?0*[1-9][0-9]*)?")
_ODD_MINUTES = re.compile(r"\+\s*\+?[0-9]+[^0-9,?:]")


def check(text: str, *, slurm: str) -> None:
    """Refuse what slurmctld refuses; states, as in 1(failed), and lists of tasks are not checked.

    Raises:
        ValueError: It does; the text says why.
    """
    strict = slurm >= "25.11"
    if text in ("", "0") or _STATE.search(text):
        return
    text = _TASKS.sub("_1", text)
    if strict and "," in text and "?" in text:
        raise ValueError("',' (all of them) and '?' (any of them) can't be mixed")
    at = 0
    for condition in re.split("[,?]", text):
        at += len(condition) + 1
        kind, colon, jobs = condition.partition(":")
        if colon:
            _check_jobs(kind, jobs, strict=strict)
            if _ODD_MINUTES.search(jobs):
                return  # releases up to 25.05 do not look at what follows
        elif "0" <= condition[:1] <= "9":
            if not _is_job(condition, _JOB, strict=strict) or text[at - 1 : at] == "?" or ":" in text[at:]:
                raise ValueError(f"'{text}' is not a list of job ids")
        elif fold(condition) != "singleton":
            raise ValueError(f"'{condition}' is not a condition" if condition else "a condition is empty")


def _check_jobs(kind: str, jobs: str, *, strict: bool) -> None:
    if fold(kind) not in _KINDS and not fold(kind).startswith(_BURST):
        raise ValueError(f"'{kind}' is not a kind of dependency")
    for job in jobs.split(":") if strict or not _ODD_MINUTES.search(jobs) else ():
        if not _is_job(job, _JOB_AND_MINUTES, strict=strict):
            raise ValueError(f"'{job}' is not a job id" if job else "a job id is missing")


def _is_job(text: str, pattern: re.Pattern[str], *, strict: bool) -> bool:
    match = pattern.fullmatch(text)
    return match is not None and not (strict and match[1] == "_")
