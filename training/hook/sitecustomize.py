"""First on PYTHONPATH of a trainer: its stacks can be written, also while a collective blocks it.

Python's own handlers never run while C++ waits; faulthandler's is C. It writes into memory that has no name
and that this user's processes read in /proc: see processes/stacks.py. See wandb_run.py for what else it does.
"""

import contextlib
import faulthandler
import importlib
import os
import signal
import sys

MEMORY, FROM_END = "sbatchgen-stacks", 3  # SIGRTMAX - 3: no other program's signal


def register() -> None:
    """Have the signal write the stacks of all threads of this process."""
    memory = os.memfd_create(MEMORY)
    faulthandler.register(signal.SIGRTMAX - FROM_END, file=memory, all_threads=True)


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
