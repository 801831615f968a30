"""The process of a command: `sbatchgen`, or `python -m sbatchgen`."""

import os
import signal

_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so where it is to be ignored
if _heard:  # during the imports nothing is under way that would have to be ended well
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import atexit  # noqa: E402
import gc  # noqa: E402

gc.disable()  # before the imports: a command is over before there is garbage worth a pause
atexit.register(gc.freeze)  # a tenth of a short one would go into a last look through all modules

from sbatchgen import cli  # noqa: E402


def main() -> None:
    """Run the command; once it has an exit status, Ctrl-C does not change it."""
    if _heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli.main()
    except KeyboardInterrupt:  # again, while the first one was dealt with
        os._exit(130)
    finally:
        if _heard:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
