"""What the processor can do, as Linux tells it."""

from __future__ import annotations

import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# Without one of these torch's kernels convert each bfloat16 to float32 and back; the last is Arm's name.
BF16 = ("amx_bf16", "avx512_bf16", "bf16")


def bf16_features() -> list[str] | None:
    """Which of BF16 it has; None where that cannot be known."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return [name for name in BF16 if name in found[1].split()] if found else None


def warn_of_bf16() -> str | None:
    """A line where --precision bf16 is no gain."""
    if bf16_features() != []:
        return None
    without = f"this processor has neither {BF16[0]} nor {BF16[1]}"
    return f"Warning: {without}: --precision bf16 is slower than fp32 on it"
