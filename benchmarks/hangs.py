#!/usr/bin/env python3
"""Planted hangs, each at each of four ranks: is the rank named, and the line where it is? And healthy runs.

    python benchmarks/hangs.py [--after 4] [--ranks 0 1 2 3] [--launchers torchrun srun spawn] [NAME...]

Every case is a plain training loop with gloo on CPUs, or the bundled trainer. `torchrun` and `spawn` are what
a job script starts, `srun` is a process for each rank with the variables of Slurm. A healthy run is silent
for three times the seconds after which a hang is looked for, and must end with 0 and without an alarm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RANKS = 4
WAIT = 14  # times the seconds of --after, and START_S
START_S = 90.0

TRAINER = """
import ctypes, fcntl, os, queue, signal, socket, subprocess, sys, tempfile, threading, time
import torch, torch.distributed as dist

KIND, BAD = os.environ["KIND"], int(os.environ["BAD"])
QUIET = "validation of rank 0", "validation of all", "slow save", "download"
STEPS, AT, AFTER = 12, 5, float(os.environ["AFTER"])
lock = threading.Lock()
there = os.environ["THERE"]


class Data(torch.utils.data.Dataset):
    def __init__(self, is_bad):
        self.is_bad = is_bad

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        if self.is_bad and index == AT and KIND == "sleep in dataset":
            time.sleep(9999)  # HERE sleep in dataset
        if self.is_bad and index == AT and KIND == "loader lock":
            lock.acquire()
            lock.acquire()  # HERE loader lock
        return torch.ones(4)


def busy(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.ones(200, 200) @ torch.ones(200, 200)


def download():  # without a word
    here, there = socket.socketpair()
    def serve():
        until = time.monotonic() + 3 * AFTER
        while time.monotonic() < until:
            there.sendall(bytes(4096))
            time.sleep(0.01)
        there.close()
    threading.Thread(target=serve).start()
    while here.recv(4096): pass


def dies(q):
    try:
        raise ValueError("swallowed")
    except ValueError:
        return


def fault(rank):
    if KIND == "lock":
        lock.acquire()
        lock.acquire()  # HERE lock
    elif KIND == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif KIND == "dead thread":
        q = queue.Queue()
        threading.Thread(target=dies, args=(q,)).start()
        q.get()  # HERE dead thread
    elif KIND == "barrier in one branch":
        dist.barrier()  # HERE barrier in one branch
    elif KIND == "finished":
        threading.Thread(target=time.sleep, args=(9999,)).start()
        sys.exit()  # and waits for the thread
    elif KIND == "retry":
        while True:
            try:
                socket.create_connection(("127.0.0.1", 9))
            except OSError:
                time.sleep(0.3)  # HERE retry
    elif KIND == "spins":
        while True: pass  # HERE spins
    elif KIND == "join":
        thread = threading.Thread(target=time.sleep, args=(9999,), daemon=True)
        thread.start()
        thread.join()  # HERE join
    elif KIND == "subprocess":
        subprocess.run(["sleep", "600"])  # HERE subprocess
    elif KIND == "fifo":
        os.mkfifo(there + "/fifo")
        open(there + "/fifo").read()  # HERE fifo
    elif KIND == "file lock":
        held = open(there + "/lock", "w")
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(open(there + "/lock"), fcntl.LOCK_EX)  # HERE file lock
    elif KIND == "socket":
        a, b = socket.socketpair()
        a.recv(1)  # HERE socket
    elif KIND == "recv":
        dist.recv(torch.ones(1), (rank + 1) % dist.get_world_size())  # HERE recv
    elif KIND == "event":
        threading.Event().wait()  # HERE event
    elif KIND == "full queue":
        q = queue.Queue(1)
        q.put(1)
        q.put(2)  # HERE full queue
    elif KIND == "holds the GIL":
        mutex = ctypes.create_string_buffer(64)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # HERE holds the GIL
    elif KIND == "another collective":
        dist.all_gather_object([None] * dist.get_world_size(), 1)  # HERE another collective
    elif KIND == "another order":
        dist.broadcast(torch.ones(1), 0 if rank else 1)  # HERE another order


def main():
    if KIND == "slow first step":
        spin = f"import time\\nend = time.time() + {3 * AFTER}\\nwhile time.time() < end: pass"
        subprocess.run([sys.executable, "-c", spin])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    is_bad = rank == BAD
    in_loader = KIND == "loader lock"
    loader = torch.utils.data.DataLoader(Data(is_bad), num_workers=int(in_loader))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step, batch in enumerate(loader):
        if step == AT and is_bad:
            fault(rank)
        if step == AT and KIND in QUIET:
            if KIND == "slow save" and rank == 0:
                with open(there + "/large", "wb") as file:
                    until = time.monotonic() + 3 * AFTER
                    while time.monotonic() < until:
                        file.write(bytes(4 << 20))
                        file.truncate(0)
                        time.sleep(0.05)
            elif KIND == "download" and rank == 0:
                download()
            elif KIND == "validation of all" or (KIND == "validation of rank 0" and rank == 0):
                busy(3 * AFTER)
            dist.barrier()
        if KIND == "skipped step" and is_bad and step == AT:
            continue
        loss = model(batch).sum()
        loss.backward()
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            print("step", step, flush=True)
    dist.barrier()  # HERE skipped step
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own end sometimes never comes: it waits with the GIL for a thread that wants it


def ranks_of_spawn(rank, size, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    main()


if __name__ == "__main__":
    if os.environ.get("RANK"):
        main()
    else:
        torch.multiprocessing.spawn(ranks_of_spawn, (4, os.environ["MASTER_PORT"]), nprocs=4)
"""
BUNDLED = """
import os, time
import torch

AFTER = float(os.environ["AFTER"])


class Data(torch.utils.data.Dataset):
    classes = ("a", "b")

    def __init__(self, count, slow):
        self.count, self.slow = count, slow

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        until = time.monotonic() + self.slow
        while time.monotonic() < until:
            torch.ones(100, 100) @ torch.ones(100, 100)
        return torch.rand(1, 8, 8), index % 2


def data(config):
    return Data(64, 0.01), Data(8, AFTER / 2)


def model(config):
    end = time.monotonic() + 2 * AFTER  # as a compiler
    while time.monotonic() < end:
        torch.ones(100, 100) @ torch.ones(100, 100)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
"""
FLAGS = (
    *("--dataset", "own:data", "--model", "own:model", "--batch-size", "16", "--epochs", "2"),
    *("--save-every", "3", "--device", "cpu", "--workers", "1", "--log-every", "1"),
)
HANGS = [
    *("lock", "stopped", "dead thread", "barrier in one branch", "finished", "retry", "spins", "join"),
    *("subprocess", "fifo", "file lock", "socket", "recv", "event", "full queue", "holds the GIL"),
    *("another collective", "another order", "sleep in dataset", "loader lock"),
    "skipped step",
]
PLACELESS = ("stopped", "finished")  # the rank has no stack
HEALTHY = ["slow first step", "validation of rank 0", "validation of all", "slow save", "download", "bundled"]
ELSEWHERE = ("lock", "stopped", "barrier in one branch", "sleep in dataset", "loader lock")


class Outcome(NamedTuple):
    """What was said of a run."""

    says: str
    rank_is_right: bool
    place_is_right: bool
    seconds: float
    is_done: bool  # its processes ended with 0


def line_of(kind: str) -> int:
    """The line of the trainer where a planted hang is; 0 if it has none."""
    marked = (number for number, line in enumerate(TRAINER.splitlines(), 1) if f"# HERE {kind}" in line)
    return next(marked, 0)


def free_port() -> str:
    """A port that no client is given by chance."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(15000, 32000)  # noqa: S311 - no secret
            probe.bind(("127.0.0.1", port))
            return str(port)


def start(launcher: str, folder: Path, kind: str, bad: int, after: float) -> list[subprocess.Popen[bytes]]:
    """Start a training with a hang of this kind at this rank."""
    port, run_dir, training = free_port(), folder / "run", ROOT / "training"
    run_dir.mkdir()
    (folder / "train.py").write_text(TRAINER)
    (folder / "own.py").write_text(BUNDLED)
    known = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    known |= {"RUN_DIR": str(run_dir), "HANG_AFTER": f"{after:g}", "KIND": kind, "BAD": str(bad)}
    known |= {"AFTER": f"{after:g}", "THERE": str(folder), "OMP_NUM_THREADS": "1"}
    known |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    known |= {"PYTHONPATH": f"{ROOT / 'tests' / 'training' / 'quickly'}:{folder}"}
    is_bundled = kind == "bundled"
    trainer = [str(training), *FLAGS, "--run-dir", str(run_dir)] if is_bundled else [str(folder / "train.py")]
    calls: list[tuple[list[str], dict[str, str]]] = []
    if launcher == "torchrun":
        calls = [([f"{training}/torchrun.py", f"--nproc-per-node={RANKS}", "--", *trainer], {})]
    elif launcher == "spawn":
        task, more = [f"{training}/task.py", "--launcher", "spawn", "--"], ["--launcher", "spawn"]
        more += ["--nproc-per-node", str(RANKS)]
        calls = [([*trainer, *more] if is_bundled else [*task, *trainer], {})]
    for rank in range(RANKS * (launcher == "srun")):
        of_slurm = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": str(RANKS)}
        of_slurm["SLURMD_NODENAME"] = f"n{rank // 2}"
        calls.append((trainer if is_bundled else [f"{training}/task.py", "--", *trainer], of_slurm))
    with (run_dir / "log").open("ab") as log:
        return [
            subprocess.Popen(
                [sys.executable, *call], env=known | more, stdout=log, stderr=log, start_new_session=True
            )
            for call, more in calls
        ]


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill the launchers; their ranks end with them, or are killed by name of their session."""
    below: list[int] = []
    todo = [process.pid for process in processes]
    while todo:
        pid = todo.pop()
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                todo += map(int, children.read_text().split())
        below.append(pid)
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def trial(launcher: str, kind: str, bad: int, after: float) -> Outcome:
    """Run one case until something is said of it, or it has ended; a healthy one until its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        processes = start(launcher, folder, kind, bad, after)
        report, log = folder / "run" / "hang.json", folder / "run" / "log"
        try:
            while time.monotonic() - began < START_S + WAIT * after:
                if report.exists() and kind not in HEALTHY:
                    break
                if all(process.poll() is not None for process in processes):
                    break
                time.sleep(0.2)
            seconds, is_done = time.monotonic() - began, all(process.poll() == 0 for process in processes)
        finally:
            end(processes)
        alarms = [line for line in log.read_text(errors="replace").splitlines() if "hang: " in line]
        says = alarms[0].partition("hang: ")[2].partition("; stacks: ")[0] if alarms else ""
        if report.exists():  # the line in the log comes after it
            says = json.loads(report.read_text())["says"]
        if (kind in HEALTHY) != is_done or (kind in HEALTHY and says):
            print(log.read_text(errors="replace")[-1500:], file=sys.stderr)
            for path in sorted(folder.glob("run/stacks/*.txt")) if says or kind in HEALTHY else ():
                print(path.read_text()[:1200], file=sys.stderr)
    named = [part for part in says.split("; ") if part.startswith("rank ")]
    right = len(named) == 1 and named[0].startswith(f"rank {bad} ")
    at = f"train.py:{line_of(kind)}" if line_of(kind) else ""
    place = kind in PLACELESS or (bool(at) and at in says)
    return Outcome(says, right, right and place, seconds, is_done)


@contextlib.contextmanager
def loaded(count: int) -> Iterator[None]:
    """So many busy loops of low priority."""
    loops = [subprocess.Popen(["nice", sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> int:
    """Print a table; 1 if a healthy run was reported, or did not end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--after", type=float, default=4.0)
    parser.add_argument("--ranks", type=int, nargs="*", default=[*range(RANKS)])
    parser.add_argument("--launchers", nargs="+", default=["torchrun", "srun", "spawn"])
    parser.add_argument("--healthy", type=int, default=2, help="runs of each healthy kind")
    parser.add_argument("--load", type=int, default=0, help="busy loops beside them")
    asked = parser.parse_args()
    with loaded(asked.load):
        return measure(asked)


def measure(asked: argparse.Namespace) -> int:
    """Run all cases."""
    right = place = count = alarms = healthy = ended = 0
    for launcher in asked.launchers:
        for kind in [kind for kind in HANGS if kind in (asked.names or HANGS)]:
            if launcher != "torchrun" and kind not in (asked.names or ELSEWHERE):
                continue
            for bad in asked.ranks:
                made = trial(launcher, kind, bad, asked.after)
                count, right, place = count + 1, right + made.rank_is_right, place + made.place_is_right
                marks = f"{'rank' if made.rank_is_right else '-':4} {'line' * made.place_is_right or '-':4}"
                print(f"{launcher:8} {kind:22} {bad} {marks} {made.seconds:5.1f} s  {made.says}", flush=True)
        for kind in [kind for kind in HEALTHY if kind in (asked.names or HEALTHY)]:
            for _ in range(asked.healthy):
                made = trial(launcher, kind, -1, asked.after)
                healthy, alarms, ended = healthy + 1, alarms + bool(made.says), ended + made.is_done
                end_of_it = "ended" if made.is_done else "-"
                print(f"{launcher:8} {kind:22} {end_of_it:6} {made.seconds:5.1f} s  {made.says}", flush=True)
    print(f"hangs: rank right {right} of {count}, line right {place}")
    print(f"healthy runs: alarms {alarms} of {healthy}, ended {ended}")
    return 1 if alarms or ended < healthy else 0


if __name__ == "__main__":
    sys.exit(main())
