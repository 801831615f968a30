#!/usr/bin/env python3
"""How often the reader of scripts says what the sbatch of this machine says.

    python benchmarks/agreement.py                   # 5000 scripts, about a minute
    python benchmarks/agreement.py --scripts 50000 --seed 7
    make sid && python benchmarks/agreement.py --root build/sid   # Debian unstable's, as root

Hypothesis makes the scripts: sound, broken and hostile. Each is read by sbatchgen.check.sbatch and by sbatch
itself, which is ended before it can submit. Compared are which options count, the values that rules ask for,
and that sbatch refuses what the reader refuses. Rare values are left to sbatch: these refusals are counted.
Needs hypothesis, and Debian's slurm-client or the folder of a system that has it, 22.05 or later.

Exit status: 1 where another reading differs, 2 where there is no such sbatch.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from sbatchgen.base.units import RELEASES
from tests.cluster import oracle
from tests.sbatch.headers import SLURM, Answer, ours, scripts, theirs

Reading = tuple[str, Answer, Answer]
BATCH = 250  # after so many scripts Hypothesis starts again: it varies what it has made


def main() -> int:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description="compare the reader of scripts with the real sbatch")
    parser.add_argument("--scripts", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", type=Path, help="the folder of another system, whose sbatch is asked")
    parser.add_argument("--record", type=Path, help="write what sbatch said, as lines of JSON for the tests")
    parser.add_argument("--show", type=int, default=20, help="how many disagreements to print")
    args = parser.parse_args()
    args.root = args.root and args.root.resolve()
    version = oracle.version(args.root)
    if (slurm := release(version)) is None:
        known = f"{SLURM} and later, up to {RELEASES[-1]}"
        print(f"error: the reader knows sbatch {known}; here is {version or 'none'}", file=sys.stderr)
        return 2
    started = time.monotonic()
    readings = compared(args.scripts, args.seed, slurm, args.root)
    print(f"{version}, seed {args.seed}, {time.monotonic() - started:.0f} s")
    print_table(readings)
    wrong = [reading for reading in readings if not reading[1].agrees(reading[2])]
    if args.record:
        record(readings, args.record)
    for reading in wrong[: args.show]:
        show(*reading)
    return 1 if wrong else 0


def release(version: str) -> str | None:
    """The release line of a version such as "slurm-wlm 22.05.8"; None if it is not compared here."""
    line = ".".join(version.partition(" ")[2].split(".")[:2])
    return line if line in RELEASES and line >= SLURM else None


def print_table(readings: list[Reading]) -> None:
    """Print what was read, and in how many cases both agree."""
    distinct = len({script for script, _, _ in readings})
    refused = sum(answer.refused for _, _, answer in readings)
    several = sum(len(answer.components) > 1 for _, _, answer in readings)
    print(f"{len(readings)} scripts, {distinct} distinct; {refused} refused, {several} heterogeneous")
    missed = sum(not answer.refused and other.refused for _, answer, other in readings)
    agreed = sum(answer.agrees(other) for _, answer, other in readings)
    print(f"{agreed} read the same, or refused by both, or only by sbatch ({missed})")


def compared(count: int, start: int, slurm: str, root: Path | None) -> list[Reading]:
    """Scripts with both readings."""
    readings: list[Reading] = []

    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(scripts(slurm))
    def compare(script: str) -> None:
        answer = ours(script, slurm)
        if answer is not None and len(readings) < count:
            readings.append((script, answer, theirs(script, root)))

    batch = 0
    while len(readings) < count:
        seed(start * 1_000_000 + batch)(compare)()
        batch += 1
    return readings


def record(readings: list[Reading], file: Path) -> None:
    """Write each script once with sbatch's answer, without those whose answer is another at another time."""
    lines = {
        json.dumps({"script": script, **asdict(answer)})
        for script, _, answer in readings
        if not re.search("begin|deadline|-b|-a ", script, re.IGNORECASE)
    }
    file.write_text("".join(f"{line}\n" for line in sorted(lines)))


def show(script: str, mine: Answer, other: Answer) -> None:
    """Print a disagreement."""
    print(f"\n{script!r}")
    for name in ("components", "messages", "refused"):
        if getattr(mine, name) != getattr(other, name):
            print(f"  {name}\n    sbatchgen {getattr(mine, name)}\n    sbatch    {getattr(other, name)}")


if __name__ == "__main__":
    sys.exit(main())
