"""The first process in a sandbox, which starts the program, watches its limits and reports the result.

`box.py` sends the compiled code of this module to the sandbox. Sources: getrlimit(2), prctl(2), proc(5).
"""

from __future__ import annotations

import _ctypes
import os
import resource
import stat
import time

# Importing typing, ctypes, or signal with its enum takes longer than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import Any
else:
    import _signal as signal

MAX_FILE_BYTES = 4 << 20  # bytes of each file in the report
MAX_RECORDS = 4000  # records of started programs in the report
_REPORT_BYTES = 64 << 20  # bytes of all files in the report
_POLL_S = 0.02  # seconds between two measurements
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")  # units of CPU time in /proc, in a second
_PAGE_BYTES = resource.getpagesize()
_INODE_BYTES = 1 << 10  # bytes of the kernel's memory for a file
_PR_SET_DUMPABLE = 4  # the option of prctl(2) that hides the memory of this process
_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # the numbers of calls of landlock(7), on all machines
_MAX_COUNTED = 100_000  # files of a folder whose bytes are counted
_INODE_BITS = 0xFFFFFFFF  # overlayfs keeps only the low 32 bits of an inode's number
_RESERVED_DIVISOR = 8  # 1/8 of a disk's free bytes and inodes stays free


def main(task: dict[str, Any]) -> None:
    """Run the program of a task, and write a report to stdout.

    The first line of the report has the exit status, the peak memory, the number of processes and the limit.
    A line for each file follows, with its size and name. After an empty line come the texts of the files.
    """
    os.closerange(3, 1 << 20)  # through .. of an inherited folder, a program could leave the sandbox
    if moved_folders := [path for path, mark in task["marks"].items() if not is_marked(path, mark)]:
        os.write(2, "\0".join(["", *moved_folders]).encode("utf-8", "surrogateescape"))
        os._exit(1)
    os.write(1, b"+")  # tells box.py that the sandbox has started
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    # No program in the sandbox can then read this process below /proc.
    _ctypes.call_function(prctl, (_PR_SET_DUMPABLE, 0, 0, 0, 0))
    os.umask(0o022)
    for name, content in task["files"].items():
        make_entry(name, content)
    # This process waits until execve closes the write end of the pipe. Until then, the new process shares the
    # memory of this process, and would be measured with it.
    read_end, write_end = os.pipe()
    if not (program := os.fork()):
        try:
            become_program(task)
        finally:
            os._exit(127)
    os.close(write_end)
    os.read(read_end, 1)
    disks = [Disk(path, task["limits"]["disk"]) for path in task["on_disk"]]
    status, limit, memory = watch(program, task["limits"], task["in_memory"], disks)
    kill_all()
    files, is_whole = report_files(task["place"])
    if not limit and not is_whole:
        limit = "records"
    head_lines = [f"{status if status >= 0 else 128 - status} {memory} {newest_pid()} {limit}"]
    head_lines += [f"{len(data)} {name}" for name, data in files.items()]
    with open(1, "wb") as report:
        report.writelines(("\n".join([*head_lines, "", ""]).encode(), *files.values()))


def kill_all() -> None:
    """Kill all other processes in the sandbox."""
    while True:  # several times, because a process may start another one before it is killed
        try:
            os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:  # an ended process slows down a kill until its parent waits
                pass
        except OSError:
            break


def is_marked(path: str, mark: tuple[list[tuple[str, int, int]], list[str] | None, list[str]]) -> bool:
    """Return whether the folder at a path is the folder that was marked.

    Other users may have put another folder at the path before bubblewrap opened it. A mark has three parts:
    some entries with their times of change and inodes; the names of all entries if copies lie over the
    folder, else None; and the names that bubblewrap has made in the folder.
    """
    marked_entries, all_names, made_names = mark
    names = {*os.listdir(path)}.difference(made_names) if os.access(path, os.R_OK | os.X_OK) else set()
    if all_names is not None:
        return names <= {*all_names}
    for name, changed_ns, inode in marked_entries:
        try:
            status = os.lstat(f"{path}/{name}")
        except OSError:
            continue
        has_same_inode = not (status.st_ino ^ inode) & _INODE_BITS
        if status.st_ctime_ns == changed_ns or has_same_inode:
            return True
    return not names  # an empty folder has no entries by which to recognize it


def make_entry(name: str, content: tuple[bytes, int] | str | None) -> None:
    """Make a file, a link or a folder, if the system allows it.

    `content` is the text and the mode of a file, the target of a link, or None for a folder. An empty file
    does not replace an existing file.
    """
    try:
        os.makedirs(name if content is None else os.path.dirname(name), exist_ok=True)
        if isinstance(content, str):
            os.symlink(content, name)
        elif content and (content[0] or not os.path.exists(name)):
            with open(name, "wb") as file:
                file.write(content[0])
            os.chmod(name, content[1])
    except (OSError, ValueError, RecursionError):  # a script may name files with a NUL or a thousand folders
        pass


def become_program(task: dict[str, Any]) -> None:
    """Replace this process by the program; only stdin, stdout and stderr stay open."""
    limits = task["limits"]
    os.setsid()  # Linux divides CPU time among sessions, so many programs do not slow down the first process
    os.chdir(task["folder"] if os.access(task["folder"], os.X_OK) else "/")
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{task['place']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    for signal_number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(signal_number, signal.SIG_DFL)
    for kind, limit in (
        (resource.RLIMIT_CORE, 1), (resource.RLIMIT_NOFILE, 4096), (resource.RLIMIT_FSIZE, limits["file"]),
        (resource.RLIMIT_NPROC, task["max_threads"]), (resource.RLIMIT_AS, limits["address_space"]),
    ):  # fmt: skip
        _, hard_limit = resource.getrlimit(kind)
        if limit and (hard_limit == resource.RLIM_INFINITY or limit < hard_limit):
            resource.setrlimit(kind, (limit, limit))
    if task["shares_network"]:
        keep_sockets_apart()
    os.execve(task["argv"][0], task["argv"], task["environment"])


def keep_sockets_apart() -> None:
    """Forbid connections to abstract sockets of programs outside, on Linux 6.12 and newer.

    An abstract socket has no file, so a program with the machine's network could reach it. Source:
    landlock(7).
    """
    syscall = _ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall")  # type: ignore[arg-type]
    # The rules name no files and no ports, and have the scope LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET.
    rules = (0).to_bytes(16, "little") + (1).to_bytes(8, "little")
    ruleset = _ctypes.call_function(syscall, (_CREATE_RULESET, rules, len(rules), 0))
    if ruleset >= 0:
        _ctypes.call_function(syscall, (_RESTRICT_SELF, ruleset, 0))
        os.close(ruleset)


class Disk:
    """A folder of the machine that the program writes to, with its limit of bytes."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, limit
        self.descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
        self.free_bytes_at_start, self.free_inodes_at_start = self.free()

    def free(self) -> tuple[int, int]:
        """Return the numbers of free bytes and of free inodes of the disk."""
        status = os.fstatvfs(self.descriptor)
        return status.f_bavail * status.f_frsize, status.f_favail

    def is_used_up(self) -> bool:
        """Return whether the folder is above its limit, or most of the disk's free space is used up.

        Counting takes long, so the folder is counted only when the disk has lost as many free bytes as the
        limit. Other programs may have written these bytes. Deleted files that the program keeps open can't be
        counted, but they reduce the free space.
        """
        free_bytes, free_inodes = self.free()
        reserved_bytes = self.free_bytes_at_start // _RESERVED_DIVISOR
        reserved_inodes = self.free_inodes_at_start // _RESERVED_DIVISOR
        if free_bytes < reserved_bytes or free_inodes < reserved_inodes:
            return True
        return self.free_bytes_at_start - free_bytes > self.limit and self.used_bytes() > self.limit

    def used_bytes(self) -> int:
        """Return the bytes of all files below the folder; more than the limit if there are too many files."""
        size = count = 0
        for folder, _, names in os.walk(self.path):
            count += len(names)
            if count > _MAX_COUNTED:  # counting takes too long
                return self.limit + 1
            for name in names:
                try:
                    size += os.lstat(f"{folder}/{name}").st_blocks << 9
                except OSError:
                    pass
        return size


def watch(  # noqa: C901 (one limit after another)
    program: int, limits: dict[str, Any], in_memory: Sequence[str], disks: Sequence[Disk]
) -> tuple[int, str, int]:
    """Wait for the program and its background processes, or until they reach a limit.

    `in_memory` has a path on each file system in memory. Returns the status of the program, the name of the
    limit or "", and the peak of the memory in bytes.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    computed_at = time.monotonic()  # when a process last computed
    status, peak, deadline = None, 0, computed_at + limits["seconds"]
    last_cpu_s = 0.0  # the CPU time of all processes when one last computed
    last_newest, cpu_before_newest_s = 0, 0.0  # the newest process, and the CPU time before its start
    # Measurements since a process computed. A busy machine makes few in a second, so seconds do not suffice.
    idle_polls = 0
    while True:
        try:
            child, wait_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status or 0, "", peak
        now, pids = time.monotonic(), [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        if child == program:
            status = os.waitstatus_to_exitcode(wait_status)
            deadline = min(deadline, now + limits["background"])
            # prelude.sh sends SIGXFSZ at its limit of commands, and Linux if the trace is too large.
            if status == -signal.SIGXFSZ:
                return -signal.SIGKILL, "time", peak
        # This limit comes before measuring, because processes can start faster than they are measured.
        if len(pids) > limits["processes"]:
            return -signal.SIGKILL, "processes", peak
        cpu_s, is_running, memory = measure(pids, in_memory, limits["memory"])
        peak = max(peak, memory)
        idle_polls += 1
        if is_running or cpu_s > last_cpu_s:
            last_cpu_s, computed_at, idle_polls = cpu_s, now, 0
        is_idle = now > computed_at + limits["idle"] and idle_polls > limits["idle"] / _POLL_S
        if (newest := newest_pid()) != last_newest:
            last_newest, cpu_before_newest_s = newest, cpu_s
        is_over_cpu = cpu_s > cpu_before_newest_s + limits["cpu"]
        # In a dry run, bash itself ends its script at this limit, at the same command on each machine. Other
        # programs end at twice the limit.
        started_too_many = newest > 2 * (limits["started"] or newest)
        is_over_time = is_idle or is_over_cpu or started_too_many
        time_limit = "time" if is_over_time else "machine" if now > deadline else ""
        if time_limit and status is not None:  # the program has ended, and only background processes are left
            return status, "", peak
        limit = time_limit or ("memory" if memory > limits["memory"] else "")
        if limit or any(disk.is_used_up() for disk in disks):
            return -signal.SIGKILL, limit or "disk", peak
        if not child:
            signal.sigtimedwait([signal.SIGCHLD], _POLL_S)


def measure(pids: Sequence[str], in_memory: Sequence[str], limit: int) -> tuple[float, bool, int]:
    """Return the CPU seconds of processes, whether one of them runs, and their bytes of memory.

    The memory includes the files of the file systems at the paths `in_memory`. If the sum is above `limit`,
    memory that several processes share counts only once, which takes longer to measure.
    """
    times, is_running, sizes = os.times(), False, {}
    ticks = (times.children_user + times.children_system) * _TICKS_PER_S
    for name in pids:
        if fields := read_kernel_file(f"/proc/{name}/stat").rpartition(")")[2].split():  # proc_pid_stat(5)
            ticks += sum(map(int, fields[11:15]))
            is_running = is_running or fields[0] in "RD"
            sizes[name] = int(fields[21]) * _PAGE_BYTES
    disks = [*map(os.statvfs, in_memory)]
    file_bytes = sum((disk.f_blocks - disk.f_bfree) * disk.f_frsize for disk in disks)
    file_bytes += sum(disk.f_files - disk.f_ffree for disk in disks) * _INODE_BYTES
    if sum(sizes.values()) + file_bytes > limit:
        for name in [*sizes]:
            # Pss divides shared memory among the processes that share it: proc_pid_smaps(5).
            pss = read_kernel_file(f"/proc/{name}/smaps_rollup").partition("\nPss:")[2].split()
            if pss:
                sizes[name] = int(pss[0]) << 10
    return ticks / _TICKS_PER_S, is_running, sum(sizes.values()) + file_bytes


def newest_pid() -> int:
    """Return the id of the newest process, which is also the number of processes that ever started."""
    return int(read_kernel_file("/proc/loadavg").rpartition(" ")[2] or 0)  # proc_loadavg(5)


def read_kernel_file(name: str) -> str:
    """Return the text of a file of the kernel; "" for a process that has ended."""
    try:
        with open(name, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def report_files(place: str) -> tuple[dict[str, bytes], bool]:
    """Return the program's output and records up to their limits, and whether all records are whole.

    `place` is the folder with the files of the output, and with a folder for the records.
    """
    texts, remaining = {}, _REPORT_BYTES
    names = os.listdir(f"{place}/starts") if os.path.isdir(f"{place}/starts") else []
    records = sorted(name for name in names if name.replace(".", "").isdigit())
    is_whole = len(records) <= MAX_RECORDS
    for name in ["out", "err", "trace", *(f"starts/{record}" for record in records[:MAX_RECORDS])]:
        try:
            descriptor = os.open(f"{place}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        with os.fdopen(descriptor, "rb") as file:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            data = file.read(min(MAX_FILE_BYTES, remaining)) if is_file else b""
            may_be_cut = name in ("out", "err")  # output, of which a plan needs only the first bytes
            is_whole = is_whole and (may_be_cut or not is_file or not file.read(1))
        remaining -= len(data)
        texts[name.removeprefix("starts/")] = data
    return texts, is_whole
