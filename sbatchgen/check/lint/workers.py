"""Runs a function on many files in several processes, which all end with the call."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from sbatchgen.base.errors import DocumentError

T = TypeVar("T")

_CHUNK = 8  # names that a process gets at a time; after Ctrl-C it still finishes these


def spread(work: Callable[[str], T], names: Sequence[str], processes: int) -> list[T]:
    """Return the results of `work` for the names, in order; raise DocumentError if a process was killed."""
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _end_with_parent)
    try:
        with _no_interrupts():  # the processes inherit the blocked signal
            results = pool.map(work, names, chunksize=_CHUNK)
        return list(results)
    except BrokenProcessPool as error:
        raise DocumentError.of(
            "a process that read files was killed", fix="name fewer files at once"
        ) from error
    finally:
        with _no_interrupts():
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block Ctrl-C in this thread, and in processes that are forked meanwhile."""
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def _end_with_parent() -> None:
    """End this process when its parent ends, even if the parent is killed."""

    def watch() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
