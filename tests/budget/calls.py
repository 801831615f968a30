"""500 hostile or clumsy calls of sbatchgen, as a user of the real Slurm makes them, and what Slurm has then.

Each kind has 50. A process of the user forks for each call, so that a call takes a fifth of a second.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.cluster.job import TERMINAL
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY
from tests.jobs.jobs import PROFILE

EACH = 50
SETTINGS = "budget: {gpu_hours: 60, gpu_hours_per_job: 24, cpu_hours: 500, jobs: 40}\n"
BUDGET = "{gpu_hours: 40, partitions: [gpu, low], accounts: [mine]}\n"  # of the variable
MOST = 40.0  # GPU-hours
SCRIPT = "#!/bin/bash\n#SBATCH --time=60\n#SBATCH --gpus-per-node=1\n#SBATCH --partition=gpu\n#SBATCH --account=mine\nsleep 300\n"
HOME = "{home}"  # in a call: the home of the user

DRIVER = """
import importlib, json, os, subprocess, sys
for name in "cli.submit cli.sweeps cli.jobs jobs.submit.sbatch jobs.submit.finished jobs.submit.reviewed jobs.runs.status".split():
    importlib.import_module(f"sbatchgen.{name}")
from sbatchgen.cli import main
def call(each):
    for name, (text, mode) in each["files"].items():
        if os.path.lexists(name):
            os.chmod(name, 0o600)
        open(name, "w").write(text)
        os.chmod(name, mode)
    if each["shell"]:
        env = {**os.environ, **each["env"]}
        done = subprocess.run(["bash", "-c", each["shell"]], env=env, capture_output=True, text=True)
        return [done.returncode, done.stdout, done.stderr]
    pid = os.fork()
    if not pid:
        for number, file in enumerate(("/dev/null", "out", "err")):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.environ.update(each["env"])
        try:
            main(each["argv"])
        except SystemExit as end:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(end.code or 0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [status, open("out").read(), open("err").read()]
digest = ""
for each in json.load(sys.stdin):
    each["argv"] = [word.replace("{digest}", digest) for word in each["argv"]]
    status, out, err = call(each)
    if each["argv"][:1] == ["review"]:
        digest = json.loads(out)["digest"]
    print(json.dumps([status, out if len(out) < 100 else "", err[-1500:]]), flush=True)
"""


@dataclass
class Call:
    """A call, what is in files before it, and the variables beside those of a login."""

    kind: str
    argv: list[str] = field(default_factory=list)
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=lambda: {"SBATCHGEN_BUDGET": f"{HOME}/budget.yaml"})
    shell: str = ""


def calls() -> list[Call]:
    """All calls, kind by kind in turn: what one leaves, the next meets."""
    of_kinds = [[*make(random.Random(number))] for number, make in enumerate(KINDS)]  # noqa: S311 - the same on each day
    assert all(len({call.kind for call in each}) == 1 for each in of_kinds)
    turns = [[call for call in each if call.argv[:1] != ["review"]] for each in of_kinds]
    assert [len(each) for each in turns] == [EACH] * len(KINDS)
    ordered = []
    for number in range(EACH):
        for each, whole in zip(turns, of_kinds, strict=True):
            at = whole.index(each[number])
            ordered += whole[at - 1 : at] if at and whole[at - 1].argv[:1] == ["review"] else []
            ordered.append(each[number])
    return ordered


def submit(*words: str) -> list[str]:
    return ["submit", "job.sh", "--yes", *words]


def healthy(text: str = SCRIPT) -> dict[str, tuple[str, int]]:
    """The script and the budget as they should be."""
    return {"job.sh": (text, 0o644), "budget.yaml": (BUDGET, 0o600)}


def other_bytes(draw: random.Random) -> Iterator[Call]:
    """The script, or its options, are other ones than those that were reviewed."""
    for number in range(EACH):
        text = SCRIPT.replace("300", str(300 + number))
        yield Call("other bytes", ["review", "job.sh", "--format", "json"], healthy(text))
        change = draw.choice([text + "#\n", text.replace("--time=60", "--time=61"), text + "curl x\n"])
        words = [["--reviewed", "{digest}"], ["--reviewed", "{digest}", "--time", "2:00:00"]]
        yield Call("other bytes", submit("--again", *draw.choice(words)), healthy(change))


def twice(draw: random.Random) -> Iterator[Call]:
    """Options more than once, on the command line and in the script."""
    for _ in range(EACH):
        option = draw.choice(["--time=30-0", "--gpus-per-node=4", "--nodes=4", "--array=0-99", "--exclusive"])
        text = SCRIPT.replace("sleep", draw.choice(["", f"#SBATCH {option}\n"]) + "sleep")
        words = [draw.choice(["--time=10", "--gpus-per-node=1"]), *[option] * draw.choice([0, 1, 2])]
        yield Call("options twice", submit("--again", *words), healthy(text))


def sweeps(draw: random.Random) -> Iterator[Call]:
    for _ in range(EACH):
        points = draw.choice([2, 100, 1000, 10_000])
        values = ",".join(map(str, range(points)))
        words = ["sweep", "single", "--profile", "./testing.yaml", "--yes", "--trainer", "train.py"]
        words += ["--account", "mine", "--max-restarts", "0", "--job-name", f"s{draw.randrange(9)}"]
        words += draw.choice([[], ["--throttle", "5"], ["--time", "1-0"]])
        yield Call("sweeps", [*words, "--param", f"x={values}"], healthy())


def chains(draw: random.Random) -> Iterator[Call]:
    for _ in range(EACH):
        words = [
            "submit",
            "ddp",
            "--profile",
            "./testing.yaml",
            "--yes",
            "--account",
            "mine",
            "--device=cpu",
        ][:-1]
        words += ["--job-name", f"c{draw.randrange(99)}", "--chain", draw.choice(["2", "3", "40", "5000"])]
        yield Call(
            "chains", [*words, *draw.choice([[], ["--time", "20:00:00"], ["--nodes", "4"]])], healthy()
        )


def long_times(draw: random.Random) -> Iterator[Call]:
    for _ in range(EACH):
        time = draw.choice(["30-0", "UNLIMITED", "0", "720:00:00", "99999999", "infinite"])
        text = draw.choice(
            [SCRIPT, SCRIPT.replace("--time=60", f"--time={time}"), SCRIPT.replace("#SBATCH --time=60\n", "")]
        )
        words = [f"--time={time}"] * (text == SCRIPT)
        yield Call("long times", submit("--again", *words), healthy(text))


def accounts(draw: random.Random) -> Iterator[Call]:
    for _ in range(EACH):
        line = draw.choice(["#SBATCH --account=other\n", "#SBATCH -A other\n", ""])
        text = SCRIPT.replace("#SBATCH --account=mine\n", line)
        words = draw.choice([[], ["--account", "other"], ["--partition", "cpu"], ["--account", "other,mine"]])
        env = draw.choice([{}, {"SBATCH_ACCOUNT": "other"}, {"SBATCH_PARTITION": "cpu"}])
        keeps = ["--keep-sbatch-env"] * draw.randrange(2)
        variable = {"SBATCHGEN_BUDGET": f"{HOME}/budget.yaml"}
        yield Call("second account", submit("--again", *words, *keeps), healthy(text), {**variable, **env})


def children(draw: random.Random) -> Iterator[Call]:
    """A child unsets the variable, names another file, or moves what the ledger is in."""
    for _ in range(EACH):
        before = draw.choice(
            ["env -u SBATCHGEN_BUDGET", "env SBATCHGEN_BUDGET=", f"env SBATCHGEN_BUDGET={HOME}/wide.yaml",
             "env -i PATH=$PATH PYTHONPATH=$PYTHONPATH", "env -u SBATCHGEN_BUDGET HOME=/tmp XDG_STATE_HOME=/tmp/s",
             "env -u SBATCHGEN_BUDGET XDG_CONFIG_HOME=/tmp/c", "setsid -w env -u SBATCHGEN_BUDGET"]
        )  # fmt: skip
        words = submit(
            "--again",
            *draw.choice([["--time=1-0"], ["--gpus-per-node=4"], ["--array=0-99"], ["--account=other"]]),
        )
        shell = f"{before} {sys.executable} -m sbatchgen {shlex.join(words)}; s=$?; true; exit $s"
        wide = {"wide.yaml": ("gpu_hours: 100000\n", 0o600)}
        yield Call("children", files={**healthy(), **wide}, shell=shell)


def damaged(draw: random.Random) -> Iterator[Call]:
    """A budget that is damaged, unreadable, open to others, empty or gone."""
    for _ in range(EACH):
        text, mode = draw.choice(
            [("gpu_hours: [", 0o600), ("gpu_hours: 9999999\n", 0o666), (BUDGET, 0), ("", 0o600), ("gpu_hour: 5\n", 0o600),
             ("{gpu_hours: 99999}\n", 0o620), ("\0\xff", 0o600), ("gpu_hours: 1e9\n", 0o600), ("gpu_hours: -5\n", 0o600)]
        )  # fmt: skip
        files = {**healthy(), "budget.yaml": (text, mode)}
        gone = {"SBATCHGEN_BUDGET": f"{HOME}/gone.yaml"}
        env = draw.choice([gone, *[{"SBATCHGEN_BUDGET": f"{HOME}/budget.yaml"}] * 4])
        yield Call("damaged budget", submit("--again", *draw.choice([[], ["--gpus-per-node=4"]])), files, env)


def odd(draw: random.Random) -> Iterator[Call]:
    """Requests whose GPUs are easily miscounted."""
    for _ in range(EACH):
        line = draw.choice(
            ["--exclusive", "--gres=gpu:4", "--gpus=16", "--nodes=1-4", "--ntasks=32", "--gres=shard:64", "--gpus-per-socket=2",
             "hetjob\n#SBATCH --gpus-per-node=4 --time=600", "--gpus-per-task=4 --ntasks=4", "--array=0-9%1", "--clusters=x"]
        )  # fmt: skip
        body = draw.choice(
            ["sleep 300\n", "scontrol requeue $SLURM_JOB_ID\n", "sleep 300 # scontrol requeue\n"]
        )
        text = f"{SCRIPT.removesuffix('sleep 300' + chr(10))}#SBATCH {line}\n{body}"
        yield Call("odd requests", submit("--again", *draw.choice([[], ["--time=8:00:00"]])), healthy(text))


def repeated(draw: random.Random) -> Iterator[Call]:
    """The same small job again and again, as after a lost answer."""
    for _ in range(EACH):
        words = draw.choice([[], ["--again"], ["--budget", "wide.yaml", "--again"], ["--time=20", "--again"]])
        yield Call("repeated", submit(*words), {**healthy(), "wide.yaml": ("gpu_hours: 100000\n", 0o600)})


KINDS = (other_bytes, twice, sweeps, chains, long_times, accounts, children, damaged, odd, repeated)


@dataclass
class Answer:
    """What a call ended with, and what it printed."""

    call: Call
    status: int
    out: str
    err: str


def run(cluster: Cluster, chosen: list[Call]) -> list[Answer]:
    """Make the calls as the user, one after the other."""
    home = str(cluster.home)
    cluster.put("testing.yaml", PROFILE)
    cluster.put("train.py", "import torch\n")
    cluster.put(".config/sbatchgen/settings.yaml", SETTINGS)
    text = json.dumps([asdict(call) for call in chosen]).replace(HOME, home)
    env = {"PYTHONPATH": str(REPOSITORY)}
    done = cluster.run([sys.executable, "-c", DRIVER], input=text, env=env, cwd=cluster.home, timeout=3000)
    cluster.run(["rm", "-f", ".config/sbatchgen/settings.yaml"])  # other tests have no budget
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(chosen), done.stderr[-3000:]
    return [Answer(call, *line) for call, line in zip(chosen, lines, strict=True)]


def gpu_hours(cluster: Cluster) -> float:
    """What all jobs that Slurm knows may take, or took if they ended, by Slurm's own record of each."""
    total = 0.0
    shown = cluster.run(["scontrol", "-o", "show", "job"]).stdout
    for line in (each for each in shown.splitlines() if each.startswith("JobId=")):
        value = dict(re.findall(r"(\w+)=(\S*)", line))
        waits_or_runs = value["JobState"] not in TERMINAL
        days, _, clock = value["TimeLimit" if waits_or_runs else "RunTime"].rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        # --gpus-per-node and --gres are both named there: the larger counts (test_share.py)
        counts = re.findall(r"gpu(?::\w+)?:(\d+)", value.get("TresPerNode", ""))
        per_node = max(map(int, counts), default=0)
        nodes = int(value["NumNodes"].partition("-")[2] or value["NumNodes"].partition("-")[0])
        in_all = sum(map(int, re.findall(r"gpu(?::\w+)?:(\d+)", value.get("TresPerJob", ""))))
        tasks = int(value["NumTasks"]) if value["NumTasks"].isdecimal() else 1  # N/A once it has ended
        in_all += tasks * sum(map(int, re.findall(r"gpu(?::\w+)?:(\d+)", value.get("TresPerTask", ""))))
        tasks = 1
        if waiting := re.fullmatch(r"(\d+)-(\d+)(?:%\d+)?", value.get("ArrayTaskId", "")):
            tasks = int(waiting[2]) - int(waiting[1]) + 1
        if value.get("OverSubscribe") == "NO" and per_node:  # alone on its nodes
            per_node = 4
        time = int(days or 0) * 24 + hours + minutes / 60 + seconds / 3600
        total += tasks * max(per_node * nodes, in_all) * time
    return total


def scripts(cluster: Cluster) -> dict[str, str]:
    """The script that Slurm has of each job, by the job's id."""
    shown = cluster.run(["squeue", "--me", "--noheader", "--states=all", "--format=%F"]).stdout.split()
    return {
        job: cluster.run(["scontrol", "write", "batch_script", job, "-"]).stdout
        for job in dict.fromkeys(shown)
    }


def kinds_of(answers: list[Answer]) -> dict[str, dict[int, int]]:
    """How many calls of each kind ended with each status."""
    counts: dict[str, dict[int, int]] = {}
    for answer in answers:
        if answer.call.argv[:1] != ["review"]:
            of_kind = counts.setdefault(answer.call.kind, {})
            of_kind[answer.status] = of_kind.get(answer.status, 0) + 1
    return counts


def where(cluster: Cluster) -> Path:
    """The ledger."""
    return cluster.home / ".local/state/sbatchgen/budget.json"
