"""The errors that end a run, the meaning and a fix for errors of torch, and the exit statuses."""

from __future__ import annotations

import contextlib
import sys
import traceback

DONE = 0
FAILED = 1
# A rank that a signal ended. Not 128 + the signal, because srun reports the highest status of all ranks, and
# that would hide the status of the rank that failed first.
INTERRUPTED = 1
NOT_FINITE = 3
HUNG = 68  # a rank hung, and the job's HANG asked to end the run
BAD_NODE = 69  # EX_UNAVAILABLE in sysexits.h: a node is unfit, and the training has not begun
PREEMPTED = 75  # EX_TEMPFAIL in sysexits.h: the run stopped and saved, and can be started again
# Fixes.
LESS_MEMORY = "--accumulate 2, a smaller batch or --activation-checkpointing; in the validation --eval-batch"
OTHER_TORCH = "a torch for this GPU: torch.cuda.get_arch_list() lists the GPUs of the present one"
FIND_UNUSED = "--find-unused-parameters, or set requires_grad of these weights to False"
OTHER_LAYER = "another layer, or no --deterministic"
OTHER_GPU = "see nvidia-smi on that host, or use another node"
READ_RANK = "read what that rank printed"
# Errors of torch: a part of the text, its meaning, and the fix. The first match counts.
TORCH_ERRORS = (
    ("out of memory", "the GPU has no more memory", LESS_MEMORY),
    ("DefaultCPUAllocator: can't allocate", "the node has no more memory", f"more of it, or {LESS_MEMORY}"),
    ("DataLoader worker (pid", "a loader has ended", "more memory for the job, or fewer --workers"),
    ("no kernel image is available", "this torch is not made for the GPU", OTHER_TORCH),
    ("a deterministic implementation", "a layer has no deterministic kernel", OTHER_LAYER),
    ("Expected to have finished reduction", "some weights have no part in the loss", FIND_UNUSED),
    ("gloo", "another rank has ended, or did not connect", f"{READ_RANK}; --dist-timeout is the wait"),
    ("NCCL", "another rank has ended, or is unreachable", f"{READ_RANK}; NCCL_DEBUG=INFO tells more"),
    *((text, "the GPU cannot compute", OTHER_GPU) for text in ("CUDA error", "cuDNN error", "CUBLAS_STATUS")),
)


class UserError(Exception):
    """An error of the user: the problem, its place and its fix, in one line.

    All ranks raise a `shared` error, and rank 0 prints the error.
    """

    status = FAILED  # the exit status of the process

    def __init__(self, what: str, *, at: str = "", fix: str = "", shared: bool = False) -> None:
        parts = [what, f"at: {at}" if at else "", f"fix: {fix}" if fix else ""]
        super().__init__("; ".join(part for part in parts if part))
        self.shared = shared


class FolderError(UserError):
    """A run folder that belongs to another job or cannot be written. Nothing is recorded there."""


class NotFiniteError(Exception):
    """A loss or a weight that became infinite or NaN. Nothing is saved after this error."""

    shared, status = True, NOT_FINITE  # as in UserError


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line. Errors of other packages have their type before the text."""
    text = " ".join(str(error).split())[:2000]  # torch's text about memory has 700 characters
    return text if isinstance(error, (UserError, NotFiniteError)) else f"{type(error).__name__}: {text}"


def explain(error: Exception, where: str) -> UserError | None:
    """Return an error of torch as a UserError with its meaning and a fix; None for an unknown error.

    `where` names the rank and its host.
    """
    matched = next((known for known in TORCH_ERRORS if known[0] in str(error)), None)
    if matched is None or not isinstance(error, RuntimeError):
        return None
    text = " ".join(traceback.format_exception_only(error)[-1].split())  # begins with the error's full type
    return UserError(f"{matched[1]} ({text})", at=where, fix=matched[2])


def complain(line: str) -> None:
    """Print a line on stderr, from any process; ignore a full disk or a closed pipe."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
