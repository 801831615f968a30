"""--export: a file with only the weights, as other programs load them."""

from __future__ import annotations

from pathlib import Path

from training.errors import UserError, one_line
from training.processes.world import on_rank0
from training.run.session import Session
from training.saving import checkpoint

NAME = "model.pt"


def export(session: Session) -> None:
    """Write the evaluated weights to --export's file; raises UserError if that fails."""
    config = session.config
    name = config.export or ("off" if config.evaluate else NAME)
    if name == "off":
        return
    path = Path(config.run_dir) / name if Path(name).name == name else Path(name)
    on_rank0(session.world, lambda: _write(session, path))
    session.log.say(f"Weights saved to {path}")


def _write(session: Session, path: Path) -> None:
    with session.updater.evaluated():
        weights = {name: value.cpu().contiguous() for name, value in session.model.state_dict().items()}
        try:
            checkpoint.export(path, weights)
        except OSError as error:
            what = f"cannot write the weights ({one_line(error)})"
            raise UserError(what, at=str(path), fix="make room, another --export, or --export off") from error
