"""What is known of the trainer of a run that was submitted earlier."""

from __future__ import annotations

from pathlib import Path

from sbatchgen.job.script import JobScript
from sbatchgen.job.trainer import OVERWRITES, forgets_all
from sbatchgen.job.trainer_source import read_trainer
from sbatchgen.runs.record import Record
from sbatchgen.runs.submitted_scripts import parsed


def forgets(record: Record, run_dir: Path) -> str:
    """Say that a trainer of a submission saves nothing or never loads; "" if it may resume."""
    script = parsed(run_dir, record.job) if record.script else None
    if script:
        return script_forgets(script, Path(record.folder))
    code = record.code.snapshot if record.code else ""
    return _forgets(record.value("trainer"), Path(record.folder, code or record.value("--chdir")))


def script_forgets(script: JobScript, folder: Path) -> str:
    """Say the same of the programs that a finished script starts, if it is submitted from a folder."""
    working = folder / script.option("chdir")
    each = (_forgets(launch.program.name, working) for launch in script.trainings)
    return next(filter(None, each), "")


def _forgets(trainer: str, folder: Path) -> str:
    source = read_trainer(trainer, folder) if trainer else None
    if source is None or not (says := forgets_all(trainer, source)):
        return ""
    loads = f"{OVERWRITES}; let it load: {source.lines_that_load}" if source.never_loads else ""
    return f"{says}: it begins at the beginning{loads}"
