"""The loop: steps, the moments at which all processes agree, and the validation.

Shape suffixes: B samples of this process's part of a batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from training.data.order import cuts, epoch_order, evaluation_share, mix, share
from training.data.splits import Batch, Loaded, Split
from training.errors import NotFiniteError, UserError, one_line
from training.model.activation_checkpointing import kept_buffers
from training.model.optimizer import lr_at, set_lr
from training.output.log import duration
from training.processes.stop import reason
from training.processes.world import copy_from_rank0, reduce_sum, together
from training.run.resume import save
from training.run.session import Progress, Session

EVALUATION_BATCH = 256  # images at a time and process
TOP = 5  # likeliest classes, for the top-5 accuracy; it is told where there are more than twice as many


class StoppedError(Exception):
    """All processes agreed to stop here; the text is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Means over a whole split, whatever the number of processes."""

    loss: float  # cross entropy, in nats
    accuracy: float  # 0..1
    samples: int
    top5: float | None  # 0..1; None where so few classes make it say nothing

    def __str__(self) -> str:
        more = f", Top-5: {100 * self.top5:.2f}%" if self.top5 is not None else ""
        return f"Avg Loss: {self.loss:.6f}, Accuracy: {100 * self.accuracy:.2f}%{more}"


def train_epoch(session: Session, progress: Progress) -> None:
    """Train on what is left of the epoch; `progress` is up to date after each step.

    Data of the training split come as x_BCHW (float32) and y_B (int64 in 0..K-1), on the device.

    Raises:
        StoppedError: If a stop was asked for.
        NotFiniteError: If the loss is not finite.
        UserError: If an image cannot be read.
    """
    config, world, split = session.config, session.world, session.data.train
    order_N = epoch_order(split.samples, seed=config.seed, epoch=progress.epoch).to(split.index_device)
    todo = cuts(split.samples, batch=session.batch, consumed=progress.consumed)
    part = session.batch // config.accumulate
    parts = [cuts(first + count, batch=part, consumed=first) for first, count in todo]
    mine = [_mine(order_N, first, count, session) for step in parts for first, count in step]
    steps_per_epoch = math.ceil(split.samples / session.batch)
    since_sync = torch.zeros(3, dtype=torch.float64, device=world.device)
    session.trained.train()
    batches = _batches(session, split, mine, progress.epoch)
    for (first, count), step_parts in zip(todo, parts, strict=True):
        lr = lr_at(config, progress.step, steps_per_epoch=steps_per_epoch)
        set_lr(session.optimizer, lr)
        since_sync += train_step(session, batches, [count for _, count in step_parts], step=progress.step)
        progress.step += 1
        progress.consumed = first + count
        if config.step_delay:
            time.sleep(config.step_delay)
        ends = progress.consumed == split.samples  # the epoch's own save comes after the validation
        saves = not ends and config.save_every > 0 and progress.step % config.save_every == 0
        if saves or ends or progress.step % config.sync_every == 0:
            synchronise(session, progress, since_sync, saves=saves or ends)
            _report(session, progress, lr, steps_per_epoch)
            if saves:
                save(session, progress)


def warm_up(session: Session) -> None:
    """Let DistributedDataParallel see one step, and undo it.

    After its first step it lays out the gradients anew, and they are then added up in another order. A run
    that goes on would round its first step otherwise than the uninterrupted one; with the layout made
    beforehand it does not.
    """
    x_BCHW, y_B = _stand_in(session, 2)
    session.trained.train()
    with kept_buffers(session.model):
        for _ in range(2):  # the new layout is made at the beginning of the second
            loss = functional.cross_entropy(session.trained(_laid_out(session, x_BCHW)).float(), y_B)
            torch.autograd.backward(loss)
    session.optimizer.zero_grad(set_to_none=True)


def try_out(session: Session) -> None:
    """See that the model takes the data set's images, in the smallest batch there will be; nothing changes.

    Raises:
        UserError: If it does not, or has not an output for each class.
    """
    config, data, model = session.config, session.data, session.model
    last = data.train.samples % session.batch or session.batch
    part = session.batch // config.accumulate
    least = max(1, (last % part or part) // session.world.size)  # of any process; one is the stand-in
    images = 1 if config.evaluate else min(least, 2)
    x_BCHW, _ = _stand_in(session, images)
    model.train(not config.evaluate)
    try:
        with torch.no_grad(), kept_buffers(model), _autocast(session):
            logits_BK = model(_laid_out(session, x_BCHW))
    except (RuntimeError, ValueError, AssertionError) as error:  # what torch and torchvision say it with
        size = "x".join(map(str, data.shape_CHW))
        what = (
            f"--model {config.model} does not take {images} of these images, {size} ({one_line(error)[:200]})"
        )
        fix = "another --batch-size: the last step of an epoch has one image a process" if least == 1 else ""
        raise UserError(what, fix=fix or "another --model") from error
    shape = tuple(logits_BK.shape) if isinstance(logits_BK, torch.Tensor) else type(logits_BK).__name__
    if not isinstance(logits_BK, torch.Tensor) or logits_BK.ndim != 2 or logits_BK.shape[1] < data.classes:
        what = f"--model {config.model} gives {shape} for {images} images of {data.classes} classes"
        raise UserError(what, fix=f"a model that gives a tensor of the shape ({images}, {data.classes})")


def train_step(session: Session, batches: Iterator[Batch], counts: list[int], *, step: int) -> torch.Tensor:
    """One step of the optimizer on the mean loss of all its images, wherever they are and in how many parts.

    The processes' gradients are averaged, so each counts its images `size / sum(counts)` times: the result is
    that of one process with all images at once, also when the last batch is short. A process with no image
    left was given one to compute on, which counts nothing: it has to take part in the averaging.

    Args:
        session: The run.
        batches: Gives x_BCHW and y_B of this process for each part.
        counts: Images of each part over all processes.
        step: The number of the step, the first is 0.

    Returns:
        Loss, correct and samples of this process, summed; float64 (3,) on the device.
    """
    world, config = session.world, session.config
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)
    session.optimizer.zero_grad(set_to_none=True)
    alone = getattr(session.trained, "no_sync", contextlib.nullcontext)  # the processes meet in the last part
    for part, count in enumerate(counts, start=1):
        x_BCHW, y_B = next(batches)
        _seed(world.device, mix("step", config.seed, step, world.rank, part))  # reading may be random as well
        real = float(world.rank < count)
        with contextlib.nullcontext() if part == len(counts) else alone():
            with _autocast(session):
                logits_BK = session.trained(_laid_out(session, x_BCHW))
            smooth = config.label_smoothing
            losses_B = functional.cross_entropy(
                logits_BK.float(), y_B, reduction="none", label_smoothing=smooth
            )
            loss = losses_B.sum() * (real * world.size / sum(counts))
            torch.autograd.backward(session.scaler.scale(loss) if session.scaler else loss)
        sums += real * _sums(losses_B.detach(), logits_BK.detach(), y_B)
    _update(session)
    if session.ema:
        session.ema.update(step)
    return sums


def _update(session: Session) -> None:
    """Change the weights by their gradients; with a loss scale, unless the gradients overflowed."""
    optimizer, scaler, longest = session.optimizer, session.scaler, session.config.clip_norm
    if longest:
        if scaler:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(session.model.parameters(), longest)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def _autocast(session: Session) -> torch.autocast:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(session.config.precision)
    return torch.autocast(session.world.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def _laid_out(session: Session, x_BCHW: torch.Tensor) -> torch.Tensor:
    """The images in memory as the model has its weights."""
    last = session.config.channels_last and x_BCHW.ndim == 4
    return x_BCHW.contiguous(memory_format=torch.channels_last) if last else x_BCHW


def evaluate(session: Session) -> Score:
    """The model's score on the validation split: each image is counted once, by one process.

    Raises:
        StoppedError: If a stop was asked for meanwhile.
        UserError: If an image cannot be read.
    """
    world, split, model = session.world, session.data.validation, session.model
    # running statistics of norms are each process's own so far; rank 0's are the ones saved
    copy_from_rank0(world, model.buffers())
    lists = evaluation_share(split.samples, chunk=EVALUATION_BATCH, rank=world.rank, size=world.size)
    lists = [index_B.to(split.index_device) for index_B in lists]
    sums = torch.zeros(4, dtype=torch.float64, device=world.device)  # those of `_sums`, and of `_among`
    began = time.perf_counter()
    model.eval()
    with (
        torch.no_grad(),
        session.ema.in_place() if session.ema else contextlib.nullcontext(),
        _autocast(session),
    ):
        for done, (x_BCHW, y_B) in enumerate(_batches(session, split, lists, 0), start=1):
            if len(y_B):
                logits_BK = model(_laid_out(session, x_BCHW)).float()
                losses_B = functional.cross_entropy(logits_BK, y_B, reduction="none")
                sums += torch.cat((_sums(losses_B, logits_BK, y_B), _among(logits_BK, y_B)))
            if done % session.config.sync_every == 0:
                (loss, correct, samples, _), why = _agree(session, sums)
                if why:
                    raise StoppedError(why)
                rate = samples / max(time.perf_counter() - began, 1e-9)
                told = f"loss {loss / samples:.4f}, accuracy {100 * correct / samples:.2f}%"
                session.log.bar.show(round(samples), f"{told}, {rate:.0f} samples/s")
    loss, correct, samples, among = _total(session, sums)
    top5 = among / samples if session.data.classes > 2 * TOP else None
    return Score(loss=loss / samples, accuracy=correct / samples, samples=round(samples), top5=top5)


def synchronise(session: Session, progress: Progress, since_sync: torch.Tensor, *, saves: bool) -> None:
    """Add up over all processes what happened since the last time, and stop together if there is a reason.

    One sum of a few numbers carries losses, counts and stop requests: the only moment at which the host
    waits.

    `since_sync`, the summed results of `train_step` (float64 (3,) on the device), is set to zero. With
    `saves` a checkpoint may follow: then the weights are looked at too, so that none is made of a broken
    model.

    Raises:
        StoppedError: If a stop was asked for.
        NotFiniteError: If the loss, or with `saves` a weight, is not finite.
        UserError: If images could not be read.
    """
    broken = torch.zeros(1, dtype=torch.float64, device=since_sync.device)
    if saves:
        for weight in session.model.parameters():
            broken += (~torch.isfinite(weight.detach())).any()
    (loss, correct, samples, broken_weights), why = _agree(session, torch.cat((since_sync, broken)))
    since_sync.zero_()
    if not math.isfinite(loss) or broken_weights:
        session.writer.wait()  # the newest checkpoint may be under way
        what = "a weight" if math.isfinite(loss) else "the loss"
        raise NotFiniteError(
            f"{what} is not finite at step {progress.step}; newest checkpoint: {progress.checkpoint}"
        )
    session.meter.trained += round(samples)
    for sums in (progress.sums, session.meter.window):
        sums[:] = (sums[0] + loss, sums[1] + correct, sums[2] + samples)
    if why:
        raise StoppedError(why)


def _agree(session: Session, values: torch.Tensor) -> tuple[list[float], str]:
    """The values (float64, 1-D, on the device) summed over the processes, and why to stop, if to stop."""
    noted = torch.tensor(session.stop.noted(), dtype=torch.float64, device=values.device)
    totals = _total(session, torch.cat((values, noted)))
    return totals[: len(values)], reason(totals[len(values) :])


def _total(session: Session, values: torch.Tensor) -> list[float]:
    """The values (float64, 1-D, on the device) summed over the processes, unless one has a problem.

    Raises:
        UserError: The problem, on all of them.
    """
    problems = torch.tensor([len(session.problems)], dtype=torch.float64, device=values.device)
    totals: list[float] = reduce_sum(session.world, torch.cat((values, problems))).tolist()
    if totals.pop():
        together(session.world, lambda: _tell(session.problems))
    return totals


def _tell(problems: list[UserError]) -> None:
    for problem in problems:
        raise problem


def _batches(session: Session, split: Split, lists: list[torch.Tensor], epoch: int) -> Iterator[Batch]:
    """The batches of these index lists.

    In place of one that cannot be read, and all after it, comes a stand-in: the other processes count on this
    one until they meet. Then all of them end; nothing is saved before.
    """
    if isinstance(split, Loaded) and not split.started:
        session.writer.wait()  # loaders are forked, which goes wrong while a thread is saving
    done = 0
    try:
        for batch in split.batches(lists, epoch=epoch):
            yield batch
            done += 1
    except UserError as error:
        session.problems.append(error)
        for _ in lists[done:]:
            yield _stand_in(session, 2)


def _stand_in(session: Session, images: int) -> Batch:
    """Black images of the first class."""
    device = session.world.device
    x_BCHW = torch.zeros((images, *session.data.shape_CHW), device=device)
    return x_BCHW, torch.zeros(images, dtype=torch.int64, device=device)


def _mine(order_N: torch.Tensor, first: int, count: int, session: Session) -> torch.Tensor:
    """This process's part of a step, or one image to stand in where none is left (see `train_step`)."""
    part_B = share(order_N, first, count, rank=session.world.rank, size=session.world.size)
    return part_B if len(part_B) else order_N[first : first + 1]


def _sums(losses_B: torch.Tensor, logits_BK: torch.Tensor, y_B: torch.Tensor) -> torch.Tensor:
    """Loss, correct and count of a batch, summed; float64 (3,), without waiting for the device."""
    correct = (logits_BK.argmax(dim=1) == y_B).sum()
    return torch.stack(
        (losses_B.sum(dtype=torch.float64), correct.double(), torch.full_like(correct, len(y_B)).double())
    )


def _among(logits_BK: torch.Tensor, y_B: torch.Tensor) -> torch.Tensor:
    """How many have their class among the TOP likeliest; float64 (1,)."""
    likeliest_BT = logits_BK.topk(min(TOP, logits_BK.shape[1]), dim=1).indices
    return (likeliest_BT == y_B.unsqueeze(1)).any(dim=1).sum(dtype=torch.float64).unsqueeze(0)


def _seed(device: torch.device, key: int) -> None:
    """Make dropout a function of step and rank: a resumed run drops what the uninterrupted one would have."""
    torch.default_generator.manual_seed(key)  # torch.manual_seed visits all devices: a hundred times slower
    if device.type == "cuda":
        torch.cuda.manual_seed_all(key)  # all: DataParallel uses every one


def _report(session: Session, progress: Progress, lr: float, steps_per_epoch: int) -> None:
    """The live line; each --log-every steps, or at the first synchronisation after that, the plain one."""
    meter, config = session.meter, session.config
    loss, correct, samples = meter.window
    if not session.log.speaks or not samples:
        return
    means = {"loss": loss / samples, "accuracy": correct / samples}
    rate = round(meter.window_rate(), 1)
    speed = f"{rate:.0f} samples/s, {duration(time_left_s(session, progress))} left"
    told = f"loss {means['loss']:.4f}, lr {lr:.3g}, {speed}"
    session.log.bar.show(progress.consumed, told)
    if samples < config.log_every * session.batch:
        return
    session.log.event(
        "train", epoch=progress.epoch + 1, step=progress.step, **means, lr=lr, samples_per_s=rate
    )
    if not session.log.bar.up:
        done = progress.step - progress.epoch * steps_per_epoch
        session.log.say(f"Epoch {progress.epoch + 1}: step {done} of {steps_per_epoch}, {told}")
    meter.restart()


def time_left_s(session: Session, progress: Progress) -> float:
    """Seconds until the last epoch is done, at the speed so far."""
    left = (session.config.epochs - progress.epoch) * session.data.train.samples - progress.consumed
    return left / max(session.meter.rate(), 1e-9) if session.meter.trained else 0.0
