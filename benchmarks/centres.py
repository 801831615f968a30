#!/usr/bin/env python3
"""What the documentation of centres starts, and what the bundled profiles render for the same job.

    python benchmarks/centres.py CHECKOUTS                   # the table, and what is not kept
    python benchmarks/centres.py CHECKOUTS --only lumi --scripts OUT    # and both scripts of each example

CHECKOUTS holds checkouts or bare repositories of the documentation, as OWNER/NAME or OWNER+NAME/repo. Of each
documented script that starts a PyTorch training the corresponding job is rendered: its mode, launcher, nodes, GPUs,
partition and software, everything else from the profile. Both scripts are read by sbatchgen's own readers and
compared item by item. What the profile does not say but a job can say (a variable, an option) counts as kept by
the job. docs/about/centres.md has the reason for each difference.

Exit status: 0; 1 if less than 97 % are kept; 2 if CHECKOUTS holds none of the repositories.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.documented.examples import Example, examples
from benchmarks.documented.facts import KINDS, Item, gpus, items

from sbatchgen.adopt.training import main as training
from sbatchgen.errors import SbatchgenError
from sbatchgen.inputs.document import read_document
from sbatchgen.inputs.options import NAMES
from sbatchgen.inputs.profile import Profile
from sbatchgen.inputs.search import bundled
from sbatchgen.job.script import JobScript
from sbatchgen.plan.request import read_request
from sbatchgen.render.render import render_request
from sbatchgen.rules.judge import check

GOAL = 0.97


@dataclass
class Count:
    """What became of the items of a profile's examples."""

    examples: int = 0
    items: int = 0
    by_profile: int = 0
    by_job: int = 0
    lost: Counter[Item] = field(default_factory=Counter)
    said: Counter[Item] = field(default_factory=Counter)


def main() -> int:
    """Compare all examples, and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", type=Path, metavar="CHECKOUTS")
    parser.add_argument("--only", metavar="PROFILE", help="only the examples of this profile")
    parser.add_argument(
        "--scripts", type=Path, metavar="OUT", help="write both scripts of each example there"
    )
    parser.add_argument("--job", action="store_true", help="also list what the job says")
    flags = parser.parse_args()
    counts: dict[str, Count] = defaultdict(Count)
    with tempfile.TemporaryDirectory() as folder:
        for example in examples(flags.checkouts):
            if flags.only in (None, example.place.profile):
                compare(example, counts[example.place.profile], Path(folder), flags.scripts)
    if not counts:
        print(f"{flags.checkouts} holds none of the repositories", file=sys.stderr)
        return 2
    return report(counts, with_job=flags.job)


def compare(example: Example, count: Count, folder: Path, scripts: Path | None) -> None:
    """Render the job of an example, first with what it must say, then with all that it can say."""
    wanted = items(example.script)
    job = job_of(example)
    plain = rendered(job, folder)
    missing = lost(wanted, items(plain))
    whole = rendered(with_rest(job, missing), folder) if missing else plain
    gone = lost(wanted, items(whole))
    count.examples += 1
    count.items += len(wanted)
    count.by_profile += len(wanted) - len(missing)
    count.by_job += len(missing) - len(gone)
    count.lost.update(gone)
    count.said.update(item for item in missing if item not in gone)
    if scripts:
        scripts.mkdir(exist_ok=True)
        name = f"{example.place.profile}-{example.name.replace(' ', '-').replace('/', '_').replace(':', '-')}"
        for suffix, script in (("documented", example.script), ("rendered", plain), ("job", whole)):
            (scripts / f"{name}.{suffix}.sh").write_text(script.text)


def lost(wanted: list[Item], there: list[Item]) -> list[Item]:
    """Return the items that are not there; of modules, also those in another order."""
    kept = {*in_order([i for i in wanted if i.kind == "module"], [i for i in there if i.kind == "module"])}
    have = {item for item in there if item.kind != "module"} | kept
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


def job_of(example: Example) -> dict[str, Any]:
    """Return the job that corresponds to a documented script: what nobody but its author can decide."""
    script, profile = example.script, read_profile(example.place.profile)
    launch = training(script)
    assert launch is not None  # noqa: S101 - an example starts a training
    many = launch.launcher is not None or (launch.tasks or 1) > 1
    asked = script.resources
    partition = asked.options.get("partition", "")
    options: dict[str, Any] = {"nodes": launch.nodes or asked.nodes} if many else {}
    options |= {"partition": partition} if partition in profile.partitions else {}
    options |= {"account": "x"} if "account" in profile.required else {}
    options |= {"time": "00:30:00"} if "time" in profile.required else {}
    job: dict[str, Any] = {"mode": "ddp" if many else "single", "profile": example.place.profile}
    job |= {"launcher": "torchrun" if launch.launcher else "srun"} if many else {}
    job |= {"trainer": "train.py"} | software(example, profile)
    count = gpus(script, launch) or launch.workers or 0
    request = profile.gpu_request or "gpus_per_node"
    place = profile.partitions.get(partition or profile.default_partition or "")
    if count and count != (place.gpus_per_node if place and many else 1):
        kind = "".join(f":{name}" for name in asked.gpu_types)
        nodes = options.get("nodes", 1)
        said = {"gres": f"gpu{kind}:{count}", "gpus": f"{count * nodes}", "none": None}
        if request == "none":
            job["nproc_per_node"] = count
        else:
            options["gpus_per_node" if request == "gpus_per_task" else request] = said.get(
                request, f"{count}"
            )
    return job | {"options": options}


def software(example: Example, profile: Profile) -> dict[str, Any]:
    """Return the runtime of a documented script, and the author's own image or environment."""
    script, launch = example.script, training(example.script)
    assert launch is not None  # noqa: S101
    words = {item.name: item.value for item in items(script) if item.kind in ("container", "program")}
    step = launch.step
    if "environment" in words:
        return {"runtime": "edf", "edf": f"./{words['environment']}"}
    if launch.container:
        name = launch.container.name.partition(" ")[0]
        runtime = {"singularity": "apptainer", "apptainer": "apptainer", "shifter": "shifter"}.get(
            name, "prefix"
        )
        if runtime == "prefix":
            return {"runtime": runtime, "prefix": launch.container.name.split()}
        own = {"image": "x.sif"} if runtime == "apptainer" and runtime != profile.runtime else {}
        return {"runtime": runtime} | own
    if step and step.option("container-image"):
        return {"runtime": "enroot"}
    if "conda environment" in words:
        return {"runtime": "conda", "conda_env": "my_env"}
    if "virtual environment" in words or "/bin/torchrun" in script.text:
        return {"runtime": "venv", "venv": "env"}
    return {"runtime": "host"}


def with_rest(job: dict[str, Any], missing: list[Item]) -> dict[str, Any]:
    """Return the job with everything that it can say of what the profile does not say."""
    options, more = dict(job["options"]), dict[str, Any]()
    extra, env, step, binds = {}, {}, {}, []
    for item in missing:
        name = item.name.removeprefix("--")
        if item.kind == "variable":
            env[item.name] = item.value.replace("/tmp/...", "/tmp/cache")  # noqa: S108
        elif item.kind == "step":
            step[name] = item.value or True
        elif item.name.startswith("--") and name.replace("-", "_") in NAMES:
            options[name.replace("-", "_")] = item.value or True
        elif item.name.startswith("--"):
            extra[name] = item.value or "true"
        elif item.name == "CPUs of a task":
            options["cpus_per_task"] = int(item.value)
        elif item.name == "memory of a node":
            options["mem"] = item.value
        elif item.name == "GPUs of a node":
            options["gpus_per_node"] = item.value
            more["gpu_request"] = "gpus_per_node"
        elif item.name.startswith("gres "):
            options["gres"] = item.name.removeprefix("gres ") + item.value
        elif item.name == "mount":
            binds.append(f"/folder:{item.value}")
    more |= {"options": options, "extra_options": extra, "env": env, "step": step, "binds": binds}
    return job | more


def rendered(job: dict[str, Any], folder: Path) -> JobScript:
    """Return the script of a job."""
    file = folder / "job.yaml"
    file.write_text(json.dumps({key: value for key, value in job.items() if value not in ({}, [], None)}))
    try:
        request = read_request(str(file), (), {}, environment=os.environ, folder=folder, check=check)
        text = render_request(request)
    except SbatchgenError as error:
        sys.exit(f"{json.dumps(job)}\n{error}")
    for finding in check(request.plan):
        if finding.severity == "error":
            print(f"{job['profile']}: {finding.problem.what}", file=sys.stderr)
    return JobScript(file="rendered", text=text, slurm="24.11", assumed=True)


def read_profile(name: str) -> Profile:
    """Return a bundled profile."""
    return read_document(bundled("profiles") / f"{name}.yaml", Profile).value


def report(counts: dict[str, Count], *, with_job: bool) -> int:
    """Print the counts and what is lost; return the exit status."""
    print(f"{'profile':<20} examples  items  by the profile  by the job  lost")
    total = Count()
    for name, count in counts.items():
        for key in ("examples", "items", "by_profile", "by_job"):
            setattr(total, key, getattr(total, key) + getattr(count, key))
        total.lost.update(count.lost)
        print(row(name, count))
    print(row("all", total))
    kinds = Counter[str]()
    for item, number in total.lost.items():
        kinds[item.kind] += number
    print("lost by kind: " + ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS if kinds[kind]))
    for name, count in counts.items():
        for mark, items_ in (("lost", count.lost), ("by the job", count.said if with_job else {})):
            for item, number in items_.items():
                print(f"  {name}: {mark}, {number} times: {item}")
    kept = (total.by_profile + total.by_job) / total.items
    print(f"kept: {kept:.1%} of {total.items} items in {total.examples} examples (goal {GOAL:.0%})")
    return 0 if kept >= GOAL else 1


def row(name: str, count: Count) -> str:
    """Return a line of the table."""
    share = f"{count.by_profile} ({count.by_profile / count.items:.0%})"
    lost_here = sum(count.lost.values())
    return (
        f"{name:<20} {count.examples:>8}  {count.items:>5}  {share:>14}  {count.by_job:>10}  {lost_here:>4}"
    )


if __name__ == "__main__":
    sys.exit(main())
