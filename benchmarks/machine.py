"""The machine that figures of the training package were measured on."""

# ruff: noqa: INP001 - a folder of scripts, not a package

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """Processor, its support of bf16, CPUs, versions and load, in a line."""
    known = Path("/proc/cpuinfo")
    said = known.read_text(encoding="utf-8") if known.exists() else ""
    models = re.findall(r"model name\s*: (.*)", said)
    features = sorted(set(re.findall(r"\b(?:amx|avx512)_bf16\b", said)))
    processor = models[0] if models else platform.machine()
    bf16 = ", ".join(features) or "neither amx_bf16 nor avx512_bf16"
    return (
        f"{processor} ({bf16}), {len(os.sched_getaffinity(0))} CPUs, load average {load()}; "
        f"Python {platform.python_version()}, torch {version('torch')}"
    )


def load() -> str:
    """The load average of 1, 5 and 15 minutes."""
    return " ".join(f"{load:.1f}" for load in os.getloadavg())
