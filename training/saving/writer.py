"""Saving while the training continues: it waits for a copy of its state, and a thread writes that to disk."""

import copy
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Writer:
    """Does one piece of work at a time in a thread, after `check`: the file system may be slow."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.copies = Copies()
        self._check = check
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._hurry = threading.Event()  # the training waits for the work

    def start(self, work: Callable[[], None], *, after: bool = False) -> None:
        """Start `work` when the previous work is done; raises the error of that.

        With `after`, the thread waits for it, not the caller, and drops `work` if it failed.
        """
        self._hurry.set()
        if not after:
            self.wait()
        previous = self._thread
        thread = threading.Thread(target=self._do, args=(work, previous), name="checkpoint writer")
        # When a data loader's process dies, torch's handler raises wherever this process is at that moment:
        # here it would leave a thread that can't be waited for. So the signal is held back.
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
        """Whether work is still being done."""
        return self._thread is not None and self._thread.is_alive()

    def ends_within(self, seconds: float) -> bool:
        """Wait until the work is done, at most so long; whether it is."""
        self._hurry.set()
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.is_busy

    def wait(self) -> None:
        """Wait until the work is done; raises its error, once."""
        self._hurry.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._hurry.clear()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def pause(self, seconds: float) -> bool:
        """Wait in the thread before another try; return False once the training waits for the work."""
        return not self._hurry.wait(seconds)

    def _do(self, work: Callable[[], None], previous: threading.Thread | None) -> None:
        try:
            if previous:
                previous.join()
            if self._error is None:
                self._check()
                work()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error


class Copies:
    """Copies of a state, one at a time. Each reuses the memory of the last one: new memory takes longer."""

    def __init__(self) -> None:
        self.last: Any = {}
        self._before: list[torch.Tensor] = []  # the last copy's tensors, in order

    def take(self, value: Any) -> Any:
        """Return a deep copy of dictionaries, lists and tuples, tensors on the CPU.

        It overwrites the last one.
        """
        made: dict[Any, torch.Tensor] = {}
        copies: dict[int, Any] = {}  # what copy.deepcopy takes in place of an object, by its id
        for tensor in _tensors(value):
            key: Any = id(tensor)
            if tensor.numel():
                key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if key not in made:
                made[key] = self._copy_tensor(tensor.detach(), len(made))
            copies[id(tensor)] = made[key]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call,unused-ignore]
            torch.cuda.synchronize()  # the copies from the GPUs are asynchronous
        self._before, self.last = list(made.values()), copy.deepcopy(value, copies)
        return self.last

    def _copy_tensor(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        on_gpu = tensor.device.type == "cuda"
        old = self._before[place] if place < len(self._before) else None
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
