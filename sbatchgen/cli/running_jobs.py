"""The commands cancel and exec, for the waiting and running jobs of a run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sbatchgen.base.errors import CommandLineError, DocumentError, SlurmError
from sbatchgen.base.quoting import word as quoted
from sbatchgen.base.quoting import words
from sbatchgen.cli.output import FORMAT, completed_runs, note, put_json
from sbatchgen.cli.runs import (
    RUNS,
    find_job,
    open_index,
    point_states_of,
    task_option,
)

if TYPE_CHECKING:
    from sbatchgen.jobs.runs.record import Record
    from sbatchgen.jobs.runs.status import RunState
    from sbatchgen.jobs.slurm.queue import SlurmJob


@click.command()
@RUNS
@task_option("Only this task of an array or a sweep.")
@click.option("--now", is_flag=True, help="At once, without a last checkpoint.")
@click.option("--yes", "-y", is_flag=True, help="Cancel without a terminal too, as from a script.")
@FORMAT
def cancel(names: tuple[str, ...], *, task: str, now: bool, yes: bool, form: str) -> None:
    """Cancel the jobs of runs that wait or run.

    A trainer that looks for the stop file, such as the bundled trainer, saves a checkpoint first. The trainer
    has a minute, or longer if its last save took long; Ctrl-C cancels at once. sbatchgen resume continues
    from the checkpoint.
    """
    from sbatchgen.jobs.runs.status import run_states

    began, index = time.time(), open_index()
    chosen = [find_job(index, name, changes=True) for name in names]
    runs, named_ids = [run for run, _, _ in chosen], [job for _, _, job in chosen]
    states, problems = run_states(index, os.environ, runs, job_ids=named_ids)
    # Slurm may have given the id of a job that was not seen now to another job.
    if any(job.id and not job.ended and job.seen < began for state in states for job in state.jobs):
        raise SlurmError(problems)
    jobs = [
        (state, id_, cluster)
        for state, (_, point, job) in zip(states, chosen, strict=True)
        for id_, cluster in _ids_to_cancel(state, task or point, job if point else "")
    ]
    if jobs and not (yes or sys.stdin.isatty()):
        which = ", ".join(f"job {id_} of run {state.run.name}" for state, id_, _ in jobs)
        fix = "look at it: sbatchgen status; to cancel it, add --yes"
        raise CommandLineError.of(f"no terminal, so --yes must say that this is meant: {which}", fix=fix)
    for state, id_, cluster in jobs if now else _save_first(jobs):
        _cancel(state, id_, cluster)
    for state, id_, _ in jobs:
        note(f"note: cancelled job {id_} of run {state.run.name}")
    if form == "json":
        from sbatchgen.jobs.outputs.runs import cancel_output

        put_json(cancel_output((state.run.name, id_) for state, id_, _ in jobs))


def _ids_to_cancel(state: RunState, task: str, job_id: str = "") -> list[tuple[str, str]]:
    """Return the id and the cluster of each job of a run that waits or runs.

    With `job_id`, return only this job. With `task`, return the ids of this task of the jobs.
    """
    name, job_id = state.run.name, job_id or state.job
    # The last job comes first, so that no job of a chain starts while the others are cancelled.
    live = [job for job in reversed(state.jobs) if not job.ended and job_id in ("", job.id)]
    if not live:
        note(f"note: {f'job {job_id} of ' * bool(job_id)}run {name} has ended already")
    ids = [(id_, job.cluster) for job in live if (id_ := _id_of_task(state, job.id, task))]
    if live and not ids:
        what = f"no job of run {name} that waits or runs has a task {task}"
        raise CommandLineError.of(what, at="--task", fix=f"sbatchgen status {name}")
    return ids


def _save_first(jobs: Sequence[tuple[RunState, str, str]]) -> list[tuple[RunState, str, str]]:
    """Let the running trainings save and end; return the jobs that must still be cancelled.

    A job is a state, an id and a cluster. Jobs that have nothing to save are cancelled here.
    """
    from sbatchgen.jobs.runs import last_save, record

    stopped: list[last_save.StoppedTraining] = []
    saving = []
    submissions = [record.read_record(state.run.folder, id_.partition("_")[0]) for state, id_, _ in jobs]
    # `_queue_rows` raises without an answer of Slurm, so that no training loses its last steps
    queued = [
        [] if submission is None or submission.process else _queue_rows(id_, cluster)
        for submission, (_, id_, cluster) in zip(submissions, jobs, strict=True)
    ]
    for (state, id_, cluster), submission, rows in zip(jobs, submissions, queued, strict=True):
        trainings = last_save.running_trainings(submission, state.run.folder, rows) if submission else []
        if trainings and any(row.state.name == "PENDING" for row in rows):
            _cancel(state, id_, cluster, "--state=PENDING")  # they would start when the running jobs end
        answers = [last_save.ask_to_stop(submission, folder, row) for folder, row in trainings if submission]
        stopped += filter(None, answers)
        if any(answers):
            saving.append((state, id_, cluster))
        else:
            _cancel(state, id_, cluster)  # this training saves nothing, or saves when it gets TERM
    if not stopped:
        return []
    names = ", ".join(dict.fromkeys(state.run.name for state, _, _ in saving))
    note(f"saving {names} ..., Ctrl-C cancels at once")
    try:
        late = last_save.wait_for_end(
            stopped, lambda: any(_may_run(id_, cluster) for _, id_, cluster in saving)
        )
    except KeyboardInterrupt:
        note("note: cancelled without a last checkpoint")
    else:
        for folder in late:
            note(f"note: no checkpoint was saved in time in {folder}")
    last_save.remove_stop_files(stopped)
    return [(state, id_, cluster) for state, id_, cluster in saving if _may_run(id_, cluster)]


def _queue_rows(id_: str, cluster: str) -> list[SlurmJob]:
    """Return squeue's rows of a job or task that waits or runs; raise SlurmError if Slurm does not answer."""
    from sbatchgen.jobs.slurm.queue import squeue_jobs

    job, _, task = id_.partition("_")
    rows = squeue_jobs(os.environ, cluster=cluster)
    of_job = [row for row in rows if str(row.base_id) == job and task in ("", row.task)]
    return [row for row in of_job if not row.state.ended and row.state.name != "COMPLETING"]


def _may_run(id_: str, cluster: str) -> bool:
    """Return whether a job or a task waits or runs; True also if Slurm does not answer."""
    try:
        return bool(_queue_rows(id_, cluster))
    except SlurmError:
        return True


def _id_of_task(state: RunState, job: str, task: str) -> str:
    """Return the id of a job, or of its task; "" for an unknown task, which scancel would ignore silently."""
    from sbatchgen.jobs.runs import record
    from sbatchgen.jobs.runs.record import point_numbers

    submission = record.read_record(state.run.folder, job) if task.isdecimal() else None
    if not task or not submission:
        return f"{job}_{task}" if task else job
    is_known = len(task) < 9 and int(task) in point_numbers(submission, submission.array)
    return f"{job}_{int(task) - submission.first}" if is_known else ""


def _cancel(state: RunState, job: str, cluster: str, *options: str) -> None:
    """Cancel a job of a run, by scancel or by ending its process; raise SlurmError or DocumentError."""
    from sbatchgen.jobs.runs import process, record
    from sbatchgen.jobs.slurm import client

    name = state.run.name
    if not job:
        raise SlurmError.of(f"the job of run {name} is not known", fix="squeue --me shows your jobs")
    if job.partition("_")[0].isdecimal():
        client.answer_text(["scancel", *client.cluster_option(cluster), *options, job], os.environ)
        return
    submission = record.read_record(state.run.folder, job)  # this job is a process without Slurm
    if submission is None or submission.process is None:
        raise DocumentError.of(f"the process of run {name} is not known: {state.jobs[-1].says}")
    is_alive = process.is_alive(submission.process, state.run.folder)
    if is_alive is None:  # only its own machine can tell
        what = f"run {name} is on {submission.process.host}, not here"
        raise DocumentError.of(what, fix=f"on that machine: sbatchgen cancel {name}")
    if is_alive:
        process.stop(submission.process)


# In some releases of Slurm, an overlapping step silently gets fewer GPUs than its job has.
_GPU_WARNING = """[ "${{SLURM_GPUS_ON_NODE:-{gpus}}}" -ge {gpus} ] ||
    echo "sbatchgen exec: this command has $SLURM_GPUS_ON_NODE of the job's {gpus} GPUs on $(hostname)" >&2
"""


@click.command("exec", options_metavar="")
@click.argument("run", metavar="RUN -- COMMAND", shell_complete=completed_runs)
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
        raise CommandLineError.of("no command", fix=fix)
    (state,), problems = point_states_of(open_index(), [run], changes=True)
    if problems:
        raise SlurmError(problems)
    name, job = state.run.name, state.last_job
    rows = [row for row in state.queue_rows if row.state.name == "RUNNING"]
    if job and seen_jobs.is_local(job):
        sys.exit(run_here(command, os.environ))
    if not rows:
        what = f"run {name} has no running job: {seen_jobs.state_in_words(job) if job else 'nothing'}"
        raise SlurmError.of(what, fix=f"sbatchgen status {name}")
    if job and job.cluster and job.cluster != config(os.environ).get("ClusterName"):
        what = f"run {name} is on cluster {job.cluster}: srun reaches the jobs of its own cluster only"
        raise SlurmError.of(
            what, fix=f"on a node of {job.cluster}: sbatchgen exec {name} -- {words(command)}"
        )
    row, (environment, _) = rows[-1], submit_environment(os.environ)
    step = ["srun", f"--jobid={row.id}", "--overlap", f"--nodes={row.nodes}", f"--ntasks={row.nodes}"]
    submission = read_record(state.run.folder, job.id) if job else None
    wrapper = _step_wrapper(submission) if submission else []
    sys.exit(run_here([*step, "--ntasks-per-node=1", "--", *wrapper, *command], environment))


def _step_wrapper(submission: Record) -> list[str]:
    """Return the words before a command in a job: they warn of missing GPUs, and enter the container."""
    from sbatchgen.check.sbatch.gres import gpu_amounts
    from sbatchgen.jobs.runtimes import RUNTIMES

    runtime = submission.value("runtime")
    enter_container = RUNTIMES[runtime].enter_script if runtime in RUNTIMES else ""
    gpus = sum(count for _, count in gpu_amounts(submission.value("--gpus-per-node")) or ())
    gpu_warning = _GPU_WARNING.format(gpus=gpus) if gpus else ""
    shell_code = gpu_warning + (enter_container or ('exec "$@"' if gpus else ""))
    return ["sh", "-c", shell_code, "sbatchgen"] if shell_code else []
