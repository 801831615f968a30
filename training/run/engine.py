"""A run, from its start to its exit status."""

from __future__ import annotations

import dataclasses
import inspect
import os
import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training.config import Config, critical_settings, global_batch
from training.data.datasets import load_data
from training.errors import DONE, PREEMPTED, FolderError, UserError, one_line
from training.files import own_folder
from training.model.finetuning import freeze, load_all_but_head
from training.model.models import build_model
from training.model.norms import only_norms_have_buffers
from training.model.optimizer import Ema, build_optimizer, state_bytes
from training.model.precision import Autocast, build_scaler, choose_kernels, warn_of_bf16
from training.model.tasks import build_task
from training.output.log import Log, format_duration, progress_of, read_status
from training.processes import hang
from training.processes.jobscript import STOP, ask_again, may_ask_again
from training.processes.ranks import Place
from training.processes.stop import OUT_OF_TIME, STOP_FILE_REASON, Stop, parse_deadline
from training.processes.world import (
    World,
    broadcast_bytes,
    copy_from_rank0,
    gather_text,
    join,
    leave,
    on_rank0,
    together,
)
from training.run.agreement import StoppedError, synchronise
from training.run.evaluation import Score, evaluate, show
from training.run.export import export
from training.run.faults import explain
from training.run.loop import time_left_s, train_epoch, try_out, warm_up
from training.run.profile import profile
from training.run.resume import checkpoint_folder, restore, save
from training.run.session import Meter, Progress, Session
from training.run.usage import Usage, add_up, gpus_of
from training.runfolder import read_saved
from training.saving import checkpoint
from training.saving.lock import RunLock
from training.saving.names import CHECKPOINTS, list_checkpoints


def run(config: Config, place: Place, stop: Stop) -> int:
    """Train, or only evaluate, and return the exit status.

    Raises:
        UserError: If the run cannot be done as asked.
        NotFiniteError: If the loss is not finite.
    """
    run_dir = Path(config.run_dir)
    log = Log(run_dir=run_dir, speaks=place.rank == 0, records=not config.evaluate)
    lock = RunLock(run_dir)
    refusal = _open_run(lock, log) if log.speaks and log.records else None
    try:
        return _run(config, place, stop, log, lock, refusal)
    except UserError as error:
        if refusal and error is not refusal:
            raise refusal from error  # first: nothing may be written in another job's folder
        raise
    finally:
        log.end()
        lock.release()


def _run(  # noqa: PLR0917 - what `run` has
    config: Config, place: Place, stop: Stop, log: Log, lock: RunLock, refusal: FolderError | None
) -> int:
    """The run, unless rank 0 could not open the run folder."""
    global_batch(config, place.size)  # before the processes wait for each other
    if config.dataparallel and place.size > 1:
        what = f"--dataparallel is one process, but {place.size} were started"
        raise UserError(what, fix="leave it out", shared=True)
    if place.size > 1:
        hang.record(log.run_dir)
    world = join(place, device=config.device, backend=config.backend, timeout_s=config.dist_timeout)
    refused = broadcast_bytes(world, str(refusal).encode() if refusal else None)
    if refused is not None:
        raise refusal or FolderError(refused.decode(), shared=True)
    _announce(config, world, log)
    hang.watch(world, config.dist_timeout)
    try:
        session = _prepare(config, world, log, stop, lock)
        status = _evaluate_only(session) if config.evaluate else _train(session)
    except (RuntimeError, ValueError) as error:
        if (known := explain(error, world)) is None:
            raise
        raise known from error
    leave(world)
    return status


def _open_run(lock: RunLock, log: Log) -> FolderError | None:
    """Take the run folder and set the state to running, before anything can hang; returns the error, if any.

    Step, epoch and checkpoint of an earlier start are kept.
    """
    run_dir = log.run_dir
    try:
        own_folder(run_dir, CHECKPOINTS)
        lock.take(log.say)
        log.status("running", **progress_of(read_status(run_dir)))
    except FolderError as error:
        error.shared = True
        return error
    except OSError as error:
        what = f"cannot write in the run folder ({one_line(error)})"
        return FolderError(what, at=str(run_dir), fix="another --run-dir", shared=True)
    return None


def _announce(config: Config, world: World, log: Log) -> None:
    """Log how many processes run, where, and on which devices."""
    on_cpu = world.device.type == "cpu"
    if not on_cpu:
        gpus = torch.cuda.device_count() if config.dataparallel else world.size
        where = f"{gpus} GPU{'s' * (gpus != 1)}"
    else:
        backend = f", {world.backend}" if world.backend else ""
        where = f"{world.size} process{'es' * (world.size != 1)} (cpu{backend})"
    log.say(f"Starting {'distributed ' * (world.size > 1)}training on {where}")
    master = os.environ["MASTER_ADDR"] if world.size > 1 else "localhost"
    log.say(f"Master node: {world.host if master in ('localhost', '127.0.0.1') else master}")
    if config.dataparallel and on_cpu:
        log.say("No GPU is visible: --dataparallel runs as one process on the CPU")
    if config.precision == "bf16" and on_cpu and (warning := warn_of_bf16()):
        log.say(warning)
    mine = f"rank {world.rank} of {world.size} on {world.host}, local rank {world.local_rank}"
    for line in gather_text(world, f"{mine}, device {world.device}, {world.threads} threads"):
        log.say(line)


def _prepare(config: Config, world: World, log: Log, stop: Stop, lock: RunLock) -> Session:
    """Load the data, build the model and the optimizer."""
    batch = global_batch(config, world.size)
    choose_kernels(config, world.device)
    loaded = together(world, lambda: load_data(config, world.device))
    model = together(world, lambda: build_model(config, loaded)).to(world.device)
    if config.sync_bn and world.size > 1:
        if world.device.type == "cpu":
            raise UserError("--sync-bn needs GPUs", fix="leave it out on CPUs", shared=True)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call,unused-ignore]
    if config.init_from:
        weights = Path(config.init_from)
        origin, classes = str(weights), loaded.classes * (not config.evaluate)
        left = on_rank0(
            world,
            lambda: load_all_but_head(model, checkpoint.decode_weights(weights), origin, classes=classes),
        )
        if left:
            log.say(f"Weights of {origin}, but not of another number of classes: {', '.join(left)}")
        copy_from_rank0(world, [*model.parameters(), *model.buffers()])
    together(world, lambda: freeze(model, config))
    # convnet on the CPU: pooling is faster with it
    if config.channels_last or (config.model == "convnet" and world.device.type == "cpu"):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]
    session = Session(
        config=config,
        world=world,
        log=log,
        stop=stop,
        lock=lock,
        data=loaded,
        batch=batch,
        model=model,
        trained=model,
        optimizer=build_optimizer(config, model),
        task=together(world, lambda: build_task(config, loaded)),
        scaler=together(world, lambda: build_scaler(config, world.device)),
        ema=Ema(model, config.ema) if config.ema and not config.evaluate else None,
        settings=critical_settings(
            config, batch=batch, train_samples=loaded.train.samples, data_checksum=loaded.checksum
        ),
    )
    session = dataclasses.replace(session, metrics=together(world, lambda: try_out(session)))
    if log.speaks and log.records:
        stop.watch(log.run_dir / STOP, parse_deadline(config.deadline, os.environ, stop.began))
        log.write("config.json", dataclasses.asdict(config) | _surroundings(session), indent=2)
    return session


def _surroundings(session: Session) -> dict[str, Any]:
    """Facts for config.json and the start event."""
    world = session.world
    return {
        "global_batch_size": session.batch,
        "train_samples": session.data.train.samples,
        "processes": world.size,
        "device_type": world.device.type,
        "process_group": world.backend,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _train(session: Session) -> int:
    """Resume if there is a checkpoint, and train to the end or to a stop."""
    config, world, log = session.config, session.world, session.log
    place = checkpoint_folder(config)
    on_rank0(world, lambda: checkpoint.prepare(place, config.resume, log.note))
    progress = restore(session)
    if progress.epoch >= config.epochs:
        log.say(f"Nothing left to do: {progress.epoch} of {config.epochs} epochs are done{_by_whom(session)}")
        export(session)  # the last start may have been killed before this
        _conclude(session, progress, "done")
        return DONE
    size = state_bytes(config, session.model)
    on_rank0(world, lambda: checkpoint.check_room(place, size, keep=config.keep, tell=log.note))
    if config.tensorboard == "auto":
        log.start_curves(step=progress.step)
    job = os.environ.get("SLURM_JOB_ID", "")
    facts = _surroundings(session) | {"settings": session.settings}
    log.event("start", step=progress.step, epoch=progress.epoch, job=job, **facts)
    log.status("running", step=progress.step, epoch=progress.epoch, checkpoint=progress.checkpoint)
    session = dataclasses.replace(session, trained=_wrap(session))  # after the weights are loaded
    if world.size > 1:
        warm_up(session)
    usage = Usage(gpus=gpus_of(world.device, every=config.dataparallel))
    session = dataclasses.replace(session, meter=Meter(), usage=usage)
    try:
        with profile(session) as profiler:
            return _train_on(dataclasses.replace(session, profiler=profiler), progress)
    finally:
        session.writer.wait()  # also if the run fails: the checkpoint is good


def _by_whom(session: Session) -> str:
    """Name another job that trained last in this folder, and what to do."""
    if not session.log.speaks:
        return ""
    run_dir = Path(session.config.run_dir)
    newest = list_checkpoints(checkpoint_folder(session.config))[:1]
    job = read_saved(run_dir, newest[0]).job if newest else ""
    if job in {"", os.environ.get("SLURM_JOB_ID", "")}:
        return ""
    return f" by job {job}; for a new run: another --run-dir, or --resume off; to train longer: more --epochs"


def _train_on(session: Session, progress: Progress) -> int:
    """Train the remaining epochs."""
    config, world, log = session.config, session.world, session.log
    began = progress.step
    try:
        synchronise(session, progress, torch.zeros(3, dtype=torch.float64, device=world.device), saves=False)
        while progress.epoch < config.epochs:
            title = f"Epoch {progress.epoch + 1} of {config.epochs}"
            with log.live(title, total=session.data.train.samples, done=progress.consumed):
                train_epoch(session, progress)
            _finish_epoch(session, progress)
    except StoppedError as stopped:
        save(session, progress, must=True)
        _conclude(session, progress, "preempted", reason=str(stopped))
        line = f"Stopped by {stopped} at step {progress.step}; checkpoint {progress.checkpoint} saved"
        if str(stopped) == STOP_FILE_REASON:
            line += f"; without sbatchgen, remove {Path(config.run_dir) / STOP} before the next start"
        log.say(line)
        if str(stopped) in OUT_OF_TIME and log.speaks and may_ask_again():
            _ask_again(session, gained=progress.step - began)
        _tell_usage(session, progress)
        return PREEMPTED
    export(session)
    best = show({session.metric: progress.best}, "")
    log.say(f"Training completed: {config.epochs} epochs, best {best}")
    _conclude(session, progress, "done")
    return DONE


def _ask_again(session: Session, *, gained: int) -> None:
    """Ask the job script for a restart, unless no step was done: that would never end."""
    if not gained:
        session.log.say("Not asking for a restart: no step was done since the start")
        return
    try:
        ask_again()
    except OSError as error:
        session.log.say(f"Cannot ask for a restart ({one_line(error)})")


def _finish_epoch(session: Session, progress: Progress) -> None:
    """Validate, log and save."""
    score = _score(session)
    loss, _, samples = progress.sums
    progress.epoch, progress.consumed, progress.sums = progress.epoch + 1, 0, [0.0, 0.0, 0.0]
    value = score.metrics[session.metric]
    best = value > progress.best
    progress.best = max(progress.best, value)
    rate = session.meter.rate()
    session.log.say(
        f"Epoch {progress.epoch} - {score}, "
        f"{rate:.0f} samples/s, {format_duration(time_left_s(session, progress))} left "
        f"(validation of {score.samples}; training loss {loss / max(samples, 1):.6f})"
    )
    facts = score.metrics | {"loss": score.loss, "samples": score.samples}
    facts |= {"train_loss": loss / max(samples, 1), "samples_per_s": round(rate, 1)}
    session.log.event("epoch", **facts | {"epoch": progress.epoch, "step": progress.step})
    _tell_usage(session, progress)
    save(session, progress, best=best, must=progress.epoch >= session.config.epochs)
    session.meter.restart(session.usage.data_s)


def _tell_usage(session: Session, progress: Progress) -> None:
    """Write what all processes have used since this start into the events."""
    used = add_up(session.world, session.usage)
    session.log.event("resources", step=progress.step, samples=session.meter.trained, **used)


def _score(session: Session) -> Score:
    with session.log.live("Validation", total=session.data.validation.samples):
        return evaluate(session)


def _conclude(session: Session, progress: Progress, state: str, *, reason: str | None = None) -> None:
    """Write the state to status.json and the events."""
    session.log.status(
        state, step=progress.step, epoch=progress.epoch, checkpoint=progress.checkpoint, reason=reason
    )
    session.log.event(state, step=progress.step, epoch=progress.epoch, reason=reason)


def _wrap(session: Session) -> nn.Module:
    """The model for training steps."""
    world, config = session.world, session.config
    model: Any = session.model
    if (
        config.compile
    ):  # around DistributedDataParallel it compiles nothing of an nn.Sequential (pytorch#140416)
        model = torch.compile(model, dynamic=False)  # a short last batch must not change what others compute
    if world.size > 1:
        names = inspect.signature(DistributedDataParallel).parameters  # renamed in torch 2.13
        name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        buffers: dict[str, Any] = {name: not only_norms_have_buffers(session.model)}
        model = DistributedDataParallel(
            model,
            device_ids=[world.device] if world.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=config.find_unused_parameters,
            **buffers,
        )
    elif config.dataparallel and world.device.type == "cuda":
        model = nn.DataParallel(Autocast(model, config, world.device))
    made: nn.Module = model
    return made


def _evaluate_only(session: Session) -> int:
    """Evaluate the weights of a checkpoint, or of --init-from. The run's status is not changed."""
    config = session.config
    progress = Progress() if config.init_from else restore(session)
    origin = config.init_from or progress.checkpoint
    if not origin:
        place, fix = str(checkpoint_folder(config)), "--resume FILE or --init-from FILE"
        raise UserError("there are no weights to evaluate", at=place, fix=fix, shared=True)
    try:
        score = _score(session)
    except StoppedError as stopped:
        session.log.say(f"Stopped by {stopped} during the evaluation")
        return PREEMPTED
    session.log.say(f"Evaluation of {origin} - {score} (validation of {score.samples})")
    export(session)
    return DONE
