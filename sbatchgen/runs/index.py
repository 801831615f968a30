"""The index of a user's runs: which there are, in which folders, and their jobs.

A file of sqlite in XDG_STATE_HOME, a cache: what it says stands in the run folders too, and `add` enters it
again from there. No job needs it. Several commands may use it at the same time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sbatchgen.errors import DocumentError
from sbatchgen.quoting import word

VERSION = 1  # of the tables
BUSY_S = 30.0  # how long to wait for another command that writes
SUBMITTING, LOST = "SUBMITTING", "LOST"  # states of a job that has no id yet, or whose id sbatch did not tell
_TABLES = """
CREATE TABLE run (
    name TEXT PRIMARY KEY,
    folder BLOB NOT NULL,
    shared INTEGER NOT NULL,
    created REAL NOT NULL
);
CREATE INDEX run_of_folder ON run (folder);
CREATE TABLE job (
    key TEXT PRIMARY KEY,
    run TEXT NOT NULL REFERENCES run (name) ON DELETE CASCADE ON UPDATE CASCADE,
    id TEXT NOT NULL,
    cluster TEXT NOT NULL,
    submitted REAL NOT NULL,
    state TEXT NOT NULL,
    ended INTEGER NOT NULL,
    says TEXT NOT NULL,
    seen REAL NOT NULL
);
CREATE INDEX job_of_run ON job (run);
CREATE INDEX job_of_id ON job (id);
"""


class Run(NamedTuple):
    """A run.

    Attributes:
        name: Its name, the job's name; with a number if another run has it.
        folder: Its folder.
        shared: Whether other runs have their folders in it, as in runs/${SLURM_JOB_ID}.
        created: Seconds since 1970.
    """

    name: str
    folder: Path
    shared: bool
    created: float


class RunJob(NamedTuple):
    """A job of a run, as it was last seen; its fields are the columns of the table.

    Attributes:
        key: Names the submission; it stands in the path of the script that sbatch gets.
        run: The run's name.
        id: As sbatch prints it; "" if sbatch did not tell.
        cluster: Its cluster, if sbatch told; "" else.
        submitted: Seconds since 1970.
        state: SUBMITTING, LOST, or a state of Slurm by its long name; "" if nobody knows.
        ended: Whether that is its last state.
        says: More about the state, for people.
        seen: When the state was seen, in seconds since 1970.
    """

    key: str
    run: str
    id: str
    cluster: str
    submitted: float
    state: str = ""
    ended: bool = False
    says: str = ""
    seen: float = 0.0


def place(environment: Mapping[str, str]) -> Path:
    """The file of the index."""
    state = environment.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        state = f"{Path(environment.get('HOME') or '~').expanduser()}/.local/state"
    return Path(state, "sbatchgen", "runs.sqlite")


class Index:
    """An open index.

    Raises:
        DocumentError: It can't be read or written.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with self._as_document_error():
            file.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
            self._base.execute("PRAGMA foreign_keys = ON")
            self._prepare()

    def _prepare(self) -> None:
        if self._version() == VERSION:
            return
        with self._writing():
            found = self._version()
            if found > VERSION:
                what = f"{self.file} is of a later sbatchgen"
                raise DocumentError.of(what, fix="use that one, or set XDG_STATE_HOME to another folder")
            if found < VERSION:
                for statement in filter(None, map(str.strip, _TABLES.split(";"))):
                    self._base.execute(statement)
                self._base.execute(f"PRAGMA user_version = {VERSION}")

    def _version(self) -> int:
        (found,) = self._base.execute("PRAGMA user_version").fetchone()
        return int(found)

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def begin(self, key: str, folder: Path, name: str, *, shared: bool) -> Run:
        """Enter a submission before sbatch is asked.

        Args:
            key: Names the submission.
            folder: The run folder. The runs of one folder are one run, unless it is shared.
            name: The name that the run has if no other run has it.
            shared: Whether other runs have their folders in it.
        """
        now = time.time()
        with self._as_document_error(), self._writing():
            run = None if shared else self._of_folder(folder)
            if run is None:
                run = self._new(Run(name=name, folder=folder, shared=shared, created=now))
            job = RunJob(key=key, run=run.name, id="", cluster="", submitted=now, state=SUBMITTING, seen=now)
            self._put(job)
        return run

    def add(self, run: Run, jobs: Iterable[RunJob]) -> Run:
        """Enter a run as its folder tells of it, and give that of the index; known jobs stay as they are."""
        with self._as_document_error(), self._writing():
            known = None if run.shared else self._of_folder(run.folder)
            jobs = list(jobs)
            if known is None:
                keys = [job.key for job in jobs]
                marks = ",".join("?" * len(keys))
                row = self._base.execute(f"SELECT run FROM job WHERE key IN ({marks})", keys).fetchone()  # noqa: S608
                known = self._named(row[0]) if row else None
            if known is None:
                known = self._new(run)
            if known.folder != run.folder and not known.folder.exists():  # it was moved
                self._base.execute(
                    "UPDATE run SET folder = ? WHERE name = ?", (os.fsencode(run.folder), known.name)
                )
                self._base.execute(  # where it was, nobody could tell how they ended
                    "UPDATE job SET ended = 0 WHERE run = ? AND state = ''", (known.name,)
                )
                known = known._replace(folder=run.folder)
            for job in jobs:
                self._put(job._replace(run=known.name), or_else="IGNORE")
        return known

    def accepted(self, key: str, job: str, cluster: str = "") -> None:
        """Enter the id of a submission that was accepted."""
        with self._as_document_error(), self._writing():
            self._base.execute(
                "UPDATE job SET id = ?, cluster = ?, state = '', seen = ? WHERE key = ?",
                (job, cluster, time.time(), key),
            )

    def lost(self, key: str) -> None:
        """Enter that sbatch's answer was lost."""
        with self._as_document_error(), self._writing():
            self._base.execute("UPDATE job SET state = ? WHERE key = ?", (LOST, key))

    def refused(self, key: str) -> None:
        """Take a submission out that was refused; and its run, if it has no other."""
        with self._as_document_error(), self._writing():
            row = self._base.execute("DELETE FROM job WHERE key = ? RETURNING run", (key,)).fetchone()
            if row and not self._base.execute("SELECT 1 FROM job WHERE run = ?", row).fetchone():
                self._base.execute("DELETE FROM run WHERE name = ?", row)

    def seen(self, jobs: Iterable[RunJob]) -> None:
        """Enter states that were just seen."""
        rows = [(job.id, job.state, job.ended, job.says, job.seen, job.key) for job in jobs]
        with self._as_document_error(), self._writing():
            self._base.executemany(
                "UPDATE job SET id = ?, state = ?, ended = ?, says = ?, seen = ? WHERE key = ?", rows
            )

    def runs(self, *, since: float = 0.0) -> list[Run]:
        """The runs, the oldest first; only those with a job that has not ended, or was seen since a time."""
        with self._as_document_error():
            rows = self._base.execute(
                "SELECT * FROM run WHERE ? = 0 OR name IN "
                "(SELECT run FROM job WHERE NOT ended OR seen > ? OR submitted > ?) ORDER BY created, rowid",
                (since, since, since),
            )
            return [_run(row) for row in rows]

    def jobs(self, run: str | None = None) -> list[RunJob]:
        """The jobs of a run or of all, the oldest first."""
        with self._as_document_error():
            rows = self._base.execute(
                "SELECT * FROM job WHERE ? IS NULL OR run = ? ORDER BY submitted, rowid", (run, run)
            )
            return [job._replace(ended=bool(job.ended)) for job in map(RunJob._make, rows)]

    def find(self, told: str, folder: Path) -> list[Run]:
        """The runs that a word may mean: a name, the id of a job, or a folder, relative to `folder`."""
        with self._as_document_error():
            if run := self._named(told):
                return [run]
            if told.partition("_")[0].isdecimal():
                rows = self._base.execute(
                    "SELECT DISTINCT run.* FROM run JOIN job ON job.run = run.name WHERE job.id = ?",
                    (told.partition("_")[0],),
                )
                if found := [_run(row) for row in rows]:
                    return found
            path = Path(os.path.normpath(folder / told))
            rows = self._base.execute("SELECT * FROM run WHERE folder = ?", (os.fsencode(path),))
            return [_run(row) for row in rows]

    def _named(self, name: str) -> Run | None:
        row = self._base.execute("SELECT * FROM run WHERE name = ?", (name,)).fetchone()
        return _run(row) if row else None

    def _of_folder(self, folder: Path) -> Run | None:
        row = self._base.execute(
            "SELECT * FROM run WHERE folder = ? AND NOT shared", (os.fsencode(folder),)
        ).fetchone()
        return _run(row) if row else None

    def _free(self, name: str) -> str:
        """The name, with the lowest number from 2 that makes it new if it is taken."""
        start = f"{name}-"
        rows = self._base.execute(
            "SELECT name FROM run WHERE name = ? OR substr(name, 1, ?) = ?", (name, len(start), start)
        )
        taken = {row[0] for row in rows}
        number = 2
        while f"{start}{number}" in taken:
            number += 1
        return f"{start}{number}" if name in taken else name

    def _new(self, run: Run) -> Run:
        """Enter a run, with a number if its name is taken."""
        run = run._replace(name=self._free(run.name))
        row = (run.name, os.fsencode(run.folder), run.shared, run.created)
        self._base.execute("INSERT INTO run VALUES (?, ?, ?, ?)", row)
        return run

    def _put(self, job: RunJob, or_else: str = "ABORT") -> None:
        self._base.execute(f"INSERT OR {or_else} INTO job VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", job)  # noqa: S608

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that is the only writer from its start, so that it need not be tried twice."""
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._base.in_transaction:  # a full disk has ended it
                self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    @contextlib.contextmanager
    def _as_document_error(self) -> Iterator[None]:
        """Turn errors of the file into one that says what to do."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            what = f"the index of runs {self.file} can't be used: {why}"
            fix = f"see who may use it, and whether the disk is full: ls -l {word(str(self.file))}"
            if any(text in str(error) for text in ("malformed", "not a database")):
                old, aside = word(str(self.file)), word(f"{self.file}.broken")
                fix = f"mv {old} {aside}; then enter your runs again: sbatchgen status --scan FOLDER"
            raise DocumentError.of(what, fix=fix) from error


def _run(row: tuple[Any, ...]) -> Run:
    name, folder, shared, created = row
    return Run(name, Path(os.fsdecode(folder)), bool(shared), created)
