"""Finds jobs that the user did not submit with sbatchgen, for the commands that look at jobs.

The user has submitted such a job with plain sbatch or another program, or a colleague has. There is no record
of its submission that this user can read. The facts come from Slurm, from logs, and from those files in a
colleague's run folder that others can read. Nothing in this module changes a job.
"""

import contextlib
import glob
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import CommandLineError, DocumentError, SbatchgenError, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine.trust import user_name
from sbatchgen.base.quoting import word
from sbatchgen.base.units import Duration
from sbatchgen.check.sbatch.array import indices
from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.check.script.more_options import with_options
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.slurm import any_job
from sbatchgen.jobs.slurm.any_job import JOB_ID, JobWithFiles
from sbatchgen.jobs.slurm.queue import SlurmJob

DEFAULT_LOG, DEFAULT_LOG_OF_TASK = "slurm-%j.out", "slurm-%A_%a.out"  # sbatch(1), --output
# A job without a run folder gets the path LOG/none as its run folder: LOG is a file, so nothing can be there.
NO_RUN_FOLDER = "none"
FIRST_BYTES = 8192  # bytes at the start of a file that tell a log from a script
MAX_SCRIPT_BYTES = 4 << 20  # bytes of a script that are read
MAX_LOGS = 20  # the newest logs of a folder, for which Slurm is asked
_LOG_NAME = re.compile(r"slurm-([1-9][0-9]{0,9}(?:_[0-9]{1,7})?)\.out")  # "slurm-4711_3.out"
_RECORD_NAME = re.compile(r"job-([1-9][0-9]{0,18})\.(?:json|slurm)")  # "job-4711.json"
_SCRIPT_SUFFIXES = (".sh", ".slurm", ".sbatch", ".bash")
_NO_LOG_SUFFIXES = (".py", ".yaml", ".yml", ".json", ".ipynb", ".toml", ".csv")
_OUTPUT_OPTION = re.compile(r"(?:-o|--output)(?:=|$)")  # a word of sbatch's command line: "--output=FILE"


@frozen(kw_only=True)
class PlainJob:
    """A job that the user did not submit with sbatchgen, or a log whose job is not known any more."""

    word: str  # the word with which the user named it, and can name it again
    id: str  # its id for Slurm's commands: "4711", "4711_3"; "" if it is not known
    rows: tuple[SlurmJob, ...] = ()  # the job, or each task of an array; empty if Slurm does not know it
    folder: Path  # the run folder of a colleague's run; else a path that does not exist
    record: Record  # a record like those of submissions, with the fields that are known
    # Its script, with the time limit and the memory that Slurm reports; None if the script is not known
    script: JobScript | None = None
    line: str = ""  # the command line of its submission, if Slurm keeps it
    owner: str = ""  # the user who owns the job; "" if it is the user's own, or not known
    problems: tuple[str, ...] = ()  # why its log can't be read

    @property
    def row(self) -> SlurmJob | None:
        """The row of the job or of the chosen task; None if Slurm does not know the job."""
        return next((row for row in self.rows if row.id == self.id), next(iter(self.rows), None))

    @property
    def newest_checkpoint(self) -> Path | None:
        """The newest checkpoint in a colleague's run folder that can be read; None without one."""
        matches = [path for path in self.folder.glob("checkpoints/*.pt") if os.access(path, os.R_OK)]
        return next(reversed(files.oldest_first(matches)), None)


def find(word_: str, folder: Path, environment: Mapping[str, str], task: str = "") -> PlainJob | None:
    """Return the job that a word names by its id, its log, its script, or a colleague's run folder.

    Return None for any other word. A path is relative to `folder`. `task` chooses a task of an array. Raises
    CommandLineError for a file that is neither a log nor a script, and for an unknown id or task. Raises
    DocumentError for a file that can't be read.
    """
    path = Path(os.path.normpath(folder / word_))
    if files.is_too_long(path):
        return None
    if path.is_dir():
        return _find_in_folder(word_, path, environment, task)
    if os.path.lexists(path):
        return _find_by_file(word_, path, environment, task)
    if match := JOB_ID.fullmatch(word_):
        return _find_by_id(word_, match[1], task or match[2] or "", folder, environment)
    return None


def logs_in(folder: Path) -> list[Path]:
    """Return the newest logs in a folder that have Slurm's default name, the newest last."""
    matches = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if _LOG_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    matches.append((entry.stat().st_mtime, Path(entry.path)))
    return [path for _, path in sorted(matches)[-MAX_LOGS:]]


def jobs_of_logs(paths: Sequence[Path], environment: Mapping[str, str]) -> list[PlainJob]:
    """Return the jobs of those logs that have Slurm's default name. Slurm is asked once about all jobs."""
    ids = {path: match[1] for path in paths if (match := _LOG_NAME.fullmatch(path.name))}
    answers: list[JobWithFiles] = []
    with contextlib.suppress(SlurmError):
        answers = any_job.any_jobs(
            [*dict.fromkeys(id_.partition("_")[0] for id_ in ids.values())], environment
        )
    jobs = []
    for path, id_ in ids.items():
        with_log = [job for job in answers if job.row.id == id_ and _is_log_of(job, path)]
        if with_log:
            jobs.append(_known_job(str(path), with_log, with_log[0], environment))
        else:  # Slurm has forgotten the job, or has given its id to another job
            jobs.append(_forgotten_job(str(path), path, id_))
    return jobs


def _find_by_id(word_: str, id_: str, task: str, folder: Path, environment: Mapping[str, str]) -> PlainJob:
    """Return the job with an id; if Slurm does not know it, the job of the log in `folder` with this id.

    Raises CommandLineError if there is neither, and SlurmError if Slurm does not answer and there is no log.
    """
    no_answer = None
    try:
        tasks = any_job.any_jobs([id_], environment)
    except SlurmError as error:  # the log of the job may still be here
        tasks, no_answer = [], error
    if tasks:
        return _known_job(word_, tasks, _chosen_task(tasks, task, id_), environment)
    name = f"slurm-{id_}_{task}.out" if task else f"slurm-{id_}.out"
    if (folder / name).is_file():
        return _forgotten_job(word_, folder / name, f"{id_}_{task}" if task else id_)
    if no_answer:
        raise no_answer
    what = f"Slurm knows no job {id_} any more, and this folder has no {name}"
    fix = "name its log; or one of the runs that sbatchgen status --all lists"
    raise CommandLineError.of(what, fix=fix)


def _may_have_task(waiting: str, task: str) -> bool:
    """Return whether the tasks in a row of squeue for waiting tasks, such as [0-3,7%2], may include a task.

    squeue cuts off a long list of tasks. A list that was cut off can't be parsed, and may include any task.
    """
    if not waiting.startswith("["):
        return False
    ranges = indices(waiting.strip("[]").partition("%")[0])
    return ranges is None or any(int(task) in numbers for numbers in ranges)


def _chosen_task(tasks: Sequence[JobWithFiles], task: str, id_: str) -> JobWithFiles:
    """Return the task of an array that the user named; without `task`, the first failed, else the last run.

    A job without an array is its only task. Raises CommandLineError if the array has no such task.
    """
    if task:
        with_task = [job for job in tasks if job.row.task == task]
        waiting = [job for job in tasks if _may_have_task(job.row.task, task)]
        if with_task or waiting:
            return (with_task or waiting)[0]
        what = f"job {id_} has no task {task}"
        raise CommandLineError.of(what, fix=f"sbatchgen status {id_} shows its tasks")
    tasks = sorted(tasks, key=lambda job: _id_and_task(job.row))
    failed = (job for job in tasks if job.row.state.ended and job.row.state.name != "COMPLETED")
    ran = [job for job in tasks if job.row.node_list or job.row.used_s]
    return next(failed, (ran or [*tasks])[-1])


def _no_task(why: str) -> SbatchgenError:
    """Return the error for a task of a job whose tasks are not known."""
    return CommandLineError.of(why, at="--task", fix="leave it out, or name the log of the task")


def _id_and_task(row: SlurmJob) -> tuple[int, int]:
    """Return the key that sorts rows by job and task; the row that waiting tasks share comes first."""
    return row.base_id, int(row.task) if row.task.isdecimal() else -1


def _find_by_file(word_: str, path: Path, environment: Mapping[str, str], task: str) -> PlainJob:
    """Return the job of a log, or the newest job of a script."""
    try:
        first_bytes = files.read_start(path, FIRST_BYTES)
    except OSError as error:
        owner = ""
        with contextlib.suppress(OSError):
            owner = user_name(path.stat().st_uid)
        whose = f"; it belongs to {owner}" if owner and not os.access(path, os.R_OK) else ""
        raise DocumentError.of(f"can't read {path}: {error.strerror or error}{whose}") from error
    has_script_lines = first_bytes.startswith((b"#!", b"#SBATCH ")) or b"\n#SBATCH " in first_bytes
    if has_script_lines or path.suffix in _SCRIPT_SUFFIXES:
        return _find_by_script(word_, path, environment, task)
    if b"\0" in first_bytes or path.suffix in _NO_LOG_SUFFIXES:
        kind = "is not text" if b"\0" in first_bytes else "is not a log"
        fix = "name the log of a job, its script, or its id"
        raise CommandLineError.of(f"{word_} {kind}", fix=fix)
    match = _LOG_NAME.fullmatch(path.name)
    if task and not (match and match[1].endswith(f"_{task}")):
        raise _no_task(f"{word_} is the log of one job or task")
    with contextlib.suppress(SlurmError):
        with_same_id = any_job.any_jobs([match[1].partition("_")[0]], environment) if match else []
        with_log = [job for job in with_same_id if _is_log_of(job, path)]
        with_log = with_log or [job for job in any_job.my_jobs(environment) if _is_log_of(job, path)]
        if with_log:
            return _known_job(word_, with_log, with_log[-1], environment)
    return _forgotten_job(word_, path, match[1] if match else "")


def _is_log_of(job: JobWithFiles, path: Path) -> bool:
    """Return whether a file is the log of a job: by the name in Slurm's answer, else by the default name."""
    names = {name.replace("%%", "%") for name in (job.log, job.errors) if name}
    default_log = Path(job.folder, f"slurm-{job.row.id}.out")
    return any(_is_same_file(Path(name), path) for name in names or {str(default_log)})


def _is_same_file(path: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file; the file need not exist."""
    return path == other or os.path.realpath(path) == os.path.realpath(other)


def _find_by_script(word_: str, path: Path, environment: Mapping[str, str], task: str) -> PlainJob:
    """Return the newest job of a script, or its newest log; raise CommandLineError if neither is found."""
    of_script = [job for job in any_job.my_jobs(environment) if _runs_script(job, path)]
    if of_script:
        newest = max(job.row.base_id for job in of_script)
        tasks = [job for job in of_script if job.row.base_id == newest]
        return _known_job(word_, tasks, _chosen_task(tasks, task, str(newest)), environment)
    output = _options_in_script(path).get("output", "")
    # "logs/%x-%j.out" of train.sh becomes "logs/train.sh-*.out". Path.glob takes no absolute pattern.
    pattern = re.sub(r"%\d*[A-Za-z]", "*", output.replace("%x", path.name))
    has_pattern = "%" in output and not task  # a log alone does not show its task
    matches = glob.glob(pattern, root_dir=path.parent) if has_pattern else []  # noqa: PTH207
    logs = [log for log in (path.parent / match for match in matches) if log.is_file()]
    if logs := files.oldest_first(logs):
        return _forgotten_job(str(logs[-1]), logs[-1], "")
    what = f"Slurm knows no job of {word_} any more, or it was submitted by another user"
    fix = "name the id of the job, or its log"
    raise CommandLineError.of(what, fix=fix)


def _runs_script(job: JobWithFiles, path: Path) -> bool:
    """Return whether a job runs the script in a file."""
    script = _script_path(job)
    return bool(script) and _is_same_file(Path(job.folder, script), path)


def _script_path(job: JobWithFiles) -> str:
    """Return the path of a job's script without arguments; "" if it is unknown, or came from stdin."""
    if job.command:
        if Path(job.folder, job.command).is_file():
            return job.command
        return job.command.partition(" ")[0]
    words = _split_command(job.submit_line)
    return next((name for name in words[1:] if Path(job.folder, name).is_file()), "")


def _split_command(line: str) -> list[str]:
    """Return the words of a command line; none if its quotes are not closed."""
    with contextlib.suppress(ValueError):
        return shlex.split(line)
    return []


def _options_in_script(script: Path) -> dict[str, str]:
    """Return the options in the directives of a script, by their names; none if it can't be read."""
    with contextlib.suppress(OSError):
        parsed = read_script(files.read_file(script, MAX_SCRIPT_BYTES))
        return {name: option.value or "" for name, option in parsed.options.items()}
    return {}


def _known_job(
    word_: str, tasks: Sequence[JobWithFiles], job: JobWithFiles, environment: Mapping[str, str]
) -> PlainJob:
    """Return the PlainJob of a job that Slurm knows.

    `tasks` has the job, or all tasks of an array. `job` is the chosen task.
    """
    script = _script_path(job)
    path = Path(job.folder, script) if script else None
    log = job.log or _expected_log(job, path)
    me = user_name(os.geteuid())
    owner = "" if job.user in ("", me) else job.user
    record = Record(
        shared=True,
        run=word_,
        name=job.name or "job",
        job=job.row.id,
        submitted=job.submitted.timestamp() if job.submitted else 0.0,
        folder=job.folder or "/",
        script=str(path) if path else "",
        log=log,
        errors=job.errors,
    )
    return PlainJob(
        word=word_,
        id=job.row.id,
        rows=tuple(sorted((other.row for other in tasks), key=_id_and_task)),
        folder=Path(log.replace("%%", "%") or "/", NO_RUN_FOLDER),
        record=record,
        script=_script_with_limits(job, path, environment, is_mine=not owner),
        line=job.submit_line,
        owner=owner,
        problems=tuple(_why_unreadable(log.replace("%%", "%"), owner)),
    )


def _why_unreadable(log: str, owner: str) -> Iterator[str]:
    """Yield why an existing log can't be read; nothing if it can, or does not exist."""
    try:
        with files.open_regular(Path(log)):
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        whose = f"; the job belongs to {owner}" if owner else ""
        yield f"its log can't be read: {log}: {error.strerror or error}{whose}"


def _expected_log(job: JobWithFiles, script: Path | None) -> str:
    """Return the path of the log of a job that only the database knows, with % doubled as in patterns.

    The option --output is in the command of the submission or in the script; else sbatch's default holds.
    """
    words, output = _split_command(job.submit_line), ""
    for position, option in enumerate(words):
        if _OUTPUT_OPTION.match(option):
            output = option.partition("=")[2] or next(iter(words[position + 1 :]), "")
        elif option.startswith("-o") and len(option) > 2:  # "-oFILE"
            output = option[2:]
    output = output or (_options_in_script(script).get("output", "") if script else "")
    output = output or (DEFAULT_LOG_OF_TASK if job.row.task else DEFAULT_LOG)
    values = {
        "j": str(job.row.base_id),
        "A": str(job.row.base_id),
        "a": job.row.task,
        "x": job.name,
        "u": job.user,
    }

    def filled(match: re.Match[str]) -> str:
        value = values.get(match[2], "")  # a % in a value becomes %%, because the log is again a pattern
        return value.zfill(int(match[1] or 0)).replace("%", "%%") if value else match[0]

    return str(Path(job.folder, re.sub(r"%(\d{0,2})([jAaxu])", filled, output)))  # "%j", "%4a"


def _script_with_limits(
    job: JobWithFiles, path: Path | None, environment: Mapping[str, str], *, is_mine: bool
) -> JobScript | None:
    """Return the script that a job runs, with the time limit and memory that Slurm reports.

    Slurm shows a script only to its owner. If Slurm shows none, the script is read from its file at `path`.
    Return None if neither has it.
    """
    text = any_job.script_of(job.row.id.partition("_")[0], environment) if is_mine else ""
    if not text and path:
        with contextlib.suppress(OSError):
            text = files.read_file(path, MAX_SCRIPT_BYTES).decode("utf-8", "surrogateescape")
    if not text:
        return None
    limits = [f"--time={Duration(job.row.limit_s)}"] if job.row.limit_s else []
    has_memory = job.memory and not job.memory.startswith("0")  # "0": the job asked for no amount
    limits += [f"--mem={job.memory}"] if has_memory else []
    return JobScript(file=str(path or "script"), text=with_options(text, limits))


def _forgotten_job(word_: str, path: Path, id_: str) -> PlainJob:
    """Return the job of a log if Slurm does not know the job any more."""
    record = Record(
        shared=True,
        run=word_,
        name=path.name,
        job=id_,
        folder=str(path.parent),
        log=str(path).replace("%", "%%"),
    )
    return PlainJob(word=word_, id=id_, folder=path / NO_RUN_FOLDER, record=record)


def _find_in_folder(word_: str, folder: Path, environment: Mapping[str, str], task: str) -> PlainJob | None:
    """Return the newest job of a colleague's run folder, or its `task`; None for any other folder.

    Only the colleague can read the records and scripts there. Others see the ids of jobs in the names of
    files, the log, and the files that the training writes.
    """
    try:
        names, owner = [path.name for path in folder.iterdir()], folder.stat().st_uid
    except OSError as error:
        raise DocumentError.of(f"can't read {folder}: {error.strerror}") from error
    ids = sorted({match[1] for name in names if (match := _RECORD_NAME.fullmatch(name))}, key=int)
    if not ids or owner == os.geteuid():
        return None
    colleague = user_name(owner)
    logs = [folder / name for name in names if name.endswith((".out", ".log"))]
    logs = files.oldest_first(path for path in logs if path.is_file())
    newest_id, job = ids[-1], None
    with contextlib.suppress(SlurmError):
        with_same_id = any_job.any_jobs([newest_id], environment)
        tasks = [known for known in with_same_id if known.user == colleague]
        if tasks:
            job = _known_job(word_, tasks, _chosen_task(tasks, task, newest_id), environment)
    if task and job is None:
        raise _no_task(f"Slurm knows no job {newest_id} any more")
    job = job or _forgotten_job(word_, logs[-1] if logs else folder / f"slurm-{newest_id}.out", newest_id)
    return replace(job, folder=folder, owner=colleague, record=replace(job.record, run=word_))


def command_to_submit_again(job: PlainJob, options: Sequence[str], folder: Path) -> str:
    """Return the command that submits a job again with more options; "" if its script is not known.

    The command is for the folder `folder`. An option is one word, such as "--mem=64G". The options and the
    arguments of the first submission are kept.
    """
    words = _split_command(job.line)
    path = job.record.script
    if not path:
        return ""
    script = os.path.relpath(path, folder)
    script = path if script.startswith("../") else script
    submit_folder = Path(job.record.folder)
    # The position of the script in the command line of the submission; 0 if the line is not known
    are_script = (_is_same_file(submit_folder / name, Path(path)) for name in words)
    position = next((number for number, is_script in enumerate(are_script) if is_script), 0)
    arguments = words[position + 1 :] if position else ()
    parts = ["sbatch", *words[1:position], *options, script, *arguments]
    return " ".join(map(word, parts))
