"""Makes checksums of the code that a job runs: the files of its trainers, or a snapshot of them.

A review and a record hold the checksums, so that later commands notice an edited trainer. Installed packages,
data and settings have no checksum.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.check.script.script import JobScript
from sbatchgen.check.script.trainer_name import trainer_is_file
from sbatchgen.check.script.trainer_source import TrainerSource, read_trainer
from sbatchgen.jobs.judge.trainer import TrainerJob
from sbatchgen.jobs.runs.snapshot import Snapshot

MAX_BYTES = 64 << 20  # the largest file that is read; a larger file is not the text of a program
_CHECKSUM_LENGTH = 40  # characters


def trainer_checksums(trainer_job: TrainerJob) -> tuple[str, ...]:
    """Return a row for each file of the trainers of a job; the job's other programs have trainers too.

    A row has a checksum and the file's name: "3f9a... train.py". A bundled trainer has no row, and neither
    has a file that can't be read here.
    """
    paths: list[Path] = []
    programs = (
        TrainerJob(program.job, trainer_job.submit_folder, trainer_job.environment)
        for program in trainer_job.resolved.programs
    )
    for job in (trainer_job, *programs):
        if job.resolved.trainer and job.working_folder:
            paths += _trainer_files(job.resolved.trainer, job.working_folder, job.source)
    return _checksum_rows(paths, trainer_job.submit_folder)


def script_checksums(script: JobScript, folder: Path) -> tuple[str, ...]:
    """Return a row with a checksum and a name for each file of the trainers that a finished script starts."""
    working_folder = folder / script.option("chdir")
    names = dict.fromkeys(launch.program.name for launch in script.trainings)
    paths: list[Path] = []
    for name in names:
        paths += _trainer_files(name, working_folder, read_trainer(name, working_folder))
    return _checksum_rows(paths, folder)


def snapshot_checksum(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a single row with one checksum of all files that a snapshot will copy, and their number."""
    checksum = hashlib.sha256()
    for name in sorted(snapshot.sources):
        path = snapshot.root / name
        target_or_checksum = str(path.readlink()) if path.is_symlink() else _checksum(path)
        checksum.update(f"{name}\0{target_or_checksum}\0".encode("utf-8", "surrogateescape"))
    return (f"{checksum.hexdigest()[:_CHECKSUM_LENGTH]} {len(snapshot.sources)} files of the snapshot",)


def _trainer_files(trainer: str, working_folder: Path, source: TrainerSource | None) -> Iterable[Path]:
    """Return the file of a trainer and the files that it imports.

    Without a `source` that sbatchgen can read, return only the trainer's own file, if it is a file.
    """
    if source:
        return source.files
    return (working_folder / trainer,) if trainer_is_file(trainer) else ()


def _checksum_rows(paths: Iterable[Path], folder: Path) -> tuple[str, ...]:
    """Return rows with a checksum and a name relative to `folder`, sorted by the names."""
    checksums = [(os.path.relpath(file, folder), _checksum(file)) for file in dict.fromkeys(paths)]
    return tuple(f"{checksum} {name}" for name, checksum in sorted(checksums) if checksum)


def _checksum(file: Path) -> str:
    """Return the checksum of a file; "" for an unreadable file."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(files.read_file(file, MAX_BYTES)).hexdigest()[:_CHECKSUM_LENGTH]
    return ""
