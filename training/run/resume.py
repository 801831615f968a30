"""Saving and restoring the state of a run."""

import contextlib
import dataclasses
import errno
import functools
import io
import itertools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from training.config import Config, changed_settings
from training.errors import UserError, one_line
from training.files import CHECKPOINTS, EPOCH_NAME, checkpoint_name, own_folder, reachable
from training.model.models import load_weights
from training.output.log import read_events
from training.processes.world import broadcast_bytes, on_all_ranks, on_rank0
from training.run.session import Progress, Session
from training.saving import checkpoint
from training.saving.checkpoint import MisfitError
from training.saving.reading import State, load

PROGRESS_FIELDS = ("step", "epoch", "consumed", "best", "sums")  # fields of Progress in a checkpoint
RETRY_S = 10.0  # seconds between two tries to write a checkpoint
LATE_S = 30.0  # after so many seconds of waiting for a save, the training reports the wait
# The fix by the errno of a failed save.
FORBIDDEN = dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make the folder writable")
FIXES = dict.fromkeys(checkpoint.NO_ROOM, "make room") | FORBIDDEN
# The settings that choose the samples and their order. If one has changed, the epoch begins again.
SAMPLE_SETTINGS = ("dataset", "train_samples", "data_checksum", "seed")
# A checkpoint: its label (a path, relative in the run folder), its bytes for other processes, its state and
# its progress.
Found = tuple[bytes, bytes, State, Progress]


def checkpoint_folder(config: Config) -> Path:
    """Return the folder of the run's checkpoints."""
    return reachable(Path(config.run_dir)) / CHECKPOINTS


def save(session: Session, progress: Progress, *, best: bool = False, must: bool = False) -> None:
    """Save a checkpoint on rank 0, in a thread.

    If the save fails, the training continues. With `must` this function waits for the save, and raises
    UserError if the checkpoint cannot be written. It raises FolderError if another job took over the run
    folder. If the checkpoint of this step is saved already, it only gets other names, such as best.pt.
    """
    if session.world.rank != 0:
        return
    began = time.monotonic()
    copies = session.writer.copies
    is_copied = copies.last.get("step") == progress.step  # a validation, which came since, changes no weight
    if not is_copied:
        _wait_for_writer(session, progress)  # the new copy overwrites the last one
        facts = {"config": session.settings, "epochs": session.config.epochs, "world": session.world.size}
        saved = {"step": progress.step, "model": session.model.state_dict()}
        copies.take(saved | session.updater.state() | facts)
    snapshot = dataclasses.replace(progress, sums=[*progress.sums])
    work = functools.partial(_write, session, progress, snapshot, began, best=best, must=must)
    session.writer.start(work, after=is_copied)
    if must:
        _wait_for_writer(session, progress)


def _wait_for_writer(session: Session, progress: Progress) -> None:
    """Wait until the last copy is written, and report a wait of LATE_S; raise the writer's error."""
    if not session.writer.ends_within(LATE_S):
        step = session.writer.copies.last["step"]
        waited = f"the training has waited {LATE_S:g} s for its file system"
        why = f"The save of step {step} has not ended: {waited}"
        session.log.say(f"{why}, and waits on")
        session.log.event("save_late", step=step, reason=why)
        newest = progress.checkpoint
        session.log.status("running", step=progress.step, epoch=progress.done, checkpoint=newest, reason=why)
    session.writer.wait()


def _write(
    session: Session, progress: Progress, snapshot: Progress, began: float, *, best: bool, must: bool
) -> None:
    """Write the copied state to disk, in the writer's thread.

    `snapshot` is the progress of that state. `progress` is the progress of the training, which continues. The
    thread changes only `progress.checkpoint`.
    """
    folder, step, keep = checkpoint_folder(session.config), snapshot.step, session.config.keep
    name = f"{folder.name}/{checkpoint_name(step)}"
    state = session.writer.copies.last | {key: getattr(snapshot, key) for key in PROGRESS_FIELDS}
    kept_epoch = snapshot.epoch if session.config.keep_epochs and not snapshot.consumed else 0
    if progress.checkpoint == name and (folder / checkpoint_name(step)).exists():
        state = None  # the state is saved already
    options = {"step": step, "keep": keep, "epoch": kept_epoch}
    write = functools.partial(checkpoint.save, folder, state, best=best, **options)
    try:
        size = _try_write(session, write)
    except OSError as error:
        session.log.event("save_failed", step=step, reason=str(error))
        if must:
            fix = FIXES.get(error.errno or 0, "see what its file system says")
            raise UserError(f"cannot save step {step} ({error})", fix=f"{fix}, then start again") from error
        why = f"Could not save step {step} ({error})"
        session.log.say(f"{why}: training continues, and it is tried again every {RETRY_S:g} s")
        newest = progress.checkpoint
        session.log.status("running", step=step, epoch=snapshot.done, checkpoint=newest, reason=why)
        if not (size := _write_later(session, write)):
            return
        session.log.say(f"Step {step} is saved after all")
    session.stop.save_s = time.monotonic() - began
    progress.checkpoint = name
    facts = {"checkpoint": name, "bytes": size, "best": best, "save_s": round(session.stop.save_s, 2)}
    if kept_epoch:
        facts["also"] = EPOCH_NAME.format(kept_epoch)
    consumed = session.data.train.samples if snapshot.unvalidated else snapshot.consumed
    session.log.event("save", step=step, epoch=snapshot.done, consumed=consumed, **facts)
    session.log.status("running", step=step, epoch=snapshot.done, checkpoint=name)


def _try_write(session: Session, write: Callable[[], int]) -> int:
    """Write a checkpoint, and make its folder again if the folder was removed; return the size in bytes.

    Raises OSError.
    """
    folder = checkpoint_folder(session.config)
    if not folder.is_dir():
        own_folder(folder.parent)
        folder.mkdir()
        session.log.note(f"{folder} was removed, and is made again: the earlier checkpoints are gone")
    return write()


def _write_later(session: Session, write: Callable[[], int]) -> int:
    """Retry until the checkpoint is written; return its size, or 0 if the training saves again or ends."""
    while session.writer.pause(RETRY_S):
        with contextlib.suppress(OSError):
            return _try_write(session, write)
    return 0


def restore(session: Session) -> Progress:
    """Load --resume's checkpoint on all processes, and return its progress.

    Raises UserError if the checkpoint is missing or corrupt, or does not fit.
    """
    config, world = session.config, session.world
    restored = on_rank0(world, lambda: _load_checkpoint(session))
    own_label, own_data = restored[:2] if restored else (None, None)
    label, data = broadcast_bytes(world, own_label), broadcast_bytes(world, own_data)
    if label is None or data is None:
        return Progress()
    name, state = label.decode(), restored[2] if restored else load(io.BytesIO(data))
    progress = on_all_ranks(world, lambda: restored[3] if restored else _apply(session, state, name))
    progress.checkpoint = name
    if config.evaluate:
        return progress
    if world.rank == 0:
        checkpoint.set_aside_after(checkpoint_folder(config), progress.step, session.log.note)
    if progress.unvalidated:
        has_events = world.rank == 0 and name.startswith(CHECKPOINTS)
        if score := broadcast_bytes(world, _score_in_events(session, progress) if has_events else None):
            progress.note_score(float(score))
    if state["world"] != world.size:
        now = f"now there are {world.size}: same samples, different dropout"
        session.log.say(f"The checkpoint was saved by {state['world']} processes, {now}")
    if config.schedule == "cosine" and state["epochs"] != config.epochs:
        epochs = f"--epochs was {state['epochs']}, now it is {config.epochs}"
        session.log.say(f"{epochs}: the cosine schedule changes from here on")
    facts = {"step": progress.step, "epoch": progress.done, "consumed": progress.consumed}
    session.log.event("resume", **facts, checkpoint=name)
    session.log.say(f"Resuming from {progress.checkpoint}: epoch {progress.done + 1}, step {progress.step}")
    return progress


def _score_in_events(session: Session, progress: Progress) -> bytes | None:
    """Return the score of the validation at this step as text, or None if the events lack the score.

    A checkpoint that was written before the validation lacks the score.
    """
    score = None
    for event in read_events(Path(session.config.run_dir)):
        if event.get("event") == "start" and event.get("step") != progress.step:
            score = None  # this start trains the weights of this step again
        elif event.get("event") == "epoch" and event.get("step") == progress.step:
            score = event.get(session.task.names[0])
    return repr(score).encode() if isinstance(score, float) and math.isfinite(score) else None


def _load_checkpoint(session: Session) -> Found | None:
    """Load --resume's checkpoint into the model on rank 0; return None to start from scratch."""
    config = session.config
    run_dir, folder, resume = Path(config.run_dir), checkpoint_folder(config), config.resume
    if resume not in {"auto", "off"} and _saved_by_this_job(run_dir):
        resume = "auto"
    if config.evaluate and resume == "auto":
        own_folder(run_dir, folder.name, make=False)

    def use(path: Path, state: State, file: IO[bytes]) -> Found:
        label = f"{folder.name}/{path.name}" if path.parent == folder else str(path)
        progress = _apply(session, state, label)
        file.seek(0)
        return label.encode(), file.read() if session.world.size > 1 else b"", state, progress

    return checkpoint.find(folder, resume, session.log.note, use)  # type: ignore[no-any-return]


def _saved_by_this_job(run_dir: Path) -> bool:
    """Return whether an earlier start of this job has saved; --resume FILE was for the first start."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job or os.environ.get("SLURM_RESTART_COUNT", "0") in {"", "0"}:
        return False
    since_its_start = itertools.dropwhile(lambda event: event.get("job") != job, read_events(run_dir))
    return any(event.get("event") == "save" for event in since_its_start)


def _apply(session: Session, state: State, name: str) -> Progress:
    """Load a state, or only its weights for an evaluation; return its progress.

    Raises UserError if the state has other settings, and MisfitError if it does not fit the model.
    """
    changed = changed_settings(session.settings, state["config"])
    if changed and not (session.config.evaluate or session.config.allow_config_change):
        what = "; ".join(f"{key} is {new}, but was {old}" for key, (old, new) in changed.items())
        what = f"other settings than the checkpoint's: {what}"
        raise UserError(what, at=name, fix="the old ones, or --allow-config-change")
    try:
        if session.config.evaluate:
            load_weights(session.model, state["model"] | (state.get("ema") or {}), name)
            return Progress(step=state["step"], epoch=state["epoch"])
        load_weights(session.model, state["model"], name)
        session.updater.load(state, optimizer="optimizer" not in changed)
        progress = Progress(**{key: state[key] for key in PROGRESS_FIELDS})
    except UserError as error:
        raise error if changed else MisfitError(str(error)) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        kind = UserError if changed else MisfitError
        what = f"the state is of another model ({one_line(error)})"
        raise kind(what, at=name, fix="the same --model") from error
    if changed.keys() & set(SAMPLE_SETTINGS):
        progress.consumed, progress.sums = 0, [0.0, 0.0, 0.0]
    return progress
