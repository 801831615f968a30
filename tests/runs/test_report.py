"""What a run has cost: by sacct, by the trainer's own events, by both, by neither."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.jobs.runs.index import Index, index_file
from sbatchgen.jobs.runs.process import status_file
from sbatchgen.jobs.runs.record import Record, write_accepted
from tests.conftest import Command
from tests.slurm import fakes

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4 --cpus-per-task=8 --gpus-per-node=4 --mem=64G --time=4:00:00
true
"""
FIELDS = ["JobID", "ElapsedRaw", "TimelimitRaw", "NNodes", "AllocTRES", "NTasks", "MaxRSS", "TotalCPU"]
TRES = "billing=64,cpu=64,gres/gpu=8,mem=131072M,node=2"
SHARDS = TRES.replace("gres/gpu=8", "gres/shard=8")
# As sacct --noconvert prints them (Slurm's src/sacct/print.c): a run that was requeued, and the one after it.
ROWS = [
    ["4711", "3600", "240", "2", TRES, "", "", "16:00:00"],
    ["4711.batch", "3600", "", "1", "cpu=32,mem=65536M,node=1", "1", str(1 << 30), "00:01.250"],
    ["4711.0", "3590", "", "2", "cpu=64,mem=131072M,node=2", "8", str(2 << 30), "15:59:59"],
    ["4711", "1800", "240", "2", TRES, "", "", "08:00:00"],
    ["4711.batch", "1800", "", "1", "cpu=32,mem=65536M,node=1", "1", str(1 << 30), "00:01.250"],
    ["4711.0", "1790", "", "2", "cpu=64,mem=131072M,node=2", "8", str(3 << 30), "07:59:59"],
]
GIB = 1 << 30
USED = {
    "processes": 8,
    "seconds": 1000.0,
    "samples": 500_000,
    "cpu_s": 12_000.0,
    "data_s": 20.0,
    "memory_bytes": 9 * GIB + GIB // 2,
    "gpu_utilization": 71.0,
    "gpu_reserved_bytes": 31 * GIB,
    "gpu_allocated_bytes": 28 * GIB,
    "gpu_bytes": 79 * GIB,
}


@pytest.fixture
def run(folder: Path, programs: Path) -> Path:
    """The folder of the run ddp, whose job 4711 has ended well."""
    run_dir = folder / "runs" / "ddp"
    run_dir.mkdir(parents=True)
    (run_dir / "job-4711.slurm").write_text(SCRIPT)
    enter(run_dir, "4711")
    return run_dir


def enter(run_dir: Path, *jobs: str, state: str = "COMPLETED") -> None:
    index = Index(index_file(os.environ))
    for job in jobs:
        index.begin(f"ab{job}", run_dir, "ddp", shared=False)
        index.accept(f"ab{job}", job)
    index.update_states([job._replace(state=state, ended=True) for job in index.jobs("ddp")])


def sacct(programs: Path, rows: Sequence[Sequence[str]]) -> None:
    recorded = programs / "sacct.json"
    recorded.write_text(json.dumps({"fields": FIELDS, "jobs": [], "runs": rows}))
    fakes.sacct(programs, recorded)


def train(run_dir: Path, *events: dict[str, Any], state: str = "done") -> None:
    (run_dir / "status.json").write_text(json.dumps({"state": state}))
    (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def start(job: str, began: float, lasted: float, **used: object) -> list[dict[str, Any]]:
    """The events of a start of the training."""
    resources = [{"event": "resources", "time": began + lasted, **used}] if used else []
    return [
        {"event": "resume", "time": began},  # of this start, though it comes before it
        {"event": "start", "job": job, "time": began},
        {"event": "train", "step": 1, "time": began + lasted},
        *resources,
    ]


def told(command: Command) -> dict[str, Any]:
    result = command("report", "ddp", "--format", "json")
    assert result.status == 0, result.err
    return dict(json.loads(result.out))


def advised(report: dict[str, Any]) -> dict[str, str]:
    return {
        advice["option"] or advice["about"]: advice["value"] or advice["why"] for advice in report["advice"]
    }


def test_sacct_tells_of_every_start(run: Path, programs: Path, command: Command) -> None:
    sacct(programs, ROWS)
    report = told(command)
    assert (report["source"], report["jobs"], report["starts"], report["used_s"]) == ("sacct", 1, 2, 5400)
    assert (report["nodes"], report["gpus"], report["cpus"], report["memory_mib"], report["limit_s"]) == (
        2, 8, 64, 65536, 14400,
    )  # fmt: skip
    assert (report["gpu_hours"], report["cpu_hours"], report["cpus_used"]) == (12, 96, 16)
    assert report["memory_bytes"] == 13 * GIB  # four tasks of 3G, and the script
    assert advised(report) == {"--time": "0-02:00:00", "--mem": "17G"}


def test_a_job_on_shards_has_no_count_of_gpus(run: Path, programs: Path, command: Command) -> None:
    (run / "job-4711.slurm").write_text(SCRIPT.replace("--gpus-per-node=4", "--gres=shard:4"))
    sacct(programs, [[field.replace(TRES, SHARDS) for field in row] for row in ROWS])
    train(run, *start("4711", 0, 4000, **USED))

    assert told(command)["gpus"] == 0
    assert re.search(r"^GPUs +shards +71% busy$", command("report", "ddp").out, re.MULTILINE)


def test_the_page(run: Path, programs: Path, command: Command) -> None:
    sacct(programs, ROWS)
    train(run, *start("4711", 0, 4000, **USED))
    assert (
        command("report", "ddp").out
        == """\
ddp: done; 1 job, 2 starts, 12.00 GPU-hours, 96.00 CPU-hours

                  ALLOCATED  USED            NEXT TIME
time              4:00:00    1:30:00         --time 0-02:00:00
memory of a node  64G        13G             --mem 17G
CPUs on average   64         16.0            --cpus-per-task 3
GPUs              8          71% busy
GPU memory        79G        31G
samples/s         -          500
waiting for data  -          2% of the time

time: a quarter more than it took in all
memory of a node: a quarter more than the most that was in use, at least 1G more
CPUs on average: half more than were in use on average, at least one for each process; it hardly waited for data
"""
    )


def test_without_accounting_the_trainer_tells_and_the_script_what_was_asked_for(
    run: Path, command: Command
) -> None:
    second = USED | {"seconds": 3000.0, "data_s": 1480.0, "gpu_utilization": 31.0, "cpu_s": 180_000.0}
    train(run, *start("4711", 5000, 1100, **USED), *start("4711", 90_000, 3100, **second))
    report = told(command)
    assert (report["source"], report["starts"], report["used_s"], report["gpu_hours"]) == (
        "script", 2, 4200, 8 * 4200 / 3600,
    )  # fmt: skip
    assert report["cpus_used"] == 48
    assert (report["gpu_utilization"], report["waiting"], report["samples_per_s"]) == (41, 0.375, 250)
    assert report["memory_bytes"] == USED["memory_bytes"]
    assert "--workers" in advised(report)["CPUs on average"]
    assert "CPUs were free" in advised(report)["CPUs on average"]
    assert "ASKED FOR" in command("report", "ddp").out


def test_a_run_that_is_not_done_gets_no_advice_on_its_time_and_memory(run: Path, command: Command) -> None:
    train(run, *start("4711", 0, 1000, **USED), state="preempted")
    assert set(advised(told(command))) == {"--cpus-per-task"}


def test_a_job_that_never_ran_does_not_hide_the_time_of_the_others(
    run: Path, programs: Path, command: Command
) -> None:
    train(run, *start("4711", 0, 1000, **USED))
    enter(run, "4712", state="CANCELLED")
    (run / "job-4712.slurm").write_text(SCRIPT)
    report = told(command)
    assert (report["jobs"], report["starts"], report["used_s"]) == (2, 1, 1000)
    sacct(programs, [*ROWS, ["4712", "0", "240", "0", "", "", "", "00:00:00"]])
    report = told(command)
    assert (report["jobs"], report["starts"], report["used_s"]) == (2, 2, 5400)


def test_without_accounting_the_log_knows_how_often_a_job_has_begun(run: Path, command: Command) -> None:
    log = run / "ddp-4711.out"
    write_accepted(run, Record(shared=False, name="ddp", job="4711", folder="/", log=str(log)))
    log.write_text("".join(f"Job 4711 on n1, restart {count} of at most 10\n" for count in range(3)))
    report = told(command)
    assert (report["starts"], report["used_s"]) == (3, None)
    assert command("report", "ddp").out.startswith("ddp: done; 1 job, 3 starts\n")
    train(run, *start("4711", 0, 600), *start("4711", 1000, 400))  # of one it has written nothing
    report = told(command)
    assert (report["starts"], report["used_s"]) == (3, 1000)


def test_the_time_of_the_newest_start_is_not_that_of_all(run: Path, programs: Path, command: Command) -> None:
    index = Index(index_file(os.environ))
    index.update_states([job._replace(ended=False) for job in index.jobs()])
    row = {"JobArrayID": "4711", "State": "RUNNING", "Command": "/home/ann/tmp/sbatchgen-ab4711-x/job.slurm"}
    row |= {"TimeUsed": "10:00", "NodeList": "n1"}
    for restarts, expected in (("0", (1, 600)), ("2", (3, None))):
        fakes.squeue(programs, [row | {"RestartCnt": restarts}])
        report = told(command)
        assert (report["starts"], report["used_s"]) == expected


def test_a_job_that_waits_shows_what_it_asks_for(run: Path, programs: Path, command: Command) -> None:
    index = Index(index_file(os.environ))
    index.accept("ab4711", "4711")
    index.update_states([job._replace(ended=False) for job in index.jobs()])
    row = {"JobArrayID": "4711", "State": "PENDING", "Command": "/home/ann/tmp/sbatchgen-ab4711-x/job.slurm"}
    fakes.squeue(programs, [row])
    report = told(command)
    assert (report["state"], report["limit_s"], report["used_s"], report["starts"]) == (
        "waiting",
        14400,
        None,
        None,
    )


def test_the_elements_of_an_array_are_put_together(run: Path, command: Command) -> None:
    """Each has a folder of its own, and its job an id that the run does not know."""
    (run / "job-4711.slurm").write_text(SCRIPT.replace("true", "#SBATCH --array=0-9\ntrue"))
    index = Index(index_file(os.environ))
    submitted = index.jobs("ddp")[-1].submitted
    for element, seconds in ((0, 1000), (7, 500)):
        (run / str(element)).mkdir()
        used = USED | {"memory_bytes": (element + 1) * GIB, "seconds": float(seconds)}
        train(run / str(element), *start(f"99{element}", submitted + 60, seconds, **used))
    report = told(command)
    assert (report["starts"], report["used_s"], report["cpus_used"]) == (2, 1500, 16)
    assert (report["memory_bytes"], round(report["gpu_hours"], 6)) == (8 * GIB, round(8 * 1500 / 3600, 6))
    assert "--time" not in advised(report)  # of one element, or of all?


def test_a_folder_that_other_jobs_share(folder: Path, programs: Path, command: Command) -> None:
    for job in ("4711", "4712"):
        run_dir = folder / "runs" / job
        run_dir.mkdir(parents=True)
        train(run_dir, *start(job, 5000, 1000, **USED))
    index = Index(index_file(os.environ))
    index.begin("key", folder / "runs", "ddp", shared=True)
    index.accept("key", "4711")
    report = told(command)
    assert (report["starts"], report["used_s"], report["gpu_utilization"]) == (1, 1000, 71)


def test_memory_that_ran_out_is_no_measure(run: Path, command: Command) -> None:
    enter(run, "4712", state="OUT_OF_MEMORY")
    train(run, *start("4712", 0, 1000, **USED))
    assert "--mem" not in advised(told(command))


def test_each_process_gets_a_cpu(run: Path, command: Command) -> None:
    (run / "job-4711.slurm").write_text("#!/bin/bash\n#SBATCH --cpus-per-task=16 --time=60\ntrue\n")
    train(run, *start("4711", 0, 1000, **USED | {"cpu_s": 100.0}))
    assert advised(told(command))["--cpus-per-task"] == "8"


def test_waiting_while_the_cpus_are_busy_asks_for_more_of_them(run: Path, command: Command) -> None:
    train(run, *start("4711", 0, 1000, **USED | {"data_s": 400.0, "cpu_s": 60_000.0}))
    assert "more CPUs" in advised(told(command))["CPUs on average"]


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ("--mem-per-cpu=2G --cpus-per-task=8", "--mem-per-cpu 1536M"),
        ("--mem-per-gpu=16G --gpus-per-node=4 --cpus-per-gpu=8", "--mem-per-gpu 3G"),
        ("--gpus-per-node=4 --cpus-per-gpu=32", "--cpus-per-gpu 5"),
    ],
)
def test_what_to_ask_for_is_said_in_the_options_of_the_script(
    run: Path, command: Command, asks: str, expected: str
) -> None:
    (run / "job-4711.slurm").write_text(f"#!/bin/bash\n#SBATCH {asks} --time=60\ntrue\n")
    train(run, *start("4711", 0, 1000, **USED))
    assert expected in command("report", "ddp").out


def test_of_your_own_trainer_nothing_is_guessed(run: Path, command: Command) -> None:
    result = command("report", "ddp")
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[0] == "ddp: done; 1 job"
    assert "time              4:00:00    -" in result.out
    assert "- time: sacct does not have it" in result.out
    assert "- CPUs and memory: sacct has them" in result.out
    assert "- GPUs: sbatchgen exec ddp -- nvidia-smi" in result.out
    assert told(command)["advice"] == []


def test_gpus_that_slurm_does_not_count_are_those_of_the_script(
    run: Path, programs: Path, command: Command
) -> None:
    sacct(programs, [[*ROWS[0][:4], "billing=64,cpu=64,mem=131072M,node=2", *ROWS[0][5:]]])
    assert told(command)["gpus"] == 8
    sacct(programs, [[*ROWS[0][:4], "cpu=64,gres/gpu:a100=6,node=2", *ROWS[0][5:]]])
    report = told(command)
    assert (report["gpus"], report["memory_mib"]) == (6, None)


def test_a_run_without_slurm(run: Path, command: Command, folder: Path) -> None:
    job = "20261122-091944"
    enter(run, job)
    index = Index(index_file(os.environ))
    submitted = index.jobs("ddp")[-1].submitted
    status_file(run, job).write_text("0\n")
    os.utime(status_file(run, job), (submitted + 100, submitted + 100))
    train(run, *start("4711", 0, 50), *start("", submitted + 1, 90, **USED))
    report = told(command)
    assert (report["starts"], report["used_s"], report["cpus"], report["gpu_hours"]) == (2, 150, None, None)
    assert report["cpus_used"] == 12
    status_file(run, job).unlink()  # killed: how far it came, the events tell
    assert told(command)["used_s"] == 140


HOSTILE: list[Any] = ["\x1b[2J", -5, 1e300, float("nan"), float("inf"), True, None, [], {}, 10**400, "7"]


@pytest.mark.proof
def test_of_odd_events_nothing_is_taken(run: Path, command: Command) -> None:
    names = ("cpus_used", "memory_bytes", "gpu_utilization", "gpu_bytes", "samples_per_s")
    (run / "job-4711.slurm").write_bytes(b"#!/bin/sh\n#SBATCH --time=\xff\x1b[2J --mem=-1 --nodes=x\n")
    for value in HOSTILE:
        good, odd = start("4711", 0, 1000, **USED), dict.fromkeys(USED, value)
        train(run, *start("4711", 0, 1000, **odd | {"seconds": 10.0}))
        report = told(command)
        assert {report[name] for name in names[:-1]} == {None}, value
        for name in ("seconds", "time"):
            train(run, *({**event, name: value, "job": value} for event in good))
            assert {told(command)[name] for name in names} == {None}, value
    assert "\x1b" not in command("report", "ddp").out


def test_a_database_that_fails_is_told_and_the_rest_is_shown(
    run: Path, programs: Path, command: Command
) -> None:
    fakes.failing(programs, "sacct", "sacct: fatal: \x1b[2J")
    train(run, *start("4711", 0, 1000, **USED))
    result = command("report", "ddp")
    assert result.status == 0
    assert "note: sacct ended with exit status 1" in result.err
    assert "\x1b" not in result.err
    assert "71% busy" in result.out


def test_a_run_folder_that_is_gone(run: Path, command: Command, folder: Path) -> None:
    run.rename(folder / "elsewhere")
    result = command("report", "ddp")
    assert (result.status, result.err) == (0, "")
    assert command("report", "nobody").status == 2


def test_following_ends_with_a_line_of_it(run: Path, command: Command) -> None:
    train(run, *start("4711", 0, 1000, **USED))
    assert (
        "note: used: time 0:16:40 of 4:00:00, memory of a node 9.5G of 64G, CPUs on average 12.0 of 64, "
        "GPUs 71% busy; more: sbatchgen report ddp\n"
    ) in command("logs", "ddp", "--follow").err


def test_the_sum_of_a_month_and_a_folder(
    run: Path, programs: Path, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = folder / "elsewhere" / "runs" / "b"
    other.mkdir(parents=True)
    (other / "job-4713.slurm").write_text(SCRIPT)
    enter_run(other, "b", "4713")
    enter_run(run, "ddp", "4712", submitted=monkeypatch)  # a year before
    sacct(programs, [*ROWS, ["4712", "3600", "240", "1", "cpu=1,mem=1024M,node=1", "", "", "00:10:00"]])
    this = time.strftime("%Y-%m")

    result = command("report", "--month", this)
    assert (result.status, result.out) == (
        0,
        """\
RUN  JOBS  TIME     GPU-HOURS  CPU-HOURS
ddp  1     1:30:00  12.00      96.00
b    1     0:00:00  0.00       0.00
all  2     1:30:00  12.00      96.00

not counted: 1 job, because the running time is neither in Slurm's accounting (sacct) nor in the run folder
""",
    )
    shown = json.loads(command("report", "--below", "runs", "--format", "json").out)
    assert [(row["name"], row["jobs"], row["cpu_hours"]) for row in shown["runs"]] == [("ddp", 2, 97)]
    assert (shown["total"]["gpu_hours"], shown["total"]["unknown"]) == (12, 0)
    before = command("report", "--below", ".", "--month", f"{int(this[:4]) - 1}{this[4:]}")
    assert re.search(r"^all  1 +1:00:00  0.00 +1.00$", before.out, re.MULTILINE)
    assert "no jobs of yours" in command("report", "--month", "2001-12").err


@pytest.mark.parametrize(
    ("state", "rows", "unknown"),
    [
        ("COMPLETED", [], 1),
        ("FAILED", [["4712", "0", "240", "1", "", "", "", "00:00:00"]], 0),  # sacct knows that it has not run
        ("CANCELLED", [], 0),
    ],
)
def test_a_job_that_sacct_has_forgotten_is_not_counted_and_the_bill_says_so(
    run: Path, programs: Path, command: Command, state: str, rows: list[list[str]], unknown: int
) -> None:
    enter(run, "4712", state=state)
    index = Index(index_file(os.environ))
    index.update_states([job._replace(state="COMPLETED") for job in index.jobs("ddp") if job.id == "4711"])
    (run / "job-4712.slurm").write_text(SCRIPT)
    sacct(programs, [*ROWS, *rows])
    shown = json.loads(command("report", "--below", "runs", "--format", "json").out)
    assert (shown["total"]["jobs"], shown["total"]["gpu_hours"], shown["total"]["unknown"]) == (
        2,
        12,
        unknown,
    )
    assert told(command)["used_s"] == (None if unknown else 5400)


def enter_run(run_dir: Path, name: str, job: str, submitted: pytest.MonkeyPatch | None = None) -> None:
    """Enter a job that has ended; a year ago if its time of submission is `submitted`."""
    index = Index(index_file(os.environ))
    with submitted.context() if submitted else contextlib.nullcontext() as changed:
        if changed:
            now = time.time()
            changed.setattr(time, "time", lambda: now - 365 * 86400)
        index.begin(f"ab{job}", run_dir, name, shared=False)
        index.accept(f"ab{job}", job)
    index.update_states([each._replace(state="COMPLETED", ended=True) for each in index.jobs(name)])


@pytest.mark.parametrize(
    "words", [(), ("ddp", "--month", "2026-11"), ("--month", "11/2026"), ("--below", "nowhere")]
)
def test_a_sum_of_what_is_not_there_is_an_error(run: Path, command: Command, words: tuple[str, ...]) -> None:
    result = command("report", *words)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: ")
    if not words:  # the fix for a sum
        fix = result.err.partition("for a sum: sbatchgen ")[2].split()
        assert command(*fix).status == 0
