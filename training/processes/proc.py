"""What /proc says of processes. Nothing is sent to them; "" or nothing stands for one that has ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_WAITED = re.compile(r"\nvoluntary_ctxt_switches:\s(\d+)")
_INODE = re.compile(r"socket:\[(\d+)\]")
# read(2), recvfrom(2) and recvmsg(2), by their numbers
_RECEIVES = {"x86_64": ("0", "45", "47"), "aarch64": ("63", "207", "212")}.get(os.uname().machine, ())
# futex(2): its number, and those of its operations that wait; with PRIVATE another process can't end the wait
FUTEX, PRIVATE, COMMAND = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, ""), 128, 127
LOCKS = (0, 6, 9, 11, 13)  # WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2
# epoll_wait(2) as gloo's thread calls it, by the numbers of the call, for so many events and milliseconds
EPOLL_WAITS, OF_GLOO = (
    {"x86_64": ("232", "281"), "aarch64": ("22",)}.get(os.uname().machine, ()),
    ["0x40", "0xa"],
)
ACCEPTS = {"x86_64": ("43", "288"), "aarch64": ("202", "242")}.get(os.uname().machine, ())  # accept(2)
# Other signals that are caught end a process, come from a child, or are of Python, torch or the watcher.
WAKING = (
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
)
NOWHERE = ("/dev/", "/proc/", "/sys/", "/memfd:")  # what is open there is no file that grows


class Thread(NamedTuple):
    """A thread at a moment."""

    name: str
    state: str  # as in /proc/PID/stat: R, S, D, T, t, Z
    wakes: int  # how often it has begun to wait
    wanted_s: float  # CPU time so far, and time in which it could have run and got no CPU


def processes() -> list[int]:
    """Return the processes of this machine that are seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def read(pid: int, name: str) -> str:
    """Return a file of a process in /proc; "" if it has ended, or belongs to another user."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""


def state(pid: int) -> str:
    """Return the state of a process's main thread: S, R, D, T, t or Z; "" without the process."""
    fields = read(pid, "stat").rpartition(")")[2].split()
    return fields[0] if fields else ""


def wait(pid: int) -> str:
    """Return the function of the kernel in which the main thread waits; "" if it runs, or that is hidden."""
    where = read(pid, "wchan")
    return "" if where == "0" else where


def read_from(pid: int) -> str:
    """Return the socket or pipe from which the main thread waits to read, as /proc names it.

    "" if it does not.
    """
    call = read(pid, "syscall").split()
    return _target(pid, str(int(call[1], 16))) if len(call) > 1 and call[0] in _RECEIVES else ""


def waits_for_own_lock(pid: int, task: int) -> bool:
    """Return whether a thread waits without an end for a lock that only a thread of its own process releases.

    False for each other wait, and where the kernel does not tell.
    """
    call = read(pid, f"task/{task}/syscall").split()
    if len(call) < 5 or call[0] != FUTEX:
        return False
    operation, has_end = int(call[2], 16), int(call[4], 16) != 0
    return bool(operation & PRIVATE) and operation & COMMAND in LOCKS and not has_end


def polls_for_gloo(pid: int, task: int) -> bool:
    """Return whether a thread waits as that of gloo, which looks 100 times a second.

    Torch 2.2 gives it no name.
    """
    call = read(pid, f"task/{task}/syscall").split()
    return len(call) > 4 and call[0] in EPOLL_WAITS and call[3:5] == OF_GLOO


def awaits_signals(pid: int) -> bool:
    """Return whether a process catches a signal that may wake it up: of a timer, or of somebody else."""
    caught = re.search(r"\nSigCgt:\s(\w+)", read(pid, "status"))
    return not caught or any(int(caught[1], 16) & 1 << (number - 1) for number in WAKING)


def accepts(pid: int, task: int) -> bool:
    """Return whether a thread waits for a connection on a Unix socket, as multiprocessing's for files."""
    call = read(pid, f"task/{task}/syscall").split()
    if len(call) < 2 or call[0] not in ACCEPTS:
        return False
    number = inode(_target(pid, str(int(call[1], 16))))
    return f" {number} " in read(pid, "net/unix")


def inode(target: str) -> int:
    """Return the inode of a socket that /proc names so; 0 for something else."""
    match = _INODE.match(target)
    return int(match[1]) if match else 0


def holders(target: str) -> Iterator[int]:
    """Yield the processes that have this socket, pipe or file open."""
    for pid in processes():
        if any(_target(pid, number) == target for number in _entries(pid, "fd")):
            yield pid


def sleeps(pid: int) -> bool:
    """Return whether the main thread sleeps, which ends by itself."""
    return "nanosleep" in wait(pid)


def children(pid: int) -> list[int]:
    """Return the processes that one has started, but not this one."""
    texts = [read(pid, f"task/{task}/children") for task in _entries(pid, "task")]
    seen = [int(child) for text in texts for child in text.split()]
    return [child for child in seen if child != os.getpid()]


def below(pid: int, apart: Container[int] = ()) -> Iterator[int]:
    """Yield all processes below one, each before its own, without those `apart` and all below them."""
    for child in children(pid):
        if child not in apart:
            yield child
            yield from below(child, apart)


def variable(pid: int, *names: str) -> str:
    """Return the first of these variables that is a number, with which a process was started.

    "" without any.
    """
    known = dict(each.partition("=")[::2] for each in read(pid, "environ").split("\0"))
    return next((known[name] for name in names if known.get(name, "").isdecimal()), "")


def program(pid: int) -> str:
    """Return the name of the program that a process runs."""
    return read(pid, "comm").strip()


def threads(pid: int) -> dict[int, Thread]:
    """Return the threads of a process by their numbers; the main one has that of the process."""
    seen = {}
    for task in _entries(pid, "task"):
        status, used = read(pid, f"task/{task}/status"), read(pid, f"task/{task}/schedstat").split()
        name, letter = re.match(r"Name:\s(.*)", status), re.search(r"\nState:\s(\w)", status)
        waited = _WAITED.search(status)
        if name and letter and waited:
            wanted_s = sum(map(int, used[:2])) / 1e9
            seen[int(task)] = Thread(name[1], letter[1], int(waited[1]), wanted_s)
    return seen


def ended_children_s(pid: int) -> float:
    """Return the CPU time of the children that have ended."""
    fields = read(pid, "stat").rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")


def bytes_moved(pid: int) -> int:
    """Return the bytes that a process has read and written, also through pipes and from a cache."""
    return sum(map(int, re.findall(r"[rw]char: (\d+)", read(pid, "io"))))


def bytes_of_main(pid: int) -> tuple[int, int]:
    """Return the bytes that the main thread has read and written.

    What is little for a process is a word for it.
    """
    counts = dict(re.findall(r"(\w+): (\d+)", read(pid, f"task/{pid}/io")))
    return int(counts.get("rchar", 0)), int(counts.get("wchar", 0))


def files_and_sockets(pid: int) -> tuple[dict[str, int], set[int]]:
    """Return the sizes of the files that a process writes, by name, and the inodes of its sockets."""
    sizes, sockets = {}, set()
    log = {_target(os.getpid(), number) for number in ("1", "2")}  # what it prints is seen there
    for number in _entries(pid, "fd"):
        with contextlib.suppress(OSError):
            target = _target(pid, number)
            if inode(target):
                sockets.add(inode(target))
            elif target in log or target.startswith(NOWHERE) or not target.startswith("/"):
                continue
            elif _is_written(pid, number):
                sizes[target] = os.stat(f"/proc/{pid}/fd/{number}").st_size  # noqa: PTH116 - a link
    return sizes, sockets


def _target(pid: int, number: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 - Python 3.7
    return ""


def _is_written(pid: int, number: str) -> bool:
    match = re.search(r"flags:\s0*([0-7]+)", read(pid, f"fdinfo/{number}"))
    return bool(match and int(match[1], 8) & (os.O_WRONLY | os.O_RDWR))


def _entries(pid: int, name: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{pid}/{name}")  # noqa: PTH208 - the numbers alone
    return []


def place_in_job(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of this node in the step, and how many the step has."""
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    node = environ.get("SLURM_NODEID") or "0"
    count = int(nodes) if nodes.isdecimal() else 1
    return (int(node) if node.isdecimal() and count > 1 else 0), max(count, 1)
