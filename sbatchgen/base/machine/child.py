"""Child processes. Only this module starts programs, Python among them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from sbatchgen.base.machine.search_path import cleaned, find

Child = subprocess.Popen[bytes]
Completed = subprocess.CompletedProcess[bytes]
LateError = subprocess.TimeoutExpired  # the program did not end in time, and was killed
PIPE = subprocess.PIPE


def run(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout: float,
    data: bytes | None = None,
    folder: Path | None = None,
    keep_open: Sequence[int] = (),
    for_job: bool = False,
) -> Completed:
    """Run a program to its end in this environment, and return its status and output.

    The program reads `data`, runs in `folder`, and inherits the descriptors `keep_open`.

    The program gets a PATH without folders that everybody can write. With `for_job` the environment is for
    a job and stays unchanged.

    Raises OSError if the program can't be started, and LateError if it did not end in time.
    """
    return subprocess.run(
        words,
        executable=_program_file(words[0], environment),
        env=environment if for_job else cleaned(environment),
        cwd=folder,
        capture_output=True,
        timeout=timeout,
        check=False,
        pass_fds=keep_open,
        stdin=subprocess.DEVNULL if data is None else None,
        input=data,
    )


def run_here(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program of the user on this terminal; return its exit status, which is below 0 for a signal."""
    path = _program_file(words[0], environment)
    return subprocess.run(words, executable=path, env=environment, check=False).returncode


def begin(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | None = None,
    keep_open: Sequence[int] = (),
    is_job: bool = False,
) -> Child:
    """Start a program, and return at once. The program inherits streams that are None, and `keep_open`.

    A job gets a new session, no input, one stream for its output and its errors, and an unchanged PATH.
    """
    return subprocess.Popen(
        words,
        executable=_program_file(words[0], environment),
        env=environment if is_job else cleaned(environment),
        stdin=subprocess.DEVNULL if is_job else stdin,
        stdout=stdout,
        stderr=subprocess.STDOUT if is_job else stderr,
        pass_fds=keep_open,
        start_new_session=is_job,
    )


def python(*words: str) -> list[str]:
    """Return the words that start this Python for files of sbatchgen.

    That Python imports nothing from the current folder, the user's packages or variables of the environment
    (-I), and no installed package (-S).
    """
    return [sys.executable, "-I", "-S", *words]


def python_module(name: str, *words: str) -> list[str]:
    """Return the words that start `main` of a module of sbatchgen; the module must need no library."""
    package_parent = str(Path(__file__).parents[3])
    statements = f"import sys; sys.path.append({package_parent!r}); from {name} import main; sys.exit(main())"
    return python("-c", statements, *words)


def _program_file(program: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program; raises FileNotFoundError if PATH has no such program."""
    # A file that is not executable is started anyway, so that Linux reports the reason.
    path = find(program, environment) or find(program, environment, os.F_OK)
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
    return path
