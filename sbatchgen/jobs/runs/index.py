"""The index of a user's runs: their names, folders and jobs.

A file in XDG_STATE_HOME: a checksum, and a line of JSON. It is a cache: all but the states is in the run
folders too, and `add` enters it again from there. No job needs it. Several commands may use it at the same
time: one of them writes, and the file is replaced, never changed.
"""

import contextlib
import itertools
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError
from sbatchgen.base.quoting import word
from sbatchgen.jobs.runs import record as records
from sbatchgen.jobs.runs.record import Record

BUSY_S = 1.0  # seconds to wait for another command before a write of states, which can be seen again
WRITE_S = 10.0  # seconds to wait before a write of submissions, which can't be seen again
SEARCHED = 200  # runs whose records are read to find a file of which neither folder nor name says more
SEEN_S = 60.0  # a state that has not changed is written as often
MAX_BYTES = 256 << 20
SUBMITTING, LOST = "SUBMITTING", "LOST"  # states of a job that has no id yet, or whose id sbatch did not say
_RUN = [str, str, bool, float]  # as JSON has them
_JOB = [str, str, str, str, float, str, bool, str, float]
_FOLDER = re.compile(rb'"/(?:[^"\\\n]|\\.)*"')


class Run(NamedTuple):
    """A run."""

    name: str  # the job's name; with a number if another run has it
    where: str  # its folder, as a text: of ten thousand runs few are looked into
    shared: bool  # whether other runs have their folders in it, as in runs/${SLURM_JOB_ID}
    created: float  # seconds since 1970

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.where)


class RunJob(NamedTuple):
    """A job of a run, as it was last seen."""

    key: str  # names the submission; it is in the path of the script that sbatch gets
    run: str  # the run's name
    id: str  # its id as sbatch prints it; "" if sbatch did not say
    cluster: str  # its cluster, if sbatch named it; "" else
    submitted: float  # seconds since 1970
    state: str = ""  # SUBMITTING, LOST, or a state of Slurm by its long name; "" if it is not known
    ended: bool = False  # whether that is its last state
    says: str = ""  # more about the state, for people
    seen: float = 0.0  # when the state was seen, in seconds since 1970


def place(environment: Mapping[str, str]) -> Path:
    """Return the file of the index."""
    default = ".local/state"
    state = files.user_folder(environment, "XDG_STATE_HOME", default) or Path("~", default).expanduser()
    return Path(state, "sbatchgen", "runs.jsonl")


class Index:
    """The runs and jobs of the file, which is read again where other commands have replaced it.

    A file that can't be used is a DocumentError; `note` gets what was done about a damaged one.
    """

    def __init__(self, file: Path, note: Callable[[str], None] = lambda _: None) -> None:
        self.file, self._note = file, note
        self._data: bytes | None = None
        self._runs: dict[str, Run] = {}
        self._jobs: dict[str, RunJob] = {}
        with self._as_document_error():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._load():
            with self._changing(BUSY_S):
                pass  # it is repaired before it is changed

    def begin(self, key: str, folder: Path, name: str, *, shared: bool) -> Run:
        """Enter a submission before sbatch is asked; return its run, with a number if the name is taken.

        The submissions into one folder are one run, unless other runs have their folders in it (`shared`).
        """
        now = time.time()
        job = RunJob(key, name, "", "", now, SUBMITTING, seen=now)
        return self.add([(Run(name, str(folder), shared, now), [job])])[0]

    def add(self, runs: Iterable[tuple[Run, list[RunJob]]]) -> list[Run]:
        """Enter runs that were runs in folders, but for jobs already known; return them as named here."""
        with self._changing():
            folders = {run.where: run for run in reversed(self._runs.values()) if not run.shared}
            numbers: dict[str, int] = {}
            return [self._add(run, jobs, folders, numbers) for run, jobs in runs]

    def accepted(self, key: str, job: str, cluster: str = "") -> None:
        """Enter the id of a submission that was accepted."""
        self._change(key, id=job, cluster=cluster, state="", seen=time.time())

    def lost(self, key: str) -> None:
        """Enter that sbatch's answer was lost."""
        self._change(key, state=LOST)

    def refused(self, key: str) -> None:
        """Remove a submission that was refused, and its run if it has no other."""
        with self._changing():
            job = self._jobs.pop(key, None)
            if job and not self._of(job.run):
                del self._runs[job.run]

    def seen(self, jobs: Iterable[RunJob]) -> None:
        """Enter states that were just seen."""
        news = []
        for job in jobs:
            old = self._jobs.get(job.key)
            if old and (old._replace(seen=job.seen) != job or old.seen + SEEN_S < job.seen):
                news.append(job)
        if news:
            with self._changing(BUSY_S):
                self._jobs |= {job.key: job for job in news if job.key in self._jobs}

    def runs(self, *, since: float = 0.0) -> list[Run]:
        """Return the runs, the oldest first; only those with a job that is live, or was seen since a time."""
        self._load()
        jobs = self._jobs.values()
        recent = {job.run for job in jobs if not job.ended or max(job.seen, job.submitted) > since}
        chosen = [run for run in self._runs.values() if not since or run.name in recent]
        return sorted(chosen, key=lambda run: run.created)

    def jobs(self, run: str | None = None) -> list[RunJob]:
        """Return the jobs of a run or of all, the oldest first."""
        self._load()
        return sorted(self._of(run), key=lambda job: job.submitted)

    def find(self, text: str, folder: Path) -> list[Run]:
        """Return the runs that match a name, the id of a job, or a folder, relative to `folder`; or a file.

        The name of a run means that run for ever, whatever is in ./runs/NAME.
        """
        self._load()
        if named := self._runs.get(text):
            return [named]
        id_ = text.partition("_")[0]
        names = dict.fromkeys(job.run for job in self._jobs.values() if job.id == id_ and id_.isdecimal())
        path = Path(os.path.normpath(folder / text))
        by_job = [self._runs[name] for name in names]
        by_path = by_job or self._in_folder(path)
        return by_path or ([*itertools.islice(self._with_file(path), 1)] if path.is_file() else [])

    def job_of(self, run: Run, text: str, folder: Path) -> str:
        """Return the id of the job that `text` means, by which a run was found; "" if it means the run.

        The id comes before that of a task, as in 4711_3; a log or a script is that of a job too.
        """
        id_ = text.partition("_")[0].partition("/")[0]
        if run.name == text:
            return ""
        if id_.isdecimal() and any(job.id == id_ for job in self._of(run.name)):
            return id_
        path = Path(os.path.normpath(folder / text))
        known = reversed(records.records(run.folder)) if path.is_file() else ()
        return next((record.job for record in known if path in _files_of(run, record)), "")

    def beside(self, named: Run, text: str, folder: Path) -> list[Run]:
        """Return the other runs of ./runs/NAME, if a run was found by its name `text` from `folder`."""
        near = os.path.normpath(folder / "runs" / text)
        others = (run for run in self._runs.values() if run.where == near and run != named)
        return [*others] if named.name == text and named.where != near else []

    def _in_folder(self, folder: Path) -> list[Run]:
        where = str(folder)
        return [run for run in self._runs.values() if run.where == where]

    def _likely(self, path: Path) -> Iterator[Run]:
        """Yield the runs that may have a log or a script: by its folder, by an id in its name, the newest."""
        above = {str(folder) for folder in path.parents}
        numbers = {*re.findall("[0-9]+", path.name)}
        of_jobs = {job.run for job in self._jobs.values() if job.id in numbers}
        newest = sorted(self._runs.values(), key=lambda run: run.created, reverse=True)
        near = [run for run in newest if run.where in above or run.name in of_jobs]
        yield from dict.fromkeys([*near, *newest[:SEARCHED]])

    def _with_file(self, path: Path) -> Iterator[Run]:
        """Yield the runs to which a log or a script belongs, the newest first."""
        for run in self._likely(path):
            for record in reversed(records.records(run.folder)):
                if path in (*_files_of(run, record), Path(record.script)) and record.run in ("", run.name):
                    yield run
            if path == run.folder / "job.slurm" and not run.shared:
                yield run

    def _add(self, run: Run, jobs: list[RunJob], folders: dict[str, Run], numbers: dict[str, int]) -> Run:
        """Enter a run; `folders` are those of the runs that share none, `numbers` the last of each name."""
        known = None if run.shared else folders.get(run.where)
        if known is None:
            of_jobs = (self._jobs[job.key].run for job in jobs if job.key in self._jobs)
            known = self._runs.get(next(of_jobs, ""))
        if known is None:
            known = run._replace(name=self._free(run.name, numbers))
        elif known.where != run.where and not known.folder.exists():  # it was moved
            known = known._replace(where=run.where)  # where it was, how its jobs ended could not be seen
            forgotten = [job for job in self._of(known.name) if not job.state]
            self._jobs |= {job.key: job._replace(ended=False) for job in forgotten}
        self._runs[known.name] = known
        for job in jobs:
            self._jobs.setdefault(job.key, job._replace(run=known.name))
        if not known.shared:
            folders[known.where] = known
        return known

    def _free(self, name: str, numbers: dict[str, int]) -> str:
        """Return a name that no run has: this one, or the name with the next number."""
        if name not in self._runs:
            return name
        free = numbers.get(name, 1) + 1
        while f"{name}-{free}" in self._runs:
            free += 1
        numbers[name] = free
        return f"{name}-{free}"

    def _change(self, key: str, **facts: Any) -> None:
        with self._changing():
            if job := self._jobs.get(key):
                self._jobs[key] = job._replace(**facts)

    def _of(self, run: str | None) -> list[RunJob]:
        return [job for job in self._jobs.values() if run is None or job.run == run]

    def _load(self) -> bytes:
        """Read the file if it has changed; return the contents if they are damaged."""
        data = b""
        with self._as_document_error(), contextlib.suppress(FileNotFoundError):
            data = files.read_own(self.file, MAX_BYTES)
        if data == self._data:
            return b""
        checksum, _, text = data.partition(b"\n")
        facts = _facts(text) if checksum == b"%d" % zlib.crc32(text) else _facts_of_lines(data)
        self._runs, self._jobs = facts or ({}, {})
        self._data = data if facts else None
        return b"" if facts else data

    def _repair(self, data: bytes) -> None:
        """Set damaged data aside, and enter the runs again whose folders it names."""
        aside = self.file.with_name(f"{self.file.name}.broken")
        files.put(aside, data, mode=files.PRIVATE)
        folders = set()
        for match in _FOLDER.findall(data):
            with contextlib.suppress(ValueError, OSError):
                path = Path(json.loads(match))
                folders |= {path} if path.is_dir() else set()
        for run, jobs in itertools.chain.from_iterable(map(_runs_in, sorted(folders))):
            self._add(run, jobs, {known.where: known for known in self._runs.values()}, {})
        what = f"the index of runs was damaged: it is now {aside}. The runs that it names were entered again"
        self._note(f"warning: {what}")
        self._note("  fix: if a run is missing, --scan of sbatchgen status takes the folder above it")

    @contextlib.contextmanager
    def _changing(self, wait_s: float = WRITE_S) -> Iterator[None]:
        """Lock the file against other commands, and replace the contents afterwards."""
        with self._as_document_error(), files.locked(self.file.with_suffix(".lock"), wait_s):
            if damaged := self._load():
                self._repair(damaged)
            self._data = None  # after an error the file is read again
            yield
            facts = [[*self._runs.values()], [*self._jobs.values()]]
            text = json.dumps(facts).encode()
            data = b"%d\n%s" % (zlib.crc32(text), text)
            files.put(self.file, data, mode=files.PRIVATE)
            self._data = data

    @contextlib.contextmanager
    def _as_document_error(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError as error:
            what = f"another command is writing the index of runs: {self.file}"
            raise DocumentError.of(what, fix="try again later") from error
        except OSError as error:
            what = f"the index of runs {self.file} can't be used: {error.strerror}"
            fix = f"see who may use it, and whether the disk is full: ls -l {word(str(self.file))}"
            raise DocumentError.of(what, fix=fix) from error


def _files_of(run: Run, record: Record) -> list[Path]:
    """Return the files that one job alone has: its script as it was submitted, and its logs."""
    from sbatchgen.jobs.runs.job_log import find_logs  # no submission has logs yet

    return [run.folder / f"job-{record.job}.slurm", *find_logs(record, errors=True)]


def _facts(text: bytes) -> tuple[dict[str, Run], dict[str, RunJob]] | None:
    """Return the runs and jobs in the text of an index; None if it is not as this module writes it."""
    try:
        runs, jobs = json.loads(text)
        of_runs, of_jobs = _columns(runs, _RUN), _columns(jobs, _JOB)
        by_kind: dict[type, list[Any]] = {str: [], float: [], bool: []}
        for kind, column in zip(_RUN + _JOB, of_runs + of_jobs, strict=True):
            by_kind[kind] += column
        words = os.fsencode("".join(by_kind[str]))
        fits = (
            all(folder.startswith("/") for folder in of_runs[1])
            and {*of_jobs[1]} <= {*of_runs[0]}
            and all(0 <= when < records.LATEST for when in by_kind[float])
        )
    except (ValueError, TypeError, RecursionError):
        return None
    if not fits or b"\0" in words:
        return None
    return (
        {run.name: run for run in map(Run._make, runs)},
        {job.key: job for job in map(RunJob._make, jobs)},
    )


def _facts_of_lines(data: bytes) -> tuple[dict[str, Run], dict[str, RunJob]] | None:
    """Return the runs and jobs in an index of 0.2.0, a change in each line; None for something else."""
    runs: dict[str, list[Any]] = {}
    jobs: dict[str, list[Any]] = {}
    try:
        for line in data.splitlines():
            checksum, _, text = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(text):
                return None
            kind, *values = json.loads(text)
            if kind == "gone":
                jobs.pop(values[0], None)
            else:
                {"run": runs, "job": jobs}[kind][values[0]] = values
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    submitted = {job[1] for job in jobs.values()}
    known = [run for run in runs.values() if run[0] in submitted]
    return _facts(json.dumps([known, [*jobs.values()]]).encode())


def _columns(rows: list[list[Any]], kinds: Sequence[type]) -> list[tuple[Any, ...]]:
    """Return the columns of a table; raise ValueError or TypeError for a row with other kinds of values."""
    if type(rows) is not list:
        raise TypeError(rows)
    columns = [*zip(*rows, strict=True)] if rows else [()] * len(kinds)
    for column, kind in zip(columns, kinds, strict=True):
        if not {*map(type, column)} <= {kind}:
            raise TypeError(kind)
    return columns


def scan(folder: Path, most_deep: int = 6) -> Iterator[tuple[Run, list[RunJob]] | None]:
    """Yield the runs of this user in a folder and below it; None for each record of another user.

    Links are not followed.
    """
    me = os.geteuid()
    for at, folders, names in os.walk(folder):
        here = Path(at)
        folders[:] = sorted(folders) if len(here.relative_to(folder).parts) < most_deep else []
        known = [here / name for name in names if name.startswith("job-") and name.endswith(".json")]
        if not known:  # as in the folder of each point of a sweep
            continue
        with contextlib.suppress(OSError):
            owner, *others = (path.lstat().st_uid for path in (here, *known))
            yield from (None for other in others if {owner, other} != {me})
            if owner == me:
                yield from _runs_in(here)


def _runs_in(folder: Path) -> Iterator[tuple[Run, list[RunJob]]]:
    by_name: dict[str, list[Record]] = {}
    for record in records.records(folder):
        by_name.setdefault(record.run or records.run_name(record.name), []).append(record)
    for name, several in by_name.items():
        run = Run(name=name, where=str(folder), shared=several[0].shared, created=several[0].submitted)
        facts = ((job.key, job.run, job.job, job.cluster, job.submitted) for job in several)
        yield run, [RunJob(*each, seen=each[-1]) for each in facts]
