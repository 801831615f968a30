"""The agreement of all processes: sums over processes, the error of any process, and requests to stop."""

import math

import torch

from training.errors import NotFiniteError, UserError
from training.processes.stop import first_reason
from training.processes.world import gather_text, on_all_ranks, reduce_sum
from training.run.session import Progress, Session


class StoppedError(Exception):
    """A stop of all processes at the same step; the text is the reason."""


def synchronise(session: Session, progress: Progress, since_sync: torch.Tensor, *, saves: bool) -> None:
    """Add up the results of all processes since the last synchronisation.

    A single all-reduce adds the losses, scores, samples, times of ranks and requests to stop. So the CPU
    waits for the GPU only here. `since_sync` has the sums of `Tally`, and is set to zero. With `saves` a save
    follows, so the weights are checked.

    Raises:
        StoppedError: A process has a request to stop.
        NotFiniteError: The loss or a weight is not finite.
        UserError: A process could not read an image.
    """
    times = session.meter.pace.take_times(saves=saves, is_saving=session.writer.is_busy)
    also_summed = torch.tensor([0.0, *times], dtype=torch.float64, device=since_sync.device)
    if saves:
        broken = [~torch.isfinite(weight.detach()).all() for weight in session.model.parameters()]
        also_summed[0] = torch.stack(broken).any()
    (loss, score, samples, broken_weights, *times), why = agree(session, torch.cat((since_sync, also_summed)))
    if not math.isfinite(loss) or broken_weights:
        session.writer.wait()  # so that progress.checkpoint names the newest checkpoint
        what = f"{'a weight' if math.isfinite(loss) else 'the loss'} is not finite at step {progress.step}"
        own_name = session.world.name if not since_sync.isfinite().all() else ""
        names = [*filter(None, gather_text(session.world, own_name))]
        at = f"; at: {', '.join(names)}" if 0 < len(names) < session.world.size else ""
        raise NotFiniteError(f"{what}{at}; newest checkpoint: {progress.checkpoint}")
    since_sync.zero_()
    if slow := session.meter.pace.judge(times, session.stop.step_s / session.config.accumulate):
        session.log.say(f"Slow: {slow}")
    session.meter.usage.sample()
    session.meter.trained_samples += round(samples)
    for sums in (progress.sums, session.meter.window):
        sums[:] = (sums[0] + loss, sums[1] + score, sums[2] + samples)
    if why:
        raise StoppedError(why)


def agree(session: Session, values: torch.Tensor) -> tuple[list[float], str]:
    """Return the values (float64, 1-D) summed over the processes, and the reason to stop, or ""."""
    if values.device.type == "cuda":
        torch.cuda.synchronize(values.device)  # so that step_s includes the work of the GPU
    step_s = session.meter.step_s() if session.world.rank == 0 else 0.0
    *totals, step_s = sum_over_ranks(session, values, *session.stop.requests(), step_s)
    session.stop.step_s = step_s
    session.meter.note_sync(step_s)
    return totals[: len(values)], first_reason(totals[len(values) :])


def sum_over_ranks(session: Session, values: torch.Tensor, *more: float) -> list[float]:
    """Return the values (float64, 1-D) and the numbers `more`, summed over the processes.

    If a process has a problem with its data, all processes raise UserError.
    """
    further = torch.tensor((*more, len(session.data.problems)), dtype=torch.float64, device=values.device)
    totals: list[float] = reduce_sum(session.world, torch.cat((values, further))).tolist()
    if totals.pop():
        on_all_ranks(session.world, lambda: _raise_first(session.data.problems))
    return totals


def _raise_first(problems: list[UserError]) -> None:
    """Raise the first of this process's problems, if it has one."""
    for problem in problems:
        raise problem
