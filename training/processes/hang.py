"""The watcher of the ranks of a node, in their launcher: it reports which rank hangs, and where.

Each watcher reads /proc about the ranks of its node. The watcher of rank 0 leads. If nothing new appears in
the run folder and the log for the time of HANG_AFTER, that watcher asks all watchers up to three times what
their ranks do. The first answers come from /proc, the second also have the stacks of idle ranks, and the
third also the stacks of computing ranks. If the ranks wait for a rank that does not come, a line names that
rank.

A rank writes its stack when it gets a signal. No rank gets a signal before that time is over. A rank that
computes only gets the signal that Python answers between two instructions (stacks.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.errors import HUNG, complain
from training.files import read_small, replace
from training.hook.sitecustomize import register
from training.processes import proc, stacks, verdict
from training.processes.connections import connections
from training.processes.jobscript import AGAIN_FILE, ask_again, leave_status
from training.processes.rank import Rank
from training.processes.signs import FOLDER, REPORT, Signs
from training.processes.stop import end_with_parent, ignore_signals

LIMIT_VARIABLE = "HANG_AFTER"  # seconds without a sign of life, or off
DEFAULT_LIMIT_S = 120.0  # the limit without the variable
ACTION_VARIABLE = "HANG"  # what follows a hang: report, stop or requeue
PR_SET_PTRACER = 0x59616D61  # the option of prctl(2) by which Yama lets a child process trace this process
LOOKS_PER_LIMIT = 8  # looks in the time of HANG_AFTER
FIRST_STEP_FACTOR = 2  # factor of the limit before the first step, when a trainer compiles and prepares data
LATE_FACTOR = 8  # factor of the limit for ranks that compute, wait outside of the run, or do not answer
PAUSE_FACTOR = 3  # the limit is at least so many times the longest pause so far
CONTINUING_SIGNS = 3  # signs of life after a report that show that the run continues
# The looks between the last two questions before ranks are killed. Meanwhile, the watcher of each other node
# looks at least twice.
LOOKS_BEFORE_END = 3
MIN_ANSWER_S = 10.0  # the shortest time that other watchers have for an answer, because machines may be busy
QUESTION_FILE = "ask"  # the file in FOLDER with the question of rank 0's watcher
# The kinds of questions. BY_PROC asks only for facts from /proc, ABOUT_IDLE also for the stacks of idle
# ranks, and ABOUT_ALL also for the stacks of computing ranks.
BY_PROC, ABOUT_IDLE, ABOUT_ALL = range(3)
# A line for each run that was ended: the job, and the node of the rank that hung.
ODD_NODES_FILE = f"{FOLDER}/odd"


class Watcher:
    """The watcher of the ranks at and below this process.

    With `spawns`, the trainer starts its ranks itself. `limit_s` is the length of a pause that is reported.
    If it is 0, the limit is DEFAULT_LIMIT_S, and grows with the pauses of the run. All times of the object
    are seconds of its own clock, which starts at 0.
    """

    def __init__(self, run_dir: Path, limit_s: float, *, spawns: bool) -> None:
        self.run_dir, self._spawns, self._root = run_dir, spawns, os.getpid()
        self._node, self._nodes = proc.place_in_job(os.environ)
        self.limit_s = limit_s or DEFAULT_LIMIT_S
        self._limit_grows = not limit_s
        self._signs = Signs(run_dir, os.environ)
        self._ranks: dict[int, Rank] = {}  # also ranks that have ended
        self._now_s = 0.0  # a clock that stops while the whole job is suspended
        self._looked_at = time.monotonic()
        self._last_life_s = 0.0  # the time of the last sign of life
        self._next_question_s = 0.0  # the earliest time of the next question
        self._answered_number = self._last_question()["number"]
        self._still_s = 0.0  # seconds for which all ranks of this node had been idle at the last look
        self._outside_s = 0.0  # seconds for which a rank has waited outside of the run, in this pause
        # The largest _still_s and _outside_s of the pauses that are over.
        self._longest_still_s = self._longest_outside_s = 0.0
        self._reported_s: float | None = None  # the time of the report; None without a report
        self._signs_since_report = 0

    def run(self) -> None:
        """Watch until the process ends. No error of the watcher may end the training."""
        while True:
            time.sleep(self.limit_s / LOOKS_PER_LIMIT)
            with contextlib.suppress(Exception):
                self.look()

    def look(self) -> None:
        """Look once at the ranks and at signs of life, and answer a question of rank 0's watcher."""
        self._note_ranks()
        if 0 in self._ranks:
            self._lead()
        elif self._answered_number != self._last_question()["number"]:
            self._answered_number = self._last_question()["number"]
            self._answer()

    def _note_ranks(self) -> None:
        """Find the ranks of this node, and note what they have done since the last look."""
        now = time.monotonic()
        # A longer gap shows that the job was suspended.
        self._now_s += min(now - self._looked_at, self.limit_s)
        self._looked_at = now
        pids_by_rank = stacks.ranks_below(self._root, spawns=self._spawns, node=self._node)
        # Ranks that a trainer spawned are numbered by their order. When one has ended, the numbers are wrong.
        if not self._spawns or len(pids_by_rank) >= len(self._ranks):
            if self._spawns:  # the trainer itself counted as a rank before it started its ranks
                self._ranks = {number: rank for number, rank in self._ranks.items() if number in pids_by_rank}
            for number, pid in pids_by_rank.items():
                known = self._ranks.get(number)
                if known is None or known.pid != pid:
                    self._ranks[number] = Rank(pid, self._now_s)
        known_connections, pids = connections(), {rank.pid for rank in self._ranks.values()}
        for rank in self._ranks.values():
            rank.look(known_connections, self._now_s, pids)

    def _lead(self) -> None:
        """Note signs of life; without a sign for long enough, ask which rank waits for which rank."""
        had_begun = self._signs.has_begun  # the pause before the first step raises no limit
        if self._signs.look():
            self._note_life(self._now_s, raises_limits=self._limit_grows and had_begun)
        self._still_s = min((rank.still_s(self._now_s) for rank in self._ranks.values()), default=0.0)
        programs_have_printed = self._signs.programs_have_printed()
        early_s, late_s = self._limits()
        quiet_s = self._now_s - self._last_life_s
        if programs_have_printed and self._outside_s:  # for example, a server works on a request of the rank
            self._note_life(self._now_s)
        elif quiet_s >= early_s and self._now_s >= self._next_question_s and self._may_report():
            self._judge(early_s, late_s)

    def _may_report(self) -> bool:
        """Return whether a verdict has an effect: the first is reported, and later ones may end the run."""
        if self._reported_s is None:
            return True
        return os.environ.get(ACTION_VARIABLE, "") in ("stop", "requeue")

    def _limits(self) -> tuple[float, float]:
        """Return a pause's limits in seconds: for idle ranks, and for ranks that may act later.

        Such ranks compute, or wait outside of the run.
        """
        base_s = self.limit_s * (1 if self._signs.has_begun else FIRST_STEP_FACTOR)
        early_s = max(base_s, PAUSE_FACTOR * self._longest_still_s)
        return early_s, max(LATE_FACTOR * base_s, early_s, PAUSE_FACTOR * self._longest_outside_s)

    def _note_life(self, at_s: float, *, raises_limits: bool = False, is_news: bool = True) -> None:
        """Note a sign of life at a time, which ends a pause.

        With `raises_limits`, the length of this pause raises the limits of later pauses. With `is_news`, the
        sign shows that the run continues. A doubtful sign (no news) only begins another pause, so that the
        ranks are not ended yet.
        """
        if at_s <= self._last_life_s:
            return
        pause_s = at_s - self._last_life_s
        self._last_life_s = at_s
        if raises_limits:
            self._longest_still_s = max(self._longest_still_s, min(self._still_s, pause_s))
            self._longest_outside_s = max(self._longest_outside_s, min(self._outside_s, pause_s))
        self._next_question_s = self._outside_s = 0.0
        if self._reported_s is not None and is_news:
            self._signs_since_report += 1
            if self._signs_since_report >= CONTINUING_SIGNS:
                self._reported_s, self._signs_since_report = None, 0
                complain("hang: it continues")
                with contextlib.suppress(OSError):
                    (self.run_dir / REPORT).unlink()

    def _judge(self, early_s: float, late_s: float) -> None:
        """Ask all watchers about their ranks, and report a hang.

        `early_s` and `late_s` are the limits of `_limits`.
        """
        ranks = self._ask(BY_PROC, early_s)
        self._note_life(self._now_s - min((rank["life_s"] for rank in ranks), default=0.0))
        quiet_s = self._now_s - self._last_life_s
        if quiet_s < early_s or max((rank["size"] for rank in ranks), default=0) < verdict.MIN_RANKS:
            return
        late = quiet_s >= late_s
        # The next question comes when the pause is twice as long or late_s is over, but not before early_s.
        self._next_question_s = self._now_s + (
            quiet_s if late else max(early_s, min(quiet_s, late_s - quiet_s))
        )
        ranks = self._ask(ABOUT_IDLE, early_s, may_cut=late)
        if verdict.needs_all_stacks(ranks, late=late):
            ranks = self._ask(ABOUT_ALL, early_s, may_cut=late)
        self._outside_s = max((rank["waits_s"] for rank in ranks), default=0.0)
        hang = verdict.judge(ranks, self._ranks.keys(), quiet_s, late=late)
        if hang.line:
            is_only_late = not verdict.judge(ranks, self._ranks.keys(), quiet_s).line
            self._next_question_s = self._now_s + (late_s if is_only_late else early_s)
            self._report(hang, late=is_only_late, early_s=early_s)

    def _report(self, hang: verdict.Verdict, *, late: bool, early_s: float) -> None:
        """Report a hang. If a later verdict is the same and no rank has moved, act as HANG asks.

        `late` is whether only a late verdict names this hang.
        """
        if self._reported_s is None:
            self._reported_s, self._signs_since_report = self._now_s, 0
            _write(self.run_dir / REPORT, json.dumps({"says": hang.line, "time": time.time()}))
            complain(f"hang: {hang.line}; stacks: {self.run_dir / FOLDER}")
        elif self._last_life_s > self._reported_s:  # a rank has moved since the report: this is another pause
            self._reported_s = self._now_s
        elif hang.is_sure and self._confirms(hang, late=late, early_s=early_s):
            self._act(os.environ.get(ACTION_VARIABLE, ""), hang.line)

    def _confirms(self, hang: verdict.Verdict, *, late: bool, early_s: float) -> bool:
        """Ask twice more; return whether the verdict stays the same and no rank has moved since."""
        began_s = self._now_s
        before = self._ask(ABOUT_IDLE, early_s, may_cut=late)
        second = verdict.judge(before, self._ranks.keys(), self._now_s - self._last_life_s, late=late)
        # In the first of these looks, ranks seem to have moved, because they answered the signals of _ask. No
        # signal is sent before the later looks.
        for _ in range(LOOKS_BEFORE_END):
            time.sleep(self.limit_s / LOOKS_PER_LIMIT)
            self._note_ranks()
        after, since_s = self._ask(BY_PROC, early_s), self._now_s - began_s
        spinning = {rank["rank"] for rank in before if rank["does"] == verdict.COMPUTES}  # in NCCL
        held_states = {rank["rank"]: rank["state"] for rank in before if rank["state"] in verdict.HELD_STATES}
        has_moved = any(
            rank["life_s"] < since_s
            or (rank["computed_s"] < since_s and rank["rank"] not in spinning)
            or held_states.get(rank["rank"], rank["state"]) != rank["state"]
            for rank in after
        )
        is_the_same = second.is_sure and _without_time(second.line) == _without_time(hang.line)
        has_news = self._signs.look()
        if has_news or has_moved or not is_the_same or len(after) != len(before):
            self._note_life(self._now_s, is_news=has_news)
            return False
        return True

    def _act(self, action: str, line: str) -> None:
        """End the training if the action is stop or requeue. The launchers end the ranks of other nodes."""
        if action not in ("stop", "requeue"):
            return
        if action == "requeue" and os.environ.get(AGAIN_FILE):
            self._record_odd_node(line)
            ask_again()
        leave_status(HUNG)
        complain("hang: the training is ended, and what it has not saved is lost")
        # A program that wraps a rank could start that rank again, so it is killed first.
        above = () if self._spawns else stacks.top_programs(self._root)
        for pid in [*above, *(rank.pid for rank in self._ranks.values())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # a rank in a collective handles no other signal

    def _record_odd_node(self, line: str) -> None:
        """Add a line about the node to ODD_NODES_FILE, if the verdict names ranks of only one node.

        preflight.py reads this file when it requeues the job.
        """
        nodes = {*re.findall(r"rank \d+ on (\S+)", line)}
        if len(nodes) == 1:
            with (self.run_dir / ODD_NODES_FILE).open("a") as file:
                file.write(f"{os.environ.get('SLURM_JOB_ID', '')} {nodes.pop()}\n")

    def _last_question(self) -> dict[str, Any]:
        """Return the last question of rank 0's watcher, or a question with the number 0."""
        with contextlib.suppress(OSError, ValueError):
            question: dict[str, Any] = json.loads(read_small(self.run_dir / FOLDER / QUESTION_FILE))
            return question
        return {"number": 0, "what": BY_PROC, "still_s": 0.0, "may_cut": False}

    def _ask(self, kind: int, still_s: float, *, may_cut: bool = False) -> list[dict[str, Any]]:
        """Ask every node's watcher what its ranks do; return the answers, with the facts of `verdict.facts`.

        `kind` is one of the kinds of questions. `still_s` is the time for which a rank must have been idle
        before it gets the signal. With `may_cut`, ranks get the signal even if it ends their system call
        early.
        """
        folder = self.run_dir / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        number = time.time_ns()
        question = {"number": number, "what": kind, "still_s": still_s, "may_cut": may_cut}
        _write(folder / QUESTION_FILE, json.dumps(question))
        self._answer()
        until = time.monotonic() + max(self.limit_s / 2, MIN_ANSWER_S)
        while True:
            lines = [json.loads(read_small(path).partition(b"\n")[0]) for path in folder.glob("rank-*.txt")]
            answers = [line for line in lines if line.get("to") == number]
            # This node's ranks have answered above, so ranks of this node without an answer have ended.
            only_ended_miss = verdict.missing_ranks(answers) <= self._ranks.keys()
            if time.monotonic() > until or (answers and only_ended_miss):
                return verdict.facts(answers, self._launcher_ends(), still_s)
            time.sleep(self.limit_s / 40)

    def _launcher_ends(self) -> list[tuple[str, str]]:
        """Return the local and remote address of each connection of this launcher.

        One of the connections leads to the store at which the ranks meet.
        """
        known, (_, inodes) = connections(), proc.files_and_sockets(self._root)
        return [known[inode][:2] for inode in inodes & known.keys()]

    def _answer(self) -> None:
        """Write an answer to the last question for each rank of this node: its facts, and its stack."""
        question = self._last_question()
        kind, still_s, may_cut = question["what"], question["still_s"], question["may_cut"]
        for number, rank in self._ranks.items():
            if rank.state:
                facts, text = self._facts(number, rank, kind, still_s, may_cut=may_cut)
                facts["to"] = question["number"]
                _write(self.run_dir / FOLDER / f"rank-{number:05}.txt", f"{json.dumps(facts)}\n{text}")

    def _facts(
        self, number: int, rank: Rank, kind: int, still_s: float, *, may_cut: bool
    ) -> tuple[dict[str, Any], str]:
        """Return the facts about a rank, and its stack if the kind of question asks for the stack.

        The other arguments are those of `_ask`.
        """
        # An idle rank may be in the state R for a moment, because it looks for an event again and again.
        stands_still = rank.still_s(self._now_s) >= still_s and rank.state in ("S", "R")
        computes = self._now_s - rank.computed_s < still_s and rank.state in ("R", "S")
        text = ""
        rank.was_asked |= kind >= ABOUT_IDLE
        if kind >= ABOUT_IDLE and stands_still:
            text = stacks.stack_asleep(rank.pid, may_cut=may_cut or stacks.has_locked_loader(rank.pid))
        elif kind >= ABOUT_ALL and computes:
            text = stacks.stack_awake(rank.pid)
        frames = stacks.frames(text)
        call, at = stacks.call_and_line(rank.pid, frames)
        waits_for_loader = stacks.waits_for_loader(frames)
        # A rank writes no stack while it waits for a CPU, or while it polls (with torch before 2.5).
        if kind >= ABOUT_IDLE and not frames:
            at = stacks.locked_loader_line(rank.pid)
            waits_for_loader = stands_still and bool(at)
        facts = {
            "rank": number,
            "size": self._size(rank.pid),
            "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            "state": rank.state,
            "call": call,  # the call in which the rank waits for other ranks, or ""
            "at": at,  # the line of the user's code, or of its loader
            # Whether the rank runs code of a library on a CPU. A rank that waits in NCCL does so.
            "spins": kind >= ABOUT_ALL and computes and not frames and proc.state(rank.pid) == "R",
            "computed_s": self._now_s - rank.computed_s,
            "moved_s": self._now_s - rank.moved_s,
            "sleeps": proc.sleeps(rank.pid),
            "woke_s": self._now_s - rank.main_woke_s,
            # Whether no other thread and no signal handler could have acted.
            "alone": self._now_s - rank.could_act_s >= still_s,
            "stuck": self._is_stuck(rank, still_s, waits_for_loader=waits_for_loader),
            "program": rank.awaited_program({other.pid for other in self._ranks.values()}) if text else "",
            "connections": rank.connections(self._now_s),
        }
        return facts, text

    def _is_stuck(self, rank: Rank, still_s: float, *, waits_for_loader: bool) -> bool:
        """Return whether a rank is deadlocked: only its own threads or its loader could wake it, but can't.

        The first lines of rank.py define a deadlock.
        """
        if waits_for_loader:
            return stacks.are_loaders_stuck(rank.pid)
        return self._now_s - rank.unlocked_s >= still_s

    def _size(self, pid: int) -> int:
        """Return the number of ranks of the run. SLURM_NTASKS does not count ranks that a trainer spawns."""
        on_node = len(self._ranks)
        if self._spawns:
            return on_node * self._nodes
        return max(int(proc.variable(pid, "WORLD_SIZE", "SLURM_NTASKS") or 0), on_node)


def _without_time(line: str) -> str:
    """Return the line of a verdict without the length of the pause."""
    return line.rpartition(" for ")[0]


def _write(path: Path, text: str) -> None:
    replace(path, lambda file: file.write(text.encode()))


def watch(environ: Mapping[str, str], *, is_rank: bool = False) -> None:
    """Start a thread that watches the ranks of this launcher.

    `environ` is the environment of the ranks, which must have the hook (`stacks.with_hook`). With `is_rank`,
    this process is a rank itself. Then a child process watches the rank, and ends with the rank.
    """
    after, parent = environ.get(LIMIT_VARIABLE) or "0", os.getpid()
    flags = zip(sys.argv, sys.argv[1:])  # noqa: B905 - Python 3.7
    run_dir = environ.get("RUN_DIR") or next((value for flag, value in flags if flag == "--run-dir"), "")
    if after != "off" and not re.fullmatch(r"\d+(\.\d+)?", after):
        complain(f"warning: {LIMIT_VARIABLE} is {after}; fix: seconds, or off")
        after = "0"
    if not run_dir or after == "off" or not hasattr(os, "memfd_create"):
        return
    with contextlib.suppress(OSError):  # for example, if there are too many processes
        (Path(run_dir) / REPORT).unlink(missing_ok=True)
        spawns = sys.argv[1:3] == ["--launcher", "spawn"] and not environ.get("RANK")
        watcher = Watcher(Path(run_dir), float(after), spawns=spawns)
        if not is_rank:
            threading.Thread(target=watcher.run, daemon=True).start()
            return
        register()
        # The child reads until this process has closed the pipe, after allowing the child to trace it.
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, child)  # fails without Yama, and is not needed then
            os.close(reading)
            os.close(writing)
        else:
            try:
                os.close(writing)
                os.read(reading, 1)
                os.close(reading)
                ignore_signals()
                end_with_parent(parent)
                watcher.run()
            finally:
                os._exit(0)
