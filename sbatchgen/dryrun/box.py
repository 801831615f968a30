"""What a sandbox holds, and how a program runs in it: with limits, and ended with all that it started.

Sources: prctl(2), getrlimit(2), proc(5), proc_pid_smaps(5).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import os
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

from sbatchgen.errors import DocumentError

PLACE = Path("/run/plan")  # in the sandbox: stand-ins, what they record, and what the script prints
OWN = frozenset(["dev", "proc", "run", "tmp", "var", ".old", "lost+found"])  # folders that each makes new
DEVICES = ("null", "zero", "full", "random", "urandom")
PDEATHSIG, DUMPABLE, NO_NEW_PRIVS = 1, 4, 38
_BUSY = 60.0  # seconds more where other programs keep those of the sandbox from running
_OVER = 10.0  # seconds more, after which the sandbox's own end is not waited for
_OVERDUE = b'{"status": 137, "limit": "time", "memory": 0, "files": {}}'
_RECORDS = 4000
_SHOWN = 1 << 20  # bytes of a file that are read
_TICKS = os.sysconf("SC_CLK_TCK")

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class BoxLimits:
    """How much the programs in the sandbox get.

    Attributes:
        seconds: Until all are ended, unless they still compute and have had less time of processors.
        memory: Bytes of all together.
        each: Bytes of the addresses of each; None for no limit.
        disk: Bytes of the files that are kept in memory.
        file: Bytes of a file; None for no limit.
        processes: How many there may be.
        left: Seconds in which background processes may end after the program.
        cpu: Seconds of a processor for each; None for no limit.
    """

    seconds: float = 5.0
    memory: int = 1 << 30
    each: int | None = 1 << 30
    disk: int = 96 << 20
    file: int | None = 16 << 20
    processes: int = 256
    left: float = 2.0
    cpu: int | None = 10


@dataclass(frozen=True, kw_only=True)
class Box:
    """What the sandbox holds.

    Attributes:
        files: Text and mode of each file, by its path.
        folders: Folders that are made, unless they exist.
        shown: Folders that are shown where they are hidden otherwise, such as an interpreter below HOME.
        links: Links of the sandbox, and what each is to.
        covers: Programs over which the file `cover` is put, where they exist.
        interpreter: A program that stays, at PLACE/python or where that says.
        over: Text that is put over files that exist.
        kept: Folders of the machine that the programs may write to, by their paths in the sandbox.
        devices: Devices beside /dev/null and its like.
        network: Their network: "none", "loopback", or that of the "machine".
        limits: Their limits.
    """

    hostname: str
    folder: str
    home: str = ""
    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    folders: Sequence[str] = ()
    shown: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    interpreter: str = ""
    cover: str = ""
    covers: Sequence[str] = ()
    over: Mapping[str, bytes] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    network: Literal["none", "loopback", "machine"] = "none"
    limits: BoxLimits = field(default_factory=BoxLimits)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a program has ended.

    Attributes:
        status: Its exit status; 128 and the number of the signal that ended it.
        limit: The limit at which it was ended: "time", "memory" or "processes"; "" if it ended itself.
        files: What PLACE holds in the end, by the name below it.
        seconds: How long it ran.
        memory: The most bytes that all processes together had in memory.
        cpu: How many seconds of processors they and the sandbox used.
        lacks: The kind of its sandbox, and what that can't do; "" for the best one.
    """

    status: int
    limit: str
    files: Mapping[str, str]
    seconds: float
    memory: int = 0
    cpu: float = 0.0
    lacks: str = ""


class NoSandboxError(DocumentError):
    """This machine allows no sandbox."""


def supervised(work: Callable[[int], object], limits: BoxLimits) -> Ended:
    """Start a child that runs a program in a sandbox, and return what it reports to the file that it gets.

    Raises:
        NoSandboxError: It reports none.
    """
    started = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        guarded(writing, lambda: work(writing))
    os.close(writing)
    said = _read_until(reading, child, started + limits.seconds + _BUSY + _OVER)
    os.close(reading)
    _, status, used = os.wait4(child, 0)
    if not said.startswith(b"{"):
        lines = said.decode("utf-8", "replace").strip().splitlines()
        raise NoSandboxError.of(lines[-1][:300] if lines else f"it ended with {status}")
    report = json.loads(said)
    return Ended(
        status=report["status"],
        limit=report["limit"],
        files=report["files"],
        seconds=time.monotonic() - started,
        memory=report["memory"],
        cpu=used.ru_utime + used.ru_stime,
    )


def _read_until(stream: int, child: int, deadline: float) -> bytes:
    """Return what comes from the sandbox; at the deadline, kill it."""
    import select

    parts: list[bytes] = []
    while ready := select.select([stream], [], [], max(deadline - time.monotonic(), 0))[0]:
        part = os.read(ready[0], 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    os.kill(child, signal.SIGTERM)
    return _OVERDUE


def guarded(writing: int, work: Callable[[], object]) -> NoReturn:
    """Do the work of a child; its failure is the report, and it never returns to the parent's code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - of whatever kind
        with contextlib.suppress(OSError):
            os.write(writing, str(error).encode("utf-8", "replace"))
    os._exit(1)


def watched(
    argv: Sequence[str],
    environment: Mapping[str, str],
    box: Box,
    writing: int,
    *,
    root: str = "",
    confine: Callable[[], None] | None = None,
) -> NoReturn:
    """Run the program, and report; `root` is the sandbox's folder, `confine` takes the program's rights."""
    prctl(DUMPABLE, 0)
    waiting, started = os.pipe()  # closed once the program has begun: until then the memory is this one's
    program = os.fork()
    if program == 0:
        guarded(writing, lambda: _become(argv, environment, box, started, root=root, confine=confine))
    os.close(started)
    os.read(waiting, 1)
    try:
        status, limit, memory = _watch(program, box.limits, _descendants if root else _all)
    finally:
        _kill_descendants() if root else _kill_all()
    files = {name: text.replace(root, "") if root else text for name, text in _contents(root).items()}
    report = {"status": status, "limit": limit, "memory": memory, "files": files}
    with os.fdopen(writing, "wb") as stream:
        stream.write(json.dumps(report).encode())
    os._exit(0)


def _become(
    argv: Sequence[str],
    environment: Mapping[str, str],
    box: Box,
    started: int,
    *,
    root: str,
    confine: Callable[[], None] | None,
) -> None:
    """Become the program, with its limits; `started` is a file that its start closes."""
    prctl(PDEATHSIG, signal.SIGKILL)
    prctl(NO_NEW_PRIVS, 1)
    if confine:
        confine()
    words, variables = list(argv), dict(environment)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, box.limits.file),
        (resource.RLIMIT_CPU, box.limits.cpu),
    ):
        _limit(kind, most)
    os.chdir(root or "/")
    with contextlib.suppress(OSError):
        os.chdir(f"{root}{box.folder}")
    for number, name in ((0, "/dev/null"), (1, f"{root}{PLACE}/out"), (2, f"{root}{PLACE}/err")):
        os.dup2(os.open(name, os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.closerange(3, started)
    os.closerange(started + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    _limit(resource.RLIMIT_NOFILE, 4096)
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _limit(resource.RLIMIT_AS, box.limits.each)  # the last, as this process may have more already
    os.execve(words[0], words, variables)  # noqa: S606 - no shell


def _limit(kind: int, most: int | None) -> None:
    if most is not None:
        resource.setrlimit(kind, (most, most))


def _watch(program: int, limits: BoxLimits, living: Callable[[], list[str]]) -> tuple[int, str, int]:
    """Wait for the program and what it left; return its status, the limit it reached and memory."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    limit, status, most, deadline = "", 0, 0, time.monotonic() + limits.seconds
    left_at = math.inf  # when what the program has left is no longer waited for
    while time.monotonic() < left_at:
        try:
            child, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if child == program:
            status, left_at = os.waitstatus_to_exitcode(ended), min(deadline, time.monotonic() + limits.left)
        pids, late = living(), time.monotonic() - deadline
        memory = _used(pids, limits.memory)  # also while others end: those of a fork bomb never stop
        most = max(most, memory)
        many = len(pids) > 2 * limits.processes  # which the kernel does not limit for root
        overdue = late > 0 and left_at == math.inf and (late > _BUSY or not _is_held_up(pids, limits.seconds))
        limit = "time" if overdue else "memory" if memory > limits.memory else "processes" if many else ""
        if limit:
            status = -signal.SIGKILL
            break
        if not child:
            signal.sigtimedwait([signal.SIGCHLD], 0.02)
    return (status if status >= 0 else 128 - status), limit, most


def _kill_all() -> None:
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)


def _kill_descendants() -> None:
    """End the processes below this one until none is left, also those of a fork bomb."""
    while True:
        for number in (signal.SIGSTOP, signal.SIGKILL):  # what has stopped starts no more
            for pid in _descendants():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), number)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # also of those whose parent has ended
            return
        time.sleep(0.001)


def _all() -> list[str]:
    """Return the numbers of all processes but the first one."""
    return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _descendants() -> list[str]:
    """Return the numbers of the processes that this one has started, and that these have."""
    new = [str(os.getpid())]
    for pid in new:  # which grows
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    new += Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    return new[1:]


def limit_processes(most: int) -> None:
    """Let the user have so many more processes; count those of the machine, as there is no quick other way.

    Raises:
        OSError: The kernel does not limit this user.
    """
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (0, hard))
    with contextlib.suppress(BlockingIOError):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        raise OSError(errno.EPERM, "the kernel limits no processes of root: run it as another user")
    threads = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2]
    most += int(threads)
    resource.setrlimit(
        resource.RLIMIT_NPROC, (most if hard == resource.RLIM_INFINITY else min(most, hard),) * 2
    )


def _used(pids: Sequence[str], most: int) -> int:
    """Return the bytes that processes have in memory; above `most`, what several share counts once."""
    resident: dict[str, int] = {}
    for name in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path("/proc", name, "statm").read_text().split()[1])
            resident[name] = pages * resource.getpagesize()
    used = sum(resident.values())
    return used if used <= most else sum(_share(name, alone) for name, alone in resident.items())


def _share(pid: str, alone: int) -> int:
    """Return the bytes of a process with its part of what it shares; `alone` if it hides that."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc", pid, "smaps_rollup").read_text().partition("\nPss:")[2].split()[0]) << 10
    return alone


def _is_held_up(pids: Sequence[str], seconds: float) -> bool:
    """Whether these processes would run, and have had less time of processors than they may have."""
    times = os.times()
    ticks, runs = (times.children_user + times.children_system) * _TICKS, False
    for name in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()  # proc_pid_stat(5)
            ticks += sum(map(int, fields[11:15]))
            runs = runs or fields[0] in "RD"
    return runs and ticks < seconds * _TICKS


def _contents(root: str) -> dict[str, str]:
    """Return the regular files below PLACE that the program could write, the first bytes of each."""
    texts: dict[str, str] = {}
    folder = Path(f"{root}{PLACE}")
    for where, names in ((folder, ("out", "err", "trace")), (folder / "starts", None)):
        with contextlib.suppress(OSError):
            for name in names or sorted(os.listdir(where))[:_RECORDS]:
                with contextlib.suppress(OSError):
                    texts[name] = _text(where / name)
    return texts


def _text(path: Path) -> str:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(number, "rb") as stream:
        regular = stat.S_ISREG(os.fstat(number).st_mode)
        return stream.read(_SHOWN).decode("utf-8", "surrogateescape") if regular else ""


def hidden(box: Box) -> Iterator[str]:
    """Yield the folders that the job needs and that would be hidden."""
    home = box.home.rstrip("/")
    for path in dict.fromkeys((*box.shown, box.folder)):
        inside = os.path.realpath(path).startswith((f"{home}/", "/tmp/", "/var/", "/run/", "/root/"))  # noqa: S108
        if path.rstrip("/") != home and inside:
            yield path


def write(box: Box, root: str = "") -> None:
    """Make the files, folders and links of a sandbox, below a folder."""
    os.makedirs(f"{root}{PLACE}/starts", exist_ok=True)
    for name in (*box.folders, box.folder):
        with contextlib.suppress(OSError):
            os.makedirs(f"{root}{name}", exist_ok=True)
    for name, (data, mode) in box.files.items():
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(f"{root}{name}"), exist_ok=True)
            Path(f"{root}{name}").write_bytes(data)
            os.chmod(f"{root}{name}", mode)
    for name, target in box.links.items():
        os.makedirs(os.path.dirname(f"{root}{name}"), exist_ok=True)
        os.symlink(f"{root}{target}", f"{root}{name}")
    Path(f"{root}{PLACE}/python").write_text(covered(box)[1], encoding="utf-8")


def covered(box: Box) -> tuple[set[str], str]:
    """Return the programs that are covered, and where the interpreter is then."""
    programs = {os.path.realpath(path) for path in box.covers if os.path.exists(path)}
    return programs, f"{PLACE}/interpreter" if box.interpreter in programs else box.interpreter


def prctl(option: int, value: int) -> None:
    """Set something of this process."""
    checked(libc.prctl(option, value, 0, 0, 0), "prctl")


def checked(status: int, what: str) -> int:
    """Return what a system call has returned; raises OSError if it failed."""
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return status
