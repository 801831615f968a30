"""Reads and writes the records of submissions: job-4711.json in the run folder, beside job-4711.slurm.

A record has the facts with which later commands find, explain and repeat the job. Until sbatch has answered,
the file is submitting.json. If the command is killed meanwhile, the record's key finds the job in squeue.
Files that another user can write, and malformed files, are ignored.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from sbatchgen import __version__
from sbatchgen.base import files
from sbatchgen.base.frozen import frozen
from sbatchgen.base.git import git, has_changes
from sbatchgen.base.units import is_utf8
from sbatchgen.check.sbatch.array import indices
from sbatchgen.jobs.modes import MODES, Mode
from sbatchgen.jobs.resolved.resolved_job import runs_one_by_one

FORMAT = 1  # the version of the file's format; it increases if a field gets another meaning
MAX_BYTES = 4 << 20  # bytes of a record that are read
SUBMITTING = "submitting.json"  # the file of a submission that sbatch has not answered yet
MAX_TASKS = 4_000_001  # the largest MaxArraySize of slurm.conf(5)
MAX_TIME_S = 1 << 37  # seconds since 1970: a later time of submission is damaged; datetime can show this one
# "job-4711.json", and "job-20261120-213805.json" of a run without Slurm
_FILE_NAME = re.compile(r"job-([0-9]{1,19}|[0-9]{8}-[0-9]{6}(?:-[0-9]{1,9})?)\.json")
_NOT_IN_RUN_NAME = re.compile(r"[^\w.+-]+")  # the space in "my job"


@frozen(kw_only=True)
class ResolvedValue:
    """A value of a resolved job, and where it was set, as `explain` shows them."""

    name: str  # the key, or the option with its dashes
    value: str
    by: str  # the layer that set the value, such as "default"
    at: str  # the place where it was written


@frozen(kw_only=True)
class Code:
    """The code that a job runs."""

    folder: str  # the folder of the code; the root of the repository, if git knows it
    commit: str = ""  # the commit of git; "" without one
    dirty: bool = False  # whether the files that git knows differ from the commit
    snapshot: str = ""  # the folder of the copy that the job runs; "" if it runs the files in `folder`
    files: int = 0  # the number of copied files
    size: int = 0  # the bytes of the copied files
    added: str = ""  # the files and folders of --snapshot-file, which git does not know

    @property
    def at(self) -> str:
        """The commit in words: "commit 1a2b3c4d5e6f, with changes", or "no commit"."""
        if not self.commit:
            return "no commit"
        return f"commit {self.commit[:12]}{', with changes' if self.dirty else ''}"


def code_in(folder: Path) -> Code:
    """Return the facts about the code in a folder: its repository and commit, if git knows the folder."""
    root, commit = git(folder, "rev-parse", "--show-toplevel"), git(folder, "rev-parse", "--verify", "HEAD")
    if not root or not commit:
        return Code(folder=str(folder))
    return Code(folder=root, commit=commit, dirty=has_changes(Path(root)))


@frozen(kw_only=True)
class Process:
    """The leader of the process group of a run without Slurm."""

    pid: int
    born: int  # when it started, in ticks since the boot; a later process with the same pid has another time
    host: str  # the name of its machine
    boot: str  # Linux's id of the machine's boot


class TypedWords(NamedTuple):
    """The words of a command that renders a script."""

    job: tuple[str, ...]  # the mode and the options
    trainer: tuple[str, ...]  # the words after `--`, which are the trainer's arguments


@frozen(kw_only=True)
class Record:
    """The facts about a submission, from which later commands find, explain and repeat the job."""

    key: str = ""  # identifies the submission, also in the index and in the script's path
    run: str = ""  # the name of its run
    shared: bool  # whether several runs have their folders in the run's folder
    name: str  # the job's name
    job: str = ""  # its id; in a run without Slurm, the time of its start
    cluster: str = ""  # the cluster that sbatch named; "" if it named none
    submitted: float = 0.0  # seconds since 1970
    folder: str  # the folder of submission
    command: tuple[str, ...] = ()  # the command that renders its script again; empty for a finished script
    script: str = ""  # the file of a finished script; "" for a rendered one
    # The options of sbatch with which a finished script was submitted, such as "--mem=64G"
    options: tuple[str, ...] = ()
    log: str = ""  # the path of its log, with Slurm's patterns such as %j
    errors: str = ""  # the path of its stderr; "" if stderr is in the log
    array: str = ""  # the elements of an array, as in --array
    first: int = 0  # the number of the sweep's point that index 0 of the array runs
    profile: str = ""  # the profile's name; "" without one
    mode: str = ""  # the mode of a rendered job; "" for other jobs, and in records before 0.4
    version: str = __version__  # the version of sbatchgen
    values: tuple[ResolvedValue, ...] = ()  # the values of the resolved job
    code: Code | None = None  # the code that it runs, if known
    # "CHECKSUM NAME" for each file of its trainer, as it was at the submission
    reads: tuple[str, ...] = ()
    surroundings: str = ""  # a checksum of the variables and settings files that its script and trainer name
    process: Process | None = None  # its process if it runs without Slurm

    @property
    def typed_words(self) -> TypedWords:
        """The words of its command after `sbatchgen render`."""
        words = self.command[2:]
        cut = words.index("--") if "--" in words else len(words)
        return TypedWords(words[:cut], words[cut + 1 :])

    @property
    def is_one_training(self) -> bool:
        """Whether the job is an array in which each task continues the training of the task before it."""
        return self.command[1:2] == ("render",) and runs_one_by_one(self.array)

    @property
    def known_mode(self) -> Mode | None:
        """The mode of the job; None for a finished script, or if the mode is not known."""
        mode_in_command = "".join(self.command[2:3])  # "ddp" in "sbatchgen render ddp"
        return MODES.get(self.mode or mode_in_command)

    def value(self, name: str) -> str:
        """Return the value of a key or an option, such as "trainer" or "--time"; "" if it is not set."""
        return next((setting.value for setting in reversed(self.values) if setting.name == name), "")

    def has_default(self, name: str) -> bool:
        """Return whether a key or an option has its default value because no layer sets it."""
        return any(setting.name == name and setting.by == "default" for setting in self.values)


def run_name(name: str) -> str:
    """Return the name of a run for a job's name: a word without characters that need quoting."""
    return _NOT_IN_RUN_NAME.sub("-", name).strip("-.") or "job"


def record_file(run_dir: Path, job: str) -> Path:
    """Return the file with the record of a job."""
    return run_dir / f"job-{job}.json"


def write_submitting(run_dir: Path, record: Record) -> None:
    """Write the record of a submission before sbatch is called; raises OSError."""
    _write(run_dir / SUBMITTING, record)


def write_accepted(run_dir: Path, record: Record) -> None:
    """Write the record of an accepted job; raises OSError.

    On a full disk, the record that `write_submitting` wrote is renamed instead.
    """
    try:
        _write(record_file(run_dir, record.job), record)
    except OSError:
        if not (run_dir / SUBMITTING).exists():  # a run without Slurm
            raise
        (run_dir / SUBMITTING).rename(record_file(run_dir, record.job))
    else:
        remove_submitting(run_dir)


def remove_submitting(run_dir: Path) -> None:
    """Remove the record that `write_submitting` wrote."""
    with contextlib.suppress(OSError):
        (run_dir / SUBMITTING).unlink()


def _write(file: Path, record: Record) -> None:
    text = json.dumps({"format": FORMAT, **dataclasses.asdict(record)}, indent=1)
    files.put(file, text.encode() + b"\n", mode=files.PRIVATE)


def read_submitting(run_dir: Path) -> Record | None:
    """Return the record that `write_submitting` wrote, if it is still there.

    Then the command was killed, or sbatch's answer was lost.
    """
    return _read(run_dir / SUBMITTING)


def read_record(run_dir: Path, job: str) -> Record | None:
    """Return the record of a job; None if there is no valid one."""
    return _read_accepted(record_file(run_dir, job))


def _read_accepted(file: Path) -> Record | None:
    """Return the record of an accepted job, with the job's id from the name of the file."""
    name = _FILE_NAME.fullmatch(file.name)
    record = _read(file) if name else None
    return dataclasses.replace(record, job=name[1]) if name and record else None


def _read(file: Path) -> Record | None:
    """Return the record in a file; None if it can't be read, or if a value is impossible."""
    try:
        text = files.read_own(file, MAX_BYTES)
        if b"\\u0000" in text:  # no path, word or name has a NUL
            return None
        data = json.loads(text)
        if data.pop("format") != FORMAT:
            return None
        record: Record = as_typed(data, Record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    words = (record.key, record.cluster, record.process.host if record.process else "")
    tasks = sum(map(len, indices(record.array) or ()))
    in_range = 0 <= record.submitted < MAX_TIME_S and tasks <= MAX_TASKS and 0 <= record.first <= MAX_TASKS
    has_valid_names = all(map(is_utf8, words)) and record.run in ("", run_name(record.run))
    return record if in_range and has_valid_names else None


def records(run_dir: Path) -> list[Record]:
    """Return the records of a run folder, the oldest first; nothing if the folder can't be read."""
    valid: list[Record] = []
    with contextlib.suppress(OSError):
        with os.scandir(run_dir) as entries:
            record_files = [run_dir / entry.name for entry in entries if _FILE_NAME.fullmatch(entry.name)]
        valid = [record for record in map(_read_accepted, record_files) if record]
    return sorted(valid, key=lambda record: (record.submitted, record.job))


# The types of a record's fields by their names; cached, because ten thousand records may be read
_field_types: Callable[[Any], dict[str, Any]] = functools.cache(get_type_hints)


def as_typed(value: Any, kind: Any) -> Any:
    """Return a value of JSON as a value of the type `kind`, such as Record.

    Keys that the type lacks are ignored, because a newer release may have written them. Raises TypeError or
    ValueError if the value does not fit the type.
    """
    if dataclasses.is_dataclass(kind):
        types_by_name = _field_types(kind)
        if not isinstance(value, Mapping):
            raise TypeError(kind)
        fields = {
            name: as_typed(item, types_by_name[name]) for name, item in value.items() if name in types_by_name
        }
        return kind(**fields)  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(kind)
        return tuple(as_typed(item, arguments[0]) for item in value)
    if origin in (Union, types.UnionType):  # "Code | None"
        return None if value is None else as_typed(value, arguments[0])
    if kind is float and type(value) is int and abs(value) < MAX_TIME_S:
        return float(value)
    if type(value) is not kind:
        raise TypeError(kind)
    return value


def point_numbers(record: Record, array: str, point_count: int = MAX_TASKS) -> Iterable[int]:
    """Yield the numbers of the points of a sweep that elements of an array run, if below `point_count`.

    `array` has the elements as Slurm writes them: "3", "0-9%2" or "[5-9%2]".
    """
    for span in indices(array) or ():
        end = min(span.stop, point_count - record.first)
        yield from (record.first + index for index in range(span.start, end, span.step))
