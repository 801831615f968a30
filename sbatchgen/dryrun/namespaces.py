"""The first kind of sandbox: namespaces of the user, on a file system that forgets.

It sees the machine's folders; what it writes there stays in memory.
Sources: user_namespaces(7), mount_namespaces(7), pid_namespaces(7), mount_setattr(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from sbatchgen.dryrun.box import (
    DEVICES,
    OWN,
    PDEATHSIG,
    PLACE,
    Box,
    BoxLimits,
    Ended,
    checked,
    covered,
    guarded,
    hidden,
    libc,
    prctl,
    supervised,
    watched,
    write,
)

_OWN_PID_MAX = (6, 14)  # older kernels have one kernel.pid_max for all namespaces
_NEW_KERNEL = (5, 14)  # older ones count all processes of the user against RLIMIT_NPROC
_USER, _MOUNTS, _PID, _NET, _IPC, _UTS = 0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000
_BIND, _REC, _PRIVATE, _REMOUNT, _RDONLY = 4096, 16384, 1 << 18, 32, 1
_NOSUID, _NODEV = 2, 4
_SYSTEM = frozenset(("bin", "boot", "lib", "lib32", "lib64", "libx32", "sbin", "sys"))  # read-only
_KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}  # numbers of the system call
_MOUNT_SETATTR = 442
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP


def run(argv: Sequence[str], environment: Mapping[str, str], box: Box) -> Ended:
    """Run a program in a sandbox to its end.

    Raises:
        NoSandboxError: This machine allows none.
    """
    return supervised(lambda writing: _outer(argv, environment, box, writing), box.limits)


def _outer(argv: Sequence[str], environment: Mapping[str, str], box: Box, writing: int) -> None:
    """Leave the machine's namespaces; the child is the first process of the new ones."""
    uid, gid = os.getuid(), os.getgid()
    prctl(PDEATHSIG, signal.SIGKILL)
    _unshare(_USER | _MOUNTS | _PID | _IPC | _UTS | (0 if box.network == "machine" else _NET))
    _map_ids(0, uid, 0, gid)
    if box.network == "loopback":
        _raise_loopback()
    inner = os.fork()
    if inner == 0:
        guarded(writing, lambda: _first(argv, environment, box, writing, ids=(uid, gid)))
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
    prctl(PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.umask(0o022)
    libc.sethostname(box.hostname.encode(), len(box.hostname))
    _build(box)
    resource.setrlimit(resource.RLIMIT_NPROC, (_most_processes(box.limits),) * 2)
    _unshare(_USER | _MOUNTS)  # whose owner can't undo the mounts of the other
    _map_ids(ids[0], 0, ids[1], 0)
    watched(argv, environment, box, writing)


def _build(box: Box) -> None:
    """Make the file system of the sandbox, and enter it."""
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, _sized(box.limits))  # noqa: S108
    os.mkdir("/tmp/.old")  # noqa: S108
    number = _PIVOT_ROOT.get(os.uname().machine)
    checked(libc.syscall(number, b"/tmp", b"/tmp/.old") if number else -1, "pivot_root")
    os.chdir("/")
    for name in sorted(set(os.listdir("/.old")) - OWN):
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
    write(box)
    _lay_over(box)
    _cover(box)
    checked(libc.umount2(b"/.old", 2), "umount")
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
    if libc.syscall(_MOUNT_SETATTR, -100, path.encode(), 0x8000, ctypes.byref(attributes), 32) == 0:
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
    for path in hidden(box):
        if not os.path.isdir(path):
            _show(path)


def _cover(box: Box) -> None:
    """Put the stand-in over the programs of the system; the interpreter stays at another place."""
    programs, where = covered(box)
    if where != box.interpreter:
        Path(where).touch()
        _mount(f"/.old{box.interpreter}", where, None, _BIND)
    for path in programs:
        _mount(box.cover, path, None, _BIND)


def _devices(more: Sequence[str]) -> None:
    os.mkdir("/dev")
    for name in (*DEVICES, *more):
        Path("/dev", name).touch()
        _mount(f"/.old/dev/{name}", f"/dev/{name}", None, _BIND)
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{to}", f"/dev/{name}")
    os.mkdir("/dev/shm")  # noqa: S108
    os.chmod("/dev/shm", 0o1777)  # noqa: S103, S108


def _sized(limits: BoxLimits) -> str:
    return f"size={limits.disk},nr_inodes=200000,mode=755"


def _most_processes(limits: BoxLimits) -> int:
    return limits.processes if _release() >= _NEW_KERNEL else 16 * limits.processes


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
    checked(libc.unshare(kinds), "unshare")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [text.encode("utf-8", "surrogateescape") if text else None for text in (source, target, kind)]
    status = libc.mount(
        *texts, ctypes.c_ulong(flags), data.encode("utf-8", "surrogateescape") if data else None
    )
    checked(status, f"mount {target}")
