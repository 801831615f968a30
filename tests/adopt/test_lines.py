"""The outcomes of single lines: kept, understood, mended, dropped or lost."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sbatchgen.base.errors import DocumentError
from sbatchgen.lab.adopt.account import refusal
from sbatchgen.lab.adopt.adoption import Adoption, adopt
from sbatchgen.lab.plan.planning import plan_of, script_of
from tests.adopt.adopted import adopted, ran
from tests.conftest import FIXTURES
from tests.tables import hold


def of_body(body: str, *directives: str) -> Adoption:
    """Adopt a body after three directives, which are lines 2 to 4."""
    head = ["--nodes=1", "--ntasks-per-node=1", "--time=1:00:00", *directives]
    return adopted("".join(["#!/bin/bash\n", *(f"#SBATCH {line}\n" for line in head), body, "\n"]))


def job(adoption: Adoption) -> dict[str, Any]:
    """Return the keys of a job, without the variable that each job of the host has."""
    assert not adoption.lost, adoption.lost
    keys = dict(yaml.safe_load(adoption.job))
    if keys.get("env", {}).get("PYTHONNOUSERSITE") == "":
        del keys["env"]["PYTHONNOUSERSITE"]
    return keys


def profile(adoption: Adoption) -> dict[str, Any]:
    assert not adoption.lost, adoption.lost
    return dict(yaml.safe_load(adoption.profile))


KEPT = [  # a body, and the lines of setup
    ("cd /work/me\nulimit -n 4096\npython t.py", ["cd /work/me", "ulimit -n 4096"]),
    ("cd /w && python t.py", ["cd /w || exit"]),
    ("mkdir o &&\n  cd o && A=1 srun python t.py && echo done", ["mkdir o || exit", "  cd o || exit"]),
    ("cd /w; export A=$PWD # here\npython t.py; echo done", ["cd /w", "export A=$PWD # here"]),
    ("if true; then\n\techo hi\nfi\npython t.py", ["if true; then", "    echo hi", "fi"]),
    ("source ~/.bashrc\npython t.py", ["source ~/.bashrc"]),
    ("A=1\nB=$A\necho $B\npython t.py", ["A=1", "B=$A", "echo $B"]),
    ("A=1\nB=2\nmkdir $A\npython t.py --b $B", ["A=1", "mkdir $A"]),
    ("export SEED=$RANDOM\npython t.py", ["export SEED=$RANDOM"]),
    ("export A='${B}'\npython t.py", ["export A='${B}'"]),
    ("module use $APPS\nmodule load cuda\npython t.py", ["module use $APPS", "module load cuda"]),
    ("A=$S/x\nexport B=$A\npython t.py --out=$A/y", ["A=$S/x", "export B=$A"]),
    ("python t.py --n=$((2 * 2))", ["argument_1=$((2 * 2))"]),
    ('I=$(uuidgen)\npython t.py "${I:0:4}" "${I:0:4}"', ["I=$(uuidgen)", 'argument_1="${I:0:4}"']),
    ('RUN="srun python t.py --n $(nproc)"\n$RUN', ["argument_1=$(nproc)"]),
    ("python t.py $(cat arguments)", ["argument_1=($(cat arguments))"]),
    ("python t.py ${A:+--a $A} *.csv", ["argument_1=(${A:+--a $A})", "argument_2=(*.csv)"]),
    ('mapfile -t A < f\npython t.py "${A[@]}"', ["mapfile -t A < f", 'argument_1=("${A[@]}")']),
    (
        'A=""\n[ -d x ] && A="--b c"\npython t.py $A --c',
        ['A=""', '[ -d x ] && A="--b c"', "argument_1=($A)"],
    ),
    (
        'A=$(hostname)\n[ -d x ] && export A="$A --b c"\npython t.py $A',
        ["A=$(hostname)", '[ -d x ] && export A="$A --b c"', "argument_1=($A)"],
    ),
    ("A=$(hostname)\nexport A\nls $A\npython t.py $A", ["A=$(hostname)", "export A", "ls $A"]),
    ("python t.py '{run_dir}/x'", ["argument_1=('{run_dir}/x')"]),
    ("srun python a.py\nsrun python b.py", ["srun python a.py"]),
    ("export OMP_NUM_THREADS=$((2 * 2))\npython t.py", ["export OMP_NUM_THREADS=$((2 * 2))"]),
    ("V=x\nsrun bash -c '. v/bin/activate\nls $V\npython t.py'", ["V=x", "export V"]),
    ("source v/bin/activate\npip list\npython t.py", ["source v/bin/activate", "pip list"]),
    (
        "source v/bin/activate\nexport PYTHONPATH=$PWD:$PYTHONPATH\npython t.py",
        ["source v/bin/activate", "export PYTHONPATH=$PWD:$PYTHONPATH"],
    ),
    ("cat > x.json <<END\n{\n  1\n}\nEND\npython t.py", ["cat > x.json <<END", "{", "  1", "}", "END"]),
    ("python prepare.py\npython t.py", ["python prepare.py"]),
    ("srun python --version\npython t.py", ["srun python --version"]),
    ("/v/bin/python t.py", ['PATH="/v/bin":$PATH']),
    ("export PATH=/a:$PATH\n/v/bin/python t.py", ["export PATH=/a:$PATH", 'PATH="/v/bin":$PATH']),
    ("V=v\n$V/bin/torchrun --nproc-per-node=2 t.py", ['PATH="${SLURM_SUBMIT_DIR}/v/bin":$PATH']),
    ("source a/bin/activate\n/b/bin/python t.py", ["source a/bin/activate", 'PATH="/b/bin":$PATH']),
    ("export A=1\n./fetch\npython t.py", ["export A=1", "./fetch"]),
    ("export CONDA_ENVS_PATH=/x\npython t.py", ["export CONDA_ENVS_PATH=/x"]),
    ("export PATH=/a:/b\nmodule load c\npython t.py", ["export PATH=/a:/b", "module load c"]),
    ("A=1\nexport A\npython t.py", ["A=1", "export A"]),
    ("export A=1\nunset A\npython t.py", ["export A=1", "unset A"]),
    ("export A=1\nif true; then export A=2; fi\npython t.py", ["export A=1", "if true; then export A=2; fi"]),
    ("A=$(pwd)\nB=$A A=x$A python t.py", ["A=$(pwd)", "export B=$A", "export A=x$A"]),
    ('A=1\nB=$(pwd)\nls /$B/$A/x "$B $A"\npython t.py', ["A=1", "B=$(pwd)", 'ls /$B/$A/x "$B $A"']),
]


@pytest.mark.parametrize(("body", "setup"), KEPT, ids=[body for body, _ in KEPT])
def test_what_stays_unchanged(body: str, setup: list[str]) -> None:
    facts = profile(of_body(body))
    assert facts["setup"] == setup
    assert facts.get("runtime", "host") == "host"
    assert "modules" not in facts


UNDERSTOOD: list[
    tuple[str, dict[str, Any], dict[str, Any]]
] = [  # a body, keys of the job, keys of the profile
    ("python -u t.py --lr 0.1", {"mode": "single", "trainer": "t.py", "args": ["--lr", "0.1"]}, {}),
    ("python -m pkg.train", {"trainer": "pkg.train"}, {}),
    ("python ~/t.py --out $HOME/x", {"trainer": "/home/me/t.py", "args": ["--out", "{env:HOME}/x"]}, {}),
    ("python $SLURM_SUBMIT_DIR/t.py $SCRATCH/x", {"trainer": "t.py", "args": ["{env:SCRATCH}/x"]}, {}),
    ('python t.py --a 1 "$@"', {"args": ["--a", "1"]}, {}),
    ("python $S/t.py", {"trainer": "{env:S}/t.py"}, {}),
    (
        "srun bash -c 'cd /w && python t.py --layers=[1,2]\nls x'",
        {"trainer": "t.py", "args": ["--layers=[1,2]"]},
        {"setup_per_task": ["cd /w || exit"]},
    ),
    (
        "python -m torch.distributed.launch --nproc_per_node=2 t.py",
        {"mode": "single", "trainer": "torch.distributed.launch", "args": ["--nproc_per_node=2", "t.py"]},
        {},
    ),
    (
        "apptainer exec --pwd /y --env A=1,B=$S i.sif python t.py",
        {"env": {"A": "1", "B": "${S}"}},
        {"setup_per_task": ['cd "/y" || exit']},
    ),
    (
        "export PYTHONPATH=$(pwd)\nuv run python t.py",
        {},
        {"setup_after_runtime": ["export PYTHONPATH=$(pwd)"]},
    ),
    (
        "torchrun --nproc_per_node=$N t.py",
        {"trainer": "torch.distributed.run"},
        {"setup": ["argument_1=(--nproc_per_node=$N)"]},
    ),
    ("torchpack dist-run -np 1 python t.py", {"trainer": "t.py"}, {"runtime": "prefix"}),
    ("srun --output=$S/%j.out python t.py", {"trainer": "t.py"}, {}),
    ("uv run python t.py", {"trainer": "t.py"}, {"runtimes": {"uv": {"project": "."}}}),
    ("cd $S/..\nuv run python t.py", {}, {"runtimes": {"uv": {"project": "${S}/.."}}, "setup": ["cd $S/.."]}),
    (': "${N:=4}"\nM=${M:-$N}\npython t.py $M ${K:-5}', {"args": ["4", "5"]}, {}),
    ("srun --label --cpu-bind=cores python t.py", {}, {"step": {"label": "true", "cpu-bind": "cores"}}),
    ("srun --auto-resume=1 python t.py", {}, {"plugin_options": ["auto-resume="]}),
    ("srun gssr-record -v python t.py", {"trainer": "t.py"}, {"runtime": "prefix"}),
    ("eval python t.py --n 1", {"trainer": "t.py", "args": ["--n", "1"]}, {"runtimes": None}),
    ("eval poetry run python t.py", {}, {"runtimes": {"prefix": {"command": ["poetry", "run"]}}}),
    ("srun poetry run python t.py", {"trainer": "t.py"}, {"runtime": "prefix"}),
    ("srun pixi run -e gpu python t.py", {"trainer": "t.py"}, {"runtime": "prefix"}),
    (
        "module use /apps\nml cuda\npython t.py",
        {},
        {"modules": ["use /apps", "cuda"], "module_start": "keep"},
    ),
    ("module load a\nml purge\nml b\npython t.py", {}, {"modules": ["b"], "module_start": "purge"}),
    ("module reset\npython t.py", {}, {"module_start": "reset", "modules": None}),
    (
        "srun bash -c 'export RANK=$SLURM_PROCID; python t.py --r $RANK'",
        {"args": ["--r", "@SLURM_PROCID@"]},
        {},
    ),
    (
        "srun --environment=e bash -c '. v/bin/activate\ncd x\necho hi\npython t.py'",
        {"trainer": "t.py"},
        {"setup_per_task": [". v/bin/activate", "cd x"], "runtime": "edf"},
    ),
    (
        "cd /w\napptainer exec --nv --pwd /w --env A=$S/a i.sif python t.py",
        {"env": {"A": "${S}/a"}},
        {"runtime": "apptainer", "setup": ["cd /w"]},
    ),
    ("python t.py --n $SLURM_NNODES", {"args": ["--n", "1"]}, {}),
    ("export A=1 B='x y'\npython t.py", {"env": {"A": "1", "B": "x y"}}, {}),
    ("A=1 python t.py", {"env": {"A": "1"}}, {}),
    ("export PYTHONPATH=/src\npython t.py", {"env": {"PYTHONPATH": "/src"}}, {}),
    ("module load a b\npython t.py", {}, {"modules": ["a", "b"]}),
    ("module load a; source v/bin/activate; python t.py", {}, {"modules": ["a"], "runtime": "venv"}),
    ("source $HOME/v/bin/activate\npython t.py", {}, {"runtimes": {"venv": {"path": "${HOME}/v"}}}),
    ("source v/bin/activate\npython t.py", {}, {"runtimes": {"venv": {"path": "v"}}}),
    (
        "source /opt/c/bin/activate e\npython t.py",
        {},
        {"runtimes": {"conda": {"root": "/opt/c", "env": "e"}}},
    ),
    (
        "source ~/c/etc/profile.d/conda.sh\nconda activate e\npython t.py",
        {},
        {"runtimes": {"conda": {"root": "${HOME}/c", "env": "e"}}},
    ),
    (
        "torchrun --standalone --nproc_per_node=4 --max_restarts=3 t.py",
        {"mode": "ddp", "launcher": "torchrun", "nproc_per_node": 4, "launcher_args": ["--max-restarts=3"]},
        {},
    ),
    (
        'R="$PWD/ranks-$SLURM_JOB_ID"\nmkdir -p $R\ntorchrun --nproc_per_node=4 --log_dir "$R" --tee 3 t.py',
        {"launcher": "torchrun", "launcher_args": ["--log-dir={env:R}", "--tee=3"]},
        {"setup": ['R="$PWD/ranks-$SLURM_JOB_ID"', "mkdir -p $R"]},
    ),
    ("srun bash -c 'export RANK=$SLURM_PROCID; exec python t.py'", {"trainer": "t.py"}, {}),
    ("python t.py 2>&1 | tee log", {"trainer": "t.py"}, {}),
    ("CMD='srun python t.py | tee log'\neval $CMD", {"trainer": "t.py"}, {}),
    ("python t.py && echo done", {"trainer": "t.py"}, {}),
    ("python t.py\nls -l x\nuname -a\nscontrol show job 1", {"trainer": "t.py"}, {}),
    ("~/venv/bin/python t.py", {"trainer": "t.py"}, {"runtimes": {"venv": {"path": "${HOME}/venv"}}}),
    (
        "accelerate launch --num_processes 2 t.py --a 1",
        {
            "mode": "single",
            "trainer": "accelerate.commands.launch",
            "args": ["--num_processes", "2", "t.py", "--a", "1"],
        },
        {},
    ),
    ("deepspeed t.py --a", {"trainer": "deepspeed.launcher.runner", "args": ["t.py", "--a"]}, {}),
    (
        "apptainer exec --nv -B /data,/x:/y i.sif python t.py",
        {"mode": "single"},
        {"runtimes": {"apptainer": {"image": "i.sif", "binds": ["/data", "/x:/y"]}}},
    ),
    (
        "srun --container-image=/i.sqsh --container-workdir=/w --container-mounts=/a:/w python /w/t.py",
        {"trainer": "./t.py"},
        {"runtimes": {"enroot": {"image": "/i.sqsh", "workdir": "/w", "mounts": ["/a:/w"]}}},
    ),
    (
        "I=$S/i.sqsh\nsrun --container-image=$I --container-mount-home --no-container-remap-root python /t.py",
        {"trainer": "/t.py"},
        {"runtimes": {"enroot": {"image": "${S}/i.sqsh", "mounts": ["${HOME}"], "workdir": "image"}}},
    ),
    (  # without the ./ pyxis would look for a registry
        "srun --container-image=./i.sqsh python t.py",
        {"trainer": "t.py"},
        {"runtimes": {"enroot": {"image": "./i.sqsh", "workdir": "image"}}},
    ),
    ("srun -c 8 python t.py", {"trainer": "t.py"}, {"step": {"cpus-per-task": "8"}}),
    ("srun -c $SLURM_CPUS_PER_TASK python t.py", {"trainer": "t.py"}, {"step": None}),
    (
        "python -W ignore -Wdefault::FutureWarning -u t.py",
        {"env": {"PYTHONWARNINGS": "ignore,default::FutureWarning"}},
        {},
    ),
    (
        'apptainer exec --env SLURM_NNODES="$SLURM_NNODES" --env A=1 i.sif python t.py',
        {"env": {"A": "1"}},
        {"runtimes": {"apptainer": {"image": "i.sif"}}},
    ),
]


def test_what_is_understood() -> None:
    def check(body: str, keys: dict[str, Any], facts: dict[str, Any]) -> None:
        adoption = of_body(body)
        assert {key: job(adoption).get(key) for key in keys} == keys
        assert {key: profile(adoption).get(key) for key in facts} == facts
        assert facts.get("setup") == profile(adoption).get("setup")

    hold(check, UNDERSTOOD)


@pytest.mark.parametrize(
    "body",
    [
        'srun bash -c "python t.py --d $SLURM_STEP_GPUS"',
        'CMD="python t.py --d $SLURM_STEP_GPUS"\nsrun bash -c "$CMD"',
        'srun bash -c "python t.py --d ${SLURM_STEP_GPUS}"',
    ],
)
def test_a_value_of_the_batch_script_stays_the_value_of_the_batch_script(body: str) -> None:
    adoption = of_body(body)
    assert not adoption.lost
    assert "SLURM_STEP_GPUS" in str(job(adoption))


LOST = [  # a body, the line, and the reason
    ("python a.py &\npython b.py &\nwait", 5, "another training at the same time"),
    ("for i in 1 2; do\npython t.py --seed $i\ndone", 5, "a loop"),
    ("if true; then python t.py; fi", 5, "a branch"),
    ("[ -d /w ] && python t.py", 5, "a branch"),
    ("cd /w && python t.py &\nwait", 5, "a branch"),
    ('eval "cd /w; python t.py"', 5, "eval with more"),
    ("run() { python t.py; }\nrun", 5, "the function run"),
    ("mpirun -np 4 python t.py", 5, "write srun for it"),
    ("uv run --with x python t.py", 5, "uv sync --with prepares"),
    ("numactl -N0 python t.py", 5, "--cpu-bind"),
    ("[ -d x ] && A=y || A=$B\nL=(--a $A)\nA=z$B\npython t.py ${L[@]}", 8, "known only when the job runs"),
    ("srun bash -c 'X=$(nproc)\npython t.py $X'", 5, "a value that is known only when the job runs"),
    (
        "echo $SLURM_STEP_GPUS\nsrun bash -c 'python t.py --d $SLURM_STEP_GPUS'",
        6,
        "known only when the job runs",
    ),
    (
        "echo $SLURM_STEP_GPUS \"on $SLURM_STEP_GPUS\"\nsrun bash -c 'python t.py $SLURM_STEP_GPUS'",
        6,
        "known only when",
    ),
    (
        'srun bash -c "echo $SLURM_STEP_GPUS_; python t.py \\$SLURM_STEP_GPUS"',
        5,
        "known only when the job runs",
    ),
    (
        "srun bash -c 'X=$(nproc); python t.py $X' \"of $XS\"",
        5,
        "a value that is known only when the job runs",
    ),
    ("srun --cpu-bind=$B python t.py", 5, "--cpu-bind of srun: its value"),
    ("torchrun --nproc_per_node=4 --log_dir $! t.py", 5, "--log-dir of torchrun"),
    ("srun bash -c 'python t.py; cp a b'", 5, "a command after the launch"),
    ("apptainer exec --env LD_LIBRARY_PATH=/x i.sif python t.py", 5, "export it before the launch"),
    ("apptainer exec --pwd $Y i.sif python t.py", 5, "--pwd"),
    ("python t.py < data", 5, "into the trainer"),
    ("timeout 1h python t.py", 5, "timeout around"),
    ("python3.11 t.py", 5, "python3.11"),
    ("apptainer exec i.sif /opt/conda/bin/python t.py", 5, "of the image"),
    ("trap 'scontrol requeue $SLURM_JOB_ID' USR1\npython t.py &\nwait", 6, "trap"),
    ("srun python $*", 5, "the trainer's path is known only in the task"),
    ("tune run --nproc_per_node 2 full_finetune_distributed", 5, "start the trainer itself"),
    (
        "srun --container-image=/i.sqsh --container-workdir=/w --container-name=x python t.py",
        5,
        "--container-name",
    ),
    ("srun --relative=1 python t.py", 5, "--relative"),
    ("awk -F'\t' 1 x\npython t.py", 5, "a tab"),
    ("builtin python t.py", 5, "not a Python program"),
    ("srun eval python t.py", 5, "not a Python program"),
    ("eval python t.py '$X'", 5, "not a Python program"),
    ("./simulate", 5, "not a Python program"),
    ("python - <<E\n1\nE", 5, "from a string or the input"),
    ("bash train.sh", 5, "train.sh is started by bash, and not read"),
    ("sbatch a.sh", 5, "it submits other scripts"),
    ("echo", 5, "it starts no Python program"),
    ("python t.py $!", 5, "known only when the job runs"),
    ("die() {\n    echo $1\n}\ncd /w || die no\npython t.py", 6, "its own function die"),
]


def test_what_has_no_place_is_reported_at_its_line() -> None:
    def check(body: str, line: int, what: str) -> None:
        adoption = of_body(body)
        rows = [row for row in adoption.lost if what in row.reason]
        assert rows, [row.reason for row in adoption.lost]
        assert adoption.lines[rows[0].lines[0]] == "lost"
        assert line in rows[0].lines

    hold(check, LOST)


@pytest.mark.parametrize(
    "body",
    [
        "export CODE_DIR=/x\nls $CODE_DIR\ntorchrun t.py",
        "python t.py --out $RUN_DIR",
    ],
)
def test_a_variable_that_the_new_script_sets_as_well(body: str) -> None:
    assert "the new script sets" in of_body(body).lost[0].reason


def test_a_cd_that_fails_does_not_train_elsewhere(tmp_path: Path) -> None:
    script = of_body("cd no-folder && srun python t.py").rendered
    ended = ran(script, tmp_path, srun="echo trained")
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    assert "no-folder" in ended.stderr


def test_a_script_of_another_scheduler() -> None:
    for name, directives in {
        "PBS": "#PBS -q prod\n#PBS -l select=1",
        "LSF": "#BSUB -J x\n#BSUB -W 30",
        "Flux": "#flux: -N 2\n# flux: --time-limit=1h",
        "Grid Engine": "#$ -N x\n#$ -pe smp 4",
        "Cobalt": "#COBALT -n 2\n#COBALT -t 30",
    }.items():
        adoption = adopted(f"#!/bin/bash\n{directives}\npython t.py\n")
        assert adoption.lost[0].reason == f"an option of {name}: write it as #SBATCH", name
        assert adoption.lost[0].lines == [2, 3]
        fix = refusal(adoption).problems[0].fix
        assert fix is not None
        assert fix.endswith(f"submit the script as it is where {name} runs")
        assert not adopted(f"#!/bin/bash\n#SBATCH --nodes=1\n{directives}\npython t.py\n").scheduler
        assert not adopted(f"#!/bin/bash\ncat >job <<'E'\n{directives}\nE\npython t.py\n").scheduler
    assert not of_body("#$HOME is here\n# flux is not used\npython t.py").scheduler


def test_threads_that_the_old_script_did_not_set() -> None:
    """A single process takes all CPUs, which the new script sets as well; torchrun sets 1 for several."""
    for body, noted in (("python t.py", True), ("export OMP_NUM_THREADS=4\npython t.py", False)):
        notes = of_body(body, "--cpus-per-task=8").notes
        assert any(note.startswith("OMP_NUM_THREADS is 8 ") for note in notes) is noted, notes
    for body, threads in (("", "1"), ("export OMP_NUM_THREADS=4\n", "4")):
        adoption = of_body(f"{body}torchrun --nproc_per_node=4 t.py", "--cpus-per-task=8")
        assert f"OMP_NUM_THREADS={threads}" in adoption.rendered
        assert any(note.startswith("env sets OMP_NUM_THREADS to 1, as") for note in adoption.notes) is (
            body == ""
        )


@pytest.mark.parametrize(("body", "value"), [("", ""), ("export PYTHONNOUSERSITE=1\n", "1")])
def test_packages_in_the_home_folder_are_found_as_before(tmp_path: Path, body: str, value: str) -> None:
    adoption = of_body(f"{body}srun python t.py")
    ended = ran(adoption.rendered, tmp_path, srun='echo "[$PYTHONNOUSERSITE]"')
    assert (ended.stdout, ended.stderr) == (f"[{value}]\n", "")


def test_a_number_of_gpus_that_slurm_does_not_set_is_that_of_the_gpus() -> None:
    """SLURM_GPUS_PER_NODE is empty under --gres, and torchrun refuses an empty number."""
    for gpus in ("--gres=gpu:4", "--gpus-per-node=a100:4"):
        body = "srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=$SLURM_GPUS_PER_NODE --node_rank=$SLURM_NODEID t.py"
        adoption = adopted(f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 {gpus} --time=10\n{body}\n")
        keys = job(adoption)
        assert (keys["trainer"], keys["launcher"], keys["nproc_per_node"]) == ("t.py", "torchrun", 4)
        assert adoption.lines[3] == "mended"
        assert not adoption.remaining


@pytest.mark.parametrize(
    ("file", "name"), [("my job.sh", "'my job.sh'"), ("$(a);b.sh", "'$(a);b.sh'"), ("<stdin>", "-")]
)
@pytest.mark.parametrize(
    ("text", "command"), [("#SBATCH --nodes=none\npython t.py\n", "sbatchgen lint"), ("if\n", "bash -n")]
)
def test_a_command_to_paste_quotes_the_name_of_the_script(
    text: str, command: str, file: str, name: str
) -> None:
    with pytest.raises(DocumentError) as error:
        adopt(f"#!/bin/bash\n{text}", file=file, user={}, day="2026-01-01")
    assert {problem.fix for problem in error.value.problems} == {f"{command} {name}"}


def test_a_rendered_script_names_its_job() -> None:
    text = (FIXTURES.parent / "golden/ddp-msu.sh").read_text()
    with pytest.raises(DocumentError) as error:
        adopted(text)
    assert [(problem.at, problem.fix) for problem in error.value.problems] == [
        ("old.slurm:2", "sbatchgen render ddp")
    ]


@pytest.mark.parametrize(
    ("directive", "asks", "outcome"),
    [
        ("--time=24", "#SBATCH --time=0-00:24:00", "mended"),
        ("--time=24:00", "#SBATCH --time=0-00:24:00", "mended"),
        ("--quotatype=spot", "#SBATCH --quotatype=spot", "understood"),
        ("--requeue=expedite", "#SBATCH --requeue=expedite", "understood"),
        ("--no-requeue", "#SBATCH --no-requeue", "understood"),
        ("--output=$HOME/x.out", "", "mended"),
    ],
)
def test_a_directive_is_what_slurm_reads_today(directive: str, asks: str, outcome: str) -> None:
    adoption = adopted(f"#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1\n#SBATCH {directive}\npython t.py\n")
    assert not adoption.lost
    assert adoption.lines[3] == outcome
    assert asks in adoption.rendered
    assert asks or "--output" not in adoption.rendered


def test_what_slurm_ignores_stays_out() -> None:
    adoption = of_body("hostname\n#SBATCH --nodes=4\n# SBATCH --mem=4G\npython t.py")
    assert (adoption.lines[6], adoption.lines[7]) == ("mended", "dropped")
    assert "--nodes=1\n" in adoption.rendered
    assert "--mem" not in adoption.rendered


def test_tasks_that_start_nothing_give_their_cpus_to_the_one_that_does() -> None:
    text = "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=4 -c 8 --gpus-per-node=4 -t 1:0:0\n"
    text += "torchrun --nnodes=2 --nproc_per_node=4 t.py\n"
    adoption = adopted(text)
    assert not adoption.lost
    assert adoption.lines[2] == "mended"
    assert "--ntasks-per-node=1\n#SBATCH --cpus-per-task=32\n" in adoption.rendered


def test_a_secret_is_not_copied() -> None:
    adoption = of_body("export HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789\npython t.py")
    assert job(adoption)["env"] == {"HF_TOKEN": None}
    assert "hf_AbCd" not in adoption.job + adoption.profile + "".join(
        row.reason for row in adoption.rows if "SB" not in row.reason
    )
    assert adoption.lines[5] == "mended"


HYPERPOD = """AUTO=""
if [ -d /opt/x ]; then AUTO="--auto-resume=1"; fi
if [ -n "$IMAGE" ]; then declare -a ARGS=(--container-image $IMAGE); fi
srun $AUTO "${ARGS[@]}" python t.py
"""


def test_options_of_srun_under_a_condition_are_left_out_and_named() -> None:
    adoption = of_body(HYPERPOD)
    assert "step" not in profile(adoption)
    dropped = [
        row.reason.partition("; it would be: ")[2] for row in adoption.rows if "would be" in row.reason
    ]
    assert dropped == ["--auto-resume=1", "--container-image $IMAGE"]


@pytest.mark.parametrize(
    "condition",
    [
        'if [ -z "$A" ]; then A=--label; fi',  # which holds
        "if true; then A=--label; else A=--exclusive; fi",
        "for x in 1 2; do A=--label; done",
    ],
)
def test_options_that_are_given_always_are_not_left_out(condition: str) -> None:
    adoption = of_body(f"{condition}\nsrun $A python t.py")
    assert adoption.lost


def test_a_default_is_named_as_exported_variables_do_not_change_it() -> None:
    note = of_body("python t.py --n ${N:-4}").notes[0]
    assert note == "the job always has the defaults of the script, whatever you export: N is 4"


def test_arguments_that_bash_splits_are_split_as_before() -> None:
    adoption = of_body('python t.py --a $A --b "$B" --c $SLURM_JOB_ID --d=$D --e $E/x')
    parts = ["{env:argument_1[@]}", "--b", "{env:B}", "--c", "{env:SLURM_JOB_ID}", "{env:argument_2[@]}"]
    assert job(adoption)["args"] == ["--a", *parts, "--e", "{env:E}/x"]
    assert profile(adoption)["setup"] == ["argument_1=($A)", "argument_2=(--d=$D)"]


def test_a_default_that_is_set_where_it_is_used_stays() -> None:
    adoption = of_body("A=${B:=x}\npython t.py $B")
    assert job(adoption)["args"] == ["{env:argument_1[@]}"]
    assert profile(adoption)["setup"] == ["A=${B:=x}", "argument_1=($B)"]


ON_TWO_NODES = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node={tasks} --time=10 {gpus}
MAIN=$(hostname -i)
export MASTER_ADDR=$MAIN
srun {command}
"""


def test_accelerate_on_several_nodes_knows_its_node() -> None:
    command = 'bash -c "accelerate launch --machine_rank=\\$SLURM_NODEID --main_process_ip=$MAIN t.py"'
    adoption = adopted(ON_TWO_NODES.format(tasks=1, gpus="--gpus-per-node=4", command=command))
    keys = job(adoption)
    assert (keys["launcher"], keys["nproc_per_node"]) == ("srun", 1)
    assert keys["args"] == ["--machine_rank=@SLURM_NODEID@", "--main_process_ip={env:argument_1}", "t.py"]
    assert profile(adoption)["setup_per_task"] == ['set -- "${@//@SLURM_NODEID@/$SLURM_NODEID}"']
    assert profile(adoption)["master_addr"] == "hostname -i"


@pytest.mark.parametrize(
    ("gpus", "step", "visibility"),
    [
        ("--gpus-per-task=1", "", "task"),
        ("--gpus-per-task=1", "--gpu-bind=none", None),
        ("--gpus-per-task=1 --gpu-bind=none", "", None),
        ("--gpus-per-node=2", "", None),
        ("--gpus-per-node=2", "--gpu-bind=closest", "task"),
    ],
)
def test_the_gpus_that_a_task_sees_stay(gpus: str, step: str, visibility: str | None) -> None:
    adoption = adopted(ON_TWO_NODES.format(tasks=2, gpus=gpus, command=f"{step} python t.py"))
    assert profile(adoption).get("gpu_visibility") == visibility


def test_cpus_per_gpu_stay() -> None:
    adoption = of_body("python t.py", "--gpus-per-node=2", "--cpus-per-gpu=4")
    assert job(adoption)["extra_options"] == {"cpus-per-gpu": "4"}


SIDE_BY_SIDE = """
source ~/env/bin/activate
srun --nodes=1 --ntasks=1 --exact python server.py --port 8000 > server.log 2>&1 &
srun --nodes=2 --ntasks=2 -c 8 python train.py --data "$DATA" &
wait
"""


@pytest.mark.proof
def test_steps_side_by_side_are_programs_that_start_the_same(tmp_path: Path) -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
    old = f"{head}#SBATCH --cpus-per-task=8\n#SBATCH --time=1:00:00\n{SIDE_BY_SIDE}"
    adoption = adopted(old)
    assert job(adoption)["programs"] == {
        "server": {"command": ["python", "server.py", "--port", "8000"], "nodes": 1},
        "train": {"command": ["python", "train.py", "--data", "{env:DATA}"], "nodes": 2, "cpus": 8},
    }
    assert "a program that fails ends the job" in "".join(adoption.notes)
    starts = []
    for text in (old, adoption.rendered):
        done = plan_of(script_of("job.slurm", text, profile=None), os.environ | {"DATA": "data"}, tmp_path)
        starts.append(sorted([len(step.processes), *step.processes[0].argv[1:]] for step in done.steps))
        assert not done.result.status
    assert starts[0] == starts[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--nodes=2 --ntasks=2", "--nodes=1 --ntasks=1"),  # a node of the job is left
        ("--ntasks=2", "--ntasks=4"),
        ("train.py", "train.py | tee log"),
        ("wait\n", "wait -n\n"),
        ("wait\n", "wait\npython evaluate.py\n"),
        ("--exact", "--relative=1"),
        ("source", "trap 'kill 0' EXIT\nsource"),
        ("source ~", "cd /work\nsource ~"),
    ],
)
def test_steps_side_by_side_are_no_programs_where_it_is_not_certain(old: str, new: str) -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=1\n#SBATCH --time=1:00:00\n"
    assert SIDE_BY_SIDE.count(old) == 1
    adoption = adopted(head + SIDE_BY_SIDE.replace(old, new))
    assert adoption.lost
    assert "programs:" not in adoption.job


WITH_A_LAST_STEP = """
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
srun --nodes=1 --ntasks=1 -w "$head" python server.py --port 8000 > server.log 2>&1 &
SERVER=$!
sleep 60
srun --nodes=2 --ntasks=2 --nodelist="${nodes[1]},${nodes[2]}" python train.py --url "http://$head:8000"
kill $SERVER
"""


def test_a_server_a_sleep_and_a_last_step_are_programs_of_which_one_is_ready() -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
    head += "#SBATCH --time=1:00:00\n"
    adoption = adopted(head + WITH_A_LAST_STEP)
    assert not adoption.lost
    assert job(adoption)["programs"] == {
        "server": {
            "command": ["python", "server.py", "--port", "8000"], "nodes": 1, "ready": {"port": "8000"},
        },
        "train": {
            "command": ["python", "train.py", "--url", "http://{server.host}:8000"],
            "nodes": 2, "main": True, "needs": ["server"],
        },
    }  # fmt: skip
    assert "not after 60 s" in "".join(adoption.notes)
    without = adopted(head + WITH_A_LAST_STEP.replace(" --port 8000", ""))
    words = ["bash", "-c", 'sleep 60; exec "$@"', "train", "python", "train.py"]
    assert job(without)["programs"]["train"]["command"][:6] == words
    assert "ready" not in job(without)["programs"]["server"]


def test_the_nodes_that_a_script_names_without_quotes_are_hosts_of_programs() -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n#SBATCH --time=1:00:00\n"
    text = """nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
srun -w ${nodes[0]} --nodes=1 --ntasks=1 python serve.py 8000 &
sleep 60
srun -w ${nodes[1]},${nodes[2]} --nodes=2 --ntasks=2 python train.py --head=${nodes[1]}:29500 --url http://${nodes[0]}:8000
"""
    adoption = adopted(head + text)
    assert not adoption.lost
    command = job(adoption)["programs"]["train"]["command"]
    assert command[-3:] == ["--head={train.host}:29500", "--url", "http://{serve.host}:8000"]
    another = adopted(
        head + text.replace("--head=${nodes[1]}", "--head=${nodes[2]}")
    )  # which no program names
    assert "programs:" not in another.job


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sleep 60\n", "sleep 60\npython prepare.py\n"),
        ("kill $SERVER\n", "python evaluate.py\n"),
        ("http://$head:8000", "http://${nodes[2]}:8000"),  # of a node that another program may have
    ],
)
def test_a_last_step_is_no_program_where_it_is_not_certain(old: str, new: str) -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=1\n#SBATCH --time=1:00:00\n"
    assert WITH_A_LAST_STEP.count(old) == 1
    adoption = adopted(head + WITH_A_LAST_STEP.replace(old, new))
    assert "programs:" not in adoption.job


def test_a_job_of_no_nodes_is_reported() -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=0 --ntasks=1 --time=1:00:00\nsrun python t.py\n"
    assert any("how many nodes" in row.reason for row in adopted(text).lost)


def test_an_option_for_sbatch_itself_has_no_place_in_a_job() -> None:
    rows = of_body("python t.py", "--quiet").lost
    assert [(row.lines, row.reason) for row in rows] == [([5], "--quiet does not belong in a script")]


@pytest.mark.parametrize(
    "launch",
    ["env A=1", "srun env A=1", "env env A=1", "nice env A=1", "A=0 env A=1", "env 'A=1'"],
)
def test_a_variable_that_env_sets_is_in_the_job(launch: str) -> None:
    adoption = of_body(f"{launch} python t.py")
    assert job(adoption)["env"]["A"] == "1"


def values_of_trainer(body: str, name: str, folder: Path) -> set[str]:
    """The values of a variable that t.py gets: from the script as it is, and from the adopted one."""
    text = f"#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=1 --time=1:00:00\n{body}"
    adoption = adopted(text)
    assert not adoption.lost, adoption.lost
    shows = f'[[ $* != *t.py* ]] || echo "<${{{name}-unset}}>"'
    programs = {
        "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
        **dict.fromkeys(("python", "python3"), shows),
    }
    printed = [ran(script, folder, **programs).stdout for script in (text, adoption.rendered)]
    values = [re.findall("<(.*)>", shown) for shown in printed]
    assert [len(matches) for matches in values] == [1, 1], adoption.rendered
    return {*values[0], *values[1]}


@pytest.mark.parametrize(
    "line",
    [
        "A=$X env A=2 python t.py",
        "A=$X A=2 python t.py",
        "A=$X B=1 srun env C=3 env A=2 python t.py",
        "A=$X env A=$X A=2 python t.py",
        "A=$X bash -c 'A=2 python t.py'",
        "A=1 bash -c 'A=$X env A=2 python t.py'",
        "srun bash -c 'export A=$X; env A=2 python t.py'",
        "A=2 nohup python t.py",
        "export A=5\nA=2 python t.py",
        "export A=5\nenv A=2 python t.py",
        "export A=5\nexport B=$A\nmkdir x$A\nA=2 srun python t.py",
        "export A=$HOSTNAME\nenv A=2 python t.py",
        "B=2 A=$B python t.py",
        "B=1\nB=2 A=$B srun python t.py",
    ],
)
def test_the_innermost_value_of_a_variable_counts(line: str, tmp_path: Path) -> None:
    """The trainer prints what it gets, in the old script and in the new one."""
    assert values_of_trainer(f"X=outer\n{line}\n", "A", tmp_path) == {"2"}


@pytest.mark.parametrize(
    "line",
    [
        "A=2 A=$X python t.py",
        "A=2 srun bash -c 'A=$X python t.py'",
        "export A=5\nA=$X python t.py",
        "export A=5\nA=2 srun bash -c 'A=$X python t.py'",
    ],
)
def test_the_innermost_value_counts_where_only_the_job_knows_it(line: str, tmp_path: Path) -> None:
    assert values_of_trainer(f"export X=${{SLURM_JOB_ID}}1\n{line}\n", "A", tmp_path) == {"71"}


@pytest.mark.parametrize(
    "line",
    [
        'E=(A=2 B=1)\nenv "${E[@]}" python t.py',
        'E=(B=1)\nE+=(A=2)\nenv "${E[@]}" python t.py',
        'E=()\nenv "${E[@]}" A=2 python t.py',
        'E=(env A=2)\n"${E[@]}" python t.py',
        'E=(-u B A=2)\nenv "${E[@]}" python t.py',
        'C=(python t.py --a 1)\nenv A=2 "${C[@]}"',
        "E='A=2 B=1'\nenv $E python t.py",
        "E='B=1 A=2'\nenv $E python t.py",
    ],
)
def test_variables_of_env_in_an_array_are_in_the_job(line: str, tmp_path: Path) -> None:
    assert values_of_trainer(f"{line}\n", "A", tmp_path) == {"2"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('T=(timeout 10m)\n"${T[@]}" python t.py', "timeout around the trainer: --time ends the job"),
        ('T=(-k 10 10m)\ntimeout "${T[@]}" python t.py', "timeout around the trainer: --time ends the job"),
        ('T=(timeout 10m env A=2)\n"${T[@]}" python t.py', "timeout around the trainer: --time ends the job"),
        ('E=(A=$SLURM_JOB_ID B=1)\nenv "${E[@]}" python t.py', "the launch sets it to a value"),
        ('[ -d x ] && E=(A=1)\nenv "${E[@]}" python t.py', "starts no Python program"),
    ],
)
def test_what_an_array_starts_and_no_job_can_have_is_lost(line: str, said: str) -> None:
    assert said in of_body(line).lost[0].reason


def test_a_secret_that_the_launch_replaces_is_dropped(tmp_path: Path) -> None:
    value = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
    body = f"export HF_TOKEN={value}\nHF_TOKEN=2 python t.py\n"
    assert values_of_trainer(body, "HF_TOKEN", tmp_path) == {"2"}
    adoption = of_body(body)
    assert value not in adoption.job + adoption.profile


@pytest.mark.parametrize("command", ["env -u X A=1", "env -i A=1"])
def test_a_variable_after_options_of_env_stays_in_its_command(command: str) -> None:
    adoption = of_body(f"{command} python t.py")
    assert profile(adoption)["runtimes"]["prefix"]["command"] == command.split()


def test_a_variable_of_env_with_an_unknown_value_is_lost() -> None:
    assert of_body("env A=$(date) python t.py").lost


@pytest.mark.parametrize("shell", ["bash -c 'A=1 python t.py'", "srun sh -c 'A=1 exec python t.py'"])
def test_a_variable_in_the_string_of_a_shell_is_in_the_job(shell: str) -> None:
    assert job(of_body(shell))["env"]["A"] == "1"


def test_a_variable_of_the_task_in_the_string_of_a_shell_is_set_in_each_task() -> None:
    adoption = of_body("srun sh -c 'A=1 B=$HOSTNAME/x python t.py'")
    assert job(adoption)["env"]["A"] == "1"
    assert profile(adoption)["setup_per_task"] == ["export B=$HOSTNAME/x"]
    assert of_body("bash -c 'PYTHONPATH=$S/x python t.py'").lost


def test_exec_in_the_string_of_a_shell_changes_nothing() -> None:
    adoption = of_body("bash -c 'cd src && exec python t.py'")
    assert profile(adoption)["setup_per_task"] == ["cd src || exit"]


def test_long_names_of_programs_are_cut_and_differ() -> None:
    long = "a_very_long_name_of_a_server_program_indeed.py"
    steps = f"srun -N1 -n1 python {long} &\n" * 2
    programs = job(of_body(f"{steps}wait", "--nodes=2", "--gpus-per-node=1"))["programs"]
    assert [*programs] == ["a-very-long-name-of-a-server-p", "a-very-long-name-of-a-server-2"]
