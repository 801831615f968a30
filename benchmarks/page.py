#!/usr/bin/env python3
"""Sizes and times of the page of all bundled profiles: python benchmarks/page.py [--mbit 20].

Needs what `make page-packages` loads, and Chromium. A line ends in PASS or MISS, by the target beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sbatchgen.lab.page.site import Site  # noqa: E402
from sbatchgen.lab.page.static_files import PageInputs, write  # noqa: E402

PACKAGES = ROOT / "build/page"
MOST_BYTES, MOST_S, MOST_MS = 6_000_000, 4.0, 100.0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbit", type=float, default=20, help="Speed of the network in Mbit/s; 0 for any.")
    mbit = parser.parse_args().mbit
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {mbit:g} Mbit/s")
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder, "page")
        started = time.perf_counter()
        profiles = sorted(ROOT.glob("profiles/*.yaml"), key=lambda file: file.stem != "msu")
        packages, cache = PACKAGES / "page/node_modules", PACKAGES / "compressed"
        write(PageInputs(profiles=profiles, site=Site(), site_file=None, packages=packages, cache=cache), to)
        print(f"written in {time.perf_counter() - started:.1f} s (compressed files are kept)")
        for packing in ("brotli", "gzip"):
            others = [file for file in to.iterdir() if file.is_file()]
            size = sum(file.stat().st_size for file in (*others, *(to / packing).iterdir()))
            target = MOST_BYTES if packing == "brotli" else None
            row(f"bytes of the first visit, {packing}", size, target, "{:,}")
        for file in sorted((to / "brotli").iterdir(), key=lambda each: -each.stat().st_size):
            print(f"    {file.name.removesuffix('.bin'):<24} {file.stat().st_size:>10,}")
        measured = measure(to, mbit)
    row("form, s", measured["first"]["form"] / 1000, 1.0)
    row("first script, s", measured["first"]["script"] / 1000, MOST_S)
    row("its findings, s", measured["first"]["findings"] / 1000, None)
    row("script of a second visit, s", measured["second"]["script"] / 1000, MOST_S)
    row("requests of a second visit", measured["again"], None, "{}")
    row("a change of the form, median ms", statistics.median(measured["typed"]), MOST_MS, "{:.0f}")
    row("lint of 100 lines, median ms", statistics.median(measured["lint"]), MOST_MS, "{:.0f}")


def measure(page: Path, mbit: float) -> dict[str, Any]:
    """Return the times of a page in a browser."""
    environment = os.environ | {"CHROMIUM": shutil.which("chromium") or shutil.which("google-chrome") or ""}
    call = [
        "node",
        str(ROOT / "tests/page/measure.mjs"),
        str(page),
        str(PACKAGES / "tests/node_modules"),
        str(mbit),
    ]
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout))


def row(what: str, value: float, target: float | None, form: str = "{:.2f}") -> None:
    """Print a figure beside its target."""
    verdict = (
        "" if target is None else f"  at most {form.format(target)}  {'PASS' if value <= target else 'MISS'}"
    )
    print(f"{what:<36} {form.format(value):>10}{verdict}")


if __name__ == "__main__":
    main()
