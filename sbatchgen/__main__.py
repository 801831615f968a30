"""The process of a command: `sbatchgen`, or `python -m sbatchgen`."""

import os
import signal

INTERRUPTED = 130
_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else SIGINT is ignored
if _heard:
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))

import atexit  # noqa: E402
import gc  # noqa: E402
from types import FrameType  # noqa: E402

gc.disable()  # a command ends before there is garbage to collect
atexit.register(gc.freeze)  # skips the last collection, a tenth of a short command

from sbatchgen import cli  # noqa: E402


def main() -> None:
    """Run the command; Ctrl-C does not change an exit status that is decided."""
    if _heard:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        cli.main()
    except KeyboardInterrupt:  # a second Ctrl-C
        os._exit(INTERRUPTED)
    finally:
        if _heard:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Ctrl-C. In an import exit at once: Python would turn the exception into other errors."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
