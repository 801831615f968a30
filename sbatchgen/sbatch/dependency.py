"""The conditions of --dependency, as slurmctld reads them. Whether a job exists is not checked.

Source: update_job_dependency of slurmctld, 22.05 to 26.05.
"""

from __future__ import annotations

import re

from sbatchgen.sbatch.values import fold

_KINDS = ("after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer", "expand")
_ID = re.compile(
    r"\s*[+-]?0*[1-9][0-9]*([_+].*)?", re.DOTALL
)  # what follows a job id, as in 12_3 or 12+5, is not checked


def check(text: str) -> None:
    """Refuse what slurmctld refuses; states, as in 1(failed), are not checked.

    Raises:
        ValueError: It refuses the conditions; the text says why.
    """
    if text in ("", "0") or "(" in text or "[" in text:
        return
    for condition in re.split("[,?]", text):
        kind, colon, jobs = condition.partition(":")
        if colon and fold(kind) not in _KINDS:
            raise ValueError(f"'{kind}' is not a kind of dependency")
        if not condition:
            raise ValueError("a condition is empty")
        if fold(condition) == "singleton":
            continue
        if not colon and not condition[0].isdecimal():
            raise ValueError(f"'{condition}' is not a condition")
        for job in jobs.split(":") if colon else (condition,):
            if not _ID.fullmatch(job):
                raise ValueError(f"'{job}' is not a job id" if job else "a job id is missing")
