"""Run a program without trust: in namespaces of its own, as the user, on a file system that forgets.

It sees the machine's folders; what it writes there stays in memory. HOME, /tmp, /run and /var are empty. It
has no network, no terminal, no environment but the given one, and ends at its limits.
Sources: user_namespaces(7), mount_namespaces(7), pid_namespaces(7), prctl(2), mount_setattr(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import signal
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from sbatchgen.errors import DocumentError

PLACE = Path("/run/plan")  # in the sandbox: stand-ins, what they record, and what the script prints
_OVER = 10.0  # seconds more, after which the sandbox's own end is not waited for
_OVERDUE = b'{"status": 137, "limit": "time", "memory": 0, "files": {}}'
_RECORDS = 4000
_SHOWN = 1 << 20  # bytes of a file that are read
_OWN_PID_MAX = (6, 14)  # older kernels have one kernel.pid_max for all namespaces
NEW_KERNEL = (5, 14)  # older ones count all processes of the user against RLIMIT_NPROC

_USER, _MOUNTS, _PID, _NET, _IPC, _UTS = 0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000
_BIND, _REC, _PRIVATE, _REMOUNT, _RDONLY = 4096, 16384, 1 << 18, 32, 1
_NOSUID, _NODEV = 2, 4
_PDEATHSIG, _DUMPABLE, _NO_NEW_PRIVS = 1, 4, 38
_SYSTEM = frozenset(("bin", "boot", "lib", "lib32", "lib64", "libx32", "sbin", "sys"))  # read-only
_OWN = frozenset(["dev", "proc", "run", "tmp", "var", ".old", "lost+found"])  # made new
_KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}  # numbers of the system call
_MOUNT_SETATTR = 442
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class BoxLimits:
    """How much the programs in the sandbox get.

    Attributes:
        seconds: Until all are ended.
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
    """

    status: int
    limit: str
    files: Mapping[str, str]
    seconds: float
    memory: int = 0


class NoSandboxError(DocumentError):
    """This machine allows no sandbox."""


def run(argv: Sequence[str], environment: Mapping[str, str], box: Box) -> Ended:
    """Run a program in a sandbox to its end.

    Raises:
        NoSandboxError: This machine allows none.
    """
    started = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _guarded(writing, lambda: _outer(argv, environment, box, writing))
    os.close(writing)
    said = _read_until(reading, child, started + box.limits.seconds + _OVER)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if said.startswith(b"!") or not said:
        what = said[1:].decode("utf-8", "replace") or f"it ended with {status}"
        raise NoSandboxError.of(
            f"this machine allows no sandbox: {what}",
            fix="run it on a machine whose kernel allows user namespaces: unshare -Urn true",
        )
    report = json.loads(said)
    return Ended(
        status=report["status"],
        limit=report["limit"],
        files=report["files"],
        seconds=time.monotonic() - started,
        memory=report["memory"],
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
    os.kill(child, signal.SIGKILL)
    return _OVERDUE


def _guarded(writing: int, work: Any) -> NoReturn:
    """Do the work of a child; its failure is the report, and it never returns to the parent's code."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - of whatever kind
        with contextlib.suppress(OSError):
            os.write(writing, f"!{error}".encode("utf-8", "replace"))
    os._exit(1)


def _outer(argv: Sequence[str], environment: Mapping[str, str], box: Box, writing: int) -> None:
    """Leave the machine's namespaces; the child is the first process of the new ones."""
    uid, gid = os.getuid(), os.getgid()
    _prctl(_PDEATHSIG, signal.SIGKILL)
    _unshare(_USER | _MOUNTS | _PID | _IPC | _UTS | (0 if box.network == "machine" else _NET))
    _map_ids(0, uid, 0, gid)
    if box.network == "loopback":
        _raise_loopback()
    inner = os.fork()
    if inner == 0:
        _guarded(writing, lambda: _first(argv, environment, box, writing, ids=(uid, gid)))
    os.close(writing)
    _, status = os.waitpid(inner, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _first(
    argv: Sequence[str],
    environment: Mapping[str, str],
    box: Box,
    writing: int,
    *,
    ids: tuple[int, int],
) -> None:
    """Build the file system, give up all rights over it, run the program, and report."""
    _prctl(_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.umask(0o022)
    _libc.sethostname(box.hostname.encode(), len(box.hostname))
    _build(box)
    resource.setrlimit(resource.RLIMIT_NPROC, (_most_processes(box.limits),) * 2)
    _unshare(_USER | _MOUNTS)  # whose owner can't undo the mounts of the other
    _map_ids(ids[0], 0, ids[1], 0)
    _prctl(_DUMPABLE, 0)
    waiting, started = os.pipe()  # closed once the program has begun: until then the memory is this one's
    program = os.fork()
    if program == 0:
        _guarded(writing, lambda: _become(argv, environment, box, started))
    os.close(started)
    os.read(waiting, 1)
    status, limit, memory = _watch(program, box.limits)
    report = {"status": status, "limit": limit, "memory": memory, "files": _contents(PLACE)}
    with os.fdopen(writing, "wb") as stream:
        stream.write(json.dumps(report).encode())
    os._exit(0)


def _become(argv: Sequence[str], environment: Mapping[str, str], box: Box, started: int) -> None:
    """Become the program, with its limits; `started` is a file that its start closes."""
    _prctl(_NO_NEW_PRIVS, 1)
    words, variables = list(argv), dict(environment)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, box.limits.file),
        (resource.RLIMIT_CPU, box.limits.cpu),
    ):
        _limit(kind, most)
    with contextlib.suppress(OSError):
        os.chdir(box.folder)
    for number, name in ((0, "/dev/null"), (1, f"{PLACE}/out"), (2, f"{PLACE}/err")):
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


def _watch(program: int, limits: BoxLimits) -> tuple[int, str, int]:
    """Wait for the program, then end what it left; return its status, the limit it reached and memory."""
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
        memory, processes = _used()  # also while others end: those of a fork bomb never stop
        most, overdue = max(most, memory), time.monotonic() > deadline
        many = processes > 2 * limits.processes  # which the kernel does not limit for root
        overdue = overdue and left_at == math.inf
        limit = "time" if overdue else "memory" if memory > limits.memory else "processes" if many else ""
        if limit:
            status = -signal.SIGKILL
            break
        if not child:
            signal.sigtimedwait([signal.SIGCHLD], 0.02)
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
    return (status if status >= 0 else 128 - status), limit, most


def _used() -> tuple[int, int]:
    """Return the bytes that all processes have in memory, and how many they are."""
    pages = count = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            count += 1
            with contextlib.suppress(OSError, ValueError, IndexError):
                pages += int(Path("/proc", name, "statm").read_text().split()[1])
    return pages * resource.getpagesize(), count


def _contents(folder: Path) -> dict[str, str]:
    """Return the regular files below a folder that the program could write, the first bytes of each."""
    texts: dict[str, str] = {}
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


def _build(box: Box) -> None:
    """Make the file system of the sandbox, and enter it."""
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, _sized(box.limits))  # noqa: S108
    os.mkdir("/tmp/.old")  # noqa: S108
    number = _PIVOT_ROOT.get(os.uname().machine)
    _checked(_libc.syscall(number, b"/tmp", b"/tmp/.old") if number else -1, "pivot_root")
    os.chdir("/")
    for name in sorted(set(os.listdir("/.old")) - _OWN):
        _show(f"/{name}")
    _devices(box.devices)
    for name, mode in (("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755), ("/proc", 0o755)):  # noqa: S108
        os.makedirs(name, exist_ok=True)
        os.chmod(name, mode)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | 8)
    if _release() >= _OWN_PID_MAX:  # the only limit that root has
        Path("/proc/sys/kernel/pid_max").write_text(str(2 * box.limits.processes), encoding="ascii")
    for name in _KERNEL:  # which root may write to
        if os.path.exists(name):
            _mount(name, name, None, _BIND)
            _protect(name)
    _hide(box)
    _write(box)
    _lay_over(box)
    _cover(box)
    _checked(_libc.umount2(b"/.old", 2), "umount")
    os.rmdir("/.old")


def _lay_over(box: Box) -> None:
    """Put texts over files, and folders of the machine where the programs may write."""
    for name, text in box.over.items():
        if os.path.exists(name):
            file = f"{PLACE}/over{name.replace('/', '-')}"
            Path(file).write_bytes(text)
            _mount(file, name, None, _BIND)
    for name, folder in box.kept.items():
        os.makedirs(name, exist_ok=True)
        _mount(f"/.old{folder}", name, None, _BIND)


def _show(path: str, *, within: str = "/.old") -> None:
    """Show a folder of the machine, read-only; what is written to it stays in memory, if the kernel can."""
    source = within + path
    if os.path.islink(source):
        os.symlink(os.readlink(source), path)
        return
    if not os.path.isdir(source):
        return
    os.makedirs(path, exist_ok=True)
    if path.split("/")[1] not in _SYSTEM and _overlay(source, path):
        return
    _mount(source, path, None, _BIND | _REC)
    _protect(path)


def _overlay(source: str, path: str) -> bool:
    """Lay a folder in memory over one of the machine's; whether the kernel can."""
    if any(mark in source for mark in ",:\\"):
        return False
    upper, work = (f"/.layers/{kind}/{path.strip('/').replace('/', '-')}" for kind in ("upper", "work"))
    os.makedirs(upper, exist_ok=True)
    os.makedirs(work, exist_ok=True)
    layers = f"lowerdir={source},upperdir={upper},workdir={work}"
    for options in (f"{layers},userxattr", layers):
        with contextlib.suppress(OSError):
            _mount("overlay", path, "overlay", _NOSUID | _NODEV, options)
            return True
    return False


def _protect(path: str) -> None:
    """Make a mount and all below it read-only."""
    attributes = (ctypes.c_uint64 * 4)(_RDONLY | _NOSUID | _NODEV, 0, 0, 0)
    if _libc.syscall(_MOUNT_SETATTR, -100, path.encode(), 0x8000, ctypes.byref(attributes), 32) == 0:
        return
    with open("/.old/proc/self/mountinfo", encoding="utf-8") as stream:  # an older kernel
        points = [line.split()[4].encode().decode("unicode_escape") for line in stream]
    for point in points:
        if point == path or point.startswith(f"{path}/"):
            had = os.statvfs(point).f_flag
            kept = had & 0xC0E | (1 << 21 if had & 4096 else 0)
            _mount(None, point, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV | kept)


def _hide(box: Box) -> None:
    """Put an empty home over the user's, and show in it what the job needs."""
    home = box.home.rstrip("/")
    if home.count("/") and os.path.isdir(home):
        _mount("tmpfs", home, "tmpfs", _NOSUID | _NODEV, _sized(box.limits))
    elif home:
        os.makedirs(home, exist_ok=True)
    for path in dict.fromkeys((*box.shown, box.folder)):
        inside = os.path.realpath(path).startswith((f"{home}/", "/tmp/", "/var/", "/run/", "/root/"))  # noqa: S108
        if path.rstrip("/") != home and inside and not os.path.isdir(path):
            _show(path)


def _write(box: Box) -> None:
    os.makedirs(PLACE / "starts", exist_ok=True)
    for name in (*box.folders, box.folder):
        with contextlib.suppress(OSError):
            os.makedirs(name, exist_ok=True)
    for name, (data, mode) in box.files.items():
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(name), exist_ok=True)
            Path(name).write_bytes(data)
            os.chmod(name, mode)
    for name, target in box.links.items():
        os.makedirs(os.path.dirname(name), exist_ok=True)
        os.symlink(target, name)


def _cover(box: Box) -> None:
    """Put the stand-in over the programs of the system; the interpreter stays at another place."""
    programs = {path: os.path.realpath(path) for path in box.covers if os.path.exists(path)}
    where = box.interpreter
    if where in programs.values():
        where = f"{PLACE}/interpreter"
        Path(where).touch()
        _mount(f"/.old{box.interpreter}", where, None, _BIND)
    (PLACE / "python").write_text(where, encoding="utf-8")
    for path in set(programs.values()):
        _mount(box.cover, path, None, _BIND)


def _devices(more: Sequence[str]) -> None:
    os.mkdir("/dev")
    for name in (*_DEVICES, *more):
        Path("/dev", name).touch()
        _mount(f"/.old/dev/{name}", f"/dev/{name}", None, _BIND)
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{to}", f"/dev/{name}")
    os.mkdir("/dev/shm")  # noqa: S108
    os.chmod("/dev/shm", 0o1777)  # noqa: S103, S108


def _sized(limits: BoxLimits) -> str:
    return f"size={limits.disk},nr_inodes=200000,mode=755"


def _most_processes(limits: BoxLimits) -> int:
    return limits.processes if _release() >= NEW_KERNEL else 16 * limits.processes


def _release() -> tuple[int, ...]:
    """Return the first two numbers of the kernel's release."""
    return tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdigit())


def _raise_loopback() -> None:
    """Start the interface lo, which is all of the network."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        fcntl.ioctl(link, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))


def _map_ids(uid: int, outside: int, gid: int, outer_gid: int) -> None:
    """Give the process of a new user namespace its ids there."""
    with contextlib.suppress(OSError):  # refused a second time
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {outside} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1", encoding="ascii")


def _unshare(kinds: int) -> None:
    _checked(_libc.unshare(kinds), "unshare")


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(option, value, 0, 0, 0), "prctl")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [text.encode("utf-8", "surrogateescape") if text else None for text in (source, target, kind)]
    status = _libc.mount(
        *texts, ctypes.c_ulong(flags), data.encode("utf-8", "surrogateescape") if data else None
    )
    _checked(status, f"mount {target}")


def _checked(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
