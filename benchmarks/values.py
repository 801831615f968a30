#!/usr/bin/env python3
"""How often lint agrees with a real slurmctld on values of options, and why it differs.

    python benchmarks/values.py                             # 8000 requests, about a minute
    python benchmarks/values.py --seed 7 --singles 20000    # others
    make sid && python benchmarks/values.py --root build/sid    # Debian unstable's slurmctld
    python benchmarks/values.py --record tests/fixtures/controller_22.05.json.gz
    python benchmarks/values.py --recorded tests/fixtures/controller_26.05.json.gz    # without a Slurm

A slurmctld with imaginary nodes judges the requests of tests/rules/values.py, by `sbatch --test-only` as an
ordinary user. Lint judges them without a profile, and with the profile of that cluster. Each difference must
have one of the reasons in tests/rules/values.py. Needs root and the Debian packages slurm-wlm, munge and
iproute2.

Exit status: 1 if a difference has no reason, 2 if there is no such Slurm.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sbatchgen.sbatch.releases import line_of
from tests.cluster import oracle, site
from tests.rules import values
from tests.rules.values import Answers, Difference, Request

FEW = 20  # requests; options with fewer share a line of the table
LAST = ("other options", "several")


def main() -> int:
    """Ask, compare, and print the table."""
    parser = argparse.ArgumentParser(description="compare lint's verdicts on values with a real slurmctld")
    parser.add_argument("--singles", type=int, default=4500, help="requests with one option")
    parser.add_argument("--combined", type=int, default=3500, help="requests with several")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", type=Path, help="the folder of another system, whose Slurm is asked")
    parser.add_argument("--record", type=Path, help="write the requests and the answers, for the tests")
    parser.add_argument("--recorded", type=Path, help="ask no Slurm: take the answers of such a file")
    parser.add_argument("--show", type=int, default=3, help="how many requests to print for each difference")
    args = parser.parse_args()
    if args.recorded:
        answers = Answers.read(args.recorded)
        print(f"slurmctld {answers.slurm}, {len(answers.requests)} recorded requests")
        return show(answers, args.show)
    if lacking := site.why_not():
        print(f"error: {lacking}", file=sys.stderr)
        return 2
    root = args.root and args.root.resolve()
    requests = [*values.single(args.seed, args.singles), *values.combined(args.seed, args.combined)]
    started = time.monotonic()
    answers = values.asked(requests, release=line_of(oracle.version(root).split()[-1]), root=root)
    took = time.monotonic() - started
    print(f"slurmctld {answers.slurm}, seed {args.seed}, {len(requests)} requests, {took:.0f} s")
    if args.record:
        answers.write(args.record)
    return show(answers, args.show)


def show(answers: Answers, most: int) -> int:
    """Print the agreement by option, and the differences by reason; return 1 if one has no reason."""
    differences = list(values.differences(answers))
    print_table(answers, differences)
    kinds: dict[tuple[str, str], list[Difference]] = defaultdict(list)
    for difference in differences:
        kinds[difference.kind, difference.reason].append(difference)
    for (kind, reason), listed in sorted(kinds.items()):
        print(f"\n{kind}: {len(listed)}; {reason or 'NO REASON'}")
        for difference in listed if not reason else listed[:most]:
            answer = ", ".join(difference.rules) or difference.said[-70:]
            print(f"    {difference.request.shown:60.60}  {answer}")
    return int(any(not difference.reason for difference in differences))


def print_table(answers: Answers, differences: list[Difference]) -> None:
    """Requests, refusals and agreement by option; those with few requests on one line."""
    often = {
        name for name, count in Counter(request.name for request in answers.requests).items() if count >= FEW
    }

    def row(request: Request) -> str:
        return request.name if request.name in often else "other options"

    asked = Counter(map(row, answers.requests))
    judged = zip(answers.requests, answers.said, strict=True)
    refused = Counter(row(request) for request, said in judged if said)
    apart = {
        kind: Counter(row(difference.request) for difference in differences if difference.kind == kind)
        for kind in (values.BLIND, values.INFORMED)
    }
    unexplained = Counter(row(difference.request) for difference in differences if not difference.reason)
    print(f"\n{'option':16} {'requests':>8} {'refused':>8} {'blind':>8} {'profile':>8} {'unexplained':>12}")
    names = [*sorted({*asked} - {*LAST}), *LAST]
    for name in names:
        agreed = (asked[name] - apart[kind][name] for kind in apart)
        print(
            "{:16} {:8} {:8} {:8} {:8} {:12}".format(
                name, asked[name], refused[name], *agreed, unexplained[name]
            )
        )
    agreed = (asked.total() - apart[kind].total() for kind in apart)
    print(
        "{:16} {:8} {:8} {:8} {:8} {:12}".format(
            "all", asked.total(), refused.total(), *agreed, unexplained.total()
        )
    )


if __name__ == "__main__":
    sys.exit(main())
