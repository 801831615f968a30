"""Saving during the training: the training waits for a copy of its state, and a thread writes the copy."""

import copy
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Writer:
    """A thread that writes checkpoints, because file systems may be slow. It calls `check` before each."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.copies = Copies()
        self._check = check
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_awaited = threading.Event()  # set while the training waits for the work

    def start(self, work: Callable[[], None], *, after: bool = False) -> None:
        """Wait for the previous work, raise its error, and start `work` in a thread.

        With `after` the caller does not wait. Instead the thread waits for the previous work, and drops
        `work` if the previous work has failed. The previous work may continue its retries until the caller
        waits.
        """
        if not after:
            self.wait()
        previous = self._thread
        thread = threading.Thread(target=self._run, args=(work, previous), name="checkpoint writer")
        # When a data loader's process dies, torch's handler of SIGCHLD raises an error in the line that runs.
        # Here the error would leave a thread that can't be joined, so the signal is delayed.
        signals: list[int] = []
        handler = signal.signal(signal.SIGCHLD, lambda number, _: signals.append(number))
        try:
            thread.start()
            self._thread = thread
        finally:
            signal.signal(signal.SIGCHLD, handler)
            for number in signals:
                signal.raise_signal(number)

    @property
    def is_busy(self) -> bool:
        """Whether the thread is still working."""
        return self._thread is not None and self._thread.is_alive()

    def ends_within(self, seconds: float) -> bool:
        """Wait for the work for at most `seconds`; return whether the work is done."""
        self._is_awaited.set()
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.is_busy

    def wait(self) -> None:
        """Wait until the work is done; raise the error of the work once."""
        self._is_awaited.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._is_awaited.clear()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def pause(self, seconds: float) -> bool:
        """Wait in the thread before another try; return False as soon as the training waits for the work."""
        return not self._is_awaited.wait(seconds)

    def _run(self, work: Callable[[], None], previous: threading.Thread | None) -> None:
        """Do the work in the thread, after the work of the previous thread; keep an error for `wait`."""
        try:
            if previous:
                previous.join()
            if self._error is None:
                self._check()
                work()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error


class Copies:
    """Copies of a state. Each copy reuses the memory of the last copy, because new memory takes longer."""

    def __init__(self) -> None:
        self.last: Any = {}
        self._buffers: list[torch.Tensor] = []  # tensors of the last copy, in order

    def take(self, value: Any) -> Any:
        """Return a deep copy of dictionaries, lists and tuples, with tensors on the CPU.

        The copy overwrites the last copy.
        """
        by_storage: dict[Any, torch.Tensor] = {}  # a single copy for all tensors with the same memory
        copies: dict[int, Any] = {}  # copy.deepcopy's memo: by the id of an object, the copy to use
        for tensor in _tensors(value):
            key: Any = id(tensor)
            if tensor.numel():
                key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if key not in by_storage:
                by_storage[key] = self._copy_tensor(tensor.detach(), len(by_storage))
            copies[id(tensor)] = by_storage[key]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call,unused-ignore]
            torch.cuda.synchronize()  # the copies from the GPUs are asynchronous
        self._buffers, self.last = list(by_storage.values()), copy.deepcopy(value, copies)
        return self.last

    def _copy_tensor(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        """Return a copy on the CPU, in the memory of buffer number `index` if that has the same form."""
        on_gpu = tensor.device.type == "cuda"
        old = self._buffers[index] if index < len(self._buffers) else None
        form = (tensor.shape, tensor.dtype, tensor.stride())
        if old is None or (old.shape, old.dtype, old.stride()) != form:
            old = torch.empty_like(tensor, device="cpu", pin_memory=on_gpu)
        return old.copy_(tensor, non_blocking=on_gpu)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in dictionaries, lists and tuples, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
