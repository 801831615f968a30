"""The first process in a sandbox, as confined as the program that it runs within limits and reports on.

Sources: getrlimit(2), prctl(2), proc(5), statvfs(3).
"""

from __future__ import annotations

import os
import resource
import signal
import stat
import time

TYPE_CHECKING = False  # loading typing takes longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_SHOWN, _RECORDS, _ALL = 1 << 20, 4000, 64 << 20  # bytes of a file, files, and bytes of all that are reported
_POLL_S, _LEFT_S = 0.02, 2.0  # between two looks, and for what the program has left
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), resource.getpagesize()
_SET_DUMPABLE = 4  # of prctl(2)
_INODE = 1 << 10  # bytes of the kernel's memory for a file


def main(task: dict[str, Any]) -> None:
    """Run the program of a task; write the report to stdout.

    That is a "+", a line with status, memory and limit, one with size and name of each file, an empty one,
    and the files.
    """
    os.write(1, b"+")
    hide()
    os.umask(0o022)
    for name in task["folders"]:
        quietly(os.makedirs, name, exist_ok=True)
    for name, what in task["files"].items():
        quietly(put, name, what)
    null = os.open("/dev/null", os.O_RDWR)
    waiting, started = os.pipe()  # closed once the program has begun: until then the memory is this one's
    program = os.fork()
    if program == 0:
        try:
            become(task)
        finally:
            os._exit(127)
    os.close(started)
    os.dup2(null, 0)  # the program could open these below /proc
    os.dup2(null, 2)
    os.read(waiting, 1)
    status, limit, memory = watch(program, task["limits"], task["in_memory"])
    end_all()
    files = contents(task["place"])
    head = [f"{status} {memory} {limit}", *(f"{len(data)} {name}" for name, data in files.items()), "", ""]
    for data in ("\n".join(head).encode(), *files.values()):
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]


def hide() -> None:
    """Close to programs of the same user what is below /proc of this process: its memory and its files."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2:  # also of folders of the machine, from which .. leads out
            quietly(os.close, number)
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError):  # some builds of Python have none; then it may be misled
        pass


def end_all() -> None:
    """End all programs, and what they start meanwhile."""
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:  # all that have ended: each kill goes through them
                pass
        except OSError:
            return


def quietly(work: Any, *args: Any, **more: Any) -> None:
    """Do what may fail."""
    try:
        work(*args, **more)
    except (OSError, ValueError, RecursionError):  # as of a name with a NUL, or of a thousand folders
        pass


def put(name: str, what: tuple[bytes, int] | str) -> None:
    """Make a link or a file; a file that only has to be there stays as it is."""
    os.makedirs(os.path.dirname(name), exist_ok=True)
    if isinstance(what, str):
        os.symlink(what, name)
    elif what[0] or not os.path.exists(name):
        with open(name, "wb") as file:
            file.write(what[0])
        os.chmod(name, what[1])


def become(task: dict[str, Any]) -> None:
    """Become the program, whose start closes what this process has opened."""
    limits = task["limits"]
    os.setsid()
    quietly(os.chdir, "/")
    quietly(os.chdir, task["folder"])
    for number, name in ((0, "/dev/null"), (1, f"{task['place']}/out"), (2, f"{task['place']}/err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY), number)
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for kind, most in (
        (resource.RLIMIT_CORE, 1), (resource.RLIMIT_NOFILE, 4096), (resource.RLIMIT_FSIZE, limits["file"]),
        (resource.RLIMIT_NPROC, task["tasks"]),
        (resource.RLIMIT_AS, limits["each"]),  # the last: this process may have more
    ):  # fmt: skip
        if most:
            quietly(resource.setrlimit, kind, (most, most))
    os.execve(task["argv"][0], task["argv"], task["environment"])


def watch(program: int, limits: dict[str, Any], places: Sequence[str]) -> tuple[int, str, int]:
    """Wait for the program and what it left; return its status, the limit that it reached, and memory."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    began = computed_at = time.monotonic()
    status, most, computed, end = None, 0, 0.0, began + limits["seconds"]
    while True:
        try:
            child, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        now, pids = time.monotonic(), [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        if child == program:
            status, end = os.waitstatus_to_exitcode(ended), min(end, now + _LEFT_S)
        if len(pids) > limits["processes"]:  # first: measuring them would take longer than others to start
            return 128 + signal.SIGKILL, "processes", most
        if len(pids) > limits["processes"]:  # to measure them takes longer than to become more
            return 128 + signal.SIGKILL, "processes", most
        seconds, runs, memory = measured(pids, limits["memory"])
        if runs or seconds > computed:
            computed, computed_at = seconds, now
        memory += in_files(places)
        most = max(most, memory)
        late = now > end or seconds > limits["cpu"] or now > computed_at + limits["idle"]
        if late and status is not None:
            break
        if memory > limits["memory"] or late:
            return 128 + signal.SIGKILL, "time" if memory <= limits["memory"] else "memory", most
        if not child:
            signal.sigtimedwait([signal.SIGCHLD], _POLL_S)
    status = 0 if status is None else status
    return (status if status >= 0 else 128 - status), "", most


def measured(pids: Sequence[str], most: int) -> tuple[float, bool, int]:
    """Return the seconds of processors that programs used, whether one runs, and the bytes that they have.

    Above `most` bytes, what several of them share counts once.
    """
    times, runs, sizes = os.times(), False, {}
    ticks = (times.children_user + times.children_system) * _TICKS
    for name in pids:
        if fields := read(f"/proc/{name}/stat").rpartition(")")[2].split():  # proc_pid_stat(5)
            ticks += sum(map(int, fields[11:15]))
            runs = runs or fields[0] in "RD"
            sizes[name] = int(fields[21]) * _PAGE
    for name in sizes if sum(sizes.values()) > most else ():
        parts = read(f"/proc/{name}/smaps_rollup").partition("\nPss:")[2].split()
        sizes[name] = int(parts[0]) << 10 if parts else sizes[name]
    return ticks / _TICKS, runs, sum(sizes.values())


def in_files(places: Sequence[str]) -> int:
    """Return the bytes of the files in memory."""
    about = [os.statvfs(name) for name in places]
    blocks = sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in about)
    return blocks + sum((each.f_files - each.f_ffree) * _INODE for each in about)


def read(name: str) -> str:
    """Return what a file of the kernel says; "" of a process that has ended."""
    try:
        with open(name, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def contents(place: str) -> dict[str, bytes]:
    """Return the regular files that the program could write, the first bytes of each."""
    texts: dict[str, bytes] = {}
    left, starts = _ALL, f"{place}/starts"
    names = os.listdir(starts) if os.path.isdir(starts) else []
    records = [f"starts/{name}" for name in sorted(names) if name.replace(".", "").isdigit()]
    for name in ["out", "err", "trace", *records[:_RECORDS]]:
        try:
            number = os.open(f"{place}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        with os.fdopen(number, "rb") as file:
            data = file.read(min(_SHOWN, left)) if stat.S_ISREG(os.fstat(number).st_mode) else b""
        left -= len(data)
        texts[name.removeprefix("starts/")] = data
    return texts
