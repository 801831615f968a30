"""`python -m training`: wire the parts, and turn what happens into an exit status.

How to start it in each way, and what it leaves where, stands in __init__.py; --help shows that too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from pathlib import Path

from . import spawn
from .config import Config, parse
from .errors import FAILED, NOT_FINITE, PREEMPTED, FolderError, NotFiniteError, UserError, one_line
from .launch import detect
from .log import complain, mark_failed
from .stop import Stop


def main(argv: list[str]) -> int:
    """Run the command line `argv`; torch is imported only once it makes sense."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch's; nothing here needs it
    config: Config | None = None
    try:
        config = parse(argv)
        if config.launcher == "spawn":
            processes = config.nproc_per_node or _gpus(config) or 1
            return _told(config, spawn.run(argv, processes, nodes=config.nnodes, node=config.node_rank))
        stop = Stop()  # before the slow imports: from here on a signal is remembered and does not kill
        place = detect(os.environ, config.launcher)
        try:
            from .engine import run
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise UserError(
                "this Python has no torch", at=sys.executable, fix="install it, or start another Python"
            ) from error
        return _told(config, run(config, place, stop))
    except (UserError, NotFiniteError) as error:
        shared = isinstance(error, NotFiniteError) or error.shared
        status = NOT_FINITE if isinstance(error, NotFiniteError) else FAILED
        if shared and _number("RANK", "SLURM_PROCID"):
            return status  # rank 0 tells it
        if shared or _number("LOCAL_RANK", "SLURM_LOCALID") == 0:
            complain(f"error: {error}")
        return _failed(config, error, status)
    except Exception as error:  # noqa: BLE001 - a bug, or a process that went away
        complain(traceback.format_exc().rstrip())
        return _failed(config, error, FAILED)


def _told(config: Config, status: int) -> int:
    """The exit status, with the one for a stop as the command line wants it."""
    return config.preempted_status if status == PREEMPTED else status


def _failed(config: Config | None, error: Exception, status: int) -> int:
    """Leave the reason where the job script looks."""
    if config is not None and not config.evaluate and not isinstance(error, FolderError):
        mark_failed(Path(config.run_dir), one_line(error), status)
    return status


def _gpus(config: Config) -> int:
    """GPUs that processes of this node can use."""
    if config.device == "cpu":
        return 0
    import torch

    return torch.cuda.device_count()


def _number(*names: str) -> int:
    """The first of these variables which is a number, else 0."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), 0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a full disk
            stream.flush()
    # Not sys.exit: at the interpreter's end, threads of a process group may abort a run that is done and
    # saved, or wait for ever for processes that are gone.
    os._exit(code)
