"""The forecast of a start: what the trainer would do with a run folder, which `--look` prints.

`sbatchgen submit` asks for it before a job waits in the queue. The module only reads files. It does not
import torch, so that it also runs on login nodes.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.config import Config, changed_settings, critical_settings, global_batch, steps_to_end
from training.files import BEST, CHECKPOINTS, checkpoint_step, list_checkpoints
from training.output.log import read_events
from training.saving.lock import current_holder


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of a start: its work, or the reason for a refusal."""

    # States of a start: new, afresh (next to old checkpoints), resume, done (no epoch is left) or evaluate.
    # States of a refusal: changed (the checkpoint has other settings), missing (no such checkpoint) or used
    # (another job has the folder).
    state: str
    checkpoint: str = ""  # the checkpoint to resume from
    # These four counts are None if they are not known, or not needed for the state.
    step: int | None = None  # finished steps
    steps: int | None = None  # all steps of the training
    epoch: int | None = None  # finished epochs
    epochs: int | None = None  # all epochs of the training
    job: str = ""  # the Slurm job that saved the checkpoint
    holder: str = ""  # the process and the job that use the folder
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # old and new values by setting


def forecast_start(config: Config, processes: int) -> Forecast:
    """Return the forecast of a start with this configuration and number of processes.

    Checkpoints are neither opened nor checked. Raises UserError if the processes can't share a batch.
    """
    batch = global_batch(config, processes)
    run_dir = Path(config.run_dir)
    if config.evaluate:
        return Forecast(state="evaluate")
    if holder := current_holder(run_dir):
        return Forecast(state="used", holder=holder)
    checkpoints = list_checkpoints(run_dir / CHECKPOINTS)
    if config.resume not in ("auto", "off"):
        paths = (run_dir / CHECKPOINTS / config.resume, Path(config.resume))
        checkpoints = [path for path in paths if path.is_file()]
        if not checkpoints:
            return Forecast(state="missing", checkpoint=config.resume)
    if config.resume == "off" or not checkpoints:
        if config.init_from and not Path(config.init_from).is_file():
            return Forecast(state="missing", checkpoint=config.init_from, epochs=config.epochs)
        return Forecast(state="afresh" if checkpoints else "new", epochs=config.epochs)
    return _forecast_resume(config, batch, checkpoints[0])


def _forecast_resume(config: Config, batch: int, path: Path) -> Forecast:
    """Return the forecast of a start that resumes from a checkpoint, by the events about its save."""
    run_dir = Path(config.run_dir)
    is_inside = path.parent == run_dir / CHECKPOINTS
    saved = read_save_events(run_dir, path.name) if is_inside else {}
    step, epoch = _count(saved.get("step")) or checkpoint_step(path), _count(saved.get("epoch"))
    consumed, samples = _count(saved.get("consumed")), _count(saved.get("train_samples"))
    settings, changed, steps = saved.get("settings"), {}, None
    if settings and isinstance(settings, dict) and not config.allow_config_change:
        # The images are not read here, so the two settings that depend on the images count as unchanged.
        defaults = {"train_samples": 0, "data_checksum": ""}
        assumed = {name: settings.get(name, default) for name, default in defaults.items()}
        changed = changed_settings(critical_settings(config, batch=batch) | assumed, settings)
    if samples and step is not None and epoch is not None and consumed is not None:
        remaining = steps_to_end(config, epoch=epoch, consumed=consumed, samples=samples, batch=batch)
        steps = step + remaining  # not epochs * steps, because finished steps may have had another batch size
    state = "done" if epoch is not None and epoch >= config.epochs else "resume"
    return Forecast(
        state="changed" if changed else state,
        checkpoint=f"{CHECKPOINTS}/{path.name}" if is_inside else str(path),
        step=step,
        steps=steps,
        epoch=epoch,
        epochs=config.epochs,
        job=str(saved.get("job") or ""),
        changed=changed,
    )


def read_save_events(run_dir: Path, name: str) -> dict[str, Any]:
    """Return the facts about a checkpoint in the events of its last save, and of the start before that save.

    `name` is the name of the checkpoint's file. The result is {} if no event is about the checkpoint.
    """
    facts: dict[str, Any] = {}
    start: dict[str, Any] = {}
    for event in read_events(run_dir):
        if event.get("event") == "start":
            start = {key: event.get(key) for key in ("job", "settings", "train_samples")}
        elif event.get("event") == "save":
            names = [event.get("also"), str(event.get("checkpoint")).removeprefix(f"{CHECKPOINTS}/")]
            is_best = event.get("best") is True
            if name in ([*names, BEST] if is_best else names):
                facts = start | {key: event.get(key) for key in ("step", "epoch", "consumed")}
    return facts


def _count(value: Any) -> int | None:
    """Return a count in an event; None if the value has another type or is out of range."""
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else None
