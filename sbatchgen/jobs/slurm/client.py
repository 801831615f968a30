"""Runs Slurm's commands in a known environment and within a time limit, and decodes their output."""

import os
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

from sbatchgen.base.errors import SbatchgenError, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine import child, search_path
from sbatchgen.base.quoting import word

QUERY_TIMEOUT_S = 30  # squeue itself gives up after 10 s (MessageTimeout, slurm.conf(5))
MISSING_CONF_S = 5.0  # the limit if the file in SLURM_CONF is missing: Slurm would look for it for a minute
# Fixes for a command of Slurm that is not installed here
FIX_FOR_QUERIES = "use a node that has Slurm's commands, as a login node"
FIX_FOR_SUBMISSIONS = "submit on a node that has Slurm's commands, or run here with --profile local"
_CONF_VARIABLE = "SLURM_CONF"  # the path of slurm.conf, which every command needs
# The names of variables that change a submitted job begin so
_JOB_PREFIXES = ("PYXIS_CONTAINER_", "SBATCH_", "SLURM_")
# The names of variables that change the answer of a query begin so
_QUERY_PREFIXES = ("SACCT_", "SCONTROL_", "SINFO_", "SLURM_", "SQUEUE_")
_PRIVATE = re.compile(r"slurm_load_\w+ error: Access/permission denied")
_NO_CONF = "Could not establish a configuration source"
_MISSING_CONF = re.compile(r"s_p_parse_file: (.*?), retrying")
_UNREACHABLE = re.compile(
    r"Unable to contact slurm controller|Unable to establish control machine address|Socket timed out"
    r"|Communication connection failure|Zero Bytes were transmitted or received"
    r"|Transport endpoint is not connected"
)
# How many seconds this thread waits for an answer; None for QUERY_TIMEOUT_S
_ANSWER_LIMIT_S: ContextVar[float | None] = ContextVar("answer_limit_s", default=None)


class PrivateDataError(SlurmError):
    """An error for data that Slurm keeps from users: PrivateData of slurm.conf(5)."""


@frozen()
class Output:
    """The output of a command of Slurm."""

    program: str  # the name of the command
    status: int | None  # exit status as a shell has it; None if the command did not end in time
    out: str  # what the command wrote to stdout
    err: str  # what the command wrote to stderr
    timeout: float  # its time limit in seconds

    @property
    def failure(self) -> str:
        """How the command failed, without the text that it printed; "" for success."""
        if self.status is None:
            return f"{self.program} did not end within {self.timeout:g} s"
        return f"{self.program} ended with exit status {self.status}" if self.status else ""

    @property
    def unreachable(self) -> bool:
        """Whether Slurm's controller does not answer."""
        return self.status is None or bool(self.status and _UNREACHABLE.search(self.err))

    @property
    def error(self) -> SbatchgenError:
        """The failure of a query as an error for users."""
        message = " ".join(self.err.split())
        if _NO_CONF in message:
            what = f"{self.program} finds no slurm.conf: {_NO_CONF}"
            return SlurmError.of(what, fix="use a login node of the cluster")
        if missing := _MISSING_CONF.search(message):
            what = f"{self.program} finds no slurm.conf: {missing[1]}"
            return SlurmError.of(
                what, fix="let SLURM_CONF name the file of the cluster, or: unset SLURM_CONF"
            )
        if self.unreachable:
            last_line = self.err.strip().rpartition("\n")[2] or self.failure
            fix = "try again later; scontrol ping shows whether the controller is up"
            return SlurmError.of(f"Slurm's controller does not answer: {last_line}", fix=fix)
        what = f"{self.failure}: {message}" if message else self.failure
        if _PRIVATE.search(message):
            fix = "slurm.conf hides it from users (PrivateData): ask an administrator"
            return PrivateDataError.of(what, fix=fix)
        return SlurmError.of(what)


def cluster_option(cluster: str) -> list[str]:
    """Return the option of Slurm's commands that names a cluster; nothing for the cluster of this machine."""
    return [f"--clusters={cluster}"] if cluster else []


def answer_limit_s() -> float:
    """Return how many seconds this thread waits for an answer of Slurm."""
    return _ANSWER_LIMIT_S.get() or QUERY_TIMEOUT_S


def patience_s(environment: Mapping[str, str], limit_s: float) -> float:
    """Return how many seconds a query may take: `limit_s`, or fewer if the file in SLURM_CONF is missing."""
    conf = environment.get(_CONF_VARIABLE, "")
    is_missing = conf and not os.path.exists(conf)  # noqa: PTH110 - pathlib raises for a closed folder
    return min(limit_s, MISSING_CONF_S) if is_missing else limit_s


def set_answer_limit(limit_s: float | None) -> None:
    """Set how many seconds this thread waits for each answer from now on; None for the default."""
    _ANSWER_LIMIT_S.set(limit_s)


def query(arguments: Sequence[str], environment: Mapping[str, str]) -> Output:
    """Run squeue, sacct or another query, and return its output; raise SlurmError if it can't be started."""
    limit_s = patience_s(environment, answer_limit_s())
    return run(arguments, query_environment(environment), timeout=limit_s)


def answer(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the output of a query; raise SlurmError if the query can't start, takes too long, or fails."""
    output = query(arguments, environment)
    if output.failure:
        raise output.error
    return output.out


def answer_if_any(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the output of a query; None if the query fails."""
    try:
        return answer(arguments, environment)
    except SlurmError:
        return None


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout: float,
    fix_if_missing: str = FIX_FOR_QUERIES,
    keep_open: int | None = None,
    for_job: bool = False,
) -> Output:
    """Run a command of Slurm in this environment, and return its output.

    `keep_open` is a file descriptor that the command inherits. `for_job`: the command submits a job, which
    gets the environment (see `child.run`). Raises SlurmError if the command can't be started; the error has
    the fix `fix_if_missing` if the command is not installed here.
    """
    program = arguments[0]
    try:
        descriptors = () if keep_open is None else (keep_open,)
        done = child.run(arguments, environment, timeout=timeout, keep_open=descriptors, for_job=for_job)
    except child.LateError as error:
        return Output(program, None, _text(error.stdout), _text(error.stderr), timeout)
    except OSError as error:
        raise _cannot_start(program, error, environment, fix_if_missing) from error
    status = status_in_shell(done.returncode)
    return Output(program, status, _text(done.stdout), _text(done.stderr), timeout)


def run_here(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in this terminal, and return its exit status; raise SlurmError if it can't be started."""
    try:
        return status_in_shell(child.run_here(arguments, environment))
    except OSError as error:
        raise _cannot_start(arguments[0], error, environment, FIX_FOR_QUERIES) from error


def submit_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the environment without variables that would change the job, and the names of these variables.

    SBATCH_* and SLURM_* override the script. PYXIS_CONTAINER_* act like options of each Slurm step and of the
    script itself (args.c of pyxis): the script would run in the image, which has no srun.
    """
    removed = [name for name in environment if name.startswith(_JOB_PREFIXES) and name != _CONF_VARIABLE]
    return {name: value for name, value in environment.items() if name not in removed}, sorted(removed)


def query_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that change the format or the subject of an answer."""
    names = [name for name in environment if name == _CONF_VARIABLE or not name.startswith(_QUERY_PREFIXES)]
    clean = {name: environment[name] for name in names}
    # SLURM_BITSTR_LEN=0: squeue(1) prints the tasks of an array in full
    return clean | {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0"}


def status_in_shell(returncode: int) -> int:
    """Return the exit status that a shell would report: 128 + N for a process that signal N ended."""
    return returncode if returncode >= 0 else 128 - returncode


def _text(output: bytes | None) -> str:
    """Return output as text, even if it is not UTF-8: a site's plugin or a user's job may print any bytes."""
    return (output or b"").decode("utf-8", "replace")


def _cannot_start(
    program: str, error: OSError, environment: Mapping[str, str], fix_if_missing: str
) -> SbatchgenError:
    """Return the error for a program that is not installed, or that can't be executed."""
    path = search_path.find(program, environment, os.F_OK)
    if not path:
        return SlurmError.of(f"there is no {program} here", fix=fix_if_missing)
    return SlurmError.of(f"can't start {path}: {error.strerror}", fix=f"look at it: ls -lL {word(path)}")
