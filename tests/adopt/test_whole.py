"""Nothing of a script is lost silently: its own arguments, what follows the training, and why it is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.job_file import JobSpec
from tests.adopt.adopted import adopted, ran
from tests.conftest import Command

HEAD = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1 --gpus=1 --time=10\n"


def test_a_value_that_comes_from_where_the_job_is_submitted_is_no_text() -> None:
    """`null` in a job's env is text; an empty value is that of the shell."""
    adoption = adopted(HEAD + "export HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789\npython t.py\n")
    assert decode(adoption.job, JobSpec, name="old.yaml").value.env == {
        "HF_TOKEN": None,
        "PYTHONNOUSERSITE": "",
    }
    assert "null" not in adoption.rendered


def test_the_arguments_of_the_script_are_variables() -> None:
    adoption = adopted(HEAD + 'f() {\n    echo $1\n}\nA=$1\nls $A\npython t.py --a $A --b "$2" ${3:-x}\n')
    assert not adoption.lost
    keys = yaml.safe_load(adoption.job)
    assert keys["args"] == ["--a", "{env:argument_1[@]}", "--b", "{env:ARG2}", "x"]
    assert keys["env"] == {"ARG1": None, "ARG2": None, "PYTHONNOUSERSITE": ""}
    assert "    echo $1\n}\nA=${ARG1}\nls $A\n" in adoption.rendered
    assert "$1 is the variable ARG1 here: export it where you submit" in adoption.notes


@pytest.mark.parametrize(
    "line",
    ["shift", "[ $# -gt 1 ] || exit 1", 'for x in "$@"; do ls $x; done', 'echo "${@:?}"', "echo $# >n"],
)
def test_arguments_that_a_line_reads_in_another_way_are_named(line: str) -> None:
    adoption = adopted(f"{HEAD}{line}\nls $1\npython t.py\n")
    assert "the script's own arguments" in adoption.lost[0].reason


@pytest.mark.parametrize("line", ["echo $@", 'printf "%s\\n" "$*" >&2'])
def test_a_line_that_only_prints_the_arguments_is_dropped(line: str) -> None:
    adoption = adopted(f"{HEAD}{line}\npython t.py --epochs 3\n")
    assert not adoption.lost
    assert [row.reason for row in adoption.rows if row.outcome == "dropped"] == [
        "it only prints the script's own arguments"
    ]
    assert "$@" not in adoption.rendered
    assert yaml.safe_load(adoption.job)["args"] == ["--epochs", "3"]


RAY = """head=$(hostname)
srun -N1 -n1 -w "$head" ray start --head --block &
srun -N1 -n1 bash -c 'ray start --address "$head:6379" --block' &
python t.py
"""
SERVER = "srun -N1 -n1 python server.py &\npython t.py\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (RAY, "Ray runs on 2 nodes: write the command as a program of a job file, with preset: ray"),
        (
            "ray symmetric-run --address $(hostname):6379 -- python t.py\n",
            "Ray is not a Python program: write the command as a program of a job file, with preset: ray",
        ),
        (SERVER, "other programs also run on the 2 nodes: write each as a program of a job file"),
        (
            "python t.py\n",
            "the job has 2 nodes, and one process runs: write --nodes=1 if it needs no other node",
        ),
    ],
)
def test_one_process_on_two_nodes_says_what_to_write(body: str, said: str) -> None:
    lost = adopted(f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=10\n{body}").lost
    assert said in {row.reason for row in lost}


def test_tasks_for_each_gpu_are_written_in_another_way() -> None:
    """Slurm refuses --ntasks-per-gpu beside the --ntasks-per-node that a new job has."""
    head = "#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=4 --time=10 "
    (lost,) = adopted(f"{head}--ntasks-per-gpu=1\nsrun python t.py\n").lost
    what, _, words = lost.reason.partition(": write ")
    assert what == "--ntasks-per-gpu=1"
    adoption = adopted(f"{head}{words.removesuffix(' for it')}\nsrun python t.py\n")
    assert not adoption.lost
    assert "#SBATCH --ntasks-per-node=4\n" in adoption.rendered
    assert "#SBATCH --gpu-bind=single:1\n" in adoption.rendered


def test_a_variable_of_the_new_script_gets_another_name() -> None:
    adoption = adopted(HEAD + 'RUN_DIR=/x\nmkdir -p ${RUN_DIR}/a "$RUN_DIR/b"\npython t.py --out $RUN_DIR\n')
    assert not adoption.lost
    assert 'mkdir -p ${OLD_RUN_DIR}/a "${OLD_RUN_DIR}/b"\n' in adoption.rendered
    assert yaml.safe_load(adoption.job)["args"] == ["--out", "/x"]


def test_the_function_that_the_new_script_has_as_well_is_that_of_the_new_script(tmp_path: Path) -> None:
    """Setup can't define it again; another function of its name has to get another name."""
    rendered = adopted(HEAD + "python t.py\n").rendered
    own = re.search(r"(?ms)^die\(\) \{\n.*?^\}\n", rendered)
    assert own
    for function in (own[0], 'die() { echo "error: $*" >&2; exit 1; }\n'):
        adoption = adopted(f"{HEAD}{function}cd no-folder || die gone\npython t.py\n")
        assert not adoption.lost
        assert yaml.safe_load(adoption.profile)["setup"] == ["cd no-folder || die gone"]
        ended = ran(adoption.rendered, tmp_path, srun="echo trained")
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "error: gone\n" in ended.stderr
        assert "readonly" not in ended.stderr
        lost = adopted(f"{HEAD}{function.replace('error:', 'wrong:')}cd /w || die gone\npython t.py\n").lost
        assert "its own function die" in lost[0].reason


def test_a_job_with_gpus_of_tasks_says_its_nodes() -> None:
    """Without --ntasks, which becomes a number for each node, sbatch refuses --gpus-per-task alone."""
    options = "--ntasks=2 --ntasks-per-node=2 --gpus-per-task=1 --time=10"
    adoption = adopted(f"#!/bin/bash\n#SBATCH {options}\nsrun python t.py\n")
    assert not adoption.lost
    assert JobScript(file="job.slurm", text=adoption.rendered).sbatch.refusal is None
    assert "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=2\n" in adoption.rendered


AFTER = """python t.py
status=$?
if ((status == 0)); then
    echo "good $status"
fi
cp here there
echo done
"""


@pytest.mark.parametrize(
    ("before", "status", "printed"),
    [("", 0, "good 0\ncopied here\n"), ("", 3, "copied here\n"), ("set -e\n", 3, ""), ("", 143, "")],
)
def test_what_follows_the_training_runs_when_it_has_ended(
    tmp_path: Path, before: str, status: int, printed: str
) -> None:
    """With the status of the training in $?; not if Slurm ended the job, nor after a failure under set -e."""
    adoption = adopted(HEAD + before + AFTER)
    assert not adoption.lost
    programs = {"srun": f"exit {status}", "cp": 'echo "copied $1"'}
    ended = ran(adoption.rendered, tmp_path, **programs)
    assert (ended.returncode, ended.stdout) == (status, printed), ended.stderr


@pytest.mark.parametrize(
    ("lines", "trainer"),
    [
        (["python train.py", "cp a b", "python eval.py"], "train.py"),
        (["python train.py", "srun python -m tools.test --best"], "train.py"),
        (["python prepare.py", "torchrun main.py", "python main.py --evaluate"], "main.py"),
        (["python train.py", "python train.py --test-only"], "train.py"),
        (["srun python a.py", "python b.py"], "a.py"),
        (["python a.py", "python train.py --eval"], "train.py"),
        (["python test_env.py", "python t.py"], "t.py"),
        (["python make_train.py", "python predict.py"], "make_train.py"),
    ],
)
def test_the_training_is_the_trainer_and_what_follows_it_runs_after_it(
    tmp_path: Path, lines: list[str], trainer: str
) -> None:
    adoption = adopted(HEAD + "\n".join([*lines, ""]))
    assert not adoption.lost
    assert yaml.safe_load(adoption.job)["trainer"] == trainer
    programs = {**dict.fromkeys(("srun", "python", "torchrun"), 'echo "$*"'), "cp": ":"}
    printed = [
        ran(text, tmp_path, **programs).stdout for text in (HEAD + "\n".join(lines), adoption.rendered)
    ]
    order = [re.findall(r"[\w.]+\.py|tools\.\w+", text) for text in printed]
    assert order[0] == [word for word in order[1] if word not in ("task.py", "torchrun.py")]


def test_a_trap_of_the_script_runs_after_what_follows_the_training() -> None:
    old = "trap 'rm x' EXIT\ntrap 'rm -r tmp' EXIT\npython t.py\ncp a b\n"
    adoption = adopted(HEAD + old)
    assert not adoption.lost
    assert "\ncp a b\nfi\nrm -r tmp # the script's own trap\n}\n" in adoption.rendered
    for other in (old.replace("EXIT", "TERM"), f"{old}[ -f b ] || exit 1\nrm a\n", old.replace("'", '"$A')):
        assert "a trap of the script's own" in adopted(HEAD + other).lost[0].reason


def test_an_earlier_step_keeps_the_master_address_that_it_reads() -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --time=10\n"
    setup = "export MASTER_ADDR=$(hostname)\n"
    adoption = adopted(head + setup + "srun python a.py\nsrun python b.py\n")
    assert not adoption.lost
    assert setup + "srun python a.py\n" in adoption.rendered
    assert setup not in adopted(head + setup + "srun python b.py\n").rendered


SHOWS = "scontrol show job 1\nnvidia-smi\nenv\nhostname\ndate\nsacct\nsqueue\nseff 1\nsstat\nmodule list\nwhich python"


def test_what_only_shows_something_is_never_a_reason_to_refuse() -> None:
    adoption = adopted(f"{HEAD}{SHOWS}\npython t.py\n{SHOWS}\n")
    assert not adoption.lost
    assert {*adoption.lines.values()} == {"understood", "kept", "dropped"}


def test_singularity_stays_singularity() -> None:
    adoption = adopted(HEAD + "singularity exec --nv i.sif python t.py\n")
    assert not adoption.lost
    assert yaml.safe_load(adoption.profile)["runtimes"]["apptainer"]["command"] == "singularity"


def test_an_option_never_loses_its_value(folder: Path, command: Command) -> None:
    """Nothing can be left out of an argument."""
    Path("old.slurm").write_text(HEAD + "python t.py --output-path $! --num-workers 10\n")
    result = command("adopt", "old.slurm", "--partly")
    assert (result.status, result.out) == (3, "")
    assert (
        "error: no job can be made of the script: write out a value that is known only when the job runs: $!"
        in result.err
    )
    assert "  at:  old.slurm:3\n" in result.err


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("for i in 1 2; do python t.py --seed $i; done", "the training is started in a loop"),
        ("if [ -f a ]; then python t.py; else python u.py; fi", "the training is started in a branch"),
        ("python t.py --seed ${#}", "write out a value that is known only when the job runs"),
        ("julia t.jl", "julia is not a Python program"),
    ],
)
def test_a_script_that_is_no_job_is_told_why_and_can_be_submitted(
    folder: Path, command: Command, body: str, reason: str
) -> None:
    Path("old.slurm").write_text(f"{HEAD}{body}\n")
    result = command("adopt", "old.slurm")
    assert result.status == 3
    assert f"error: no job can be made of the script: {reason}" in result.err
    assert "fix: run the script as it is, with status and logs: sbatchgen submit old.slurm\n" in result.err
