#!/usr/bin/env python3
"""Whether directives are read as a real Slurm reads them, in each way that people write them.

    python benchmarks/directives.py                     # 2000 directives, about a minute
    python benchmarks/directives.py --seed 7            # others
    make sid && python benchmarks/directives.py --root build/sid    # Debian unstable's Slurm

The directives have a fixed seed: spellings of options, quotes, #, backslashes, blanks, tabs, near misses,
glued and empty values (tests/sbatch/directives.py). An ordinary user gives each to `sbatch --test-only`, and
submits those that Slurm takes. Compared are whether lint has an error, and the values that `scontrol show
job` prints. Needs root and the Debian packages slurm-wlm, munge and iproute2.

Exit status: 1 where something differs, 2 where there is no such Slurm.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sbatchgen.check.sbatch.option_table import major_release
from tests.cluster import oracle, site
from tests.sbatch import directives


def main() -> int:
    """Ask, compare, and print the differences."""
    parser = argparse.ArgumentParser(description="compare the reading of directives with a real Slurm")
    parser.add_argument("--count", type=int, default=2000, help="how many directives")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", type=Path, help="the folder of another system, whose Slurm is asked")
    args = parser.parse_args()
    if lacking := site.why_not():
        print(f"error: {lacking}", file=sys.stderr)
        return 2
    root = args.root and args.root.resolve()
    release = major_release(oracle.version(root).split()[-1])
    rows = directives.directives(args.seed, args.count)
    answers = directives.asked([row.line for row in rows], root)
    asked = Counter(row.kind for row in rows)
    refused = Counter(row.kind for row, answer in zip(rows, answers, strict=True) if answer.said)
    print(f"Slurm {release}, seed {args.seed}\n\n{'kind':12} {'directives':>10} {'refused':>8}")
    for kind in (*asked, None):
        name, all_of, not_taken = (
            (kind, asked[kind], refused[kind]) if kind else ("all", asked.total(), refused.total())
        )
        print(f"{name:12} {all_of:10} {not_taken:8}")
    differing = 0
    for row, answer in zip(rows, answers, strict=True):
        for text in directives.differences(row.line, answer, release):
            differing += 1
            print(f"\n{row.kind}: {row.line!r}\n    {text}")
    print(f"\n{differing} differences")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
