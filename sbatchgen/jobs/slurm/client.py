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
# The limit if SLURM_CONF names a missing file, because Slurm's commands would wait for this file for a minute
MISSING_CONF_S = 5.0
# Fixes for a command of Slurm that is not installed here
FIX_FOR_QUERIES = "use a node that has Slurm's commands, such as a login node"
FIX_FOR_SUBMISSIONS = "submit on a node that has Slurm's commands, or run here with --profile local"
_CONF_VARIABLE = "SLURM_CONF"  # the path of slurm.conf, which every command needs
# Variables whose names begin with these texts change a submitted job.
_JOB_PREFIXES = ("PYXIS_CONTAINER_", "SBATCH_", "SLURM_")
# Variables whose names begin with these texts change the answer of a query.
_QUERY_PREFIXES = ("SACCT_", "SCONTROL_", "SINFO_", "SLURM_", "SQUEUE_")
# Messages of Slurm's commands:
#     slurm_load_jobs error: Access/permission denied
#     squeue: error: s_p_parse_file: unable to status file /etc/slurm/slurm.conf: ..., retrying in 1sec
_PRIVATE_DATA = re.compile(r"slurm_load_\w+ error: Access/permission denied")
_NO_CONF = "Could not establish a configuration source"
_MISSING_CONF = re.compile(r"s_p_parse_file: (.*?), retrying")
_CONTROLLER_DOWN = re.compile(
    r"Unable to contact slurm controller|Unable to establish control machine address|Socket timed out"
    r"|Communication connection failure|Zero Bytes were transmitted or received"
    r"|Transport endpoint is not connected"
)
# How many seconds a query of this thread may take; None for QUERY_TIMEOUT_S
_ANSWER_LIMIT_S: ContextVar[float | None] = ContextVar("answer_limit_s", default=None)


class PrivateDataError(SlurmError):
    """Slurm hides the data from users, because of PrivateData in slurm.conf(5)."""


@frozen()
class Output:
    """The output of a command of Slurm."""

    program: str  # the name of the command
    status: int | None  # the exit status as a shell reports it; None if the command did not end in time
    out: str  # what the command wrote to stdout
    err: str  # what the command wrote to stderr
    timeout: float  # its time limit in seconds

    @property
    def failure(self) -> str:
        """How the command failed, without the text that it printed; "" if it succeeded."""
        if self.status is None:
            return f"{self.program} did not end within {self.timeout:g} s"
        return f"{self.program} ended with exit status {self.status}" if self.status else ""

    @property
    def is_controller_down(self) -> bool:
        """Whether the command failed because Slurm's controller does not answer."""
        return self.status is None or bool(self.status and _CONTROLLER_DOWN.search(self.err))

    @property
    def error(self) -> SbatchgenError:
        """The error that tells the user why a query failed, with a fix."""
        message = " ".join(self.err.split())
        if _NO_CONF in message:
            what = f"{self.program} finds no slurm.conf: {_NO_CONF}"
            return SlurmError.of(what, fix="use a login node of the cluster")
        if missing := _MISSING_CONF.search(message):
            what = f"{self.program} finds no slurm.conf: {missing[1]}"
            return SlurmError.of(
                what, fix="let SLURM_CONF name the file of the cluster, or: unset SLURM_CONF"
            )
        if self.is_controller_down:
            last_line = self.err.strip().rpartition("\n")[2] or self.failure
            fix = "try again later; scontrol ping shows whether the controller is up"
            return SlurmError.of(f"Slurm's controller does not answer: {last_line}", fix=fix)
        what = f"{self.failure}: {message}" if message else self.failure
        if _PRIVATE_DATA.search(message):
            fix = "slurm.conf hides it from users (PrivateData): ask an administrator"
            return PrivateDataError.of(what, fix=fix)
        return SlurmError.of(what)


def cluster_option(cluster: str) -> list[str]:
    """Return the option --clusters of Slurm's commands; no option for "", the cluster of this machine."""
    return [f"--clusters={cluster}"] if cluster else []


def answer_limit_s() -> float:
    """Return how many seconds a query of this thread may take."""
    return _ANSWER_LIMIT_S.get() or QUERY_TIMEOUT_S


def query_limit_s(environment: Mapping[str, str], limit_s: float) -> float:
    """Return `limit_s`, or a shorter limit if the file that SLURM_CONF names is missing."""
    conf = environment.get(_CONF_VARIABLE, "")
    is_missing = conf and not os.path.exists(conf)  # noqa: PTH110 - pathlib raises for a closed folder
    return min(limit_s, MISSING_CONF_S) if is_missing else limit_s


def set_answer_limit(limit_s: float | None) -> None:
    """Set how many seconds each later query of this thread may take; None for the default."""
    _ANSWER_LIMIT_S.set(limit_s)


def query(arguments: Sequence[str], environment: Mapping[str, str]) -> Output:
    """Run a command that only asks Slurm, such as squeue, and return its output.

    Raises SlurmError if the command can't be started. A command that fails raises no error.
    """
    limit_s = query_limit_s(environment, answer_limit_s())
    return run(arguments, query_environment(environment), timeout=limit_s)


def answer_text(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what a query prints; raise SlurmError if the query can't start, takes too long, or fails."""
    output = query(arguments, environment)
    if output.failure:
        raise output.error
    return output.out


def answer_if_any(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return what a query prints; None where `answer_text` would raise SlurmError."""
    try:
        return answer_text(arguments, environment)
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
    """Run a command of Slurm, and return its output.

    Args:
        arguments: The command and its arguments.
        environment: The environment of the command.
        timeout: The time limit in seconds.
        fix_if_missing: The fix in the error if the command is not installed here.
        keep_open: A file descriptor that the command inherits.
        for_job: Whether the command submits a job, which gets the environment (see `child.run`).

    Raises:
        SlurmError: The command can't be started.
    """
    program = arguments[0]
    try:
        descriptors = () if keep_open is None else (keep_open,)
        ended = child.run(arguments, environment, timeout=timeout, keep_open=descriptors, for_job=for_job)
    except child.LateError as error:
        return Output(program, None, _text(error.stdout), _text(error.stderr), timeout)
    except OSError as error:
        raise _cannot_start(program, error, environment, fix_if_missing) from error
    status = status_in_shell(ended.returncode)
    return Output(program, status, _text(ended.stdout), _text(ended.stderr), timeout)


def run_here(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command that uses this terminal, and return its exit status.

    Raises SlurmError if the command can't be started.
    """
    try:
        return status_in_shell(child.run_here(arguments, environment))
    except OSError as error:
        raise _cannot_start(arguments[0], error, environment, FIX_FOR_QUERIES) from error


def submit_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the environment without variables that would change the job, and the names of these variables.

    SBATCH_* and SLURM_* variables override options of the script. PYXIS_CONTAINER_* variables start the
    script itself in a container (args.c of pyxis), and the image of the container has no srun.
    """
    removed = [name for name in environment if name.startswith(_JOB_PREFIXES) and name != _CONF_VARIABLE]
    return {name: value for name, value in environment.items() if name not in removed}, sorted(removed)


def query_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a query, without variables that change the command's output."""
    names = [name for name in environment if name == _CONF_VARIABLE or not name.startswith(_QUERY_PREFIXES)]
    kept = {name: environment[name] for name in names}
    # With SLURM_BITSTR_LEN=0, squeue(1) prints the list of an array's tasks in full.
    return kept | {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0"}


def status_in_shell(returncode: int) -> int:
    """Return the exit status that a shell would report: 128 + N for a process that signal N ended."""
    return returncode if returncode >= 0 else 128 - returncode


def _text(output: bytes | None) -> str:
    """Return output as text.

    Bytes that are not UTF-8 are replaced, because a site's plugin or a user's job may print any bytes.
    """
    return (output or b"").decode("utf-8", "replace")


def _cannot_start(
    program: str, error: OSError, environment: Mapping[str, str], fix_if_missing: str
) -> SbatchgenError:
    """Return the error for a program that is not installed, or that can't be executed."""
    path = search_path.find(program, environment, os.F_OK)
    if not path:
        return SlurmError.of(f"there is no {program} here", fix=fix_if_missing)
    return SlurmError.of(f"can't start {path}: {error.strerror}", fix=f"look at it: ls -lL {word(path)}")
