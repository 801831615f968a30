"""Errors of torch that a user can do something about: in one line, with a fix."""

from __future__ import annotations

import traceback

from training.errors import RankError
from training.processes.world import World

MORE_MEMORY = (
    "--accumulate 2 or more, a smaller batch, --activation-checkpointing; in the validation --eval-batch"
)
OTHER_TORCH = "a torch for this GPU: torch.cuda.get_arch_list() has what this one is made for"
OTHER_GPU = "nvidia-smi on that host; another node"
# A part of torch's text, what it means, and the fix. The first that matches counts.
KNOWN = (
    ("out of memory", "the GPU has no more memory", MORE_MEMORY),
    ("DefaultCPUAllocator: can't allocate", "the node has no more memory", f"more of it, or {MORE_MEMORY}"),
    ("DataLoader worker", "a loader has ended", "more memory for the job, or fewer --workers"),
    ("no kernel image is available", "this torch is not made for the GPU", OTHER_TORCH),
    (
        "does not have a deterministic implementation",
        "--deterministic, but a layer has no such kernel",
        "another layer, or leave it out",
    ),
    (
        "Expected to have finished reduction",
        "some weights have no part in the loss",
        "--find-unused-parameters, or set requires_grad of these weights to False",
    ),
    (
        "gloo",
        "another rank has ended, or did not come",
        "what that rank says; --dist-timeout is how long to wait",
    ),
    (
        "NCCL",
        "another rank has ended, or cannot be reached",
        "what that rank says; NCCL_DEBUG=INFO tells more",
    ),
    *((of, "the GPU cannot compute", OTHER_GPU) for of in ("CUDA error", "cuDNN error", "CUBLAS_STATUS")),
)


def explain(error: Exception, world: World) -> RankError | None:
    """The error of torch in one line, with its rank and host; None if it is of another kind."""
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    matched = next((known for known in KNOWN if known[0] in str(error)), None)
    if matched is None or not isinstance(error, RuntimeError):
        return None
    what = f"{matched[1]} ({text[:300]})"
    return RankError(what, at=f"rank {world.rank} of {world.size} on {world.host}", fix=matched[2])
