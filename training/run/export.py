"""The export of a run's weights to the file of --export."""

import errno
import os
from pathlib import Path

from training.config import Config
from training.errors import UserError, one_line
from training.files import temporary_name
from training.processes.world import on_rank0
from training.run.card import write_card
from training.run.session import Session
from training.saving import checkpoint

WEIGHTS = "model.pt"


def check_export(config: Config) -> None:
    """Make the folder of --export's file; raise UserError if the file can't be written there."""
    if not (path := _export_path(config)):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        trial = temporary_name(path)
        trial.touch()
        trial.unlink()
    except OSError as error:
        what = f"the weights could not be written after the training ({one_line(error)})"
        raise UserError(what, at=str(path), fix="another --export, or --export off") from error


def _export_path(config: Config) -> Path | None:
    """Return the file for the weights; None for --export off, and for an evaluation without --export."""
    name = config.export or ("off" if config.evaluate else WEIGHTS)
    if name == "off":
        return None
    is_in_run_folder = Path(name).name == name  # a name without a folder
    return Path(config.run_dir) / name if is_in_run_folder else Path(name)


def export(session: Session) -> None:
    """Call `write_weights` on rank 0; all processes raise UserError if that fails."""
    on_rank0(session.world, lambda: write_weights(session))


def write_weights(session: Session) -> None:
    """Write the weights that the validation uses to --export's file, with a card; raises UserError."""
    if not (path := _export_path(session.config)):
        return
    try:
        with session.updater.evaluated_weights():
            state = session.model.state_dict()
            checkpoint.export(path, {key: value.cpu().contiguous() for key, value in state.items()})
        write_card(session, path)
    except OSError as error:
        what = f"cannot write the weights ({one_line(error)})"
        fix = "make room, another --export, or --export off"
        raise UserError(what, at=str(path), fix=fix) from error
    session.log.say(f"Weights saved to {path}")
