"""`python3 -m training`, or `python3 .../training`, which works from any folder: see command.py."""

import contextlib
import faulthandler
import os
import sys

if not __package__:
    # Started as a folder: import the package by name from the folder around it, and the user's modules
    # (--dataset own:data) from the current folder, as with -m. A folder `training` there is not imported.
    sys.path[:1] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""]  # noqa: PTH100, PTH120

from training.errors import FAILED, complain
from training.processes.jobscript import leave_status

OLDEST = (3, 10)
if sys.version_info < OLDEST:  # the launch programs take older ones, for trainers of their own
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0":
        here, needed = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST))
        what = f"the bundled trainer needs Python {needed} or newer, and this is {here}; at: {sys.executable}"
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
    # Not sys.exit: at interpreter exit, threads of a process group may abort, or wait for ended processes.
    os._exit(code)
