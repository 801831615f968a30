"""What lies where in a run folder, and what a start would find there; told without torch, and read only."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import Config, changed_settings, critical_settings, global_batch
from training.output.log import read_events
from training.saving.lock import holder
from training.saving.names import BEST, CHECKPOINTS, STEP_NAME, list_checkpoints


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint, as the events tell of it; what they don't tell is None or empty.

    Attributes:
        name: Its path in the run folder.
        step: Steps that are done.
        epoch: Epochs that are done.
        job: The Slurm job that saved it.
        settings: The settings that it depends on (config.critical_settings).
        samples: Training images.
    """

    name: str
    step: int | None = None
    epoch: int | None = None
    job: str = ""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    samples: int | None = None


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a start would do.

    Attributes:
        state: "new": nothing is there. "afresh": it leaves checkpoints aside. "resume": it goes on from one.
            "done": no epoch is left. "changed": it is refused, for other settings than the checkpoint's.
            "missing": it is refused, for its checkpoint is not there. "used": it is refused, for another job
            has the folder. "evaluate": it trains nothing.
        checkpoint: Where it goes on from.
        step, steps: Steps done then, of how many; None is not known.
        epoch, epochs: The same of epochs.
        job: The Slurm job that saved the checkpoint, or "".
        holder: Who has the folder.
        changed: Of each changed setting its old and its new value.
    """

    state: str
    checkpoint: str = ""
    step: int | None = None
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    job: str = ""
    holder: str = ""
    changed: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)


def look(config: Config, processes: int) -> Start:
    """What a start with this configuration would do, on so many processes.

    A checkpoint is not opened: whether it is whole is seen at the start.

    Raises:
        UserError: The images of a step can't be shared by the processes.
    """
    batch = global_batch(config, processes)
    run_dir = Path(config.run_dir)
    if config.evaluate:
        return Start(state="evaluate")
    if who := holder(run_dir):
        return Start(state="used", holder=who)
    found = list_checkpoints(run_dir / CHECKPOINTS)
    if config.resume == "off":
        return Start(state="afresh" if found else "new", epochs=config.epochs)
    if config.resume != "auto":
        found = [
            path for path in (run_dir / CHECKPOINTS / config.resume, Path(config.resume)) if path.is_file()
        ]
        if not found:
            return Start(state="missing", checkpoint=config.resume)
    if not found:
        return Start(state="new", epochs=config.epochs)
    return _going_on(config, batch, read_saved(run_dir, found[0]))


def _going_on(config: Config, batch: int, old: Saved) -> Start:
    state, changed = "resume", {}
    if old.settings and not config.allow_config_change:
        # the number of images is known only once they are read
        now = critical_settings(config, batch=batch, train_samples=old.settings.get("train_samples", 0))
        changed = changed_settings(now, old.settings)
    if changed:
        state = "changed"
    elif old.epoch is not None and old.epoch >= config.epochs:
        state = "done"
    return Start(
        state=state,
        checkpoint=old.name,
        step=old.step,
        steps=config.epochs * math.ceil(old.samples / batch) if old.samples else None,
        epoch=old.epoch,
        epochs=config.epochs,
        job=old.job,
        changed=changed,
    )


def read_saved(run_dir: Path, path: Path) -> Saved:
    """What the events tell of a checkpoint in the run folder; of another file, its name."""
    name = f"{CHECKPOINTS}/{path.name}"
    match = STEP_NAME.fullmatch(path.name)
    if path.parent != run_dir / CHECKPOINTS:
        return Saved(name=str(path), step=int(match[1]) if match else None)
    known = Saved(name=name, step=int(match[1]) if match else None)
    start: dict[str, Any] = {}
    for event in read_events(run_dir):
        if event.get("event") == "start":
            start = event
        elif event.get("event") == "save" and _is_of(event, name):
            known = _of_events(known, start, event)
    return known


def _is_of(save: dict[str, Any], name: str) -> bool:
    """Whether a save made the file, under one of its names."""
    if name == f"{CHECKPOINTS}/{BEST}":
        return save.get("best") is True
    return name in {save.get("checkpoint"), f"{CHECKPOINTS}/{save.get('also')}"}


def _of_events(known: Saved, start: dict[str, Any], save: dict[str, Any]) -> Saved:
    """Events may be anything that somebody wrote there."""
    samples, settings = start.get("train_samples"), start.get("settings")
    return dataclasses.replace(
        known,
        step=_whole(save.get("step")) or known.step,
        epoch=_whole(save.get("epoch")),
        job=str(start.get("job") or ""),
        settings=settings if isinstance(settings, dict) else {},
        samples=samples if isinstance(samples, int) and 0 < samples < 1 << 53 else None,
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
