"""Which rank hangs, and where: a watcher beside the ranks of a node, in their launcher.

Rank 0's watcher leads. If nothing moves in the run folder, it asks all for what their ranks do: each looks
several times and writes a file for each rank. If all stand still, a line names who the others wait for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.errors import HANGS, complain
from training.files import CHECKPOINTS, LOCK, read_small, replace
from training.hook.sitecustomize import register
from training.processes import stacks
from training.processes.jobscript import AGAIN_FILE, ask_again, leave_status
from training.processes.stop import end_with_parent, ignore_signals

AFTER, AFTER_S = "HANG_AFTER", 120.0  # the variable: seconds, or off
ACT = "HANG"  # the variable: report, stop or requeue
LONGER, LATE = 3, 8  # times the longest pause so far; times as long: then one may compute, or not answer
FIRST = 2  # times as long before the first step: a trainer compiles, and prepares its data
LOOKS, CHANGES = 3, 5  # in a quarter of the time; after which a run has continued: our line is the first
FOLDER, ASK, REPORT, NAMED = "stacks", "ask", "hang.json", 4  # ranks in the line
ODD = f"{FOLDER}/odd"  # a line for each end: the job, and the node of the rank that the others waited for
FILES = 256  # whose times are looked at
STATES = {"T": "stopped by a signal", "t": "held by a debugger", "Z": "at its end"}


class Watcher:
    """Watches the ranks at and below this process; `spawns`: the trainer starts them."""

    def __init__(self, run_dir: Path, after_s: float, *, spawns: bool) -> None:
        self.run_dir, self._spawns, self._root = run_dir, spawns, os.getpid()
        self._is_fixed, self.after_s = bool(after_s), after_s or AFTER_S  # so long nothing must move
        self._ranks: dict[int, int] = {}  # their processes, also of those that have ended
        self._signs: list[tuple[int, ...]] = []
        self._looked = time.monotonic()
        self._quiet_s = self._next_s = 0.0  # how long nothing has moved; after how long it asks again
        self._changes, self._asked = CHANGES, self._ask_time()  # since its report
        self._moves = 0  # how often something has moved
        self._doing: set[str] = set()  # in this pause, as functions of ranks that do not wait
        self._usual: dict[str, float] = {}  # the longest pause in each, such as a validation or a save

    def run(self) -> None:
        """Watch until the process ends. Nothing that goes wrong here may end the training."""
        while True:
            time.sleep(self.after_s / 8)
            with contextlib.suppress(Exception):
                self.look()

    def look(self) -> None:
        """Look once whether anything moves, or whether another node's watcher asks."""
        ranks = stacks.ranks_below(self._root, spawns=self._spawns)
        if not self._spawns or len(ranks) >= len(self._ranks):  # else one has ended
            self._ranks.update(ranks)
        if 0 in self._ranks:
            self._lead()
        elif self._asked != self._ask_time():
            self._asked = self._ask_time()
            self._answer()

    def _ask_time(self) -> float:
        path = self.run_dir / FOLDER / ASK
        return path.stat().st_mtime if path.exists() else 0.0

    def _lead(self) -> None:
        if self._silence() < max(self.after_s / 2, self._next_s) or self._changes < CHANGES:
            return
        known = self._ask()
        self._doing = {each["in"] for each in known if not each["call"]} or {each["in"] for each in known}
        early, late = self._limits()
        while 0 < self._silence() < self.after_s:
            time.sleep(self.after_s / 40)
        self._next_s = 2 * self._quiet_s
        says = sentence(known, self._ranks, self._quiet_s, late=self._quiet_s > late)
        if self._quiet_s >= early and says:
            _put(self.run_dir / REPORT, json.dumps({"says": says, "time": time.time()}))
            self._changes = 0
            complain(f"hang: {says}; stacks: {self.run_dir / FOLDER}")
            self._act(os.environ.get(ACT, ""), says)

    def _limits(self) -> tuple[float, float]:
        """How long ranks that stand still may do what they do in this pause, and others."""
        usual_s = LONGER * min((self._usual.get(each, 0.0) for each in self._doing), default=0.0)
        base_s = self.after_s * (FIRST if self._moves < CHANGES else 1)
        return max(base_s, usual_s), max(LATE * base_s, usual_s)

    def _act(self, act: str, says: str) -> None:
        """End the training, if the job is to: the launchers end the ranks of other nodes."""
        if act not in ("stop", "requeue"):
            return
        if act == "requeue" and os.environ.get(AGAIN_FILE):
            self._note_node(says)
            ask_again()
        leave_status(HANGS)
        complain("hang: the training is ended, and what it has not saved is lost")
        for pid in self._ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it is in a collective, and sees no other signal

    def _note_node(self, says: str) -> None:
        nodes = {*re.findall(r"rank \d+ on (\S+)", says)}
        if len(nodes) == 1:
            with (self.run_dir / ODD).open("a") as file:
                file.write(f"{os.environ.get('SLURM_JOB_ID', '')} {nodes.pop()}\n")

    def _silence(self) -> float:
        """How long nothing has been written into the run folder, or to the log where that is a file."""
        signs: list[tuple[int, ...]] = [(os.fstat(output).st_size,) for output in (1, 2)]
        for path in [*(self.run_dir / CHECKPOINTS).glob("*"), *self.run_dir.glob("*")][:FILES]:
            with contextlib.suppress(OSError):
                status = path.lstat()
                if path.name not in (REPORT, FOLDER, LOCK):
                    signs.append((status.st_ino, status.st_size, status.st_mtime_ns))
        now = time.monotonic()
        self._quiet_s += min(now - self._looked, self.after_s)  # the whole job may have been suspended
        self._looked = now
        if signs != self._signs:
            if not self._is_fixed and self._moves >= CHANGES:
                self._learn()
            self._signs, self._quiet_s, self._next_s = signs, 0.0, 0.0
            self._changes, self._moves, self._doing = self._changes + 1, self._moves + 1, set()
            if self._changes == CHANGES:
                complain("hang: it continues")
                (self.run_dir / REPORT).unlink()
        return self._quiet_s

    def _learn(self) -> None:
        """A pause is over: what the ranks did in it may take so long again."""
        for each in self._doing:
            self._usual[each] = max(self._usual.get(each, 0.0), self._quiet_s)
        if not self._doing:
            self.after_s = max(self.after_s, LONGER * self._quiet_s)

    def _ask(self) -> list[dict[str, Any]]:
        """What all ranks do, as their watchers write it; those of other nodes see the question later."""
        folder = self.run_dir / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / ASK).touch()
        self._answer()
        until = time.monotonic() + self.after_s / 2
        while True:
            paths = (path for path in folder.glob("rank-*.txt") if path.stat().st_mtime >= self._ask_time())
            known = [json.loads(read_small(path).partition(b"\n")[0]) for path in paths]
            if time.monotonic() > until or (known and len(known) >= known[0]["size"]):
                return known
            time.sleep(self.after_s / 40)

    def _answer(self) -> None:
        """Look at the ranks of this node, and write what they do."""
        pause_s, looks = max(1.0, self.after_s / 4 / (LOOKS - 1)), []
        for number in range(LOOKS):
            time.sleep(pause_s if number else 0)
            looks.append({rank: stacks.look(pid) for rank, pid in self._ranks.items()})
        for rank, pid in self._ranks.items():
            state, frames, _, text = looks[-1][rank]
            if state:
                call, at = stacks.place(pid, frames)
                host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
                size = int(stacks.variable(pid, "WORLD_SIZE", "SLURM_NTASKS") or len(self._ranks))
                about = {"rank": rank, "size": size, "host": host, "state": state, "call": call, "at": at}
                about["in"] = stacks.function(frames)
                about["still"] = stands_still([each[rank] for each in looks], pause_s)
                _put(self.run_dir / FOLDER / f"rank-{rank:05}.txt", f"{json.dumps(about)}\n{text}")


def _put(path: Path, text: str) -> None:
    replace(path, lambda file: file.write(text.encode()))


def stands_still(looks: Sequence[stacks.Look], pause_s: float) -> bool | None:
    """Whether a rank did nothing between these looks; None if it did something in one place.

    NCCL and CUDA spin while they wait, also for a GPU that computes; a large file is written after `write`.
    """
    if any(each.frames != looks[0].frames for each in looks):
        return False
    work = max(abs(after.work - before.work) for before, after in zip(looks, looks[1:]))  # noqa: B905, RUF007 - Python 3.7
    return (work <= pause_s and all(each.state not in ("R", "D") for each in looks)) or None


def sentence(
    ranks: Sequence[Mapping[str, Any]], here: Iterable[int], quiet_s: float, *, late: bool = False
) -> str:
    """The line that names the rank which the others wait for; "" without such a rank.

    `here`: ranks that the asking node has or had. `late`: one may be busy, or not answer.
    """
    size = max((each["size"] for each in ranks), default=0)
    # who spins in one place may wait for one that stands still, as in CUDA for the end of NCCL's kernel
    spin = "R" if any(each["still"] and not each["call"] for each in ranks) else ""
    waits = [each["call"] or (each["state"] == spin and each["still"] is None) for each in ranks]
    waiting = [each for each, waits in zip(ranks, waits) if waits and each["state"] not in STATES]  # noqa: B905 - Python 3.7
    others = [each for each in ranks if each not in waiting]
    gone = sorted({*range(size)} - {each["rank"] for each in ranks})
    odd, is_whole = others or gone, {*here} >= {*gone}  # else those may not have answered
    hang = is_whole and all(each["still"] for each in others)
    hang &= all(each["still"] or (odd and each["still"] is None) for each in waiting)
    hang |= bool(late and odd and any(each["still"] for each in waiting))
    if not (hang and waiting and size > 1):
        return ""
    does, count = Counter(map(_does, waiting)).most_common(1)[0]
    named = others if odd else [each for each in ranks if _does(each) != does]
    if count > 1:
        does = re.sub("^is", "are", re.sub("^waits", "wait", does))
    says = [f"{count} of {size} ranks {does}"]
    says += [f"rank {rank} has ended" + " or gives no answer" * (not is_whole) for rank in gone[:NAMED]]
    says += [f"rank {each['rank']} on {each['host']} {_does(each)}" for each in named[:NAMED]]
    says += ["more ranks are elsewhere"] if max(len(gone), len(named)) > NAMED else []
    long, unit = (quiet_s / 60, "minutes") if quiet_s >= 100 else (quiet_s, "seconds")
    return f"{'; '.join(says)} for {long:.0f} {unit}"


def _does(rank: Mapping[str, Any]) -> str:
    """What a rank does, after its name."""
    if rank["state"] in STATES:
        return f"is {STATES[rank['state']]}"
    at = rank["at"] or "a place that is not known"
    does = f"waits in {rank['call']} ({at})" if rank["call"] else f"is in {at}"
    return f"{does}, on a disk or file system" if rank["state"] == "D" else does


def watch(environ: Mapping[str, str], *, itself: bool = False) -> None:
    """Watch the ranks that this launcher starts with such an environment and `with_hook`, in a thread.

    `itself`: watch this process, a rank, from a process of its own that ends with it.
    """
    after, parent, flags = environ.get(AFTER) or "0", os.getpid(), zip(sys.argv, sys.argv[1:])  # noqa: B905 - Python 3.7
    run_dir = environ.get("RUN_DIR") or next((value for flag, value in flags if flag == "--run-dir"), "")
    if after != "off" and not re.fullmatch(r"\d+(\.\d+)?", after):
        complain(f"warning: {AFTER} is {after}; fix: seconds, or off")
        after = "0"
    if not run_dir or after == "off" or not hasattr(os, "memfd_create"):
        return
    with contextlib.suppress(OSError):  # also if there are too many processes
        (Path(run_dir) / REPORT).unlink(missing_ok=True)
        spawns = sys.argv[1:3] == ["--launcher", "spawn"] and not environ.get("RANK")
        watcher = Watcher(Path(run_dir), float(after), spawns=spawns)
        if not itself:
            threading.Thread(target=watcher.run, daemon=True).start()
            return
        register()
        if os.fork() == 0:
            try:
                ignore_signals()
                end_with_parent(parent)
                watcher.run()
            finally:
                os._exit(0)
