"""The command `python3 -m training`, which starts the run, and turns errors into an exit status."""

import dataclasses
import json
import os
import socket
import sys
import warnings
from pathlib import Path

from training.config import Config, parse
from training.errors import FAILED, FolderError, NotFiniteError, UserError, complain, one_line
from training.files import OTHERS_WRITE
from training.output.log import mark_failed
from training.processes import hang, spawn
from training.processes.jobscript import finish, leave_status
from training.processes.ranks import detect
from training.processes.stop import Stop, end_with_launcher
from training.runfolder import forecast_start

# The names of torchrun's variable and of srun's variable.
RANK_VARIABLES, SIZE_VARIABLES = ("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS")


def main(argv: list[str]) -> int:
    """Run the command line `argv`, and return the exit status.

    torch is imported late, so that a wrong flag is reported at once.
    """
    os.umask(os.umask(0o077) | OTHERS_WRITE)  # child processes inherit the umask
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # a warning of torch
    config: Config | None = None
    try:
        config = parse(argv)
        if config.look:
            return _print_look(config)
        if config.launcher == "spawn":
            processes = config.nproc_per_node
            if not processes and config.device != "cpu":
                import torch

                processes = torch.cuda.device_count()
            return finish(spawn.run(argv, processes or 1, nodes=config.nnodes, node=config.node_rank))
        end_with_launcher(os.environ)
        stop = Stop()  # before the slow imports, because from here on signals do not kill this process
        place = detect(os.environ, config.launcher)
        if place.launcher == "srun" and place.size > 1:  # srun does not watch the ranks
            hang.watch(os.environ, is_rank=True)
        try:
            from training.run.engine import run
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise UserError("this Python has no torch", at=sys.executable, fix="install it") from error
        return finish(run(config, place, stop))
    except (Exception, SystemExit) as error:
        if config is None and isinstance(error, SystemExit):
            raise  # --help
        return _fail(config, error)


def _print_look(config: Config) -> int:
    """Print the forecast of a start as JSON; return the exit status."""
    try:
        forecast = forecast_start(config, _number("WORLD_SIZE") or 1)
    except OSError as error:
        what = f"cannot read the run folder ({one_line(error)})"
        raise UserError(what, at=config.run_dir, fix="another --run-dir") from error
    print(json.dumps(dataclasses.asdict(forecast)))
    return 0


def _fail(config: Config | None, error: BaseException) -> int:
    """Print and record an error, and return the exit status.

    An error that is neither a UserError nor a NotFiniteError is a bug, and its traceback is printed. The
    error is not recorded in a run folder that belongs to another job.
    """
    known = error if isinstance(error, (UserError, NotFiniteError)) else None
    text, size, status = one_line(error), _number(*SIZE_VARIABLES), known.status if known else FAILED
    if known and known.shared:
        if _number(*RANK_VARIABLES):
            return status  # rank 0 prints the error
    elif config and not config.look and size > 1 and f" of {size} on " not in text:
        host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        text = f"rank {_number(*RANK_VARIABLES)} of {size} on {host}: {text}"
    if not known:
        sys.excepthook(type(error), error, error.__traceback__)  # prints the traceback, or starts a debugger
    if (known or size > 1) and (config or not _number("LOCAL_RANK", "SLURM_LOCALID")):
        complain(f"error: {text}")  # for a wrong command line, once on each node
    if isinstance(error, FolderError):
        return status
    if config and not (config.evaluate or config.look):
        mark_failed(Path(config.run_dir), text, status)
    leave_status(status)
    return status


def _number(*names: str) -> int:
    """Return the value of the first variable that is a number; 0 without one."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), 0)
