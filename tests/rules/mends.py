"""What a person types who follows the fixes of rules: a row for each rule whose fix is text.

Not here: what `--fix` types (test_rules.py), rules of a cluster's limits, which a made-up profile decides, and fixes that
change no script (NO_TEXT).
"""

from __future__ import annotations

from typing import NamedTuple

# Their fixes are about another file, another command or what a program does.
NO_TEXT = frozenset("SB136 SB144 SB147 SB148 SB317 SB608 SB621 SB701 SB806 SB820 SB901 SB905 SB908".split())


class Mend(NamedTuple):
    """A bad example with its fix.

    Attributes:
        rule: The rule.
        changes: What is replaced by what.
        starts: The programs that the mended script starts as tasks or by itself, with their numbers; "" if it starts none.
        example: Which bad example of the page it is, from 0.
        files: Files beside the script.
    """

    rule: str
    changes: tuple[tuple[str, str], ...]
    starts: str = "python 1"
    example: int = 0
    files: tuple[tuple[str, str], ...] = ()


_HEAD = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_PORT = "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"
_ONE_EACH = "srun --ntasks=$SLURM_NNODES --ntasks-per-node=1"
_MEET = "--rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"
_LOOP = "while kill -0 $! 2>/dev/null; do wait $!; done; wait $!"

MENDS = (
    Mend("SB101", (("\n#!/bin/bash", "#!/bin/bash"),)),
    Mend("SB101", (("#SBATCH", "#!/bin/bash\n#SBATCH"),), example=1),
    Mend(
        "SB104",
        (("set -euo pipefail\n#SBATCH --nodes=2", "#SBATCH --nodes=2\nset -euo pipefail"),),
        "python 2",
    ),
    Mend("SB105", ((" #SBATCH --n", "#SBATCH --n"),), "python 2"),
    Mend("SB106", (("##SBATCH", "#SBATCH"),), "python 2"),
    Mend("SB107", (("=my run", '="my run"'),)),
    Mend("SB108", (("it's", r"it\'s"),)),
    Mend("SB110", (("-J\n", "-J run\n"),)),
    Mend("SB112", (("nodes = 2", "nodes=2"),), "python 2"),
    Mend("SB113", (("--node=", "--nodes="), ("#SBATCH --foo=1\n", "")), "python 2"),
    Mend("SB114", ((" --mpi=pmix", ""), ("srun", "srun --mpi=pmix"))),
    Mend("SB117", (("$HOME", "%x"),)),
    Mend("SB119", (("#SBATCH -N 4\n", ""),), "python 2"),
    Mend("SB122", (("#PBS", "#SBATCH --ignore-pbs\n#PBS"),)),
    Mend("SB125", (("–", "-"),), "python 2"),  # noqa: RUF001 - the mistake itself
    Mend("SB126", (("=two", "=2"),), "python 2"),
    Mend("SB127", (("=24", "=24:00:00"),)),
    Mend("SB129", (("FALL", "FAIL"),)),
    Mend("SB130", (("#SBATCH --tres-per-task=gres:gpu:1\n", ""),)),
    Mend("SB131", ((" --mem-per-gpu=16G", ""),)),
    Mend("SB132", ((" --ntasks=9", ""),), "python 8"),
    Mend("SB133", (("--ntasks=2", "--ntasks-per-node=4"),), "python 16"),
    Mend("SB133", ((" --ntasks=1", ""),), "python 4", 1),
    Mend("SB135", (("#SBATCH --gpus=3\n", ""),)),
    Mend("SB137", (("#SBATCH --ntasks-per-core=1\n", ""),), "model 1"),
    Mend("SB138", (("=64", "=64G"),)),
    Mend("SB140", (("5-1", "0-9%2"),)),
    Mend("SB142", (("#PBS -P", "#SBATCH --ignore-pbs\n#PBS -P"),)),
    Mend("SB143", (("#PBS -l walltime=01:00:00,ngpus=2", "#SBATCH --time=01:00:00 --gpus-per-node=2"),)),
    Mend("SB205", (("gpu ", "gpu --time=01:00:00 "),)),
    Mend("SB213", (("node=4", "node=1"),)),
    Mend("SB218", (("--exclusive", "--exclusive --mem=0"),)),
    Mend("SB233", (("--array=0-700", "--array=0-700%50"),)),
    Mend(
        "SB242",
        (
            ("--gpus=4", "--gpus-per-node=2"),
            ("srun", f"{_HEAD} {_PORT}\nsrun"),
            ('"$MASTER_ADDR:29500"', '"$MASTER_ADDR:$MASTER_PORT" --rdzv-backend=c10d'),
        ),
        "torchrun 2",
        1,
    ),
    Mend("SB301", (("python", "srun python"),), "python 8"),
    Mend(
        "SB301", (("--ntasks=8", "--ntasks=1 --cpus-per-task=4"), ("--nodes=2", "--nodes=1")), "python3 1", 1
    ),
    Mend(
        "SB302",
        (("srun", f"{_HEAD} {_PORT}\n{_ONE_EACH}"), ("2 --nproc", f"2 {_MEET} --nproc")),
        "torchrun 2",
    ),
    Mend("SB304", (("node=4", "node=$SLURM_GPUS_ON_NODE"),), "torchrun 1"),
    Mend("SB306", (("MASTER_PORT=29500", _PORT),), "python 2"),
    Mend("SB307", (("srun", f"{_HEAD}\nsrun"), ("localhost", "$MASTER_ADDR")), "torchrun 2"),
    Mend("SB308", (('"RANK', "'RANK"), ('py"', "py'")), "python 8"),
    Mend("SB309", (("txt &\n", "txt &\nwait\n"),), "torchrun 1"),
    Mend(
        "SB310",
        (("--ntasks=1 python", "--exact --ntasks=1 --cpus-per-task=1 --mem=1G --gpus-per-node=1 python"),),
        "python 2",
    ),
    Mend("SB311", (("python", "set -o pipefail\npython"),), example=1),
    Mend("SB312", (("srun", "set -e\nsrun"),)),
    Mend("SB313", (("-np 16", '-np "$SLURM_NTASKS"'),), "mpirun 1"),
    Mend("SB315", (("export CUDA_VISIBLE_DEVICES=2,3\n", ""),)),
    Mend("SB316", (("--gpus-per-task=1", "--gpus-per-node=4"),), "python 8"),
    Mend("SB318", (("sudo nvidia-smi --persistence-mode=1\n", ""),)),
    Mend("SB319", (("sleep", "timeout 1h sleep"),), ""),
    Mend("SB321", (("--ntasks=4", "--ntasks-per-node=2"),), "python 4"),
    Mend("SB322", (("node=2", "node=4"),), "python 8"),
    Mend(
        "SB324",
        (
            ("srun", f"{_HEAD} {_PORT}\nsrun"),
            ("--standalone", f"--nnodes=$SLURM_NNODES {_MEET}"),
        ),
        "torchrun 2",
    ),
    Mend("SB327", (("srun", "srun --input=none"),), "python 2", files=(("names.txt", "a\nb\n"),)),
    Mend("SB328", (("srun", "srun --ntasks=1"),), "samtools 1"),
    Mend("SB329", (("make", "set -o pipefail\nmake"),), "model 1", files=(("Makefile", "all:\n\ttrue\n"),)),
    Mend("SB332", (("verbose\n", "verbose \\\n"),), "python 2"),
    Mend("SB333", (("CMD=", "PYTHON_FILE=$SCRIPT ARGS=$SCRIPT_ARGS\nCMD="),)),
    Mend("SB334", (("MASTER_PORT=80", _PORT),), "python 4"),
    Mend("SB335", (("$socketall", "$socket_all"),), "solver 1"),
    Mend(
        "SB345",
        (
            (
                "srun --nodes=1 --ntasks=1 hostname -i 2>&1",
                'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1',
            ),
        ),
        "python 2",
    ),
    Mend("SB346", ((" --ntasks=1", ""),), "python 2"),
    Mend(
        "SB349",
        (
            ("localhost MASTER", "localhost WORLD_SIZE=$SLURM_NTASKS MASTER"),
            (
                "python train.py",
                "bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python train.py'",
            ),
        ),
        "python 4",
    ),
    Mend("SB350", (("srun", "srun --ntasks=1"),)),
    Mend("SB351", (("sbatch ", "sbatch --wait "), (" -d afterany:$id", "")), "sbatch 1 python 1"),
    Mend("SB352", (("num_nodes=1", "num_nodes=$SLURM_NNODES"),), "python 8"),
    Mend(
        "SB353",
        (
            (
                "srun --ntasks-per-node=1 bash -c 'srun --overlap --ntasks=8 ./all_reduce_perf -b 8'",
                "srun --ntasks=8 ./all_reduce_perf -b 8",
            ),
        ),
        "all_reduce_perf 8",
    ),
    Mend("SB354", (("<<END", "<<'END'"),), "model 8"),
    Mend(
        "SB355",
        (
            ("accelerate launch", "bash -c 'accelerate launch --machine_rank=$SLURM_NODEID"),
            ("head=", "export head="),
            ("train.py", "train.py'"),
        ),
        "accelerate 2",
        2,
    ),
    Mend("SB401", (('$(dirname "$0")', "$SLURM_SUBMIT_DIR"),)),
    Mend("SB402", (("module", "module purge\nmodule"),)),
    Mend("SB403", (("cuda ", "cuda/12.4 "),)),
    Mend("SB404", (("=OMP", "=ALL,OMP"),), example=3),
    Mend("SB406", (("conda activate torch", "set +u\nconda activate torch\nset -u"),)),
    Mend("SB407", (("S=16", "S=4"),), "torchrun 1"),
    Mend("SB408", (("gpus-per-node=1", "gpus-per-node=1 --cpus-per-task=2"),)),
    Mend("SB410", (("export NCCL_P2P_DISABLE=1\n", ""),)),
    Mend("SB412", (("/tmp/", '"$SLURM_SUBMIT_DIR"/'),)),  # noqa: S108 - of an example
    Mend("SB417", (("GLOO_SOCKET_IFNAME=$NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME=NAME"),)),
    Mend("SB419", (("python", "python -u"),)),
    Mend("SB421", (("$SLURM_SBUMIT_DIR", "$SLURM_SUBMIT_DIR"),)),
    Mend("SB422", (("conda init bash", 'eval "$(conda shell.bash hook)"'),)),
    Mend("SB423", (("OMP", "export OMP"),), "model 1"),
    Mend("SB424", (("$PBS_O_WORKDIR", "$SLURM_SUBMIT_DIR"),), "model 1"),
    Mend("SB425", (("=4\nsrun", "=$SLURM_NTASKS\nsrun"),), "python 8"),
    Mend("SB427", (("export HIP_VISIBLE_DEVICES=2,3\n", ""),), "python 4"),
    Mend("SB430", (("/etc", "source /etc"),)),
    Mend("SB431", (("SLURM_ARRAY_TASK_ID=3\n", ""),)),
    Mend("SB434", (("=1-3", "=0-2"),)),
    Mend("SB432", ((" CUDA_VISIBLE_DEVICES=$SLURM_LOCALID", ""),), "python 4"),
    Mend("SB433", (("uv sync", "flock env.lock uv sync"),)),
    Mend("SB504", (("exec", "exec --nv"),)),
    Mend("SB505", (("=images", "=./images"),)),
    Mend(
        "SB506",
        (
            ("srun", f"{_HEAD} {_PORT}\nsrun"),
            (
                "nvcr.io#nvidia/pytorch:24.04-py3 torchrun",
                f"$PWD/x.sqsh torchrun --nnodes=2 --nproc-per-node=4 {_MEET}",
            ),
        ),
        "torchrun 2",
    ),
    Mend("SB507", (("pytorch/pytorch", "pytorch/pytorch:24.04"),)),
    Mend("SB508", (("/data,v2", "/data-v2"),)),
    Mend("SB511", (("srun", "export PYTHONNOUSERSITE=1\nsrun"),)),
    Mend("SB515", (("name=torch", "name=torch-$SLURM_JOB_ID"),)),
    Mend(
        "SB519",
        (("#SBATCH --environment=./ngc-torch.toml\n", ""), ("srun", "srun --environment=./ngc-torch.toml")),
        "python 8",
    ),
    Mend("SB520", (("--no-container-mount-home", "--container-mounts=$PWD"), ("~/", "'$PWD'/")), "python 2"),
    Mend(
        "SB521",
        (
            (
                'bash -c \'\n  export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n',
                "bash -c '\n",
            ),
            ("srun", 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nsrun'),
        ),
    ),
    Mend(
        "SB522",
        (
            (
                "pip install -r requirements.txt; python train.py",
                "bash -c 'pip install -r requirements.txt; python train.py'",
            ),
        ),
    ),
    Mend(
        "SB601",
        (("srun python train.py", f"trap 'touch \"$STOP_FILE\"' USR1\nsrun python train.py &\n{_LOOP}"),),
    ),
    Mend("SB602", (("train.py", f"train.py &\n{_LOOP}"),)),
    Mend("SB603", (("=USR1", "=B:USR1"),)),
    Mend(
        "SB604",
        (
            ("@900", "@150"),
            ("srun python train.py", f"trap 'touch stop' USR1\nsrun python train.py &\n{_LOOP}"),
        ),
    ),
    Mend("SB605", (("--requeue", "--no-requeue"),)),
    Mend("SB606", (("--requeue", "--requeue --open-mode=append"), ("train.py", "train.py --resume auto"))),
    Mend("SB610", (('sbatch "$0"\n', ""), ("--gpus", "--array=1-10%1 --gpus"))),
    Mend("SB611", (("--dep", "--kill-on-invalid-dep=yes --dep"),), "sbatch 1 python 1", 1),
    Mend(
        "SB614",
        (("=USR1", "=B:USR1"), ("srun", "trap 'touch stop' USR1\nsrun"), ("auto", f"auto &\n{_LOOP}")),
        "torchrun 1",
    ),
    Mend("SB615", (("python", "exec python"), ("; echo done", ""))),
    Mend(
        "SB616",
        (
            (
                'scontrol requeue "$SLURM_JOB_ID"',
                '{ ((${SLURM_RESTART_COUNT:-0} > 4)) && exit 1; scontrol requeue "$SLURM_JOB_ID"; }',
            ),
        ),
    ),
    Mend("SB617", (("srun", "srun --kill-on-bad-exit=1"),), "python 8"),
    Mend("SB618", (("$SLURM_JOB_ID", "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"),)),
    Mend(
        "SB619",
        (
            ("--gpus", "--signal=B:USR1@300 --open-mode=append --gpus"),
            ("server.py", "server.py --resume auto"),
        ),
    ),
    Mend(
        "SB620",
        (("trap 'touch training.done' EXIT\n", "set -e\n"), ("train.py", "train.py\ntouch training.done")),
    ),
    Mend("SB622", (("client.py", "client.py; rc=$?; kill $!; exit $rc"),), "vllm 1 python 1"),
    Mend(
        "SB623",
        (("srun", "srun --kill-on-bad-exit=1"), ("python train.py", "python train.py & wait -n")),
        "router 2 python 2",
    ),
    Mend(
        "SB624",
        (
            (
                "bash -c 'pkill -9 -f vllm; exec python serve.py'",
                "bash -s <<'END'\npkill -9 -f vllm; exec python serve.py\nEND",
            ),
        ),
        "python 2",
    ),
    Mend("SB625", (("kill -TERM $pid", "scancel --signal=TERM $SLURM_JOB_ID"),)),
    Mend("SB626", (("\nwait $pid", "\nwhile kill -0 $pid 2>/dev/null; do wait $pid; done; wait $pid"),)),
    Mend("SB627", (("rm -rf", "((${SLURM_RESTART_COUNT:-0})) || rm -rf"),)),
    Mend(
        "SB627", (("rm jobs/42.rds\n", ""), ("work.R\n", "work.R || exit\nrm jobs/42.rds\n")), "Rscript 1", 1
    ),
    Mend("SB628", (("do sleep 5", "do kill -0 $! || exit 1; sleep 5"),), "vllm 1 python 1"),
    Mend("SB628", (("do sleep 5", "do kill -0 $! || exit 1; sleep 5"),), "dask 3", 1),
    Mend("SB702", (("train.log", "train-%j.log"),)),
    Mend("SB704", (("--time", "--array=0-3 --time"),)),
    Mend("SB705", (("-%N", ""),), "python 2"),
    Mend("SB710", (("/tmp/", ""),)),  # noqa: S108 - of an example
    Mend("SB711", (("=none", "=%x-%j.out"),)),
    Mend("SB802", (("NCCL-DEBUG=", "NCCL_DEBUG="),)),
    Mend("SB803", (("bin\nsrun", "bin:$PATH\nsrun"),)),
    Mend("SB804", (('rm -rf "$CACHE"', 'rm -r -- "${CACHE:?}"'),)),
    Mend("SB805", (('eval "$TRAIN_COMMAND"', 'command=(python train.py)\n"${command[@]}"'),)),
    Mend("SB807", (("-R 777", "-R g+w"),), example=1),
    Mend("SB812", (("/path/to/project", "project"),)),
    Mend("SB813", (("=3\n", "=3 \\\n"),)),
    Mend("SB814", (("$seed\n", "$seed\ndone\n"),), "python 3"),
    Mend("SB815", (("  EOF", "EOF"),)),
    Mend("SB817", (('"*.csv"', "*.csv"),), "simulate 1"),
    Mend("SB818", (('"$1"]', '"$1" ]'),)),
    Mend("SB819", (("((missing++))", "missing=$((missing + 1))"), ("check a\n", ""))),
    Mend("SB903", (("-e\n", "-eo pipefail\n"),), "sbatch 1"),
    Mend("SB904", (("$SLURM", r"\$SLURM"),), "sbatch 1"),
    Mend("SB906", (("=after:$first", "=afterok:$first --kill-on-invalid-dep=yes"),), "sbatch 2"),
    Mend("SB907", (("SBATCH_MEM=", "SBATCH_MEM_PER_NODE="),), "sbatch 1"),
)
