"""The rank that hangs is named, with the line where it is; a run that computes is left alone."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stacks import churn
from training.files import LOCK
from training.processes import hang, proc, stacks
from training.processes.connections import connections
from training.processes.rank import Rank, Sample
from training.processes.signs import FOLDER, REPORT, Signs
from training.processes.stacks import call_and_line
from training.processes.verdict import COMPUTES, DISK, OUTSIDE, STILL, facts, judge

from .forks import QUICKLY
from .trainers import HANGS_S, ROOT, alive, wait_for, without_launcher

TRAINING = ROOT / "training"
NAMES_THREADS = not stacks._torch_is_before(2, 5)  # without the names no rank is surely stuck
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
        known = without_launcher()
        known |= {"RUN_DIR": str(self.run_dir), "HANG_AFTER": "2", "PYTHONPATH": str(QUICKLY)} | env
        call = [sys.executable, str(TRAINING / launcher[0]), *launcher[1:], "--", "train.py"]
        with self.log.open("ab") as log:
            self.started.append(subprocess.Popen(call, cwd=self._folder, env=known, stdout=log, stderr=log))
        return self.started[-1].pid

    def report(self) -> dict[str, Any]:
        """What is said of it; empty so far."""
        path = self.run_dir / REPORT
        report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return report

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.started:
            below = list(proc.descendants(process.pid))
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
    about = {"rank": number, "host": f"n{number}", "call": call, "at": at, "state": "S", "size": 4}
    about |= {"sleeps": False, "computed_s": 1e9, "woke_s": 1e9, "alone": True}
    return about | {"does": STILL, "spins": False, "waits_for": "", "waits_s": 0.0, "life_s": 1e9} | more


WAIT = [rank(0), rank(1), rank(3)]
THEY = "3 of 4 ranks wait in all_reduce (train.py:61); "
HERE = range(4)
STUCK = rank(2, "", "dataset.py:88")
SPIN = [rank(number, "", "", does=COMPUTES, spins=True, state="R") for number in range(4)]  # CUDA's or NCCL's
NCCL = [rank(number, "barrier", does=COMPUTES) for number in range(4)]
ASKS = "an answer of 10.1.2.3:8000"


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([*WAIT, STUCK], f"{THEY}rank 2 on n2 is in dataset.py:88"),
        ([*WAIT, rank(2, "", "data.py:7 of a loader")], f"{THEY}rank 2 on n2 is in data.py:7 of a loader"),
        ([*WAIT, rank(2, "barrier", "train.py:70")], f"{THEY}rank 2 on n2 waits in barrier (train.py:70)"),
        ([*WAIT, rank(2, state="T")], f"{THEY}rank 2 on n2 is stopped by a signal"),
        (WAIT, f"{THEY}rank 2 has ended"),
        ([*SPIN[:2], SPIN[3], STUCK], "3 of 4 ranks compute; rank 2 on n2 is in dataset.py:88"),
        # one that waits in a collective may be served by others meanwhile
        (
            [rank(0, does=OUTSIDE, waits_for=ASKS), *WAIT[1:], STUCK],
            f"{THEY}rank 2 on n2 is in dataset.py:88",
        ),
    ],
)
def test_the_line_names_the_rank_that_the_others_wait_for(ranks: list[dict[str, Any]], says: str) -> None:
    assert judge(ranks, HERE, 360.0) == (f"{says} for 6 minutes", True)


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (rank(2, "", "val.py:5", does=COMPUTES), "rank 2 on n2 computes in val.py:5"),
        (rank(2, "", "", does=COMPUTES, spins=True), "rank 2 on n2 computes"),
        (
            rank(2, "", "data.py:7 of a loader", does=COMPUTES),
            "rank 2 on n2 computes, and its loader is stuck in data.py:7 of a loader",
        ),
        (rank(2, "", "save.py:5", does=DISK), "rank 2 on n2 is in save.py:5, on a disk or file system"),
        (
            rank(2, "", "rollout.py:44", does=OUTSIDE, waits_for=ASKS),
            f"rank 2 on n2 waits for {ASKS} (rollout.py:44)",
        ),
        (rank(2, "", "wait.py:6", does=OUTSIDE, sleeps=True), "rank 2 on n2 sleeps in wait.py:6"),
        (rank(2, "", "lock.py:6", does=OUTSIDE), "rank 2 on n2 is in lock.py:6"),
        (
            rank(2, "", "a.py:4", does=OUTSIDE, waits_for="the program curl"),
            "rank 2 on n2 waits for the program curl (a.py:4)",
        ),
    ],
)
def test_a_rank_that_may_do_something_is_named_late(ranks: dict[str, Any], says: str) -> None:
    assert judge([*WAIT, ranks], HERE, 360.0) == ("", False)
    is_sure = ranks["does"] == OUTSIDE  # one that computes is never ended
    assert judge([*WAIT, ranks], HERE, 960.0, late=True) == (f"{THEY}{says} for 16 minutes", is_sure)


@pytest.mark.parametrize(
    ("ranks", "early", "late"),
    [
        ([*NCCL[:3], rank(3, "", "dataset.py:88")], True, True),
        ([*NCCL[:3], rank(3, "", "val.py:5", does=COMPUTES)], False, False),
        (NCCL, False, False),  # also where the GPU computes
        ([rank(number) for number in HERE], False, True),  # their network or GPU may be slow
        ([*WAIT, rank(2, "barrier", "train.py:70")], True, True),
        ([*WAIT, rank(2, "barrier", "train.py:70", alone=False)], False, True),  # a thread of it may come
        ([*WAIT, rank(2, "synchronize", "train.py:70")], False, True),  # for its own GPU
        ([*SPIN[:2], SPIN[3], rank(2, "", "a.py:5", does=OUTSIDE)], False, True),
        ([*NCCL[:3], rank(3, "", "a.py:5", does=OUTSIDE)], False, True),
        (SPIN, False, False),
        ([*SPIN[:3], rank(3, "barrier")], False, True),  # one waits for all others
        ([rank(number, "", "val.py:5", does=COMPUTES) for number in HERE], False, False),
        ([rank(number, "", "download.py:5") for number in HERE], False, False),
        ([rank(0, "synchronize", size=1)], False, False),  # no other rank
        ([rank(0, "", "end.py:5")], False, False),  # the others have ended
        ([rank(0, does=COMPUTES), rank(1), rank(2), rank(3)], False, False),
        ([], False, False),
    ],
)
def test_a_run_that_may_be_healthy_is_left_alone(
    ranks: list[dict[str, Any]],
    early: bool,  # noqa: FBT001
    late: bool,  # noqa: FBT001
) -> None:
    assert bool(judge(ranks, HERE, 360.0).line) is early
    assert bool(judge(ranks, HERE, 960.0, late=True).line) is late


@pytest.mark.parametrize(
    "ranks",
    [
        [*WAIT, rank(2, "", "wait.py:6", does=OUTSIDE, woke_s=300.0)],  # it asks again now and then
        [*WAIT, rank(2, "barrier", "train.py:70", alone=False)],
        [rank(number) for number in HERE],
    ],
)
def test_who_may_come_is_named_late_and_never_ended(ranks: list[dict[str, Any]]) -> None:
    made = judge(ranks, HERE, 960.0, late=True)
    assert (bool(made.line), made.is_sure) == (True, False)


def test_a_rank_of_another_node_that_does_not_answer_is_named_late() -> None:
    assert not judge(WAIT, {0, 1}, 360.0).line
    late = judge(WAIT, {0, 1}, 960.0, late=True)
    assert late == (f"{THEY}rank 2 has ended or gives no answer for 16 minutes", False)


STORE = ("10.0.0.1:29500", "10.0.0.2:40000")


def answer(number: int, *connections: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {
        "rank": number,
        "state": "S",
        "computed_s": 500.0,
        "moved_s": 400.0,
        "stuck": True,
        "call": "",
        "program": "",
    }
    return about | {"connections": [*connections]} | more


def connection(local: str, remote: str, **more: Any) -> dict[str, Any]:
    return {"ends": [local, remote], "busy_s": None, "idle_s": None, "asked_s": None, "own": True} | more


PEERS = (
    answer(0, connection("10.0.0.1:5", "10.0.0.2:6", asked_s=300.0)),
    answer(1, connection("10.0.0.2:6", "10.0.0.1:5", idle_s=1.0)),
)


@pytest.mark.parametrize(
    ("answers", "does", "waits_for", "life_s"),
    [
        ((answer(0),), STILL, "", 400.0),
        ((answer(0, state="D"),), DISK, "", 400.0),
        ((answer(0, computed_s=9.0),), COMPUTES, "", 400.0),
        ((answer(0, computed_s=9.0, state="T"),), STILL, "", 400.0),
        ((answer(0, program="curl", stuck=False),), OUTSIDE, "the program curl", 400.0),
        ((answer(0, stuck=False),), OUTSIDE, "", 400.0),  # nothing is known of what it waits for
        ((answer(0, stuck=False, call="barrier"),), STILL, "", 400.0),
        ((answer(0, stuck=False, state="T"),), STILL, "", 400.0),
        # what comes slowly from another rank
        ((answer(0, connection(*STORE, busy_s=2.0)), answer(1, connection(*STORE[::-1]))), STILL, "", 2.0),
        ((answer(0, connection("10.0.0.2:1", "10.1.2.3:8000", asked_s=70.0)),), OUTSIDE, ASKS, 400.0),
        (
            (answer(0, connection("10.0.0.2:1", "10.1.2.3:8000", asked_s=70.0, own=False)),),
            OUTSIDE,
            "",
            400.0,
        ),
        ((answer(0, connection("10.0.0.2:1", "10.1.2.3:8000", idle_s=3.0)),), STILL, "", 3.0),  # it comes
        (
            (answer(0, connection(*STORE[::-1], asked_s=70.0, idle_s=3.0)),),
            STILL,
            "",
            400.0,
        ),  # of the launcher
        (PEERS, STILL, "", 400.0),
    ],
)
def test_what_a_rank_waits_for(
    answers: tuple[dict[str, Any], ...], does: str, waits_for: str, life_s: float
) -> None:
    """What ranks and launchers say to each other carries no answer from outside."""
    first = facts(answers, [STORE], 120.0)[0]
    assert (first["does"], first["waits_for"], first["life_s"]) == (does, waits_for, life_s)


def test_the_place_is_in_the_users_code() -> None:
    frames = [
        (C10D, "9", "all_gather"),
        (C10D, "5", "all_gather_object"),
        (f"{LIBRARY}/torch/distributed/c10d_logger.py", "83", "wrapper"),
        ("/home/a/train.py", "61", "step"),
        ("/home/a/train.py", "99", "<module>"),
    ]
    assert call_and_line(os.getpid(), frames) == ("all_gather_object", "train.py:61")
    library = ("/usr/lib/python3.12/queue.py", "1", "get")
    assert call_and_line(os.getpid(), [library, *frames[3:]]) == ("", "train.py:61")
    assert call_and_line(os.getpid(), [library]) == ("", "queue.py:1")
    assert call_and_line(os.getpid(), []) == ("", "")


@contextlib.contextmanager
def watched(program: str, **how: Any) -> Iterator[Rank]:
    """A program, looked at."""
    with subprocess.Popen([sys.executable, "-c", program], **how) as started:
        made = Rank(started.pid, time.monotonic())
        yield made
        started.kill()


def looked(seen: Rank) -> Rank:
    time.sleep(0.3)
    seen.look(connections(), time.monotonic())
    return seen


WORKS = """
import os, socket as s, subprocess, time
def feed(end, address, family):
    if not os.fork():
        while True:
            s.socket(family, 2).sendto(b'x', address)
            time.sleep(0.1)
    while True:
        end.recv(9)
open('began', 'w').close()
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("while True: pass", "computed_s"),
        ("while True: sum(range(200000)); time.sleep(0.1)", "computed_s"),  # validates at a few percent
        ("while True: subprocess.run(['true'])", "computed_s"),
        ("while True: time.sleep(0.001)", "computed_s"),
        ("f = open('/dev/zero', 'rb', 0)\nwhile True: f.read(1 << 16); time.sleep(0.1)", "moved_s"),
        ("f = open('grows', 'wb', 0)\nwhile True: f.write(b'x'); time.sleep(0.1)", "moved_s"),
        ("while True:\n with open('grows', 'ab') as f: f.write(b'x')\n time.sleep(0.1)", "moved_s"),
        ("u = s.socket(2, 2); u.bind(('127.0.0.1', 0)); feed(u, u.getsockname(), 2)", "moved_s"),
        ("u = s.socket(1, 2); u.bind('here'); feed(u, 'here', 1)", "moved_s"),
    ],
)
def test_a_process_that_computes_or_moves_data_does_not_stand_still(
    tmp_path: Path, program: str, what: str
) -> None:
    with watched(WORKS + program, cwd=tmp_path, start_new_session=True) as seen:
        try:
            wait_for((tmp_path / "began").exists, "start")
            began = time.monotonic() + 1
            wait_for(lambda: getattr(looked(seen), what) > began, "work")
        finally:
            os.killpg(seen.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "program", ["import time; time.sleep(999)", "import threading; threading.Event().wait()"]
)
def test_a_process_that_waits_stands_still(program: str) -> None:
    with watched(program) as seen:
        wait_for(lambda: looked(seen).still_s(time.monotonic()) > 2, "sleep")  # once it has started


def test_what_is_waited_for_outside_is_known_by_its_address() -> None:
    """A client that has asked; not once the answer is there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        asks = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); s.send(b'?'); s.recv(1); time.sleep(99)"
        with watched(asks) as seen:
            accepted = server.accept()[0]
            wait_for(
                lambda: [each["asked_s"] for each in looked(seen).connections(time.monotonic())] != [],
                "client",
            )
            wait_for(lambda: looked(seen).connections(time.monotonic())[0]["asked_s"], "question")
            asked = seen.connections(time.monotonic())[0]
            assert (asked["ends"][1], asked["own"]) == (f"127.0.0.1:{port}", True)
            accepted.send(b"!")
            wait_for(lambda: looked(seen).connections(time.monotonic())[0]["asked_s"] is None, "answer")
            accepted.close()


WAITS_OF = [
    # that nothing can end: each thread waits for a lock of the process
    ("threading.Event().wait()", True),
    ("queue.Queue().get()", True),
    ("held = threading.Lock(); held.acquire(); held.acquire()", True),
    ("threading.Thread(target=threading.Event().wait, daemon=True).start(); threading.Event().wait()", True),
    # with an end
    ("time.sleep(999)", False),
    ("threading.Event().wait(999)", False),
    ("while True: time.sleep(0.1)", False),
    ("asyncio.run(asyncio.sleep(999))", False),
    ("signal.pthread_sigmask(0, {10}); signal.sigtimedwait({10}, 999)", False),
    ("signal.pthread_sigmask(0, {10}); signal.sigwait({10})", False),
    ("threading.Thread(target=time.sleep, args=(999,)).start(); threading.Event().wait()", False),
    # for a signal
    ("e = threading.Event(); signal.signal(10, lambda *_: e.set()); e.wait()", False),
    ("signal.signal(14, print); signal.alarm(999); queue.Queue().get()", False),
    # for something outside
    ("asyncio.run(asyncio.Event().wait())", False),
    ("socket.socketpair()[0].recv(1)", False),
    ("s = socket.socketpair()[0]; s.settimeout(999); s.recv(1)", False),
    ("socket.create_server(('127.0.0.1', 0)).accept()", False),
    ("http.server.HTTPServer(('127.0.0.1', 0), None).handle_request()", False),
    ("select.select([socket.socketpair()[0]], [], [])", False),
    ("os.write(os.pipe()[1], bytes(1 << 20))", False),
    ("libc = ctypes.CDLL(None); os.read(libc.inotify_init(), 99)", False),
    ("a, b = open('lock', 'w'), open('lock'); fcntl.flock(a, 2); fcntl.flock(b, 2)", False),
    ("if os.fork(): os.wait()\nelse: time.sleep(999)", False),
    ("multiprocessing.get_context('fork').Semaphore(0).acquire()", False),
    # in a thread, or a process
    ("futures.ThreadPoolExecutor().submit(subprocess.run, ['sleep', '999']).result()", False),
    (
        "futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context('fork')).submit(time.sleep, 999).result()",
        False,
    ),
    ("futures.ThreadPoolExecutor().submit(asyncio.run, asyncio.Event().wait()).result()", False),
]
MODULES = "import asyncio, concurrent.futures as futures, ctypes, fcntl, http.server, multiprocessing, os, queue, select\nimport signal, socket, subprocess, threading, time\n"


@pytest.mark.proof
def test_who_can_never_act_again_is_told_from_who_may(tmp_path: Path) -> None:
    """All side by side. In doubt a rank may."""
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                watched(
                    f"{MODULES}open('{number}', 'w').close()\n{program}", cwd=tmp_path, start_new_session=True
                )
            )
            for number, (program, _) in enumerate(WAITS_OF)
        ]
        for number, seen in enumerate(ranks):
            stack.callback(os.killpg, seen.pid, signal.SIGKILL)
            wait_for((tmp_path / str(number)).exists, WAITS_OF[number][0])
        wait_for(lambda: all(looked(seen).still_s(time.monotonic()) > 1 for seen in ranks), "waits")
        wait_for(
            lambda: all(
                time.monotonic() - looked(seen).unlocked_s > 2
                for seen, (_, is_stuck) in zip(ranks, WAITS_OF, strict=True)
                if is_stuck
            ),
            "locks",
        )
        now = time.monotonic()
        assert [
            program
            for seen, (program, is_stuck) in zip(ranks, WAITS_OF, strict=True)
            if not is_stuck and now - looked(seen).unlocked_s > 2
        ] == []


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_who_reads_from_a_program_beside_the_run_waits_for_it(kind: str) -> None:
    """And each byte of that program is life."""
    ends = os.pipe() if kind == "pipe" else [end.detach() for end in socket.socketpair()]
    beside = [
        "sh",
        "-c",
        "sleep 99 2>/dev/null & echo $! >&2",
    ]  # it outlives its parent, so it is not below this process
    started = subprocess.run(beside, stdout=ends[1], stderr=subprocess.PIPE, text=True, check=True)
    try:
        with watched(f"import os\nwhile True: os.read({ends[0]}, 1)", pass_fds=[ends[0]]) as seen:
            wait_for(lambda: looked(seen).awaited_program() == "sleep", "program")
            os.write(ends[1], b"x")
            written = time.monotonic()
            wait_for(lambda: looked(seen).moved_s > written, "byte")
    finally:
        os.kill(int(started.stderr), signal.SIGKILL)
        for end in ends:
            os.close(end)


@pytest.mark.parametrize("answers", ["", "s.send(b'done')"])
def test_who_waits_for_the_next_word_of_another_is_not_still(answers: str) -> None:
    """An actor: its driver speaks first, and each word is life. The actor answers in the same moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        acts = f"import socket\ns = socket.create_connection(('127.0.0.1', {port}))\nwhile s.recv(9): {answers or 'pass'}"
        with watched(acts) as seen:
            driver = server.accept()[0]
            wait_for(
                lambda: [each["asked_s"] for each in looked(seen).connections(0.0) if each["asked_s"]],
                "actor",
            )

            def is_alive() -> bool:
                began = time.monotonic()
                driver.send(b"do")
                (connection,) = looked(seen).connections(time.monotonic())
                idle_s = connection["idle_s"]
                return connection["asked_s"] and idle_s is not None and idle_s < time.monotonic() - began

            wait_for(is_alive, "word")
            driver.close()


def test_what_the_watcher_writes_is_no_sign_of_life(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\n")
    signs = Signs(tmp_path, {})
    assert not signs.look()
    with (tmp_path / "log").open("a") as log:
        log.write("hang: 3 of 4 ranks wait\nhang: it continues\n")
    for name in (FOLDER, REPORT, LOCK):
        (tmp_path / name).mkdir()
    assert not signs.look()
    (tmp_path / "events.jsonl").touch()
    assert signs.look()
    assert not signs.has_begun


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log", "step 0 loss 3.2\nstep 1 loss 3.1\n"),
        ("slurm-3.out", "epoch 1: 10%|#| 3/30 [00:01, 2.1it/s]\repoch 1: 11%|#| 4/30 [00:01, 2.1it/s]"),
        ("a.log", "{'loss': 0.3, 'step': 4}\n{'loss': 0.2, 'step': 8}\n"),
        ("log", "[rank0]:  1%|#| 3/300 [00:01, 2.1it/s]\r[rank0]:  2%|#| 4/300 [00:01, 2.1it/s]"),
    ],
)
def test_the_first_step_has_come_once_steps_are_printed(tmp_path: Path, name: str, text: str) -> None:
    """Also if all come within a moment; those of an earlier start do not count, nor do other lines."""
    (tmp_path / name).write_text("step 1 loss 3.1\nstep 2 loss 3.0\n")
    signs = Signs(tmp_path, {})
    with (tmp_path / name).open("a") as log:
        log.write("loading 3 files\nmet at port 3\nthe step is new\n")
        log.write("batch size 32\nmax step 1000\nepoch 10\nLoading shards: 50%|#| 1/2 [00:01, 2.1s/it]\n")
    signs.look()
    with (tmp_path / name).open("a") as log:  # another rank
        log.write("batch size 32\nmax step 1000\nepoch 10\nLoading shards: 99%|#| 2/2 [00:01, 2.1s/it]\n")
    signs.look()
    assert not signs.has_begun
    with (tmp_path / name).open("a") as log:
        log.write(text)
    assert signs.look()
    assert signs.has_begun


class Pauses:
    """A watcher of a job that writes at the end of each pause, on a clock that only these move."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self._end, self._log, self.said = 0.0, 0.0, run_dir / "log", [""]
        self.asked: list[int] = []
        self.act, self.may_cut = "", False
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", lambda seconds: setattr(self, "now", self.now + seconds))
        monkeypatch.setattr(hang, "complain", self.said.append)
        monkeypatch.setattr(stacks, "ranks_below", lambda *_, **__: {})
        monkeypatch.setattr(hang, "connections", dict)
        self.watcher = hang.Watcher(run_dir, 0.0, spawns=False)
        monkeypatch.setattr(self.watcher, "_ask", self._ask)
        monkeypatch.setattr(self.watcher, "_act", lambda act, _: setattr(self, "act", act))
        made = Rank(os.getpid(), 0.0)
        monkeypatch.setattr(made, "look", lambda *_: None)
        self._rank0 = made
        self.watcher._ranks = dict.fromkeys(HERE, made)
        self.watcher._signs.look()

    def _ask(self, what: int, _still_s: float, *, may_cut: bool = False) -> list[dict[str, Any]]:
        self.may_cut |= may_cut
        self.asked.append(what)
        return self._ranks

    def steps(self, count: int = 9) -> None:
        for step in range(count):
            with self._log.open("a") as log:
                log.write(f"step {step}\n")
        self.look()

    def look(self) -> None:
        self.now += 15
        self.watcher.look()

    def tick(self) -> None:
        """What else is done every 15 seconds."""

    def pause(self, seconds: float, **odd: Any) -> float:
        """Rank 2 does this for so long, and the others wait; after how many seconds it is named, or 0."""
        self._ranks = [*WAIT, rank(2, "", "a.py:1", **odd)]
        began, alarms, named = self.now, len(self.said), 0.0
        while self.now < began + seconds:
            if odd.get("does", STILL) not in (STILL, OUTSIDE):
                self._rank0.computed_s = self.now
            for each in self._ranks:
                each["waits_s"] = (self.now - began) * (each["does"] == OUTSIDE)
            self.look()
            self.tick()
            named = named or (len(self.said) > alarms) * (self.now - began)
        self._rank0.computed_s = self.now
        self.steps()
        return named


def test_a_pause_may_take_three_times_as_long_as_the_longest_in_which_all_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two minutes; a rank that computes, or waits for something outside, may for sixteen."""
    pauses = Pauses(tmp_path, monkeypatch)
    assert not pauses.pause(215)  # before the first step
    pauses.steps()
    assert 120 <= pauses.pause(200) < 150
    for _ in range(3):
        pauses.steps()
    assert pauses.said[-1] == "hang: it continues"
    assert not pauses.pause(600, does=COMPUTES)
    assert not pauses.pause(900, does=OUTSIDE, waits_for=ASKS)
    assert not pauses.may_cut  # a call that a signal would end early
    assert pauses.pause(9000, does=OUTSIDE, waits_for=ASKS) >= 2700
    assert pauses.may_cut
    assert Pauses(tmp_path, monkeypatch).pause(2000, does=COMPUTES) >= 960


def test_a_pause_of_validation_does_not_make_a_hang_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses(tmp_path, monkeypatch)
    pauses.steps()
    assert not pauses.pause(900, does=COMPUTES)
    assert 120 <= pauses.pause(200) < 150


def test_nothing_is_asked_of_processes_before_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor if data comes, to whichever rank."""
    pauses = Pauses(tmp_path, monkeypatch)
    pauses.steps()
    pauses.pause(105)
    assert pauses.asked == []
    assert not pauses.pause(2000, life_s=10.0)
    assert {*pauses.asked} == {hang.BY_PROC}


def test_an_answer_that_had_to_wait_for_a_cpu_is_no_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    samples = [
        Sample("S", {(pid, pid): proc.Thread("python", "S", 1, wanted_s)}, {pid: 0.0}, {}, {}, {}, 0, 0, "")
        for wanted_s in (0.0, 0.1, 0.2)
    ]
    monkeypatch.setattr("training.processes.rank.sample", lambda *_: samples.pop(0))
    rank = Rank(pid, now_s=0.0)
    rank.look({}, now_s=0.5)
    rank.was_asked = True
    rank.look({}, now_s=1.0)
    assert rank.computed_s == 0.0
    rank.look({}, now_s=1.5)
    assert rank.computed_s == 1.5


def test_a_training_is_ended_after_a_second_look_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANG", "stop")
    pauses = Pauses(tmp_path, monkeypatch)
    pauses.steps()
    assert 120 <= pauses.pause(225) < 150
    assert pauses.act == ""
    pauses.pause(230)
    assert pauses.act == ""
    pauses.pause(3000)
    assert pauses.act == "stop"
    computes = Pauses(tmp_path, monkeypatch)
    assert computes.pause(9000, does=COMPUTES)
    assert computes.act == ""


def test_the_first_step_may_take_twice_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 240 <= Pauses(tmp_path, monkeypatch).pause(999) < 300


def test_signs_of_life_of_the_run_lock_are_none_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled trainer touches its lock all the time, in a thread."""
    pauses, lock = Pauses(tmp_path, monkeypatch), tmp_path / LOCK
    lock.touch()
    monkeypatch.setattr(pauses, "tick", lambda: os.utime(lock, (pauses.now, pauses.now)))
    assert 240 <= pauses.pause(999) < 300


@pytest.mark.proof
def test_a_rank_whose_loader_is_in_a_lock_is_named_beside_a_collective(job: Job, tmp_path: Path) -> None:
    """gloo's collective is C++: the other rank answers from inside it. The second loader has no work."""
    source = """
        import threading, torch, torch.distributed as dist

        class Data(torch.utils.data.Dataset):
            def __getitem__(self, index):
                threading.Event().wait()

        dist.init_process_group("gloo")
        print("met", flush=True)
        if dist.get_rank() == 1:
            next(iter(torch.utils.data.DataLoader(Data(), num_workers=2, sampler=[0])))
        dist.all_reduce(torch.ones(1))
    """
    launcher = job.start(source, "torchrun.py", "--nproc-per-node=2", OMP_NUM_THREADS="1")

    def is_said() -> bool:  # where CPUs are busy, a rank that waits for one counts as computing at first
        says = job.report().get("says", "")
        if "computes" in says:
            with job.log.open("a") as log:
                log.write("continues\n")
        return " is in train.py:6 of a loader for " in says

    wait_for(is_said, "report")
    says = job.report()["says"]
    assert says.startswith("1 of 2 ranks waits in all_reduce (train.py:12); rank 1 on ")
    watcher = hang.Watcher(tmp_path, 120.0, spawns=False)
    watcher._root = launcher

    def is_stuck() -> bool:  # known at once: what a signal may cut short is not asked for a long time
        time.sleep(0.3)
        watcher._note_ranks()
        return bool(watcher._facts(1, watcher._ranks[1], hang.ABOUT_IDLE, 1.0, may_cut=False)[0]["stuck"])

    wait_for(is_stuck, "lock")
    wait_for(lambda: f"hang: {says}; stacks: " in job.log.read_text(), "line in the log")
    assert stat.S_IMODE((job.run_dir / "stacks").stat().st_mode) == 0o700
    of_rank = (job.run_dir / "stacks" / "rank-00001.txt").read_text()
    assert ('train.py", line 11 in <module>' in of_rank) == NAMES_THREADS  # else the rank itself is not asked


@pytest.mark.sampled(2)
@pytest.mark.parametrize("act", ["stop", "requeue"])
def test_a_training_that_hangs_is_ended_as_its_job_asks(job: Job, tmp_path: Path, act: str) -> None:
    """Also ranks that a program around each of them would start again."""
    source = """
        import os, subprocess, sys, threading, torch, torch.distributed as dist
        if "--rank" not in sys.argv:
            while subprocess.call([sys.executable, __file__, "--rank"]):
                pass
            sys.exit()
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
    if not NAMES_THREADS:  # it is named, late
        wait_for(job.report, "report")
        assert re.search(
            r"1 of 2 ranks waits in all_reduce .*; rank 1 on n3 is in train.py:10 for", job.report()["says"]
        )
        return
    assert job.started[0].wait(HANGS_S)
    assert (tmp_path / "exit").read_text() == "68\n", job.log.read_text()
    assert (tmp_path / "again").exists() == (act == "requeue")
    odd = job.run_dir / "stacks" / "odd"
    assert (odd.read_text() if odd.exists() else "") == ("17 n3\n" if act == "requeue" else "")
    assert "hang: 1 of 2 ranks waits in all_reduce" in job.log.read_text()
    assert "rank 1 on" in job.report()["says"]


@pytest.mark.proof
def test_ranks_that_a_trainer_starts_itself_are_counted(job: Job) -> None:
    """By themselves: Slurm knows of one task."""
    source = """
        import os, threading, torch, torch.distributed as dist, torch.multiprocessing as mp

        def main(rank, size):
            store = dist.FileStore("store", size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            if rank == 1:
                threading.Event().wait()
            dist.all_reduce(torch.ones(1))

        if __name__ == "__main__":
            mp.spawn(main, (3,), nprocs=3)
    """
    job.start(
        source, "task.py", "--launcher", "spawn", OMP_NUM_THREADS="1", SLURM_NTASKS="1", SLURM_PROCID="0"
    )
    wait_for(job.report, "report")
    says = job.report()["says"]
    assert says.startswith("2 of 3 ranks wait in all_reduce (train.py:9); rank 1 on "), says
    assert " is in train.py:8 for " in says


RANKS = """
    import os, subprocess, sys, time
    if "LOCAL_RANK" not in os.environ:
        names = {names!r}
        envs = [dict(os.environ, **dict.fromkeys(names, str(local)), LOCAL_RANK=str(local)) for local in range({first}, 3)]
        ranks = [subprocess.Popen([sys.executable, __file__], env=env) for env in envs]
    time.sleep(99)
"""


@pytest.mark.parametrize(
    ("names", "first", "node", "numbers"),
    [
        (["RANK"], 0, 0, [0, 1, 2]),  # torchrun, accelerate launch
        ([], 1, 0, [0, 1, 2]),  # Lightning: the trainer itself is the first
        ([], 1, 1, [3, 4, 5]),
    ],
)
def test_the_ranks_that_a_launcher_in_the_trainer_starts_have_their_numbers(
    job: Job, names: list[str], first: int, node: int, numbers: list[int]
) -> None:
    launcher = job.start(
        RANKS.format(names=names, first=first), "task.py", "--launcher", "spawn", HANG_AFTER="off"
    )
    ranks: dict[int, int] = {}

    def all_are_there() -> bool:
        ranks.clear()
        ranks.update(stacks.ranks_below(launcher, spawns=True, node=node))
        return len(ranks) == 3

    wait_for(all_are_there, "ranks")
    assert sorted(ranks) == numbers
    for number, pid in ranks.items():
        local = proc.variable(pid, "LOCAL_RANK")
        assert local == str(number - 3 * node) or (not local and number == 3 * node and first)
        assert not {*proc.descendants(pid, {*ranks.values()})} & {*ranks.values()}


@pytest.mark.proof
def test_a_rank_that_waits_for_an_answer_is_named_late_and_with_the_address(job: Job, tmp_path: Path) -> None:
    """Twice two seconds before the first step, and eight times as long for what is outside of the run."""
    source = """
        import os, urllib.request, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            urllib.request.urlopen(f"http://{os.environ['SERVER']}/")
        dist.all_reduce(torch.ones(1))
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        job.start(source, "torchrun.py", "--nproc-per-node=2", OMP_NUM_THREADS="1", SERVER=address)
        wait_for(job.report, "report")
    says = job.report()["says"]
    assert f"; rank 0 on {socket.gethostname()} waits for an answer of {address} (train.py:5) for " in says
    assert float(says.split()[-2]) >= 2 * 8 * 2


WAITS = """
    import time, torch.distributed as dist
    dist.init_process_group("gloo")
    for step in range(1000):
        print("step", step, flush=True)
        if step == 3 and dist.get_rank():
            open("go").read()
        dist.barrier()
        time.sleep(0.3)
"""


def test_what_continues_is_no_hang_any_more(job: Job, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    job.start(WAITS, "torchrun.py", "--nproc-per-node=2", OMP_NUM_THREADS="1")
    wait_for(job.report, "report")
    assert " is in train.py:7 for " in job.report()["says"]
    (tmp_path / "go").write_text("")
    wait_for(lambda: not job.report(), "end")
    wait_for(lambda: "hang: it continues" in job.log.read_text(), "line")


def test_the_watcher_can_be_switched_off(job: Job) -> None:
    job.start("print('done')", "task.py", "--launcher", "spawn", HANG_AFTER="off")
    assert job.started[0].wait(HANGS_S) == 0
    assert job.log.read_text() == "done\n"
    assert not (job.run_dir / "stacks").exists()


def test_no_signal_is_sent_to_a_process_that_does_not_expect_it() -> None:
    """It would end it."""
    other = subprocess.Popen(["sleep", "60"])
    assert stacks.stack_asleep(other.pid) == stacks.stack_awake(other.pid) == ""
    assert alive(other.pid)
    other.kill()
    other.wait()


@contextlib.contextmanager
def hooked(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program that can be asked, once it has printed a line."""
    call, env = [sys.executable, "-c", program, *arguments], stacks.with_hook(os.environ)
    with subprocess.Popen(call, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_process_that_has_just_run_gets_no_signal_for_one_that_sleeps() -> None:
    """Its memory stays empty: nothing was written. The other signal is answered between two instructions."""
    with hooked("print('ready', flush=True)\nwhile True:\n    pass") as process:
        assert stacks.stack_asleep(process.pid, tries=5) == ""
        assert Path(stacks._stack_file(process.pid)).read_bytes() == b""
        assert '"<string>", line ' in stacks.stack_awake(process.pid)


def test_a_process_that_sleeps_gets_no_signal_for_one_that_runs() -> None:
    sleeps = "import time, threading\nprint('ready', flush=True)\nthreading.Event().wait()"
    with hooked(sleeps) as process:
        wait_for(lambda: "futex" in proc.waits_in(process.pid), "sleep")
        assert stacks.stack_awake(process.pid) == ""
        assert Path(stacks._stack_file(process.pid)).read_bytes() == b""
        assert '"<string>", line 3 in <module>' in stacks.stack_asleep(process.pid)


def test_the_stack_of_the_main_thread_alone_is_written() -> None:
    """The frames of another thread could move while they are read."""
    waits = """
import threading
def other(): threading.Event().wait()
threading.Thread(target=other, daemon=True).start()
print("ready", flush=True)
threading.Lock().acquire() and threading.Event().wait()
"""
    with hooked(waits) as process:
        wait_for(lambda: "futex" in proc.waits_in(process.pid), "sleep")
        text = stacks.stack_asleep(process.pid)
        assert "line 6 in <module>" in text
        assert "other" not in text


LONG_SLEEP = """
import ctypes
print("ready", flush=True)
print("left", ctypes.CDLL(None).sleep(6))
"""


@pytest.mark.parametrize(("torch", "is_left_alone"), [("2.4.1", True), ("2.5.1", False)])
def test_a_call_of_a_c_library_is_not_ended_by_the_signal(
    monkeypatch: pytest.MonkeyPatch,
    torch: str,
    is_left_alone: bool,  # noqa: FBT001
) -> None:
    """As by a rank that meets the others: torch before 2.5 ends it with "Interrupted system call"."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: torch)
    with hooked(LONG_SLEEP) as process:
        wait_for(lambda: "nanosleep" in proc.waits_in(process.pid), "sleep")
        assert ('"<string>", line 4 in <module>' in stacks.stack_asleep(process.pid)) != is_left_alone
        assert process.stdout
        assert (process.stdout.read() == "left 0\n") == is_left_alone


@pytest.mark.parametrize("events", [64, 128])
def test_the_thread_of_gloo_is_known_without_a_name(events: int) -> None:
    """On a busy machine it waits for a CPU so often that its rank seemed to compute, before torch 2.5."""
    ends, polls = threading.Event(), select.epoll()

    def poll() -> None:
        while not ends.is_set():
            polls.poll(0.01, events)

    thread = threading.Thread(target=poll)
    thread.start()
    key, rank = (os.getpid(), thread.native_id or 0), Rank(os.getpid(), 0.0)

    def looks() -> str:
        rank.look({}, 0.0)
        return rank._sample.threads[key].name if rank._sample else ""

    names = {looks() for _ in range(50)}
    if events == 64:
        wait_for(lambda: looks() == "gloo", "name")  # not while it runs
        names = {looks() for _ in range(50)}
    ends.set()
    thread.join()
    assert ("gloo" in names) == (events == 64)
    assert len(names) == 1


@pytest.mark.parametrize(("torch", "is_seen"), [("2.2.2", True), ("2.5.0", False)])
def test_a_rank_is_known_by_its_store_where_no_thread_has_a_name(
    monkeypatch: pytest.MonkeyPatch, torch: str, *, is_seen: bool
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: torch)
    meets = (
        "import os, socket, time; s = socket.create_connection(('127.0.0.1', int(os.environ['MASTER_PORT'])))"
    )
    with socket.create_server(("127.0.0.1", 0)) as store:
        env = os.environ | {"MASTER_PORT": str(store.getsockname()[1])}
        sources = (f"{meets}; time.sleep(999)", "import time; time.sleep(999)")
        processes = [subprocess.Popen([sys.executable, "-c", source], env=env) for source in sources]
        connection, _ = store.accept()
        seen = [stacks._is_in_group(process.pid) for process in processes]
        connection.close()
    for process in processes:
        process.kill()
        process.wait()
    assert seen == [is_seen, False]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["exec", "loaders"])
def test_programs_that_are_asked_all_the_time_compute_the_same(kind: str) -> None:
    """The handler for all threads, as it was, ends such a program: benchmarks/stacks.py shows it with more."""
    _, counts, ends, changed, rounds = churn(kind, 40, sys.executable, "new")
    assert counts["awake, answered"]
    assert rounds
    assert (ends, changed) == (0, 0)


@pytest.mark.proof
def test_torch_compile_leaves_the_answer_alone() -> None:
    """It compiles each function that is called while its own run, also one that a signal calls."""
    _, counts, ends, changed, rounds = churn("compile aot_eager", 20, sys.executable, "new")
    assert counts["awake, answered"]
    assert rounds
    assert (ends, changed) == (0, 0)


def test_the_sitecustomize_of_the_user_is_imported_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    env = stacks.with_hook(os.environ | {"PYTHONPATH": str(tmp_path)})
    code = "import sys, sitecustomize; print(sitecustomize.__file__, any('hook' in p for p in sys.path))"
    out = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert out == f"mine\n{tmp_path}/sitecustomize.py False\n"
