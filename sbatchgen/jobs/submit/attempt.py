"""Calls sbatch until it is certain whether the job exists.

Slurm's controller may be down, or its answer may be lost after it has accepted the job. A blind second call
might submit the job twice, so the job is first looked for in squeue. squeue shows the path of each job's
script as its Command. Each submission has its script in a new folder, so the Command identifies the job.
"""

import random
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from sbatchgen.base.errors import SbatchgenError, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine import search_path
from sbatchgen.jobs.slurm import client, fields
from sbatchgen.jobs.slurm.config import config
from sbatchgen.jobs.slurm.queue import find_job, key_of

SUBMIT_TIMEOUT_S = 180.0  # sbatch itself tries again for two minutes while the job queue is full
RETRY_S = 120.0  # how long to call sbatch again while the controller is down
SEARCH_S = 60.0  # how long to look for a job in squeue after sbatch's answer was lost
LONGEST_PAUSE_S = 15.0  # the longest pause between two calls of sbatch or squeue
_ACCEPTED = re.compile(r"^(\d+)(?:;(.*))?$", re.MULTILINE)  # "4711", or with the cluster "4711;c1"
# Errors of sbatch before the controller has read the request, from slurm_errno.c of Slurm 20.11 to 26.05:
#     sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)
_NOT_SENT = re.compile(
    r"\(connect failure\)|Communication connection failure|Connection timed out establishing"
    r"|Unable to establish control machine address|Could not establish a configuration source"
    r"|backup controller in standby mode|Controller is in standby mode|Rate limit exceeded"
)
# Errors of sbatch after which the controller may have read the request and accepted the job:
#     sbatch: error: Batch job submission failed: Socket timed out on send/recv operation
_ANSWER_LOST = re.compile(
    r"\((?:send|receive|shutdown) failure\)|Message (?:send|receive) failure|Communication shutdown failure"
    r"|Socket timed out|Zero Bytes were transmitted or received|Connection timed out (?:writing|reading)"
    r"|Unexpected missing socket error"
)
Note = Callable[[str], None]  # prints a line for the user


class LostError(SlurmError):
    """sbatch's answer was lost, so it is not known whether Slurm has accepted the job."""


@frozen()
class Accepted:
    """A job that Slurm has accepted."""

    job: str  # its id
    cluster: str  # its cluster; "" if sbatch named none
    messages: str  # what sbatch has printed in addition to the id, one message on each line


def call_sbatch(
    command: tuple[str, ...],
    environment: Mapping[str, str],
    error_of: Callable[[client.Output], SbatchgenError],
    note: Note,
    *,
    arguments: tuple[str, ...] = (),
    clusters: str = "",
    lock: int | None = None,
) -> Accepted:
    """Call sbatch, again if necessary, until the job is submitted or refused; return the accepted job.

    The last word of `command` is the script that `private_script` has made. `error_of` returns the error for
    an answer that refuses the job. `note` prints why the submission takes long. sbatch holds the descriptor
    `lock` open until it has ended. Raises LostError if sbatch's answer was lost and the job may still appear,
    and another SbatchgenError if the job does not exist.
    """
    deadline, pause = time.monotonic() + RETRY_S, 1.0
    while True:
        boot_before, called_at = _boot_time(environment, clusters), time.time()
        answer = _run((*command, *arguments), environment, lock)
        if accepted := _accepted_job(answer):
            return accepted
        # A status of None means that sbatch took too long, 0 that it printed no job id, and 129 to 254 that a
        # signal killed it. 255 is not a signal: sbatch has refused an option.
        is_cut_off = not answer.status or 128 < answer.status < 255
        if is_cut_off or _ANSWER_LOST.search(answer.err):  # Slurm may still have accepted the job
            note("note: sbatch's answer was lost: looking for the job in the queue")
            key = key_of(command[-1])
            if job := _find_lost_job(answer, key, environment, boot_before, called_at, clusters=clusters):
                return job
        elif not _NOT_SENT.search(answer.err):  # Slurm has refused the job
            raise error_of(answer)
        if time.monotonic() > deadline:
            raise error_of(answer)
        if pause == 1.0:  # print the note once, before the first pause
            note(f"note: Slurm's controller does not answer: trying again for {RETRY_S:g} s")
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - other commands try again at other times
        pause = min(LONGEST_PAUSE_S, 2 * pause)


def _run(command: tuple[str, ...], environment: Mapping[str, str], lock: int | None) -> client.Output:
    return client.run(
        command,
        environment,
        timeout=SUBMIT_TIMEOUT_S,
        fix_if_missing=client.FIX_FOR_SUBMISSIONS,
        keep_open=lock,
        for_job=True,
    )


def _accepted_job(answer: client.Output) -> Accepted | None:
    """Return the job whose id sbatch has printed; None if sbatch has printed no id.

    The exit status does not count, because sbatch --wait ends with the exit status of the job.
    """
    match = _ACCEPTED.search(answer.out)
    if not match:
        return None
    messages = "\n".join(line for line in (answer.err.strip(), answer.failure) if line)
    return Accepted(match[1], match[2] or "", messages)


def _find_lost_job(
    answer: client.Output,
    key: str,
    environment: Mapping[str, str],
    boot_before: datetime | None,
    called_at: float,
    *,
    clusters: str,
) -> Accepted | None:
    """Return the job that sbatch may have submitted before its answer was lost.

    Return None if the job certainly does not exist: it is not in the queue, and the controller has been
    restarted since the call of sbatch. A restart loses all jobs that the controller had not saved. Raise
    LostError if the search ends without certainty.

    `boot_before` is the start time of the controller, read before sbatch was called at `called_at`.
    """
    deadline, pause = time.monotonic() + SEARCH_S, 0.5
    while True:
        try:
            # If the boot time shows a restart, this later call of squeue asks the restarted controller.
            boot = _boot_time(environment, clusters)
            for cluster in clusters.split(","):
                if job := find_job(key, environment, cluster=cluster):
                    return Accepted(str(job.base_id), cluster, "")
            if boot_before and boot and boot != boot_before and boot.timestamp() > called_at:
                return None
        except SlurmError:
            if not search_path.find("squeue", environment):
                deadline = 0.0  # without squeue, a longer search is useless
        if time.monotonic() > deadline:
            printed = " ".join((answer.err or answer.out).split())
            what = f"{answer.failure or 'sbatch gave no job id'}: {printed or 'sbatch printed no reason'}"
            fix = "the job may still appear in the queue: before you submit it again, see sbatchgen status"
            raise LostError.of(f"{what}, and the queue has no such job", fix=fix)
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_S, 2 * pause)


def _boot_time(environment: Mapping[str, str], clusters: str) -> datetime | None:
    """Return the time when the controller started; None if it does not answer, or for several clusters."""
    if "," in clusters:
        return None
    return fields.read_time(config(environment, clusters).get("BOOT_TIME", ""))
