"""The process of a command: `sbatchgen`, or `python -m sbatchgen`."""

import os
import sys

if __name__ == "__main__":  # of `python -m`, the first folder is that of a job, which may hold a json.py
    try:
        if sys.path[0] == os.getcwd() != __file__.removesuffix("/sbatchgen/__main__.py"):  # noqa: PTH109 - a text
            del sys.path[0]
    except OSError:  # it was deleted
        pass

import atexit
import gc
import signal

gc.set_threshold(100_000)  # a short command creates little garbage: this saves a twelfth of its time

_on_interrupt = signal.getsignal(signal.SIGINT)
if _on_interrupt is signal.default_int_handler:  # else SIGINT is ignored, as under nohup
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports prints no stack trace

from sbatchgen import cli  # noqa: E402


def main() -> None:
    """Run the command, and end the process without freeing its modules one by one: 3 ms of 70."""
    signal.signal(signal.SIGINT, _on_interrupt)
    try:
        cli.main()
    except SystemExit as end:  # its output is flushed
        atexit._run_exitfuncs()  # noqa: SLF001 - of libraries: matplotlib removes a temporary folder
        os._exit(int(end.code or 0))


if __name__ == "__main__":
    main()
