"""The start of `python3 -m training`, and of `python3 .../training`, which works from any folder."""

import os
import sys

# The current folder may hold a json.py, so Python imports from there only the user's modules (own_module.py).
if not __package__:  # started as a folder: import the package by name from the folder around it
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import training  # noqa: F401 - from this folder alone

    del sys.path[0]
else:  # by -m, where Python has put the current folder first
    try:
        if sys.path[0] in ("", os.getcwd()):  # noqa: PTH109 - a text
            del sys.path[0]
    except OSError:  # it was deleted
        pass

import contextlib
import faulthandler

from training.errors import FAILED, complain
from training.processes.jobscript import leave_status

OLDEST = (3, 10)
if sys.version_info < OLDEST:  # the launch programs accept an older Python, for trainers of users
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0":
        this, needed = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST))
        what = f"the bundled trainer needs Python {needed} or newer, and this is {this}; at: {sys.executable}"
        complain(f"error: {what}; fix: an environment or image with a newer Python, or a trainer of your own")
    leave_status(FAILED)
    sys.exit(FAILED)

from training.command import main

if __name__ == "__main__":
    faulthandler.enable()  # a crash in a library shows where
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a full disk
            stream.flush()
    # os._exit, because after sys.exit the threads of a process group may abort, or wait for ended processes.
    os._exit(code)
