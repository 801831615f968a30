"""The preparation of a run: it makes the data, the model and the optimizer, and tries them out.

Shape suffixes: B samples of this process; channels, height and width of images (C, H, W).
"""

import dataclasses
import inspect
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from training.config import Config
from training.data.datasets import load_data
from training.data.splits import FromLoaders
from training.errors import UserError, explain, one_line
from training.model.activation_checkpointing import keep_buffers
from training.model.models import build_model, freeze, load_all_but_head, train_mode
from training.model.optimizer import Ema, Updater, build_optimizer
from training.model.precision import Autocast, build_scaler, choose_kernels, wants_channels_last, warn_of_bf16
from training.model.tasks import Task, build_task, check_output
from training.output.log import Log
from training.processes.jobscript import STOP
from training.processes.stop import Stop, parse_deadline
from training.processes.world import World, copy_from_rank0, gather_text, on_all_ranks, on_rank0
from training.run.loop import forward, stand_in
from training.run.session import Session
from training.run.trackers import start_trackers
from training.saving.checkpoint import decode_weights
from training.saving.lock import RunLock
from training.saving.writer import Writer

MAX_LOADERS = 8  # the most loaders by default, because each prefetches batches in shared memory


def announce(config: Config, world: World, log: Log) -> None:
    """Log the number of processes, their nodes and their devices."""
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
    own_line = f"{world.name}, local rank {world.local_rank}, device {world.device}, {world.threads} threads"
    for line in gather_text(world, own_line):
        log.say(line)


def prepare(config: Config, world: World, log: Log, stop: Stop, lock: RunLock) -> Session:
    """Load the data, build the model and the optimizer, and return the session.

    Raises UserError if the data or the model are wrong.
    """
    if config.workers < 0:
        config = dataclasses.replace(config, workers=min(MAX_LOADERS, world.cpus))
    if config.log_to:
        log.trackers = on_rank0(world, lambda: start_trackers(config, log.say)) or {}
    choose_kernels(config, world.device)
    loaded = on_all_ranks(world, lambda: load_data(config, world.device))
    model = on_all_ranks(world, lambda: build_model(config, loaded)).to(world.device)
    if config.sync_bn and world.size > 1:
        if world.device.type == "cpu":
            raise UserError("--sync-bn needs GPUs", fix="leave it out on CPUs", shared=True)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call,unused-ignore]
    if config.init_from:
        origin = config.init_from
        classes = 0 if config.evaluate else loaded.classes  # an evaluation needs a head with these classes
        not_loaded = on_rank0(
            world, lambda: load_all_but_head(model, decode_weights(Path(origin)), origin, classes=classes)
        )
        if not_loaded:
            log.say(f"Weights of {origin}, but not of another number of classes: {', '.join(not_loaded)}")
        copy_from_rank0(world, [*model.parameters(), *model.buffers()])
    on_all_ranks(world, lambda: freeze(model, config))
    if wants_channels_last(config, world.device.type, model):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]
        config = dataclasses.replace(config, channels_last=True)
    scaler = on_all_ranks(world, lambda: build_scaler(config, world.device))
    ema = Ema(model, config.ema) if config.ema and not config.evaluate else None
    updater = Updater(build_optimizer(config, model), scaler, ema)
    task, writer = on_all_ranks(world, lambda: build_task(config, loaded)), Writer(lock.check)
    session = Session(config, world, log, stop, loaded, task, model, model, updater, writer)
    session = dataclasses.replace(session, task=on_all_ranks(world, lambda: try_out(session)))
    if choices := "; ".join(_choices(session)):
        log.say(f"Chosen: {choices}")
    if log.speaks and log.records:
        stop.watch(log.run_dir / STOP, parse_deadline(config.deadline, os.environ, stop.began))
        log.write("config.json", dataclasses.asdict(config) | facts_about(session), indent=2)
    return session


def _choices(session: Session) -> Iterator[str]:
    """Yield what the trainer chose for speed, each with the flag or variable that changes the choice."""
    config, on_gpu = session.config, session.world.device.type == "cuda"
    if on_gpu and config.precision == "fp32":
        yield "TF32 for products of fp32 (NVIDIA_TF32_OVERRIDE=0)"
    if on_gpu:
        yield f"channels_last{' (--no-channels-last)' if config.channels_last else ': no (--channels-last)'}"
    if on_gpu and not config.deterministic:
        yield "the fastest kernels of cuDNN (--deterministic)"
    if isinstance(session.data.train, FromLoaders):
        yield f"{config.workers} loaders{' with pinned memory' * on_gpu}, as many for validation (--workers)"


def facts_about(session: Session) -> dict[str, Any]:
    """Return facts about the run, next to its settings, for config.json and the start event."""
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


def wrap(session: Session) -> nn.Module:
    """Return the model for training steps: compiled, and wrapped for several GPUs if needed."""
    world, config = session.world, session.config
    model: Any = session.model
    if config.compile:
        # The model is compiled before it is wrapped, because torch.compile of a DistributedDataParallel
        # compiles no nn.Sequential (pytorch#140416). With `dynamic` unset, a short last batch would change
        # the kernels of later batches.
        model = torch.compile(model, dynamic=False)
    if world.size > 1:
        names = inspect.signature(DistributedDataParallel).parameters
        # torch 2.13 renamed this option.
        name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        options: dict[str, Any] = {name: not only_norms_have_buffers(session.model)}
        options["device_ids"] = [world.device] if world.device.type == "cuda" else None
        options["find_unused_parameters"] = config.find_unused_parameters
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
    elif config.dataparallel and world.device.type == "cuda":
        model = nn.DataParallel(Autocast(model, config, world.device))
    return model  # type: ignore[no-any-return]


def only_norms_have_buffers(model: nn.Module) -> bool:
    """Return whether only batch norms have buffers. Then ranks don't need rank 0's buffers in each step."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    norm_buffers = {id(buffer) for norm in norms for buffer in norm.buffers()}
    return all(id(buffer) in norm_buffers for buffer in model.buffers())


def try_out(session: Session) -> Task:
    """Try the model with the smallest batch of the run; return the task with the names of its metrics.

    Raises UserError if the model cannot take the images, or if the task cannot take the outputs.
    """
    config, data, model = session.config, session.data, session.model
    last_batch = data.train.samples % session.batch or session.batch
    part = session.batch // config.accumulate
    # The images of a process in the last part of the last step: at least a stand-in.
    fewest = max(1, (last_batch % part or part) // session.world.size)
    images = 1 if config.evaluate else min(fewest, 2)
    x_BCHW, y_B = stand_in(session, images)
    model.eval() if config.evaluate else train_mode(model)
    try:
        with torch.no_grad(), keep_buffers(model):
            outputs = forward(session, model, x_BCHW)
    except (RuntimeError, ValueError, AssertionError) as error:  # torch and torchvision raise these
        if known := explain(error, session.world.name):
            raise known from error
        size = "x".join(map(str, data.shape_CHW))
        what = f"--model {config.model} cannot take {images} images of {size} ({one_line(error)[:200]})"
        batch_fix = "another --batch-size: the last step of an epoch has one image per process"
        raise UserError(what, fix=batch_fix if fewest == 1 else "another --model") from error
    with torch.no_grad():
        names = check_output(config, session.task, data, outputs, y_B)
    return dataclasses.replace(session.task, names=names)


def warm_up(session: Session) -> None:
    """Make two steps of a whole batch, which leave the weights unchanged, and compile the model.

    DistributedDataParallel rebuilds its buckets after its first step, and then sums gradients in another
    order. Without these steps a resumed run would round its first step differently from an uninterrupted run.
    """
    x_BCHW, y_B = stand_in(session, session.images_at_once)
    train_mode(session.training_model)
    with keep_buffers(session.model):
        for _ in range(2):  # the buckets are rebuilt at the beginning of the second step
            outputs = forward(session, session.training_model, x_BCHW)
            torch.autograd.backward(session.task.training_loss(outputs, y_B).mean())
    session.model.zero_grad(set_to_none=True)
