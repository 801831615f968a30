"""The end of Slurm steps in which a task failed: `python3 .../training/step_end.py`, next to a job script.

srun --kill-on-bad-exit ends the other tasks by SIGTERM, and after KillWait by SIGKILL. Two cases remain. A
task whose container is still being made gets neither signal, and later runs without the other tasks. A dead
node never answers, and srun waits for the node. So this program reads srun's lines in the log, which is
stderr. When the tasks that got the signals have ended, the program kills a remaining step once more, and
later ends its srun. The program ends with the script. It runs on the batch host, even with an old Python.
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

POLL_S = 5.0  # seconds between two looks at the log
AFTER_KILL_WAIT_S = 10.0  # tasks that got SIGKILL have ended so many seconds after KillWait
# 22.05: "srun: launch/slurm: _step_signal: Terminating StepId=5.0"; 26.05: "srun: Terminating StepId=5.0".
# The message may follow a progress bar, which has no line break at its end.
TERMINATING = re.compile(rb"srun: (?:[\w/]+: )*Terminating (?:StepId=|job step )(\d+)(\.\d+)$", re.MULTILINE)
MAX_BYTES = 1 << 24  # of one read of the log


def main() -> int:
    """Kill each step of this job that remains after srun ended its tasks; return 0 when the script ends."""
    script, job, log = os.getppid(), os.environ.get("SLURM_JOB_ID", ""), Path("/proc/self/fd/2")
    if not job or not log.is_file():
        return 0
    position, wait_s = log.stat().st_size, None  # wait_s: KillWait, in which tasks may save
    since: dict[str, float] = {}  # by Slurm step: the time of srun's line
    # The actions on a step that remains, and the seconds after KillWait.
    actions = {kill: AFTER_KILL_WAIT_S, end_srun: 2 * AFTER_KILL_WAIT_S}
    finished: set[tuple[str, object]] = set()
    with log.open("rb") as lines:
        while os.getppid() == script:
            time.sleep(POLL_S)
            position, steps = ended_steps(lines, position, job)
            for step in steps:
                since.setdefault(step, time.monotonic())
            if since and wait_s is None:
                wait_s = kill_wait_s()
            for step, (action, later_s) in itertools.product(since, actions.items()):
                is_due = wait_s is not None and time.monotonic() > since[step] + wait_s + later_s
                if is_due and (step, action) not in finished:
                    action(step)
                    finished.add((step, action))
    return 0


def ended_steps(lines: IO[bytes], position: int, job: str) -> tuple[int, list[str]]:
    """Read a log from a position on; return the new position, and the job's steps whose tasks srun ended."""
    lines.seek(position)
    text = lines.read(MAX_BYTES)
    # The rest after the last line break is read again, unless there is a line as long as MAX_BYTES.
    length = text.rfind(b"\n") + 1 or (len(text) if len(text) == MAX_BYTES else 0)
    ended = [(job_id.decode(), step.decode()) for job_id, step in TERMINATING.findall(text[:length])]
    return position + length, [job_id + step for job_id, step in ended if job_id == job]


def kill_wait_s() -> float | None:
    """Return KillWait of slurm.conf, the seconds before SIGKILL; None if Slurm does not answer."""
    line = re.search(rb"^KillWait\s*=\s*(\d+)", scontrol_show("config"), re.MULTILINE)
    return float(line.group(1)) if line else None


def scontrol_show(*words: str) -> bytes:
    """Return the output of `scontrol show`; empty if the command fails."""
    try:
        return subprocess.check_output(["scontrol", "show", *words], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return b""


def kill(step: str) -> None:
    """Kill the tasks of a step, if the step still exists."""
    nothing = subprocess.DEVNULL
    subprocess.call(["scancel", "--signal=KILL", step], stdout=nothing, stderr=nothing)


def end_srun(step: str) -> None:
    """End the srun of a step that still exists: it kills the tasks, and does not wait for a dead node."""
    srun = re.search(rb"SrunHost:Pid=([^\s:]+):(\d+)", scontrol_show("step", step))
    if srun and srun.group(1).split(b".")[0] == os.uname().nodename.split(".")[0].encode():
        pid = int(srun.group(2))
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "srun":
                os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
