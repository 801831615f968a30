"""Facts about processes, read from /proc without an effect on the processes.

For a process that has ended, the functions return an empty text or an empty collection.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_VOLUNTARY_SWITCHES = re.compile(r"\nvoluntary_ctxt_switches:\s(\d+)")  # in /proc/PID/status
_INODE = re.compile(r"socket:\[(\d+)\]")  # the target of the link /proc/PID/fd/N, such as "socket:[40271]"
# Numbers of system calls, by which /proc/PID/syscall names the call in which a thread waits. The constants
# are empty on other machines.
#
# The calls that receive data: read(2), recvfrom(2) and recvmsg(2).
_RECEIVE_CALLS = {"x86_64": ("0", "45", "47"), "aarch64": ("63", "207", "212")}.get(os.uname().machine, ())
# futex(2), by which threads wait for locks. If its operation has the private flag, no other process can end
# the wait. The other bits of the operation are the command. FUTEX_WAITS are the commands that wait.
FUTEX_CALL = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "")
FUTEX_PRIVATE_FLAG, FUTEX_COMMAND_MASK = 128, 127
FUTEX_WAITS = (0, 6, 9, 11, 13)  # WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2
# epoll_wait(2) and epoll_pwait(2).
EPOLL_WAIT_CALLS = {"x86_64": ("232", "281"), "aarch64": ("22",)}.get(os.uname().machine, ())
GLOO_ARGUMENTS = ["0x40", "0xa"]  # of epoll_wait(2) in gloo's thread: 64 events, 10 ms
# accept(2) and accept4(2).
ACCEPT_CALLS = {"x86_64": ("43", "288"), "aarch64": ("202", "242")}.get(os.uname().machine, ())
# Signals that may wake up a process. Other caught signals end a process, come from a child, or belong to
# Python, torch or the watcher.
WAKING_SIGNALS = (
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
)
FIXED_FOLDERS = ("/dev/", "/proc/", "/sys/", "/memfd:")  # the starts of paths of files that do not grow


class Thread(NamedTuple):
    """The state of a thread at a moment."""

    name: str
    # The letter in proc_pid_stat(5): R runs, S sleeps, D waits for a disk, T and t are stopped, Z has ended
    state: str
    wakes: int  # the number of times that the thread has begun to wait
    wanted_s: float  # CPU time so far, and time in which the thread waited for a CPU


def processes() -> list[int]:
    """Return the ids of all processes that this process sees."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def read(pid: int, name: str) -> str:
    """Return the text of a process's file in /proc; "" if the process has ended or is another user's."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""


def state(pid: int) -> str:
    """Return the state of a process's main thread: S, R, D, T, t or Z; "" without the process."""
    fields = read(pid, "stat").rpartition(")")[2].split()
    return fields[0] if fields else ""


def waits_in(pid: int) -> str:
    """Return the kernel function in which the main thread waits.

    The name is "" for a running thread, or if the kernel hides the function.
    """
    function = read(pid, "wchan")
    return "" if function == "0" else function


def read_target(pid: int) -> str:
    """Return the file, pipe or socket that the main thread waits to read, as /proc names it; "" without one.

    Examples are "socket:[40271]" and "pipe:[40272]".
    """
    call = read(pid, "syscall").split()
    return _target(pid, str(int(call[1], 16))) if len(call) > 1 and call[0] in _RECEIVE_CALLS else ""


def waits_for_own_lock(pid: int, task: int) -> bool:
    """Return whether a thread waits, without a time limit, for a lock that only its own process releases.

    The result is False for any other wait, and if the kernel hides the wait.
    """
    call = read(pid, f"task/{task}/syscall").split()
    if len(call) < 5 or call[0] != FUTEX_CALL:
        return False
    operation, has_time_limit = int(call[2], 16), int(call[4], 16) != 0
    is_wait = operation & FUTEX_COMMAND_MASK in FUTEX_WAITS
    return bool(operation & FUTEX_PRIVATE_FLAG) and is_wait and not has_time_limit


def polls_for_gloo(pid: int, task: int) -> bool:
    """Return whether a thread waits like gloo's thread, which wakes up 100 times a second.

    torch 2.2 gives the thread no name, so the call and its arguments must show it.
    """
    call = read(pid, f"task/{task}/syscall").split()
    return len(call) > 4 and call[0] in EPOLL_WAIT_CALLS and call[3:5] == GLOO_ARGUMENTS


def awaits_signals(pid: int) -> bool:
    """Return whether a process catches a signal of a timer or of a user, which may wake up the process."""
    caught = re.search(r"\nSigCgt:\s(\w+)", read(pid, "status"))
    return not caught or any(int(caught[1], 16) & 1 << (number - 1) for number in WAKING_SIGNALS)


def accepts(pid: int, task: int) -> bool:
    """Return whether a thread waits for connections on a Unix socket, as a thread of multiprocessing does."""
    call = read(pid, f"task/{task}/syscall").split()
    if len(call) < 2 or call[0] not in ACCEPT_CALLS:
        return False
    number = inode(_target(pid, str(int(call[1], 16))))
    return f" {number} " in read(pid, "net/unix")


def inode(target: str) -> int:
    """Return the inode in a socket's name in /proc; 0 for the name of a file or a pipe."""
    match = _INODE.match(target)
    return int(match[1]) if match else 0


def holders(target: str) -> Iterator[int]:
    """Yield the processes that hold a socket, pipe or file open, by its name in /proc."""
    for pid in processes():
        if any(_target(pid, number) == target for number in _entries(pid, "fd")):
            yield pid


def sleeps(pid: int) -> bool:
    """Return whether the main thread is in a call such as sleep(3), which ends after a time."""
    return "nanosleep" in waits_in(pid)


def children(pid: int) -> list[int]:
    """Return the ids of a process's children, without this process."""
    texts = [read(pid, f"task/{task}/children") for task in _entries(pid, "task")]
    seen = [int(child) for text in texts for child in text.split()]
    return [child for child in seen if child != os.getpid()]


def descendants(pid: int, without: Container[int] = ()) -> Iterator[int]:
    """Yield all descendants of a process, parents first; omit those in `without`, and those below them."""
    for child in children(pid):
        if child not in without:
            yield child
            yield from descendants(child, without)


def variable(pid: int, *names: str) -> str:
    """Return the value of the first variable of `names` that is a number; "" without such a variable.

    The environment is that of the process's start.
    """
    known = dict(text.partition("=")[::2] for text in read(pid, "environ").split("\0"))
    return next((known[name] for name in names if known.get(name, "").isdecimal()), "")


def program(pid: int) -> str:
    """Return the name of the program that a process runs."""
    return read(pid, "comm").strip()


def threads(pid: int) -> dict[int, Thread]:
    """Return the threads of a process by their ids; the main thread has the id of the process."""
    seen = {}
    for task in _entries(pid, "task"):
        status, used = read(pid, f"task/{task}/status"), read(pid, f"task/{task}/schedstat").split()
        name, letter = re.match(r"Name:\s(.*)", status), re.search(r"\nState:\s(\w)", status)
        waited = _VOLUNTARY_SWITCHES.search(status)
        if name and letter and waited:
            wanted_s = sum(map(int, used[:2])) / 1e9  # time on a CPU, and in the queue of a CPU
            seen[int(task)] = Thread(name[1], letter[1], int(waited[1]), wanted_s)
    return seen


def ended_children_s(pid: int) -> float:
    """Return the CPU time of a process's children that have ended, in seconds."""
    fields = read(pid, "stat").rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")


def bytes_moved(pid: int) -> int:
    """Return the bytes that a process has read and written, including pipes and cached files."""
    return sum(map(int, re.findall(r"[rw]char: (\d+)", read(pid, "io"))))


def bytes_of_main(pid: int) -> tuple[int, int]:
    """Return the bytes that the main thread has read, and the bytes that it has written.

    Even a few bytes are a sign of life of the main thread, although they mean little for a whole process.
    """
    counts = dict(re.findall(r"(\w+): (\d+)", read(pid, f"task/{pid}/io")))
    return int(counts.get("rchar", 0)), int(counts.get("wchar", 0))


def files_and_sockets(pid: int) -> tuple[dict[str, int], set[int]]:
    """Return the sizes of the files that a process writes, by name, and the inodes of its sockets."""
    sizes, sockets = {}, set()
    log = {_target(os.getpid(), number) for number in ("1", "2")}  # not counted here: signs.py watches it
    for number in _entries(pid, "fd"):
        with contextlib.suppress(OSError):
            target = _target(pid, number)
            if inode(target):
                sockets.add(inode(target))
            elif target in log or target.startswith(FIXED_FOLDERS) or not target.startswith("/"):
                continue
            elif _is_writable(pid, number):
                sizes[target] = os.stat(f"/proc/{pid}/fd/{number}").st_size  # noqa: PTH116 - a link
    return sizes, sockets


def _target(pid: int, number: str) -> str:
    """Return the name in /proc of a descriptor's file, pipe or socket; "" for a closed descriptor."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 - Python 3.7
    return ""


def _is_writable(pid: int, number: str) -> bool:
    match = re.search(r"flags:\s0*([0-7]+)", read(pid, f"fdinfo/{number}"))
    return bool(match and int(match[1], 8) & (os.O_WRONLY | os.O_RDWR))


def _entries(pid: int, name: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{pid}/{name}")  # noqa: PTH208 - only the names
    return []


def place_in_job(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of this node in the Slurm step, and the number of the step's nodes."""
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    node = environ.get("SLURM_NODEID") or "0"
    count = int(nodes) if nodes.isdecimal() else 1
    return (int(node) if node.isdecimal() and count > 1 else 0), max(count, 1)
