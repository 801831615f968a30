"""The steps of an epoch.

Shape suffixes: B samples of a batch in this process; channels, height and width of images (C, H, W).
"""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from training.config import steps_to_end
from training.data.order import cut_steps, derive_seed, epoch_order, share
from training.data.splits import Batch, FromLoaders, Split
from training.errors import UserError
from training.model.models import train_mode
from training.model.optimizer import lr_at, set_lr
from training.model.precision import autocast
from training.output.log import format_duration
from training.run.agreement import synchronise
from training.run.resume import save
from training.run.session import Progress, Session

# Tally keeps outputs of at most so many values, for at most so many parts of steps, before it computes their
# metrics.
MAX_KEPT_VALUES, MAX_KEPT_PARTS = 1 << 20, 16
PARTS_OF_ONE = 1 << 24  # float64 adds multiples of 1 / PARTS_OF_ONE without rounding, up to 2^29


class Tally:
    """The sums of loss, score and samples, on the device: float64 (3,).

    The metrics of small outputs are computed for MAX_KEPT_PARTS parts at once, because each computation
    starts 14 kernels.
    """

    def __init__(self, session: Session) -> None:
        self._task, self._classifies = session.task, not session.config.task
        self._sums = torch.zeros(3, dtype=torch.float64, device=session.world.device)
        self._parts: list[tuple[torch.Tensor, Any, torch.Tensor]] = []

    def add(self, losses_B: torch.Tensor, outputs: Any, y_B: torch.Tensor) -> None:
        """Add a part of a step."""
        is_small = self._classifies and outputs.numel() <= MAX_KEPT_VALUES
        self._parts.append((losses_B.detach(), outputs.detach() if is_small else outputs, y_B))
        if not is_small or len(self._parts) == MAX_KEPT_PARTS:
            self.total()

    def total(self) -> torch.Tensor:
        """Return the sums so far; the caller may set the tensor to zero in place."""
        if self._parts:
            losses, outputs, targets = zip(*self._parts, strict=True)
            if len(losses) == 1:
                scored = (outputs[0], targets[0])
            else:
                scored = (torch.cat(outputs), torch.cat(targets))
            with torch.no_grad():
                self._sums += sums_of(torch.cat(losses), self._task.score(*scored))
            self._parts.clear()
        return self._sums


def train_epoch(session: Session, progress: Progress) -> None:
    """Train on the rest of the epoch, and update `progress` after each step; raises like `synchronise`."""
    config, split, rank, size = session.config, session.data.train, session.world.rank, session.world.size
    order_N = epoch_order(split.samples, seed=config.seed, epoch=progress.epoch).to(split.index_device)
    batch = session.batch
    steps = cut_steps(split.samples, batch=batch, consumed=progress.consumed)
    part_size = batch // config.accumulate
    parts_of_steps = [cut_steps(first + count, batch=part_size, consumed=first) for first, count in steps]
    parts = [part for step_parts in parts_of_steps for part in step_parts]
    shares = [share(order_N, first, count, rank=rank, size=size) for first, count in parts]
    steps_per_epoch = math.ceil(split.samples / batch)
    tally = Tally(session)
    train_mode(session.training_model)
    session.meter.begin()
    batches = batches_of(session, split, shares, progress.epoch)
    for (first, count), step_parts in zip(steps, parts_of_steps, strict=True):
        lr = lr_at(config, progress.epoch, first / batch, steps_per_epoch=steps_per_epoch)
        set_lr(session.updater.optimizer, lr)
        train_step(session, batches, [count for _, count in step_parts], tally, step=progress.step)
        progress.step += 1
        progress.consumed = first + count
        if session.meter.profiler:
            session.meter.profiler.step()
        if config.step_delay:
            time.sleep(config.step_delay)
        is_last = progress.consumed == split.samples
        saves = is_last or (config.save_every > 0 and progress.step % config.save_every == 0)
        if session.meter.is_sync_due(progress.step, config.sync_every) or saves:
            synchronise(session, progress, tally.total(), saves=saves)
            _report(session, progress, lr, steps_per_epoch)
            if saves and not is_last:
                save(session, progress)
    progress.count_epoch(split.samples)
    save(session, progress)  # before the validation, which may fail


def train_step(
    session: Session, batches: Iterator[Batch], counts: list[int], tally: Tally, *, step: int
) -> None:
    """Make one step of the optimizer on the mean loss of the step's images.

    The gradients of the processes are averaged, so each process weights its images by `size / sum(counts)`.
    One process with all images would get the same result, even if the last batch is short. A process without
    an image has a stand-in with weight 0, because the process must take part in the averaging.

    For each part of the step, `batches` has this process's x_BCHW (float32) and y_B (int64), and `counts` has
    the images of all processes. `tally` gets the results of this process.
    """
    world, config, scaler = session.world, session.config, session.updater.scaler
    # The optimizer's zero_grad does the same, but also calls hooks.
    for group in session.updater.optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = None
    images = sum(counts)
    no_sync = getattr(session.training_model, "no_sync", contextlib.nullcontext)
    for part, count in enumerate(counts, start=1):
        session.meter.pace.mark()
        began = time.perf_counter()
        x_BCHW, y_B = next(batches)
        session.meter.usage.data_s += time.perf_counter() - began
        session.meter.pace.mark()
        # Seed now, because `next` may have used random numbers to read images.
        _seed(session, derive_seed("step", config.seed, step, world.rank, part))
        has_image = float(world.rank < count)  # 0 for a stand-in
        x_mixed, y_mixed = session.task.mix(x_BCHW, y_B) if session.task.mix else (x_BCHW, y_B)
        # Only the last part averages the gradients.
        with no_sync() if part < len(counts) else contextlib.nullcontext():
            outputs = forward(session, session.training_model, x_mixed)
            losses_B = session.task.training_loss(outputs, y_mixed)
            share_B = torch.full_like(losses_B, has_image * world.size / images)  # weights of the losses
            session.meter.pace.mark()
            torch.autograd.backward(losses_B, scaler.scale(share_B) if scaler else share_B)
        if has_image:
            tally.add(losses_B, outputs, y_B)
    _update(session, logged=step % config.log_every == 0)
    if session.updater.ema:
        session.updater.ema.update(step)


def _update(session: Session, *, logged: bool) -> None:
    """Update the weights, unless gradients overflowed under a loss scale.

    If the step is `logged`, the norm of the gradients is noted.
    """
    optimizer, scaler, max_norm = session.updater.optimizer, session.updater.scaler, session.config.clip_norm
    if max_norm or logged:
        if scaler:
            scaler.unscale_(optimizer)
        weights = session.model.parameters()
        norm = nn.utils.clip_grad_norm_(weights, max_norm) if max_norm else norm_of(weights)
        session.meter.grad_norm = norm
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def norm_of(weights: Iterable[nn.Parameter]) -> torch.Tensor:
    """Return the norm of the vector of all gradients."""
    norms = torch._foreach_norm([weight.grad for weight in weights if weight.grad is not None])  # noqa: SLF001
    return torch.linalg.vector_norm(torch.stack(norms))  # type: ignore[no-any-return]


def forward(session: Session, model: nn.Module, x_BCHW: torch.Tensor) -> Any:
    """Return the model's outputs for images, which get the memory format of the weights.

    An output that is a tensor becomes float32.
    """
    if session.config.channels_last and x_BCHW.ndim == 4:
        x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
    with autocast(session.config, session.world.device):
        outputs = model(x_BCHW)
    return outputs.float() if isinstance(outputs, torch.Tensor) else outputs  # the loss needs no autocast


def batches_of(session: Session, split: Split, lists: list[torch.Tensor], epoch: int) -> Iterator[Batch]:
    """Yield the batches of index lists, and stand-ins from the first batch on that can't be read."""
    if isinstance(split, FromLoaders) and not split.started:
        session.writer.wait()  # the loaders are forked now, and no other thread may run during a fork
    done = 0
    try:
        for batch in split.batches(lists, epoch=epoch):
            yield batch
            done += 1
    except UserError as error:
        # All processes raise this error at the next synchronisation, before anything is saved.
        session.data.problems.append(error)
        for _ in lists[done:]:
            yield stand_in(session, 2)  # two, because batch norms may refuse a single image


def stand_in(session: Session, images: int) -> Batch:
    """Return a batch of black images with targets of zero."""
    device, target = session.world.device, session.data.target
    x_BCHW = torch.zeros((images, *session.data.shape_CHW), device=device)
    return x_BCHW, torch.zeros((images, *target.shape), dtype=target.dtype, device=device)


def sums_of(losses_B: torch.Tensor, *scores_B: torch.Tensor) -> torch.Tensor:
    """Return the sums of a batch's losses and of each score, and the number of its samples (float64)."""
    # The sums are multiples of 1 / PARTS_OF_ONE, so totals over steps do not depend on the place of an
    # interruption.
    all_B = torch.stack([values.double() for values in (losses_B, *scores_B)])
    sums = all_B.mul_(PARTS_OF_ONE).round_().sum(dim=1).div_(PARTS_OF_ONE)
    return torch.cat((sums, torch.full_like(sums[:1], len(losses_B))))


def _seed(session: Session, key: int) -> None:
    """Seed dropout by step and rank, so that a resumed run repeats the dropout."""
    torch.default_generator.manual_seed(key)  # a hundred times faster than torch.manual_seed
    if session.world.device.type == "cuda":
        generators: Any = torch.cuda.default_generators
        gpu = session.world.device.index or 0
        for generator in generators if session.config.dataparallel else generators[gpu : gpu + 1]:
            generator.manual_seed(key)


def _report(session: Session, progress: Progress, lr: float, steps_per_epoch: int) -> None:
    """Log a line and an event at the first synchronisation after --log-every steps."""
    meter = session.meter
    loss, score, samples = meter.window
    if not session.log.speaks or samples < session.config.log_every * session.batch:
        return
    means = {"loss": loss / samples, session.task.names[0]: score / samples}
    seconds = max(time.perf_counter() - meter.window_began, 1e-9)
    rate = round(samples / seconds, 1)
    waited, steps = meter.usage.data_s - meter.window_waited, max(meter.window_steps, 1)
    costs = {"step_s": round(seconds / steps, 6), "data_wait": round(waited / seconds, 4)}
    if meter.grad_norm is not None and math.isfinite(norm := float(meter.grad_norm)):
        costs["grad_norm"] = norm
    if meter.usage.allocated:
        costs["gpu_allocated_bytes"] = meter.usage.allocated
    slow = {"slow": meter.pace.slow_ranks} if meter.pace.slow_ranks else {}
    facts = means | {"lr": lr, "samples_per_s": rate} | costs | slow
    session.log.event("train", **facts | {"epoch": progress.epoch + 1, "step": progress.step})
    done, left = math.ceil(progress.consumed / session.batch), format_duration(time_left_s(session, progress))
    position = f"Epoch {progress.epoch + 1}: step {done} of {steps_per_epoch}"
    session.log.say(f"{position}, loss {means['loss']:.4f}, lr {lr:.3g}, {rate:.0f} samples/s, {left} left")
    meter.begin_window()


def time_left_s(session: Session, progress: Progress) -> float:
    """Return the seconds to the end of the last epoch, at the speed so far; 0 before the first step."""
    left = (session.config.epochs - progress.epoch) * session.data.train.samples - progress.consumed
    return left / max(session.meter.rate(), 1e-9) if session.meter.trained_samples else 0.0


def steps_left(session: Session, progress: Progress) -> int:
    """Return the steps to the end of the last epoch."""
    return steps_to_end(
        session.config,
        epoch=progress.epoch,
        consumed=progress.consumed,
        samples=session.data.train.samples,
        batch=session.batch,
    )
