"""Runs a job without Slurm: bash runs the script in the background, and `submit` shows its log."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from sbatchgen.base import files
from sbatchgen.base.machine.child import Child
from sbatchgen.jobs.runs import process, submitted_scripts
from sbatchgen.jobs.runs import record as records
from sbatchgen.jobs.runs.index import Index
from sbatchgen.jobs.runs.job_log import Tail
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.slurm.client import status_in_shell, submit_environment
from sbatchgen.jobs.slurm.queue import new_key
from sbatchgen.jobs.submit.attempt import Note
from sbatchgen.jobs.submit.sbatch import IndexEntry, reserve_run_folder
from sbatchgen.jobs.submit.submission import Submission


def run_locally(
    submission: Submission,
    environment: Mapping[str, str],
    *,
    index: Index | None,
    note: Note,
    show: Callable[[bytes], None],
) -> int:
    """Run the script of a submission and show its log until it ends; return the exit status of the script.

    `show` prints a new piece of the log. The script runs in a session of its own, so Ctrl-C ends only this
    function, and the training continues.
    """
    with reserve_run_folder(submission, environment, note) as (ready, _):
        record, leader = _start(ready, environment, index, note)
    run_dir, log = Path(record.log).parent, Path(record.log.replace("%%", "%"))
    note(f"note: run {record.run}, process {leader.pid}, log {log}")
    try:
        has_ended, tail = False, Tail(log)
        while not has_ended:
            has_ended = leader.poll() is not None
            for piece in tail.new_bytes():
                show(piece)
            if not has_ended:
                time.sleep(0.1)
    except (KeyboardInterrupt, OSError) as error:  # an OSError means that the log can't be shown any more
        note(f"note: still running; to stop it with a checkpoint: sbatchgen cancel {record.run}")
        if isinstance(error, OSError):
            raise
        return 130  # the status of a command that Ctrl-C has ended
    status = process.exit_status(run_dir, record.job)
    return status_in_shell(leader.returncode) if status is None else status


def _start(
    submission: Submission, environment: Mapping[str, str], index: Index | None, note: Note
) -> tuple[Record, Child]:
    """Start the script of a submission and keep its record; return the record and the started process."""
    run_dir = submission.run_dir
    assert run_dir  # noqa: S101 - `reserve_run_folder` has made it
    files.put(run_dir / submission.name, submission.script, mode=files.PRIVATE)
    output, started = _new_log(run_dir)
    # The time of the start is the id of the job, and no other start of the run folder has the same.
    script = submitted_scripts.keep_script(run_dir, started, submission.script)
    log, now = output.name.replace("%", "%%"), time.time()
    record = replace(submission.record, key=new_key(), job=started, log=log, submitted=now)
    env, _ = submit_environment(environment)
    with output:
        facts, leader = process.start(script, process.status_file(run_dir, started), output, env)
    entry = IndexEntry(index, record, run_dir, note)
    record = replace(record, run=entry.name, process=facts)
    entry.change(Index.accept, started)
    try:
        records.write_accepted(run_dir, record)
    except OSError as error:
        note(f"note: can't keep the record of process {facts.pid} in {run_dir}: {error.strerror}")
    return record, leader


def _new_log(run_dir: Path) -> tuple[IO[bytes], str]:
    """Open a new log; return the log, and the part of its name that tells the time of the start.

    If another job was started in the same second, a number follows the time: "20260131-120000-2".
    """
    started, count = time.strftime("%Y%m%d-%H%M%S"), 1
    while True:
        start_name = started if count == 1 else f"{started}-{count}"
        try:
            return (run_dir / f"{run_dir.name}-{start_name}.out").open("xb"), start_name
        except FileExistsError:
            count += 1
