"""What was shown of starts is kept with what came: by kind, for this user, and never in a submission's way."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from sbatchgen.jobs.runs import shown_starts
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.slurm.queue import SlurmJob
from sbatchgen.jobs.slurm.state import state_named

RENDER = ("sbatchgen", "render", "ddp", "--nodes", "2", "--time", "1:00:00", "--output", "/a")
SUBMIT = ("sbatchgen", "submit", "ddp", "--time", "1:00:00", "--nodes", "2")  # in another order


def row(
    job: str, how: str = "RUNNING", start: float = 0.0, eligible: float = 0.0, planned: str = ""
) -> SlurmJob:
    def at(seconds: float) -> datetime | None:
        return datetime.fromtimestamp(seconds, timezone.utc) if seconds else None

    return SlurmJob(
        id=job,
        base_id=int(job.partition("_")[0]),
        task="",
        state=state_named(how),
        reason="None",
        start=at(start),
        end=None,
        used_s=1,
        limit_s=60,
        nodes=1,
        node_list="n1" if how == "RUNNING" else "",
        exit_code=0,
        signal=0,
        planned=planned,
        eligible=at(eligible),
    )


def submitted(environment: dict[str, str], job: int, at: float, command: tuple[str, ...] = RENDER) -> None:
    record = Record(shared=False, name="ddp", folder="/", job=str(job), submitted=at, command=command)
    shown_starts.keep_submission(environment, record)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def late(environment: dict[str, str], kind: str = "hole") -> float | None:
    return shown_starts._read(environment).starts[-1].delay_s(kind)


def test_what_was_shown_goes_to_the_submission_of_the_same_words(environment: dict[str, str]) -> None:
    now = time.time()
    shown_starts.keep_forecasts(
        environment, [(SUBMIT, "hole", now), ((*SUBMIT, "--qos", "x"), "bound", now), ((), "plan", now)]
    )
    submitted(environment, 7, now + 5)
    shown_starts.keep_rows(environment, [row("7", start=now + 65, eligible=now + 5)])
    assert late(environment) == pytest.approx(60, abs=1)
    assert late(environment, "bound") is None
    submitted(environment, 8, now + 9)  # the second job of a chain, which starts after the first
    shown_starts.keep_rows(environment, [row("8", start=now + 999)])
    assert late(environment) is None


def test_a_wait_for_others_is_no_error(environment: dict[str, str]) -> None:
    now = time.time()
    shown_starts.keep_forecasts(environment, [(SUBMIT, "hole", now)])
    submitted(environment, 7, now)
    shown_starts.keep_rows(environment, [row("7", start=now + 3600, eligible=now + 3540)])
    assert late(environment) == pytest.approx(60, abs=1)


def test_the_first_plan_counts_and_the_first_start(environment: dict[str, str]) -> None:
    now = time.time()
    submitted(environment, 7, now)
    shown_starts.keep_rows(environment, [row("7", "PENDING", start=now + 500)])  # an estimate, without nodes
    for start in (600, 900):
        shown_starts.keep_rows(environment, [row("7", "PENDING", start=now + start, planned="n1")])
    shown_starts.keep_rows(environment, [row("7", start=now + 660)])
    shown_starts.keep_rows(environment, [replace(row("7", start=now + 9000), restarts=1)])
    assert late(environment, "plan") == pytest.approx(60, abs=1)


def test_fewer_than_five_starts_say_nothing_and_the_last_ten_count(environment: dict[str, str]) -> None:
    now = time.time()
    for number in range(1, 14):
        shown_starts.keep_forecasts(environment, [(SUBMIT, "hole", now)])
        submitted(environment, number, now)
        shown_starts.keep_rows(
            environment, [row(str(number), start=now + (7200 if number in (1, 2, 13) else 30))]
        )
        if number == 4:
            assert shown_starts.comparison(environment, "hole") == ""
        if number == 5:
            assert shown_starts.comparison(environment, "hole").startswith(
                "3 of your last 5 starts of this kind"
            )
    text = "9 of your last 10 starts of this kind came within 20 minutes of what was shown"
    assert (shown_starts.comparison(environment, "hole"), shown_starts.comparison(environment, "plan")) == (
        text,
        "",
    )


def test_what_was_shown_long_ago_is_of_no_submission(environment: dict[str, str]) -> None:
    now = time.time()
    shown_starts.keep_forecasts(environment, [(SUBMIT, "hole", now)])
    submitted(environment, 7, now + shown_starts.MAX_FORECAST_AGE_S + 1)
    shown_starts.keep_rows(environment, [row("7", start=now + 4000)])
    assert late(environment) is None


@pytest.mark.parametrize("text", ["", "[1]", '{"starts": [{"job": 3}]}', "[" * 9999, '{"starts": {"a": 1}}'])
def test_a_file_that_is_damaged_or_of_others_says_nothing(environment: dict[str, str], text: str) -> None:
    shown_starts.keep_forecasts(environment, [(SUBMIT, "hole", time.time())])
    (file,) = Path(environment["XDG_STATE_HOME"]).rglob("starts.json")
    file.write_text(text)
    assert shown_starts.comparison(environment, "hole") == ""
    submitted(environment, 7, time.time())
    assert [each.job for each in shown_starts._read(environment).starts] == ["7"]
    file.chmod(0o666)
    assert shown_starts._read(environment).starts == ()


def test_a_folder_that_takes_no_file_hinders_nothing(tmp_path: Path) -> None:
    (tmp_path / "sbatchgen").write_text("")
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    submitted(environment, 7, time.time())
    shown_starts.keep_rows(environment, [row("7", start=time.time())])
    assert shown_starts.comparison(environment, "hole") == ""


def test_of_an_array_the_first_task_counts(environment: dict[str, str]) -> None:
    now = time.time()
    shown_starts.keep_forecasts(environment, [(SUBMIT, "hole", now)])
    submitted(environment, 7, now)
    waits = row("7_[2-9]", "PENDING")
    shown_starts.keep_rows(environment, [waits])
    assert late(environment) is None
    shown_starts.keep_rows(environment, [waits, row("7_1", start=now + 90), row("7_0", start=now + 60)])
    assert late(environment) == pytest.approx(60, abs=1)


def test_the_first_plan_that_was_told_is_kept(environment: dict[str, str]) -> None:
    now = time.time()
    submitted(environment, 7, now)
    shown_starts.keep_plans(environment, {"7_[0-5]": now + 600, "8": now})
    shown_starts.keep_plans(environment, {"7_[0-5]": now + 900})
    shown_starts.keep_rows(environment, [row("7_[0-5]", "PENDING", start=now + 1200, planned="n1")])
    shown_starts.keep_rows(environment, [row("7_0", start=now + 630)])
    assert late(environment, "plan") == pytest.approx(30, abs=1)
    shown_starts.keep_plans(environment, {"7": now + 900})
    assert late(environment, "plan") == pytest.approx(30, abs=1)
