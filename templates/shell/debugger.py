"""In each Python of `train` in a shell with --debug: pdb of one rank, on the terminal of the shell.

This is the `sitecustomize` of a folder on PYTHONPATH, which is there for one `train`. breakpoint() and a
crash stop the rank that was chosen. The other ranks wait in their collectives for as long as that takes.

Written for Python 3.8 and nothing else. A trainer finds no module imported that could be one of its own.
"""

import contextlib
import fcntl
import importlib
import io
import os
import sys
import termios
import time
from datetime import timedelta
from functools import lru_cache, wraps
from importlib.machinery import PathFinder
from typing import Any, Callable, Dict, Iterator, Optional, Type

FOLDER = os.path.dirname(__file__)
PROMPT = f"{FOLDER}/prompt"  # is there while the rank waits for the user
RANK, NODE, TERMINAL, DEVICE = os.environ["SBATCHGEN_DEBUG_AT"].split(" ", 4)[:4]
OWNER = "SBATCHGEN_DEBUGGED"  # a rank, and its topmost process: those below may crash, as a test for a module
CTRL_C = b"\x03"
GRACE_S = 10.0  # for a crash of the chosen rank, after the crash of another rank
ENDS = ("BdbQuit", "ChildFailedError", "KeyboardInterrupt")  # by the user; a launcher without RANK


def rank() -> str:
    """Return the rank of this process: that of its process group, or of its launcher."""
    group = sys.modules.get("torch.distributed")
    if group and group.is_available() and group.is_initialized():
        return str(group.get_rank())
    return os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"


def stop(*_: object, **__: object) -> None:
    """Be breakpoint(): stop the chosen rank in the function that calls this one."""
    terminal = opened(os.getpid()) if rank() == RANK else None
    if terminal:
        terminal.pdb().set_trace(sys._getframe(1))


def crashed(kind: Type[BaseException], error: BaseException, trace: Any) -> None:
    """Be sys.excepthook: show where the chosen rank has crashed. Another waits: its end would end all."""
    BEFORE(kind, error, trace)
    if not IS_RANK or kind.__name__ in ENDS or trace is None:
        return
    if rank() == RANK:
        terminal = opened(os.getpid())
        if terminal:
            terminal.write(f"\n{kind.__name__}: {error}\n")  # Slurm may pass the traceback on later
            debugger = terminal.pdb()
            debugger.reset()
            debugger.interaction(None, trace)
        return
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        time.sleep(0.2)
        if os.path.exists(PROMPT):
            until = time.monotonic() + GRACE_S


@lru_cache(maxsize=None)
def opened(_: int) -> Optional["Terminal"]:
    """Return the terminal of the shell for a process; say once that it can't be reached, and why."""
    here, why = os.environ.get("SLURMD_NODENAME", "here"), "its container has terminals of its own"
    if here != NODE:
        why = f"it is on {here}, and this shell on {NODE}; fix: a rank of {NODE}, or a shell with --nodes 1"
    with contextlib.suppress(OSError):
        if here == NODE and "{0.st_dev}:{0.st_ino}".format(os.stat(TERMINAL)) == DEVICE:
            return Terminal(os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY))
    print(f"warning: rank {RANK} can't stop in this terminal: {why}", file=sys.stderr, flush=True)
    return None


class Terminal(io.TextIOBase):
    """The terminal, whose Ctrl-C is the end of a line while pdb asks."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        """Return its number."""
        return self.number

    def write(self, text: str) -> int:
        """Write a text."""
        return os.write(self.number, text.encode("utf-8", "replace"))

    def readline(self, _: Any = -1) -> str:
        """Read a line; "" if the terminal has gone."""
        line = b""
        with contextlib.suppress(OSError):
            line = os.read(self.number, 4096)  # a line at most
        if line.endswith(CTRL_C):
            self.write("\n")
            raise KeyboardInterrupt
        return line.decode("utf-8", "replace")

    def pdb(self) -> Any:
        """Return a pdb that asks here."""
        from pdb import Pdb

        class Debugger(Pdb):
            def interaction(this, *args: Any) -> None:
                with self.asks():
                    super().interaction(*args)

        return Debugger(stdin=self, stdout=self, nosigint=True)

    @contextlib.contextmanager
    def asks(self) -> Iterator[None]:
        """Be pdb's alone: Ctrl-C would go to the launcher, and processes of a DataLoader stop one by one."""
        sys.stdout.flush()
        fcntl.flock(self.number, fcntl.LOCK_EX)
        before, now, stdin = termios.tcgetattr(self.number), termios.tcgetattr(self.number), sys.stdin
        now[3] &= ~termios.ISIG
        now[6][termios.VEOL] = CTRL_C
        try:
            open(PROMPT, "w").close()
            termios.tcsetattr(self.number, termios.TCSANOW, now)
            sys.stdin = self
            yield
        finally:
            sys.stdin = stdin
            termios.tcsetattr(self.number, termios.TCSANOW, before)
            with contextlib.suppress(OSError):
                os.unlink(PROMPT)
            fcntl.flock(self.number, fcntl.LOCK_UN)


class Changed(PathFinder):
    """Replaces functions of modules: other names of breakpoint(), and collectives that would not wait."""

    @classmethod
    def find_spec(cls, name: str, *args: Any) -> Any:
        """Find a module with a function of CHANGES, which is replaced as soon as the module is loaded."""
        spec: Any = super().find_spec(name, *args) if name in CHANGES else None
        if not spec:
            return None
        load = spec.loader.exec_module

        def loaded(module: Any) -> None:
            load(module)
            for function, change in CHANGES[name].items():
                if hasattr(module, function):
                    setattr(module, function, change(getattr(module, function)))

        spec.loader.exec_module = loaded
        return spec


def longer(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a process group with a long timeout."""
    from inspect import signature  # as torch does

    @wraps(make)
    def made(*args: Any, **more: Any) -> Any:
        given = signature(make).bind(*args, **more)
        given.arguments["timeout"] = timedelta(days=7)  # milliseconds in 32 bits
        return make(*given.args, **given.kwargs)

    return made


CHANGES: Dict[str, Dict[str, Callable[..., Any]]] = {
    "pdb": {"set_trace": lambda _: stop},
    "torch.distributed": {"breakpoint": lambda _: stop},
    "torch.distributed.distributed_c10d": {"init_process_group": longer, "new_group": longer},
}
if __name__ == "sitecustomize":
    _owner = os.environ.get(OWNER, "").split()
    _me = [os.environ.get("RANK", "-"), str(os.getpid())]
    IS_RANK = _owner[:1] != _me[:1] or _owner == _me
    with open("/proc/self/cmdline", "rb") as _words:
        if IS_RANK and b"/training/task.py\0" not in _words.read():  # which starts the trainer
            os.environ[OWNER] = " ".join(_me)
    os.environ["HANG_AFTER"] = "off"  # a stopped rank is no hang
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    BEFORE, sys.excepthook = sys.excepthook, crashed
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = stop
    sys.meta_path.insert(0, Changed)
    open(f"{FOLDER}/loaded", "w").close()
    # The sitecustomize that this module hides, as training/hook does it.
    sys.path[:] = [folder for folder in sys.path if folder != FOLDER]
    _this = sys.modules.pop(__name__)
    with contextlib.suppress(ImportError):
        importlib.import_module(__name__)
    sys.modules.setdefault(__name__, _this)
