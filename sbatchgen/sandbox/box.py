"""A sandbox, and a program that runs in it to its end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sbatchgen.errors import DocumentError

PLACE = "/run/plan"  # in the sandbox: stand-ins, what they record, and what the program prints
_LATE = 20.0  # seconds after the limit in which the sandbox may end itself
_MOST = 96 << 20  # bytes of a report: more than `inside` sends
_OVERDUE = b"overdue"
_LIMITS = ("time", "memory", "processes")


class Limits(NamedTuple):
    """How much all programs in a sandbox get together; 0 or infinity for no limit."""

    seconds: float = 10.0  # until they are ended
    cpu: float = 5.0  # seconds of processors
    idle: float = 2.0  # seconds in which none of them computes
    memory: int = 1 << 30  # bytes, with those of the files that are kept in memory
    each: int = 1 << 30  # bytes of the addresses of each program
    file: int = 16 << 20  # bytes of each file
    processes: int = 512


@dataclass(frozen=True, kw_only=True)
class Box:
    """What a sandbox holds, beside the programs and libraries of the system."""

    hostname: str
    folder: str  # where the program starts
    home: str = ""  # the home folder, which is empty
    shown: Mapping[str, int] = field(default_factory=dict)  # descriptors of folders; changes stay in memory
    readable: Sequence[str] = ()  # paths that are shown read-only; outer ones first, as of `shown`
    files: Mapping[str, tuple[bytes, int] | str] = field(
        default_factory=dict
    )  # text and mode; a link's target
    folders: Sequence[str] = ()  # that are made
    over: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)  # files that lie over the system's
    kept: Mapping[str, str] = field(
        default_factory=dict
    )  # folders of the machine to write to, by their paths
    devices: Sequence[str] = ()  # beside /dev/null and its like
    network: Literal["loopback", "machine"] = "loopback"
    trusts: bool = False  # the user starts the program as their own: it gets what data loaders need
    limits: Limits = field(default_factory=Limits)


class Ended(NamedTuple):
    """How a program has ended."""

    status: int  # as in bash: 128 and the number of the signal that ended it
    limit: str  # "time", "memory" or "processes", at which it was ended; "damage" of its report; or ""
    files: Mapping[str, str]  # below PLACE, by their names: what it printed, and records
    seconds: float
    memory: int = 0  # the most bytes that all processes together had
    cpu: float = 0.0  # seconds of processors


class NoSandboxError(DocumentError):
    """This machine allows no sandbox."""


def run(argv: Sequence[str], environment: Mapping[str, str], box: Box) -> Ended:
    """Run a program in a sandbox to its end.

    Raises:
        NoSandboxError: This machine allows none.
    """
    from sbatchgen.sandbox import bwrap

    began, problem = time.monotonic(), ""
    for layers in (True, False):  # some file systems, such as Lustre, allow no layer over their folders
        with ExitStack() as opened:
            words, numbers = bwrap.words(box, opened, layers=layers)
            task = bwrap.memory_file(opened, bwrap.task(argv, environment, box, layers=layers))
            errors = bwrap.memory_file(opened, b"")
            process = subprocess.Popen(
                words, stdin=task, stdout=subprocess.PIPE, stderr=errors, env={}, pass_fds=numbers
            )
            opened.enter_context(process)
            report = _read_until(process, began + box.limits.seconds + _LATE)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            says = os.pread(errors, 1 << 12, 0).decode("utf-8", "replace").strip()
        if report:
            return _read(report, time.monotonic() - began, used.ru_utime + used.ru_stime)
        problem = says.rpartition("\n")[2] or f"it ended with {process.returncode}"
        if "overlay" not in problem:
            break
    raise NoSandboxError.of(f"this machine allows no sandbox: {problem}", fix=bwrap.ELSEWHERE)


def _read_until(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Return what comes from the sandbox; at the deadline, or if it is too much, end it."""
    assert process.stdout  # noqa: S101 - a pipe
    parts: list[bytes] = []
    size = 0
    while size <= _MOST and select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
        part = os.read(process.stdout.fileno(), 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    process.kill()  # and with it all that is in the sandbox: --die-with-parent
    return _OVERDUE


def _read(report: bytes, seconds: float, cpu: float) -> Ended:
    """Return what a sandbox reports, which a program in it may have written."""
    head, _, rest = report[1:].partition(b"\n\n")
    files, at = {}, 0
    try:
        (status, memory, limit), *rows = (line.split(" ", 2) for line in head.decode().split("\n"))
        for size, name in rows:
            files[name] = rest[at : at + int(size)].decode("utf-8", "surrogateescape")
            at += int(size)
        if limit in ("", *_LIMITS) and all(files):
            return Ended(int(status) & 0xFF, limit, files, seconds, int(memory[:18]), cpu)
    except ValueError:
        pass
    limit = "time" if report == _OVERDUE else "damage"
    return Ended(128 + signal.SIGKILL, limit, {}, seconds, cpu=cpu)
