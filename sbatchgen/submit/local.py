"""A job without Slurm: bash runs the script in the background, and its log is followed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from sbatchgen import files
from sbatchgen.runs import history
from sbatchgen.slurm.command import status_in_shell, submit_environment
from sbatchgen.submit.sbatch import Note, make_folders
from sbatchgen.submit.submission import Submission


def run_locally(submission: Submission, environment: Mapping[str, str], *, note: Note) -> int:
    """Run the script and follow its log; the exit status of the script.

    It runs in a session of its own: Ctrl-C ends the following, not the training.
    """
    make_folders(submission, note)
    run_dir = submission.run_dir or Path.cwd()
    files.put(run_dir / submission.name, submission.script)
    output, started = _new_log(run_dir)
    script = history.keep(run_dir, started, submission.script)  # nobody writes another one of this name
    env, _ = submit_environment(environment)
    with output:
        process = subprocess.Popen(
            ["bash", str(script)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    note(f"note: process {process.pid}, log {output.name}")
    try:
        _follow(process, Path(output.name))
    except (KeyboardInterrupt, OSError) as error:  # OSError: nobody reads what is printed here
        note(f"note: still running; to stop it with a checkpoint: touch {run_dir}/stop")
        if isinstance(error, OSError):
            raise
        return 130
    return status_in_shell(process.returncode)


def _new_log(run_dir: Path) -> tuple[IO[bytes], str]:
    """A new log, and the time of the start that is in its name."""
    started, count = time.strftime("%Y%m%d-%H%M%S"), 1
    while True:
        name = started if count == 1 else f"{started}-{count}"
        try:
            return (run_dir / f"{run_dir.name}-{name}.out").open("xb"), name
        except FileExistsError:  # another start in the same second
            count += 1


def _follow(process: subprocess.Popen[bytes], log: Path) -> None:
    """Copy a log to stdout until the process that writes it has ended."""
    with log.open("rb") as stream:
        while process.poll() is None:
            _copy(stream)
            time.sleep(0.1)
        _copy(stream)


def _copy(stream: IO[bytes]) -> None:
    sys.stdout.buffer.write(stream.read())
    sys.stdout.buffer.flush()
