"""The code that a job would run if it started now: checksums of its trainer's files, or of a snapshot.

Packages, data and settings that the trainer loads by other means are not known here.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.check.script.script import JobScript
from sbatchgen.check.script.trainer_name import trainer_is_file
from sbatchgen.check.script.trainer_source import TrainerSource, read_trainer
from sbatchgen.jobs.judge.trainer import TrainerJob
from sbatchgen.jobs.runs.snapshot import Snapshot

MAX_BYTES = 64 << 20  # of a file; a larger one is not the text of a program
_CHARACTERS = 40  # of a checksum


def of_trainer(main: TrainerJob) -> tuple[str, ...]:
    """Return a checksum and a name for each file of a job's own trainers that can be read from here."""
    read: list[Path] = []
    others = (TrainerJob(each.job, main.here, main.environment) for each in main.resolved.programs)
    for job in (main, *others):
        if job.resolved.trainer and job.working:
            read += _files(job.resolved.trainer, job.working, job.source)
    return _sums(read, main.here)


def of_script(script: JobScript, folder: Path) -> tuple[str, ...]:
    """Return a checksum and a name for each file of the programs that a finished script starts."""
    working = folder / script.option("chdir")
    names = dict.fromkeys(launch.program.name for launch in script.trainings)
    return _sums(
        [file for name in names for file in _files(name, working, read_trainer(name, working))], folder
    )


def of_snapshot(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a single checksum of all files that are to be copied."""
    sums = hashlib.sha256()
    for name in sorted(snapshot.sources):
        path = snapshot.root / name
        is_ = str(path.readlink()) if path.is_symlink() else _sum(path)
        sums.update(f"{name}\0{is_}\0".encode("utf-8", "surrogateescape"))
    return (f"{sums.hexdigest()[:_CHARACTERS]} {len(snapshot.sources)} files of the snapshot",)


def _files(trainer: str, working: Path, source: TrainerSource | None) -> Iterable[Path]:
    if source:
        return source.files
    return (working / trainer,) if trainer_is_file(trainer) else ()


def _sums(read: Iterable[Path], folder: Path) -> tuple[str, ...]:
    rows: Iterator[tuple[str, Path]] = ((os.path.relpath(file, folder), file) for file in dict.fromkeys(read))
    known = [(name, _sum(file)) for name, file in rows]
    return tuple(f"{checksum} {name}" for name, checksum in sorted(known) if checksum)


def _sum(file: Path) -> str:
    """Return the checksum of a file; "" for an unreadable file."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(files.read_file(file, MAX_BYTES)).hexdigest()[:_CHARACTERS]
    return ""
