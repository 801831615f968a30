"""What a program does to the rest of the machine: trees of files, and a command among sockets, keys and processes.

`python watched.py FOLDER COMMAND...` runs a command in a folder that has sockets and a FIFO, in a session with a key,
beside a process; it prints a line of JSON: what reached them, and what the command printed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHANGED = "changed"  # what attempts write
TOUCHED = 1e9  # attempts date a device back to January 2001
KEY, SECRET = b"sbatchgen-lab", "secret-4711"
SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - where the lab has its own
_ADD_KEY, _KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
_SESSION, _JOIN, _READ = -3, 1, 11  # of keyctl(2)


def tree(*roots: Path, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """All that can be seen of files below some folders, but when they were read.

    Paths that begin with one of the texts in `without` are not looked at: somebody changes them meanwhile.
    """
    return {str(path): _about(path) for root in roots for path in _below(root, without)}


def _below(root: Path, without: tuple[str, ...]) -> Iterator[Path]:
    device = root.lstat().st_dev
    for folder, folders, names in os.walk(root):
        kept = [name for name in folders if not f"{folder}/{name}".startswith(without)]
        folders[:] = [name for name in kept if Path(folder, name).lstat().st_dev == device]  # no checkout
        files = [name for name in names if not f"{folder}/{name}".startswith(without)]
        yield from (Path(folder, name) for name in (*folders, *files))


def _about(path: Path) -> tuple[object, ...]:
    about = path.lstat()
    data: object = ""
    if stat.S_ISREG(about.st_mode):
        data = path.read_bytes()
    elif path.is_symlink():
        data = str(path.readlink())
    names = os.listxattr(path, follow_symlinks=False)
    return (about.st_mode, about.st_uid, about.st_gid, about.st_nlink, about.st_mtime_ns, data, names)


def _key(payload: bytes | None = None) -> str:
    """The key of the session; with a payload, it is made in a new session."""
    libc, data = ctypes.CDLL(None), ctypes.create_string_buffer(100)
    if payload is not None:
        if libc.syscall(_KEYCTL, _JOIN, None) < 0:
            return ""
        libc.syscall(_ADD_KEY, b"user", KEY, payload, len(payload), _SESSION)
    number = libc.syscall(_KEYCTL, 10, _SESSION, b"user", KEY, 0)
    return data.raw[: max(libc.syscall(_KEYCTL, _READ, number, data, 100), 0)].decode()


def _state(number: int) -> list[object]:
    return [
        os.getpriority(os.PRIO_PROCESS, number),
        sorted(os.sched_getaffinity(number)),
        [resource.prlimit(number, kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE)],
        Path(f"/proc/{number}/oom_score_adj").read_text(encoding="ascii"),
    ]


def _of_kernel() -> list[object]:
    devices = [Path("/dev", name).stat() for name in ("null", "zero", "full", "random", "urandom")]
    return [
        *(
            Path("/proc/sys", name).read_text(encoding="ascii")
            for name in ("kernel/domainname", "kernel/printk_ratelimit")
        ),
        *((about.st_mode, about.st_mtime < TOUCHED) for about in devices),  # others touch /dev/null too
    ]


def _fifo(name: str) -> int:
    os.mkfifo(name, 0o666)
    return os.open(name, os.O_RDONLY | os.O_NONBLOCK)


def main(folder: str, *command: str) -> None:
    """Run a command, and print what happened."""
    os.chdir(folder)
    inet, packets = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
    inet.bind(("127.0.0.1", 0))
    packets.bind(inet.getsockname())
    stream, datagrams, abstract = (
        socket.socket(socket.AF_UNIX, kind)
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_STREAM)
    )
    for each, name in (
        (stream, "socket"),
        (datagrams, "packets"),
        (abstract, f"\0sbatchgen-lab-{os.getpid()}"),
    ):
        each.bind(name)
    for each in (inet, stream, abstract):
        each.listen()
    Path("deep").mkdir()  # a sandbox that shows a folder entry by entry has this one as it is
    pipe, deep_pipe = map(_fifo, ("pipe", "deep/pipe"))
    secret = _key(SECRET.encode())
    null = subprocess.DEVNULL  # so that no one waits for it where this program fails
    # It ends with this program, also where that is killed.
    sleeps = ["setpriv", "--pdeathsig", "KILL", "sleep", "infinity"]
    other = subprocess.Popen(sleeps, start_new_session=True, stdout=null, stderr=null)
    Path("facts").write_text(
        f"{other.pid} {inet.getsockname()[1]} sbatchgen-lab-{os.getpid()}\n", encoding="ascii"
    )
    shared = [Path(name) for name in SHARED if Path(name, "lab-secret").exists()]
    own = ("facts", "pipe", "socket", "packets", "deep/pipe")
    before, at = (_state(other.pid), *_of_kernel()), tree(Path(folder), *shared)
    around = {name: value.replace("PORT", str(inet.getsockname()[1])) for name, value in os.environ.items()}
    done = subprocess.run(command, env=around, capture_output=True, check=False)
    listeners: dict[str, Any] = {
        "port": inet,
        "packets to the port": packets,
        "path": stream,
        "packets": datagrams,
        "abstract": abstract,
        "FIFO": pipe,
        "FIFO in a folder": deep_pipe,
    }
    ready = select.select([*listeners.values()], [], [], 0)[0]
    reached = [name for name, each in listeners.items() if each in ready]
    with contextlib.suppress(subprocess.TimeoutExpired):
        other.wait(0.3)  # a killed process takes its time to end
    if other.poll() is not None:
        reached.append("signal")
    elif (after := (_state(other.pid), *_of_kernel())) != before:
        changed = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        reached.append(f"state of a process or of the kernel: {changed}")
    if _key() != secret:
        reached.append("key")
    now = tree(Path(folder), *shared)
    reached += [name for name in sorted({*at, *now}) if at.get(name) != now.get(name)]
    for name in own:
        Path(name).unlink(missing_ok=True)
    shutil.rmtree("deep", ignore_errors=True)
    other.kill()
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    print(json.dumps({"reached": reached, "status": done.returncode, "said": said}))


if __name__ == "__main__":
    main(*sys.argv[1:])
