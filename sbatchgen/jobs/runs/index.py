"""The index of a user's runs: a file in XDG_STATE_HOME with the names, folders and jobs of the runs.

Commands find a run by its name, a job's id or a path in this index. The file holds a checksum and a line of
JSON. The index is a cache: no job needs it, and `scan` finds its runs again in their folders. Only the states
of jobs are not in the folders. Several commands may use the index at the same time. They write one after the
other, and replace the file.
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

# Seconds to wait for the lock before a submission is written, and before states are written. A submission
# must not be lost; for a state the next command can ask Slurm again.
SUBMISSION_LOCK_S, STATES_LOCK_S = 10.0, 1.0
MAX_SEARCHED_RUNS = 200  # so many newest runs are searched for a file whose path does not tell its run
MAX_SEEN_AGE_S = 60.0  # seconds after which an unchanged state is written again, with the time it was seen
MAX_BYTES = 256 << 20  # the largest file that is read
# States of a job without an id: sbatch has not answered yet, or its answer was lost.
SUBMITTING, LOST = "SUBMITTING", "LOST"
_RUN_TYPES = [str, str, bool, float]  # the types in JSON of the fields of Run, in their order
_JOB_TYPES = [str, str, str, str, float, str, bool, str, float]  # the same for RunJob
# A text in JSON that begins with a slash, such as "/home/me/runs/ddp": the folder of a run in damaged data.
_FOLDER = re.compile(rb'"/(?:[^"\\\n]|\\.)*"')


class Run(NamedTuple):
    """A run: a name and a run folder for one or more jobs."""

    name: str  # the job's name, with a number if another run already has the name
    path: str  # the run folder as a text, because making ten thousand Paths takes long
    shared: bool  # whether the folder holds the folders of several runs, as runs/${SLURM_JOB_ID} does
    created: float  # seconds since 1970

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.path)


class RunJob(NamedTuple):
    """A job of a run, as it was last seen."""

    key: str  # names the submission; it is in the path of the script that sbatch gets
    run: str  # the run's name
    id: str  # its id as sbatch prints it; "" if sbatch printed none
    cluster: str  # its cluster as sbatch named it; "" if sbatch named none
    submitted: float  # seconds since 1970
    state: str = ""  # SUBMITTING, LOST, or the long name of a state of Slurm; "" if it is not known
    ended: bool = False  # whether `state` is final
    says: str = ""  # more about the state, for people
    seen: float = 0.0  # when the state was seen, in seconds since 1970


class RunWithJobs(NamedTuple):
    """A run and its jobs, to be entered in the index."""

    run: Run
    jobs: list[RunJob]


def index_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the index."""
    default = ".local/state"
    state = files.user_folder(environment, "XDG_STATE_HOME", default) or Path("~", default).expanduser()
    return Path(state, "sbatchgen", "runs.jsonl")


class Index:
    """The runs and jobs in the file, which is read again after other commands have replaced it.

    Methods raise DocumentError if the file can't be used. A damaged file is repaired, and `note` is called
    with each line of a warning.
    """

    def __init__(self, file: Path, note: Callable[[str], None] = lambda _: None) -> None:
        """Read the index; make its folder if it is missing, and repair a damaged file."""
        self.file, self._note = file, note
        self._data: bytes | None = None
        self._runs: dict[str, Run] = {}
        self._jobs: dict[str, RunJob] = {}
        with self._as_document_error():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._load():
            with self._locked_for_change(STATES_LOCK_S):
                pass  # entering the context repairs the damaged file

    def begin(self, key: str, folder: Path, name: str, *, shared: bool) -> Run:
        """Enter a submission before sbatch is called, and return its run.

        All submissions into a folder belong to one run, unless the folder is `shared` by several runs. A new
        run gets a number after its name if another run has the name.
        """
        now = time.time()
        job = RunJob(key, name, "", "", now, SUBMITTING, seen=now)
        return self.add([RunWithJobs(Run(name, str(folder), shared, now), [job])])[0]

    def add(self, runs: Iterable[RunWithJobs]) -> list[Run]:
        """Enter runs with those of their jobs that the index lacks; return the runs as the index has them."""
        with self._locked_for_change():
            return self._add_all(runs)

    def accept(self, key: str, job: str, cluster: str = "") -> None:
        """Enter the id that sbatch gave to a submission, and its cluster if sbatch named one."""
        self._change(key, id=job, cluster=cluster, state="", seen=time.time())

    def mark_lost(self, key: str) -> None:
        """Set the state of a submission to LOST, because it is not known whether sbatch accepted it."""
        self._change(key, state=LOST)

    def remove(self, key: str) -> None:
        """Remove a submission that was refused, and its run if the run has no other job."""
        with self._locked_for_change():
            job = self._jobs.pop(key, None)
            if job and not self._jobs_of(job.run):
                del self._runs[job.run]

    def update_states(self, jobs: Iterable[RunJob]) -> None:
        """Write the states of jobs that were just seen, if they have changed or were written long ago."""
        changed = []
        for job in jobs:
            old = self._jobs.get(job.key)
            if old and (old._replace(seen=job.seen) != job or old.seen + MAX_SEEN_AGE_S < job.seen):
                changed.append(job)
        if changed:
            with self._locked_for_change(STATES_LOCK_S):  # meanwhile another command may have removed a job
                self._jobs |= {job.key: job for job in changed if job.key in self._jobs}

    def runs(self, *, since: float = 0.0) -> list[Run]:
        """Return the runs, the oldest first.

        With `since`, return only runs with a job that has not ended, or that was submitted or seen after this
        time.
        """
        self._load()
        jobs = self._jobs.values()
        recent = {job.run for job in jobs if not job.ended or max(job.seen, job.submitted) > since}
        chosen = [run for run in self._runs.values() if not since or run.name in recent]
        return sorted(chosen, key=lambda run: run.created)

    def jobs(self, run: str | None = None) -> list[RunJob]:
        """Return the jobs of a run, or of all runs, the oldest first."""
        self._load()
        return sorted(self._jobs_of(run), key=lambda job: job.submitted)

    def find(self, text: str, folder: Path) -> list[Run]:
        """Return the runs that `text` means: a run's name, the id of a job, a run folder, a log or a script.

        Paths are relative to `folder`. A run's name always means this run, even if ./runs/NAME is another.
        """
        self._load()
        if named := self._runs.get(text):
            return [named]
        id_ = text.partition("_")[0]  # "4711_3" is a task of job 4711
        names = dict.fromkeys(job.run for job in self._jobs.values() if job.id == id_ and id_.isdecimal())
        path = Path(os.path.normpath(folder / text))
        runs = [self._runs[name] for name in names] or self._runs_in_folder(path)
        if runs or files.is_too_long(path) or not path.is_file():
            return runs
        return [*itertools.islice(self._runs_with_file(path), 1)]

    def job_of(self, run: Run, text: str, folder: Path) -> str:
        """Return the id of the job that `text` means, if `find` has found its run; "" for the whole run.

        `text` may be the id of the job, also with a task (4711_3) or with a point of a sweep (4711/3). It may
        be the path of the job's log or script, relative to `folder`.
        """
        id_ = text.partition("_")[0].partition("/")[0]
        if run.name == text:
            return ""
        if id_.isdecimal() and any(job.id == id_ for job in self._jobs_of(run.name)):
            return id_
        path = Path(os.path.normpath(folder / text))
        submitted = reversed(records.records(run.folder)) if path.is_file() else ()
        return next((record.job for record in submitted if path in _files_of(run, record)), "")

    def others_in_folder(self, named: Run, text: str, folder: Path) -> list[Run]:
        """Return the runs in the folder ./runs/NAME, which the user may have meant by NAME.

        `text` is the typed word, and `named` is the run that it means.
        """
        default_folder = os.path.normpath(folder / "runs" / text)
        others = (run for run in self._runs.values() if run.path == default_folder and run != named)
        return [*others] if named.name == text and named.path != default_folder else []

    def _runs_in_folder(self, folder: Path) -> list[Run]:
        path = str(folder)
        return [run for run in self._runs.values() if run.path == path]

    def _likely_runs(self, path: Path) -> Iterator[Run]:
        """Yield the runs to which a file may belong, the likeliest first.

        First come runs above the file, and runs with a job whose id is in the file's name; then the newest.
        """
        parents = {str(folder) for folder in path.parents}
        numbers = {*re.findall("[0-9]+", path.name)}
        with_job = {job.run for job in self._jobs.values() if job.id in numbers}
        newest_first = sorted(self._runs.values(), key=lambda run: run.created, reverse=True)
        likely = [run for run in newest_first if run.path in parents or run.name in with_job]
        yield from dict.fromkeys([*likely, *newest_first[:MAX_SEARCHED_RUNS]])

    def _runs_with_file(self, path: Path) -> Iterator[Run]:
        """Yield the runs to which a log or a script belongs, the likely runs first."""
        for run in self._likely_runs(path):
            for record in reversed(records.records(run.folder)):
                if path in (*_files_of(run, record), Path(record.script)) and record.run in ("", run.name):
                    yield run
            if path == run.folder / "job.slurm" and not run.shared:
                yield run

    def _add_all(self, runs: Iterable[RunWithJobs]) -> list[Run]:
        """Enter runs with their jobs, as `add` does, without the lock."""
        # Reversed, so that the first of several runs with the same folder takes the jobs.
        by_folder = {run.path: run for run in reversed(self._runs.values()) if not run.shared}
        last_numbers: dict[str, int] = {}
        old_paths, old_jobs = {name: run.path for name, run in self._runs.items()}, [*self._jobs.values()]
        entered = [self._add(run, jobs, by_folder, last_numbers) for run, jobs in runs]
        # The logs in a moved folder may show how jobs without a state ended, so they are read again.
        moved = {name for name, path in old_paths.items() if self._runs[name].path != path}
        without_state = [job for job in old_jobs if job.run in moved and not job.state]
        self._jobs |= {job.key: job._replace(ended=False) for job in without_state}
        return entered

    def _add(
        self, run: Run, jobs: list[RunJob], by_folder: dict[str, Run], last_numbers: dict[str, int]
    ) -> Run:
        """Enter a run with its jobs, and return the run as the index has it.

        `by_folder` has the runs that do not share their folders, by the folders' paths. `last_numbers` has
        the last number that was added to each name, so that many runs with one name are entered fast.
        """
        entered = None if run.shared else by_folder.get(run.path)
        if entered is None:
            runs_of_jobs = (self._jobs[job.key].run for job in jobs if job.key in self._jobs)
            entered = self._runs.get(next(runs_of_jobs, ""))
        if entered is None:
            entered = run._replace(name=self._free_name(run.name, last_numbers))
        elif entered.path != run.path and not os.access(entered.path, os.F_OK):
            entered = entered._replace(path=run.path)  # the folder was moved
        self._runs[entered.name] = entered
        for job in jobs:
            self._jobs.setdefault(job.key, job._replace(run=entered.name))
        if not entered.shared:
            by_folder[entered.path] = entered
        return entered

    def _free_name(self, name: str, last_numbers: dict[str, int]) -> str:
        """Return a name that no run has: `name`, or `name` with the next number, such as "ddp-2"."""
        if name not in self._runs:
            return name
        number = last_numbers.get(name, 1) + 1
        while f"{name}-{number}" in self._runs:
            number += 1
        last_numbers[name] = number
        return f"{name}-{number}"

    def _change(self, key: str, **fields: Any) -> None:
        """Change fields of a job; do nothing if another command has removed the job."""
        with self._locked_for_change():
            if job := self._jobs.get(key):
                self._jobs[key] = job._replace(**fields)

    def _jobs_of(self, run: str | None) -> list[RunJob]:
        return [job for job in self._jobs.values() if run is None or job.run == run]

    def _load(self) -> bytes:
        """Read the file if another command has replaced it.

        Return the contents of a damaged file, and b"" for a sound or a missing file.
        """
        data = b""
        with self._as_document_error(), contextlib.suppress(FileNotFoundError):
            data = files.read_own(self.file, MAX_BYTES)
        if data == self._data:
            return b""
        checksum, _, text = data.partition(b"\n")
        is_intact = checksum == b"%d" % zlib.crc32(text)
        contents = _parsed(text) if is_intact else _parsed_journal(data)
        self._runs, self._jobs = contents or ({}, {})
        self._data = data if contents else None
        return b"" if contents else data

    def _repair(self, data: bytes) -> None:
        """Set damaged data aside, and enter the runs in all folders that the data name."""
        aside = self.file.with_name(f"{self.file.name}.broken")
        files.put(aside, data, mode=files.PRIVATE)
        folders = set()
        for match in _FOLDER.findall(data):
            with contextlib.suppress(ValueError, OSError):
                path = Path(json.loads(match))
                folders |= {path} if path.is_dir() else set()
        self._add_all(itertools.chain.from_iterable(map(_runs_in, sorted(folders))))
        what = (
            f"the index of runs was damaged. Its runs were entered again; the damaged file is kept as {aside}"
        )
        self._note(f"warning: {what}")
        self._note("  fix: if a run is missing, --scan of sbatchgen status takes the folder above it")

    @contextlib.contextmanager
    def _locked_for_change(self, wait_s: float = SUBMISSION_LOCK_S) -> Iterator[None]:
        """Lock the file against other commands and read it; write it when the context ends without an error.

        A damaged file is repaired. Raises DocumentError if another command holds the lock for `wait_s`.
        """
        with self._as_document_error(), files.locked(self.file.with_suffix(".lock"), wait_s):
            if damaged := self._load():
                self._repair(damaged)
            self._data = None  # after an error in the context, the next `_load` reads the file again
            yield
            text = json.dumps([[*self._runs.values()], [*self._jobs.values()]]).encode()
            data = b"%d\n%s" % (zlib.crc32(text), text)
            files.put(self.file, data, mode=files.PRIVATE)
            self._data = data

    @contextlib.contextmanager
    def _as_document_error(self) -> Iterator[None]:
        """Raise a DocumentError with a fix in place of an OSError about the file or its lock."""
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
    """Return the files that belong to one job only: its script as it was submitted, and its logs."""
    from sbatchgen.jobs.runs.job_log import find_logs  # here, because a submission needs no logs

    return [run.folder / f"job-{record.job}.slurm", *find_logs(record, with_stderr=True)]


class _Contents(NamedTuple):
    """The contents of an index."""

    runs: dict[str, Run]  # by their names
    jobs: dict[str, RunJob]  # by their keys


def _parsed(text: bytes) -> _Contents | None:
    """Return the contents of an index from its line of JSON; None if the line is malformed.

    The types are checked by columns, because that is faster than a check of each row.
    """
    try:
        runs, jobs = json.loads(text)
        run_columns, job_columns = _columns(runs, _RUN_TYPES), _columns(jobs, _JOB_TYPES)
        (run_names, folders), runs_of_jobs = run_columns[:2], job_columns[1]
        values: dict[type, list[Any]] = {str: [], float: [], bool: []}
        for type_, column in zip(_RUN_TYPES + _JOB_TYPES, run_columns + job_columns, strict=True):
            values[type_] += column
        texts = os.fsencode("".join(values[str]))  # raises ValueError for text that no path can hold
        is_sound = (
            all(folder.startswith("/") for folder in folders)
            and {*runs_of_jobs} <= {*run_names}
            and all(0 <= seconds < records.MAX_TIME_S for seconds in values[float])
        )
    except (ValueError, TypeError, RecursionError):
        return None
    if not is_sound or b"\0" in texts:
        return None
    return _Contents(
        {run.name: run for run in map(Run._make, runs)},
        {job.key: job for job in map(RunJob._make, jobs)},
    )


def _parsed_journal(data: bytes) -> _Contents | None:
    """Return the contents of an index that version 0.2.0 wrote; None for other data.

    Each line of such an index is a change: it enters a run, enters or changes a job, or removes a job.
    """
    runs: dict[str, list[Any]] = {}
    jobs: dict[str, list[Any]] = {}
    try:
        for line in data.splitlines():
            checksum, _, text = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(text):
                return None
            change, *values = json.loads(text)
            if change == "gone":  # the job was removed
                jobs.pop(values[0], None)
            else:
                {"run": runs, "job": jobs}[change][values[0]] = values
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    runs_of_jobs = {job[1] for job in jobs.values()}
    with_jobs = [run for run in runs.values() if run[0] in runs_of_jobs]
    return _parsed(json.dumps([with_jobs, [*jobs.values()]]).encode())


def _columns(rows: list[list[Any]], types: Sequence[type]) -> list[tuple[Any, ...]]:
    """Return the columns of a table; raise ValueError or TypeError if a value is not of its column's type."""
    if type(rows) is not list:
        raise TypeError(rows)
    columns = [*zip(*rows, strict=True)] if rows else [()] * len(types)
    for column, type_ in zip(columns, types, strict=True):
        if not {*map(type, column)} <= {type_}:
            raise TypeError(type_)
    return columns


def scan(folder: Path, max_depth: int = 6) -> Iterator[RunWithJobs | None]:
    """Yield the runs of this user in a folder and below it, for `Index.add`; links are not followed.

    Yield None for each record of another user, so that the caller can count these records.
    """
    me = os.geteuid()
    for path, subfolders, names in os.walk(folder):
        inner = Path(path)
        subfolders[:] = sorted(subfolders) if len(inner.relative_to(folder).parts) < max_depth else []
        record_files = [inner / name for name in names if name.startswith("job-") and name.endswith(".json")]
        if not record_files:  # the folder of a point of a sweep, for example
            continue
        with contextlib.suppress(OSError):
            folder_owner = inner.lstat().st_uid
            yield from (None for owner in files.owners(record_files) if {folder_owner, owner} != {me})
            if folder_owner == me:
                yield from _runs_in(inner)


def _runs_in(folder: Path) -> Iterator[RunWithJobs]:
    """Yield the runs in a run folder, with their jobs, from its records."""
    records_by_run: dict[str, list[Record]] = {}
    for record in records.records(folder):
        records_by_run.setdefault(record.run or records.run_name(record.name), []).append(record)
    for name, submissions in records_by_run.items():
        oldest = submissions[0]
        run = Run(name=name, path=str(folder), shared=oldest.shared, created=oldest.submitted)
        jobs = [
            RunJob(each.key, each.run, each.job, each.cluster, each.submitted, seen=each.submitted)
            for each in submissions
        ]
        yield RunWithJobs(run, jobs)
