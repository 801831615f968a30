"""Saving beside the training: a copy of the state is taken at once, a thread brings it to the disk.

The training waits only for the copy, and for the save before, so that there is never more than one copy.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch


class Writer:
    """One piece of work at a time, in the order given."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Do it in a thread, once the work before is done.

        Raises:
            BaseException: What the work before raised.
        """
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(work,), name="checkpoint writer")
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is under way.

        Raises:
            BaseException: What the work raised; once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where somebody listens
            self._error = error


class Copies:
    """Copies of a state, one at a time: the next goes where the last was.

    To get so much memory from the system anew each time takes longer than to fill it.
    """

    def __init__(self) -> None:
        self._before: list[torch.Tensor] = []  # the last copy's tensors, in the order they are met

    def take(self, value: Any) -> Any:
        """The same value, its tensors copied to the CPU: out of reach of what is done to the originals next.

        Dictionaries, lists and tuples are copied too. Tensors which are one piece of memory (tied weights)
        stay so. The copy before must no longer be needed.
        """
        made: dict[Any, torch.Tensor] = {}
        copied = self._copied(value, made)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call,unused-ignore]
            torch.cuda.synchronize()  # the copies from the GPUs were only asked for
        self._before = list(made.values())
        return copied

    def _copied(self, value: Any, made: dict[Any, torch.Tensor]) -> Any:
        if isinstance(value, torch.Tensor):
            key: Any = id(value)
            if value.numel():
                key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
            if key not in made:
                made[key] = self._copy(value.detach(), len(made))
            return made[key]
        if isinstance(value, dict):
            copy = type(value)() if isinstance(value, OrderedDict) else {}
            copy.update((key, self._copied(one, made)) for key, one in value.items())
            if hasattr(value, "_metadata"):  # versions of the modules, which a state_dict carries
                copy._metadata = value._metadata  # type: ignore[attr-defined,union-attr,unused-ignore]  # noqa: SLF001
            return copy
        if isinstance(value, (list, tuple)):
            return type(value)(self._copied(one, made) for one in value)
        return value

    def _copy(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        on_gpu = tensor.device.type == "cuda"
        old = self._before[place] if place < len(self._before) else None
        if old is None or (old.shape, old.dtype, old.stride()) != (
            tensor.shape,
            tensor.dtype,
            tensor.stride(),
        ):
            old = torch.empty_like(tensor, device="cpu", pin_memory=on_gpu)
        return old.copy_(tensor, non_blocking=on_gpu)
