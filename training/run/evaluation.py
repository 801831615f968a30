"""The score of a model on the validation split. Shape suffix: B samples of this process's part of a batch."""

import torch

from training.data.order import evaluation_share
from training.model.confusion import as_rows
from training.processes.world import copy_from_rank0
from training.run.agreement import StoppedError, agree, sum_over_ranks
from training.run.loop import batches_of, forward, sums_of
from training.run.score import Score
from training.run.session import Session


def evaluate(session: Session) -> Score:
    """Return the model's score on the validation split.

    Raises StoppedError for a request to stop, and UserError for an image that can't be read.
    """
    world, split, model = session.world, session.data.validation, session.model
    chunk = session.config.eval_batch or max(1, session.images_at_once)  # by default as in the training
    lists = evaluation_share(split.samples, chunk=chunk, rank=world.rank, size=world.size)
    lists = [index_B.to(split.index_device) for index_B in lists]
    size = 2 + len(session.task.names) + session.task.number_of_counts
    sums = torch.zeros(size, dtype=torch.float64, device=world.device)
    model.eval()
    session.meter.begin()
    with torch.no_grad(), session.updater.evaluated_weights():
        # The statistics of norms differ between processes. Those of rank 0 are saved, so they are evaluated.
        copy_from_rank0(world, model.buffers())
        for number, (x_BCHW, y_B) in enumerate(batches_of(session, split, lists, 0), start=1):
            if len(y_B):
                outputs = forward(session, model, x_BCHW)
                scores = session.task.metrics(outputs, y_B).values()
                sums_of_batch = sums_of(session.task.loss(outputs, y_B), *scores)
                sums += torch.cat((sums_of_batch, session.task.counts(outputs, y_B)))
            if session.meter.is_sync_due(number, session.config.sync_every):
                _, why = agree(session, sums)
                if why:
                    raise StoppedError(why)
    loss, *totals = sum_over_ranks(session, sums)
    samples, counts = totals[len(session.task.names)], totals[1 + len(session.task.names) :]
    metrics = {name: value / samples for name, value in zip(session.task.names, totals, strict=False)}
    return Score(loss=loss / samples, metrics=metrics, samples=round(samples), confusion=as_rows(counts))
