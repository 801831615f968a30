"""Starts and stops the process of a run without Slurm, and finds out whether it is alive or how it ended.

The process outlives its terminal. The record of the run identifies it. A file in the run folder has its exit
status.
"""

import contextlib
import os
import platform
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from sbatchgen.base import files
from sbatchgen.base.machine import child, search_path
from sbatchgen.jobs.runs.record import Process

# Bash code of the process group's leader. It survives signals, runs the script $1, and writes its exit status
# into the file $2.
_LEADER = 'trap : TERM INT HUP; "$BASH" "$1"; echo "$?" >"$2"'
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def start(
    script: Path, status: Path, output: IO[bytes], environment: Mapping[str, str]
) -> tuple[Process, child.Child]:
    """Start a script in a session of its own; `status` is the file that gets its exit status.

    Return the facts that identify the process later, and the running child.
    """
    bash = search_path.find("bash", environment) or "bash"  # a full path, because _LEADER uses $BASH
    words = [bash, "-c", _LEADER, "sbatchgen", str(script), str(status)]
    leader = child.begin(words, environment, stdout=output, is_job=True)
    return Process(
        pid=leader.pid, born=_start_ticks(leader.pid) or 0, host=platform.node(), boot=_boot_id()
    ), leader


def is_alive(process: Process, run_dir: Path) -> bool | None:
    """Return whether the process is alive and belongs to this run; None if it is on another machine.

    The record may be a copy, or a stranger may have written the id of another process into it. But only the
    process of the run writes its log into the run folder, even after the folder was moved.
    """
    if process.host != platform.node():
        return None
    is_same = process.boot == _boot_id() and _start_ticks(process.pid) == process.born
    return is_same and _writes_into(process.pid, run_dir)


def status_file(run_dir: Path, job: str) -> Path:
    """Return the file with the exit status of the script, which _LEADER writes."""
    return run_dir / f"job-{job}.exit"


def exit_status(run_dir: Path, job: str) -> int | None:
    """Return the exit status of a script that has ended; None if it was killed or still runs."""
    try:
        return int(files.read_own(status_file(run_dir, job), 16))
    except (OSError, ValueError):
        return None


def stop(process: Process) -> None:
    """Send TERM to the script of a living process; its trainer can then save, as after scancel."""
    scripts: list[int] = []  # the ids of the leader's children: the script
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        scripts = [int(pid) for pid in children.split()]
    for target in scripts or [-process.pid]:  # without a child, the whole process group
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGTERM)


def _start_ticks(pid: int) -> int | None:
    """Return when a process was started, in ticks since the boot; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _writes_into(pid: int, folder: Path) -> bool:
    """Return whether the standard output of a process is a file in a folder."""
    try:
        return Path(f"/proc/{pid}/fd/1").readlink().parent.samefile(folder)
    except OSError:
        return False


def _boot_id() -> str:
    """Return Linux's id of the machine's current boot; "" if it can't be read."""
    try:
        return _BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""
