"""The plan of a script: its processes, what it needs, and what is wrong with what it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.lab.plan import listing
from sbatchgen.lab.plan.dry_run import PROCESSES
from sbatchgen.lab.plan.missing import missing_paths
from sbatchgen.lab.plan.plan_output import plan_output
from sbatchgen.lab.plan.planning import may_hide_failures, read_inputs
from sbatchgen.lab.plan.rounds import rounds_of_loop
from tests.plan.plans import TWO_NODES, needs_sandbox, planned, said

pytestmark = needs_sandbox


def test_each_process_of_a_step_has_its_node_rank_words_and_gpus(tmp_path: Path) -> None:
    done, findings = planned(
        TWO_NODES + "srun bash -c 'python train.py --node_rank=$SLURM_PROCID'\n", tmp_path
    )
    (step,) = done.steps
    assert [(each.node, each.rank, each.argv, each.gpus) for each in step.processes] == [
        ("node1", 0, ("python", "train.py", "--node_rank=0"), (0, 1, 2, 3)),
        ("node2", 1, ("python", "train.py", "--node_rank=1"), (0, 1, 2, 3)),
    ]
    assert step.line == 5
    assert not said(findings)


def test_processes_that_differ_in_rank_only_are_shown_once(tmp_path: Path) -> None:
    text = (
        TWO_NODES.replace("node=1", "node=4")
        + "srun -n8 bash -c 'python t.py --rank $SLURM_PROCID --node=$SLURMD_NODENAME --epochs 1'\n"
    )
    shown = listing.as_text(planned(text, tmp_path)[0])
    assert "ranks 0-7 on node1 to node2" in shown
    assert "python t.py --rank {rank} --node={host} --epochs 1" in shown
    assert "--rank 5" in listing.as_text(planned(text, tmp_path)[0], rank=5)


def test_a_long_value_is_cut_with_a_mark_and_shown_whole_with_its_process(tmp_path: Path) -> None:
    done, _ = planned(f"export WORDS={'a' * 70}\nsrun python train.py\n", tmp_path)
    assert f"WORDS={'a' * 60}...\n" in listing.as_text(done)
    assert f"WORDS={'a' * 70}\n" in listing.as_text(done, rank=0)


def test_a_variable_of_slurm_is_needed_with_its_option(tmp_path: Path) -> None:
    done, _ = planned('srun python train.py "$SLURM_ARRAY_TASK_ID"\n', tmp_path)
    assert "variable SLURM_ARRAY_TASK_ID, of jobs with --array: --var" in listing.as_text(done)


def test_a_background_step_and_the_variables_of_a_process_are_named(tmp_path: Path) -> None:
    text = "export LR=0.1\nsrun python train.py &\nwait\n"
    (step,) = planned(text, tmp_path)[0].steps
    assert step.background
    assert step.processes[0].env["LR"] == "0.1"


@pytest.mark.proof
def test_steps_that_start_at_once_have_a_number_each(tmp_path: Path) -> None:
    text = "for run in {1..20}; do srun python train.py $run & done\nwait\n"
    done, _ = planned(text, tmp_path)
    assert {step.processes[0].env["SLURM_STEP_ID"] for step in done.steps} == {*map(str, range(20))}


def test_steps_in_the_background_get_the_gpus_and_nodes_that_are_left(tmp_path: Path) -> None:
    text = "#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4\n"
    text += (
        "for run in 1 2 3 4; do srun -N1 -n1 --exact --gpus-per-node=2 python train.py $run & done\nwait\n"
    )
    done, findings = planned(f"#!/bin/bash\n{text}srun -N1 -n1 python train.py last\n", tmp_path)
    places = [(process.node, process.gpus) for step in done.steps for process in step.processes]
    assert places[:4] == [("node1", (0, 1)), ("node2", (0, 1)), ("node1", (2, 3)), ("node2", (2, 3))]
    assert places[4][1] == (0, 1, 2, 3)
    assert not [what for what in said(findings) if "waits" in what]


def test_the_path_of_a_program_does_not_hide_the_gpus_of_a_step(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --ntasks=2 --gres=gpu:2\n"
    text += "srun -n1 --exact --gpus=1 $(command -v python) train.py &\n" * 2
    steps = planned(f"{text}wait\n", tmp_path)[0].steps
    assert [step.processes[0].gpus for step in steps] == [(0,), (1,)]


def test_a_task_without_the_variable_of_cuda_has_the_gpus_of_the_others(tmp_path: Path) -> None:
    text = f"{TWO_NODES}srun env -u CUDA_VISIBLE_DEVICES -u GPU_DEVICE_ORDINAL python train.py\n"
    (step,) = planned(text, tmp_path)[0].steps
    assert [process.gpus for process in step.processes] == [(0, 1, 2, 3)] * 2


def test_steps_of_a_loop_are_shown_as_one(tmp_path: Path) -> None:
    text = "for seed in {1..9}; do srun python train.py --seed=$seed $seed; done\nsrun python test.py\n"
    shown = listing.as_text(planned(text, tmp_path)[0])
    assert "line 2: srun, 9 steps of 1 process\n" in shown
    assert "python train.py --seed={1, 2 ... 9} {1, 2 ... 9}\n" in shown
    assert "line 3: srun, 1 process\n" in shown
    two = listing.as_text(planned("for seed in 1 2; do srun python train.py $seed; done\n", tmp_path)[0])
    assert two.count("line 2: srun, 1 process\n") == 2


def test_variables_that_many_processes_share_are_shown_once(tmp_path: Path) -> None:
    text = "export A=1 B=2 C=3 D=4\nsrun python a.py\nsrun python b.py\nE=5 srun python c.py\nA=0 srun python d.py\n"
    shown = listing.as_text(planned(text, tmp_path)[0])
    lines = [line.strip() for line in shown.splitlines() if "env:" in line]
    assert lines == [
        "env: A=1 B=2 C=3 D=4",
        "env: as above",
        "env: as above, and E=5",
        "env: A=0 B=2 C=3 D=4",
    ]


def test_scontrol_says_what_a_node_has(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=3 --gpus-per-node=2\n"
    text += "raw=$(scontrol show node node2 -o)\ncpus=${raw#*CPUTot=}\ngpus=${raw#*Gres=gpu:}\n"
    (step,) = planned(f"{text}srun -n1 python train.py ${{cpus%% *}} ${{gpus%% *}}\n", tmp_path)[0].steps
    assert step.processes[0].argv[2:] == ("3", "2")


def test_what_a_sourced_file_starts_has_the_line_of_its_call(tmp_path: Path) -> None:
    (tmp_path / "steps.sh").write_text("\n\n\nsrun python own.py\n")
    text = "run() {\n  srun python inner.py\n}\nrun\nsource ./steps.sh\nwait\nsrun python last.py\n"
    done, _ = planned(text, tmp_path)
    assert [step.line for step in done.steps] == [3, 6, 8]
    assert all(entry.line < 9 for entry in done.trace)


@pytest.mark.proof
def test_a_plan_that_ends_at_its_limit_says_how_many_steps_it_has(tmp_path: Path) -> None:
    text = "for i in {1..400}; do\n  for j in $(seq 5); do srun python train.py; done\ndone\n"
    done, findings = planned(text, tmp_path)
    (what,) = [what for what in said(findings) if "limit" in what]
    assert what.startswith("the plan shows the first 30 steps and ends at its limit: at least 1970 others")
    assert len(done.steps) == 30
    assert " and 1970 more at least that are not shown" in listing.headline(done)
    assert plan_output(done, findings)["steps_not_shown"] == 1970


@pytest.mark.proof
def test_a_plan_that_ends_at_its_limit_counts_what_comes_later(tmp_path: Path) -> None:
    text = "".join(f"python t{number}.py\n" for number in range(400))
    done, findings = planned(f"{text}if false; then python t.py; fi\nwait\n", tmp_path)
    (what,) = [what for what in said(findings) if "limit" in what]
    assert what.startswith("the plan shows the first 30 steps and ends at its limit: at least 370 others")
    assert plan_output(done, findings)["steps_not_shown"] == 370


@pytest.mark.parametrize(
    ("loop", "rounds"),
    [
        ("for i in a b c; do", 3),
        ("for i in {3..7}; do", 5),
        ("for seed in $(seq 200); do", 200),
        ("for seed in $(seq 10 19); do", 10),
        ("for ((i = 0; i < 100; i++)); do", 100),
        ("for ((i=1; i<=3; ++i)) ; do", 3),
        ("for file in $FILES; do", 1),
        ("for file in *.csv; do", 1),
        ("for i; do", 1),
        ("while read -r line; do", 1),
    ],
)
def test_the_rounds_of_a_loop_are_those_of_its_text(loop: str, rounds: int) -> None:
    assert rounds_of_loop(loop) == rounds


@pytest.mark.proof
def test_two_plans_of_a_script_are_the_same(tmp_path: Path) -> None:
    text = "export MASTER_PORT=$((20000 + RANDOM % 20000))\nsrun -n2 python train.py\n"
    text += "srun -n2 bash -c 'python train.py --port $RANDOM'\n"
    text += "python b.py run-$(date +%Y-%m-%dT%H%M%S.%N) $(openssl rand -hex 8) $(uuidgen) $(uuidgen)\n"
    text += "python c.py $(shuf -i 10000-60000 -n 1) $(seq 15000 20000 | shuf | head -n 1)\n"
    text += "python d.py $(python -c 'import random; print(random.randint(1, 10**9))')\n"
    text += "python e.py $(python -c 'import socket; s = socket.socket(); s.bind((\"\", 0)); print(s.getsockname()[1])')\n"
    text += "align reads | sort_reads | index | pack\n"
    text += "while :; do\n  if [ -f x ]; then break; fi\n  python a.py\n  python b.py\n  sleep 1\ndone\n"
    first, second = (planned(text, tmp_path) for _ in range(2))
    assert listing.as_text(first[0]) == listing.as_text(second[0])
    assert first[1] == second[1]
    ports = [process.argv[-1] for process in first[0].steps[1].processes]
    assert ports[0] != ports[1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("mem", "options", "waits"),
    [("2G", "", True), ("2G", "--mem=1G", False), ("0", "", False), ("2G", "--overlap", False)],
)
def test_steps_that_get_all_memory_wait_where_slurm_counts_it(
    tmp_path: Path, mem: str, options: str, *, waits: bool
) -> None:
    text = f"#!/bin/bash\n#SBATCH --ntasks=2 --mem={mem}\n"
    text += f"srun -n1 --exact {options} python a.py &\n" * 2
    texts = said(planned(f"{text}wait\n", tmp_path)[1])
    expected = "where Slurm counts memory, this step waits until that of line 3 ends: each gets all of --mem"
    assert (expected in texts) is waits


@pytest.mark.parametrize(
    ("command", "container"),
    [
        ("srun apptainer exec --nv --bind /a:/b image.sif python train.py", "image.sif"),
        ("srun --container-image=nvcr.io#x/y:1 python train.py", "nvcr.io#x/y:1"),
        ("podman run --rm -v /a:/b image python train.py", "image"),
        ("singularity exec image.sif bash -c 'cd /tmp && python train.py'", "image.sif"),
    ],
)
def test_what_a_container_starts_is_seen(tmp_path: Path, command: str, container: str) -> None:
    (step,) = planned(command, tmp_path)[0].steps
    assert [each.argv for each in step.processes] == [("python", "train.py")]
    assert step.processes[0].container == container


@pytest.mark.parametrize(
    ("command", "argument", "value"),
    [
        ("srun apptainer exec --env A=1,B=2 --env C=3 x.sif bash -c", "$A$B$C$OUTSIDE", "123out"),
        ("srun singularity exec --env A=1 x.sif bash -lc", "$A", "1"),  # a login shell has another PATH
        ("srun singularity exec x.sif bash -lc", "$OUTSIDE", "out"),
        ("podman run --env A=1,2 -e OUTSIDE image sh -c", "$A$OUTSIDE", "1,2out"),
        ("srun shifter --image=x --env=A=1 bash -c", "$A", "1"),
        ("srun apptainer exec --env A=1 x.sif apptainer exec --env B=2 y.sif bash -c", "$A$B", "12"),
    ],
)
def test_what_a_container_starts_has_the_variables_of_its_options(
    tmp_path: Path, command: str, argument: str, value: str
) -> None:
    (step,) = planned(f"export OUTSIDE=out\n{command} 'torchrun train.py {argument}'\n", tmp_path)[0].steps
    assert [each.argv for each in step.processes] == [("torchrun", "train.py", value)]


def test_a_program_that_is_not_here_is_seen_with_its_line(tmp_path: Path) -> None:
    done, _ = planned(
        "module load gromacs\n\n./configure\ngmx_mpi mdrun -deffnm x\n/opt/site/bin/solver in\n", tmp_path
    )
    assert [(step.line, step.command) for step in done.steps] == [
        (4, ("./configure",)),
        (5, ("gmx_mpi", "mdrun", "-deffnm", "x")),
        (6, ("/opt/site/bin/solver", "in")),
    ]
    assert {need.name for need in done.needed} == {str(tmp_path / "configure"), "/opt/site/bin/solver"}


def test_what_a_script_needs_is_listed_and_can_be_given(tmp_path: Path) -> None:
    text = "cd /project/data || exit 1\n[[ -f model.pt ]] || exit 2\nsource ~/venv/bin/activate\n"
    text += ': "${TOKEN:?not set}"\npython train.py "$1" --data "$2"\n'
    done, findings = planned(text, tmp_path)
    assert {(need.kind, need.name.rpartition("/")[2], need.line) for need in done.needed} == {
        ("folder", "data", 2),
        ("file", "model.pt", 3),
        ("file", "activate", 4),
        ("variable", "TOKEN", 5),
        ("arguments", "2", 6),
    }
    assert not said(findings)
    files = (
        "/project/data/",
        "/project/data/model.pt",
        "~/venv/bin/activate".replace("~", done.batch_environment["HOME"]),
    )
    done, _ = planned(text, tmp_path, "a b", "c", variables=("TOKEN=x",), files=files)
    assert not done.needed
    assert done.steps[0].command == ("python", "train.py", "a b", "--data", "c")


@pytest.mark.parametrize(
    "file",
    ["/etc/profile.d/site-modules.sh", "/usr/share/site/Modules/init/bash", "/usr/local/bin/site-env.sh"],
)
def test_a_file_of_the_nodes_system_is_needed_and_the_script_goes_on(tmp_path: Path, file: str) -> None:
    done, findings = planned(f"set -e\nsource {file}\nsrun python train.py\n", tmp_path)
    assert [(need.kind, need.name) for need in done.needed] == [("file", file)]
    assert [step.command for step in done.steps] == [("srun", "python", "train.py")]
    assert not said(findings)


def test_the_folder_of_the_log_is_there_when_the_script_starts(tmp_path: Path) -> None:
    text = "#SBATCH --output=logs/a/%j.out\n#SBATCH --error=/errors/of/%x/%j\nset -e\n"
    text += "ln -sfn $SLURM_JOB_ID.out logs/a/latest\ncd logs/a\nsrun python train.py\n"
    done, findings = planned(text, tmp_path)
    assert not done.needed
    assert [process.cwd for process in done.steps[0].processes] == [str(tmp_path / "logs" / "a")]
    assert not said(findings)


def test_what_ksh_alone_can_read_is_no_mistake(tmp_path: Path) -> None:
    text = "#!/bin/ksh\nif true; then ; echo a; fi\npython train.py\n"
    (finding,) = planned(text, tmp_path)[1]
    assert finding.severity == "info"
    assert finding.problem.what.startswith("bash, which stands for ksh in a plan, can't parse this: line 2: ")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("data=${1:?Usage: job DATA}\n", "arguments", "1"),
        ('while getopts "c:" word; do c=$OPTARG; done\n[[ "$c" ]] || exit 1\n', "arguments", "1"),
        ('if [ -z "${API_KEY:-}" ]; then\n  echo set API_KEY\n  exit 1\nfi\n', "variable", "API_KEY"),
        ('RUN="${RUN:-}"\n[[ -z "$RUN" ]] && exit 1\n', "variable", "RUN"),
        ("set -e\nsh ./run.sh\n", "file", "run.sh"),
        ("set -e\nx=$(awk 1 data/list.csv)\n", "file", "list.csv"),
        ("set -e\nfirst=$(ls /data/*/*.gz | head -n 1)\n[[ $first ]] || exit 1\n", "file", "*.gz"),
        ("set -e\ntar xf /data/x.tar\n", "file", "x.tar"),
    ],
)
def test_what_ends_a_script_early_is_needed(tmp_path: Path, text: str, kind: str, name: str) -> None:
    done, _ = planned(f"{text}srun python train.py\n", tmp_path)
    assert [(need.kind, need.name.rpartition("/")[2]) for need in done.needed] == [(kind, name)]


def test_a_command_in_front_of_head_is_not_ended_by_it(tmp_path: Path) -> None:
    text = "set -eo pipefail\nhead=$(scontrol show hostnames | head -n 1)\nnvidia-smi -L | head -n 1\n"
    text += "ray status | grep -q node_\nscontrol show job $SLURM_JOB_ID | head -n 1\n"
    done, _ = planned(TWO_NODES + text + "srun python train.py $head\n", tmp_path)
    assert done.steps[0].processes[0].argv[-1] == "node1"


def test_a_command_in_front_of_one_that_reads_nothing_is_not_ended_by_it(tmp_path: Path) -> None:
    """The reader, of which a stand-in may be one, has ended before the writer begins."""
    done, _ = planned("set -eo pipefail\nalign reads | true\nindex reads\n", tmp_path)
    assert [step.command[0] for step in done.steps] == ["align", "index"]
    assert done.result.status == 0


def test_mixed_messages_of_tasks_name_no_file() -> None:
    err = "tar: tar: a.tar: Cannot open: No such file or directory\ntar: Cannot open: No such file or directory\n"
    assert {need.name for need in missing_paths(err, ())} <= {"a.tar", "tar"}


def test_a_test_of_a_function_that_has_ended_well_needs_nothing(tmp_path: Path) -> None:
    text = "own() {\n  [[ ! -L runs/x ]] || exit 1\n}\nhas() {\n  type -t no-such-command || exit 1\n}\nown\nhas\n"
    done, _ = planned(text, tmp_path)
    assert (done.result.status, done.needed) == (1, ())


def test_a_file_that_is_there_is_not_needed(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export SEEN=1\n")
    done, _ = planned("source ./env.sh\npython train.py\n", tmp_path)
    assert not done.needed
    assert done.steps[0].processes[0].env["SEEN"] == "1"


def test_nodes_can_be_other_than_the_scripts(tmp_path: Path) -> None:
    done, _ = planned(TWO_NODES + "srun python train.py\n", tmp_path, nodes=12)
    assert len(done.steps[0].processes) == 12
    assert done.batch_environment["SLURM_JOB_NODELIST"] == "node[01-12]"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'nodes=$(scontrol show hostnames)\nsrun -N1 -n1 -w "$nodes" python train.py\n',
            "srun -w has a value of several lines: 'node1', then 'node2'",
        ),
        (
            "head=$(scontrol show hostnames | grep nothing)\nsrun torchrun --nnodes=2 --rdzv_endpoint=$head t.py\n",
            "--rdzv_endpoint has no value: head is empty here",
        ),
        (
            "source ~/env/bin/activate\nsrun torchrun --nproc_per_node=$SLURM_GPUS_PER_TASK t.py\n",
            "--nproc_per_node has no value: SLURM_GPUS_PER_TASK is empty, because the job has no --gpus-per-task",
        ),
        (
            "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$SLURMD_NODENAME t.py\n",
            "all 2 nodes get --node-rank 0: the batch script expands it, not the tasks",
        ),
        (
            "srun bash -c 'torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$(hostname):29500 t.py'\n",
            "the nodes don't meet: --rdzv-endpoint is node1:29500 on node1, and node2:29500 on node2",
        ),
        (
            "torchrun --nnodes=$SLURM_NNODES --rdzv_backend=c10d --rdzv_endpoint=$(hostname) t.py\n",
            "torchrun waits for 2 nodes (--nnodes), and starts on 1",
        ),
        (
            "srun torchrun --nproc_per_node=8 t.py\n",
            "--nproc-per-node 8, but a process has 4 GPUs",
        ),
        (
            "srun ray start --block &\nsrun -N1 -n1 python train.py\n",
            "this step waits until that of line 5 ends: each takes all of node1",
        ),
        (
            "cmd='accelerate launch --num_machines 2'\nsrun $cmd\n",
            "accelerate launch has no program: its command ends with its options",
        ),
        (
            "if true; then\nsrun python train.py\n",
            "the script ends with 2 before it starts a program: line 7: syntax error: unexpected end of file",
        ),
        (
            'source ./missing.sh\necho "${EMPTY}\npython train.py\n',
            "the script ends with 2 before it starts a program: line 6: unexpected EOF while looking for matching",
        ),
        (
            "while sleep 1; do :; done\npython train.py\n",
            "the script did not end in a dry run: what follows is not shown",
        ),
    ],
)
def test_a_mistake_that_running_shows_is_named(tmp_path: Path, text: str, says: str) -> None:
    assert says in " | ".join(said(planned(TWO_NODES + text, tmp_path)[1]))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "text",
    [
        "head=$(scontrol show hostnames | head -n 1)\nsrun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$head:1 t.py\n",
        "srun bash -c 'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr=$0 t.py' $(hostname)\n",
        "for node in $(scontrol show hostnames); do srun -N1 -n1 -w $node ray start --block & done\nwait\n",
        "srun -N1 -n1 ray start --block &\nsrun -N1 -n1 python train.py\n",  # on the other node
        "srun -N1 -n1 python a.py -w ''&\nsrun -N1 -n1 python b.py -w 3\nwait\n",
        "srun -N1 -n1 torchrun a.py &\nsrun -N1 -n1 torchrun b.py &\nwait\n",
        "srun torchrun $@\n",
        "source ./set.sh\nsrun torchrun -m $program\n",
        "srun sh wrapper.sh\n",
        "module load torch\nsrun apptainer exec --nv $IMAGE_OF_THE_MODULE python train.py\n",
        (
            "job=$(scontrol show job $SLURM_JOB_ID)\nstart=$(grep -oP 'StartTime=\\K\\S+' <<<$job)\n"
            "gpus=$(grep -oP 'TRES=.*?gpu=\\K(\\d+)' <<<$job)\necho $(($(date -d $start +%s) - 60))\n"
            "srun bash -c 'accelerate launch --num_machines 2 --machine_rank $SLURM_NODEID --num_processes $0 t.py' $gpus\n"
        ),
        "srun -N1 -n1 ray start --block &\nsrun --overlap -N1 -n1 python train.py\n",
        "srun -n2 python a.py &\nwait\nsrun -n2 python b.py\n",
        (
            "i=0; for node in $(scontrol show hostnames); do\n"
            "srun -N1 -n1 -w $node torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$i --master_addr=node1 t.py & ((++i))\ndone; wait\n"
        ),
        "srun bash -c 'torchrun --standalone --nproc_per_node=4 --master_port=$RANDOM t.py'\n",
        'EXTRA=\npython train.py --resume "$EXTRA"\n',
        'name=$(git rev-parse HEAD)\npython train.py --name "$name"\n',
        'python train.py --last "$(ls runs)" --data $DATA\n',
        "MORE=$(echo)\npython plot.py --log-colour $MORE --width 3\n",
        'if [ "$NODES" -gt 1 ]; then SIZE=2; else SIZE=; fi\n: "${SIZE:=}"\npython train.py --size $SIZE --x 1\n',
        "until ray status; do sleep 5; done\npython train.py\n",
        "ips=$(ssh node1 hostname -I)\nread -ra at <<<${ips}\nsrun python train.py --master_addr=${at[0]}\n",
        "#SBATCH --image=site/torch:1\nsrun shifter python train.py\n",
        "for lr in 1 2; do srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=node1:$lr t.py; done\n",
        "export WORLD_SIZE=8\nsrun bash -c 'RANK=$SLURM_PROCID python spawns_one_for_each_gpu.py'\n",
        (
            "for i in 0 1 2 3; do\nCUDA_VISIBLE_DEVICES=$i torchrun --nproc-per-node=1 --master-port=2950$i t.py & pids+=($!)\n"
            "done\nfor pid in ${pids[@]}; do wait $pid || exit; done\n"
        ),
        "for i in 0 1; do torchrun --standalone --nproc-per-node=2 t.py & done\nwait\n",
        "srun -N $1 python train.py\n",
        "#SBATCH --export=NONE\nsrun --export=all python train.py\n",
        "srun --het-group=0 ray start --block &\nsrun --het-group=1 python train.py\n",
        (
            "i=0; for node in $(scontrol show hostnames); do\n"
            'cmd="torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$i --master_addr=node1 t.py"; ((++i))\n'
            'if [ $node = node1 ]; then $cmd & else ssh $node "$cmd" & fi\ndone; wait\n'
        ),
        "CUDA_VISIBLE_DEVICES=0 python a.py &\nCUDA_VISIBLE_DEVICES=0,1,2,3 python b.py &\nwait\n",
    ],
)
def test_a_script_without_a_mistake_has_no_finding(tmp_path: Path, text: str) -> None:
    assert said(planned(TWO_NODES + text, tmp_path)[1]) == []


def test_a_status_that_gets_lost_is_named(tmp_path: Path) -> None:
    lost = "the job ends with 0 even if every program in it fails"
    for end, last in (
        ("\necho done", "echo comes last"),
        (" | tee log", "the pipe to tee"),
        (" &\nwait", "wait comes"),
    ):
        (finding,) = planned(f"srun python train.py{end}\n", tmp_path)[1]
        assert finding.problem.what.startswith(f"{lost}: {last}")
    assert not planned("srun python train.py\n", tmp_path)[1]
    assert not planned("srun python train.py || true\n", tmp_path)[1]
    assert not planned("mkdir -p x\nsbatch next.slurm\n", tmp_path)[1]  # whose stand-in never fails


def test_it_does_not_run_again_with_failing_programs_where_one_comes_last(tmp_path: Path) -> None:
    for text, may in (
        ("python a.py\nsrun \\\n    python b.py\n", False),
        ("python a.py || exit 0\npython b.py\n", True),
        ("python a.py | tee log\n", True),
        ("python a.py &\nwait\n", True),
        ("python a.py\necho\n", True),
    ):
        assert may_hide_failures(planned(text, tmp_path)[0]) is may, text


@pytest.mark.proof
def test_a_script_that_computes_without_end_lists_what_it_needs(tmp_path: Path) -> None:
    done, _ = planned('while [ -z "$1" ]; do :; done\nsrun python train.py "$1"\n', tmp_path)
    assert [need.kind for need in done.needed] == ["arguments"]
    assert done.steps[0].processes[0].argv == ("python", "train.py", "ARG1")
    assert done.runs == 2
    assert PROCESSES - 100 < done.budget.processes < PROCESSES


def test_a_loop_whose_trace_is_too_large_has_no_end_either(tmp_path: Path) -> None:
    done, findings = planned(
        f"until test -e ready; do : {'x' * 9999}; done\nsrun python train.py\n", tmp_path
    )
    assert done.result.limit == "time"
    assert "SB336" in {finding.rule for finding in findings}


def test_a_script_of_another_language_is_refused(tmp_path: Path) -> None:
    from sbatchgen.base.errors import DocumentError

    with pytest.raises(DocumentError, match="script of python3: plan reads only bash scripts"):
        planned("#!/usr/bin/env python3\nprint()\n", tmp_path)


def test_two_plans_are_compared(tmp_path: Path) -> None:
    old, new = (planned(f"srun python train.py --lr {rate}\n", tmp_path)[0] for rate in ("0.1", "0.2"))
    assert listing.difference(old, old) == ""
    assert "-    python train.py --lr 0.1\n+    python train.py --lr 0.2" in listing.difference(old, new)


def test_a_run_begins_with_the_programs_that_the_text_names(tmp_path: Path) -> None:
    """Also beside commands whose words expand to nothing."""
    text = 'none=()\n"${none[@]}"\n. ./env.sh\nif false; then ./never; fi\nsrun ./run "${none[@]}"\n'
    done, findings = planned(text, tmp_path)
    assert {(need.kind, need.name) for need in done.needed} == {
        ("file", f"{tmp_path}/env.sh"),
        ("program", f"{tmp_path}/run"),
    }
    assert done.steps[-1].command[-1] == "./run"
    assert not said(findings)


@pytest.mark.parametrize("before", ["cd sub\n", "[[ -e ./run ]] || exit 3\n"])
def test_a_run_begins_without_what_may_be_elsewhere_or_is_looked_for(tmp_path: Path, before: str) -> None:
    done, _ = planned(f"{before}./run\n", tmp_path)
    assert done.runs > 1


def test_a_given_file_is_not_read_in_part(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(9 << 20))
    with pytest.raises(SbatchgenError, match="the file is larger than 8 MiB"):
        read_inputs((), (), [f"/data/x={tmp_path}/large"])
