"""The stacks of main threads, and the ranks below a launcher.

training/hook installs handlers of two signals in each rank. Each signal goes to the main thread, which writes
only its own stack:

- ASLEEP is for a main thread that sleeps, and has not run between two looks. If the thread wakes up
  meanwhile, it first runs the handler, so its frames cannot change while the handler reads them.
- AWAKE is for a main thread on a CPU. Python answers between two instructions, and no system call ends early.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from training.hook.sitecustomize import ASLEEP, AWAKE, MEMORY
from training.processes import proc
from training.processes.connections import connections
from training.processes.verdict import OF_A_LOADER

HOOK = Path(__file__).parents[1] / "hook"
MAX_ANSWER_S = 2.0  # the longest wait for an answer, which a running process writes in a few milliseconds
POLL_S = 0.02  # seconds between two looks for an answer
# A thread sleeps if it has not run for APART_S seconds. A polling thread often wakes up, so there are TRIES.
APART_S, TRIES = 0.01, 50
RECORDED_CALLS = "2000"  # collective operations in the flight recorder, as in later versions of torch
TGKILL = {"x86_64": 234, "aarch64": 131}  # the number of tgkill(2); glibc has the function since 2.30
# Such as '  File "/home/a/train.py", line 61 in step'.
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
# Files of packages and of Python itself, and files without a path, such as "<string>".
_LIBRARY_FILE = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^<")
# Kernel functions in which a thread waits. A signal has different effects on the wait (signal(7)):
# - _CONTINUED_WAITS: the wait continues.
# - _ENDED_WAITS: the wait ends. Python then repeats the call, but torch before 2.5 gives up a connection.
# - _SOCKET_WAITS: the wait ends if the socket has a time limit, which /proc does not show.
# A thread in any other function gets no signal. For example, a call on a slow file system might fail.
_CONTINUED_WAITS = re.compile(r"futex|do_wait|.*pipe_|locks_lock|fcntl_setlk|wait_for_partner")
_ENDED_WAITS = re.compile(r".*poll|.*nanosleep|do_select|.*sigtimedwait|.*pause|.*wait_for_more_packets")
_SOCKET_WAITS = re.compile(r"unix_stream|wait_woken|sk_wait|inet_csk_accept")
# The file whose functions wait for a loader, and the function that each process of a loader runs.
_LOADER_FILE, _WORKER_FUNCTION = "torch/utils/data/dataloader.py", "_worker_loop"
_LOADER_PROCESS = "pt_data_worker"  # the name of a loader's process since torch 2.6
# Threads that only a process in a process group of torch has.
_GROUP_THREADS = re.compile(r"pt_(?:gloo|nccl|tcpstore)|gloo")
_QUEUE_FILES = re.compile(r"/multiprocessing/|/selectors\.py$")  # files of the queue from which loaders read
_TORCH_FILE = re.compile(r"/torch/")
# Frames, as "FILE FUNCTION", of the collective functions, such as `all_reduce`,
_COLLECTIVES = re.compile(r"torch/distributed/distributed_c10d\.py \w+$")
# and of other functions that may wait for other ranks, such as DDP's `backward`.
_WAITING_CALLS = re.compile(
    r"torch/(?:distributed|nn/parallel/distributed)|/torch/.* (?:backward|synchronize)$"
)


def with_hook(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the hook on PYTHONPATH, so that a Python program can write its stack.

    In a job that is debugged, the fifth word of SBATCHGEN_DEBUG_AT is the folder of the debugger. It is added
    too, because the PYTHONPATH of a container may lack it.
    """
    known = environ.get("PYTHONPATH", "")
    debugger = environ.get("SBATCHGEN_DEBUG_AT", "").split(" ", 4)[4:]
    folders = [str(HOOK), *[folder for folder in debugger if folder not in known.split(":")], known]
    return {**environ, "PYTHONPATH": ":".join(filter(None, folders))}


def with_recorder(environ: Mapping[str, str], run_dir: str) -> dict[str, str]:
    """Return an environment in which torch writes each rank's last NCCL operations to a file after a timeout.

    The files are in `run_dir`. Variables that the user has set stay.
    """
    size, file = "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"
    if _torch_is_before(2, 9):  # the old names of the variables
        size, file = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    prefix = f"{Path(run_dir).resolve()}/nccl-rank-"
    recorder = {size: RECORDED_CALLS, file: prefix, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    return {**(recorder if run_dir else {}), **environ}


def _torch_is_before(*release: int) -> bool:
    """Return whether this Python's torch is older than a release, such as 2, 9; False if it is not known."""
    with contextlib.suppress(Exception):  # Python 3.7, or no torch
        from importlib.metadata import version

        return tuple(map(int, version("torch").split(".")[:2])) < release
    return False


def ranks_below(root: int, *, spawns: bool = False, node: int = 0) -> dict[int, int]:
    """Return the process ids of the ranks at and below a launcher, by rank.

    The process of a rank is its topmost Python program, or the trainer that this program wraps. With `spawns`
    the trainer itself starts its ranks, on node number `node`.
    """
    ranks = [*map(_wrapped_trainer, top_programs(root))]
    if spawns and ranks:
        return _spawned(ranks[0], node)
    return {int(proc.variable(pid, "RANK", "SLURM_PROCID") or 0): pid for pid in ranks}


def _spawned(pid: int, node: int) -> dict[int, int]:
    """Return the process ids of the ranks that a trainer started, by rank.

    Without such processes, the trainer itself is the only rank. A launcher sets RANK for each rank. Lightning
    sets LOCAL_RANK for all ranks except the first, which is the trainer itself. multiprocessing sets no
    variable, so its ranks are numbered in the order of their start.
    """
    numbered = [*_started_with_number(pid)]
    ranks = {proc.variable(process, "RANK"): process for process in numbered}
    if ranks and "" not in ranks:
        return {int(rank): process for rank, process in ranks.items()}
    if numbered:
        local_ranks = {int(proc.variable(process, "LOCAL_RANK")): process for process in numbered}
        local_ranks.setdefault(0, pid)
    else:
        local_ranks = dict(enumerate(_by_multiprocessing(pid) or [pid]))
    return {node * len(local_ranks) + number: process for number, process in local_ranks.items()}


def _started_with_number(pid: int) -> Iterator[int]:
    """Yield the topmost descendants of a process that were started with RANK or LOCAL_RANK.

    Children of multiprocessing's ranks inherit such a variable, but are no ranks.
    """
    for child in proc.children(pid):
        if proc.variable(child, "RANK", "LOCAL_RANK") and _stack_file(child):
            yield child
        elif child not in _by_multiprocessing(pid):
            yield from _started_with_number(child)


def _by_multiprocessing(pid: int) -> list[int]:
    """Return the processes that a process started by multiprocessing: spawned processes, else its forks."""
    children, own_command = proc.children(pid), proc.read(pid, "cmdline")
    spawned = [child for child in children if "multiprocessing.spawn" in proc.read(child, "cmdline")]
    forks = [child for child in children if proc.read(child, "cmdline") == own_command]
    return spawned or [child for child in forks if _stack_file(child)]


def top_programs(pid: int) -> Iterator[int]:
    """Yield the topmost Python programs with the hook, at and below a launcher."""
    if _stack_file(pid):
        yield pid
    else:  # this reads far fewer processes than a search of all descendants
        for child in proc.children(pid):
            yield from top_programs(child)


def _wrapped_trainer(pid: int) -> int:
    """Return the trainer that a program wraps, or the program itself.

    A program wraps a trainer if it trains nothing itself, and started exactly one program with torch.
    Processes with the program's command line, or of multiprocessing, are parts of the program.
    """
    own_command = proc.read(pid, "cmdline")
    started: list[int] = []
    for child in proc.children(pid):
        command = proc.read(child, "cmdline")
        if command not in ("", own_command) and "multiprocessing" not in command:
            started += map(_wrapped_trainer, top_programs(child))
    trainers = [process for process in started if _has_torch(process)]
    if len(trainers) != 1 or _is_in_group(pid) or (_has_torch(pid) and not _is_in_group(trainers[0])):
        return pid
    return trainers[0]


def _has_torch(pid: int) -> bool:
    return "/libtorch" in proc.read(pid, "maps")


def _is_in_group(pid: int) -> bool:
    """Return whether a process is in a process group of torch.

    The names of its threads show this, or before torch 2.5 its connections.
    """
    if any(_GROUP_THREADS.match(thread.name) for thread in proc.threads(pid).values()):
        return True
    return _torch_is_before(2, 5) and _is_connected_to_store(pid)


def _is_connected_to_store(pid: int) -> bool:
    """Return whether a process is connected to the store at which the ranks meet."""
    port = proc.variable(pid, "MASTER_PORT")
    known, (_, sockets) = connections(), proc.files_and_sockets(pid)
    return any(known[inode].remote.endswith(f":{port}") for inode in sockets & known.keys() if port)


def stack_asleep(pid: int, tries: int = TRIES, *, may_cut: bool = True, connects: bool = True) -> str:
    """Return the stack of a sleeping main thread; "" if it runs now and then, or may not get the signal.

    With `may_cut`, a thread in a call that a signal ends early also gets the signal. Python repeats such a
    call, but a library in C may not. `connects` is whether torch may be connecting to other ranks in this
    process, as it never does in a loader's process.
    """
    if not _may_be_asked(pid, ASLEEP):
        return ""
    for _ in range(tries):
        before = proc.threads(pid).get(pid)
        time.sleep(APART_S)
        after = proc.threads(pid).get(pid)
        if before is None or after is None or after.state not in ("S", "R"):
            return ""
        if before == after and after.state == "S":
            may_ask = _may_be_interrupted(proc.waits_in(pid), may_cut=may_cut, connects=connects)
            return _answer(pid, ASLEEP) if may_ask else ""
    return ""


def _may_be_interrupted(wait: str, *, may_cut: bool, connects: bool) -> bool:
    """Return whether a signal does no harm to a thread that waits in a kernel function."""
    gives_up = connects and _torch_is_before(2, 5)  # see _ENDED_WAITS
    ends_early = _SOCKET_WAITS.match(wait) or (_ENDED_WAITS.match(wait) and not gives_up)
    return bool(_CONTINUED_WAITS.match(wait) or (may_cut and ends_early))


def stack_awake(pid: int) -> str:
    """Return the stack of a main thread that runs Python; "" if it runs code of a C library, or waits."""
    if not _may_be_asked(pid, AWAKE):
        return ""
    until = time.monotonic() + MAX_ANSWER_S
    while time.monotonic() < until:
        if proc.state(pid) == "R":
            return _answer(pid, AWAKE)
        time.sleep(POLL_S / 20)
    return ""


def _may_be_asked(pid: int, offset: int) -> bool:
    """Return whether a process handles a signal, which would end any other process.

    `offset` is ASLEEP or AWAKE: the signal is SIGRTMAX - offset.
    """
    match = re.search(r"SigCgt:\s(\w+)", proc.read(pid, "status"))
    return bool(match and int(match[1], 16) & 1 << (signal.SIGRTMAX - offset - 1) and _stack_file(pid))


def _answer(pid: int, offset: int) -> str:
    """Return the stack that the main thread writes after signal SIGRTMAX - offset; "" without an answer."""
    with contextlib.suppress(OSError), open(_stack_file(pid), "rb") as file:  # noqa: PTH123
        before = size = file.seek(0, os.SEEK_END)
        _signal(pid, signal.SIGRTMAX - offset)
        until = time.monotonic() + MAX_ANSWER_S
        # The answer is complete when the file has grown, and then has the same size at two looks.
        while time.monotonic() < until and (size == before or size != os.fstat(file.fileno()).st_size):
            size = os.fstat(file.fileno()).st_size
            time.sleep(POLL_S)
        return file.read().decode(errors="replace")
    return ""


def _signal(pid: int, number: int) -> None:
    """Send a signal to a main thread, or to its process if the number of tgkill is not known."""
    call = TGKILL.get(os.uname().machine)
    if call is None:
        os.kill(pid, number)
    else:
        ctypes.CDLL(None).syscall(call, pid, pid, number)  # fails if the thread has ended


def frames(text: str) -> list[tuple[str, str, str]]:
    """Return the frames of a stack, the innermost frame first: file, line, function."""
    return _FRAME.findall(text)


def call_and_line(pid: int, stack: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Return the call in which a stack waits for other ranks, and the line of the user's code.

    The call is "" if the stack does not wait for other ranks. If it waits for a loader, the line may be the
    loader's. The line is "" without a stack. For example, the result is ("all_reduce", "train.py:61").
    """
    index = _user_frame(stack)
    inner = [f"{path} {function}" for path, _, function in stack[:index]]
    calls = [*filter(_COLLECTIVES.search, inner)] or [*filter(_WAITING_CALLS.search, inner)]
    # A call that runs code outside of torch does not wait for ranks. For example, it uploads a checkpoint.
    if calls and not _TORCH_FILE.search(stack[0][0]):
        calls = []
    if not calls and any(_LOADER_FILE in text for text in inner):
        for loader in proc.children(pid):
            line = _loader_line(frames(stack_asleep(loader, tries=3)))
            if line:
                return "", line
    call = calls[-1].rpartition(" ")[2] if calls else ""
    return call, f"{stack[index][0].rpartition('/')[2]}:{stack[index][1]}" if stack else ""


def are_loaders_stuck(pid: int) -> bool:
    """Return whether a process's loaders are deadlocked: some wait for their locks, the others for work."""
    locked = [child for child in proc.children(pid) if _is_locked(child)]
    others = [child for child in proc.children(pid) if child not in locked]
    stacks = (frames(stack_asleep(child, tries=3, connects=False)) for child in others)
    return bool(locked) and all(map(_has_no_work, stacks))


def has_locked_loader(pid: int) -> bool:
    """Return whether a loader of a process is deadlocked: it waits for its own lock without a time limit."""
    return any(proc.program(child) == _LOADER_PROCESS and _is_locked(child) for child in proc.children(pid))


def locked_loader_line(pid: int) -> str:
    """Return the line of the user's code in a deadlocked loader; "" without such a loader."""
    locked = (child for child in proc.children(pid) if _is_locked(child))
    return next(filter(None, (_loader_line(frames(stack_asleep(child, tries=3))) for child in locked)), "")


def _is_locked(pid: int) -> bool:
    """Return whether all threads of a loader wait for its own locks, or accept connections."""
    # A thread that accepts connections belongs to multiprocessing, and only serves.
    tasks = [*proc.threads(pid)]
    is_locked = pid in tasks and proc.waits_for_own_lock(pid, pid) and not proc.awaits_signals(pid)
    return is_locked and all(proc.waits_for_own_lock(pid, task) or proc.accepts(pid, task) for task in tasks)


def _has_no_work(stack: Sequence[Sequence[str]]) -> bool:
    """Return whether a loader waits for work, by its stack."""
    names = [function for *_, function in stack]
    # The frames of the functions that the loader's loop has called.
    inner = stack[: names.index(_WORKER_FUNCTION)] if _WORKER_FUNCTION in names else ()
    return bool(inner) and all(_QUEUE_FILES.search(path) for path, *_ in inner)


def waits_for_loader(stack: Sequence[Sequence[str]]) -> bool:
    """Return whether a stack waits for an answer of a loader."""
    return any(_LOADER_FILE in path for path, *_ in stack[: _user_frame(stack)])


def _user_frame(stack: Sequence[Sequence[str]]) -> int:
    """Return the index of the innermost frame of the user's code, else of the outermost frame."""
    indices = (index for index, frame in enumerate(stack) if not _LIBRARY_FILE.search(frame[0]))
    return next(indices, max(len(stack) - 1, 0))


def _loader_line(stack: Sequence[Sequence[str]]) -> str:
    """Return the line of the user's code in a loader's stack; "" if the loader waits for work."""
    names = [function for *_, function in stack]
    if _WORKER_FUNCTION in names:
        for path, line, _ in stack[: names.index(_WORKER_FUNCTION)]:
            if not _LIBRARY_FILE.search(path):
                return f"{path.rpartition('/')[2]}:{line}{OF_A_LOADER}"
    return ""


def _stack_file(pid: int) -> str:
    """Return the path in /proc of the memory into which a process writes stacks; "" without the memory."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            if os.readlink(entry.path).startswith(f"/memfd:{MEMORY} "):  # noqa: PTH115 - Python 3.7
                return entry.path
    return ""
