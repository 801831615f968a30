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


def snapshot(value: Any) -> Any:
    """The same value, its tensors copied to the CPU: what is done to the originals next does not reach it.

    Dictionaries, lists and tuples are copied too. Tensors which are one piece of memory (tied weights) stay
    so.
    """
    copied = _copied(value, {})
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call,unused-ignore]
        torch.cuda.synchronize()  # the copies from the GPUs were only asked for
    return copied


def _copied(value: Any, seen: dict[Any, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        key: Any = id(value)
        if value.numel():
            key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in seen:
            seen[key] = _copy(value.detach())
        return seen[key]
    if isinstance(value, dict):
        made = type(value)() if isinstance(value, OrderedDict) else {}
        made.update((key, _copied(one, seen)) for key, one in value.items())
        if hasattr(value, "_metadata"):  # versions of the modules, which a state_dict carries
            made._metadata = value._metadata  # type: ignore[attr-defined,union-attr,unused-ignore]  # noqa: SLF001
        return made
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(one, seen) for one in value)
    return value


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cuda":
        return tensor.to("cpu", copy=True)
    pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)  # copied without waiting
    return pinned.copy_(tensor, non_blocking=True)
