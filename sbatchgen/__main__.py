"""The process of a command: `sbatchgen`, or `python -m sbatchgen`."""

import atexit
import gc
import signal

# A short command creates little garbage. These two lines save a seventh of its time.
gc.set_threshold(100_000)
atexit.register(gc.freeze)

_on_interrupt = signal.getsignal(signal.SIGINT)
if _on_interrupt is signal.default_int_handler:  # else SIGINT is ignored, as under nohup
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports prints no stack trace

from sbatchgen import cli  # noqa: E402


def main() -> None:
    """Run the command."""
    signal.signal(signal.SIGINT, _on_interrupt)
    cli.main()


if __name__ == "__main__":
    main()
