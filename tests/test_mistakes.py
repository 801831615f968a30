"""What newcomers type by mistake: the answer names what is wrong, and its fix works when it is typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.conftest import Command

SITE = """
name: site
url: https://example.org
checked: 2026-01-01
slurm: 24.05
default_partition: gpu
partitions:
  gpu: {cpus_per_node: 64, gpus_per_node: 4, mem_per_node: 240G, time_max: 1-00:00:00}
  long: {cpus_per_node: 64, gpus_per_node: 4, mem_per_node: 240G, qos: [long]}
"""
FILES = {
    "home/.config/sbatchgen/profiles/site.yaml": SITE,
    "site.yaml": SITE.replace("name: site", "name: other"),
    "train.py": "print(1)\n",
    "old.slurm": "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --gpus-per-node=1\nsrun python train.py\n",
    "job.yaml": "mode: single\n",
    "nodes.yaml": "mode: ddp\nnodes: 4\n",
    "fixed-nodes.yaml": "mode: ddp\noptions: {nodes: 4}\n",
    "dash.yaml": "mode: ddp\noptions: {cpus-per-task: 4}\n",
    "fixed-dash.yaml": "mode: ddp\noptions: {cpus_per_task: 4}\n",
    "time.yaml": "mode: single\noptions: {time: 24}\n",
    "fixed-time.yaml": "mode: single\noptions: {time: 24:00:00}\n",
    "mode.yaml": "mode: dpp\n",
    "range.yaml": "mode: ddp\noptions: {nodes: 2-4}\n",
    "list.yaml": "mode: single\noptions: {exclude: [n1, n2]}\n",
    "fixed-list.yaml": "mode: single\noptions: {exclude: 'n1,n2'}\n",
    "runtime.yaml": "mode: single\nruntime: singularity\n",
    "fixed-runtime.yaml": "mode: single\nruntime: apptainer\nimage: torch.sif\n",
    "workers.yaml": "mode: single\nworkers: 4\n",
    "fixed-workers.yaml": 'mode: single\nargs: [--workers, "4"]\n',
    "nomode.yaml": "args: [--epochs, 3]\n",
    "two.yaml": "mode: single\nvenv: venv\nconda_env: torch\n",
    "resume.yaml": "mode: single\nresume: gone.pt\n",
    "setup/sbatchgen.yaml": "options: {time: 02:00:00}\n",
    "venv/pyvenv.cfg": "",
    "data/readme": "",
    "torch.sif": "an image",
    "empty.sif": "",
}
# What is typed; what the answer must name; the command that works instead.
MISTAKES = """
review train.py | is a Python program | review single --trainer train.py
submit train.py | is a Python program | submit single --trainer train.py --dry-run
lint train.py | is a Python program | review single --trainer train.py
adopt train.py | is a Python program | review single --trainer train.py
profile check train.py | is a Python program | review single --trainer train.py
explain old.slurm | is a script | adopt old.slurm --to .
sweep old.slurm --param lr=1 | is a script | adopt old.slurm --to .
render old.slurm | is a script | lint old.slurm
profile show old.slurm | is a script | lint old.slurm
lint job.yaml | is a job YAML | review job.yaml
adopt job.yaml | is a job YAML | review job.yaml
profile check job.yaml | is a job YAML | review job.yaml
review job.yaml --profile job.yaml | is a job YAML | review job.yaml
review site.yaml | the profile of a cluster | review single --profile site.yaml
lint site.yaml | the profile of a cluster | profile check site.yaml
adopt site.yaml | the profile of a cluster | profile check site.yaml
review setup/sbatchgen.yaml | defaults for all jobs | review single
review setup | is a folder | review job.yaml
review jobs.yaml | did you mean 'job.yaml'? | review job.yaml
review job.yml | did you mean 'job.yaml'? | review job.yaml
submit run.slurm --dry-run | a file that exists | submit old.slurm --dry-run
submit odl.slurm | did you mean 'old.slurm'? | submit old.slurm --dry-run
review sinlge | did you mean 'single'? | review single
review ddp -N 2 | write --nodes | review ddp --nodes 2
review single --device cpu | no such option --device | review single -- --device cpu
status --follow | write --watch | status
sweep single --param lr 0.1,0.01 | unexpected extra argument | sweep single --param lr=0.1,0.01 --dry-run
sweep single lr=0.1,0.01 | write --param lr=0.1,0.01 | sweep single --param lr=0.1,0.01 --dry-run
sweep single --param lr= | lr has no value | sweep single --param lr=0.1 --dry-run
review single train.py | write --trainer train.py | review single --trainer train.py
review single --trainer torchrun train.py | write --trainer train.py | review single --trainer train.py
review --trainer train.py | as in: sbatchgen review single | review single --trainer train.py
review single --trainer "train.py --lr 1" | --trainer train.py -- --lr 1 | review single --trainer train.py -- --lr 1
review single --data-dir train.py | there is no data folder | review single --data-dir data
gpus single | write --for single | review single
adopt odl.slurm | did you mean 'old.slurm'? | adopt old.slurm --to .
adopt old.slurm --to train.py | it is a file: name another | adopt old.slurm --to .
submit single --dry-run --after x | there is no run 'x' | submit single --dry-run
sweep single --file points.csv | can't read points.csv | sweep single --param lr=0.1 --dry-run
sumbit single | did you mean 'submit'? | submit single --dry-run
review single --profile sit | did you mean 'site'? | review single --profile site
review single --profile gone.yaml | no profile at | review single --profile site.yaml
review single --partition gpus | did you mean 'gpu'? | review single --partition gpu
review single --partition long | --qos long | review single --partition long --qos long
review single --partition long --qos short | use qos long | review single --partition long --qos long
review single --time 24 | 24:00:00 | review single --time 24:00:00
review time.yaml | 24:00:00 | review fixed-time.yaml
review single --time 1:30 | 01:30:00 | review single --time 01:30:00
review single --time 2h | 0-02:00:00 | review single --time 0-02:00:00
review single --time 30:00:00 | 1-00:00:00 | review single --time 1-00:00:00
review single --mem 16 | 16G | review single --mem 16G
review single --mem 16X | write an integer with K, M, G or T | review single --mem 16G
review single --mem 1T | --mem 240G | review single --mem 240G
review single --nodes -1 | '-1' must be 1 or more | review single --nodes 1
review ddp --nodes two | not a whole number | review ddp --nodes 2
review single --nodes 2 | use mode ddp | review ddp --nodes 2
review cpu --nodes 2 | use mode ddp with --gpu-request none --nproc-per-node 1 | review ddp --nodes 2 --gpu-request none --nproc-per-node 1
review single --gpus-per-node 2 | use mode ddp | review ddp --gpus-per-node 2
review ddp --gpus-per-node 8 | --gpus-per-node 4 and --nodes 4 | review ddp --gpus-per-node 4 --nodes 4
review ddp --nproc-per-node 8 | --nproc-per-node 4 | review ddp --nproc-per-node 4
review ddp --cpus-per-task 200 | 64 CPUs | review ddp --cpus-per-task 64
review cpu --gpus-per-node 1 | remove gpus_per_node | review cpu
review single --gres gpu=1 | write gpu:4 | review single --gres gpu:1
review single --array 1..5 | --array=0-9%2 | review single --array 1-5
review single --signal TERM@x | --signal=B:USR1@300 | review single --signal B:USR1@300
review single --env TOKEN_OF_MINE | export TOKEN_OF_MINE | review single --env TOKEN_OF_MINE=x
review single --set nodes=1 | options.nodes | review single --set options.nodes=1
review single --set options.node=1 | did you mean 'nodes'? | review single --set options.nodes=1
review single --set nodes | NAME=VALUE | review single --set options.nodes=1
review single --runtime docker | apptainer | review single --runtime apptainer --image torch.sif
review single --runtime venv | --venv PATH | review single --runtime venv --venv venv
review single --venv gone | there is no virtual environment | review single --venv venv
review single --image gone/away.sif | there is no image | review single --image torch.sif
review single --image gone.sif | there is no image | review single --image torch.sif
review single --image empty.sif | empty.sif is empty | review single --image torch.sif
review single --conda-env ./gone | there is no conda environment | review single --conda-env torch
review single --uv-project ./gone | there is no uv project | review single --venv venv
review single --image docker://a/b | --runtime apptainer | review single --image docker://a/b --runtime apptainer
review single --venv venv --image torch.sif | keep one of --venv and --image | review single --image torch.sif
review single --venv venv --runtime conda | keep one of --venv and --runtime | review single --venv venv
review two.yaml | keep one of two.yaml | review job.yaml --venv venv
review single --bind data | --runtime apptainer | review single --bind data --image torch.sif
review single --trainer trian.py | did you mean 'train.py'? | review single --trainer train.py
review single --resume checkpoint_epoch_3.pt | there is no checkpoint | review single --resume auto
review resume.yaml | there is no checkpoint | review resume.yaml --resume auto
review single -- --init-from gone.pt | there is no file gone.pt | review single
review single --data-dir gone | there is no data folder | review single --data-dir data
review single --epochs 3 | come after -- | review single -- --epochs 3
review single -- --epochs three | --epochs | review single -- --epochs 3
review single -- --partition gpu | write it before the -- | review single --partition gpu
review nodes.yaml | options: {nodes: 4} | review fixed-nodes.yaml
review dash.yaml | write cpus_per_task: | review fixed-dash.yaml
review mode.yaml | 'dpp' is not one of | review job.yaml
review nomode.yaml | does not set a mode | review job.yaml
review range.yaml | write nodes: N | review fixed-nodes.yaml
review list.yaml | write exclude: n1,n2 | review fixed-list.yaml
review runtime.yaml | did you mean 'apptainer'? | review fixed-runtime.yaml
review workers.yaml | write args: [--workers, "4"] | review fixed-workers.yaml
review single --trainer ./data | is a folder | review single --trainer train.py
review single --yes | is an option of sbatchgen submit | submit single --dry-run
review single --modules cuda | write --set modules=VALUE | review single --set modules=cuda
review single --module cuda | write --set modules=VALUE | review single --set modules=cuda
review single profile=site | write --profile site | review single --profile site
review single --env "LR 3" | as in NAME=VALUE | review single --env LR=3
submit single --trainer train.py -- --yes | write --yes before the -- | submit single --dry-run
submit single -- --yes | write it before the -- | submit single --dry-run
rehearse single --seconds soon | is not a number | review single
profile discover site | write --name site | profile list
profile update site | sbatchgen profile discover --update | profile list
run single | sbatchgen submit | submit single --dry-run
--profile site review single | options come after the command | review single --profile site
gpus --profile site | name a job: --for ddp | review single
sweep single | give the points by --param | sweep single --param lr=0.1,0.01 --dry-run
sweep single --param lr | NAME=VALUE | sweep single --param lr=0.1,0.01 --dry-run
submit single | --dry-run to review only | submit single --dry-run
review /dev/null | is a pipe or a device | review job.yaml
profile check /dev/zero | is a pipe or a device | profile check site.yaml
review single --profile ./data | is a folder | review single --profile site.yaml
lint gone.slurm | can't read gone.slurm | lint old.slurm
status gone | sbatchgen status --all | status --all
"""
ROWS = [tuple(part.strip() for part in line.split(" | ")) for line in MISTAKES.strip().splitlines()]


@pytest.fixture
def newcomer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the login node of a cluster, of which the user has the only profile."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setattr("sbatchgen.jobs.resolved.request.in_shell", lambda *_: "/usr/bin/sbatch")
    return folder


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("typed", "named", "mended"), ROWS, ids=[row[0] for row in ROWS])
def test_a_mistake_is_named_and_its_fix_works(
    newcomer: Path, command: Command, typed: str, named: str, mended: str
) -> None:
    answer = command(*shlex.split(typed))
    assert named in answer.out + answer.err
    again = command(*shlex.split(mended))
    assert again.status == 0, again.out + again.err
    assert named not in again.err


@pytest.mark.parametrize("typed", [row[0] for row in ROWS if " is a" in row[1] or "profile of" in row[1]])
def test_the_command_for_a_file_is_given_as_it_is_typed(newcomer: Path, command: Command, typed: str) -> None:
    fix = command(*shlex.split(typed)).err.rpartition("fix: ")[2].splitlines()[0]
    dry = ["--dry-run"] if "submit" in fix and "--dry-run" not in fix else []
    assert not fix.startswith("sbatchgen ") or command(*shlex.split(fix)[1:], *dry).status == 0


def test_a_run_folder_is_named(newcomer: Path, command: Command) -> None:
    assert command("submit", "cpu", "--profile", "local", "--trainer", "train.py", "--yes").status == 0
    for typed, fix in (("review", "status"), ("submit", "resume")):
        answer = command(typed, "runs/cpu").err
        assert "runs/cpu is a run folder" in answer
        assert f"fix: sbatchgen {fix} runs/cpu" in answer
    assert command("status", "runs/cpu").status == 0
