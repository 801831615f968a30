#!/usr/bin/env python3
"""How true `sbatchgen when` is on a real Slurm: as root, with the packages that the tests of jobs need.

    python benchmarks/when.py                          # three loads at once, an hour
    python benchmarks/when.py --root build/sid         # with the later Slurm
    python benchmarks/when.py --quick                  # does it run? its figures mean little

Eight nodes, backfill, 200 jobs for each load. The jobs are drawn from tables of a public trace: the 23,911
jobs of Theta at Argonne in 2022 (`theta_2022.swf`, Standard Workload Format, in the repository
SPEAR-UIC/CQSim). The tables have its limits, the share of the limit that jobs use, and sizes, as parts of
Theta's 4,392 nodes. Each is drawn apart from the others. In the trace large jobs ask for longer limits. Time
is compressed: half a minute of the cluster is an hour, so a second is two minutes. Slurm counts limits in
whole minutes, so limits below two hours are two hours. Holes count from a minute on, not from five.

60 times a training is asked for, and submitted in three ways: as it was asked for, as the first row of `when`
has it, and as the first row of `when --fit`. Each load runs on three clusters at once, with the same jobs at
the same times: what one cluster submits in one way, the others submit in the other two. So the ends of one
training can be compared. A sleep stands for the training. The job reads its real end as the bundled trainer
does, and a piece is requeued before its limit. Slurm's plan is read a few seconds after each submission.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

NODES, SEED = 8, 63
HOUR_S = 30  # of the cluster, for an hour of the trace
# Hours and their percentage of jobs; deciles of what jobs use of their limit; nodes and their percentage
LIMITS = {0.5: 11, 1: 25, 2: 8, 3: 34, 4: 2, 6: 12, 9: 4, 12: 1, 24: 3}
SHARES = (0.01, 0.04, 0.16, 0.45, 0.71, 0.88, 0.98, 1.0, 1.0, 1.0)
SIZES = {1: 87, 2: 10, 4: 2, 8: 1}
TRAININGS = ((1, 1, 2, 4), (20, 40, 60, 100))  # nodes, and seconds that are needed
ASKED_S = 360  # the limit that is asked for
LOADS = (1.3, 1.6, 2.0)  # the work that arrives, over what eight nodes do
PLAN_S = 4.0  # after a submission
WAIT_S = 55 * 60  # for the ends of trainings, from the first job on
SAVE_S = 5  # before the end that Slurm gives a job
# Trains for what is left, or for its piece of that, and is then requeued
TRAINING = """#!/bin/bash
done=$(cat {file} 2>/dev/null || echo 0)
left=$(({needs} - done))
end=$(squeue --noheader --job=$SLURM_JOB_ID --Format=EndTime)
room=$(($(date -d "$end" +%s) - $(date +%s) - {save}))
piece=$((left < room ? left : room))
sleep $piece
echo $((done + piece)) >{file}
((left == piece)) || {{ scontrol requeue $SLURM_JOB_ID; sleep 60; }}
"""
AS_ASKED, NEAR_S = "as asked for", 5
WAYS = ("the first row", AS_ASKED, "--fit")
SETTINGS = """\
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_resolution=1,bf_max_job_test=500
PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-00:00:00
"""
PROFILE = """
name: bench
url: https://example.org
checked: 2026-01-01
slurm: 22.05
default_partition: gpu
partitions:
  gpu: {gpus_per_node: 4, gpu_type: a100, cpus_per_node: 8, mem_per_node: 16000M, nodes_max: 8,
        time_max: 1-00:00:00}
options: {mem: 100M, cpus_per_task: 1}
"""


def main() -> int:
    """Print the figures of each load."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="the folder of a system with another Slurm")
    parser.add_argument("--quick", action="store_true", help="few jobs, one load, short trainings")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep each answer in this folder")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(inside(**json.loads(options.inside))))
        return 0
    jobs, questions = (16, 6) if options.quick else (200, 60)
    root = options.root and options.root.resolve()  # hosts have another working folder
    loads, turns = (LOADS[2:] if options.quick else LOADS), range(len(WAYS))
    with ThreadPoolExecutor(len(loads) * len(turns)) as pool:
        asked = {
            load: [pool.submit(of_load, load, turn, jobs, questions, root) for turn in turns]
            for load in loads
        }
    print(
        f"seed {SEED}, {jobs} jobs and {questions} questions a load; a second is two minutes of the cluster"
    )
    for load, clusters in asked.items():
        answers = [answer for each in clusters for answer in each.result()]
        if options.keep:
            (options.keep / f"{load}.json").write_text(json.dumps(answers))
        print("\n".join(figures(load, answers)))
    return 0


def of_load(load: float, turn: int, jobs: int, questions: int, root: Path | None) -> list[dict[str, Any]]:
    """What was shown of each question, and what came, on a cluster of its own."""
    from tests.cluster.fixtures import VISIBLE
    from tests.cluster.slurm import Cluster

    with Cluster(visible=VISIBLE, root=root, nodes=NODES, settings=SETTINGS) as cluster:
        cluster.put("bench.yaml", PROFILE)
        how = json.dumps({"load": load, "turn": turn, "jobs": jobs, "questions": questions})
        argv: list[str | Path] = [sys.executable, ROOT / "benchmarks" / "when.py", "--inside", how]
        done = cluster.run(argv, check=True, timeout=7200)
        answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return answers


def inside(load: float, turn: int, jobs: int, questions: int) -> list[dict[str, Any]]:
    """Submit jobs and ask questions, as a user of the cluster; return the questions with what came."""
    from sbatchgen.jobs.starts import holes

    holes.MIN_HOLE_S = 60
    limits, trainings = (LIMITS, TRAININGS) if jobs > 100 else ({0.5: 1}, ((1, 2), (3,)))
    draw = random.Random(SEED)  # noqa: S311 - a sample
    work = []
    for _ in range(jobs):
        (asked_s,) = (HOUR_S * hours for hours in draw.choices([*limits], [*limits.values()]))
        (nodes,) = draw.choices([*SIZES], [*SIZES.values()])
        work.append((nodes, math.ceil(asked_s / 60), max(1, round(asked_s * draw.choice(SHARES)))))
    shapes = [tuple(map(draw.choice, trainings)) for _ in range(questions)]
    sizes = [nodes * seconds for nodes, _, seconds in work] + [nodes * needs_s for nodes, needs_s in shapes]
    window = sum(sizes) / NODES / load
    events: list[tuple[float, int, Any]] = []
    at = 0.0
    for job in work:
        at += draw.expovariate(jobs / window)
        events.append((at, len(events), job))
    for number, shape in enumerate(shapes):  # once the queue has grown
        events.append((window * (0.1 + 0.9 * number / questions), len(events), (number, shape)))
    began, answers = time.monotonic(), []
    for when, _, what in sorted(events):
        time.sleep(max(0.0, when - (time.monotonic() - began)))
        if len(what) == 3:
            nodes, limit, seconds = what
            script = f"#!/bin/bash\nsleep {seconds}\n"
            sbatch([f"--nodes={nodes}", "--gpus-per-node=4", f"--time={limit}"], script)
        else:
            number, shape = what
            answers.append(question(number, shape, WAYS[(number + turn) % len(WAYS)]))
        look(answers)
    while any("end" not in each for each in answers) and time.monotonic() < began + WAIT_S:
        time.sleep(2)
        look(answers)
    return answers


def question(number: int, shape: tuple[int, ...], way: str) -> dict[str, Any]:
    """Ask for a training, and submit it in one of three ways."""
    nodes, needs_s = shape
    more = [] if way == AS_ASKED else ["--needs", f"{needs_s}s", *(["--fit"] if way == WAYS[2] else [])]
    job = ["ddp", "--profile", "./bench.yaml", "--nodes", str(nodes), "--time", f"0:{ASKED_S // 60:02}:00"]
    job += ["--job-name", f"q{number}"]
    queue, asked = seen(), time.time()
    shown = json.loads(sbatchgen("when", *job, *more, "--format", "json"))
    took, rows = time.time() - asked, [row for row in shown["rows"] if row["start"]]
    row = rows[0] if more and rows else next((each for each in rows if not each["options"]), None)
    script = sbatchgen("render", *(row["argv"][2:] if row else job))
    directives = [line.split(maxsplit=1)[1] for line in script.splitlines() if line.startswith("#SBATCH ")]
    own = ("--output", "--error", "--signal")
    training = TRAINING.format(file=f"done-{number}", needs=needs_s, save=SAVE_S)
    shown = {row["kind"]: stamp(row["start"])} if row else {}
    answer = {
        "number": number,
        "way": way,
        "kind": row["kind"] if row else "",
        "shown": shown,
        "asked": asked,
        "took": took,
    }
    answer |= {"queue": queue} if answer["kind"] == "hole" else {}
    answer |= {"job": sbatch([each for each in directives if not each.startswith(own)], training)}
    return answer | {"submitted": time.time(), "looked": 0.0, "starts": row["starts"] if row else 1}


def seen() -> list[str]:
    """Return the queue, the nodes, and when backfill looked at the queue: why a hole was none."""
    fields = (
        "JobID,State,Reason,PriorityLong,NumNodes,TimeLimit,SubmitTime,StartTime,EndTime,NodeList,SchedNodes"
    )
    form = ",".join(f"{field}:30" for field in fields.split(","))
    scheduler = [line for line in run(["sdiag"]).splitlines() if "Last cycle when" in line]
    nodes = run(["sinfo", "--noheader", "--Node", "--format=%N %T"]).splitlines()
    return [*run(["squeue", "--noheader", f"--Format={form}"]).splitlines(), *nodes, *scheduler]


def look(answers: list[dict[str, Any]]) -> None:
    """Note the plan of each job some seconds after its submission, its start, and its end."""
    now = time.time()
    due = [
        each
        for each in answers
        if "end" not in each and now >= each["submitted"] + PLAN_S and now >= each["looked"] + 5
    ]
    lines = run(["scontrol", "-o", "show", "job"]).splitlines() if due else []
    records = [dict(word.partition("=")[::2] for word in line.split()) for line in lines]
    by_job = {record.get("JobId"): record for record in records}
    for each in due:
        record = by_job[str(each["job"])]
        if record["JobState"] != "PENDING":
            each.setdefault("start", stamp(record["StartTime"]))
        elif not each["looked"]:
            each["later"] = seen() if each["kind"] == "hole" else []  # a hole that is not one
            if record.get("SchedNodeList", "(null)") != "(null)":
                each["shown"]["plan"] = stamp(record["StartTime"])
        if record["JobState"] in ("COMPLETED", "TIMEOUT", "FAILED"):
            each["end"] = stamp(record["EndTime"])
            each["how"] = record["JobState"]
        each["looked"] = now


def figures(load: float, answers: list[dict[str, Any]]) -> list[str]:
    """The lines of a load; errors are of starts, and of what was shown when it was shown."""
    came = [each for each in answers if "start" in each]
    took = median(each["took"] for each in answers)
    lines = [f"load {load}: {len(came)} of {len(answers)} started, `when` took {took:.1f} s"]
    for kind in ("hole", "plan", "bound"):
        errors = [
            each["start"] - max(each["shown"][kind], each["submitted"])
            for each in came
            if kind in each["shown"]
        ]
        late = [abs(error) for error in errors]
        if late:
            tail = quantiles(late, n=10)[-1] if len(late) > 1 else late[0]
            early = sum(error < -20 for error in errors)
            lines.append(
                f"  {kind}: {len(late)} shown, error {median(late):.0f} (median) {tail:.0f} (p90), "
                f"{sum(error <= 20 for error in late)} within 20, {early} sooner"
            )
    now = [each for each in came if each["kind"] == "hole"]
    if now:
        at_once = sum(each["start"] - each["submitted"] <= 5 for each in now)
        lines.append(f"  holes that started within 5: {at_once} of {len(now)}")
    for way in WAYS:
        ends = [each["end"] - each["asked"] for each in answers if each["way"] == way and "end" in each]
        if ends:
            several = sum(each["starts"] > 1 for each in answers if each["way"] == way)
            failed = sum(each.get("how") != "COMPLETED" for each in answers if each["way"] == way)
            lines.append(
                f"  ends {way}: after {median(ends):.0f} (median) {sum(ends) / len(ends):.0f} (mean), "
                f"{several} in pieces, {failed} did not complete"
            )
    return lines + [line for way in WAYS for line in compared(answers, way)]


def compared(answers: list[dict[str, Any]], way: str) -> Iterator[str]:
    """How much sooner each training ended in a way than as it was asked for."""
    took = {(each["number"], each["way"]): each["end"] - each["asked"] for each in answers if "end" in each}
    sooner = [
        took[number, AS_ASKED] - after
        for (number, its), after in took.items()
        if its == way != AS_ASKED and (number, AS_ASKED) in took
    ]
    if sooner:
        yield (
            f"  {way} ends sooner by {median(sooner):.0f} (median) {sum(sooner) / len(sooner):.0f} (mean): "
            f"{sum(each > NEAR_S for each in sooner)} of {len(sooner)} sooner, "
            f"{sum(each < -NEAR_S for each in sooner)} later by more than {NEAR_S}"
        )


def sbatchgen(*argv: str) -> str:
    """What the command prints, in this process: a start of Python would take longer than Slurm."""
    from sbatchgen.cli import main as command

    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        command(list(argv))
    return out.buffer.getvalue().decode()


def sbatch(options: list[str], script: str) -> int:
    """The id of a job."""
    words = ["sbatch", "--parsable", "--output=/dev/null", *options]
    done = subprocess.run(words, input=script, capture_output=True, text=True, check=True)
    return int(done.stdout)


def run(argv: list[str]) -> str:
    """What a command prints."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def stamp(text: str) -> float:
    """A time of Slurm or of `when`, in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    sys.exit(main())
