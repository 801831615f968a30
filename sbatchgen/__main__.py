"""The process of a command: `sbatchgen`, or `python -m sbatchgen`."""

import os
import signal

INTERRUPTED = 130
_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so where it is to be ignored
if _heard:
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))

import atexit  # noqa: E402
import gc  # noqa: E402
from types import FrameType  # noqa: E402

gc.disable()  # before the imports: a command is over before there is garbage worth a pause
atexit.register(gc.freeze)  # a tenth of a short one would go into a last look through all modules

from sbatchgen import cli  # noqa: E402


def main() -> None:
    """Run the command; once it has an exit status, Ctrl-C does not change it."""
    if _heard:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        cli.main()
    except KeyboardInterrupt:  # again, while the first one was dealt with
        os._exit(INTERRUPTED)
    finally:
        if _heard:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Ctrl-C. An import has nothing to end well, and Python turns what is raised in one into other errors."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
