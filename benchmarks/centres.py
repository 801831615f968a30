#!/usr/bin/env python3
"""What the documentation of centres starts, and what the bundled profiles render for the same job.

    python benchmarks/centres.py CHECKOUTS                   # the table, and what is not kept
    python benchmarks/centres.py CHECKOUTS --only lumi --scripts OUT    # and the scripts of each example

CHECKOUTS holds checkouts or bare repositories of the documentation, as OWNER/NAME or OWNER+NAME/repo. Of each
documented script that starts a PyTorch training the corresponding job is rendered: its mode, launcher, nodes,
GPUs, partition and software; everything else is the profile's. sbatchgen's own readers read both scripts, and
their items are compared. What the profile does not say but a job can say (a variable, an option) counts as
kept by the job. Both scripts are then run among stand-ins, where the job has the example's trainer, image,
arguments, mounts and variables as well. They start the same if each process of the one is one of the other:
its node and rank, its launcher with its options and ranks, the trainer with its arguments, the GPUs of its
node, its image, and all of its variables and mounts. "By the profile" they start the same if the job brings
trainer, arguments and image alone. docs/about/centres.md has the reasons of differences.

Exit status: 0; 1 if less than 99.4 % are kept, or less than 95 % start the same; 2 if CHECKOUTS holds none of
the repositories.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.documented.examples import Example, examples
from benchmarks.documented.facts import KINDS, Item, items
from benchmarks.documented.jobs import Job, job_of, profile_of, rendered, with_rest, with_start
from benchmarks.documented.starts import Start, differences, pairs, starts
from sbatchgen.jobs.inputs.profile import Profile

GOAL, GOAL_OF_STARTS = 0.994, 0.95


@dataclass
class Count:
    """What became of the items of some examples."""

    examples: int = 0
    items: int = 0
    by_profile: int = 0
    ran: int = 0  # examples of which a dry run shows the starts
    same: int = 0  # of these, those that start the same
    same_by_profile: int = 0  # of these, those whose variables and mounts are all the profile's
    by_job: Counter[Item] = field(default_factory=Counter)
    lost: Counter[Item] = field(default_factory=Counter)

    def add(self, other: Count) -> None:
        """Add the counts of other examples."""
        self.examples += other.examples
        self.items += other.items
        self.by_profile += other.by_profile
        self.ran += other.ran
        self.same += other.same
        self.same_by_profile += other.same_by_profile
        self.by_job += other.by_job
        self.lost += other.lost

    def row(self, name: str) -> str:
        """A line of the table."""
        share = f"{self.by_profile} ({self.by_profile / self.items:.0%})"
        rest = f"{self.by_job.total():>10}  {self.lost.total():>4}"
        starts = f"{self.same} of {self.ran}"
        row = f"{name:<20} {self.examples:>8}  {self.items:>5}  {share:>14}  {rest}  {starts:>15}"
        return f"{row}  {self.same_by_profile:>14}"


def main() -> int:
    """Compare all examples, and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", type=Path, metavar="CHECKOUTS")
    parser.add_argument("--only", metavar="PROFILE", help="only the examples of this profile")
    parser.add_argument("--scripts", type=Path, metavar="OUT", help="write the scripts of each example there")
    flags = parser.parse_args()
    counts: dict[str, Count] = defaultdict(Count)
    with tempfile.TemporaryDirectory() as folder:
        for example in examples(flags.checkouts):
            if flags.only in (None, example.place.profile):
                counts[example.place.profile].add(compared(example, Path(folder), flags.scripts))
    if not counts:
        print(f"{flags.checkouts} holds none of the repositories", file=sys.stderr)
        return 2
    return report(counts)


def compared(example: Example, folder: Path, scripts: Path | None) -> Count:
    """Render the job of an example, first with what it must say, then with all that it can say."""
    wanted, job = items(example.script), job_of(example)
    plain = rendered(job, folder)
    missing = lost(wanted, items(plain))
    job = with_rest(job, wanted, missing) if missing else job
    whole = rendered(job, folder) if missing else plain
    gone = lost(wanted, items(whole))
    if scripts:
        scripts.mkdir(exist_ok=True)
        for suffix, script in (("documented", example.script), ("rendered", plain), ("job", whole)):
            (scripts / f"{example.file_name}.{suffix}.sh").write_text(script.text)
    by_job = Counter(item for item in missing if item not in gone)
    cluster = profile_of(example)
    documented = starts(example.script, cluster, folder)
    others = unlike(documented, job, cluster, folder)
    alone = unlike(documented, job_of(example), cluster, folder, alone=True)
    for what, number in Counter(others).items():
        print(f"  {example.place.profile}: {example.file_name}: {what} ({number} times)")
    ran = others is not None
    by_profile = len(wanted) - len(missing)
    return Count(1, len(wanted), by_profile, ran, others == [], alone == [], by_job, Counter(gone))


def unlike(
    documented: list[Start] | None, job: Job, cluster: Profile, folder: Path, *, alone: bool = False
) -> list[str] | None:
    """Return in what the starts of an example and of its job differ; None if a dry run shows none.

    Alone, the job brings no variable and no mount of the example.
    """
    first = starts(rendered(job, folder), cluster, folder)
    if not documented or not first:
        return None
    files = [mount.partition(":")[0] for mount in documented[0].mounts if Path(mount).suffix]
    whole = with_start(job, documented, first[0])
    if alone:
        own = ("env", "binds")
        whole = {name: value for name, value in whole.items() if name not in own and value is not None}
    made = starts(rendered(whole, folder), cluster, folder, files) or []
    both = pairs(documented, made) if made else None
    if both is None:
        return [f"{len(documented)} starts, rendered {len(made)}"]
    return [what for old, new in both for what in differences(old, new)]


def lost(wanted: list[Item], there: list[Item]) -> list[Item]:
    """Return the items that are not there; of modules, also those in another order."""
    modules = [[item for item in each if item.kind == "module"] for each in (wanted, there)]
    have = {item for item in there if item.kind != "module"} | {*in_order(*modules)}
    return [item for item in wanted if item not in have]


def in_order(wanted: list[Item], there: list[Item]) -> list[Item]:
    """Return the longest list of items that both have in the same order."""
    best: list[list[Item]] = [[] for _ in range(len(there) + 1)]
    for item in wanted:
        row = [best[0]]
        for number, other in enumerate(there, start=1):
            longer = [*best[number - 1], item] if item == other else []
            row.append(max(longer, best[number], row[-1], key=len))
        best = row
    return best[-1]


def report(counts: dict[str, Count]) -> int:
    """Print the counts and what is lost; return the exit status."""
    total = Count()
    print(
        f"{'profile':<20} examples  items  by the profile  by the job  lost  starts the same  by the profile"
    )
    for name, count in counts.items():
        total.add(count)
        print(count.row(name))
    print(total.row("all"))
    for name, count in counts.items():
        for how, some in (("lost", count.lost), ("by the job", count.by_job)):
            for item, number in some.items():
                print(f"  {name}: {how}, {number} times: {item}")
    kinds = {kind: sum(n for item, n in total.lost.items() if item.kind == kind) for kind in KINDS}
    print("lost by kind: " + ", ".join(f"{kind} {number}" for kind, number in kinds.items() if number))
    kept = 1 - total.lost.total() / total.items
    print(f"kept: {kept:.1%} of {total.items} items in {total.examples} examples (goal {GOAL:.1%})")
    print(
        f"start the same: {total.same / total.ran:.1%} of {total.ran} (goal {GOAL_OF_STARTS:.0%}), "
        f"by the profile alone {total.same_by_profile / total.ran:.1%}"
    )
    return 0 if kept >= GOAL and total.same >= GOAL_OF_STARTS * total.ran else 1


if __name__ == "__main__":
    sys.exit(main())
