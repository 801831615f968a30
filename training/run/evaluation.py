"""The score of a model on the validation split. Shape suffix: B samples of this process's part of a batch."""

from dataclasses import dataclass

import torch

from training.data.order import evaluation_share
from training.processes.world import copy_from_rank0
from training.run.agreement import StoppedError, agree, total
from training.run.loop import batches_of, forward, sums_of
from training.run.session import Session

SHOWN = {"accuracy": "Accuracy", "top5": "Top-5"}  # as percents


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Means over all images of a split."""

    loss: float
    metrics: dict[str, float]  # the first one decides on the best weights
    samples: int

    def __str__(self) -> str:
        return f"Avg Loss: {self.loss:.6f}, {show(self.metrics)}"


def show(metrics: dict[str, float]) -> str:
    """The metrics in one line."""
    return ", ".join(
        f"{SHOWN[name]}: {100 * value:.2f}%" if name in SHOWN else f"{name}: {value:.4g}"
        for name, value in metrics.items()
    )


def evaluate(session: Session) -> Score:
    """The model's score on the validation split; StoppedError for a stop, UserError for a broken image."""
    world, split, model = session.world, session.data.validation, session.model
    chunk = session.config.eval_batch or max(1, session.images_at_once)  # the training had room for it
    lists = evaluation_share(split.samples, chunk=chunk, rank=world.rank, size=world.size)
    lists = [index_B.to(split.index_device) for index_B in lists]
    sums = torch.zeros(2 + len(session.task.names), dtype=torch.float64, device=world.device)
    model.eval()
    session.meter.begin()
    with torch.no_grad(), session.updater.evaluated():
        copy_from_rank0(world, model.buffers())  # statistics differ between processes; rank 0's are saved
        for done, (x_BCHW, y_B) in enumerate(batches_of(session, split, lists, 0), start=1):
            if len(y_B):
                outputs = forward(session, model, x_BCHW)
                scores = session.task.metrics(outputs, y_B)
                sums += sums_of(session.task.loss(outputs, y_B), *scores.values())
            if session.meter.due(done, session.config.sync_every):
                _, why = agree(session, sums)
                if why:
                    raise StoppedError(why)
    *totals, samples = total(session, sums)
    loss, *metrics = (value / samples for value in totals)
    named = dict(zip(session.task.names, metrics, strict=True))
    return Score(loss=loss, metrics=named, samples=round(samples))
