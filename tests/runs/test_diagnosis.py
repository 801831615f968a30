"""Why runs fail: the words of real programs, and what healthy ones print."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from string import Template

import pytest
import yaml

from sbatchgen.runs import log
from sbatchgen.runs.diagnosis import START
from sbatchgen.runs.failure import LONGEST, causes, failures, look_bad
from sbatchgen.runs.index import Index, place
from sbatchgen.runs.record import Record, keep
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import FIXTURES, REPOSITORY, Command
from tests.jobs.jobs import SBATCHGEN
from tests.slurm import fakes

RECORDED = yaml.safe_load((FIXTURES / "failures.yaml").read_text())


def found(text: str, ended: str = "") -> list[str]:
    """The causes that a log tells."""
    return [one.cause for one in failures(ended, enumerate(text.splitlines(), 1), "ddp")]


# --- recorded words


@pytest.mark.parametrize("one", RECORDED["seen"], ids=lambda one: one["cause"])
def test_what_programs_print_is_known(one: dict[str, str]) -> None:
    first = failures("", enumerate(one["log"].splitlines(), 1), "ddp")[0]
    assert first.cause == one["cause"]
    assert (first.means, first.says) > ("", "")
    assert not re.search(r"[{}]", first.means + first.fix.replace("MASTER_PORT=$((", ""))


@pytest.mark.parametrize("one", RECORDED["harmless"], ids=lambda one: one["from"][:30])
def test_what_healthy_programs_print_is_no_failure(one: dict[str, str]) -> None:
    assert found(one["log"]) == []


def test_each_cause_has_its_words_and_its_source() -> None:
    """Recorded ones, or ones that a test below makes anew."""
    tested = (
        {one["cause"] for one in RECORDED["seen"]}
        | {cause for _, cause in MADE}
        | {cause for cause, _ in ENDED}
        | {cause for *_, cause in JOBS.values()}
    )
    assert {known.cause for known in causes()} == tested - {"own-words"}
    assert all(known.source and (known.log or known.ended) for known in causes())
    assert len({known.cause for known in causes()}) == len(causes())


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
    (one,) = failures(ended, [], "ddp")
    assert (one.cause, one.ended, one.line) == (cause, ended, 0)


@pytest.mark.parametrize("ended", ["FAILED 1:0", "FAILED 2:0", "FAILED 143:0", "FAILED 0:15", ""])
def test_an_exit_status_alone_is_no_cause(ended: str) -> None:
    assert failures(ended, [], "ddp") == []


# --- which of several

OOM = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
PEER = (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
ABORTED = "E1122 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6) local_rank: 1"
LIMIT = "slurmstepd: error: *** JOB 3 ON n1 CANCELLED AT 2026-11-22T12:00:28 DUE TO TIME LIMIT ***"


@pytest.mark.parametrize(
    ("text", "ended", "expected"),
    [
        (f"{PEER}\n{OOM}\n{PEER}", "FAILED 1:0", ["gpu-memory", "peer-gone"]),
        (f"{PEER}\n{OOM}", "NODE_FAIL 0:0", ["node-failure", "gpu-memory", "peer-gone"]),
        (f"{OOM}\n{LIMIT}", "TIMEOUT 0:15", ["gpu-memory", "time-limit"]),
        (f"{PEER}\n{LIMIT}", "TIMEOUT 0:15", ["time-limit", "peer-gone"]),
        (LIMIT, "FAILED 1:0", []),  # of an earlier start
        (LIMIT, "", ["time-limit"]),
        (f"error: no data folder /x\n{OOM}", "FAILED 1:0", ["gpu-memory", "own-words"]),
        (f"{OOM}\nImportError: x\n{OOM}", "FAILED 1:0", ["gpu-memory", "import"]),
        ("srun: error: n1: task 0: Out Of Memory", "OUT_OF_MEMORY 0:125", ["host-memory"]),
    ],
)
def test_the_likeliest_comes_first(text: str, ended: str, expected: list[str]) -> None:
    assert found(text, ended) == expected


def test_a_cause_is_told_by_its_first_line_and_by_slurm() -> None:
    text = "one\rtwo 50%\rsrun: error: n1: task 0: Out Of Memory\nsrun: error: n1: task 1: Out Of Memory"
    (one,) = failures("OUT_OF_MEMORY 0:125", enumerate(text.split("\n"), 1), "ddp")
    assert (one.ended, one.line, one.says) == (
        "OUT_OF_MEMORY 0:125",
        1,
        "srun: error: n1: task 0: Out Of Memory",
    )


def test_an_own_error_is_shown_with_its_fix() -> None:
    (one,) = failures("", [(7, "error: no weights found; at: runs/x; fix: --resume off")], "ddp")
    assert (one.means, one.fix, one.line) == ("no weights found (runs/x)", "--resume off", 7)


# --- words made anew: Python, torch, gloo and bash on this machine

TORCH = """
import os, sys, traceback
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder = sys.argv[1]

class Unused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.a(x)

def unused():
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    model = DistributedDataParallel(Unused())
    for _ in range(2):
        model(torch.zeros(1, 2)).sum().backward()

def damaged():
    torch.save({"a": torch.zeros(1000)}, f"{folder}/a.pt")
    os.truncate(f"{folder}/a.pt", os.stat(f"{folder}/a.pt").st_size // 2)
    torch.load(f"{folder}/a.pt")

def global_():
    torch.save(timedelta(1), f"{folder}/b.pt")
    torch.load(f"{folder}/b.pt")

def port():
    store = dist.TCPStore("127.0.0.1", 0, 1, True)
    dist.TCPStore("127.0.0.1", store.port, 1, True)

def interface():
    dist.ProcessGroupGloo.create_device(interface="nope0")

def files():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
    [open("/dev/null") for _ in range(30)]

for make in (
    lambda: torch.zeros(1).cuda(),
    lambda: torch.zeros(1 << 60),
    lambda: bytearray(1 << 62),
    lambda: torch.nn.Linear(2, 3).load_state_dict({"module.weight": torch.zeros(3, 2)}),
    damaged, global_, port, interface, unused,
    lambda: dist.TCPStore("127.0.0.1", 1, 2, False, timedelta(milliseconds=10)),
    lambda: dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(milliseconds=10)),
    lambda: dist.init_process_group("gloo", init_method="env://"),
    lambda: open("/nope/file"),
    lambda: __import__("nosuchmodule"),
    lambda: exec("from torch import nosuchname"),
    lambda: __import__("ctypes").CDLL("libnosuch.so.1"),
    files,
):
    try:
        dist.is_initialized() and dist.destroy_process_group()
        make()
    except BaseException:
        text = traceback.format_exc()
    print("===", text, sep="\\n", flush=True)
"""
BASH = r"""
nosuchcommand
printf 'echo a\n\r\n' >dos.sh; bash dos.sh
printf '#!/nope/python\n' >bad.sh; chmod +x bad.sh; ./bad.sh
printf '\177ELFx' >elf; chmod +x elf; ./elf
touch plain; ./plain
python3 -c 'import argparse; argparse.ArgumentParser("train.py").parse_args()' --lr
python3 -m nosuchmodule
"""
MADE = (
    ("AssertionError: Torch not compiled", "cpu-torch"),
    ("DefaultCPUAllocator", "host-memory"),
    ("MemoryError", "host-memory"),
    ("loading state_dict", "checkpoint-mismatch"),
    ("PytorchStreamReader", "checkpoint-damaged"),
    ("Weights only load failed", "weights-only"),
    ("EADDRINUSE", "address-in-use"),
    ("nope0", "gloo-interface"),
    ("finished reduction", "unused-parameters"),
    ("trying to connect", "meeting"),
    ("waiting for clients", "meeting"),
    ("env:// rendezvous", "world-variables"),
    ("'/nope/file'", "file-missing"),
    ("nosuchmodule", "package-missing"),
    ("nosuchname", "import"),
    ("libnosuch.so.1", "shared-library"),
    ("Too many open files", "open-files"),
    ("nosuchcommand: command not found", "command-not-found"),
    (r"$'\r'", "dos-lines"),
    ("bad.sh", "interpreter"),
    ("Exec format error", "exec-format"),
    ("Permission denied", "permission"),
    ("train.py: error", "arguments"),
)


@pytest.mark.slow
def test_what_programs_of_this_machine_print_is_known(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(TORCH)
    (tmp_path / "b.sh").write_text(BASH)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    said = ""
    for command in ([sys.executable, "made.py", "."], ["bash", "b.sh"]):
        environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LC_ALL": "C"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        said += done.stdout + done.stderr
    for words, cause in MADE:
        lines = [line for line in said.splitlines() if words in line and not line.startswith("    ")]
        assert cause in found("\n".join(lines)), (words, lines, said)


# --- logs of any kind


def test_the_start_of_a_job_is_what_its_script_prints() -> None:
    (said,) = re.findall(r'echo "(Job \$.*)"', (REPOSITORY / "tests/golden/ddp-msu.sh").read_text())
    values = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]", "restarts": "1", "max_restarts": "10"}
    assert START.fullmatch(Template(said).substitute(values))


def test_a_big_log_is_read_from_its_end_with_true_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 99 + b"\n" + b"a line of forty characters in all, yes\n" * 200_000 + b"last\n")
    lines = [*log.end(path)]
    assert lines[-1] == (200_002, "last")
    assert len(lines) < 60_000
    with path.open("r+b") as file:
        file.truncate(4 << 30)  # of zeros, which take no place
    assert {number for number, _ in log.end(path)} == {0}


def test_no_log_takes_long(tmp_path: Path) -> None:
    """Each text begun again and again, so that no pattern takes time squared; measured against plain lines."""

    def seconds(lines: list[str]) -> float:
        start = time.process_time()
        failures("", enumerate(lines, 1), "ddp")
        look_bad([*enumerate(lines, 1)])
        return time.process_time() - start

    starts = ["RuntimeError: [", ": $'", "OSError: ", "a.", "[", "1: ", "error: ; at: ", "srun: error: n1: tasks ", " ",
              "slurm_script: ", "slurmstepd: error: *** JOB ", "WorkNCCL(OpType=", "x: error writing ", "Error", "\r"]  # fmt: skip
    plain = seconds([("Epoch 3: step 100 of 200, loss 0.123 " * 40)[:LONGEST]] * 600)
    hostile = seconds([start * (LONGEST // len(start)) for start in starts] * 40)
    assert hostile < 50 * plain + 1


HOSTILE = b"error: \x1b[2Ja|b\xff\xfe\t\x00; fix: \x9b31m\n\nValueError: \x1b]0;x\x07\n"


def test_no_words_of_a_log_reach_the_terminal_as_they_are(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "FAILED", 256, HOSTILE)
    shown = command("diagnose", "ddp")
    assert shown.status == 0, shown.err
    assert not {"\x1b", "\x00", "\x9b", "\x07"} & set(shown.out + shown.err)
    assert json.loads(command("diagnose", "ddp", "--format", "json").out)["causes"][0]["cause"] == "own-words"


# --- the command


@pytest.fixture
def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs that stand for Slurm's."""
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return folder / "bin"


def run_of(folder: Path, programs: Path, state: str, status: int, text: bytes = b"", **more: str) -> None:
    """A run called ddp with one job, whose state and log are these; Slurm has no database."""
    run_dir = folder / "runs" / "ddp"
    run_dir.mkdir(parents=True)
    with closing(Index(place(os.environ))) as index:
        index.begin("c0ffee", run_dir, "ddp", shared=False)
        index.accepted("c0ffee", "4711")
    about = Record(key="c0ffee", run="ddp", shared=False, name="ddp", job="4711", folder=str(folder))
    keep(run_dir, replace(about, log=f"{run_dir}/ddp-%j.out"))
    (run_dir / "ddp-4711.out").write_bytes(text)
    fakes.squeue(programs, [{"JobArrayID": "4711", "State": state, "exit_code": str(status)} | more])
    fakes.failing(programs, "sacct", "Slurm accounting storage is disabled")


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
    assert lines[3].startswith("  fix: a smaller batch")
    assert len(lines) == 4
    said = json.loads(command("diagnose", "4711", "--format", "json").out)
    assert (said["schema"], said["run"], said["failed"], said["log"]) == (1, "ddp", True, str(place_))
    assert [(one["cause"], one["rank"], one["line"]) for one in said["causes"]] == [
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
    told = [line for line in lines[1:] if not line.startswith(" ")]
    assert len(told) == len(expected), lines
    assert all(line.startswith(words) for line, words in zip(told, expected, strict=True)), lines


def test_what_is_not_known_is_not_guessed(folder: Path, programs: Path, command: Command) -> None:
    run_of(folder, programs, "FAILED", 512, b"one\nValueError: 3 is no number\nan error occurred\nbye\n")
    log_ = folder / "runs/ddp/ddp-4711.out"
    assert command("diagnose", "ddp").out.splitlines() == [
        "ddp: job 4711 failed: exit status 2",
        "no known cause; of its log:",
        f"  {log_}:2: ValueError: 3 is no number",
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
    keep(run_dir, replace(about, log=f"{run_dir}/%A_%a.out"))
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
    keep(run_dir, replace(about, command=("sbatchgen", "render", "ddp"), log=f"{run_dir}/%A_%a.out"))
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
    keep(run_dir, replace(about, first=1000, log=f"{run_dir}/%A_%a.out"))
    keep(run_dir, replace(about, job="4710", array="0-999", log=f"{run_dir}/%A_%a.out"))
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
    assert "most likely: somebody has cancelled it\n" in shown.out
    assert "warning: Slurm's controller does not answer" in shown.err


def test_of_a_job_that_slurm_has_forgotten_the_log_is_read(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "RUNNING", 0, b"ValueError: x\n")
    fakes.squeue(programs, [])
    assert command("diagnose", "ddp").out == "ddp: job 4711 ended: no longer in the queue\n"
    (folder / "runs/ddp/ddp-4711.out").write_text(OOM)
    assert "most likely: there is not enough memory on the GPU\n" in command("diagnose", "ddp").out


def test_who_cancelled_a_job_is_told_where_slurm_knows(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "CANCELLED", 15)
    recorded = json.loads((FIXTURES / "sacct_22.05.json").read_text())
    values = {"JobID": "4711", "State": "CANCELLED by 0", "ExitCode": "0:15"}
    recorded["jobs"] = [[values.get(name, "") for name in recorded["fields"]]]
    (folder / "sacct.json").write_text(json.dumps(recorded))
    fakes.sacct(programs, folder / "sacct.json")
    assert command("diagnose", "ddp").out.startswith("ddp: job 4711 cancelled by root\n")
    assert command("status", "ddp").err == ""


def test_a_run_without_slurm_is_diagnosed_alike(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("import nosuchmodule\n")
    assert command("submit", "cpu", "--yes", "--trainer", "train.py").status == 1
    assert "most likely: this Python has no module 'nosuchmodule'\n" in command("diagnose", "cpu").out
    assert command("diagnose", "nobody").status == 2


# --- a real Slurm

JOBS = {  # the script's options and body, and what is found
    "import": ("", "python3 -c 'import nosuchmodule'", "package-missing"),
    "stderr": ("--error=err-%j", "nosuchcommand", "command-not-found"),
    "gres": ("", "srun --gpus-per-node=1 true", "step-gres"),
    "size": ("", "srun -N3 -n3 true", "step-size"),
    "shell": ("", "srun ./nothere", "command-not-found"),
    "kill": ("", "kill -9 $$", "killed"),
    "busy": (
        "--mem=100M",
        "srun sleep 60 & sleep 1; srun --immediate=1 true || { kill %1; exit 1; }",
        "step-busy",
    ),
    "cancelled": ("--hold", "true", "cancelled"),
    "folder": ("--hold --output=gone/log/%j", "true", "log-folder"),
    "moved": ("--chdir=/nope --output={work}/%x-%j", "exit 1", "working-folder"),
    "node": ("--no-requeue --nodelist=n4", "sleep 600", "node-failure"),
}


@pytest.mark.slow
def test_what_a_real_slurm_makes_of_failures_is_known(slurm_root: Path | None) -> None:
    with Cluster(visible=VISIBLE, root=slurm_root) as cluster:
        work = cluster.home / "work"

        def sbatchgen(*arguments: str) -> subprocess.CompletedProcess[str]:
            return cluster.run([SBATCHGEN, *arguments], cwd=work)

        jobs = {}
        for name, (options, body, _) in JOBS.items():
            cluster.put(
                f"work/{name}.sh",
                f"#!/bin/bash\n#SBATCH -J {name} -t 5 {options.format(work=work)}\n{body}\n",
            )
            done = sbatchgen("submit", f"{name}.sh", "--yes")
            assert done.returncode == 0, done.stderr
            jobs[name] = done.stdout.strip()
        shutil.rmtree(work / "gone")
        (work / "gone").touch()  # where no release can make a folder
        cluster.run(["scontrol", "release", jobs["folder"]], check=True)
        cluster.run(["scancel", jobs["cancelled"]], check=True)
        cluster.wait(jobs["node"], ["RUNNING"])
        cluster.stop_node("n4", declare=True)
        for name, job in jobs.items():
            cluster.wait(job)
            said = json.loads(sbatchgen("diagnose", name, "--format", "json").stdout)
            assert (said["failed"], said["problems"]) == (True, []), said
            assert said["causes"][0]["cause"] == JOBS[name][2], said
        said = sbatchgen("diagnose", "size").stdout
        assert re.search(r"job \d+ failed: exit status 1\nmost likely: a step asked for more than", said)
