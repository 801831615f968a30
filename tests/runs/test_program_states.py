"""Runs with several programs: what status, logs, diagnose and report say of each."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.program_states import FOLDER, read_programs
from tests.conftest import Command
from tests.inputs.test_completion import completed
from tests.runs.test_diagnosis import run_of
from tests.runs.test_failure import OOM, PEER

STARTED = ("job starts", "server starts", "server ready", "client starts")
CRASHED = (*STARTED, "server failed on n1 ended with 137")
LATE = (*STARTED[:2], "server failed on n1 was not ready after 600 s")
LOOK = "sbatchgen logs ddp --program server shows what it did"
UNKNOWN = "run ddp has no log of a program 'sever'"
ERROR = "error: server on n1 ended with 137, which ends the job: see runs/ddp/programs/server.*.log"


def written(folder: Path, *lines: str, **logs: str) -> Path:
    """What the script of a run has written of its programs, now; the logs by their names."""
    place = folder / "runs/ddp" / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    (place / "state").write_text("".join(f"{now} {line}\n" for line in lines))
    for name, text in logs.items():
        (place / f"{name}.0.log").write_text(text)
    return place


def test_the_program_that_failed_first_is_told_and_not_who_complains(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 137 << 8, f"ConnectionError: refused\n{PEER}\n{ERROR}\n".encode())
    place = written(folder, *CRASHED, server=f"loading\n{OOM}\n", evaluator=f"{PEER}\n")
    lines = command("diagnose", "ddp").out.splitlines()
    assert lines[0] == "ddp: job 4711 failed: server on n1 ended with 137"
    assert lines[1] == "most likely: server on n1 ended with 137: there is not enough memory on the GPU"
    assert lines[2].startswith(f"  at:  {place}/server.0.log:2: torch.OutOfMemoryError")
    assert lines[3].startswith("  fix: use a smaller batch")
    row = command("status").out.splitlines()[1]
    assert row.split(maxsplit=2)[2] == "failed: server on n1 ended with 137"


def test_a_program_that_was_never_ready_is_told_with_the_last_it_said(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(
        folder,
        programs,
        "FAILED",
        256,
        b"error: server on n1 was not ready after 600 s, which ends the job\n",
    )
    place = written(folder, *LATE, server="loading shard 3 of 9\n")
    assert command("diagnose", "ddp").out.splitlines()[1:] == [
        "most likely: server on n1 was not ready after 600 s",
        f"  at:  {place}/server.0.log:1: loading shard 3 of 9",
        f"  fix: {LOOK}",
        "    also: if it needs more time: within: under programs.server.ready",
    ]


def test_a_main_program_that_fails_is_read_from_the_log_of_the_job(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 256, f"{OOM}\n".encode())
    written(folder, *STARTED, "client ended with 1", server=f"{PEER}\n")
    lines = command("diagnose", "ddp").out.splitlines()
    assert lines[0] == "ddp: job 4711 failed: client ended with 1"
    assert lines[1] == "most likely: there is not enough memory on the GPU"
    assert "ddp-4711.out:1:" in lines[2]


def test_status_and_report_name_each_program_of_the_last_start(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 137 << 8)
    written(folder, *STARTED, "evaluator failed on n2 ended with 3", *CRASHED)
    page = command("status", "ddp").out
    assert re.search(r"^  program server +failed \d\d:\d\d on n1: ended with 137$", page, re.MULTILINE)
    assert re.search(r"^  program client +started \d\d:\d\d, ended with the job$", page, re.MULTILINE)
    assert "program evaluator" not in page
    (run,) = json.loads(command("status", "ddp", "--format", "json").out)["runs"]
    assert [(each["name"], each["state"], each["nodes"], each["why"]) for each in run["programs"]] == [
        ("server", "failed", "n1", "ended with 137"),
        ("client", "starts", "", ""),
    ]
    assert "\nprogram server: failed ended with 137\n" in command("report", "ddp").out


def test_the_log_of_a_program(folder: Path, programs: Path, command: Command) -> None:
    run_of(folder, programs, "FAILED", 256, b"of the job\n")
    place = written(folder, *CRASHED, server="one\ntwo\n", evaluator="three\n")
    (place / "server.1.log").write_text("of rank 1\n")
    (place / "server.0.log.1").write_text("of the start before\n")
    assert command("logs", "ddp").out == "of the job\n"
    assert command("logs", "ddp", "--program", "server").out == "one\ntwo\nof rank 1\n"
    assert command("logs", "ddp", "--program", "evaluator", "--follow").out == "three\n"
    wrong = command("logs", "ddp", "--program", "sever")
    assert (wrong.status, wrong.err) == (
        2,
        f"error: {UNKNOWN}\n  at:  --program\n  fix: one of: evaluator, server\n",
    )
    main = command("logs", "ddp", "--program", "client")
    assert (main.status, main.err.splitlines()[-1]) == (2, "  fix: sbatchgen logs ddp")


def test_the_names_of_programs_are_completed(folder: Path, programs: Path) -> None:
    run_of(folder, programs, "FAILED", 256)
    written(folder, *CRASHED, server="", evaluator="")
    assert completed("sbatchgen logs ddp --program s", folder) == ["server"]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai"])
def test_the_clock_of_a_node_has_its_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    place = tmp_path / FOLDER
    place.mkdir()
    (place / "state").write_text("2026-01-31 10:00:00+0100 server failed on n1 ended with 137\n")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    (state,) = read_programs(tmp_path, 0.0)
    monkeypatch.undo()
    time.tzset()
    assert state.since == datetime(2026, 1, 31, 9, tzinfo=timezone.utc).timestamp()


def test_a_file_of_states_is_not_trusted(tmp_path: Path) -> None:
    place = tmp_path / FOLDER
    place.mkdir()
    line = "2026-01-02 03:04:05 {} failed on n1 ended with 1\n"
    named = ("../x", "SERVER", "state", "a" * 40, "good")
    (place / "state").write_bytes(
        b"\xff\0\n" + "".join(map(line.format, named)).encode() + b"2026-99-99 00:00:00 x ready\n"
    )
    assert [each.name for each in read_programs(tmp_path, 0.0)] == ["good"]
    assert read_programs(tmp_path, time.time()) == []  # of a submission before this one
    (place / "state").rename(tmp_path / "other")
    (place / "state").symlink_to(tmp_path / "other")
    assert read_programs(tmp_path, 0.0) == []
    (place / "state").unlink()
    os.mkfifo(place / "state")
    assert read_programs(tmp_path, 0.0) == []
