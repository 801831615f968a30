"""Forty broken jobs, and a fixer that reads the JSON alone and types what `argv` says."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY
from tests.jobs.jobs import PROFILE

MOST_TRIES = 6
HEAD = "#!/bin/bash\n#SBATCH --time=00:10:00\n"
TRAIN = "import torch\nprint('ran')\n"
PLACE = ("--profile", "./testing.yaml")
SINGLE = ("single", "--trainer", "train.py", *PLACE)
NEW_PROFILE = PROFILE.replace("url:", "slurm: '22.05'\nurl:")


def script(lines: str, body: str = "srun hostname", head: str = HEAD) -> dict[str, str]:
    """The file of a job."""
    return {"job.sh": f"{head}{lines}{body}\n"}


SCRIPT = ("job.sh",)
BROKEN: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    # What lint mends in the file.
    "CRLF": (SCRIPT, {"job.sh": f"{HEAD}srun hostname\n".replace("\n", "\r\n")}),
    "spaces around =": (SCRIPT, script("#SBATCH --nodes = 1\n")),
    "space before the value": (SCRIPT, script("#SBATCH --partition= gpu\n")),
    "short option with =": (SCRIPT, script("#SBATCH -p=gpu\n")),
    "short option of nodes": (SCRIPT, script("#SBATCH -N=1\n")),
    "spaces around = of memory": (SCRIPT, script("#SBATCH --mem = 1G\n")),
    "a dash that is long": (SCRIPT, script("#SBATCH \u2013nodes=1\n")),
    # What an option on the command line mends.
    "mistyped partition": ((*SCRIPT, *PLACE, "--partition", "gp"), script("")),
    "mistyped partition in the script": ((*SCRIPT, *PLACE), script("#SBATCH --partition=gp\n")),
    "too many GPUs": ((*SCRIPT, *PLACE), script("#SBATCH --gpus-per-node=9\n")),
    "too long": ((*SCRIPT, *PLACE, "--time", "9-00:00:00"), script("")),
    "too long in the script": ((*SCRIPT, *PLACE), script("#SBATCH --time=9-0\n")),
    "too many nodes": ((*SCRIPT, *PLACE), script("#SBATCH --nodes=99\n")),
    "more CPUs than a node has": ((*SCRIPT, *PLACE, "--cpus-per-task", "99"), script("")),
    "an array that Slurm can't read": (SCRIPT, script("#SBATCH --array=0..9\n")),
    "shards of more GPUs": ((*SCRIPT, *PLACE, "--gres", "shard:99"), script("")),
    # Mistyped command lines.
    "mistyped option": ((*SCRIPT, "--tme", "5"), script("")),
    "mistyped long option": ((*SCRIPT, "--partiton", "gpu"), script("")),
    "ambiguous time": ((*SCRIPT, "--time", "24:00"), script("")),
    "mistyped account option": ((*SCRIPT, "--acount", "me"), script("")),
    "mistyped GPUs option": ((*SINGLE, "--gpus-per-nod", "1"), {}),
    "mistyped memory option": ((*SCRIPT, "--mme", "1G"), script("")),
    "time in words": ((*SCRIPT, "--time", "2h"), script("")),
    "mistyped profile": ((*SINGLE[:3], "--profile", "./testin.yaml"), {}),
    "mistyped trainer": (("single", "--trainer", "trian.py", *PLACE), {}),
    "mistyped mode": (("singl", *SINGLE[1:]), {}),
    "mistyped file": (("jobb.sh",), script("")),
    "option of sbatch": ((*SINGLE, "--walltime", "5"), {}),
    "too many GPUs of a mode": ((*SINGLE, "--gpus-per-node", "4"), {}),
    "too many GPUs of a node": (("ddp", *SINGLE[1:], "--gpus-per-node", "9"), {}),
    "too many nodes of the partition": (("ddp", *SINGLE[1:], "--nodes", "9"), {}),
    "too long a job": ((*SINGLE, "--time", "9-00:00:00"), {}),
    "mistyped partition of a job": ((*SINGLE, "--partition", "gpuu"), {}),
    "too many CPUs of a job": ((*SINGLE, "--cpus-per-task", "99"), {}),
    "a budget that is too small for the time": ((*SINGLE, "--time", "4:00:00", "--max-restarts", "0", "--budget", "small.yaml"), {}),
    "a budget without the partition": ((*SCRIPT, "--budget", "low.yaml"), script("#SBATCH --partition=gpu\n")),
    "a budget that others can write": ((*SCRIPT, "--budget", "open.yaml"), script("")),
    "a budget and no end": ((*SCRIPT, "--budget", "low.yaml"), script("#SBATCH --partition=low\n", head="#!/bin/bash\n#SBATCH --time=UNLIMITED\n")),
    "requeue under a budget": ((*SCRIPT, "--budget", "low.yaml", "--partition", "low"), script("", "srun hostname || scontrol requeue $SLURM_JOB_ID")),
    "variables of sbatch under a budget": ((*SCRIPT, "--keep-sbatch-env", "--budget", "low.yaml", "--partition", "low"), script("")),
}  # fmt: skip


def mend(cluster: Cluster, name: str, words: Sequence[str], files: dict[str, str]) -> tuple[int, list[str]]:
    """Submit a job, and what its answers say to run; return its id, 0 without one, and what the answers said."""
    folder = "mend-" + "".join(letter if letter.isalnum() else "-" for letter in name)
    budgets = {
        "small.yaml": "gpu_hours: 2\n",
        "low.yaml": "partitions: [low]\n",
        "open.yaml": "gpu_hours: 9\n",
    }
    for file, text in {"testing.yaml": NEW_PROFILE, "train.py": TRAIN, **budgets, **files}.items():
        cluster.put(f"{folder}/{file}", text)
    cluster.run(["chmod", "666", "open.yaml"], cwd=cluster.home / folder)
    env = (
        {"PYTHONPATH": str(REPOSITORY), "SBATCH_DEBUG": "0"}
        if name.startswith("variables")
        else {"PYTHONPATH": str(REPOSITORY)}
    )
    typed = ["sbatchgen", "submit", *words, "--yes", "--format", "json"]
    said: list[str] = []
    asked = typed  # the last submission
    for _ in range(MOST_TRIES):
        program = [sys.executable, "-m", "sbatchgen"] if typed[0] == "sbatchgen" else typed[:1]
        done = cluster.run([*program, *typed[1:]], cwd=cluster.home / folder, env=env)
        answer = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if answer.get("jobs"):
            return int(answer["jobs"][0]["job"]), said
        problems = answer.get("error", {}).get("problems", []) + [
            finding for finding in answer.get("findings", []) if finding["severity"] == "error"
        ]
        said.append(
            "; ".join(f"{each['what']} (fix: {each['fix']})" for each in problems) or done.stderr[-300:]
        )
        run: list[str] = next((each["argv"] for each in problems if each["argv"]), [])
        submits = typed[:2] == ["sbatchgen", "submit"]
        if not run and submits:
            break
        asked = typed if submits else asked
        typed = ["--yes" if word == "--dry-run" else word for word in run or asked]  # its user agrees
    return 0, said
