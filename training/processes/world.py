"""The process group of a run: how a process joins and leaves it, and the collective operations."""

import ctypes
import inspect
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from training.errors import UserError, one_line
from training.processes.ranks import MEETING, Place, usable_cpus

T = TypeVar("T")

TEXT_BYTES = 1024  # bytes of each text in `gather_text`
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3), from malloc.h of glibc


@dataclass(frozen=True, slots=True)
class World:
    """The place of this process in the process group: `rank` of `size`, computing on `device`."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    # nccl or gloo; "" without a launcher, when there is no process group and collectives do nothing
    backend: str
    threads: int  # threads of torch in this process
    host: str
    cpus: int = 1  # CPUs that belong to this process

    @property
    def name(self) -> str:
        """The name of this process in messages."""
        return f"rank {self.rank} of {self.size} on {self.host}"


def join(place: Place, check: Callable[[], None], *, device: str, backend: str, timeout_s: float) -> World:
    """Choose the device and the threads, and join the process group.

    `check` may raise UserError. All processes raise UserError if `check` or the choice of the device fails on
    any process.
    """
    chosen, problem = torch.device("cpu"), None
    try:
        check()
        chosen = _choose_device(place, device, backend)
    except UserError as error:
        problem = error
    cpus, variable = _cpus(place), os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(variable) if variable.isdecimal() and int(variable) else cpus
    torch.set_num_threads(threads)
    if chosen.type == "cpu":
        keep_memory()
    backend = ("nccl" if chosen.type == "cuda" else "gloo") if backend == "auto" else backend
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    backend = backend if place.launcher != "none" else ""
    world = World(place.rank, place.size, place.local_rank, chosen, backend, threads, host, cpus)
    if backend:
        _meet(world, timeout_s, problem)
    elif problem:
        raise problem
    return world


def keep_memory() -> bool:
    """Use huge pages, and keep freed memory; return whether the C library can keep it (mallopt(3))."""
    # torch reads this variable before it makes its first large tensor: c10/core/impl/alloc_cpu.cpp
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # By default glibc returns large blocks to Linux in each step, which takes 10 to 33 % of the step.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    sizes = (1 << 30, 32 << 20)  # older versions of glibc allow at most 32 MiB
    is_set = any(mallopt(M_MMAP_THRESHOLD, size) for size in sizes)
    return is_set and bool(mallopt(M_TRIM_THRESHOLD, -1))  # -1: return nothing


def leave(world: World) -> None:
    """Wait for the other processes, and leave the group. A launcher mistakes an early exit for a failure."""
    if world.backend:
        reduce_sum(world, torch.zeros(1, device=world.device)).item()
    if world.backend == "nccl":  # with gloo it would hold the GIL while it waits for threads
        dist.destroy_process_group()


def reduce_sum(world: World, values: torch.Tensor) -> torch.Tensor:
    """Sum a tensor on the world's device over all processes, in place; return the tensor."""
    if world.backend:
        dist.all_reduce(values)
    return values


def copy_from_rank0(world: World, tensors: Iterable[torch.Tensor]) -> None:
    """Copy rank 0's tensors to all processes, in place; the tensors are on the world's device."""
    if world.backend:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)  # the same memory, without autograd


def broadcast_bytes(world: World, data: bytes | None) -> bytes | None:
    """Return rank 0's bytes, or None, on every process, without a shared file system."""
    if not world.backend:
        return data
    length = torch.tensor([-1 if data is None else len(data)], dtype=torch.int64, device=world.device)
    dist.broadcast(length, src=0)
    if (count := int(length.item())) < 0:
        return None
    buffer = bytearray(data or count)
    if count:
        view = torch.frombuffer(buffer, dtype=torch.uint8)
        on_device = view.to(world.device)
        dist.broadcast(on_device, src=0)
        view.copy_(on_device)  # on a CPU both share their memory
    return data if data is not None else bytes(buffer)


def gather_text(world: World, text: str) -> list[str]:
    """Return the texts of all processes in the order of ranks, on every process, each cut at TEXT_BYTES."""
    if not world.backend:
        return [text]
    data = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
    own_text = torch.tensor(list(data), dtype=torch.uint8, device=world.device)
    all_texts = [torch.empty_like(own_text) for _ in range(world.size)]
    dist.all_gather(all_texts, own_text)
    return [bytes(text.tolist()).rstrip(b"\0").decode(errors="ignore") for text in all_texts]


def on_all_ranks(world: World, make: Callable[[], T]) -> T:
    """Call `make` on all processes, and return its result.

    If a process raises UserError or OSError, all processes raise a UserError with the lowest rank's error.
    """
    result: Any = None
    problem = ""
    try:
        result = make()
    except (UserError, OSError) as error:
        problem = (f"{world.name}: " if world.size > 1 else "") + one_line(error)
    for text in filter(None, gather_text(world, problem)):
        raise UserError(text, shared=True)
    return result  # type: ignore[no-any-return]


def on_rank0(world: World, make: Callable[[], T]) -> T | None:
    """Call `make` on rank 0; return its result there, None elsewhere; raise its error on all processes."""
    return on_all_ranks(world, lambda: make() if world.rank == 0 else None)


def _choose_device(place: Place, wanted: str, backend: str) -> torch.device:
    """Return the device of --device for this process; raise UserError if a needed GPU is not visible."""
    count = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "cuda" and not count:
        built = torch.version.cuda or torch.version.hip
        what = f"--device cuda, but {'no GPU is visible' if built else 'this torch is built for CPUs only'}"
        raise UserError(what, at=socket.gethostname(), fix="ask for GPUs, or --device cpu")
    if not count and backend == "nccl":
        raise UserError("--backend nccl needs GPUs, but the device is the CPU", fix="--backend gloo")
    if not count:
        return torch.device("cpu")
    index = place.local_rank
    if index >= count:
        # Slurm may bind one GPU to each task, which then sees its GPU as number 0. With gloo, ranks may also
        # share a GPU.
        is_bound = count == 1 and place.launcher in ("srun", "mpi")
        if not is_bound and backend != "gloo":
            what = f"local rank {index} has no GPU: {count} visible"
            fix = f"start at most {count} processes per node, or --device cpu"
            raise UserError(what, at=socket.gethostname(), fix=fix)
        index %= count
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def _cpus(place: Place) -> int:
    """Return the number of CPUs for this process, which is its share of the node's CPUs."""
    usable, per_task = usable_cpus(), os.environ.get("SLURM_CPUS_PER_TASK", "")
    if place.launcher == "srun" and per_task.isdecimal():  # the usable CPUs may be the task's only
        return max(1, min(usable, int(per_task)))
    return max(1, usable // place.local_size)


def _meet(world: World, timeout_s: float, problem: UserError | None) -> None:
    """Make the process group when all processes have come.

    `problem` is the error of this process. If any process has one, all processes raise an error.
    """
    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s)}
    try:
        store: Any = dist.HashStore()  # type: ignore[attr-defined,unused-ignore]
        if world.size > 1:
            store, *_ = next(rendezvous("env://", world.rank, world.size, **options))
            store.set_timeout(options["timeout"])
        if problem:
            store.set("problem", f"{world.name}: " * (world.size > 1) + str(problem))
            store.add("problems", 1)
        _wait_for_all(store, "ready", world)
        if store.add("problems", 0):  # reads the count; torch 2.2 has no store.check()
            text = store.get("problem").decode()
            _wait_for_all(store, "told", world, waits=not world.rank)  # rank 0 has the store, and ends last
            raise UserError(text, shared=True) if not problem or world.rank else problem
        if world.backend == "nccl" and "device_id" in inspect.signature(dist.init_process_group).parameters:
            options["device_id"] = world.device  # since torch 2.3, NCCL then connects here
        dist.init_process_group(world.backend, store=store, rank=world.rank, world_size=world.size, **options)
    except (RuntimeError, ValueError) as error:
        address = ":".join(os.environ.get(name, "") for name in MEETING)
        what = f"the {world.size} processes did not meet at {address} ({one_line(error)[:200]})"
        fix = "check that all of them started, and that the port is free and reachable"
        raise problem or UserError(what, fix=fix) from error


def _wait_for_all(store: Any, key: str, world: World, *, waits: bool = True) -> None:
    """Count this process under a key of the store, and with `waits` wait until all processes are counted."""
    if store.add(key, 1) == world.size:
        store.set(f"all {key}", "")
    if waits:
        store.wait([f"all {key}"])
