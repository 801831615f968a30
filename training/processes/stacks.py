"""The stacks of processes, as training/hook has them written, and what /proc says of the processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from training.hook.sitecustomize import FROM_END, MEMORY

HOOK = Path(__file__).parents[1] / "hook"
ANSWER_S, POLL_S = 2.0, 0.05  # a process that runs writes in a few milliseconds
CPU, BYTES, WAKES = 0.05, 1 << 20, 50  # in a second: who does less of all stands still
WAKES_BESIDE = 400  # of a thread that is not the main one: gloo's, without a name in torch 2.2, has 100
CALLS = "2000"  # collective operations that the flight recorder keeps, torch's own default in later versions
TGKILL = {"x86_64": 234, "aarch64": 131}  # the number of tgkill(2), which glibc has since 2.30
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^<")
_BUSY = re.compile(r"\nState:\s([RD])")
_WOKEN = re.compile(r"\nvoluntary_ctxt_switches:\s(\d+)")
_POLLS = re.compile(r"Name:\s(?:gloo|pt_|NCCL|cuda)")  # threads of libraries that look many times a second
_LOADER, _WORKER = "torch/utils/data/dataloader.py", "_worker_loop"
_C10D = re.compile(r"torch/distributed/distributed_c10d\.py \w+$")
# they may wait for the others too, as DDP in `backward`
_WAITS = re.compile(r"torch/(?:distributed|nn/parallel/distributed)|/torch/.* (?:backward|synchronize)$")


class Look(NamedTuple):
    """A process at a moment, with all that are below it."""

    state: str  # as in /proc/PID/stat: S, T, Z; R or D if any thread is so; "" without the process
    frames: list[tuple[str, str, str]]  # file, line and function; of the main thread, the innermost first
    work: float  # so far: 1 is what it may do in a second and stand still
    text: str


def with_hook(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a Python program can write its stacks."""
    return {**environ, "PYTHONPATH": ":".join(filter(None, [str(HOOK), environ.get("PYTHONPATH")]))}


def with_recorder(environ: Mapping[str, str], run_dir: str) -> dict[str, str]:
    """The environment in which NCCL writes its last operations, a file a rank, once its timeout is over."""
    size, file = "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"
    if _torch_is_before(2, 9):  # which renamed them
        size, file = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    recorder = {size: CALLS, file: f"{Path(run_dir).resolve()}/nccl-rank-", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    return {**(recorder if run_dir else {}), **environ}


def _torch_is_before(*release: int) -> bool:
    """Whether the torch of this Python is older; False if that is not known."""
    with contextlib.suppress(Exception):  # Python 3.7, or no torch
        from importlib.metadata import version

        return tuple(map(int, version("torch").split(".")[:2])) < release
    return False


def ranks_below(root: int, *, spawns: bool = False) -> dict[int, int]:
    """The processes of ranks at and below a launcher, by rank: the topmost of each.

    `spawns`: the trainer starts its ranks, which are numbered as they started.
    """
    tops = [*_tops(root)]
    if spawns and tops:
        started = [pid for pid in children(tops[0]) if "multiprocessing.spawn" in read(pid, "cmdline")]
        return dict(enumerate(started or tops[:1]))
    return {int(variable(pid, "RANK", "SLURM_PROCID") or 0): pid for pid in tops}


def _tops(pid: int) -> Iterator[int]:
    if _memory(pid):
        yield pid
    else:  # far fewer than all below
        for child in children(pid):
            yield from _tops(child)


def variable(pid: int, *names: str) -> str:
    """The first of these variables with which a process was started; "" without any."""
    known = dict(each.partition("=")[::2] for each in read(pid, "environ").split("\0"))
    return next((known[name] for name in names if known.get(name, "").isdecimal()), "")


def look(pid: int) -> Look:
    """What a process does now."""
    state, work = "", 0.0
    for each in (pid, *_below(pid)):
        fields = read(each, "stat").rpartition(")")[2].split() or [""]
        state = fields[0] if each == pid else state
        work += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") / CPU  # also of ended children
        work += sum(map(int, re.findall(r"[rw]char: (\d+)", read(each, "io")))) / BYTES
        for status in _of_threads(each, "status"):
            if not _POLLS.match(status):
                state = next(iter(_BUSY.findall(status)), state)
                wakes = WAKES if f"\nPid:\t{each}\n" in status else WAKES_BESIDE
                work += sum(map(int, _WOKEN.findall(status))) / wakes
    text = dump(pid) if state not in ("", "T", "Z") else ""
    return Look(state, main_frames(text), work, text)


def dump(pid: int) -> str:
    """Have a process write the stacks of its threads; "" if it does not."""
    memory, thread = _memory(pid), _thread_for_signal(pid)
    if not (memory and thread):
        return ""
    with contextlib.suppress(OSError), open(memory, "rb") as file:  # noqa: PTH123
        before = size = file.seek(0, os.SEEK_END)
        _signal(pid, thread)
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until and (size == before or size != os.fstat(file.fileno()).st_size):
            size = os.fstat(file.fileno()).st_size
            time.sleep(POLL_S)
        return file.read().decode(errors="replace")
    return ""


def _thread_for_signal(pid: int) -> int:
    """A thread that loses nothing by our signal, if it catches that; 0 if the process could end by it.

    A wait for a lock continues after a signal; a `poll` or `sleep` of a C library ends early (signal(7)).
    With a process group some thread waits for a lock. Without one the main thread may be meeting the others,
    which torch before 2.5 gives up at a signal.
    """
    bit = 1 << (signal.SIGRTMAX - FROM_END - 1)

    def has(status: str, mask: str) -> bool:
        match = re.search(rf"{mask}:\s(\w+)", status)
        return bool(match and int(match[1], 16) & bit)

    if not has(read(pid, "status"), "SigCgt"):
        return 0
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - the numbers alone
            is_in_lock = read(pid, f"task/{task}/wchan").startswith("futex")
            if is_in_lock and not has(read(pid, f"task/{task}/status"), "SigBlk"):
                return int(task)
    return 0 if _torch_is_before(2, 5) else pid


def _signal(pid: int, thread: int) -> None:
    """Send our signal to a thread of a process; where tgkill's number is not known, to the process."""
    number, call = signal.SIGRTMAX - FROM_END, TGKILL.get(os.uname().machine)
    if call is None:
        os.kill(pid, number)
    else:
        ctypes.CDLL(None).syscall(call, pid, thread, number)  # fails if the thread has ended


def main_frames(text: str) -> list[tuple[str, str, str]]:
    """The frames of the main thread in a dump, where it is the last."""
    return _FRAME.findall(re.split(r"^(?:Current t|T)hread 0x", text, flags=re.MULTILINE)[-1])


def place(pid: int, frames: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The call in which a stack waits for other ranks, or "", and the line of the user's code, or ""."""
    at = next((at for at, frame in enumerate(frames) if not _LIBRARY.search(frame[0])), len(frames) - 1)
    inner = [f"{path} {function}" for path, _, function in frames[: max(at, 0)]]
    calls = [*filter(_C10D.search, inner)] or [*filter(_WAITS.search, inner)]
    if not calls and any(_LOADER in each for each in inner):
        for loader in map(main_frames, map(dump, children(pid))):
            names = [function for *_, function in loader]
            for path, line, _ in loader[: names.index(_WORKER)] if _WORKER in names else ():
                if not _LIBRARY.search(path):
                    return "", f"{path.rpartition('/')[2]}:{line} of a loader"
    call = calls[-1].rpartition(" ")[2] if calls else ""
    return call, f"{frames[at][0].rpartition('/')[2]}:{frames[at][1]}" if frames else ""


def function(frames: Sequence[Sequence[str]]) -> str:
    """The innermost function of the user's code, with its file; "" without one."""
    return next((f"{path} {name}" for path, _, name in frames if not _LIBRARY.search(path)), "")


def children(pid: int) -> list[int]:
    """The processes that one has started."""
    return [int(child) for each in _of_threads(pid, "children") for child in each.split()]


def _below(pid: int) -> Iterator[int]:
    """All processes below one but this, each before its own."""
    for child in children(pid):
        if child != os.getpid():
            yield child
            yield from _below(child)


def _memory(pid: int) -> str:
    """The name in /proc of the memory of a process's stacks, or "": it may have closed or replaced it."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            if os.readlink(entry.path).startswith(f"/memfd:{MEMORY} "):  # noqa: PTH115 - Python 3.7
                return entry.path
    return ""


def _of_threads(pid: int, name: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [read(pid, f"task/{each.name}/{name}") for each in Path(f"/proc/{pid}/task").iterdir()]
    return []


def read(pid: int, name: str) -> str:
    """A file of a process in /proc; "" if it has ended, or belongs to another user."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""
