"""Checksums of the code that a job would run if it started now: of its trainer's files, or of a snapshot.

Packages, data and settings that the trainer loads by other means are not included.
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
    """Return a checksum and a name for each file of a job's own trainers that can be read from here."""
    paths: list[Path] = []
    others = (
        TrainerJob(program.job, main.submit_folder, main.environment) for program in main.resolved.programs
    )
    for job in (main, *others):
        if job.resolved.trainer and job.working_folder:
            paths += _files(job.resolved.trainer, job.working_folder, job.source)
    return _rows(paths, main.submit_folder)


def script_checksums(script: JobScript, folder: Path) -> tuple[str, ...]:
    """Return a checksum and a name for each file of the programs that a finished script starts."""
    working_folder = folder / script.option("chdir")
    names = dict.fromkeys(launch.program.name for launch in script.trainings)
    paths: list[Path] = []
    for name in names:
        paths += _files(name, working_folder, read_trainer(name, working_folder))
    return _rows(paths, folder)


def snapshot_checksum(snapshot: Snapshot) -> tuple[str, ...]:
    """Return one row with a checksum of all files that are to be copied, and their number."""
    checksum = hashlib.sha256()
    for name in sorted(snapshot.sources):
        path = snapshot.root / name
        contents = str(path.readlink()) if path.is_symlink() else _checksum(path)
        checksum.update(f"{name}\0{contents}\0".encode("utf-8", "surrogateescape"))
    return (f"{checksum.hexdigest()[:_CHECKSUM_LENGTH]} {len(snapshot.sources)} files of the snapshot",)


def _files(trainer: str, working_folder: Path, source: TrainerSource | None) -> Iterable[Path]:
    """Return the files of a trainer: those that its source imports, or only the program."""
    if source:
        return source.files
    return (working_folder / trainer,) if trainer_is_file(trainer) else ()


def _rows(paths: Iterable[Path], folder: Path) -> tuple[str, ...]:
    """Return rows with a checksum and a name relative to `folder`, sorted by the names."""
    checksums = [(os.path.relpath(file, folder), _checksum(file)) for file in dict.fromkeys(paths)]
    return tuple(f"{checksum} {name}" for name, checksum in sorted(checksums) if checksum)


def _checksum(file: Path) -> str:
    """Return the checksum of a file; "" for an unreadable file."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(files.read_file(file, MAX_BYTES)).hexdigest()[:_CHECKSUM_LENGTH]
    return ""
