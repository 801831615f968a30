"""The progress bar on a terminal, by tqdm. It needs a terminal and tqdm.

It has no colour. TERM=dumb cannot return to the beginning of a line, so it gets none. tqdm's own variables
(TQDM_DISABLE, TQDM_ASCII, ...) work.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from typing import Any

LOOK: dict[str, Any] = {
    "bar_format": "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} images{postfix}",
    "nrows": 2,  # enough for one line; by default tqdm draws nothing if the terminal does not tell its size
    "mininterval": 0.1,  # seconds, for slow connections
    "miniters": 0,
    "leave": False,
}


class Bar:
    """At most one bar at a time. Any thread may print a line above it."""

    _line: Any = None

    @property
    def up(self) -> bool:
        """Whether a bar is shown."""
        return self._line is not None

    def begin(self, title: str, *, total: int, done: int = 0) -> None:
        """Show a bar of `total` images, `done` of them already done, if there can be one."""
        if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            return
        try:
            from tqdm import tqdm
        except Exception:  # noqa: BLE001 - missing or broken: plain lines are enough
            return

        class Live(tqdm):  # type: ignore[type-arg,unused-ignore]
            monitor_interval = 0  # no thread: loader processes are forked

        Live.set_lock(threading.RLock())  # no lock between processes either
        columns = shutil.get_terminal_size().columns
        line: Any = Live(desc=title, total=total, initial=done, file=sys.stdout, ncols=columns, **LOOK)
        self._line = None if line.disable else line

    def show(self, done: int, facts: str) -> None:
        """Move the bar to `done` images, with `facts` after it."""
        if self._line is not None:
            self._line.ncols = shutil.get_terminal_size().columns  # the window may have been resized
            with contextlib.suppress(OSError):  # the terminal was closed
                self._line.set_postfix_str(facts, refresh=False)
                self._line.update(done - self._line.n)

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._line is None:
            print(text, flush=True)
        else:
            self._line.write(text, file=sys.stdout)

    def end(self) -> None:
        """Remove the bar."""
        line, self._line = self._line, None
        if line is not None:
            line.close()
