"""What is known of the trainer of a run that was submitted earlier."""

from __future__ import annotations

from pathlib import Path

from sbatchgen.job.trainer_source import read_trainer
from sbatchgen.runs.record import Record


def forgets(kept: Record) -> str:
    """Say that the trainer of a submission saves nothing, and what follows; "" if it may resume."""
    values = {value.name: value.value for value in kept.values}
    code = kept.code.snapshot if kept.code else ""
    trainer, folder = values.get("trainer"), Path(kept.folder, code or values.get("--chdir", ""))
    source = read_trainer(trainer, folder) if trainer else None
    return f"{trainer} saves nothing: it begins at the beginning" if source and source.saves_nothing else ""
