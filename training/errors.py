"""The errors that end a run, errors of torch in one line with a fix, and exit statuses."""

from __future__ import annotations

import contextlib
import sys
import traceback

DONE = 0
FAILED = 1
INTERRUPTED = 1  # not 128 + the signal: srun reports the highest status, which should be the cause's
NOT_FINITE = 3
HANGS = 68  # a rank hung, and the job was set to end in that case
BAD_NODE = 69  # EX_UNAVAILABLE in sysexits.h: a node is not fit, and the training has not begun
PREEMPTED = 75  # EX_TEMPFAIL in sysexits.h: stopped and saved; it can be started again
LESS_MEMORY = "--accumulate 2, a smaller batch or --activation-checkpointing; in the validation --eval-batch"
OTHER_TORCH = "a torch for this GPU: torch.cuda.get_arch_list() lists the GPUs of the present one"
UNUSED_WEIGHTS = "--find-unused-parameters, or set requires_grad of these weights to False"
OTHER_LAYER = "another layer, or no --deterministic"
OTHER_GPU = "see nvidia-smi on that host, or use another node"
READ = "read what that rank printed"
# A part of torch's text, what it means, and the fix. The first that matches counts.
KNOWN = (
    ("out of memory", "the GPU has no more memory", LESS_MEMORY),
    ("DefaultCPUAllocator: can't allocate", "the node has no more memory", f"more of it, or {LESS_MEMORY}"),
    ("DataLoader worker", "a loader has ended", "more memory for the job, or fewer --workers"),
    ("no kernel image is available", "this torch is not made for the GPU", OTHER_TORCH),
    ("a deterministic implementation", "a layer has no deterministic kernel", OTHER_LAYER),
    ("Expected to have finished reduction", "some weights have no part in the loss", UNUSED_WEIGHTS),
    ("gloo", "another rank has ended, or did not connect", f"{READ}; --dist-timeout is the wait"),
    ("NCCL", "another rank has ended, or is unreachable", f"{READ}; NCCL_DEBUG=INFO tells more"),
    *((text, "the GPU cannot compute", OTHER_GPU) for text in ("CUDA error", "cuDNN error", "CUBLAS_STATUS")),
)


class UserError(Exception):
    """What is wrong, where, and the fix, in a line. If `shared`, all ranks raise it, and rank 0 prints it."""

    status = FAILED

    def __init__(self, what: str, *, at: str = "", fix: str = "", shared: bool = False) -> None:
        parts = [what, f"at: {at}" if at else "", f"fix: {fix}" if fix else ""]
        super().__init__("; ".join(part for part in parts if part))
        self.shared = shared


class FolderError(UserError):
    """The run folder belongs to another job or cannot be written: nothing is recorded in it."""


class NotFiniteError(Exception):
    """The loss or a weight became infinite or NaN; nothing is saved after this."""

    shared, status = True, NOT_FINITE  # as in a UserError


def one_line(error: BaseException) -> str:
    """Return the error's text in one line, with the type's name unless the error is one of this module."""
    text = " ".join(str(error).split())[:2000]  # torch's message of memory that ran out has 700 characters
    return text if isinstance(error, (UserError, NotFiniteError)) else f"{type(error).__name__}: {text}"


def explain(error: Exception, where: str) -> UserError | None:
    """Return the error of torch in one line, at this rank and host; None if it is of another kind."""
    matched = next((known for known in KNOWN if known[0] in str(error)), None)
    if matched is None or not isinstance(error, RuntimeError):
        return None
    text = " ".join(traceback.format_exception_only(error)[-1].split())  # with the module of its class
    return UserError(f"{matched[1]} ({text})", at=where, fix=matched[2])


def complain(line: str) -> None:
    """Print a line on stderr, from any process; a full disk or a closed pipe is ignored."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
