"""The end of steps in which a task has failed: `python3 .../training/step_end.py`, beside a job script.

srun --kill-on-bad-exit ends the other tasks: by SIGTERM, and KillWait later by SIGKILL. A node where the
task is not there yet loses both, as while it is loaded or makes a container, and the task begins alone. A
node that is dead never answers, and srun waits for it. So srun's own lines in the log, which is stderr, are
read: when all that got the signals is gone, a step that is left is killed once more, and then its srun has
to give up. It ends with the script. It runs on the batch host, with an old Python too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

POLL_S = 5.0
LATER_S = 10.0  # after KillWait, by which Slurm has killed what got its signals
KILL_WAIT_S = 30.0  # Slurm's default
# 22.05: "srun: launch/slurm: _step_signal: Terminating StepId=5.0"; 26.05: "srun: Terminating StepId=5.0".
ENDS = re.compile(rb"^srun: (?:[\w/]+: )*Terminating (?:StepId=|job step )(\d+)(\.\d+)", re.MULTILINE)
MOST = 1 << 24  # bytes that are read at once


def main() -> int:
    """Kill each step of this job that srun ends and that outlives that, until the script has ended."""
    script, job, log = os.getppid(), os.environ.get("SLURM_JOB_ID", ""), Path("/proc/self/fd/2")
    if not job or not log.is_file():
        return 0
    done, wait_s = log.stat().st_size, kill_wait_s() + LATER_S
    due: dict[str, float] = {}  # the step, and when something is done about it
    killed: set[str] = set()
    with log.open("rb") as lines:
        while os.getppid() == script:
            time.sleep(POLL_S)
            done, steps = ended_steps(lines, done, job)
            for step in steps:
                due.setdefault(step, time.monotonic() + wait_s)
            for step in [step for step, at in due.items() if time.monotonic() > at]:
                (give_up if step in killed else kill)(step)
                due[step] = float("inf") if step in killed else time.monotonic() + LATER_S
                killed.add(step)
    return 0


def ended_steps(lines: IO[bytes], done: int, job: str) -> tuple[int, list[str]]:
    """Return how far a log is read, which was `done`, and the steps of the job that srun ends in between."""
    lines.seek(done)
    text = lines.read(MOST)
    whole = text.rfind(b"\n") + 1 or (len(text) if len(text) == MOST else 0)
    ended = [(number.decode(), step.decode()) for number, step in ENDS.findall(text[:whole])]
    return done + whole, [number + step for number, step in ended if number == job]


def kill_wait_s() -> float:
    """Return the seconds between SIGTERM and SIGKILL that slurm.conf has."""
    line = re.search(rb"^KillWait\s*=\s*(\d+)", shown("config"), re.MULTILINE)
    return float(line.group(1)) if line else KILL_WAIT_S


def shown(*what: str) -> bytes:
    """Return what `scontrol show` says of something; nothing if it fails."""
    try:
        return subprocess.check_output(["scontrol", "show", *what], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return b""


def kill(step: str) -> None:
    """Kill the tasks of a step, if it is still there."""
    nothing = subprocess.DEVNULL
    subprocess.call(["scancel", "--signal=KILL", step], stdout=nothing, stderr=nothing)


def give_up(step: str) -> None:
    """End the srun of a step that is still there: it kills what it reaches, and waits for no dead node."""
    srun = re.search(rb"SrunHost:Pid=([^\s:]+):(\d+)", shown("step", step))
    if srun and srun.group(1).split(b".")[0] == os.uname().nodename.split(".")[0].encode():
        pid = int(srun.group(2))
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "srun":
                os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
