"""What a start would do with a run folder, for `--look`. Reads only, and needs no torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import Config, changed_settings, critical_settings, global_batch
from training.output.log import read_events
from training.saving.lock import current_holder
from training.saving.names import BEST, CHECKPOINTS, list_checkpoints, step_of


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint as the events describe it; None or empty if they do not."""

    name: str  # its path in the run folder
    step: int | None = None  # steps done
    epoch: int | None = None  # epochs done
    job: str = ""  # the Slurm job that saved it
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # on which it depends
    consumed: int | None = None  # images of the next epoch that are done
    samples: int | None = None  # training images


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a start would do.

    It starts in an empty folder ("new"), from scratch beside old checkpoints ("afresh"), resumes from a
    checkpoint ("resume"), has no epoch left ("done") or trains nothing ("evaluate"); or is refused because
    of other settings than the checkpoint's ("changed"), because there is no such checkpoint ("missing"), or
    because another job has the folder ("used").
    """

    state: str
    checkpoint: str = ""  # the one to resume from
    step: int | None = None  # steps done; here and below None if unknown
    steps: int | None = None  # steps in all
    epoch: int | None = None
    epochs: int | None = None
    job: str = ""  # the Slurm job that saved the checkpoint
    holder: str = ""  # who has the folder
    changed: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)  # old and new values


def look(config: Config, processes: int) -> Start:
    """What a start with this configuration would do. A checkpoint is not opened, so not checked.

    Raises:
        UserError: If the batch cannot be divided among the processes.
    """
    batch = global_batch(config, processes)
    run_dir = Path(config.run_dir)
    if config.evaluate:
        return Start(state="evaluate")
    if who := current_holder(run_dir):
        return Start(state="used", holder=who)
    checkpoints = list_checkpoints(run_dir / CHECKPOINTS)
    if config.resume not in ("auto", "off"):
        paths = (run_dir / CHECKPOINTS / config.resume, Path(config.resume))
        checkpoints = [path for path in paths if path.is_file()]
        if not checkpoints:
            return Start(state="missing", checkpoint=config.resume)
    if config.resume == "off" or not checkpoints:
        lost = config.init_from and not Path(config.init_from).is_file()
        state = "missing" if lost else "afresh" if checkpoints else "new"
        return Start(state=state, checkpoint=config.init_from if lost else "", epochs=config.epochs)
    return _resume(config, batch, read_saved(run_dir, checkpoints[0]))


def _resume(config: Config, batch: int, old: Saved) -> Start:
    changed = {}
    if old.settings and not config.allow_config_change:
        of_data = {"train_samples": 0, "data_checksum": ""}  # known only after the images are read
        known = {name: old.settings.get(name, unknown) for name, unknown in of_data.items()}
        now = critical_settings(config, batch=batch, **known)
        changed = changed_settings(now, old.settings)
    is_done = old.epoch is not None and old.epoch >= config.epochs
    return Start(
        state="changed" if changed else "done" if is_done else "resume",
        checkpoint=old.name,
        step=old.step,
        steps=_all_steps(config, batch, old),
        epoch=old.epoch,
        epochs=config.epochs,
        job=old.job,
        changed=changed,
    )


def _all_steps(config: Config, batch: int, old: Saved) -> int | None:
    """The steps done, of whatever batches they were, and those that are left; None if unknown."""
    if not old.samples or old.step is None or old.epoch is None or old.consumed is None:
        return None
    done = old.epoch * math.ceil(old.samples / batch) + old.consumed / batch  # as many of the present batch
    return old.step + max(0, math.ceil(config.epochs * math.ceil(old.samples / batch) - done))


def read_saved(run_dir: Path, path: Path) -> Saved:
    """What the events say about a checkpoint in the run folder; for another file, its name and step."""
    step = step_of(path)
    if path.parent != run_dir / CHECKPOINTS:
        return Saved(name=str(path), step=step)
    known = Saved(name=f"{CHECKPOINTS}/{path.name}", step=step)
    start: dict[str, Any] = {}
    for event in read_events(run_dir):
        if event.get("event") == "start":
            start = event
        elif event.get("event") == "save" and _is_of(event, path.name):
            settings = start.get("settings")
            known = Saved(
                name=known.name,
                step=_count(event.get("step")) or known.step,
                epoch=_count(event.get("epoch")),
                job=str(start.get("job") or ""),
                settings=settings if isinstance(settings, dict) else {},
                consumed=_count(event.get("consumed")),
                samples=_count(start.get("train_samples")),
            )
    return known


def _count(value: Any) -> int | None:
    """A number of things in an event; None if it is of another type or absurd."""
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else None


def _is_of(save: dict[str, Any], name: str) -> bool:
    """Whether this save wrote the checkpoint of that name."""
    if name == BEST:
        return save.get("best") is True
    return name == save.get("also") or f"{CHECKPOINTS}/{name}" == save.get("checkpoint")
