"""Calls sbatch, again if necessary, until it is certain whether the job exists.

The controller may be down, and its answer may be lost. squeue shows the Command of a job, which is the path
of its script. No other submission has a script in the same folder, so the Command identifies the job.
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
RETRY_S = 120.0  # how long to try again while the controller is down
SEARCH_S = 60.0  # how long to look for a job after its answer was lost
LONGEST_PAUSE_S = 15.0  # the longest pause between two calls
_ACCEPTED = re.compile(r"^(\d+)(?:;(.*))?$", re.MULTILINE)  # "4711", or with the cluster "4711;c1"
# Errors before the controller has read the request. Texts of slurm_errno.c, Slurm 20.11 to 26.05.
_NOT_SENT = re.compile(
    r"\(connect failure\)|Communication connection failure|Connection timed out establishing"
    r"|Unable to establish control machine address|Could not establish a configuration source"
    r"|backup controller in standby mode|Controller is in standby mode|Rate limit exceeded"
)
# Errors after which the controller may have read the request.
_ANSWER_LOST = re.compile(
    r"\((?:send|receive|shutdown) failure\)|Message (?:send|receive) failure|Communication shutdown failure"
    r"|Socket timed out|Zero Bytes were transmitted or received|Connection timed out (?:writing|reading)"
    r"|Unexpected missing socket error"
)
Note = Callable[[str], None]  # prints a line for the user


class LostError(SlurmError):
    """An error after which it is not known whether the job was submitted."""


@frozen()
class Accepted:
    """A job that Slurm has accepted."""

    job: str  # its id
    cluster: str  # its cluster; "" if sbatch named none
    says: str  # the messages of sbatch


def ask(
    sbatch: tuple[str, ...],
    environment: Mapping[str, str],
    error_of: Callable[[client.Output], SbatchgenError],
    note: Note,
    *,
    arguments: tuple[str, ...] = (),
    clusters: str = "",
    lock: int | None = None,
) -> Accepted:
    """Run sbatch, again if necessary, until it is certain whether the job exists.

    The last word of `sbatch` is the script, in a folder of its own: see `slurm.queue`. `error_of` returns the
    error for an answer that refuses the job. `note` prints why a submission takes long. sbatch holds `lock`
    until it has ended. Raises LostError if sbatch's answer was lost and the job is not in the queue, although
    it may still appear; SbatchgenError if the job does not exist and will not appear.
    """
    until, pause = time.monotonic() + RETRY_S, 1.0
    while True:
        boot_before, called = _boot_time(environment, clusters), time.time()
        answer = _run((*sbatch, *arguments), environment, lock)
        if accepted := _accepted_job(answer):
            return accepted
        # sbatch took too long, was killed by a signal, or printed no job id. 255 means a refused option.
        is_cut_off = not answer.status or 128 < answer.status < 255
        if is_cut_off or _ANSWER_LOST.search(answer.err):  # Slurm may still have accepted the job
            note("note: sbatch's answer was lost: looking for the job in the queue")
            key = key_of(sbatch[-1])
            if job := _search(answer, key, environment, boot_before, called, clusters=clusters):
                return job
        elif not _NOT_SENT.search(answer.err):
            raise error_of(answer)
        if time.monotonic() > until:
            raise error_of(answer)
        if pause == 1.0:  # the first time
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
    """Return the accepted job; None without a job id in the answer.

    The exit status says nothing, because sbatch --wait ends with the exit status of the job.
    """
    match = _ACCEPTED.search(answer.out)
    if not match:
        return None
    says = "\n".join(line for line in (answer.err.strip(), answer.failure) if line)
    return Accepted(match[1], match[2] or "", says)


def _search(
    answer: client.Output,
    key: str,
    environment: Mapping[str, str],
    boot_before: datetime | None,
    called: float,
    *,
    clusters: str,
) -> Accepted | None:
    """Return the job whose answer was lost; None if it certainly does not exist; raise LostError if unsure.

    The job does not exist if it is not in the queue and the controller has been restarted since, because a
    restart loses all jobs that were not saved. `boot_before` is the controller's start before sbatch was
    called, and `called` the time of this call.
    """
    until, pause = time.monotonic() + SEARCH_S, 0.5
    while True:
        try:
            # Asked before squeue, so that squeue answers for this start of the controller or a later one.
            boot = _boot_time(environment, clusters)
            for cluster in clusters.split(","):
                if job := find_job(key, environment, cluster=cluster):
                    return Accepted(str(job.job), cluster, "")
            if boot_before and boot and boot != boot_before and boot.timestamp() > called:
                return None
        except SlurmError:
            if not search_path.find("squeue", environment):
                until = 0.0  # without squeue, a longer search is useless
        if time.monotonic() > until:
            answered = " ".join((answer.err or answer.out).split())
            what = f"{answer.failure or 'sbatch gave no job id'}: {answered or 'sbatch printed no reason'}"
            fix = "the job may still appear in the queue: before you submit it again, see sbatchgen status"
            raise LostError.of(f"{what}, and the queue has no such job", fix=fix)
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_S, 2 * pause)


def _boot_time(environment: Mapping[str, str], clusters: str) -> datetime | None:
    """Return the start time of the controller; None without an answer, or with several controllers."""
    if "," in clusters:
        return None
    return fields.time(config(environment, clusters).get("BOOT_TIME", ""))
