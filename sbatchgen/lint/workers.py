"""Work spread over processes, none of which outlives the call.

A pool of the standard library may wait for ever where Ctrl-C meets one of its locks. Here each process has
its share from the start, and a pipe for its answers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from sbatchgen.errors import DocumentError

T = TypeVar("T")

_GRACE_S = 1.0  # for a process to remove what it has half written


def spread(work: Callable[[str], T], names: Sequence[str], processes: int) -> list[T]:
    """What `work` makes of each name, in their order; it has no stdin.

    Raises:
        DocumentError: A process was killed.
        RuntimeError: `work` failed; its stack trace is on stderr.
    """
    fork = multiprocessing.get_context("fork")
    workers: list[tuple[BaseProcess, Connection]] = []
    try:
        with _no_interrupts():  # the processes keep that: this one ends them
            for first in range(processes):
                receiving, sending = fork.Pipe(duplex=False)
                share = names[first::processes]
                process = fork.Process(target=_work, args=(work, share, receiving, sending))
                process.start()
                sending.close()
                workers.append((process, receiving))
        return [_answer(*workers[number % processes]) for number in range(len(names))]
    finally:
        with _no_interrupts():
            for worker, pipe in workers:
                pipe.close()
                worker.terminate()
            for worker, _ in workers:
                worker.join(_GRACE_S)
                worker.kill()
                worker.join()


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """SIGINT waits until this is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    work: Callable[[str], object], names: Sequence[str], receiving: Connection, sending: Connection
) -> None:
    signal.signal(signal.SIGTERM, _leave)
    receiving.close()  # else a pipe that nobody reads any more would never break
    with contextlib.suppress(BrokenPipeError):
        for name in names:
            sending.send(work(name))


def _leave(*_: object) -> None:
    """End this process, also in a callback or a destructor, where Python prints SystemExit and goes on."""
    sys.unraisablehook = lambda *_: os._exit(1)
    sys.exit(1)


def _answer(process: BaseProcess, receiving: Connection) -> Any:
    try:
        return receiving.recv()
    except (EOFError, OSError):
        process.join()
    if (process.exitcode or 0) < 0:
        raise DocumentError.of("a process that read files was killed", fix="name fewer files at once")
    raise RuntimeError("a process that read files failed")
