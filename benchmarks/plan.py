#!/usr/bin/env python3
"""What `sbatchgen plan` reaches in a folder of scripts, and how long it takes; with --truth, how true it is.

    python benchmarks/plan.py FOLDER          # whether each script reaches a program, or what it needs
    python benchmarks/plan.py FOLDER --show   # also each finding
    python benchmarks/plan.py FOLDER --flips 10  # whether plans of a script are all the same, quiet and busy
    unshare --net python benchmarks/plan.py FOLDER --watch  # also files changed outside, and packets; as root
    python benchmarks/plan.py --healthy       # warnings of rendered jobs that are right: there must be none
    python benchmarks/plan.py --tasks         # CPU seconds of steps of 16, 32 and 64 tasks beside one of 8
    python benchmarks/plan.py --truth 300     # rendered scripts beside what their tasks see on a real Slurm
    python benchmarks/plan.py FOLDER --truth-public 100   # scripts of others beside their jobs, on each Slurm

A script counts as reached if it starts a program, and as needing if it starts none and the plan lists what
it lacks. --truth needs root and Debian's packages of Slurm.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sbatchgen.base.quoting import counted
from sbatchgen.jobs.modes import MODES
from sbatchgen.lab.plan import listing
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.planning import is_planned, plan_of, script_of
from sbatchgen.lab.started.judge_started import check_started
from tests.cluster import fixtures
from tests.cluster.slurm import Cluster
from tests.plan import public, truth
from tests.plan.healthy import jobs, planned
from tests.scripts import resolved, script

ENVIRONMENT = {"HOME": "/home/somebody"}
SHOWN = 20  # findings of each kind with --show
LOOPS, BUSY_S = 8, 600  # busy loops beside half of the plans of --flips, and how long at most


def reach(folder: Path, *, most: int, seed: int, show: bool) -> None:
    """Plan the scripts of a folder, and print how many reach a program."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files = random.Random(seed).sample(files, min(most or len(files), len(files)))  # noqa: S311
    counts: Counter[str] = Counter()
    took: list[float] = []
    used: list[float] = []
    print(
        f"{len(files)} files of {folder}, seed {seed}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as empty:
        for file in files:
            text = file.read_bytes().decode("utf-8", "surrogateescape")
            of = script_of(file.name, text, profile=None)
            if not is_planned(of):
                counts["of another language"] += 1
                continue
            began, before = time.monotonic(), sum(os.times()[:4])
            done = plan_of(of, ENVIRONMENT, Path(empty))
            took.append(time.monotonic() - began)
            used.append(sum(os.times()[:4]) - before)
            kind = "reached" if done.steps else "needing" if done.needed else "neither"
            if kind == "neither" and not done.result.status:
                kind = "of commands of the system alone, which run"
            counts["runs until it had what it needs"] += done.runs
            counts[kind] += 1
            counts["at a limit"] += bool(done.result.limit)
            for finding in check_started(done):
                counts[f"{finding.severity}: {' '.join(finding.problem.what.split()[:4])}"] += 1
                if show:
                    print(json.dumps([finding.severity, finding.problem.at, finding.problem.what]))
            if show and kind == "neither":
                print(json.dumps([kind, file.name, done.result.status, done.last_message]))
    for name, count in sorted(counts.items()):
        print(f"{count:6}  {name}")
    reached = counts["reached"] + counts["needing"]
    whole = reached + counts["of commands of the system alone, which run"]
    print(f"reached or needing: {100 * reached / max(len(took), 1):.1f} %")
    print(f"or of commands of the system alone: {100 * whole / max(len(took), 1):.1f} %")
    for name, values in (("wall", took), ("CPU", used)):
        middle, late = _at(values, 0.5), _at(values, 0.99)
        print(f"{name}: median {middle:.3f} s, 99 % {late:.3f} s, most {max(values):.3f} s")


def _at(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def flips(folder: Path, *, times: int, most: int, seed: int) -> int:
    """Plan scripts with background steps again and again; return how many have several answers.

    Half of the plans of each script run beside busy loops.
    """
    texts = {
        path.name: path.read_bytes().decode("utf-8", "surrogateescape")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    having = [
        of
        for of in (script_of(name, text, profile=None) for name, text in texts.items() if "&" in text)
        if is_planned(of) and any(each.in_background or each.name == "wait" for each in of.body.commands)
    ]
    drawn = random.Random(seed).sample(having, min(most or len(having), len(having)))  # noqa: S311
    print(
        f"{len(drawn)} scripts with background steps, {times} plans of each, half beside {LOOPS} busy loops"
    )
    answers: dict[str, Counter[str]] = {of.file: Counter() for of in drawn}
    with tempfile.TemporaryDirectory() as empty:
        for load, count in ((0, times - times // 2), (LOOPS, times // 2)):
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
            end = time.monotonic() + BUSY_S
            try:
                for of in drawn:
                    late = load and time.monotonic() > end
                    for _ in range(0 if late else count):
                        answers[of.file][_answer(plan_of(of, ENVIRONMENT, Path(empty)))] += 1
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
            plans = sum(sum(each.values()) for each in answers.values())
            print(f"{plans} plans; beside {load} loops the load was {os.getloadavg()[0]:.1f}", flush=True)
    several = {file: each for file, each in answers.items() if len(each) > 1}
    for file, each in several.items():
        first, second, *_ = (answer.splitlines() for answer in each)
        lines = [*difflib.unified_diff(first, second, lineterm="", n=0)][2:]
        print(file, sorted(each.values()), *lines[:8], sep="\n    ")
    print(f"{len(several)} of {len(drawn)} scripts have several answers")
    return len(several)


def _answer(done: DryRun) -> str:
    """Return all that a plan says."""
    findings = [repr(each) for each in check_started(done)]
    return "\n".join((listing.as_text(done), str(done.result.status), done.result.limit, *findings))


def watch(work: Callable[[], None]) -> int:
    """Do the work, and print which files of this machine have changed, and how many packets were sent."""
    if _packets().keys() != {"lo"}:
        sys.exit("error: other programs use this network; fix: unshare --net python benchmarks/plan.py ...")
    before, began = _packets(), time.time()
    work()
    sent = sum(_packets().values()) - sum(before.values())
    kernel = ("proc", "sysfs", "devtmpfs", "devpts", "cgroup2", "tracefs", "debugfs")
    skipped = " -o ".join(f"-fstype {kind}" for kind in kernel)
    find = f"find / ( {skipped} ) -prune -o -newerct @{began} -print0".split()
    printed = subprocess.run(find, check=False, capture_output=True, text=True).stdout.split("\0")
    own = ("", tempfile.gettempdir())  # that folder has one for the plans meanwhile
    changed = [name for name in printed if name not in own]
    print(f"{len(changed)} files and folders of this machine have changed, {sent} packets were sent")
    print("\n".join(changed))
    return int(bool(changed or sent))


def _packets() -> dict[str, int]:
    """The packets that each interface has sent."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return {line.partition(":")[0].strip(): int(line.partition(":")[2].split()[9]) for line in lines}


def healthy() -> int:
    """Plan rendered jobs that are right, and print each warning."""
    count = reached = warnings = 0
    with tempfile.TemporaryDirectory() as empty:
        for name, of in jobs():
            done, findings = planned(name, of, Path(empty))
            count, reached, warnings = count + 1, reached + bool(done.steps), warnings + len(findings)
            for finding in findings:
                print(f"{name}: {finding.problem.what}")
    print(f"{count} jobs, of which {reached} start a program here: {counted(warnings, 'warning')}")
    return int(warnings > 0)


def tasks() -> None:
    """Print what steps of many tasks cost beside one of few."""
    # A program that is not here counts as there in the second run.
    of_steps: dict[int, list[float]] = {count: [] for count in (8, 16, 32, 64)}
    with tempfile.TemporaryDirectory() as empty:
        for _ in range(3):
            for count, used in of_steps.items():
                text = f"#!/bin/bash\n#SBATCH --time=60 --ntasks={count}\nsrun ./program\n"
                done = plan_of(script_of("job.slurm", text, profile=None), ENVIRONMENT, Path(empty))
                used.append(done.result.cpu_s)
    few = _at(of_steps[8], 0.5)
    for count, used in of_steps.items():
        print(f"{count:3} tasks: {_at(used, 0.5):.2f} s, ratio {_at(used, 0.5) / few:.1f} of {count / 8:.0f}")


def compare(count: int, seed: int) -> int:
    """Render scripts of all modes, launchers and shapes, and compare each plan with its job."""
    source, failed, tasks = random.Random(seed), 0, 0  # noqa: S311
    print(f"{count} scripts, seed {seed}")
    with Cluster(visible=fixtures.VISIBLE) as cluster, tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "profile.yaml")
        file.write_text(truth.PROFILE.format(release="22.05"))
        cluster.put("work/train.py", "")
        for number in range(count):
            mode = source.choice(sorted(MODES))
            options: dict[str, object] = {}
            if MODES[mode].launchers:
                options["launcher"] = source.choice(MODES[mode].launchers)
            if mode == "ddp" and options["launcher"] != "spawn":
                options |= {"nodes": source.choice((1, 2, 3, 4))}
            if mode == "ddp":
                options |= {"nproc_per_node": source.choice((1, 2, 4))}
            options |= {"cpus_per_task": source.choice((1, 2)), "job_name": f"job{number}"}
            args = tuple(source.sample(("--lr", "0.1", "a  'b'", '"', "$HOME", "{run_dir}/x", "", "é"), 4))
            text = script(resolved(mode, file, trainer="train.py", args=args, **options))
            _, steps = truth.seen(cluster, text)
            wrong = truth.differences(truth.plan_here(cluster, text, "22.05"), cluster, {}, steps)
            tasks += sum(map(len, steps))
            failed += bool(wrong) or not steps
            for line in wrong[:5]:
                print(f"{number}: {mode} {options}: {line}")
            if not steps:
                print(f"{number}: {mode} {options}: no task was seen")
    print(f"{count - failed} of {count} scripts and their {tasks} tasks are as planned")
    return int(failed > 0)


def compare_public(folder: Path, count: int, seed: int) -> int:
    """Run scripts of a folder as jobs of each Slurm, and compare each plan with its job."""
    every = sorted(path for path in folder.rglob("*") if path.is_file())
    random.Random(seed).shuffle(every)  # noqa: S311
    texts = {path: path.read_bytes().decode("utf-8", "surrogateescape") for path in every}
    kinds: dict[str, list[Path]] = {}
    for path in every:
        kinds.setdefault(public.kind(texts[path]), []).append(path)
    drawn = [path for row in zip_longest(*(kinds[kind] for kind in sorted(kinds))) for path in row if path]
    total = 0
    for release, root in truth.RELEASES.items():
        with (
            tempfile.TemporaryDirectory() as profiles,
            Cluster(visible=fixtures.VISIBLE, root=root, settings=public.CLUSTER) as cluster,
        ):
            on = public.stage(cluster, release, Path(profiles))
            total += _compare_each(on, drawn, texts, count)
    return int(total > 0)


def _compare_each(on: public.Stage, drawn: Sequence[Path], texts: Mapping[Path, str], count: int) -> int:
    """Compare until so many scripts have run; print each difference, and the counts."""
    counts: Counter[str] = Counter()
    for path in drawn:
        if counts["compared"] == count:
            break
        try:
            lines = public.differences(on, texts[path])
        except (RuntimeError, TimeoutError) as error:
            counts["refused by Slurm, or without end"] += 1
            print(f"{on.release} {path.name}: {str(error).splitlines()[-1]}", flush=True)
            continue
        if lines is None:
            counts["too large, of another language, or without a program"] += 1
            continue
        counts["compared"] += 1
        counts[f"compared: {public.kind(texts[path])}"] += 1
        counts["with differences"] += bool(lines)
        for line in lines[:8]:
            print(f"{on.release} {path.name}: {line}", flush=True)
    print(f"Slurm {on.release}: {counts['compared']} scripts with {on.tasks} processes")
    for name, number in sorted(counts.items()):
        print(f"{number:6}  {name}", flush=True)
    return counts["with differences"]


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--most", type=int, default=0, help="plan so many scripts, drawn by chance")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print each finding, and what was not reached")
    parser.add_argument("--watch", action="store_true", help="count what changes outside, and packets")
    parser.add_argument(
        "--truth", type=int, metavar="SCRIPTS", help="compare so many rendered scripts with their jobs"
    )
    parser.add_argument("--healthy", action="store_true", help="plan rendered jobs of every kind")
    parser.add_argument(
        "--truth-public",
        type=int,
        metavar="SCRIPTS",
        help="compare so many scripts of FOLDER with their jobs",
    )
    parser.add_argument("--tasks", action="store_true", help="measure steps of many tasks")
    parser.add_argument("--flips", type=int, metavar="TIMES", help="compare so many plans of each script")
    given = parser.parse_args()
    if given.healthy:
        return healthy()
    if given.tasks:
        tasks()
    if given.truth_public:
        return compare_public(given.folder, given.truth_public, given.seed)
    if given.flips:
        return int(flips(given.folder, times=given.flips, most=given.most, seed=given.seed) > 0)
    if given.folder:
        planning = partial(reach, given.folder, most=given.most, seed=given.seed, show=given.show)
        if given.watch:
            return watch(planning)
        planning()
    return compare(given.truth, given.seed) if given.truth else 0


if __name__ == "__main__":
    sys.exit(main())
