"""Why runs fail: recorded words of real programs, and of healthy ones."""

from __future__ import annotations

import re
import time

import pytest
import yaml

from sbatchgen.jobs.runs.failure import (
    MAX_PART_CHARS,
    FixFacts,
    failures,
    place_of_exception,
    suspicious_lines,
    unexplained_exception,
)
from tests.conftest import FIXTURES

RECORDED = yaml.safe_load((FIXTURES / "failures.yaml").read_text())


def found(text: str, ended: str = "") -> list[str]:
    """The causes that a log tells."""
    return [failure.cause for failure in failures(ended, enumerate(text.splitlines(), 1), "ddp")]


@pytest.mark.parametrize("recorded", RECORDED["seen"], ids=lambda recorded: recorded["cause"])
def test_what_programs_print_is_known(recorded: dict[str, str]) -> None:
    first = failures("", enumerate(recorded["log"].splitlines(), 1), "ddp")[0]
    assert first.cause == recorded["cause"]
    assert (first.means, first.says) > ("", "")
    assert recorded.get("says", "") in first.means
    assert not re.search(r"[{}]", first.means + first.fix.replace("MASTER_PORT=$((", ""))


@pytest.mark.parametrize("recorded", RECORDED["harmless"], ids=lambda recorded: recorded["from"][:30])
def test_what_healthy_programs_print_is_no_failure(recorded: dict[str, str]) -> None:
    assert found(recorded["log"]) == []


# --- how Slurm says that a job ended

ENDED = (
    ("log-folder", "FAILED 0:53"),
    ("node-failure", "NODE_FAIL 0:0"),
    ("boot-failure", "BOOT_FAIL 0:0"),
    ("preempted", "PREEMPTED 0:15"),
    ("cancelled", "CANCELLED 0:15"),
    ("stopped", "FAILED 75:0"),
    ("time-limit", "TIMEOUT 0:15"),
    ("time-limit", "DEADLINE 0:0"),
    ("host-memory", "OUT_OF_MEMORY 0:125"),
    ("killed", "FAILED 0:9"),
    ("killed", "FAILED 137:0"),
    ("crashed", "FAILED 139:0"),
)


@pytest.mark.parametrize(("cause", "ended"), ENDED)
def test_how_a_job_ended_tells_a_cause(cause: str, ended: str) -> None:
    """State, exit code and signal: real ones of Slurm 22.05, but for memory, nodes and deadlines."""
    (failure,) = failures(ended, [], "ddp")
    assert (failure.cause, failure.ended, failure.line) == (cause, ended, 0)


@pytest.mark.parametrize("ended", ["FAILED 1:0", "FAILED 2:0", "FAILED 143:0", "FAILED 0:15", ""])
def test_an_exit_status_alone_is_no_cause(ended: str) -> None:
    assert failures(ended, [], "ddp") == []


# --- which of several

OOM = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
WATCHDOG = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"
PEER = (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
ABORTED = "E1122 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6) local_rank: 1"
NO_COMMAND = "/spool/slurm_script: line 21: nvidia-smi: command not found"  # after which bash continues
TERMINATE = "terminate called without an active exception"
SIGNALLED = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 14869 got signal: 15"
LIMIT = "slurmstepd: error: *** JOB 3 ON n1 CANCELLED AT 2026-11-22T12:00:28 DUE TO TIME LIMIT ***"


@pytest.mark.parametrize(
    ("text", "ended", "expected"),
    [
        (f"{PEER}\n{OOM}\n{PEER}", "FAILED 1:0", ["gpu-memory", "peer-gone"]),
        (f"{PEER}\n{OOM}", "NODE_FAIL 0:0", ["node-failure", "gpu-memory", "peer-gone"]),
        (f"{OOM}\n{LIMIT}", "TIMEOUT 0:15", ["gpu-memory", "time-limit"]),
        (f"{PEER}\n{LIMIT}", "TIMEOUT 0:15", ["time-limit", "peer-gone"]),
        (f"{LIMIT}\n{OOM}\n{SIGNALLED}", "TIMEOUT 0:15", ["time-limit", "torchrun-signal"]),
        (f"{SIGNALLED}\n{LIMIT}", "TIMEOUT 0:15", ["time-limit", "torchrun-signal"]),
        (f"{LIMIT}\n{OOM}", "FAILED 1:0", ["gpu-memory"]),  # of an earlier start, which is not over yet
        (LIMIT, "FAILED 1:0", []),  # of an earlier start
        (LIMIT, "", ["time-limit"]),
        (f"error: no data folder /x\n{OOM}", "FAILED 1:0", ["gpu-memory", "own-words"]),
        (f"{NO_COMMAND}\nerror: no environment at /x", "FAILED 1:0", ["own-words", "command-not-found"]),
        (f"{OOM}\nImportError: x\n{OOM}", "FAILED 1:0", ["gpu-memory", "import"]),
        (
            f"{TERMINATE}\nRank 3 of the training ended by SIGABRT",
            "FAILED 134:0",
            ["abort-at-exit", "crashed"],
        ),
        (WATCHDOG, "FAILED 134:0", ["collective-timeout", "crashed"]),
        (f"{PEER}\nsrun: error: n2: task 0: Killed", "FAILED 1:0", ["killed", "peer-gone"]),
        (f"{PEER}\nRank 1 of the training ended by SIGKILL", "FAILED 1:0", ["killed", "peer-gone"]),
        ("srun: error: n1: task 0: Out Of Memory", "OUT_OF_MEMORY 0:125", ["host-memory"]),
    ],
)
def test_the_likeliest_comes_first(text: str, ended: str, expected: list[str]) -> None:
    assert found(text, ended) == expected


def test_a_cause_is_told_by_its_first_line_and_by_slurm() -> None:
    text = "one\rtwo 50%\rsrun: error: n1: task 0: Out Of Memory\nsrun: error: n1: task 1: Out Of Memory"
    (failure,) = failures("OUT_OF_MEMORY 0:125", enumerate(text.split("\n"), 1), "ddp")
    assert (failure.ended, failure.line, failure.says) == (
        "OUT_OF_MEMORY 0:125",
        1,
        "srun: error: n1: task 0: Out Of Memory",
    )


@pytest.mark.parametrize(
    ("text", "cause", "means"),
    [
        (
            "/usr/bin/python3: can't open file '/w/trian.py': [Errno 2] No such file",
            "program-missing",
            "/w/trian.py",
        ),
        (
            "ModuleNotFoundError: No module named 'cuda.bindings'; 'cuda' is not a package",
            "own-module",
            "cuda.py",
        ),
        (
            "AttributeError: partially initialized module 'random' has no 'x' (most likely due to a circular import)",
            "own-module",
            "random.py",
        ),
    ],
)
def test_a_missing_program_and_a_hidden_package_are_named(text: str, cause: str, means: str) -> None:
    (failure,) = failures("FAILED 1:0", [(1, text)], "ddp")
    assert (failure.cause, means in failure.means) == (cause, True)


RAISED = """[rank3]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank3]:   File "/w/train.py", line 12, in <module>
[rank1]:   File "/w/other.py", line 99, in <module>
[rank3]:   File "/v/lib/python3.11/site-packages/torch/nn.py", line 7, in forward
[rank3]: ValueError: 3 is not a number"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (RAISED, "/w/train.py:12, rank 3"),
        (RAISED.replace("[rank3]:", "2:").replace("[rank1]:", "0:"), "/w/train.py:12, rank 2"),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError', "a.py:1"),
        (
            '  File "/w/train.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax',
            "/w/train.py:1",
        ),
        ('1:   File "a.py", line 2\n1:     x\n1: IndentationError: unexpected indent', "a.py:2, rank 1"),
        ("ValueError: 3 is not a number", ""),
        ("", ""),
    ],
)
def test_where_an_exception_was_raised(text: str, place: str) -> None:
    lines = [*enumerate(text.splitlines(), 1)]
    assert place_of_exception(lines, len(lines)) == place


BY_SRUN = """Traceback (most recent call last):
  File "/w/train.py", line 2, in <module>
srun: error: n2: task 0: Exited with exit code 1
  File "/usr/lib/python3.11/json/decoder.py", line 353, in raw_decode
json.decoder.JSONDecodeError: Expecting property name"""
OF_LOADER = """Traceback (most recent call last):
  File "/w/train.py", line 8, in <module>
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/w/train.py", line 6, in __getitem__
ValueError: cannot identify image file"""
OF_PEER = """[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 4, in <module>
[rank0]: torch.distributed.DistNetworkError: Connection reset by peer
[rank1]:   File "/w/train.py", line 9, in <module>
[rank1]: IndexError: list index out of range"""
KILLED = f"{OF_PEER[: OF_PEER.index('[rank1]:   ')]}srun: error: n4: task 1: Exited with exit code 137"


@pytest.mark.parametrize(
    ("text", "says", "place"),
    [
        (BY_SRUN, "json.decoder.JSONDecodeError: Expecting property name", "/w/train.py:2"),
        (OF_LOADER, "ValueError: cannot identify image file", "/w/train.py:6"),
        (OF_PEER, "IndexError: list index out of range", "/w/train.py:9, rank 1"),
    ],
)
def test_the_exception_that_ended_a_program_is_found(text: str, says: str, place: str) -> None:
    lines = [*enumerate(text.splitlines(), 1)]
    exception = unexplained_exception(lines)
    assert exception
    assert (exception[1], place_of_exception(lines, exception[0])) == (says, place)


def test_what_follows_from_a_killed_rank_is_no_cause_of_its_own() -> None:
    lines = [*enumerate(KILLED.splitlines(), 1)]
    assert unexplained_exception(lines) is None
    assert failures("FAILED 137:0", lines, "ddp")[0].cause == "killed"


def test_an_own_error_is_shown_with_its_fix() -> None:
    (failure,) = failures("", [(7, "error: no weights found; at: runs/x; fix: --resume off")], "ddp")
    assert (failure.means, failure.fix, failure.line) == ("no weights found (runs/x)", "--resume off", 7)


def test_no_log_takes_long() -> None:
    """Each text begun again and again, so that no pattern takes time squared; measured against plain lines."""

    def seconds(lines: list[str]) -> float:
        start = time.process_time()
        failures("", enumerate(lines, 1), "ddp")
        suspicious_lines([*enumerate(lines, 1)])
        return time.process_time() - start

    starts = ["RuntimeError: [", ": $'", "OSError: ", "a.", "[", "1: ", "error: ; at: ", "srun: error: n1: tasks ", " ",
              "slurm_script: ", "slurmstepd: error: *** JOB ", "WorkNCCL(OpType=", "x: error writing ", "Error", "\r"]  # fmt: skip
    plain = seconds([("Epoch 3: step 100 of 200, loss 0.123 " * 40)[:MAX_PART_CHARS]] * 600)
    hostile = seconds([start * (MAX_PART_CHARS // len(start)) for start in starts] * 40)
    assert hostile < 50 * plain + 1


def test_the_last_words_are_shown_before_those_of_srun() -> None:
    log = [
        (1, "device cuda:0"),
        (2, "no checkpoint given"),
        (3, "srun: error: n2: task 0: Exited with exit code 1"),
    ]
    assert suspicious_lines(log) == log


def test_the_exception_is_shown_before_the_lines_of_srun_that_follow() -> None:
    crash = ["Traceback (most recent call last):", "ValueError: no such layer: conv9", "stopped"]
    srun = [f"srun: error: n{number}: task {number}: Exited with exit code 1" for number in range(9)]
    shown = [text for _, text in suspicious_lines([*enumerate([*crash, *srun], 1)])]
    assert shown == ["ValueError: no such layer: conv9", *srun[-4:]]


@pytest.mark.parametrize(
    ("has_gpus", "says"),
    [
        (True, "the job has GPUs, so something hides them"),
        (False, "--gpus-per-node 1"),
        (None, "ask for a GPU (--gpus-per-node)"),
    ],
)
def test_the_fix_of_no_gpu_is_that_of_the_job(has_gpus: bool | None, says: str) -> None:  # noqa: FBT001
    log = [(1, "RuntimeError: No CUDA GPUs are available")]
    (failure,) = failures("FAILED 1:0", log, "ddp", FixFacts(has_gpus=has_gpus))
    assert says in failure.fix
