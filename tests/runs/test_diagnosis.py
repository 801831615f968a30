"""sbatchgen diagnose: what Slurm, the log and the run folder say of a failure, and what is shown of it."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from string import Template

import pytest

from sbatchgen.jobs.runs import submitted_scripts
from sbatchgen.jobs.runs.index import Index, index_file
from sbatchgen.jobs.runs.job_log import JOB_START
from sbatchgen.jobs.runs.record import Record, records, write_accepted
from tests.conftest import FIXTURES, REPOSITORY, Command
from tests.runs.test_failure import ABORTED, LIMIT, OOM, PEER, RAISED
from tests.slurm import fakes


def run_of(folder: Path, programs: Path, state: str, status: int, text: bytes = b"", **more: str) -> None:
    """A run called ddp with one job, whose state and log are these; Slurm has no database."""
    run_dir = folder / "runs" / "ddp"
    run_dir.mkdir(parents=True)
    index = Index(index_file(os.environ))
    index.begin("c0ffee", run_dir, "ddp", shared=False)
    index.accept("c0ffee", "4711")
    about = Record(key="c0ffee", run="ddp", shared=False, name="ddp", job="4711", folder=str(folder))
    write_accepted(run_dir, replace(about, log=f"{run_dir}/ddp-%j.out"))
    (run_dir / "ddp-4711.out").write_bytes(text)
    fakes.squeue(programs, [{"JobArrayID": "4711", "State": state, "exit_code": str(status)} | more])


def test_a_failed_run_is_told_with_the_line_and_what_to_type(
    folder: Path, programs: Path, command: Command
) -> None:
    start = "Job 4711 on n[1-2], restart 1 of at most 10"
    run_of(folder, programs, "FAILED", 256, f"MemoryError\n{start}\nEpoch 1\n{OOM}\n{PEER}\n".encode())
    place_ = folder / "runs/ddp/ddp-4711.out"
    shown = command("diagnose", "ddp")
    assert (shown.status, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[:3] == [
        "ddp: job 4711 failed: exit status 1",
        "most likely: there is not enough memory on the GPU",
        f"  at:  {place_}:4: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ]
    assert lines[3].startswith("  fix: use a smaller batch")
    assert [line.partition(": ")[0] for line in lines[4:]] == ["    also"]
    said = json.loads(command("diagnose", "4711", "--format", "json").out)
    assert (said["schema"], said["run"], said["failed"], said["log"]) == (1, "ddp", True, str(place_))
    assert [(cause["cause"], cause["rank"], cause["line"]) for cause in said["causes"]] == [
        ("gpu-memory", "cause", 4),
        ("peer-gone", "effect", 5),
    ]
    assert command("status", "ddp").err == "note: sbatchgen diagnose ddp says why it failed\n"


@pytest.mark.parametrize(
    ("state", "text", "expected"),
    [
        ("FAILED", f"{PEER}\n{ABORTED}", ["most likely: another process of the training"]),
        (
            "TIMEOUT",
            f"{PEER}\n{ABORTED}",
            ["most likely: its time limit", "or: another process of the training"],
        ),
        (
            "TIMEOUT",
            f"{PEER}\n{OOM}",
            ["most likely: there is not enough memory on the GPU", "or: its time limit"],
        ),
        ("NODE_FAIL", PEER, ["most likely: a node of the job failed"]),
    ],
)
def test_what_follows_from_others_is_told_where_nothing_else_is_known(
    folder: Path, programs: Path, command: Command, state: str, text: str, expected: list[str]
) -> None:
    run_of(folder, programs, state, 256, text.encode())
    lines = command("diagnose", "ddp").out.splitlines()
    causes = [line for line in lines[1:] if not line.startswith(" ")]
    assert len(causes) == len(expected), lines
    assert all(line.startswith(words) for line, words in zip(causes, expected, strict=True)), lines


def test_what_is_not_known_is_not_guessed(folder: Path, programs: Path, command: Command) -> None:
    run_of(folder, programs, "FAILED", 512, b"one\nValueError: 3 is not a number\nan error occurred\nbye\n")
    log_ = folder / "runs/ddp/ddp-4711.out"
    assert command("diagnose", "ddp").out.splitlines() == [
        "ddp: job 4711 failed: exit status 2",
        "no known cause; of its log:",
        f"  {log_}:2: ValueError: 3 is not a number",
        f"  {log_}:3: an error occurred",
        "  fix: sbatchgen logs ddp shows more",
    ]


def test_the_reason_that_the_trainer_left_counts_where_the_log_says_nothing(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "COMPLETED", 0)
    assert command("diagnose", "ddp").out == "ddp: job 4711 completed\n"
    (folder / "runs/ddp/ddp-4711.out").unlink()
    status = {"state": "failed", "reason": "OutOfMemoryError: x", "time": time.time()}
    (folder / "runs/ddp/status.json").write_text(json.dumps(status))
    assert (
        "but its training failed\nmost likely: OutOfMemoryError: x\n  at:  " in command("diagnose", "ddp").out
    )
    status["reason"] = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    (folder / "runs/ddp/status.json").write_text(json.dumps(status))
    lines = command("diagnose", "ddp").out.splitlines()
    assert lines[1] == "most likely: there is not enough memory on the GPU"
    assert lines[2] == f"  at:  {folder}/runs/ddp/status.json: {status['reason']}"


@pytest.mark.parametrize(
    ("state", "more", "expected"),
    [
        ("RUNNING", {"TimeUsed": "1:00", "NodeList": "n1"}, "ddp: job 4711 running 0:01:00 on n1\n"),
        ("PENDING", {"Reason": "JobHeldUser"}, "  fix: scontrol release 4711\n"),
        ("COMPLETED", {}, "ddp: job 4711 completed\n"),
    ],
)
def test_a_run_that_has_not_failed_says_so(
    folder: Path, programs: Path, command: Command, state: str, more: dict[str, str], expected: str
) -> None:
    run_of(folder, programs, state, 0, OOM.encode(), **more)
    shown = command("diagnose", "ddp")
    assert shown.status == 0
    assert shown.out.endswith(expected)
    assert "GPU" not in shown.out


def test_of_an_array_the_first_task_that_failed_is_told(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 256)
    run_dir = folder / "runs" / "ddp"
    about = Record(key="c0ffee", run="ddp", shared=True, name="ddp", job="4711", folder="/", array="0-2")
    write_accepted(run_dir, replace(about, log=f"{run_dir}/%A_%a.out"))
    for task, text in enumerate(("fine", "MemoryError", OOM)):
        (run_dir / f"4711_{task}.out").write_text(f"{text}\n")
    ended = {"4711_0": ("COMPLETED", 0), "4711_1": ("FAILED", 256), "4711_2": ("FAILED", 256)}
    rows = [
        {"JobArrayID": id_, "State": state, "exit_code": str(status)}
        for id_, (state, status) in ended.items()
    ]
    fakes.squeue(programs, rows)
    said = command("diagnose", "ddp").out
    assert said.startswith(
        "ddp: task 1 of job 4711 failed, exit status 1\nmost likely: there is not enough memory"
    )
    assert "4711_1.out:1: MemoryError" in said
    assert "on the GPU" in command("diagnose", "ddp", "--task", "2").out


def test_of_tasks_that_go_on_with_one_training_the_last_that_ran_is_told(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 256)
    run_dir = folder / "runs" / "ddp"
    about = Record(key="c0ffee", run="ddp", shared=False, name="ddp", job="4711", folder="/", array="1-3%1")
    write_accepted(
        run_dir, replace(about, command=("sbatchgen", "render", "ddp"), log=f"{run_dir}/%A_%a.out")
    )
    (run_dir / "4711_2.out").write_text(OOM)
    ended = (
        ("4711_1", "FAILED", 75 << 8, "n1"),
        ("4711_2", "FAILED", 256, "n2"),
        ("4711_3", "CANCELLED", 0, ""),
    )
    rows = [
        {"JobArrayID": id_, "State": state, "exit_code": str(code), "NodeList": node,
         "StartTime": f"2026-11-22T12:00:0{id_[-1]}"}
        for id_, state, code, node in ended
    ]  # fmt: skip
    fakes.squeue(programs, rows)
    lines = command("diagnose", "ddp").out.splitlines()
    assert lines[:2] == [
        "ddp: task 2 of job 4711 failed, exit status 1",
        "most likely: there is not enough memory on the GPU",
    ]


def test_of_a_sweep_the_first_point_that_failed_is_told(
    folder: Path, programs: Path, command: Command
) -> None:
    """Point 1001 is task 1 of a second array."""
    run_of(folder, programs, "FAILED", 256)
    run_dir = folder / "runs" / "ddp"
    (run_dir / "points.csv").write_text("lr\n" + "0.1\n" * 1002)
    about = Record(key="c0ffee", run="ddp", shared=True, name="ddp", job="4711", folder="/", array="0-1")
    write_accepted(run_dir, replace(about, first=1000, log=f"{run_dir}/%A_%a.out"))
    write_accepted(run_dir, replace(about, job="4710", array="0-999", log=f"{run_dir}/%A_%a.out"))
    for point in range(1002):
        (run_dir / str(point)).mkdir()
        (run_dir / str(point) / "exit").write_text("1\n" if point == 1001 else "0\n")
    (run_dir / "4711_1.out").write_text(OOM)
    ended = (("4711_0", "COMPLETED", "0"), ("4711_1", "FAILED", "256"))
    rows = [{"JobArrayID": id_, "State": state, "exit_code": code} for id_, state, code in ended]
    fakes.squeue(programs, rows)
    lines = command("diagnose", "ddp").out.splitlines()
    assert lines[:2] == [
        "ddp: point 1001 of job 4711 failed, exit status 1",
        "most likely: there is not enough memory on the GPU",
    ]
    assert command("diagnose", "ddp", "--task", "7").out == "ddp: point 7 has not failed\n"
    assert "says why it failed" in command("status", "ddp").err


def test_without_an_answer_of_slurm_the_log_is_read(folder: Path, programs: Path, command: Command) -> None:
    run_of(folder, programs, "CANCELLED", 15, LIMIT.encode())
    assert command("status").status == 0
    fakes.failing(programs, "squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    shown = command("diagnose", "ddp")
    assert "most likely: it was cancelled\n" in shown.out
    assert "warning: Slurm's controller does not answer" in shown.err


def test_of_a_job_that_slurm_has_forgotten_the_log_is_read(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "RUNNING", 0, b"ValueError: x\n")
    fakes.squeue(programs, [])
    assert command("diagnose", "ddp").out == "ddp: job 4711 ended: no longer in the queue\n"
    (folder / "runs/ddp/ddp-4711.out").write_text(OOM)
    assert "most likely: there is not enough memory on the GPU\n" in command("diagnose", "ddp").out


def test_a_job_that_slurm_has_lost_before_it_began_has_no_log(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "PENDING", 0, b"")
    (folder / "runs/ddp/ddp-4711.out").unlink()
    fakes.squeue(programs, [])
    assert "it has no log: cancelled while it waited, or lost by Slurm" in command("status", "ddp").out


def test_slurm_is_asked_about_a_job_where_it_was_submitted_to(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 75 << 8)
    index = Index(index_file(os.environ))
    index.accept("c0ffee", "4711", "far")
    (programs / "squeue").rename(programs / "far")
    (programs / "squeue").write_text('#!/bin/sh\n[ "$1" = --clusters=far ] && exec far "$@"\n')
    (programs / "squeue").chmod(0o755)
    assert "most likely: the training was asked to stop" in command("diagnose", "ddp").out


@pytest.mark.parametrize(("nodes", "more"), [("n1", ""), ("", ": it has never started")])
def test_who_cancelled_a_job_is_told_where_slurm_knows(
    folder: Path, programs: Path, command: Command, nodes: str, more: str
) -> None:
    run_of(folder, programs, "CANCELLED", 15, NodeList=nodes)
    recorded = json.loads((FIXTURES / "sacct_22.05.json").read_text())
    values = {"JobID": "4711", "State": "CANCELLED by 0", "ExitCode": "0:15"}
    recorded["runs"] = [[values.get(name, "") for name in recorded["fields"]]]
    (folder / "sacct.json").write_text(json.dumps(recorded))
    fakes.sacct(programs, folder / "sacct.json")
    assert command("diagnose", "ddp").out.startswith(f"ddp: job 4711 cancelled by root{more}\n")
    assert command("status", "ddp").err == ""


def test_a_run_without_slurm_is_diagnosed_alike(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("import nosuchmodule\n")
    assert command("submit", "cpu", "--yes", "--trainer", "train.py").status == 1
    assert "most likely: this Python has no module 'nosuchmodule' (" in command("diagnose", "cpu").out
    assert command("diagnose", "nobody").status == 2


CANCELLED = "slurmstepd-n1: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-26T21:58:59 ***"
HOSTILE = b"error: \x1b[2Ja|b\xff\xfe\t\x00; fix: \x9b31m\n\nValueError: \x1b]0;x\x07\n"


def test_no_words_of_a_log_reach_the_terminal_as_they_are(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 256, HOSTILE)
    shown = command("diagnose", "ddp")
    assert shown.status == 0, shown.err
    assert not {"\x1b", "\x00", "\x9b", "\x07"} & set(shown.out + shown.err)
    assert json.loads(command("diagnose", "ddp", "--format", "json").out)["causes"][0]["cause"] == "own-words"


@pytest.mark.parametrize(
    ("setup", "trainer", "expected"),
    [
        ("[set -e, 'false']", "", "most likely: a command in the profile's setup failed"),
        ("[set -e]", "print('x', flush=True); raise SystemExit(1)", "no known cause; of its log:\n"),
        ("['false']", "raise SystemExit(1)", "no known cause; its log is empty: "),
    ],
)
def test_a_setup_that_ends_the_script_without_a_word_is_told(
    folder: Path, command: Command, setup: str, trainer: str, expected: str
) -> None:
    (folder / "p.yaml").write_text(
        f'name: p\nurl: ""\nchecked: 2026-11-20\nscheduler: none\nsetup: {setup}\n'
    )
    (folder / "train.py").write_text(trainer)
    assert command("submit", "cpu", "--profile", "./p.yaml", "--yes", "--trainer", "train.py").status == 1
    said = command("diagnose", "cpu").out
    assert expected in said
    assert (".slurm:" in said and "with `set -x` in setup" in said) is ("most likely" in expected)


def test_the_start_of_a_job_is_what_its_script_prints() -> None:
    (said,) = re.findall(r'echo "(Job \$.*)"', (REPOSITORY / "tests/golden/ddp-msu.sh").read_text())
    values = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]", "restarts": "1", "max_restarts": "10"}
    assert JOB_START.fullmatch(Template(said).substitute(values))


def test_an_exception_is_told_with_its_rank_file_and_line(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 256, f"{RAISED}\n{PEER}\n".encode())
    lines = command("diagnose", "ddp").out.splitlines()
    assert lines[1] == "most likely: ValueError: 3 is not a number (/w/train.py:12, rank 3)"
    assert lines[2].endswith("ddp-4711.out:6: ValueError: 3 is not a number")


def test_an_empty_log_is_told_as_such(folder: Path, programs: Path, command: Command) -> None:
    run_of(folder, programs, "FAILED", 256)
    shown = command("diagnose", "ddp").out
    assert f"no known cause; its log is empty: {folder}/runs/ddp/ddp-4711.out\n" in shown
    assert "set -x" in shown


def test_a_job_of_plain_sbatch_has_no_log_of_a_program(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 256)
    (folder / "slurm-4999.out").write_text("trained\n")
    assert command("logs", "slurm-4999.out").out == "trained\n"
    refused = command("logs", "slurm-4999.out", "--program", "server")
    assert (refused.out, refused.status) == ("", 2)
    assert "one log for all of its programs\n  at:  --program\n  fix: leave --program out\n" in refused.err


def test_a_log_and_a_script_stand_for_their_run(folder: Path, programs: Path, command: Command) -> None:
    run_of(folder, programs, "FAILED", 256, OOM.encode())
    said = command("diagnose", "ddp").out
    (folder / "runs/ddp/job.slurm").touch()
    (folder / "runs/ddp/job-4711.slurm").touch()
    (folder / "other.sh").touch()
    for name in ("ddp-4711.out", "job.slurm", "job-4711.slurm"):
        assert command("diagnose", f"runs/ddp/{name}").out == said
        assert command("logs", f"{folder}/runs/ddp/{name}").out == command("logs", "ddp").out
    assert "Slurm knows no job of other.sh" in command("diagnose", "other.sh").err


def test_a_finished_script_stands_for_its_newest_run(folder: Path, programs: Path, command: Command) -> None:
    run_of(folder, programs, "FAILED", 256, OOM.encode())
    (folder / "a.sh").touch()
    (record,) = records(folder / "runs/ddp")
    write_accepted(folder / "runs/ddp", replace(record, script=str(folder / "a.sh")))
    assert command("diagnose", "a.sh").out == command("diagnose", "ddp").out


def test_logs_of_an_empty_log_says_so(folder: Path, programs: Path, command: Command) -> None:
    run_of(folder, programs, "RUNNING", 0)
    shown = command("logs", "ddp")
    assert (shown.status, shown.out, "the log is empty so far" in shown.err) == (0, "", True)


def test_a_job_that_was_requeued_has_started(folder: Path, programs: Path, command: Command) -> None:
    run_of(folder, programs, "CANCELLED", 0, b"one\n", restartcnt="1", RestartCnt="1", NodeList="")
    assert "never started" not in command("status").out


STARTS = [f"Job 4711 on n1, restart {count} of at most 10" for count in range(3)]
NODE = "slurmstepd-n1: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-26T21:52:13 DUE TO NODE FAILURE ***"
AGAIN = NODE.replace("NODE FAILURE", "JOB REQUEUE")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("state", "log", "expected"),
    [
        ("RUNNING", [STARTS[0], NODE, STARTS[1], "loss 0.5"], "a node of the job failed"),
        ("RUNNING", [STARTS[0], NODE, STARTS[1], AGAIN, STARTS[2]], "it was put back into the queue"),
        ("PENDING", [STARTS[0], NODE], "a node of the job failed"),
        ("CANCELLED", [STARTS[0], AGAIN], "it was put back into the queue"),
        ("CANCELLED", [STARTS[0], NODE, STARTS[1], CANCELLED], "a node of the job failed"),
        ("RUNNING", [STARTS[0], "loss 0.5", STARTS[1]], ""),
        ("CANCELLED", [STARTS[0], CANCELLED], ""),
    ],
)
def test_why_a_job_was_started_again_is_told(
    folder: Path, programs: Path, command: Command, state: str, log: list[str], expected: str
) -> None:
    run_of(folder, programs, state, 0, "\n".join(log).encode(), RestartCnt=str(len(log) // 2))
    for _ in range(2):  # squeue is not asked again about a job that has ended
        first = command("diagnose", "ddp").out.splitlines()[0]
        assert first.partition("; the start before: ")[2] == expected
        shown = [line.strip() for line in command("status", "ddp").out.splitlines()]
        assert [line for line in shown if line.startswith("start before")] == (
            [f"start before  {expected}"] if expected else []
        )


def test_slurms_database_knows_how_the_start_before_ended(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "CANCELLED", 0)
    fakes.squeue(programs, [])
    recorded = json.loads((FIXTURES / "sacct_22.05.json").read_text())
    values = ({"State": "NODE_FAIL", "NodeList": "n7"}, {"State": "CANCELLED by 0"})
    recorded["runs"] = [
        [({"JobID": "4711"} | each).get(name, "") for name in recorded["fields"]] for each in values
    ]
    (folder / "sacct.json").write_text(json.dumps(recorded))
    fakes.sacct(programs, folder / "sacct.json")
    assert command("diagnose", "ddp").out.splitlines()[0] == (
        "ddp: job 4711 cancelled by root; the start before: ended by the failure of a node (n7)"
    )
    assert "never started" not in command("status", "ddp").out


NO_GPU = b"RuntimeError: No CUDA GPUs are available\n"


@pytest.mark.parametrize(
    ("mode", "options", "state", "log", "typed"),
    [
        ("ddp", "--mem=3000M", "OUT_OF_MEMORY", b"", "--mem 6000M"),
        ("ddp", "--mem=48G", "OUT_OF_MEMORY", b"", "--mem 96G"),
        ("ddp", "--mem=0", "OUT_OF_MEMORY", b"", "--mem 64G"),
        ("ddp", "--time=5:00:00", "TIMEOUT", b"", "--time 0-10:00:00"),
        ("ddp", "--nodes=1", "TIMEOUT", b"", "--time 8:00:00"),
        ("cpu", "--nodes=1", "FAILED", NO_GPU, "sbatchgen resume ddp --set mode=single"),
        ("ddp", "--nodes=1", "FAILED", NO_GPU, "sbatchgen resume ddp --gpus-per-node 1"),
    ],
)
def test_a_fix_asks_for_twice_what_the_job_had(
    folder: Path,
    programs: Path,
    command: Command,
    mode: str,
    options: str,
    state: str,
    log: bytes,
    typed: str,
) -> None:
    run_of(folder, programs, state, 256 if state == "FAILED" else 0, log)
    run_dir = folder / "runs/ddp"
    (record,) = records(run_dir)
    write_accepted(run_dir, replace(record, mode=mode))
    submitted_scripts.keep_script(run_dir, "4711", f"#!/bin/bash\n#SBATCH {options}\nsrun true\n".encode())
    fix = command("diagnose", "ddp").out
    assert f"{typed}\n" in fix or f"{typed} " in fix
