"""The end of steps in which a task has failed: `python3 .../training/step_end.py`, beside a job script.

srun --kill-on-bad-exit ends the other tasks: by SIGTERM, and KillWait later by SIGKILL. A node where the
task is not there yet loses both, as while it is loaded or makes a container, and the task begins alone. A
node that is dead never answers, and srun waits for it. So srun's own lines in the log, which is stderr, are
read: when all that got the signals is gone, a step that is left is killed once more, and then its srun has
to give up. It ends with the script. It runs on the batch host, with an old Python too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

POLL_S = 5.0
LATER_S = 10.0
# 22.05: "srun: launch/slurm: _step_signal: Terminating StepId=5.0"; 26.05: "srun: Terminating StepId=5.0".
# It may come after a progress bar, which ends no line.
ENDS = re.compile(rb"srun: (?:[\w/]+: )*Terminating (?:StepId=|job step )(\d+)(\.\d+)$", re.MULTILINE)
MOST = 1 << 24  # bytes that are read at once


def main() -> int:
    """Kill each step of this job that srun ends and that outlives that, until the script has ended."""
    script, job, log = os.getppid(), os.environ.get("SLURM_JOB_ID", ""), Path("/proc/self/fd/2")
    if not job or not log.is_file():
        return 0
    done, wait_s = log.stat().st_size, None
    since: dict[str, float] = {}  # the step, and since when srun ends it
    acts = {kill: LATER_S, give_up: 2 * LATER_S}  # and how long after KillWait
    done_to: set[tuple[str, object]] = set()
    with log.open("rb") as lines:
        while os.getppid() == script:
            time.sleep(POLL_S)
            done, steps = ended_steps(lines, done, job)
            for step in steps:
                since.setdefault(step, time.monotonic())
            if since and wait_s is None:  # by which Slurm has killed what got its signals; a save may need it
                wait_s = kill_wait_s()
            for step, (act, later_s) in itertools.product(since, acts.items()):
                is_due = wait_s is not None and time.monotonic() > since[step] + wait_s + later_s
                if is_due and (step, act) not in done_to:
                    act(step)
                    done_to.add((step, act))
    return 0


def ended_steps(lines: IO[bytes], done: int, job: str) -> tuple[int, list[str]]:
    """Return how far a log is read, which was `done`, and the steps of the job that srun ends in between."""
    lines.seek(done)
    text = lines.read(MOST)
    whole = text.rfind(b"\n") + 1 or (len(text) if len(text) == MOST else 0)
    ended = [(number.decode(), step.decode()) for number, step in ENDS.findall(text[:whole])]
    return done + whole, [number + step for number, step in ended if number == job]


def kill_wait_s() -> float | None:
    """Return the seconds between SIGTERM and SIGKILL that slurm.conf has; None if Slurm does not answer."""
    line = re.search(rb"^KillWait\s*=\s*(\d+)", shown("config"), re.MULTILINE)
    return float(line.group(1)) if line else None


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
