"""The index of a user's runs: their names, folders and jobs.

A file in XDG_STATE_HOME with lines of JSON and their checksums; the last line about a run or a job counts. It
is a cache: all but the states is in the run folders too, and `add` enters it again from there. No job needs
it. Several commands may use it at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sbatchgen import files
from sbatchgen.errors import DocumentError
from sbatchgen.quoting import word
from sbatchgen.runs import record as records
from sbatchgen.runs.record import Record

BUSY_S = 1.0  # how long to wait for another command, to write what can be seen again
WRITE_S = 10.0  # to write what can't
SEEN_S = 60.0  # a state that has not changed is written as often
MAX_BYTES = 256 << 20
SUBMITTING, LOST = "SUBMITTING", "LOST"  # states of a job that has no id yet, or whose id sbatch did not say
_FOLDER = re.compile(rb'"/(?:[^"\\\n]|\\.)*"')


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
    """A job of a run, as it was last seen.

    Attributes:
        key: Names the submission; it is in the path of the script that sbatch gets.
        run: The run's name.
        id: As sbatch prints it; "" if sbatch did not say.
        cluster: Its cluster, if sbatch named it; "" else.
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
    """Return the file of the index."""
    state = environment.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        state = f"{Path(environment.get('HOME') or '~').expanduser()}/.local/state"
    return Path(state, "sbatchgen", "runs.jsonl")


def open_index(environment: Mapping[str, str], note: Callable[[str], None]) -> Index:
    """Return the index, and note what was done about a damaged file; raises DocumentError."""
    index = Index(place(environment))
    if index.repaired:
        note(f"warning: {index.repaired}")
    return index


class Index:
    """The runs and jobs of the file, which is read anew where other commands have added lines.

    `repaired` says what was done about a damaged file; a file that can't be used is a DocumentError.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.repaired = file, ""
        self._clear()
        with self._as_document_error():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._load()
            if self._damaged:
                self._rebuild()

    def begin(self, key: str, folder: Path, name: str, *, shared: bool) -> Run:
        """Enter a submission before sbatch is asked; return its run, with a number if the name is taken.

        The submissions into one folder are one run, unless other runs have their folders in it (`shared`).
        """
        now = time.time()
        with self._writing() as lines:
            run = None if shared else self._of_folder(folder)
            if run is None:
                run = Run(self._free(name), folder, shared, now)
                lines.append(_line(run))
            lines.append(_line(RunJob(key, run.name, "", "", now, SUBMITTING, seen=now)))
        return run

    def add(self, run: Run, jobs: Iterable[RunJob]) -> Run:
        """Enter a run that was found in its folder; known jobs stay as they are.

        Returns:
            The run as the index names it.
        """
        with self._writing() as lines:
            jobs = list(jobs)
            known = None if run.shared else self._of_folder(run.folder)
            if known is None:
                names = (self._jobs[job.key].run for job in jobs if job.key in self._jobs)
                known = self._runs.get(next(names, ""))
            if known is None:
                known = run._replace(name=self._free(run.name))
                lines.append(_line(known))
            elif known.folder != run.folder and not known.folder.exists():  # it was moved
                known = known._replace(folder=run.folder)
                lines.append(_line(known))  # where it was, nobody could tell how its jobs ended
                lines += [_line(job._replace(ended=False)) for job in self._of(known.name) if not job.state]
            lines += [_line(job._replace(run=known.name)) for job in jobs if job.key not in self._jobs]
        return known

    def accepted(self, key: str, job: str, cluster: str = "") -> None:
        """Enter the id of a submission that was accepted."""
        self._change(key, id=job, cluster=cluster, state="", seen=time.time())

    def lost(self, key: str) -> None:
        """Enter that sbatch's answer was lost."""
        self._change(key, state=LOST)

    def _change(self, key: str, **facts: Any) -> None:
        with self._writing() as lines:
            if job := self._jobs.get(key):  # the run once more: one damaged line then loses nothing
                lines += [_line(self._runs[job.run]), _line(job._replace(**facts))]

    def refused(self, key: str) -> None:
        """Take a submission out that was refused; and its run, if it has no other."""
        with self._writing() as lines:
            lines.append(_sealed(["gone", key]))

    def seen(self, jobs: Iterable[RunJob]) -> None:
        """Enter states that were just seen."""
        news = [job for job in jobs if self._is_news(job)]
        if news:
            with self._writing(BUSY_S) as lines:
                lines += [_line(job) for job in news if job.key in self._jobs]

    def _is_news(self, job: RunJob) -> bool:
        old = self._jobs.get(job.key)
        return old is not None and (old._replace(seen=job.seen) != job or old.seen + SEEN_S < job.seen)

    def runs(self, *, since: float = 0.0) -> list[Run]:
        """Return the runs, the oldest first; only those with a job that is live, or was seen since a time."""
        with self._as_document_error():
            self._load()
        recent = {
            job.run
            for job in self._jobs.values()
            if not job.ended or job.seen > since or job.submitted > since
        }
        found = [run for run in self._runs.values() if not since or run.name in recent]
        return sorted(found, key=lambda run: run.created)

    def jobs(self, run: str | None = None) -> list[RunJob]:
        """Return the jobs of a run or of all, the oldest first."""
        with self._as_document_error():
            self._load()
        return sorted(self._of(run), key=lambda job: job.submitted)

    def find(self, text: str, folder: Path) -> list[Run]:
        """Return the runs that match a name, the id of a job, or a folder, relative to `folder`."""
        with self._as_document_error():
            self._load()
        if text in self._runs:
            return [self._runs[text]]
        id_ = text.partition("_")[0]
        names = dict.fromkeys(job.run for job in self._jobs.values() if job.id == id_ and id_.isdecimal())
        path = Path(os.path.normpath(folder / text))
        return [self._runs[name] for name in names] or [
            run for run in self._runs.values() if run.folder == path
        ]

    def _of(self, run: str | None) -> list[RunJob]:
        return [job for job in self._jobs.values() if run is None or job.run == run]

    def _of_folder(self, folder: Path) -> Run | None:
        return next((run for run in self._runs.values() if run.folder == folder and not run.shared), None)

    def _all(self) -> list[str]:
        """Return the lines of a file that holds nothing else."""
        return [*map(_line, self._runs.values()), *map(_line, self._jobs.values())]

    def _free(self, name: str) -> str:
        """Return the name, with the lowest number from 2 that makes it new if it is taken."""
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        return next(one for one in names if one not in self._runs)

    def _clear(self) -> None:
        self._runs: dict[str, Run] = {}
        self._jobs: dict[str, RunJob] = {}
        self._at = self._inode = self._lines = 0  # of the file: the bytes and lines that were read
        self._damaged = False

    def _load(self) -> None:
        """Read the lines that other commands have added."""
        try:
            with files.regular(self.file, os.O_NOFOLLOW) as file:
                status = os.fstat(file.fileno())
                _refuse_of_others(status)
                if status.st_ino != self._inode or status.st_size < self._at:
                    self._clear()
                self._inode = status.st_ino
                file.seek(self._at)
                data = file.read(MAX_BYTES)
        except FileNotFoundError:
            self._clear()
            return
        data = data[: data.rfind(b"\n") + 1]  # another command writes the rest
        self._at += len(data)
        for line in data.splitlines():
            self._lines += 1
            try:
                self._take(*_facts(line))
            except (ValueError, TypeError, RecursionError):
                self._damaged = True

    def _take(self, kind: str, *values: Any) -> None:
        """Take the facts of a line; raises ValueError or TypeError for a damaged line."""
        if kind == "run":
            name, folder, *rest = values
            self._runs[name] = Run(name, Path(folder), *rest)
        elif kind == "job" and (job := RunJob(*values)).run in self._runs:  # the run's line may be damaged
            self._jobs[job.key] = job
        elif kind == "gone" and (gone := self._jobs.pop(values[0], None)) and not self._of(gone.run):
            del self._runs[gone.run]

    def _rebuild(self) -> None:
        """Set a damaged file aside, and enter the runs again whose folders it names."""
        aside = self.file.with_name(f"{self.file.name}.broken")
        data, kept = files.read(self.file, MAX_BYTES), self._all()
        self.file.replace(aside)
        with self._writing() as lines:
            lines.extend(kept)
        for folder in sorted(_folders(data)):
            for run, jobs in _runs_in(folder):
                self.add(run, jobs)
        what = f"the index of runs was damaged: it is now {aside}. The runs that it names were entered again"
        self.repaired = f"{what}\n  fix: if a run is missing: sbatchgen status --scan FOLDER"

    @contextlib.contextmanager
    def _writing(self, wait_s: float = WRITE_S) -> Iterator[list[str]]:
        """Collect lines while no other command writes, and add them to the file."""
        with self._as_document_error(), contextlib.ExitStack() as opened:
            while True:
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                file = opened.enter_context(os.fdopen(os.open(self.file, flags, files.PRIVATE), "r+b", 0))
                files.lock(file.fileno(), wait_s)
                with contextlib.suppress(FileNotFoundError):  # another command may have replaced it
                    if os.fstat(file.fileno()).st_ino == self.file.stat().st_ino:
                        break
            self._load()
            lines: list[str] = []
            yield lines
            file.truncate(self._at)  # a command that was killed leaves a part of a line
            data, written = "".join(lines).encode(), 0
            with contextlib.suppress(OSError):
                written = file.write(data) or 0
            if written < len(data):
                file.truncate(self._at)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._load()
            if self._lines > 1000 + 4 * (len(self._runs) + len(self._jobs)):
                files.put(self.file, "".join(self._all()).encode(), mode=files.PRIVATE)

    @contextlib.contextmanager
    def _as_document_error(self) -> Iterator[None]:
        """Turn errors of the file into an error that says what to do."""
        try:
            yield
        except BlockingIOError as error:
            what = f"another command is writing the index of runs: {self.file}"
            raise DocumentError.of(what, fix="try again later") from error
        except OSError as error:
            what = f"the index of runs {self.file} can't be used: {error.strerror}"
            fix = f"see who may use it, and whether the disk is full: ls -l {word(str(self.file))}"
            raise DocumentError.of(what, fix=fix) from error


def _refuse_of_others(status: os.stat_result) -> None:
    if os.geteuid() not in (0, status.st_uid):
        raise PermissionError(errno.EPERM, "it belongs to another user")


def _line(fact: Run | RunJob) -> str:
    return _sealed(["run" if isinstance(fact, Run) else "job", *fact])


def _sealed(facts: Sequence[Any]) -> str:
    """Return a line with these facts and their checksum."""
    text = json.dumps(facts, default=os.fspath)
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _facts(line: bytes) -> Any:
    """Return the facts of a line; raises ValueError if its checksum is wrong."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError(line)
    return json.loads(text)


def _folders(data: bytes) -> set[Path]:
    """Return the folders that a damaged file names, also in the damaged lines."""
    found = set()
    for match in _FOLDER.findall(data):
        with contextlib.suppress(ValueError, OSError):
            path = Path(json.loads(match))
            found |= {path} if path.is_dir() else set()
    return found


def scan(folder: Path, most_deep: int = 6) -> Iterator[tuple[Run, list[RunJob]] | None]:
    """Yield the runs of this user in a folder and below it; None for each record of another user.

    Links are not followed.
    """
    with contextlib.suppress(OSError):
        owners = {folder.lstat().st_uid}
        for file in folder.glob("job-*.json"):
            if {*owners, file.lstat().st_uid} != {os.geteuid()}:
                yield None
        if owners == {os.geteuid()}:
            yield from _runs_in(folder)
    if most_deep:
        with contextlib.suppress(OSError):
            for below in sorted(folder.iterdir()):
                if below.is_dir() and not below.is_symlink():
                    yield from scan(below, most_deep - 1)


def _runs_in(folder: Path) -> Iterator[tuple[Run, list[RunJob]]]:
    """Yield the runs that have their records in a folder."""
    found: dict[str, list[Record]] = {}
    for record in records.records(folder):
        found.setdefault(record.run or records.run_name(record.name), []).append(record)
    for name, several in found.items():
        run = Run(name=name, folder=folder, shared=several[0].shared, created=several[0].submitted)
        yield run, [_as_job(record) for record in several]


def _as_job(record: Record) -> RunJob:
    when = record.submitted
    return RunJob(record.key, record.run, record.job, record.cluster, submitted=when, seen=when)
