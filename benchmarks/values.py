#!/usr/bin/env python3
"""How often lint says of a job what a real slurmctld says, and why where it does not.

    python benchmarks/values.py                                 # 6000 requests, about a minute
    python benchmarks/values.py --seed 7 --requests 20000       # others
    make sid && python benchmarks/values.py --root build/sid    # Debian unstable's slurmctld
    python benchmarks/values.py --record tests/fixtures/controller_22.05.json.gz
    python benchmarks/values.py --recorded tests/fixtures/controller_26.05.json.gz    # without a Slurm
    python benchmarks/values.py --count FOLDER                  # the frequencies of public scripts

Requests are drawn from the options and values of public scripts, by how often they have them: one half as
they are written, the other half with one value mistyped (tests/rules/public_options.py). A slurmctld with
imaginary nodes gets them by `sbatch --test-only` as an ordinary user, and lint twice: without a profile,
and with that of the cluster. Each difference must have one of the reasons of tests/rules/values.py. Needs
root and the Debian packages slurm-wlm, munge and iproute2.

Exit status: 1 where a difference has no reason, 2 where there is no such Slurm.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sbatchgen.check.sbatch.option_table import major_release
from tests.cluster import oracle, site
from tests.rules import public_options, values
from tests.rules.values import Answers, Difference


def main() -> int:
    """Ask, compare, and print the table."""
    parser = argparse.ArgumentParser(description="compare lint's verdicts on values with a real slurmctld")
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", type=Path, help="the folder of another system, whose Slurm is asked")
    parser.add_argument("--record", type=Path, help="write the requests and the answers, for the tests")
    parser.add_argument("--recorded", type=Path, help="ask no Slurm: take the answers of such a file")
    parser.add_argument(
        "--count", type=Path, help="count the options of the scripts in a folder, for the tests"
    )
    parser.add_argument("--show", type=int, default=3, help="how many requests to print for each difference")
    args = parser.parse_args()
    if args.count:
        files = (path for path in sorted(args.count.rglob("*")) if path.is_file())
        scripts = (path for path in files if b"#SBATCH" in path.read_bytes())
        public_options.FREQUENCIES.write_text(public_options.counted(scripts))
        return 0
    if args.recorded:
        answers = Answers.read(args.recorded)
        print(f"slurmctld {answers.slurm}, {len(answers.requests)} recorded requests")
        return show(answers, args.show)
    if lacking := site.why_not():
        print(f"error: {lacking}", file=sys.stderr)
        return 2
    root = args.root and args.root.resolve()
    half = args.requests // 2
    requests = [
        request
        for slips in (False, True)
        for request in public_options.requests(args.seed, half, slips=slips)
    ]
    started = time.monotonic()
    answers = values.asked(requests, release=major_release(oracle.version(root).split()[-1]), root=root)
    took = time.monotonic() - started
    print(f"slurmctld {answers.slurm}, seed {args.seed}, {len(requests)} requests, {took:.0f} s")
    if args.record:
        answers.write(args.record)
    return show(answers, args.show)


def show(answers: Answers, most: int) -> int:
    """Print the agreement, and the differences by reason; return 1 where one has no reason."""
    differences = list(values.differences(answers))
    print_table(answers, differences)
    kinds: dict[tuple[str, str], list[Difference]] = defaultdict(list)
    for difference in differences:
        kinds[difference.kind, difference.reason].append(difference)
    for (kind, reason), alike in sorted(kinds.items()):
        print(f"\n{kind}: {len(alike)}; {reason or 'NO REASON'}")
        for difference in alike if not reason else alike[:most]:
            verdict = ", ".join(difference.rules) or difference.said[-70:]
            print(f"    {difference.request.mistyped:14} {difference.request.shown}  {verdict}")
    return int(any(not difference.reason for difference in differences))


def print_table(answers: Answers, differences: list[Difference]) -> None:
    """Print how many requests there are, how many slurmctld refused, and in how many lint agrees."""
    asked = Counter(request.mistyped for request in answers.requests)
    judged = zip(answers.requests, answers.said, strict=True)
    refused = Counter(request.mistyped for request, said in judged if said)
    apart = {
        kind: Counter(row.request.mistyped for row in differences if row.kind == kind)
        for kind in (values.BLIND, values.INFORMED)
    }
    print(f"\n{'mistyped':20} {'requests':>8} {'refused':>8} {'no profile':>10} {'profile':>8}")
    for name in sorted(asked):
        agreed = (asked[name] - apart[kind][name] for kind in apart)
        print("{:20} {:8} {:8} {:10} {:8}".format(name or "nothing", asked[name], refused[name], *agreed))
    agreed = (asked.total() - apart[kind].total() for kind in apart)
    print("{:20} {:8} {:8} {:10} {:8}".format("all", asked.total(), refused.total(), *agreed))


if __name__ == "__main__":
    sys.exit(main())
