"""Files that another program removes between the list of a folder and the look at each file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbatchgen.jobs.runs import plain_job, run_folder, submitted_scripts
from sbatchgen.jobs.runs.index import scan
from sbatchgen.jobs.runs.job_log import find_logs
from sbatchgen.jobs.runs.plain_job import PlainJob
from sbatchgen.jobs.runs.record import Record, write_accepted
from sbatchgen.jobs.submit import reviewed
from tests.slurm import fakes

_ABOUT = Record(shared=False, name="ddp", job="7", folder="/")


def vanish(monkeypatch: pytest.MonkeyPatch, *gone: Path) -> None:
    """Remove these files when a program has asked whether they are there, and may be read."""
    access, is_file = os.access, Path.is_file

    def look(answer: bool, path: object) -> bool:  # noqa: FBT001 - the answer of the system
        if Path(str(path)) in gone:
            Path(str(path)).unlink(missing_ok=True)
        return answer

    monkeypatch.setattr(os, "access", lambda path, *mode, **how: look(access(path, *mode, **how), path))
    monkeypatch.setattr(Path, "is_file", lambda path, **how: look(is_file(path, **how), path))


def put(folder: Path, *names: str) -> list[Path]:
    """Files with other times, the oldest first."""
    folder.mkdir(parents=True, exist_ok=True)
    for seconds, name in enumerate(names):
        (folder / name).write_text(f"{name}\n")
        os.utime(folder / name, (1e9 + seconds,) * 2)
    return [folder / name for name in names]


def test_the_newest_checkpoint_that_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, gone = put(folder / "checkpoints", "step-1.pt", "step-2.pt")
    job = PlainJob(word="x", id="7", folder=folder, record=_ABOUT)
    vanish(monkeypatch, gone)
    assert job.newest_checkpoint == old
    vanish(monkeypatch, old)
    assert job.newest_checkpoint is None


def test_the_newest_log_of_a_script_that_is_left(
    folder: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.failing(programs, "scontrol", "slurm_load_jobs error: Invalid job id specified")
    (folder / "train.sh").write_text("#!/bin/bash\n#SBATCH --output=logs/%j.out\n")
    left, gone = put(folder / "logs", "1.out", "2.out")
    vanish(monkeypatch, gone)
    match = plain_job.find("train.sh", folder, os.environ)
    assert match
    assert match.word == str(left)


def test_the_newest_log_of_a_colleague_that_is_left(
    folder: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.failing(programs, "scontrol", "slurm_load_jobs error: Invalid job id specified")
    left, gone, _ = put(folder / "run", "ddp-1.out", "ddp-2.out", "job-7.json")
    vanish(monkeypatch, gone)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    match = plain_job.find("run", folder, os.environ)
    assert match
    assert match.record.log == str(left)


def test_logs_that_are_left_are_found(folder: Path) -> None:
    left, gone = put(folder, "a-7.out", "b-7.out")
    record = Record(shared=False, name="ddp", job="7", folder="/", log=str(left), errors=str(gone))
    assert find_logs(record, with_stderr=True) == [left, gone]
    gone.unlink()
    assert find_logs(record, with_stderr=True) == [left]


def test_a_script_is_a_link_to_the_newest_that_is_left(folder: Path) -> None:
    """The dangling link stands for a script that was removed just now."""
    text = b"#!/bin/bash\n" + b"#" * submitted_scripts.MIN_SHARED_BYTES
    first = submitted_scripts.keep_script(folder, "1", text)
    (folder / "job-2.slurm").symlink_to(folder / "gone")
    second = submitted_scripts.keep_script(folder, "3", text)
    assert first.stat().st_ino == second.stat().st_ino


def test_old_reviews_are_removed_beside_one_that_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = put(folder / "reviewed", *(f"{number:040x}" for number in range(6)))
    (folder / "reviewed" / ("a" * 40)).symlink_to(folder / "gone")
    monkeypatch.setattr(reviewed, "MAX_KEPT", 2)
    reviewed._keep_text(folder / "reviewed", "f" * 40, b"new")
    assert [path for path in kept if path.exists()] == kept[-1:]


def test_a_file_that_is_gone_hides_no_file_of_another_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder / "run", *(f"file-{number}" for number in range(9)))
    scandir = os.scandir

    class Listing:
        """A list of a folder from which the first file is removed at once."""

        def __init__(self, place: Path) -> None:
            self.entries = [*scandir(place)]
            os.unlink(self.entries[0].path)  # noqa: PTH108 - as listed

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(
        os, "scandir", lambda place: Listing(place) if place == folder / "run" else scandir(place)
    )
    assert len([*run_folder._paths_with_status(folder / "run")]) == 1 + 8


def test_a_record_that_is_gone_hides_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "run").mkdir()
    write_accepted(folder / "run", replace(_ABOUT, key="c0ffee", job="7"))
    walk = os.walk

    def listing(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for at, folders, names in walk(top):
            yield at, folders, [*(["job-6.json"] if names else []), *names]

    monkeypatch.setattr(os, "walk", listing)
    ((run, jobs),) = filter(None, scan(folder))
    assert (run.folder, [job.id for job in jobs]) == (folder / "run", ["7"])
