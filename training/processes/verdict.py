"""The verdict on a run: which rank waits for which rank, and whether that is a hang.

This module only judges the answers of watchers. hang.py gathers the answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

MIN_RANKS = 2  # ranks, because a single rank waits for no other rank
MAX_NAMED = 4  # ranks that the line names
HELD = {"T": "stopped by a signal", "t": "held by a debugger", "Z": "at its end"}
# The activity of a rank. A rank in a collective call waits, whatever its threads do. STILL needs evidence:
# the rank can't act again by itself, and nothing outside of the run can wake it up. Any other wait is
# OUTSIDE.
STILL, COMPUTES, DISK, OUTSIDE = "stands still", "computes", "a disk", "what may come"
ASLEEP_SHARE = 0.75  # share of a pause in which a sleeping rank has not woken up once
OF_A_LOADER = " of a loader"  # the end of a place in a loader's process
GPU_CALL = "synchronize"  # the call in which a rank may wait only for its own GPU


class Verdict(NamedTuple):
    """The verdict on a run: the line of a hang, or "" if the run may be healthy."""

    says: str = ""
    # whether the run may be ended, because all ranks have answered, and none does anything or has woken up
    is_sure: bool = False


def facts(
    answers: Sequence[Mapping[str, Any]], ends: Iterable[Sequence[str]], early_s: float
) -> list[dict[str, Any]]:
    """Return the answers, each with four more facts.

    `does` is the activity of the rank, `waits_for` names the program or the address for which it waits,
    `waits_s` are the seconds for which it has waited outside of the run, and `life_s` the seconds since its
    last sign of life. `ends` are the ends of launchers' connections, as pairs of addresses. A connection
    whose other end belongs to another rank or a launcher is inside the run.
    """
    inside = {tuple(link["ends"]) for answer in answers for link in answer["connections"]}
    inside |= {tuple(pair) for pair in ends}
    ranks = []
    for answer in answers:
        outside = [link for link in answer["connections"] if tuple(link["ends"][::-1]) not in inside]
        idle = [link["idle_s"] for link in outside if link["idle_s"] is not None]
        idle += [link["busy_s"] for link in answer["connections"] if link["busy_s"] is not None]
        waiting = [link for link in outside if link["asked_s"] is not None]
        own = sorted((link for link in waiting if link["own"]), key=lambda link: float(-link["asked_s"]))
        waits_for = f"an answer of {own[0]['ends'][1]}" if own else ""
        if answer["program"]:
            waits_for = f"the program {answer['program']}"
        is_held = answer["state"] in HELD
        can_not_act = (answer["stuck"] or answer["call"]) and not waiting
        does = STILL if is_held or can_not_act else OUTSIDE
        if answer["state"] == "D":
            does = DISK
        elif answer["computed_s"] < early_s and not is_held:
            does = COMPUTES
        life_s = min([answer["moved_s"], *idle])
        waits_s = min(answer["computed_s"], life_s) if does == OUTSIDE and not answer["call"] else 0.0
        ranks.append(
            {**answer, "does": does, "waits_for": waits_for, "waits_s": waits_s, "life_s": life_s},
        )
    return ranks


def needs_all_stacks(ranks: Sequence[Mapping[str, Any]], *, late: bool) -> bool:
    """Return whether computing ranks must also write their stacks.

    With NCCL a rank spins, and so seems to compute, while it waits for a rank that does not come. The stacks
    are needed late, or if another rank is STILL outside of a collective call.
    """
    is_odd = any(rank["does"] == STILL and not rank["call"] for rank in ranks)
    return any(rank["does"] == COMPUTES for rank in ranks) and (late or is_odd)


def missing_ranks(answers: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the ranks of a run that have not answered."""
    size = max((answer["size"] for answer in answers), default=0)
    return {*range(size)} - {answer["rank"] for answer in answers}


def judge(
    ranks: Sequence[Mapping[str, Any]], own_ranks: Collection[int], quiet_s: float, *, late: bool = False
) -> Verdict:
    """Return the verdict with the rank for which the others wait; an empty verdict without such a rank.

    `own_ranks` are the ranks that the asking node has or had. Only a `late` verdict may name a rank that is
    busy, waits outside of the run or does not answer, or a run whose ranks are all in the same call. Before
    that time a slow network or a slow GPU looks the same.
    """
    size = max((rank["size"] for rank in ranks), default=0)
    waiting = [rank for rank in ranks if rank["call"] and rank["state"] not in HELD]
    others = [rank for rank in ranks if rank not in waiting]
    gone = sorted(missing_ranks(ranks))
    odd = [rank for rank in others if not rank["spins"]]
    spinning = [rank for rank in others if rank["spins"]]
    still_kinds = (STILL, OUTSIDE) if late else (STILL,)
    if spinning and all(rank["does"] in still_kinds for rank in odd) and (odd or gone):
        waiting, others = waiting + spinning, odd
    if not waiting or size < MIN_RANKS:
        return Verdict()
    is_whole = {*own_ranks} >= {*gone}  # otherwise ranks of another node may be late with their answer
    is_still = all(rank["does"] == STILL for rank in others)
    is_odd = bool(others or gone)
    # While a rank waits in a call, another of its threads may do the work for which another rank waits, for
    # example in a process group of its own.
    is_alone = all(rank["alone"] for rank in waiting) or any(rank["state"] in HELD for rank in others)
    is_apart = len({*map(activity, waiting)}) > 1 and all(rank["call"] != GPU_CALL for rank in waiting)
    all_wait = is_whole and is_still and all(_waits(rank, is_odd=is_odd) for rank in waiting)
    is_early = all_wait and ((is_alone and (is_odd or is_apart)) or late)
    may_end = all(rank["does"] in (STILL, OUTSIDE) for rank in others)
    is_late = (
        late
        and is_odd
        and (any(rank["does"] in (STILL, OUTSIDE) for rank in waiting) or (bool(others) and may_end))
    )
    if not is_early and not is_late:
        return Verdict()
    # A rank that wakes up now and then may come later. If all ranks are in a call, the network may be slow.
    is_odd_asleep = all(rank["does"] == STILL or rank["woke_s"] > ASLEEP_SHARE * quiet_s for rank in others)
    is_silent = is_still or all(rank["does"] != COMPUTES for rank in waiting)
    is_sure = is_whole and may_end and is_odd_asleep and is_silent and is_alone and (is_odd or is_apart)
    return Verdict(_line(waiting, others, gone, size, quiet_s, is_whole=is_whole), is_sure)


def _waits(rank: Mapping[str, Any], *, is_odd: bool) -> bool:
    """Return whether a rank in a call waits; `is_odd`: another rank is not in a call, or has ended.

    Only then a rank that computes in its call counts as waiting.
    """
    return rank["does"] in (STILL, OUTSIDE) or (is_odd and rank["does"] == COMPUTES)


def _line(
    waiting: Sequence[Mapping[str, Any]],
    others: Sequence[Mapping[str, Any]],
    gone: Sequence[int],
    size: int,
    quiet_s: float,
    *,
    is_whole: bool,
) -> str:
    """Return the line about a hang: what most ranks do, and which ranks they wait for."""
    does, count = Counter(map(activity, waiting)).most_common(1)[0]
    named = others if others or gone else [rank for rank in waiting if activity(rank) != does]
    if count > 1:
        does = re.sub("^is ", "are ", re.sub("^(waits|computes)", lambda verb: verb[0][:-1], does))
    parts = [f"{count} of {size} ranks {does}"]
    parts += [f"rank {rank} has ended" + " or gives no answer" * (not is_whole) for rank in gone[:MAX_NAMED]]
    parts += [f"rank {rank['rank']} on {rank['host']} {activity(rank)}" for rank in named[:MAX_NAMED]]
    if max(len(gone), len(named)) > MAX_NAMED:
        parts.append("more ranks are elsewhere")
    long, unit = (quiet_s / 60, "minutes") if quiet_s >= 100 else (quiet_s, "seconds")
    return f"{'; '.join(parts)} for {long:.0f} {unit}"


def activity(rank: Mapping[str, Any]) -> str:
    """Return the activity of a rank, as the rest of a sentence after its name."""
    at = rank["at"]
    if rank["state"] in HELD:
        return f"is {HELD[rank['state']]}"
    if rank["call"]:
        return f"waits in {rank['call']} ({at})"
    if rank["does"] == COMPUTES and at.endswith(OF_A_LOADER):
        return f"computes, and its loader is stuck in {at}"
    if rank["does"] == COMPUTES:
        return f"computes in {at}" if at else "computes"
    if rank["does"] == OUTSIDE and rank["waits_for"]:
        return f"waits for {rank['waits_for']} ({at or 'a place that is not known'})"
    place = f"{'sleeps' if rank['sleeps'] else 'is'} in {at or 'a place that is not known'}"
    return f"{place}, on a disk or file system" if rank["does"] == DISK else place
