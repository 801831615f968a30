"""The rank that hangs is named, with the line where it is; a run that computes is left alone."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from training.files import LOCK
from training.processes import hang, stacks
from training.processes.stacks import Look, place

from .forks import QUICKLY
from .trainers import HANGS_S, LAUNCHER_VARIABLES, ROOT, alive, wait_for

TRAINING = ROOT / "training"
LIBRARY = "/env/lib/python3.12/site-packages"
C10D = f"{LIBRARY}/torch/distributed/distributed_c10d.py"


class Job:
    """Launchers of the package with a trainer of the user's, whose folder is the current one."""

    def __init__(self, folder: Path) -> None:
        self.run_dir, self._folder = folder / "run", folder
        self.run_dir.mkdir()
        self.log = self.run_dir / "log"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, source: str, *launcher: str, **env: str) -> int:
        """Start a launcher; returns its process id."""
        (self._folder / "train.py").write_text(textwrap.dedent(source))
        known = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES and "SLURM" not in k}
        known |= {"RUN_DIR": str(self.run_dir), "HANG_AFTER": "2", "PYTHONPATH": str(QUICKLY)} | env
        call = [sys.executable, str(TRAINING / launcher[0]), *launcher[1:], "--", "train.py"]
        with self.log.open("ab") as log:
            self.started.append(subprocess.Popen(call, cwd=self._folder, env=known, stdout=log, stderr=log))
        return self.started[-1].pid

    def report(self) -> dict[str, Any]:
        """What is said of it; empty so far."""
        path = self.run_dir / hang.REPORT
        report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return report

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.started:
            below = list(stacks._below(process.pid))
            for pid in (process.pid, *below):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.end()


def rank(number: int, call: str = "all_reduce", at: str = "train.py:61", **more: Any) -> dict[str, Any]:
    about = {"rank": number, "host": f"n{number}", "call": call, "at": at, "state": "S"}
    return about | {"still": True, "size": 4} | more


WAIT = [rank(0), rank(1), rank(3)]
THEY = "3 of 4 ranks wait in all_reduce (train.py:61); "


HERE = range(4)
STUCK = rank(2, "", "dataset.py:88")


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([*WAIT, rank(2, "", "dataset.py:88")], f"{THEY}rank 2 on n2 is in dataset.py:88"),
        ([*WAIT, rank(2, "", "data.py:7 of a loader")], f"{THEY}rank 2 on n2 is in data.py:7 of a loader"),
        ([*WAIT, rank(2, "barrier", "train.py:70")], f"{THEY}rank 2 on n2 waits in barrier (train.py:70)"),
        ([*WAIT, rank(2, state="T")], f"{THEY}rank 2 on n2 is stopped by a signal"),
        (WAIT, f"{THEY}rank 2 has ended"),
        ([rank(0), rank(1), rank(2), rank(3)], "4 of 4 ranks wait in all_reduce (train.py:61)"),
        (
            [*(rank(number, "", "train.py:70", still=None, state="R") for number in (0, 1, 3)), STUCK],
            "3 of 4 ranks are in train.py:70; rank 2 on n2 is in dataset.py:88",
        ),
    ],
)
def test_the_line_names_the_rank_that_the_others_wait_for(ranks: list[dict[str, Any]], says: str) -> None:
    assert hang.sentence(ranks, HERE, 360.0) == f"{says} for 6 minutes"


SPIN = [rank(number, "", "train.py:70", still=None, state="R") for number in range(4)]  # CUDA's or NCCL's
NCCL = [rank(number, "barrier", still=None) for number in range(4)]


@pytest.mark.parametrize(
    ("ranks", "early", "late"),
    [
        ([*WAIT, rank(2, "", "val.py:5", still=False)], False, True),  # a validation, or an endless loop
        ([*WAIT, rank(2, "", "save.py:5", still=None, state="D")], False, True),
        ([*NCCL[:3], rank(3, "", "dataset.py:88")], True, True),
        ([*NCCL[:3], rank(3, "", "val.py:5", still=False)], False, False),
        (NCCL, False, False),  # also where the GPU computes
        (SPIN, False, False),
        ([*SPIN[:3], rank(3, "barrier")], False, True),  # one waits for all others
        ([rank(number, "", "val.py:5", still=False) for number in HERE], False, False),
        ([rank(number, "", "download.py:5") for number in HERE], False, False),
        ([rank(0, "synchronize", size=1)], False, False),  # no other rank
        ([rank(0, "", "end.py:5")], False, False),  # the others have ended
        ([rank(0, still=None), rank(1), rank(2), rank(3)], False, False),
        ([], False, False),
    ],
)
def test_a_run_that_may_be_healthy_is_left_alone(
    ranks: list[dict[str, Any]],
    early: bool,  # noqa: FBT001
    late: bool,  # noqa: FBT001
) -> None:
    assert bool(hang.sentence(ranks, HERE, 360.0)) is early
    assert bool(hang.sentence(ranks, HERE, 960.0, late=True)) is late


def test_a_rank_of_another_node_that_does_not_answer_is_named_late() -> None:
    assert not hang.sentence(WAIT, {0, 1}, 360.0)
    line = hang.sentence(WAIT, {0, 1}, 960.0, late=True)
    assert line == f"{THEY}rank 2 has ended or gives no answer for 16 minutes"


def look(work: float = 0.0, state: str = "S", line: str = "1") -> Look:
    return Look(state, [("/a.py", line, "f")], work, "")


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (look(), True),
        (look(9.0), True),  # a watchdog's wake-ups
        (look(11.0), None),  # it computes, reads or writes
        (look(state="R"), None),  # and waits for a CPU
        (look(state="D"), None),  # a checkpoint
        (look(line="2"), False),  # it imports from slow files
    ],
)
def test_a_rank_stands_still_that_does_nothing(last: Look, expected: bool | None) -> None:  # noqa: FBT001
    assert hang.stands_still([look(), look(), last], 10.0) is expected


def test_the_place_is_in_the_users_code() -> None:
    frames = [
        (C10D, "9", "all_gather"),
        (C10D, "5", "all_gather_object"),
        (f"{LIBRARY}/torch/distributed/c10d_logger.py", "83", "wrapper"),
        ("/home/a/train.py", "61", "step"),
        ("/home/a/train.py", "99", "<module>"),
    ]
    assert place(os.getpid(), frames) == ("all_gather_object", "train.py:61")
    library = ("/usr/lib/python3.12/queue.py", "1", "get")
    assert place(os.getpid(), [library, *frames[3:]]) == ("", "train.py:61")
    assert place(os.getpid(), [library]) == ("", "queue.py:1")
    assert place(os.getpid(), []) == ("", "")


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import subprocess as s\nwhile True: s.run(['true'])",
        "f = open('/dev/zero', 'rb')\nwhile True: f.read(1 << 20)",
        "import time\nwhile True: time.sleep(0.001)",
    ],
)
def test_a_process_that_computes_reads_or_is_woken_works(program: str) -> None:
    with subprocess.Popen([sys.executable, "-c", program]) as started:
        before = stacks.look(started.pid).work
        wait_for(lambda: abs(stacks.look(started.pid).work - before) > 2, "work")
        started.kill()


def test_a_process_that_sleeps_does_no_work() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"]) as started:
        seen = [0.0]

        def sleeps() -> bool:
            seen.append(stacks.look(started.pid).work)
            return seen[-2] == seen[-1] > 0

        wait_for(sleeps, "sleep")  # once it has started
        started.kill()


class Pauses:
    """A watcher of a job that writes at the end of each pause, on a clock that only these move."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self._end, self._log, self.said = 0.0, 0.0, run_dir / "log", [""]
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)
        monkeypatch.setattr(hang, "complain", self.said.append)
        self._watcher = hang.Watcher(run_dir, 0.0, spawns=False)
        monkeypatch.setattr(self._watcher, "_ask", lambda: self._ranks)
        self._watcher._ranks = dict.fromkeys(HERE, 1)

    def _sleep(self, seconds: float) -> None:
        if self.now < self._end <= self.now + seconds:
            with self._log.open("a") as log:
                log.write("a line\n")
        self.now += seconds

    def tick(self) -> None:
        """What else is done every 15 seconds."""

    def pause(self, where: str, seconds: float, *, still: bool) -> float:
        """Rank 2 is in a function for so long, and the others wait; after how many seconds it is named, or 0."""
        self._ranks = [*({**each, "in": "train.py step"} for each in WAIT)]
        self._ranks.append(rank(2, "", "a.py:1", still=still, **{"in": where}))
        began, alarms, named = self.now, len(self.said), 0.0
        self._end = began + seconds
        while self.now < self._end:
            self._sleep(15)
            self.tick()
            self._watcher._lead()
            named = named or (len(self.said) > alarms) * (self.now - began)
        return named


def test_steps_saves_and_validations_have_limits_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two minutes; what has taken longer may do so again, and one that computes may for sixteen minutes."""
    pauses = Pauses(tmp_path, monkeypatch)
    assert not pauses.pause("train.py step", 230, still=True)  # it is compiled
    for _ in range(6):
        assert not pauses.pause("train.py step", 20, still=True)
    for _ in range(2):
        assert not pauses.pause("train.py validate", 600, still=False)
    assert not pauses.pause("train.py save", 110, still=True)
    assert 120 <= pauses.pause("train.py step", 200, still=True) < 200
    for _ in range(6):
        pauses.pause("train.py step", 20, still=True)
    assert pauses.said[-1] == "hang: it continues"
    assert not pauses.pause("train.py validate", 1600, still=True)
    assert pauses.pause("train.py save", 999, still=True) >= 300


def test_the_first_step_may_take_twice_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 240 <= Pauses(tmp_path, monkeypatch).pause("train.py step", 999, still=True) < 300


def test_signs_of_life_of_the_run_lock_are_none_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled trainer touches its lock all the time, in a thread."""
    pauses, lock = Pauses(tmp_path, monkeypatch), tmp_path / LOCK
    lock.touch()
    monkeypatch.setattr(pauses, "tick", lambda: os.utime(lock, (pauses.now, pauses.now)))
    assert 240 <= pauses.pause("train.py step", 999, still=True) < 300


def test_a_rank_in_a_lock_is_named_beside_a_collective(job: Job) -> None:
    """gloo's collective is C++: the other rank answers from inside it."""
    source = """
        import threading, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        print("met", flush=True)
        if dist.get_rank() == 1:
            held = threading.Lock()
            held.acquire()
            held.acquire()
        dist.all_reduce(torch.ones(1))
    """
    job.start(source, "torchrun.py", "--nproc-per-node=2", OMP_NUM_THREADS="1")
    wait_for(job.report, "report")

    says = job.report()["says"]
    assert says.startswith("1 of 2 ranks waits in all_reduce (train.py:9); rank 1 on ")
    assert " is in train.py:8 for " in says
    wait_for(lambda: f"hang: {says}; stacks: " in job.log.read_text(), "line in the log")
    assert stat.S_IMODE((job.run_dir / "stacks").stat().st_mode) == 0o700
    assert 'train.py", line 8 in <module>' in (job.run_dir / "stacks" / "rank-00001.txt").read_text()


@pytest.mark.parametrize("act", ["stop", "requeue"])
def test_a_training_that_hangs_is_ended_as_its_job_asks(job: Job, tmp_path: Path, act: str) -> None:
    source = """
        import os, threading, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        for step in range(8):
            if dist.get_rank() == 1 and step == 5:
                threading.Lock().acquire() and threading.Event().wait()
            dist.all_reduce(torch.ones(1))
        os._exit(0)
    """
    files = {f"SBATCHGEN_{name.upper()}_FILE": str(tmp_path / name) for name in ("again", "exit")}
    files |= {"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n3"}
    job.start(source, "torchrun.py", "--standalone", "--nproc-per-node=2", HANG=act, **files)
    assert job.started[0].wait(HANGS_S)
    assert (tmp_path / "exit").read_text() == "68\n", job.log.read_text()
    assert (tmp_path / "again").exists() == (act == "requeue")
    odd = job.run_dir / "stacks" / "odd"
    assert (odd.read_text() if odd.exists() else "") == ("17 n3\n" if act == "requeue" else "")
    assert "hang: 1 of 2 ranks waits in all_reduce" in job.log.read_text()
    assert "rank 1 on" in job.report()["says"]


WAITS = """
    import os, time, torch.distributed as dist
    dist.init_process_group("gloo")
    for step in range(1000):
        print("step", step, flush=True)
        while step == 3 and dist.get_rank() and not os.path.exists("go"):
            time.sleep(0.1)
        dist.barrier()
        time.sleep(0.3)
"""


def test_what_continues_is_no_hang_any_more(job: Job, tmp_path: Path) -> None:
    job.start(WAITS, "torchrun.py", "--nproc-per-node=2", OMP_NUM_THREADS="1")
    wait_for(job.report, "report")
    assert " is in train.py:7 for " in job.report()["says"]
    (tmp_path / "go").touch()
    wait_for(lambda: not job.report(), "end")
    wait_for(lambda: "hang: it continues" in job.log.read_text(), "line")


def test_the_watcher_can_be_switched_off(job: Job) -> None:
    job.start("print('done')", "task.py", "--launcher", "none", HANG_AFTER="off")
    assert job.started[0].wait(HANGS_S) == 0
    assert job.log.read_text() == "done\n"
    assert not (job.run_dir / "stacks").exists()


def test_no_signal_is_sent_to_a_process_that_does_not_expect_it() -> None:
    """It would end it."""
    other = subprocess.Popen(["sleep", "60"])
    assert stacks.dump(other.pid) == ""
    assert alive(other.pid)
    other.kill()
    other.wait()


LONG_SLEEP = """
import ctypes, sys, threading
if sys.argv[1]:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
print("left", ctypes.CDLL(None).sleep(6))
"""


@pytest.mark.parametrize(
    ("other", "torch", "is_seen", "is_left_alone"),
    [("thread", "2.4.1", True, True), ("", "2.4.1", False, True), ("", "2.5.1", True, False)],
)
def test_a_call_of_a_c_library_is_not_ended_by_the_signal(
    monkeypatch: pytest.MonkeyPatch,
    other: str,
    torch: str,
    is_seen: bool,  # noqa: FBT001
    is_left_alone: bool,  # noqa: FBT001
) -> None:
    """As by a rank that meets the others: torch before 2.5 ends it with "Interrupted system call"."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: torch)
    call, env = [sys.executable, "-c", LONG_SLEEP, other], stacks.with_hook(os.environ)
    with subprocess.Popen(call, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        wait_for(lambda: "nanosleep" in stacks.read(process.pid, "wchan"), "sleep")
        assert ('"<string>", line 6 in <module>' in stacks.dump(process.pid)) == is_seen
        assert (process.stdout.read() == "left 0\n") == is_left_alone


def test_the_sitecustomize_of_the_user_is_imported_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    env = stacks.with_hook(os.environ | {"PYTHONPATH": str(tmp_path)})
    code = "import sys, sitecustomize; print(sitecustomize.__file__, any('hook' in p for p in sys.path))"
    out = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert out == f"mine\n{tmp_path}/sitecustomize.py False\n"
