"""Work spread over processes, none of which outlives the call.

A pool of the standard library may wait for ever where Ctrl-C meets one of its locks. Here there are none:
each process has its share from the start, and one pipe for its answer.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from sbatchgen.errors import DocumentError

T = TypeVar("T")

_GRACE_S = 1.0  # for a process to remove what it has half written
_INTERRUPTED = 130


@dataclass(eq=False)
class _Worker:
    pid: int
    answer: BinaryIO
    status: int | None = None  # of its end, as os.waitpid gives it


def spread(work: Callable[[str], T], names: Sequence[str], processes: int) -> list[T]:
    """What `work` makes of each name, in their order.

    Raises:
        DocumentError: A process was killed.
        RuntimeError: `work` failed; its stack trace is on stderr.
        KeyboardInterrupt: Ctrl-C, here or in one of the processes.
    """
    workers: list[_Worker] = []
    made: dict[int, T] = {}
    try:
        with _no_interrupts():  # a new process must not unwind what is its parent's
            for first in range(processes):
                workers.append(_started(work, names[first::processes]))  # noqa: PERF401 - known if the next fails
        for first, worker in enumerate(workers):
            made |= zip(range(first, len(names), processes), _answer(worker), strict=True)
    finally:
        with _no_interrupts():
            _end(workers)
    return [made[number] for number in range(len(names))]


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """SIGINT waits until this is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(work: Callable[[str], T], names: Sequence[str]) -> _Worker:
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Worker(pid, os.fdopen(reading, "rb"))
    status = 1
    try:  # here is the new process, which must not get out of this block
        os.close(reading)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGINT, _interrupted)
        signal.signal(signal.SIGTERM, _interrupted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump([*_done(work, names, parent)], pipe)
        status = 0
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except BrokenPipeError:  # nobody waits for it
        pass
    except BaseException:  # noqa: BLE001 - told here, since the parent has no trace of it
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _interrupted(*_: object) -> None:
    """Unwind, once: Ctrl-C at a terminal is followed by the SIGTERM of the parent."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # SIG_IGN: Python complains of one that has come already
    raise KeyboardInterrupt


def _done(work: Callable[[str], T], names: Sequence[str], parent: int) -> Iterator[T]:
    for name in names:
        if os.getppid() != parent:  # it was killed
            raise KeyboardInterrupt
        yield work(name)


def _answer(worker: _Worker) -> list[Any]:
    """What a process has made, once it is through."""
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        found: list[Any] = pickle.load(worker.answer)  # noqa: S301 - it is our own process
        return found
    _, worker.status = os.waitpid(worker.pid, 0)
    if os.WIFSIGNALED(worker.status):
        raise DocumentError.of("a process that read files was killed", fix="name fewer files at once")
    if os.WEXITSTATUS(worker.status) == _INTERRUPTED:
        raise KeyboardInterrupt
    raise RuntimeError("a process that read files failed")


def _end(workers: Sequence[_Worker]) -> None:
    """End every process that goes on: politely, and soon with SIGKILL."""
    for worker in workers:
        worker.answer.close()
    _send(signal.SIGTERM, workers)
    deadline = time.monotonic() + _GRACE_S
    while _is_alive(workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    _send(signal.SIGKILL, workers)
    for worker in workers:
        if worker.status is None:
            _, worker.status = os.waitpid(worker.pid, 0)


def _is_alive(workers: Sequence[_Worker]) -> bool:
    """Whether one of them goes on; the ends of the others are noted."""
    for worker in workers:
        if worker.status is None:
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            worker.status = status if pid else None
    return any(worker.status is None for worker in workers)


def _send(number: int, workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.status is None:  # not waited for, so that its id is still its own
            os.kill(worker.pid, number)
