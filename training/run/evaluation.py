"""The evaluation: the score of a model on the validation split.

Shape suffixes: B samples of this process's part of a batch, K classes, T the likeliest of them.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import torch
from torch.nn import functional

from training.data.order import evaluation_share
from training.model.precision import autocast
from training.processes.world import copy_from_rank0
from training.run.agreement import StoppedError, agree, total
from training.run.loop import batches_of, images_at_once, set_memory_format, sums_of
from training.run.session import Session

TOP = 5  # for top-5 accuracy, which is reported if there are more than twice as many classes


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Means over all images of a split."""

    loss: float  # cross entropy, in nats
    accuracy: float  # 0..1
    samples: int
    top5: float | None  # 0..1; None with few classes

    def __str__(self) -> str:
        more = f", Top-5: {100 * self.top5:.2f}%" if self.top5 is not None else ""
        return f"Avg Loss: {self.loss:.6f}, Accuracy: {100 * self.accuracy:.2f}%{more}"


def evaluate(session: Session) -> Score:
    """The model's score on the validation split; each image is counted once.

    Raises:
        StoppedError: If a stop was requested meanwhile.
        UserError: If an image cannot be read.
    """
    world, split, model = session.world, session.data.validation, session.model
    chunk = session.config.eval_batch or max(1, images_at_once(session))  # the training had room for it
    lists = evaluation_share(split.samples, chunk=chunk, rank=world.rank, size=world.size)
    lists = [index_B.to(split.index_device) for index_B in lists]
    sums = torch.zeros(4, dtype=torch.float64, device=world.device)  # of `sums_of` and `_count_top`
    began = time.perf_counter()
    model.eval()
    session.meter.begin()
    with (
        torch.no_grad(),
        session.ema.in_place() if session.ema else contextlib.nullcontext(),
        autocast(session.config, world.device),
    ):
        copy_from_rank0(world, model.buffers())  # statistics differ between processes; rank 0's are saved
        for done, (x_BCHW, y_B) in enumerate(batches_of(session, split, lists, 0), start=1):
            if len(y_B):
                logits_BK = model(set_memory_format(session, x_BCHW)).float()
                losses_B = functional.cross_entropy(logits_BK, y_B, reduction="none")
                sums += torch.cat((sums_of(losses_B, logits_BK, y_B), _count_top(logits_BK, y_B)))
            if session.meter.due(done, session.config.sync_every):
                (loss, correct, samples, _), why = agree(session, sums)
                if why:
                    raise StoppedError(why)
                rate = samples / max(time.perf_counter() - began, 1e-9)
                line = f"loss {loss / samples:.4f}, accuracy {100 * correct / samples:.2f}%"
                session.log.bar.show(round(samples), f"{line}, {rate:.0f} samples/s")
    loss, correct, samples, among = total(session, sums)
    top5 = among / samples if session.data.classes > 2 * TOP else None
    return Score(loss=loss / samples, accuracy=correct / samples, samples=round(samples), top5=top5)


def _count_top(logits_BK: torch.Tensor, y_B: torch.Tensor) -> torch.Tensor:
    """How many images have their class among the TOP likeliest; float64 (1,)."""
    likeliest_BT = logits_BK.topk(min(TOP, logits_BK.shape[1]), dim=1).indices
    return (likeliest_BT == y_B.unsqueeze(1)).any(dim=1).sum(dtype=torch.float64).unsqueeze(0)
