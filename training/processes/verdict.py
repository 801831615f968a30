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
# States of a main thread in /proc in which a rank can do nothing, and their names in messages.
HELD_STATES = {"T": "stopped by a signal", "t": "held by a debugger", "Z": "at its end"}
# The activities of a rank, the values of `does`. STILL needs evidence that the rank can't act again by
# itself, and that nothing outside of the run can wake it up. Any other wait is OUTSIDE. A rank in a
# collective call (`call`) waits for other ranks, also if it seems to compute.
STILL, COMPUTES, DISK, OUTSIDE = "stands still", "computes", "a disk", "what may come"
ASLEEP_SHARE = 0.75  # share of a pause in which a sleeping rank has not woken up once
OF_A_LOADER = " of a loader"  # the end of a line's name if a loader's process runs the line
GPU_CALL = "synchronize"  # the call in which a rank may wait for its own GPU instead of other ranks


class Verdict(NamedTuple):
    """The verdict on a run: the line that describes a hang, or "" if the run may be healthy."""

    line: str = ""
    # Whether the run may be ended. Then all ranks have answered or ended, and no rank acts or has woken up.
    is_sure: bool = False


def facts(
    answers: Sequence[Mapping[str, Any]], launcher_ends: Iterable[Sequence[str]], early_s: float
) -> list[dict[str, Any]]:
    """Return the answers of ranks (`Watcher._facts` in hang.py), each with four more facts.

    `does` is the activity of the rank, `waits_for` names the program or the address for which it waits,
    `waits_s` are the seconds for which it has waited outside of the run, and `life_s` the seconds since its
    last sign of life. A rank that has computed in the last `early_s` seconds computes.

    `launcher_ends` are the local and remote addresses of launchers' connections. A connection whose other end
    belongs to another rank or a launcher is inside the run.
    """
    inside = {tuple(link["ends"]) for answer in answers for link in answer["connections"]}
    inside |= {tuple(pair) for pair in launcher_ends}
    ranks = []
    for answer in answers:
        outside = [link for link in answer["connections"] if tuple(link["ends"][::-1]) not in inside]
        # Any data from outside are a sign of life, but from another rank only as many bytes as tensors have.
        quiet_times = [link["idle_s"] for link in outside if link["idle_s"] is not None]
        quiet_times += [link["busy_s"] for link in answer["connections"] if link["busy_s"] is not None]
        unanswered = [link for link in outside if link["asked_s"] is not None]
        own = [link for link in unanswered if link["own"]]  # without those of processes below the rank
        oldest = max(own, key=lambda link: float(link["asked_s"]), default=None)
        waits_for = f"an answer of {oldest['ends'][1]}" if oldest else ""
        if answer["program"]:
            waits_for = f"the program {answer['program']}"
        is_held = answer["state"] in HELD_STATES
        cannot_act = (answer["stuck"] or answer["call"]) and not unanswered
        does = STILL if is_held or cannot_act else OUTSIDE
        if answer["state"] == "D":
            does = DISK
        elif answer["computed_s"] < early_s and not is_held:
            does = COMPUTES
        life_s = min([answer["moved_s"], *quiet_times])
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
    has_suspect = any(rank["does"] == STILL and not rank["call"] for rank in ranks)
    return any(rank["does"] == COMPUTES for rank in ranks) and (late or has_suspect)


def missing_ranks(answers: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the ranks of a run that have not answered."""
    size = max((answer["size"] for answer in answers), default=0)
    return {*range(size)} - {answer["rank"] for answer in answers}


def judge(
    ranks: Sequence[Mapping[str, Any]], node_ranks: Collection[int], quiet_s: float, *, late: bool = False
) -> Verdict:
    """Return the verdict with the rank for which the others wait; an empty verdict without such a rank.

    `ranks` are the facts of `facts`, `quiet_s` is the length of the pause, and `node_ranks` are the ranks
    that the node of rank 0 has or had. Only a `late` verdict may name a rank that is busy, waits outside of
    the run or does not answer, or a run whose ranks are all in the same call. Before that time a slow network
    or a slow GPU looks the same.
    """
    size = max((rank["size"] for rank in ranks), default=0)
    in_call = [rank for rank in ranks if rank["call"] and rank["state"] not in HELD_STATES]
    others = [rank for rank in ranks if rank not in in_call]
    missing = sorted(missing_ranks(ranks))
    # A rank that spins may compute, or wait in NCCL. It waits if it has a rank to wait for.
    spinning = [rank for rank in others if rank["spins"]]
    not_spinning = [rank for rank in others if not rank["spins"]]
    idle_kinds = (STILL, OUTSIDE) if late else (STILL,)
    if spinning and all(rank["does"] in idle_kinds for rank in not_spinning) and (not_spinning or missing):
        in_call, others = in_call + spinning, not_spinning
    if not in_call or size < MIN_RANKS:
        return Verdict()
    missing_have_ended = {*node_ranks} >= {*missing}  # a rank of another node may only be late
    others_stand_still = all(rank["does"] == STILL for rank in others)
    some_not_in_call = bool(others or missing)
    # While a rank waits in a call, another of its threads may do the work for which another rank waits, for
    # example in a process group of its own.
    another_is_held = any(rank["state"] in HELD_STATES for rank in others)
    no_thread_works = all(rank["alone"] for rank in in_call) or another_is_held
    calls_differ = len({*map(activity, in_call)}) > 1 and all(rank["call"] != GPU_CALL for rank in in_call)
    all_in_call_wait = all(_waits(rank, some_not_in_call=some_not_in_call) for rank in in_call)
    all_wait = missing_have_ended and others_stand_still and all_in_call_wait
    can_report_early = all_wait and ((no_thread_works and (some_not_in_call or calls_differ)) or late)
    others_do_nothing = all(rank["does"] in (STILL, OUTSIDE) for rank in others)
    one_waits_idle = any(rank["does"] in (STILL, OUTSIDE) for rank in in_call)
    can_report_late = late and some_not_in_call and (one_waits_idle or (bool(others) and others_do_nothing))
    if not can_report_early and not can_report_late:
        return Verdict()
    # Nothing is sure if a rank wakes up now and then, because the rank may come later. The same is true if
    # all ranks are in the same call, because the network may be slow.
    others_sleep = all(rank["does"] == STILL or rank["woke_s"] > ASLEEP_SHARE * quiet_s for rank in others)
    none_works = others_stand_still or all(rank["does"] != COMPUTES for rank in in_call)
    is_sure = (
        missing_have_ended
        and others_do_nothing
        and others_sleep
        and none_works
        and no_thread_works
        and (some_not_in_call or calls_differ)
    )
    return Verdict(
        _line(in_call, others, missing, size, quiet_s, missing_have_ended=missing_have_ended), is_sure
    )


def _waits(rank: Mapping[str, Any], *, some_not_in_call: bool) -> bool:
    """Return whether a rank in a call waits.

    A rank that computes in its call counts as waiting only if another rank is not in a call, or has ended.
    """
    return rank["does"] in (STILL, OUTSIDE) or (some_not_in_call and rank["does"] == COMPUTES)


def _line(
    in_call: Sequence[Mapping[str, Any]],
    others: Sequence[Mapping[str, Any]],
    missing: Sequence[int],
    size: int,
    quiet_s: float,
    *,
    missing_have_ended: bool,
) -> str:
    """Return the line about a hang: what most ranks do, and which ranks they wait for.

    For example, "7 of 8 ranks wait in all_reduce (train.py:61); rank 3 on n2 is in data.py:9 for 6 minutes".
    """
    does, count = Counter(map(activity, in_call)).most_common(1)[0]
    named = others if others or missing else [rank for rank in in_call if activity(rank) != does]
    if count > 1:
        does = re.sub("^is ", "are ", re.sub("^(waits|computes)", lambda verb: verb[0][:-1], does))
    parts = [f"{count} of {size} ranks {does}"]
    parts += [
        f"rank {rank} has ended" + " or gives no answer" * (not missing_have_ended)
        for rank in missing[:MAX_NAMED]
    ]
    parts += [f"rank {rank['rank']} on {rank['host']} {activity(rank)}" for rank in named[:MAX_NAMED]]
    if max(len(missing), len(named)) > MAX_NAMED:
        parts.append("more ranks are elsewhere")
    long, unit = (quiet_s / 60, "minutes") if quiet_s >= 100 else (quiet_s, "seconds")
    return f"{'; '.join(parts)} for {long:.0f} {unit}"


def activity(rank: Mapping[str, Any]) -> str:
    """Return what a rank does and where, such as "waits in all_reduce (train.py:61)"."""
    at = rank["at"]
    if rank["state"] in HELD_STATES:
        return f"is {HELD_STATES[rank['state']]}"
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
