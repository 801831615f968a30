"""Makes checksums of the code of a job: of its trainer's files, or of the snapshot that the job would run.

A review and a record hold the checksums, so that later commands notice an edited trainer. Files that a
trainer does not import, such as installed packages, data and settings, have no checksum.
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


def trainer_checksums(main: TrainerJob) -> tuple[str, ...]:
    """Return a row for each file of the user's own trainers in a job and its programs.

    A row has a checksum and the file's name: "3f9a... train.py". Files that can't be read here have no row.
    """
    paths: list[Path] = []
    programs = (
        TrainerJob(program.job, main.submit_folder, main.environment) for program in main.resolved.programs
    )
    for job in (main, *programs):
        if job.resolved.trainer and job.working_folder:
            paths += _trainer_files(job.resolved.trainer, job.working_folder, job.source)
    return _checksum_rows(paths, main.submit_folder)


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
        contents = str(path.readlink()) if path.is_symlink() else _checksum(path)
        checksum.update(f"{name}\0{contents}\0".encode("utf-8", "surrogateescape"))
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
