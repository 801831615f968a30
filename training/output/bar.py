"""The live line of a terminal, by tqdm. Where there is no terminal, or no tqdm, there is none.

It has no colour, so that NO_COLOR asks for nothing, and needs a terminal that can go back to the beginning of
a line, which TERM=dumb cannot. tqdm's own variables (TQDM_DISABLE, TQDM_ASCII, ...) hold as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from typing import Any

SHAPE = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} images{postfix}"
ROWS = 2  # enough for one line; left to itself, tqdm draws nothing on a terminal that does not say its size
REDRAW_S = 0.1  # at most so often: a slow connection would fall behind


class Bar:
    """At most one line at a time. Any thread may say something above it."""

    def __init__(self) -> None:
        self._line: Any = None

    @property
    def up(self) -> bool:
        """Whether there is a line."""
        return self._line is not None

    def begin(self, title: str, *, total: int, done: int = 0) -> None:
        """Put it up, `done` of `total` images full."""
        made = _tqdm()
        line = made and made(
            desc=title,
            total=total,
            initial=done,
            file=sys.stdout,
            leave=False,
            ncols=_columns(),
            nrows=ROWS,
            bar_format=SHAPE,
            mininterval=REDRAW_S,
            miniters=0,
        )
        self._line = line if line is not None and not line.disable else None

    def show(self, done: int, facts: str) -> None:
        """Bring it to `done` images, with `facts` behind."""
        if self._line is not None:
            self._line.ncols = _columns()  # the window may have another size by now
            with contextlib.suppress(OSError):  # the terminal has gone
                self._line.set_postfix_str(facts, refresh=False)
                self._line.update(done - self._line.n)

    def say(self, text: str) -> None:
        """Print a line, above the live one if that is up."""
        line = self._line
        if line is None:
            print(text, flush=True)
        else:
            line.write(text, file=sys.stdout)

    def end(self) -> None:
        """Take it away: what is said next begins on a clean line."""
        line, self._line = self._line, None
        if line is not None:
            line.close()


def _columns() -> int:
    """How wide the terminal is; 80 where it does not say."""
    return shutil.get_terminal_size().columns


def _tqdm() -> Any:
    """The class of tqdm if it can be used here, else None."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from tqdm import tqdm
    except Exception:  # noqa: BLE001 - absent or broken: the plain lines will do
        return None

    class Live(tqdm):  # type: ignore[type-arg,unused-ignore]
        monitor_interval = 0  # no thread of its own: loaders are forked

    Live.set_lock(threading.RLock())  # nor a lock between processes
    return Live
