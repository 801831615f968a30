"""A rank of this node, and the time since its last sign of life.

The module only reads /proc, and sends no signal. The activity of a rank includes all processes below its
process. There are four kinds of life:

- the rank computes: a thread uses a CPU, wants a CPU, or is woken many times a second
- the rank moves data: it reads, writes, sends or receives, or a file grows that the rank has open
- the rank waits for a disk
- the rank waits for an event: a time, an answer, a program, another job

In case of doubt, the rank waits for an event. A rank is deadlocked only if each thread of its process waits,
without a time limit, for a lock that only a thread of this process releases.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from training.processes import proc
from training.processes.connections import Connection, other_end

# Limits for each second, for the main thread of a rank, for its other threads, or for all processes below the
# rank. A rank that stays below all limits is idle.
MAIN_CPU_SHARE, OTHER_CPU_SHARE = 0.01, 0.05  # of a CPU; threads of libraries wake up now and then
MAIN_WAKES, OTHER_WAKES = 50, 400  # wake-ups of a thread
MOVED_BYTES = 64 << 10  # read and written; a library that monitors the machine reads some of /proc
TENSOR_BYTES = 8 << 10  # between two ranks, even on a slow network; ranks that wait send less to their store
GROWN_BELOW_BYTES = 4 << 10  # added to files by the processes below, because loggers write all the time
CARRIED_BYTES, CARRIED_BELOW_BYTES = 200, 4 << 10  # of a connection of the rank, and of a process below it
# Threads of libraries that wake up many times a second. A loader's worker runs user code, so it is excluded.
_POLLING_THREADS = re.compile(r"gloo|pt_(?!data_worker)|NCCL|cuda")
_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[1])
_AUTOGRAD_THREADS = "pt_autograd"  # the start of the names of threads that may run hooks of the user
# Kernel functions in which a thread may wait for a program.
_PROGRAM_WAITS = re.compile(r"do_wait|.*pipe_read|.*poll|unix_stream|wait_woken|sk_wait")


class Sample(NamedTuple):
    """The resources that a rank and all processes below it have used so far."""

    # The state of the rank's main thread (proc.Thread), or D if any thread waits for a disk. After the end of
    # the rank, the state is "".
    state: str
    threads: dict[tuple[int, int], proc.Thread]  # by process and thread
    children_s: dict[int, float]  # by process: the CPU time of its children that have ended
    moved: dict[int, int]  # by process: the bytes that it has read and written
    sizes: dict[tuple[int, str], int]  # by process and path: the sizes of the files that it writes
    carried: dict[tuple[int, int], Connection]  # by process and the inode of its socket
    read: int  # bytes that the main thread has read
    written: int  # bytes that the main thread has written
    receives: str  # the socket or pipe that the main thread waits to read; "" without one


def sample(pid: int, known: Mapping[int, Connection], other_ranks: Container[int] = ()) -> Sample:
    """Return the resources that a rank has used so far.

    `known` are the connections of this machine by their inodes. The processes of `other_ranks` do not count,
    although they may be below this rank.
    """
    now = Sample(proc.state(pid), {}, {}, {}, {}, {}, *proc.bytes_of_main(pid), proc.read_target(pid))
    tree = [pid, *proc.descendants(pid, other_ranks)] if now.state else []
    for process in tree:
        now.threads.update({(process, task): thread for task, thread in proc.threads(process).items()})
        now.children_s[process] = proc.ended_children_s(process)
        now.moved[process] = proc.bytes_moved(process)
    if any(thread.state == "D" for thread in now.threads.values()):
        return now._replace(state="D")  # to look at files on that disk could block this process too
    for process in tree:
        sizes, sockets = proc.files_and_sockets(process)
        now.sizes.update({(process, name): size for name, size in sizes.items()})
        now.carried.update({(process, inode): known[inode] for inode in sockets & known.keys()})
    return now


def computes(before: Sample, after: Sample, seconds: float, *, asked: int = 0) -> bool:
    """Return whether a rank used or wanted a CPU between two samples, or was woken often.

    The main thread of the process `asked` does not count, because its answer to a signal uses a CPU.
    """
    work = 0.0  # the sum over all threads; 1 is the limit of a thread for a second
    for (process, task), thread in after.threads.items():
        earlier = before.threads.get((process, task), thread._replace(wakes=0, wanted_s=0.0))
        is_main = process == task
        if is_main and process == asked:
            continue
        cpu_limit, wakes_limit = (MAIN_CPU_SHARE, MAIN_WAKES) if is_main else (OTHER_CPU_SHARE, OTHER_WAKES)
        if is_main or not _POLLING_THREADS.match(thread.name):
            cpu_work = (thread.wanted_s - earlier.wanted_s) / cpu_limit
            work += max(cpu_work, (thread.wakes - earlier.wakes) / wakes_limit)
    ended_s = sum(after.children_s[pid] - before.children_s.get(pid, 0.0) for pid in after.children_s)
    return work + max(ended_s, 0.0) / OTHER_CPU_SHARE > seconds


def moves(pid: int, before: Sample, after: Sample, seconds: float, *, was_asked: bool = False) -> bool:
    """Return whether a rank read or wrote data between two samples, or a file grew.

    Each byte of the main thread counts. A main thread that woke up in a receiving call counts as having
    received data, because sockets other than TCP show no bytes. The stack that a main thread wrote because it
    `was_asked` does not count.
    """
    moved = sum(after.moved[process] - before.moved.get(process, 0) for process in after.moved)
    growths = {key: size - before.sizes.get(key, size) for key, size in after.sizes.items()}
    own_file_grew = any(growth > 0 for (process, _), growth in growths.items() if process == pid)
    grown_below = sum(growth for (process, _), growth in growths.items() if process != pid and growth > 0)
    has_received = bool(after.receives) and _has_woken(pid, before, after)
    has_written_or_received = after.written > before.written or has_received
    main_moved = after.read > before.read or (has_written_or_received and not was_asked)
    is_above_limit = moved > MOVED_BYTES * seconds or grown_below > GROWN_BELOW_BYTES * seconds
    return is_above_limit or own_file_grew or main_moved


def _has_woken(pid: int, before: Sample, after: Sample) -> bool:
    """Return whether the main thread has woken up between two samples."""
    return after.threads.get((pid, pid)) != before.threads.get((pid, pid))


def is_locked(pid: int, after: Sample) -> bool:
    """Return whether each thread of a process waits, without a time limit, for a lock of this process."""
    return (pid, pid) in after.threads and proc.waits_for_own_lock(pid, pid) and cannot_act(pid, after)


def cannot_act(pid: int, after: Sample) -> bool:
    """Return whether a process can do nothing while its main thread waits.

    In such a process, all other threads wait for locks of the process, and no signal may start a handler of
    the user.
    """
    other_threads = [
        task
        for (process, task), thread in after.threads.items()
        if process == pid != task
        and (not _POLLING_THREADS.match(thread.name) or thread.name.startswith(_AUTOGRAD_THREADS))
    ]
    may_be_woken = proc.awaits_signals(pid) and not _is_bundled(pid)
    return not may_be_woken and all(proc.waits_for_own_lock(pid, task) for task in other_threads)


def _is_bundled(pid: int) -> bool:
    """Return whether a process is the bundled trainer, whose signal handlers only note a stop."""
    words = proc.read(pid, "cmdline").split("\0")
    is_module = "-m" in words and words[words.index("-m") + 1] == _PACKAGE_FOLDER.rpartition("/")[2]
    return is_module or _PACKAGE_FOLDER in words


class Rank:
    """The history of a rank of this node. Times are seconds of the watcher's clock."""

    def __init__(self, pid: int, now_s: float) -> None:
        self.pid = pid
        self.computed_s = self.moved_s = now_s  # the last times that the rank computed, and moved data
        self.unlocked_s = now_s  # the last time that a thread did not wait for a lock of its own process
        self.could_act_s = now_s  # the last time that another thread, or a signal handler, could have acted
        self.main_woke_s = now_s  # the last time that the main thread woke up without a signal of the watcher
        self.was_asked = False  # whether the watcher has asked for a stack, by a signal, since the last look
        self.state = "?"  # before the first look
        self._sample: Sample | None = None
        self._looked_s = now_s
        # Times of connections, by the local and the remote address.
        self._carried_s: dict[tuple[str, str], float] = {}  # the last time that the connection carried much
        self._busy_s: dict[tuple[str, str], float] = {}  # the last time that the connection carried tensors
        self._asked_s: dict[tuple[str, str], float] = {}  # since this time the rank waits for an answer
        # Addresses of the rank's own process, not of the processes below.
        self._main_ends: set[tuple[str, str]] = set()
        self._gloo_threads: set[tuple[int, int]] = set()  # gloo's threads, by process and thread

    def look(self, known: Mapping[int, Connection], now_s: float, other_ranks: Collection[int] = ()) -> None:
        """Note the activity since the last look; `known` and `other_ranks` are those of `sample`."""
        before, after = self._sample, sample(self.pid, known, other_ranks)
        self._name_threads(after)
        seconds, self._looked_s = now_s - self._looked_s, now_s
        self._sample, self.state = after, after.state
        if before is None or seconds <= 0:
            return
        if computes(before, after, seconds, asked=self.pid if self.was_asked else 0) or after.state == "D":
            self.computed_s = now_s
        if moves(self.pid, before, after, seconds, was_asked=self.was_asked):
            self.moved_s = now_s
        if not is_locked(self.pid, after):
            self.unlocked_s = now_s
        if not cannot_act(self.pid, after):
            self.could_act_s = now_s
        if not self.was_asked and _has_woken(self.pid, before, after):
            self.main_woke_s = now_s
        self.was_asked = False
        self._note_connections(before, after, seconds, now_s)

    def _name_threads(self, after: Sample) -> None:
        """Name gloo's threads "gloo", so that they do not count. On a busy machine they seem to compute."""
        for key, thread in after.threads.items():
            process, task = key
            is_main = process == task
            if key in self._gloo_threads or (not is_main and proc.polls_for_gloo(process, task)):
                self._gloo_threads.add(key)
                after.threads[key] = thread._replace(name="gloo")

    def still_s(self, now_s: float) -> float:
        """Return the seconds for which the rank has neither computed nor moved data."""
        return now_s - max(self.computed_s, self.moved_s)

    def connections(self, now_s: float) -> list[dict[str, Any]]:
        """Return the connections with other processes, as facts for `verdict.facts`.

        `idle_s` are the seconds since a connection last carried more than a little, and `busy_s` the seconds
        since it last carried tensors. `asked_s` are the seconds for which it has waited for an answer.
        """
        after = self._sample
        all_ends = dict.fromkeys(connection[:2] for connection in after.carried.values()) if after else {}
        return [
            {
                "ends": ends,
                "idle_s": now_s - self._carried_s[ends] if ends in self._carried_s else None,
                "asked_s": now_s - self._asked_s[ends] if ends in self._asked_s else None,
                "busy_s": now_s - self._busy_s[ends] if ends in self._busy_s else None,
                "own": ends in self._main_ends,
            }
            for ends in all_ends
            if ends[::-1] not in all_ends  # otherwise both ends belong to this rank
        ]

    def _note_connections(self, before: Sample, after: Sample, seconds: float, now_s: float) -> None:
        """Note the times at which connections carried data, or began to wait for an answer."""
        awaited = proc.inode(after.receives)  # the main thread waits for this socket, so each byte counts
        for (pid, inode), connection in after.carried.items():
            ends, earlier = connection[:2], before.carried.get((pid, inode))
            carried = connection.moved - (earlier.moved if earlier else 0)
            if pid == self.pid:
                self._main_ends.add(ends)
            limit = (CARRIED_BYTES if ends in self._main_ends else CARRIED_BELOW_BYTES) * seconds
            if carried > (0 if inode == awaited else limit):
                self._carried_s[ends] = now_s
            if carried > TENSOR_BYTES * seconds:
                self._busy_s[ends] = now_s
            if connection.waits or inode == awaited:
                self._asked_s.setdefault(ends, now_s)
            else:
                self._asked_s.pop(ends, None)

    def awaited_program(self, other_ranks: Collection[int] = ()) -> str:
        """Return the name of the program for which the main thread waits; "" without such a program.

        The program is a child of the rank, or a process outside of the run at the other end of a pipe or
        socket. Processes of multiprocessing, such as the workers of a loader, are no such programs, because
        they are parts of the rank. The search may look at all processes of the machine, so it is made only
        for a report.
        """
        own_command = proc.read(self.pid, "cmdline")
        if not _PROGRAM_WAITS.match(proc.waits_in(self.pid)):
            return ""
        for child in proc.children(self.pid):
            command = proc.read(child, "cmdline")
            is_part_of_rank = command in ("", own_command) or "multiprocessing" in command
            if child not in other_ranks and not is_part_of_rank:
                return proc.program(child)
        target = proc.read_target(self.pid)
        inode = proc.inode(target)
        held_end = f"socket:[{other_end(inode)}]" if inode else target
        processes_of_run = {*other_ranks}
        for root in (os.getpid(), self.pid):
            processes_of_run |= {root, *proc.descendants(root)}
        holders = proc.holders(held_end) if target else ()
        outside = next((holder for holder in holders if holder not in processes_of_run), 0)
        return proc.program(outside) if outside else ""
