"""The conditions of --dependency, as slurmctld reads them. Whether a job is there is not judged.

Source: update_job_dependency of slurmctld, 22.05 to 25.05 and, in another form, 25.11 and 26.05;
benchmarks/values.py asks slurmctld 22.05.8 and 26.05.5.
"""

from __future__ import annotations

import re

from sbatchgen.sbatch.grammar import fold, leading_number, runs, wrapped

TYPES = ("after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer", "expand")
_KINDS = tuple(f"{name}:" for name in TYPES if name != "afterburstbuffer")
_BURST = "afterburstb"  # all that slurmctld compares of afterburstbuffer:
_LARGEST_ARRAY = 4000001  # slurm.conf(5), MaxArraySize


def check(text: str, *, slurm: str) -> None:
    """Refuse what slurmctld refuses.

    Raises:
        ValueError: It does; the text says why.
    """
    rest, separator, one_kind = _listed(text), "", slurm >= "25.11"
    if text in ("", "0"):
        return
    while True:
        before = rest
        rest = _condition(rest, strict=one_kind)
        mark = rest[:1]
        if mark not in (",", "?") or not mark:
            break
        plain = before[:1].isdigit() and ":" not in before
        if one_kind and (separator not in ("", mark) or (plain and mark == "?")):
            raise ValueError("',' (all of them) and '?' (any of them) can't be mixed")
        if plain and mark == "?":
            break
        separator, rest = mark, rest[1:]
    if rest and one_kind:
        raise ValueError(f"'{rest}' can't follow a job id")


def _condition(text: str, *, strict: bool) -> str:
    """What follows the first condition of a text."""
    if fold(text).startswith("singleton"):
        rest = _after_state(text[9:])
        if rest and rest[0] not in ",?":
            raise ValueError(f"'{rest}' can't follow singleton")
        return rest
    kind, colon, rest = text.partition(":")
    if not colon and "0" <= text[:1] <= "9":
        rest = _job(text, strict=strict)
        if rest and rest[0] != "," and not strict:
            raise ValueError(f"'{rest}' can't follow a job id")
        return rest
    if not colon:
        raise ValueError(f"'{text}' is not a condition" if text else "a condition is empty")
    if not fold(f"{kind}:").startswith(_KINDS) and not fold(text).startswith(_BURST):
        raise ValueError(f"'{kind}' is not a kind of dependency")
    return _jobs(rest, strict=strict)


def _jobs(text: str, *, strict: bool) -> str:
    """What follows the job ids of a condition."""
    while True:
        text = _job(text, strict=strict)
        if text and not strict and text[0] not in ",?:+(":
            raise ValueError(f"'{text}' can't follow a job id")
        if text[:1] == "+":
            minutes, text = leading_number(text[1:])
            if wrapped(minutes or 0) <= 0:
                raise ValueError("+ needs a number of minutes after it")
        text = _after_state(text)
        if text[:1] != ":":
            return text
        text = text[1:]


def _job(text: str, *, strict: bool) -> str:
    """What follows the first job id of a text, and its task of an array."""
    number, rest = leading_number(text)
    if not (number or 0) % 2**32:
        raise ValueError(f"'{text}' is not a job id" if text else "a job id is missing")
    if rest[:2] == "_*":
        return rest[2:]
    if rest[:1] == "_":
        task, rest = leading_number(rest[1:])
        if task is None and strict:
            raise ValueError("_ needs the index of a task after it")
    return rest


def _after_state(text: str) -> str:
    """What follows a state in parentheses, wherever that stands; the text if there is none."""
    if "(" not in text:
        return text
    if ")" not in text:
        raise ValueError("a parenthesis is not closed")
    return text.partition(")")[2]


def _listed(text: str) -> str:
    """The text with the tasks of each list, as 1_[2-4], apart; unchanged where one is not a list.

    Of more than two tasks only two are written: slurmctld judges all alike.
    """
    made, at = "", 0
    for match in re.finditer(r"([0-9]+)_\[", text):
        if match.start() < at:
            continue
        end = text.find("]", match.end())
        tasks = runs(text[match.end() : end]) if end >= 0 else None
        if not tasks or not any(tasks) or any(run.stop > _LARGEST_ARRAY for run in tasks):
            return text
        first = next(run for run in tasks if run)[0]
        several = len({number for run in tasks for number in run[:2]}) > 1
        made += f"{text[at : match.end() - 1]}{first}" + f":{match[1]}_{first + 1}" * several
        at = end + 1
    return made + text[at:]
