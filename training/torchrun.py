"""The torchrun of a job script, on each node: `python3 .../training/torchrun.py OPTIONS -- TRAINER ARGS`.

The options are torchrun's own. This program differs from torchrun in three ways:

- The nodes use a static rendezvous at MASTER_ADDR:MASTER_PORT. The first node holds the store, and the ranks
  follow the order of the nodes. (c10d compares host names and addresses, which fails on nodes with several
  addresses.)
- The first node leaves last. Otherwise the other nodes lose their connection at the end, and print a page
  of errors.
- The exit status is the status of the process that failed first, not 1.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
if __name__ == "__main__":  # started as a file: import the package around it, whatever is on the path
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != PACKAGE]
    sys.path.insert(0, str(PACKAGE.parent))

from training.errors import INTERRUPTED, UserError, complain
from training.processes import hang, resident, spawn, stacks
from training.processes.jobscript import PARENT, leave_status, refuse
from training.processes.ranks import MEETING, require_variables, usable_cpus
from training.processes.stop import ignore_signals

# Signals that torchrun passes on before it ends. By default SIGUSR1 and SIGUSR2 kill torchrun, and its
# processes continue. Versions of torch before pytorch/pytorch#160690 ignore this variable.
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
LEAVE_S = 60.0  # the longest time for which the first node waits for the others to leave


def main(argv: list[str]) -> int:
    """Run torchrun on this node; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(INTERRUPTED))  # until torchrun handles the signal
    os.environ.setdefault("PET_SIGNALS_TO_HANDLE", SIGNALS)
    os.environ[PARENT] = str(os.getpid())  # so that the ranks end if this process is killed
    if importlib.util.find_spec("torch") is None:
        return refuse(UserError("this Python has no torch", at=sys.executable, fix="install it"))
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args

    _stop_once(api)
    # The failure is printed below once, with its rank.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    try:
        nodes = parse_args(_with_underscores(argv)).nnodes  # type: ignore[no-untyped-call]
        words = _with_underscores([*_rendezvous_options(nodes, os.environ), *argv])
        options = parse_args(words)  # type: ignore[no-untyped-call]
        hang.watch(os.environ)
        resident.keep_libraries()
        os.environ.update(stacks.with_hook(stacks.with_recorder(os.environ, os.environ.get("RUN_DIR", ""))))
        _run(options)
    except UserError as error:
        return refuse(error)
    except ChildFailedError as error:
        ignore_signals()  # another node may have failed too
        rank, failure = error.get_first_failure()
        status = failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
        ended = f"by {failure.signal_name()}" if failure.exitcode < 0 else f"with exit status {status}"
        complain(f"Rank {rank} of the training ended {ended}")
        # The bundled trainer has written its status itself, unless it was killed.
        if failure.exitcode < 0 or Path(options.training_script).resolve() != PACKAGE:
            leave_status(status)
        return status
    except SignalException as error:
        complain(f"torchrun was stopped by {error.sigval.name}")
        sys.stdout.flush()
        os._exit(INTERRUPTED)  # torch aborts an ordinary exit if the signal came while torch made its store
    return 0


def _stop_once(api: Any) -> None:
    """Let torchrun stop at its first signal and ignore later signals, which would end the wait for a save.

    Several signals may arrive: Slurm signals each process of a container, whose runtime passes the signal on,
    and users call scancel twice.
    """
    handler = getattr(api, "_terminate_process_handler", None)  # there is no public access
    if handler is None:
        return

    def handle_first(number: int, frame: object) -> None:
        for name in SIGNALS.split(","):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        handler(number, frame)

    api._terminate_process_handler = handle_first  # noqa: SLF001


def _with_underscores(argv: list[str]) -> list[str]:
    """Return torchrun's options with _ in place of - in their names, because torch before 2.0 needs this."""
    end = argv.index("--") if "--" in argv else len(argv)
    names = re.compile("(?<=^--)[^=]+")
    return [names.sub(lambda name: name[0].replace("-", "_"), word) for word in argv[:end]] + argv[end:]


def _rendezvous_options(nodes: str, environ: Mapping[str, str]) -> list[str]:
    """Return the rendezvous options for `nodes` nodes. Options of the command line override these options."""
    if nodes in {"1", "1:1"}:
        return ["--standalone"]
    require_variables(environ, MEETING, fix="export them in the job script")
    host, port, node = environ["MASTER_ADDR"], environ["MASTER_PORT"], environ.get("SLURM_NODEID", "0")
    return ["--rdzv-backend=static", f"--master-addr={host}", f"--master-port={port}", f"--node-rank={node}"]


def _run(options: Namespace) -> None:
    """Run torchrun to its end. The first node leaves last, because its store counts the others."""
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
    from torch.distributed.run import run

    processes = str(options.nproc_per_node)
    if processes.isdecimal() and int(processes):  # otherwise torchrun gives each process one thread
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cpus() // int(processes))))
    handlers: list[Any] = []

    def shutdown(self: Any) -> bool:
        handlers.append(self)  # this keeps the store open
        return True

    StaticTCPRendezvous.shutdown = shutdown  # type: ignore[method-assign]
    run(options)  # type: ignore[no-untyped-call]
    with contextlib.suppress(Exception):  # the training itself has succeeded
        for handler in handlers:
            store = handler._store  # noqa: SLF001 - there is no public access
            count = store.add("left", 1)
            deadline = time.monotonic() + LEAVE_S
            while handler.rank == 0 and count < handler.world_size and time.monotonic() < deadline:
                time.sleep(0.05)
                count = store.add("left", 0)


if __name__ == "__main__":
    spawn.exit_with_status(main)
