"""A run that stands still: what is usual in it, from events, lines with a time, and lines without."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.stall import HANG_FILE, Stall, hang, stalled_at_end, stalled_for
from tests.conftest import Command
from tests.runs.test_diagnosis import run_of

NOW = 1_800_000_000.0
KEPT = Record(shared=False, name="ddp", job="4711", folder="/")


def put(folder: Path, text: str, changed: float) -> Record:
    """The record of a job with this log."""
    (folder / "log").write_text(text)
    os.utime(folder / "log", (changed, changed))
    os.utime(folder, (changed, changed))
    return Record(shared=False, name="ddp", job="4711", folder=str(folder), log=str(folder / "log"))


def stamped(*times: float) -> str:
    return "".join(f"{datetime.fromtimestamp(each).astimezone():%Y-%m-%d %H:%M:%S} step\n" for each in times)


def events(folder: Path, *times: float) -> None:
    lines = (json.dumps({"event": "train", "step": step, "time": each}) for step, each in enumerate(times))
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    os.utime(folder / "events.jsonl", (times[-1], times[-1]))
    os.utime(folder, (times[-1], times[-1]))


EVEN = [NOW - 340 + 4 * step for step in range(11)]  # the last one five minutes ago


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (EVEN, "no output for 5 min; usual: 4 s"),
        ([*EVEN[:5], *(each + 200 for each in EVEN[5:])], ""),  # such a pause was there before
        ([each + 250 for each in EVEN], ""),  # 50 s are nothing
        (EVEN[:3], ""),  # what is usual is not known
    ],
)
def test_a_pause_is_told_beside_what_is_usual(tmp_path: Path, times: list[float], expected: str) -> None:
    kept = put(tmp_path, stamped(*times), times[-1])
    quiet = stalled_for(kept, tmp_path, NOW - 400, NOW)
    assert (quiet.says if quiet else "") == expected
    kept = put(tmp_path, "a\n", times[-1])
    events(tmp_path, *times)
    quiet = stalled_for(kept, tmp_path, NOW - 400, NOW)
    assert (quiet.says if quiet else "") == expected


def test_lines_without_a_time_count_by_their_number(tmp_path: Path) -> None:
    kept = put(tmp_path, "step\n" * 50, NOW - 610)
    assert stalled_for(kept, tmp_path, NOW - 710, NOW) == Stall(610.0, 2.0)
    assert stalled_for(kept, tmp_path, NOW - 710, NOW - 100) is None  # it may evaluate
    assert stalled_for(put(tmp_path, "step\n" * 3, NOW - 300), tmp_path, NOW - 400, NOW) is None
    silent = stalled_for(put(tmp_path, "", NOW - 700), tmp_path, NOW - 700, NOW)
    assert silent
    assert silent.says == "no output for 12 min"


DAY = 24 * 3600


@pytest.mark.parametrize(
    ("text", "ran_s", "quiet_s", "expected"),
    [
        ("step\n" * 100_000, DAY, 601, Stall(601.0, None)),  # more lines than are counted
        ("step\n" * 10_000, DAY, 601, Stall(601.0, 8.58)),
        ("step\n" * 10_000, DAY, 590, None),  # it may print much, and then evaluate
        ("step\n" * 3000, 100 * DAY, 3 * 3600, None),  # a line in 48 minutes
        (("x" * 5000 + "\n") * 1000, 10 * DAY, 3600, None),  # not all lines are read; the mean is 14 min
        (("x" * 5000 + "\n") * 1000, DAY, 7200, Stall(7200.0, None)),
    ],
)
def test_the_mean_pause_is_of_all_lines_or_not_told(
    tmp_path: Path, text: str, ran_s: int, quiet_s: int, expected: Stall | None
) -> None:
    started = NOW - quiet_s - ran_s + 600
    stall = stalled_for(put(tmp_path, text, NOW - quiet_s), tmp_path, started, NOW)
    assert (stall and stall._replace(usual_s=stall.usual_s and round(stall.usual_s, 2))) == expected


def test_lines_of_earlier_starts_are_none_of_this_start(tmp_path: Path) -> None:
    again = "Job 4711 on n1, restart 1 of at most 10\n"
    kept = put(tmp_path, "step\n" * 50_000 + again + "step\n" * 49, NOW - 610)
    assert stalled_for(kept, tmp_path, NOW - 710, NOW) == Stall(610.0, 2.0)


def test_a_checkpoint_is_a_sign_of_life(tmp_path: Path) -> None:
    kept = put(tmp_path, "step\n" * 50, NOW - 600)
    (tmp_path / "checkpoints").mkdir()
    os.utime(tmp_path / "checkpoints", (NOW - 9, NOW - 9))
    assert stalled_for(kept, tmp_path, NOW - 700, NOW) is None


LIMIT = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2027-01-15T08:00:00 DUE TO TIME LIMIT ***\n"


def test_how_it_ended_is_seen_by_times_alone(tmp_path: Path) -> None:
    kept = put(
        tmp_path, stamped(*EVEN) + LIMIT + stamped(NOW), NOW
    )  # torchrun's words at its end, with a time
    assert stalled_at_end(kept, tmp_path, NOW - 400, NOW) == Stall(300.0, 4.0)
    assert stalled_at_end(kept, tmp_path, NOW - 400, NOW - 250) is None
    assert stalled_at_end(put(tmp_path, "step\n" * 50 + LIMIT, NOW), tmp_path, NOW - 400, NOW) is None
    other_zone = stamped(*(each - 7200 for each in EVEN))
    assert stalled_at_end(put(tmp_path, other_zone, NOW), tmp_path, NOW - 400, NOW) is None


def clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%dT%H:%M:%S}"


def test_a_run_that_stands_still_is_seen_by_every_command(
    folder: Path, programs: Path, command: Command
) -> None:
    now = time.time()
    times = [now - 340 + 4 * step for step in range(11)]
    row = {"TimeUsed": "6:00", "TimeLimit": "10:00", "NumNodes": "1", "NodeList": "n1"}
    run_of(folder, programs, "RUNNING", 0, stamped(*times).encode(), **row)
    for path in (folder / "runs/ddp", folder / "runs/ddp/ddp-4711.out"):
        os.utime(path, (times[-1], times[-1]))
    says = "no output for 5 min; usual: 4 s"
    assert says in command("status").out
    assert f"stands still  {says}" in command("status", "ddp").out
    assert f"note: {says}" in command("report", "ddp").err
    shown = command("diagnose", "ddp").out
    assert f"{says}\n  fix: sbatchgen logs ddp --lines 20" in shown

    (folder / "runs/ddp" / HANG_FILE).write_text(json.dumps({"says": SAYS, "time": now - 65}))
    says = f"{SAYS}, seen "
    slow = "rank 2 on n3: data wait of 0.3 s, median of the ranks 0.01 s"
    (folder / "runs/ddp/events.jsonl").write_text(json.dumps({"event": "train", "step": 9, "slow": slow}))
    assert says in command("status").out
    assert command("status", "ddp").out.splitlines()[1].startswith(f"  hangs     {says}")
    assert f"\n  slow      {slow}\n" in command("status", "ddp").out
    assert command("diagnose", "ddp").out.startswith(f"ddp: hangs: {says}")
    assert f"; slow: {slow}\n" in command("diagnose", "ddp").out
    assert f"note: slow: {slow}\n" in command("report", "ddp").err


@pytest.mark.parametrize(("until", "still"), [(300, True), (30, False)])
def test_a_time_limit_is_no_cause_where_the_log_stood_still(
    folder: Path, programs: Path, command: Command, until: int, *, still: bool
) -> None:
    now = time.time()
    times = [now - until - 40 + 4 * step for step in range(11)]
    row = {"StartTime": clock(times[0] - 10), "EndTime": clock(now)}
    run_of(folder, programs, "TIMEOUT", 15, (stamped(*times) + LIMIT).encode(), **row)
    causes = json.loads(command("diagnose", "ddp", "--format", "json").out)["causes"]
    assert [each["cause"] for each in causes] == ["stood-still" if still else "time-limit"]
    assert ("--time" in causes[0]["fix"]) is not still


SAYS = "3 of 4 ranks wait in all_reduce (train.py:61); rank 2 on n3 is in dataset.py:88 for 6 minutes"


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"says": SAYS, "time": NOW - 60}, f"hangs: {SAYS}"),
        ({"says": SAYS, "time": NOW - 900}, ""),  # of an earlier start
        ({"says": ["x"], "time": NOW}, ""),
        ({"says": SAYS, "time": "now"}, ""),
        ([], ""),
    ],
)
def test_the_rank_that_hangs_is_what_the_job_has_written(
    tmp_path: Path, report: object, expected: str
) -> None:
    (tmp_path / HANG_FILE).write_text(json.dumps(report))
    assert hang(tmp_path, NOW - 400, NOW) == expected


def test_a_report_that_is_a_link_or_has_other_lines_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "other").write_text(json.dumps({"says": SAYS, "time": NOW}))
    (tmp_path / HANG_FILE).symlink_to("other")
    assert hang(tmp_path, NOW, NOW) == ""
    (tmp_path / HANG_FILE).unlink()
    (tmp_path / HANG_FILE).write_text(json.dumps({"says": "a\nb\x1b[2J" + "x" * 9999, "time": NOW}))
    says = hang(tmp_path, NOW, NOW)
    assert len(says) < 700
    assert says.isprintable()
