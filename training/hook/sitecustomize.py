"""The first module on a trainer's PYTHONPATH: two signals write the trainer's stack, even in a collective.

Both signals write the stack of the main thread, which gets the signals. The frames of another thread could
move meanwhile. Both write into nameless memory that processes of this user read in /proc.
processes/stacks.py decides which processes get the signals. wandb_run.py is also imported here.
"""

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
from types import FrameType

MEMORY = "sbatchgen-stacks"
# The two signals are SIGRTMAX - 3 and SIGRTMAX - 4, which no other program is known to use.
# The first is for a main thread that waits in C++: faulthandler answers there, but no handler of Python.
# The second is for a main thread that runs: Python answers safely between two of its instructions.
ASLEEP, AWAKE = 3, 4


def register() -> None:
    """Let the two signals write the stack of the main thread."""
    memory = os.memfd_create(MEMORY)
    faulthandler.register(signal.SIGRTMAX - ASLEEP, file=memory, all_threads=False)

    def answer(_: int, frame: "FrameType | None") -> None:  # calls no function of Python
        try:
            lines = ["Stack (most recent call first):\n"]
            while frame is not None:
                code = frame.f_code
                lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}\n')
                frame = frame.f_back
            os.write(memory, "".join(lines).encode("utf-8", "backslashreplace"))
        except Exception:  # noqa: BLE001, S110 - contextlib.suppress would call a function of Python
            pass

    # torch.compile does not compile functions of importlib's file
    answer.__code__ = answer.__code__.replace(co_filename=importlib.__file__)
    signal.signal(signal.SIGRTMAX - AWAKE, answer)
    signal.siginterrupt(signal.SIGRTMAX - AWAKE, False)


if __name__ == "sitecustomize":
    with contextlib.suppress(Exception):  # on another system the trainer has no stacks
        register()
    with contextlib.suppress(Exception):  # without a writable run folder W&B's run has no fixed name
        importlib.import_module("wandb_run").keep()
    sys.modules.pop("wandb_run", None)
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]  # noqa: PTH120
    this = sys.modules.pop(__name__)
    with contextlib.suppress(ImportError):  # imports the sitecustomize that this module hides
        importlib.import_module(__name__)
    sys.modules.setdefault(__name__, this)
