"""A run, from its start to its exit status."""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

import torch

from training import files
from training.config import Config, global_batch
from training.errors import DONE, PREEMPTED, FolderError, UserError, explain, one_line
from training.files import CHECKPOINTS, list_checkpoints, own_folder
from training.model.optimizer import state_bytes
from training.output.log import Log, format_duration, progress_of, read_status
from training.processes import resident
from training.processes.jobscript import AGAIN_FILE, STOP, ask_again
from training.processes.ranks import Place
from training.processes.stacks import with_recorder
from training.processes.stop import OUT_OF_TIME, STOP_FILE, Stop
from training.processes.world import World, gather_text, join, leave, on_rank0
from training.run.agreement import StoppedError, synchronise
from training.run.evaluation import evaluate
from training.run.export import check_export, export, write_weights
from training.run.loop import steps_left, time_left_s, train_epoch
from training.run.pace import Pace
from training.run.resume import checkpoint_folder, restore, save
from training.run.score import metrics_text, report
from training.run.session import Meter, Progress, Session
from training.run.setup import announce, facts_about, prepare, warm_up, wrap
from training.run.usage import Usage, add_up, gpu_numbers, trace
from training.runfolder import read_save_events
from training.saving import checkpoint
from training.saving.lock import RunLock


def run(config: Config, place: Place, stop: Stop) -> int:
    """Train, or only evaluate with --evaluate; return the exit status.

    Raises UserError, or NotFiniteError for a loss or a weight that is not finite.
    """
    run_dir = Path(config.run_dir)
    log = Log(run_dir=run_dir, speaks=place.rank == 0, records=not config.evaluate, began=stop.began)
    lock = RunLock(run_dir)
    try:
        world = _join(config, place, lock, log)
        resident.keep_libraries()  # a thread reads torch's libraries meanwhile
        announce(config, world, log)
        try:
            session = prepare(config, world, log, stop, lock)
            status = _evaluate_only(session) if config.evaluate else _train(session)
        except (RuntimeError, ValueError) as error:
            if (known := explain(error, world.name)) is None:
                raise
            raise known from error
        leave(world)
    finally:
        log.end()
        lock.release()
        files.release_run_folder()
    return status


def _open_run(lock: RunLock, log: Log) -> None:
    """Take the run folder, and set the state to running before this process waits for others.

    Raises FolderError if another job has the folder, or if it can't be written.
    """
    try:
        own_folder(log.run_dir, CHECKPOINTS)
        lock.take(log.say)
        if resident.is_mounted():
            files.hold_run_folder(log.run_dir)
        log.status("running", **progress_of(read_status(log.run_dir)))  # the progress of an earlier start
    except OSError as error:
        what = f"cannot write in the run folder ({one_line(error)})"
        raise FolderError(what, at=str(log.run_dir), fix="another --run-dir") from error


def _join(config: Config, place: Place, lock: RunLock, log: Log) -> World:
    """Open the run folder on rank 0, and meet the other processes.

    All processes raise UserError if rank 0 can't open the run folder, or if a flag is wrong.
    """
    if place.launcher != "none":
        os.environ.update(with_recorder(os.environ, config.run_dir))

    def check() -> None:
        if log.speaks and log.records:
            _open_run(lock, log)
        global_batch(config, place.size)
        if config.dataparallel and place.size > 1:
            what = f"--dataparallel is one process, but {place.size} were started"
            raise UserError(what, fix="leave it out")

    return join(place, check, device=config.device, backend=config.backend, timeout_s=config.dist_timeout)


def _train(session: Session) -> int:
    """Resume from a checkpoint if one exists, and train to the end or to a stop; return the exit status."""
    config, world, log = session.config, session.world, session.log
    folder = checkpoint_folder(config)
    on_rank0(world, lambda: check_export(config))
    on_rank0(world, lambda: checkpoint.prepare(folder, config.resume, log.note))
    progress = restore(session)
    if progress.done >= config.epochs:
        log.say(
            f"Nothing left to do: {progress.epoch} of {config.epochs} epochs are done{_other_job(session)}"
        )
        export(session)  # the last start may have been killed before its export
        _conclude(session, progress, "done")
        return DONE
    size = state_bytes(config, session.model)
    on_rank0(world, lambda: checkpoint.check_room(folder, size, keep=config.keep, tell=log.note))
    if config.tensorboard == "auto":
        log.start_curves(step=progress.step)
    facts = facts_about(session) | {"settings": session.settings, "job": os.environ.get("SLURM_JOB_ID", "")}
    log.event("start", step=progress.step, epoch=progress.done, **facts)
    log.status("running", step=progress.step, epoch=progress.done, checkpoint=progress.checkpoint)
    session = dataclasses.replace(session, training_model=wrap(session))  # only now, with the loaded weights
    if world.size > 1:
        warm_up(session)
    # Load the libraries now, because the file system of the container's image may end before a save.
    resident.keep_libraries().join()
    try:
        with trace(config, log, steps_left(session, progress)) as profiler:
            usage = Usage(gpus=gpu_numbers(world.device, all_gpus=config.dataparallel))
            pace = Pace(gather_text(world, world.host), world.rank, on_gpu=world.device.type == "cuda")
            meter = Meter(usage=usage, pace=pace, profiler=profiler)
            return _train_epochs(dataclasses.replace(session, meter=meter), progress)
    finally:
        session.writer.wait()  # also after an error, because the checkpoint in the thread is good


def _other_job(session: Session) -> str:
    """Return a clause about another job that saved last in this folder; "" if it was this job."""
    newest = list_checkpoints(checkpoint_folder(session.config))[:1] if session.log.speaks else []
    job = read_save_events(session.log.run_dir, newest[0].name).get("job") if newest else ""
    if not job or job == os.environ.get("SLURM_JOB_ID", ""):
        return ""
    return f" by job {job}; for a new run: another --run-dir, or --resume off; to train longer: more --epochs"


def _train_epochs(session: Session, progress: Progress) -> int:
    """Train the remaining epochs, or until a request to stop; return the exit status."""
    config, world, log = session.config, session.world, session.log
    first_step = progress.step
    try:
        synchronise(session, progress, torch.zeros(3, dtype=torch.float64, device=world.device), saves=False)
        while progress.done < config.epochs:
            if not progress.unvalidated:
                train_epoch(session, progress)
            _finish_epoch(session, progress)
    except StoppedError as stopped:
        files.enter_run_folder()
        progress.count_epoch(session.data.train.samples)
        save(session, progress, must=True)
        _conclude(session, progress, "preempted", reason=str(stopped))
        line = f"Stopped by {stopped} at step {progress.step}; checkpoint {progress.checkpoint} saved"
        if str(stopped) == STOP_FILE:
            line += f"; without sbatchgen, remove {Path(config.run_dir) / STOP} before the next start"
        log.say(line)
        if str(stopped) in OUT_OF_TIME and log.speaks and os.environ.get(AGAIN_FILE):
            _ask_again(session, steps_done=progress.step - first_step)
        _record_usage(session, progress)
        return PREEMPTED
    export(session)
    best = metrics_text({session.task.names[0]: progress.best}).replace(":", "").lower()
    log.say(f"Training completed: {config.epochs} epochs, best {best}")
    _conclude(session, progress, "done")
    return DONE


def _ask_again(session: Session, *, steps_done: int) -> None:
    """Ask the job script for a restart. Without a step since the start, such restarts would never end."""
    if not steps_done:
        session.log.say("Not asking for a restart: no step was done since the start")
        return
    try:
        ask_again()
    except OSError as error:
        session.log.say(f"Cannot ask for a restart ({one_line(error)})")


def _finish_epoch(session: Session, progress: Progress) -> None:
    """Validate the trained epoch, log its score, and save a checkpoint."""
    score = evaluate(session)
    loss, _, samples = progress.sums
    is_best = progress.note_score(score.metrics[session.task.names[0]])
    rate = session.meter.rate()
    speed = f"{rate:.0f} samples/s, {format_duration(time_left_s(session, progress))} left"
    details = f"(validation of {score.samples}; training loss {loss / max(samples, 1):.6f})"
    session.log.say(f"Epoch {progress.epoch} - {score}, {speed} {details}")
    facts = score.facts | {"train_loss": loss / max(samples, 1), "samples_per_s": round(rate, 1)}
    session.log.event("epoch", **facts | {"epoch": progress.epoch, "step": progress.step})
    _record_usage(session, progress)
    try:
        save(session, progress, best=is_best, must=progress.epoch >= session.config.epochs)
    except UserError as error:  # the last save failed, but the smaller file with the weights may still fit
        if not isinstance(error, FolderError):
            with contextlib.suppress(UserError):
                write_weights(session)
        raise
    session.meter.begin_window()


def _record_usage(session: Session, progress: Progress) -> None:
    """Add an event with the resources that all processes have used since this start."""
    used = add_up(session.world, session.meter.usage)
    session.log.event("resources", step=progress.step, samples=session.meter.trained_samples, **used)


def _conclude(session: Session, progress: Progress, state: str, *, reason: str | None = None) -> None:
    """Write the final state of the run into status.json and the events."""
    facts: dict[str, Any] = {"step": progress.step, "epoch": progress.done, "reason": reason}
    session.log.status(state, checkpoint=progress.checkpoint, **facts)
    session.log.event(state, **facts)


def _evaluate_only(session: Session) -> int:
    """Evaluate the weights of a checkpoint, or of --init-from; return the exit status.

    The run's status.json stays unchanged. Raises UserError without weights.
    """
    config = session.config
    progress = Progress() if config.init_from else restore(session)
    origin = config.init_from or progress.checkpoint
    if not origin:
        at, fix = str(checkpoint_folder(config)), "--resume FILE or --init-from FILE"
        raise UserError("there are no weights to evaluate", at=at, fix=fix, shared=True)
    try:
        score = evaluate(session)
    except StoppedError as stopped:
        session.log.say(f"Stopped by {stopped} during the evaluation")
        return PREEMPTED
    report(session, score, origin, step=progress.step)
    export(session)
    return DONE
