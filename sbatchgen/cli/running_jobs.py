"""The commands cancel and exec: they end the jobs of a run, or run a command in its running job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from sbatchgen.base.errors import CommandLineError, DocumentError, SlurmError
from sbatchgen.base.quoting import word as quoted
from sbatchgen.base.quoting import words
from sbatchgen.cli.output import FORMAT, complete_run, note, put_json
from sbatchgen.cli.runs import (
    RUNS,
    find_job,
    open_index,
    read_states,
    task_option,
)

if TYPE_CHECKING:
    from sbatchgen.jobs.runs.record import Record
    from sbatchgen.jobs.runs.status import RunState
    from sbatchgen.jobs.slurm.queue import SlurmJob


class _JobToCancel(NamedTuple):
    """A job of a run, or a task of it, that waits or runs."""

    state: RunState  # the state of the run
    job_id: str  # 4711, 4711_3 for a task, or the id of a job without Slurm
    cluster: str  # the job's cluster in a federation; "" for the cluster of this machine


@click.command()
@RUNS
@task_option("Cancel only this task of an array or a sweep.")
@click.option("--now", is_flag=True, help="Cancel at once, without a last checkpoint.")
@click.option("--yes", "-y", is_flag=True, help="Cancel even without a terminal, such as in a script.")
@FORMAT
def cancel(names: tuple[str, ...], *, task: str, now: bool, yes: bool, form: str) -> None:
    """Cancel the jobs of runs that wait or run.

    A trainer that looks for the stop file, such as the bundled trainer, saves a checkpoint first. The trainer
    has a minute, or longer if its last save took long; Ctrl-C cancels at once. sbatchgen resume continues
    from the checkpoint.
    """
    from sbatchgen.jobs.runs.status import run_states

    began, index = time.time(), open_index()
    named_jobs = [find_job(index, name, in_doubt="ask") for name in names]
    runs, job_ids = [named.run for named in named_jobs], [named.job_id for named in named_jobs]
    states, problems = run_states(index, os.environ, runs, job_ids=job_ids)
    # A job that Slurm has not shown just now may have ended, and another job may have got its id.
    if any(job.id and not job.ended and job.seen < began for state in states for job in state.jobs):
        raise SlurmError(problems)
    jobs: list[_JobToCancel] = []
    for state, named in zip(states, named_jobs, strict=True):
        # 4711_3 is a task of job 4711. Other jobs of the run may have a task with this number.
        only_job = named.job_id if named.point else ""
        jobs += _jobs_to_cancel(state, task or named.point, only_job)
    if jobs and not (yes or sys.stdin.isatty()):
        which = ", ".join(f"job {job.job_id} of run {job.state.run.name}" for job in jobs)
        fix = "look at them first: sbatchgen status; to cancel them, add --yes"
        raise CommandLineError.of(f"no terminal, so cancel needs --yes: {which}", fix=fix)
    for job in jobs if now else _let_trainings_save(jobs):
        _cancel(job)
    for job in jobs:
        note(f"note: cancelled job {job.job_id} of run {job.state.run.name}")
    if form == "json":
        from sbatchgen.jobs.outputs.runs import cancel_output

        put_json(cancel_output((job.state.run.name, job.job_id) for job in jobs))


def _jobs_to_cancel(state: RunState, task: str, only_job: str) -> list[_JobToCancel]:
    """Return the jobs of a run that wait or run, or with `task` this task of each of these jobs.

    `only_job` is the id of the only job to cancel. Without it, the state may be about one job: `state.job`.
    """
    name, only_job = state.run.name, only_job or state.job
    # The last job comes first, so that no job of a chain starts while the others are cancelled.
    unended = [job for job in reversed(state.jobs) if not job.ended and only_job in ("", job.id)]
    if not unended:
        note(f"note: {f'job {only_job} of ' * bool(only_job)}run {name} has ended already")
    jobs = [
        _JobToCancel(state, task_id, job.cluster)
        for job in unended
        if (task_id := _id_of_task(state, job.id, task))
    ]
    if unended and not jobs and not task:  # sbatchgen was killed before sbatch answered
        raise SlurmError.of(f"the job of run {name} is not known", fix="squeue --me shows your jobs")
    if unended and not jobs:
        what = f"no job of run {name} that waits or runs has a task {task}"
        raise CommandLineError.of(what, at="--task", fix=f"sbatchgen status {name}")
    return jobs


def _let_trainings_save(jobs: Sequence[_JobToCancel]) -> list[_JobToCancel]:
    """Ask the running trainings to save and end, and wait for them; return the jobs that may still run.

    Jobs whose training saves nothing when it is asked are cancelled at once.
    """
    from sbatchgen.jobs.runs import last_save, record

    stopped: list[last_save.StoppedTraining] = []
    saving: list[_JobToCancel] = []
    submissions = [record.read_record(job.state.run.folder, job.job_id.partition("_")[0]) for job in jobs]
    # If Slurm does not answer, `_queue_rows` raises before a training is stopped or a job is cancelled.
    queued = [
        [] if submission is None or submission.process else _queue_rows(job)
        for submission, job in zip(submissions, jobs, strict=True)
    ]
    for job, submission, rows in zip(jobs, submissions, queued, strict=True):
        trainings = last_save.running_trainings(submission, job.state.run.folder, rows) if submission else []
        if trainings and any(row.state.name == "PENDING" for row in rows):
            _cancel(job, "--state=PENDING")  # waiting tasks would start when the running tasks end
        answers = [last_save.ask_to_stop(submission, folder, row) for folder, row in trainings if submission]
        stopped += filter(None, answers)
        if any(answers):
            saving.append(job)
        else:
            _cancel(job)  # this training saves nothing, or saves when it gets SIGTERM
    if not stopped:
        return []
    run_names = ", ".join(dict.fromkeys(job.state.run.name for job in saving))
    note(f"saving {run_names} ..., Ctrl-C cancels at once")
    try:
        late_folders = last_save.wait_for_end(stopped, lambda: any(map(_may_run, saving)))
    except KeyboardInterrupt:
        note("note: cancelled without a last checkpoint")
    else:
        for folder in late_folders:
            note(f"note: no checkpoint was saved in time in {folder}")
    last_save.remove_stop_files(stopped)
    return [job for job in saving if _may_run(job)]


def _queue_rows(job: _JobToCancel) -> list[SlurmJob]:
    """Return squeue's rows of a job or task that waits or runs; raise SlurmError if Slurm does not answer."""
    from sbatchgen.jobs.slurm.queue import squeue_jobs

    number, _, task = job.job_id.partition("_")
    all_rows = squeue_jobs(os.environ, cluster=job.cluster)
    rows = [row for row in all_rows if str(row.base_id) == number and task in ("", row.task)]
    return [row for row in rows if not row.state.ended and row.state.name != "COMPLETING"]


def _may_run(job: _JobToCancel) -> bool:
    """Return whether a job or a task waits or runs; True also if Slurm does not answer."""
    try:
        return bool(_queue_rows(job))
    except SlurmError:
        return True


def _id_of_task(state: RunState, job_id: str, task: str) -> str:
    """Return the id of a job, or with `task` the id of this task, such as 4711_3.

    Return "" if the job's record shows that the job has no such task: scancel would ignore its id without a
    message. The tasks of a job without a record are not known, so any task gets an id.
    """
    from sbatchgen.jobs.runs import record
    from sbatchgen.jobs.runs.record import point_numbers

    if not task:
        return job_id
    submission = record.read_record(state.run.folder, job_id) if task.isdecimal() else None
    if not submission:
        return f"{job_id}_{task}"
    is_in_array = len(task) < 9 and int(task) in point_numbers(submission, submission.array)
    # `task` is the number of a sweep's point. A large sweep has several arrays, which all begin at 0.
    return f"{job_id}_{int(task) - submission.first}" if is_in_array else ""


def _cancel(job: _JobToCancel, *options: str) -> None:
    """Cancel a job with scancel and these options, or a job without Slurm by ending its process.

    Raises SlurmError or DocumentError if the job can't be cancelled.
    """
    from sbatchgen.jobs.runs import process, record
    from sbatchgen.jobs.slurm import client

    state, name = job.state, job.state.run.name
    if job.job_id.partition("_")[0].isdecimal():
        client.answer_text(["scancel", *client.cluster_option(job.cluster), *options, job.job_id], os.environ)
        return
    submission = record.read_record(state.run.folder, job.job_id)  # this job is a process without Slurm
    if submission is None or submission.process is None:
        raise DocumentError.of(f"the process of run {name} is not known: {state.jobs[-1].says}")
    is_alive = process.is_alive(submission.process, state.run.folder)
    if is_alive is None:  # only the machine of the process can tell
        what = f"run {name} is on {submission.process.host}, not here"
        raise DocumentError.of(what, fix=f"on that machine: sbatchgen cancel {name}")
    if is_alive:
        process.stop(submission.process)


# In some releases of Slurm, an overlapping step silently gets fewer GPUs than its job has.
_GPU_WARNING = """[ "${{SLURM_GPUS_ON_NODE:-{gpus}}}" -ge {gpus} ] ||
    echo "sbatchgen exec: this command has $SLURM_GPUS_ON_NODE of the job's {gpus} GPUs on $(hostname)" >&2
"""


@click.command("exec", options_metavar="")
@click.argument("run", metavar="RUN -- COMMAND", shell_complete=complete_run)
@click.pass_obj
def exec_(command: tuple[str, ...], /, run: str) -> None:
    """Run a command on each node of a run.

    The training keeps running. The command comes after --, as in: sbatchgen exec ddp -- nvidia-smi. Its exit
    status is the exit status of exec. With Enroot the command runs in the container of the training, and with
    Apptainer outside the container. sbatchgen shell opens a shell in the container.
    """
    from sbatchgen.jobs.runs import seen_jobs
    from sbatchgen.jobs.runs.record import read_record
    from sbatchgen.jobs.slurm.client import run_here, submit_environment
    from sbatchgen.jobs.slurm.config import config

    if not command:
        fix = f"write it after --, as in: sbatchgen exec {quoted(run)} -- nvidia-smi"
        raise CommandLineError.of("exec has no command to run", fix=fix)
    (state,), problems = read_states(open_index(), [run], in_doubt="ask")
    if problems:
        raise SlurmError(problems)
    name, job = state.run.name, state.last_job
    running_rows = [row for row in state.queue_rows if row.state.name == "RUNNING"]
    if job and seen_jobs.is_local(job):
        sys.exit(run_here(command, os.environ))
    if not running_rows:
        what = f"run {name} has no running job: {seen_jobs.state_in_words(job) if job else 'nothing'}"
        raise SlurmError.of(what, fix=f"sbatchgen status {name}")
    if job and job.cluster and job.cluster != config(os.environ).get("ClusterName"):
        what = f"run {name} is on cluster {job.cluster}: srun reaches the jobs of its own cluster only"
        raise SlurmError.of(
            what, fix=f"on a node of {job.cluster}: sbatchgen exec {name} -- {words(command)}"
        )
    row, (environment, _) = running_rows[-1], submit_environment(os.environ)
    step = ["srun", f"--jobid={row.id}", "--overlap", f"--nodes={row.nodes}", f"--ntasks={row.nodes}"]
    submission = read_record(state.run.folder, job.id) if job else None
    wrapper = _step_wrapper(submission) if submission else []
    sys.exit(run_here([*step, "--ntasks-per-node=1", "--", *wrapper, *command], environment))


def _step_wrapper(submission: Record) -> list[str]:
    """Return the words to put before a command in a job.

    They start a shell that warns of missing GPUs and enters the job's container. A job that has neither GPUs
    nor a container needs no such words.
    """
    from sbatchgen.check.sbatch.gres import gpu_amounts
    from sbatchgen.jobs.runtimes import RUNTIMES

    runtime = submission.value("runtime")
    enter_container = RUNTIMES[runtime].enter_script if runtime in RUNTIMES else ""
    gpus = sum(count for _, count in gpu_amounts(submission.value("--gpus-per-node")) or ())
    gpu_warning = _GPU_WARNING.format(gpus=gpus) if gpus else ""
    shell_code = gpu_warning + (enter_container or ('exec "$@"' if gpus else ""))
    return ["sh", "-c", shell_code, "sbatchgen"] if shell_code else []
