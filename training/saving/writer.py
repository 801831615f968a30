"""Saving beside the training: the state is copied at once, and a thread writes the copy to disk.

The training waits only for the copy, and for the previous save: there is never more than one copy.
"""

from __future__ import annotations

import signal
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch


class Writer:
    """Runs one job at a time in a thread, after `check`: the file system may be slow."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.copies = Copies()
        self._check = check
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None], *, after: bool = False) -> None:
        """Start `work` once the previous job is done; raises what that raised.

        With `after` this does not wait for that: the thread does, and leaves `work` if the job fails.
        """
        if not after:
            self.wait()
        previous = self._thread
        thread = threading.Thread(target=self._do, args=(work, previous), name="checkpoint writer")
        # When a data loader's process dies, torch's handler raises wherever this process is at that moment:
        # here it would leave a thread that can't be waited for. So the signal is held back.
        came: list[int] = []
        handler = signal.signal(signal.SIGCHLD, lambda number, _: came.append(number))
        try:
            thread.start()
            self._thread = thread
        finally:
            signal.signal(signal.SIGCHLD, handler)
            for number in came:
                signal.raise_signal(number)

    def wait(self) -> None:
        """Wait until the job is done; raises what it raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

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
        """A deep copy of dictionaries, lists and tuples, with the tensors on the CPU.

        Tensors that share memory (tied weights) still do so. The previous copy becomes invalid.
        """
        made: dict[Any, torch.Tensor] = {}
        copied = self._copy(value, made)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call,unused-ignore]
            torch.cuda.synchronize()  # the copies from the GPUs are asynchronous
        self._before, self.last = list(made.values()), copied
        return copied

    def _copy(self, value: Any, made: dict[Any, torch.Tensor]) -> Any:
        if isinstance(value, torch.Tensor):
            key: Any = id(value)
            if value.numel():
                key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
            if key not in made:
                made[key] = self._copy_tensor(value.detach(), len(made))
            return made[key]
        if isinstance(value, dict):
            copy = type(value)() if isinstance(value, OrderedDict) else {}
            copy.update((key, self._copy(item, made)) for key, item in value.items())
            if hasattr(value, "_metadata"):  # module versions, part of a state_dict
                copy._metadata = value._metadata  # type: ignore[attr-defined,union-attr,unused-ignore]  # noqa: SLF001
            return copy
        if isinstance(value, (list, tuple)):
            return type(value)(self._copy(item, made) for item in value)
        return value

    def _copy_tensor(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        on_gpu = tensor.device.type == "cuda"
        old = self._before[place] if place < len(self._before) else None
        form = (tensor.shape, tensor.dtype, tensor.stride())
        if old is None or (old.shape, old.dtype, old.stride()) != form:
            old = torch.empty_like(tensor, device="cpu", pin_memory=on_gpu)
        return old.copy_(tensor, non_blocking=on_gpu)
