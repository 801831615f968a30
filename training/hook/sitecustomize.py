"""First on PYTHONPATH of a trainer: its stack can be written, also while a collective blocks it.

Two signals ask for it. Both write the stack of the thread that gets them, the main one: frames of another
could move meanwhile. Both write into memory that has no name and that this user's processes read in /proc.
See processes/stacks.py, which decides who may be asked, and wandb_run.py, which is imported here too.
"""

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
from types import FrameType

MEMORY = "sbatchgen-stacks"
# Counted from SIGRTMAX: no other program's signals.
ASLEEP = 3  # for a main thread that waits in C++, where Python's own handlers never run: faulthandler's is C
AWAKE = 4  # for one that runs: Python answers between two of its instructions, where nothing can break


def register() -> None:
    """Have the two signals write the stack of the main thread."""
    memory = os.memfd_create(MEMORY)
    faulthandler.register(signal.SIGRTMAX - ASLEEP, file=memory, all_threads=False)

    def answer(_: int, frame: "FrameType | None") -> None:  # it calls no function of Python
        try:
            lines = ["Stack (most recent call first):\n"]
            while frame is not None:
                code = frame.f_code
                lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}\n')
                frame = frame.f_back
            os.write(memory, "".join(lines).encode("utf-8", "backslashreplace"))
        except Exception:  # noqa: BLE001, S110 - contextlib.suppress is a function of Python
            pass

    # torch.compile, which else would compile it too, leaves functions of this file alone
    answer.__code__ = answer.__code__.replace(co_filename=importlib.__file__)
    signal.signal(signal.SIGRTMAX - AWAKE, answer)
    signal.siginterrupt(signal.SIGRTMAX - AWAKE, False)


if __name__ == "sitecustomize":
    with contextlib.suppress(Exception):  # another system: a trainer without stacks
        register()
    with contextlib.suppress(Exception):  # nor without a run folder that can be written
        importlib.import_module("wandb_run").keep()
    sys.modules.pop("wandb_run", None)
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]  # noqa: PTH120
    this = sys.modules.pop(__name__)
    with contextlib.suppress(ImportError):  # the one that this one hides
        importlib.import_module(__name__)
    sys.modules.setdefault(__name__, this)
