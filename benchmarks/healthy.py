#!/usr/bin/env python3
"""Healthy trainings that are silent for long, each in its way: does the watcher of hangs leave them alone?

    python benchmarks/healthy.py [--after 4] [--at-once 4] [--ranks 3] [KIND...]
    python benchmarks/healthy.py --after 120 --pause 300 --at-once 20 --ranks 2

Each pause takes 2.5 times as long as --after, the limit in seconds. A run must end with 0, without an alarm.
What hanging/healthy.py asks of other machines, a server in this process answers: late, slowly or in parts.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http.server
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.hangs import TRAINERS, end  # noqa: E402

LONGER = 2.5
START_S = 240.0  # for the imports of many at once
# Names of kinds in the trainer, which imports torch.
KINDS = [
    *(
        "answer",
        "answer with a time limit",
        "answer in a thread",
        "answers to asyncio",
        "answers beside a timer",
    ),
    *("answer in parts", "rollouts", "download", "download in a program", "download by multiprocessing"),
    *("upload", "upload in a thread", "upload in a program", "upload that waits for an answer"),
    *("a program that sleeps", "output of a program", "program with a time limit"),
    *("tokenisation", "tokenisation in processes", "index", "compilation in a program", "compilation"),
    *("slow disk", "very slow disk", "many files", "reading", "validation", "validation at 5 %"),
    *(
        "validation in a thread",
        "validation in a thread at 20 %",
        "evaluation in a program",
        "profile",
        "actor",
        "actor that speaks last",
    ),
    *("loader that computes", "loader that downloads", "validation of all", "validation of all at 5 %"),
    *("averages of weights", "turns", "all sleep", "file lock", "key of the store"),
    *("first step compiles", "first step waits"),
    *("back-off", "file of another job", "timer of asyncio", "loader that backs off", "answer without TCP"),
    "data set that backs off",
    *("lock of another job", "database on a Unix socket", "pushed rollouts", "pool of forked processes"),
    *("pool of spawned processes", "event with a time", "sandboxes in threads", "pipe into a program"),
    *("inotify", "fork and waitpid", "signal", "sleep of asyncio", "websocket in a thread"),
    "checkpoint of torch",
    *("slow FIFO", "torch.compile", "upload of rank 1", "training in a child"),
]


class Server(http.server.BaseHTTPRequestHandler):
    """Answers after a time, in parts, slowly, or never while it takes what is sent."""

    def do_GET(self) -> None:
        """Answer as the first part of the path says, for so many seconds as the second."""
        how, seconds = self.path.strip("/").split("/")[:2]
        until = time.monotonic() + float(seconds)
        self.send_response(200)
        if how == "late":
            time.sleep(float(seconds))
        self.end_headers()
        with contextlib.suppress(OSError):
            while how != "late" and time.monotonic() < until:
                self.wfile.write(
                    b"a token\n" * 20 if how == "parts" else bytes(30_000) if how == "download" else b"x"
                )
                self.wfile.flush()
                time.sleep({"parts": 0.5, "download": 0.1}.get(how, min(float(seconds), 60.0)))

    def do_POST(self) -> None:
        """Take what is sent."""
        with contextlib.suppress(OSError):
            while self.rfile.read(1000):
                pass

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Late(socketserver.BaseRequestHandler):
    """What speaks late."""

    pause_s = 0.0


class Engine(Late):
    """Answers late, through a socket of this machine."""

    def handle(self) -> None:
        """Answer once the pause is over."""
        self.request.recv(1)
        time.sleep(self.pause_s)
        self.request.sendall(b"!")


def write_slowly(fifo: Path, pause_s: float) -> None:
    """A few bytes, five times in the pause."""
    with fifo.open("w") as lines:
        for _ in range(5):
            lines.write("a line\n")
            lines.flush()
            time.sleep(pause_s / 5)


class Driver(Late):
    """Speaks first, and at times, until the pause is over."""

    def handle(self) -> None:
        """Send a word, twice in a limit of two minutes."""
        with contextlib.suppress(OSError):
            for _ in range(5):
                time.sleep(self.pause_s / 5)
                self.request.sendall(b"x")


def trial(kind: str, asked: argparse.Namespace, port: int) -> tuple[str, str, bool, float]:
    """Run a kind to its end: what was said of it, whether it has ended well, and how long it took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_dir = folder / "run"
        run_dir.mkdir()
        shutil.copy(TRAINERS / "healthy.py", folder / "train.py")
        known = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "HANG"))}
        known |= {"RUN_DIR": str(run_dir), "KIND": kind, "AFTER": f"{asked.after:g}", "THERE": name}
        known |= {"PAUSE": f"{asked.pause or LONGER * asked.after:g}", "SERVER": f"127.0.0.1:{port}"}
        known |= {"DRIVER": str(asked.driver), "LOCAL": asked.local}
        if kind == "slow FIFO":
            os.mkfifo(folder / "fifo")
            writer = threading.Thread(
                target=write_slowly, args=(folder / "fifo", float(known["PAUSE"])), daemon=True
            )
            writer.start()
        known |= {"HANG_AFTER": f"{asked.after:g}"} if asked.after != 120 else {}
        known |= {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "tests/training/quickly"),
            "HANG": asked.act,
        }
        call = [sys.executable, str(ROOT / "training/torchrun.py"), f"--nproc-per-node={asked.ranks}"]
        call += ["--standalone", "--", str(folder / "train.py")]
        began = time.monotonic()
        with (run_dir / "log").open("ab") as log:
            process = subprocess.Popen(call, env=known, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(START_S + 4 * float(known["PAUSE"]) + asked.after)
        except subprocess.TimeoutExpired:
            pass
        finally:
            status = process.poll()
            end([process])
        text = (run_dir / "log").read_text(errors="replace")
        if status != 0:
            print(kind, status, text[-1500:], file=sys.stderr)
        alarms = [line for line in text.splitlines() if "hang: " in line]
        if alarms:
            for path in sorted(run_dir.glob("stacks/*.txt")):
                print(kind, path.read_text()[:1500], file=sys.stderr)
        return kind, "; ".join(alarms), status == 0, time.monotonic() - began


def main() -> int:
    """Print a line for each kind; 1 if there was an alarm, or a run did not end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--after", type=float, default=4.0)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--act", default="stop", choices=("report", "stop", "requeue"))
    asked = parser.parse_args()
    Late.pause_s = asked.pause or LONGER * asked.after
    with tempfile.TemporaryDirectory() as folder:
        return measure(asked, f"{folder}/engine")


def measure(asked: argparse.Namespace, local: str) -> int:
    """Run the kinds; `local`: the name of a socket."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    driver = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Driver)
    asked.driver = driver.server_address[1]
    asked.local = local
    engine = socketserver.ThreadingUnixStreamServer(local, Engine)
    servers: tuple[socketserver.BaseServer, ...] = (server, driver, engine)
    driver.daemon_threads = engine.daemon_threads = True
    for each in servers:
        threading.Thread(target=each.serve_forever, daemon=True).start()
    alarms = ended = 0
    kinds = asked.kinds or KINDS
    with concurrent.futures.ThreadPoolExecutor(asked.at_once) as pool:
        port = server.server_address[1]
        for kind, says, is_done, seconds in pool.map(lambda kind: trial(kind, asked, port), kinds):
            alarms, ended = alarms + bool(says), ended + is_done
            print(f"{kind:32} {'ended' if is_done else '-':6} {seconds:6.1f} s  {says}", flush=True)
    print(f"healthy runs: alarms {alarms} of {len(kinds)}, ended {ended}")
    return 1 if alarms or ended < len(kinds) else 0


if __name__ == "__main__":
    sys.exit(main())
