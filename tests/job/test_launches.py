"""What a script starts, in the forms in which scripts start it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.script.launches import Launch
from sbatchgen.check.script.script import JobScript
from tests.conftest import GOLDEN

HEADER = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8\n"


def launches(body: str) -> tuple[Launch, ...]:
    return JobScript(file="job.slurm", text=HEADER + body).launches


@pytest.mark.parametrize(
    ("body", "tools", "counts"),
    [  # counts: nodes, tasks, tasks of a node, processes of a launcher on a node
        ("torchrun t.py", "torchrun t.py", (1, 1, 1, 1)),
        ("srun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE t.py", "srun torchrun t.py", (2, 8, 4, 4)),
        ("srun -N2 -n 2 torchrun --nproc-per-node 8 t.py", "srun torchrun t.py", (2, 2, 1, 8)),
        ("srun -n1 python -m torch.distributed.run t.py", "srun python torchrun t.py", (2, 1, 1, 1)),
        ("srun bash -c 'source x; exec torchrun t.py'", "srun bash exec torchrun t.py", (2, 8, 4, 1)),
        ("C='torchrun t.py'\nsrun -n2 bash -c \"$C\"", "srun bash torchrun t.py", (2, 2, 1, 1)),
        ("C='torchrun t.py'\neval \"srun -N1 $C\"", "srun torchrun t.py", (1, 4, 4, 1)),
        ('c=(srun torchrun)\n"${c[@]}" t.py', "srun torchrun t.py", (2, 8, 4, 1)),
        ("srun --container-image=/i.sqsh torchrun t.py", "srun torchrun t.py", (2, 8, 4, 1)),
        ("srun apptainer exec --nv i.sif python t.py", "srun apptainer exec python t.py", (2, 8, 4, None)),
        ("mpirun -np 8 python t.py", "mpirun python t.py", (1, 1, 1, None)),
        ("deepspeed --num_gpus 4 t.py", "deepspeed t.py", (1, 1, 1, 4)),
        ("accelerate launch --num_processes 8 --num_machines 2 t.py", "accelerate launch t.py", (1, 1, 1, 4)),
        ("accelerate launch --num_processes 8 t.py", "accelerate launch t.py", (1, 1, 1, None)),
        ("time srun --ntasks=$N python3.11 -u t.py &", "time srun python t.py", (2, None, None, None)),
        ("E=4\nsrun -n$(($E*$SLURM_NNODES)) python t.py", "srun python t.py", (2, 8, 4, None)),
        ("N=$SLURM_NNODES\nT=$((8 / 4 * N))\nsrun -n $T python t.py", "srun python t.py", (2, 4, 2, None)),
        ("srun -n$((${N} * 2)) python t.py", "srun python t.py", (2, None, None, None)),
        ("srun -n$((SLURM_NNODES + 2)) python t.py", "srun python t.py", (2, None, None, None)),
        ("run() { srun python t.py; }\nrun", "srun python t.py", (2, 8, 4, None)),
        ("srun pixi run -e gpu torchrun t.py", "srun pixi run torchrun t.py", (2, 8, 4, 1)),
        ("srun poetry run python -u t.py", "srun poetry run python t.py", (2, 8, 4, None)),
        ("micromamba run -n x python t.py", "micromamba run python t.py", (1, 1, 1, None)),
        ("srun uv run --extra gpu t.py", "srun uv run t.py", (2, 8, 4, None)),
        ("srun shifter --image=x python t.py", "srun shifter python t.py", (2, 8, 4, None)),
        ("srun podman-hpc run --gpu i python t.py", "srun podman-hpc run python t.py", (2, 8, 4, None)),
        ("singularity_wrapper exec python t.py", "singularity_wrapper exec python t.py", (1, 1, 1, None)),
        ("dumb-init -- python t.py", "dumb-init python t.py", (1, 1, 1, None)),
        ("srun nsys profile -o x -t cuda python t.py", "srun nsys profile python t.py", (2, 8, 4, None)),
        ("ncu -o x --set full python t.py", "ncu python t.py", (1, 1, 1, None)),
        ("srun fabric run --devices 4 --num_nodes=2 t.py", "srun fabric run t.py", (2, 8, 4, 4)),
        ("lightning run model --devices=2 t.py", "lightning run model", (1, 1, 1, None)),
        ("srun tune run --nproc_per_node 4 full", "srun tune run full", (2, 8, 4, 4)),
        ("srun ft_launcher --nproc_per_node=4 --ft-segment 4 t.py", "srun ft_launcher t.py", (2, 8, 4, 4)),
        ("srun composer -n 4 --world_size 8 t.py", "srun composer t.py", (2, 8, 4, 4)),
        ("srun unbuffer python t.py", "srun unbuffer python t.py", (2, 8, 4, None)),
        ("perf stat -e cycles python t.py", "perf stat python t.py", (1, 1, 1, None)),
        ("strace -f -o x python t.py", "strace python t.py", (1, 1, 1, None)),
        ("mpiexec.openmpi -np 8 python t.py", "mpiexec.openmpi python t.py", (1, 1, 1, None)),
    ],
)
def test_forms(body: str, tools: str, counts: tuple[int | None, ...]) -> None:
    (launch,) = launches(body)
    assert " ".join(tool.name for tool in launch.tools) == tools
    assert (launch.nodes, launch.tasks, launch.tasks_per_node, launch.workers) == counts
    assert launch.is_training


@pytest.mark.parametrize(
    "body",
    [
        "srun hostname",
        "head=$(srun -n1 hostname)",
        "python -c 'import torch'",
        "python -m pip install .",
        "srun ./a.out",
        "bash train.sh",
        'eval "$(conda shell.bash hook)"\nconda activate x',
        "command -v srun torchrun",
        "poetry install",
        "uv sync",
        "pixi run build",
        "ray start --head",
    ],
)
def test_what_is_no_training(body: str) -> None:
    assert not any(launch.is_training for launch in launches(body))


@pytest.mark.parametrize(
    ("body", "unseen"),
    [
        ("bash train.sh", True),
        ("srun ./run.sh", True),
        ("source launch.bash", True),
        ('"${command[@]}"', True),
        ("source .venv/bin/activate\n. ~/.bashrc\nsrun python t.py", False),
        ("srun ./a.out", False),
    ],
)
def test_scripts_that_start_others(body: str, *, unseen: bool) -> None:
    assert JobScript(file="job.slurm", text=HEADER + body).may_start_hidden_programs is unseen


def test_native_ranks() -> None:
    assert [
        launch.runs_rank_per_task for launch in launches("srun python t.py\nsrun torchrun t.py\npython t.py")
    ] == [
        True,
        False,
        False,
    ]
    assert not launches("srun python `which torchrun` t.py")[0].runs_rank_per_task


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.sh")), ids=lambda file: file.stem)
def test_rendered_scripts_start_one_training(file: Path) -> None:
    script = JobScript(file=file.name, text=file.read_text())
    (launch,) = script.trainings
    assert (launch.step is None) == ("#SBATCH" not in script.text)
    (called,) = [
        command for command in script.body.commands if command.name == launch.command.context.function
    ]
    assert called.in_background == ("--resume off" not in script.text)
    assert not script.may_start_hidden_programs


@pytest.mark.parametrize(
    ("options", "step", "counts"),
    [  # tasks, tasks of a node; as Slurm 22.05 starts them
        ("--gpus-per-node=4 --ntasks-per-gpu=1", "srun", (8, 4)),
        ("--gpus=8 --ntasks-per-gpu=2", "srun", (16, 8)),
        ("--gpus-per-node=4", "srun --ntasks-per-gpu=1", (8, 4)),
        ("--gpus-per-node=4", "srun --ntasks-per-gpu=1 --gpus=2", (None, None)),
        ("--ntasks-per-gpu=1", "srun", (None, None)),
    ],
)
def test_tasks_for_each_gpu(options: str, step: str, counts: tuple[int | None, ...]) -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes=2 {options}\n{step} python t.py\n"
    (launch,) = JobScript(file="job.slurm", text=text).launches
    assert (launch.tasks, launch.tasks_per_node) == counts


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "srun starts torchrun 4 times on a node"),
        ("--ntasks-per-node=4", "srun starts torchrun 4 times on a node"),
        (
            "--ntasks=4",
            "srun ignores --ntasks-per-node beside the job's number of tasks: it starts torchrun 2 times",
        ),
    ],
)
def test_what_srun_ignores(options: str, said: str) -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes=2 --time=10 {options}\nsrun --ntasks-per-node=4 torchrun --nproc-per-node=4 t.py\n"
    findings = lint(JobScript(file="job.slurm", text=text))
    (what,) = [each.problem.what for each in findings if each.rule == "SB302"]
    assert what.startswith(said)
