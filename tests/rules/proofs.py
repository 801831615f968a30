"""What a real Slurm makes of the examples of a rule's page: the bad one, the bad one mended, and the good one.

A program of the examples notes what it gets, and how it ends (PROGRAM). The outcome of a job is a line of text:

    python 4+4 RANK=0,1; FAILED 3   # it ran to its end four times on each of two nodes, with these ranks

A program that was killed is counted as 0. A job without a state in its line is COMPLETED; "nothing" is one that started no
program.

What CPUs a task is bound to needs task/affinity, and CPUs that the machine has: BINDINGS are proven on a cluster of their own.
SB324 runs the real torchrun, if torch is here. Not proven is SB315 where cgroups separate devices: that needs the cgroup of
devices, which a machine of tests may not have. For the same reason SB615 shows that the shell ends the step, not that the
program gets no signal: without proctrack/cgroup, slurmstepd signals the children of a task too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

# It ends by itself, by a file `stop`, or by USR1 (for which only Python has a handler), with the status of the case.
# torchrun starts the processes that its option asks for.
PROGRAM = r"""#!/bin/bash
name=${0##*/}
. "${0%/*}/settings"
ended=''
[[ $name == torchrun ]] || trap 'ended=" on USR1"' USR1
note() {
    local each facts='' gpus
    for each in $see; do
        case $each in
        ARGUMENTS) facts+="|ARGUMENTS=$*" ;;
        CPUS) facts+="|CPUS=$(nproc)" ;;
        FOLDER) facts+="|FOLDER=${PWD##*/}"; facts=${facts//[0-9]/} ;;
        GPUS) IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"; facts+="|GPUS=${#gpus[@]}"
            [[ -n ${CUDA_VISIBLE_DEVICES+set} ]] || facts=${facts%=*}=all ;;
        MASTER) facts+="|MASTER=$MASTER_ADDR"
            [[ $MASTER_ADDR != "$(scontrol show hostnames | head -n 1)" ]] || facts=${facts%=*}=first ;;
        *) facts+="|$each=${!each}" ;;
        esac
    done
    echo "$name$ended|$(</proc/sys/kernel/hostname)|$event|${EPOCHREALTIME/./}$facts" >>"${0%/*}/record"
}
event=start note "$@"
if [[ $name == torchrun && "$*" =~ nproc[-_]per[-_]node[=\ ]*([0-9]+) ]]; then
    for ((LOCAL_RANK = 0; LOCAL_RANK < BASH_REMATCH[1]; LOCAL_RANK++)); do
        "${0%/*}/worker" "$@" &
    done
    wait
fi
if [[ -n $failing_rank ]]; then
    if [[ $failing_rank == "$SLURM_PROCID" ]]; then seconds=0; else status=0; fi
fi
last=$((SECONDS + seconds))
while [[ $name != worker && -z $ended && SECONDS -lt last ]]; do
    sleep 0.2 & wait $!
    if [[ -n $stops && -e stop ]]; then ended=' on stop'; fi
    if [[ -n $together && $(grep -c '|start|' "${0%/*}/record") -ge 2 ]]; then break; fi
done
[[ $ended != " on USR1" ]] || sleep "$saves"
event=end note "$@"
[[ $ended != " on USR1" ]] || sleep 3 # Slurm signals one process after the other: the shell around it may be the last
exit $status
"""
PROGRAMS = ("python", "torchrun", "accelerate", "worker", "make", "model", "samtools", "host.sh")
LONG_S = 300  # of what something else has to end


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What becomes of three scripts.

    Attributes:
        rule: The rule.
        bad, mended: The outcomes; where Slurm's releases differ, those of 22.05 and of 26.05. "" is not run.
        good: The outcome; None if it is that of the mended one, "" if the good example is not run.
        examples: Which bad and which good example of the page it is, from 0.
        fix: What a person replaces by what, as the rule says; none where --fix does it.
        others: What is replaced in all three.
        first: A command that runs before the others.
        see: What is noted of each program: variables, ARGUMENTS, GPUS (how many it sees), FOLDER,
            MASTER (MASTER_ADDR, or that it is the first node), CPUS (those that it may run on).
        at_once: Whether the outcome says how many programs ran at the same time; but for the bad script, they end when two
            have started.
        status: The exit status of the programs, or of one rank alone, which then ends at once.
        seconds: How long a program runs in the bad script, and in the others.
        saves: How many seconds it continues after USR1.
        warned: Whether Slurm sends USR1 once a program runs, to those that --signal names.
        files: Files in the folder of submission.
    """

    rule: str
    bad: str | tuple[str, str]
    mended: str | tuple[str, str]
    good: str | None = None
    examples: tuple[int, int] = (0, 0)
    fix: tuple[tuple[str, str], ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    first: str = ":"
    see: str = ""
    at_once: bool = False
    status: int = 0
    failing_rank: str = ""
    seconds: tuple[int, int] = (0, 0)
    saves: int = 0
    warned: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


_ONE_EACH = "srun --ntasks=$SLURM_NNODES --ntasks-per-node=1"
_HEAD = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_TRAP = "trap 'touch stop' USR1\n"
_LOOP = "while kill -0 $! 2>/dev/null; do wait $!; done; wait $!"
_EIGHT = "srun --overlap --ntasks=8 model"
_AWAITED = f"srun python train.py &\n{_LOOP}"

_TASKS = (
    Proof(rule="SB132", bad="nothing; REFUSED", mended="python 4+4", fix=((" --ntasks=9", ""),)),
    Proof(
        rule="SB133", bad="python 1+1", mended="python 1+1+1+1", fix=(("--ntasks=2", "--ntasks-per-node=1"),)
    ),
    Proof(
        rule="SB213", bad="python 4 GPUS=1", mended="python 1 GPUS=1", fix=(("node=4", "node=1"),), see="GPUS"
    ),
    Proof(rule="SB301", bad="python 1", mended="python 4+4", fix=(("python", "srun python"),)),
    Proof(
        rule="SB302",
        bad="torchrun 4+4 worker 16+16",
        mended="torchrun 1+1 worker 4+4",
        examples=(0, 1),
        fix=(("srun", _ONE_EACH),),
    ),
    Proof(rule="SB303", bad="torchrun 1 worker 4", mended="torchrun 1+1 worker 4+4"),
    Proof(
        rule="SB303",
        bad="torchrun 1 worker 4",
        mended="torchrun 1+1 worker 4+4",
        good="",
        others=(("--ntasks-per-node=1 ", "--ntasks-per-node=4 "),),
    ),
    Proof(
        rule="SB303",
        bad="accelerate 1",
        mended="accelerate 1+1+1+1",
        examples=(1, 0),
        good="",
        fix=(
            ("accelerate launch", f"{_ONE_EACH} bash -c 'accelerate launch"),
            (" train.py", " --machine_rank=$SLURM_NODEID train.py'"),
        ),
    ),
    Proof(
        rule="SB303",
        bad="torchrun 1 worker 4",
        mended="torchrun 1+1 worker 4+4",
        examples=(2, 0),
        good="",
        fix=(("torchrun --standalone", f"{_ONE_EACH} torchrun --nnodes=$SLURM_NNODES"),),
    ),
    Proof(
        rule="SB304",
        bad="torchrun 1 GPUS=2 worker 4 GPUS=2",
        mended="torchrun 1 GPUS=2 worker 2 GPUS=2",
        good="",
        fix=(("_node=4", "_node=$SLURM_GPUS_ON_NODE"),),
        see="GPUS",
    ),
    Proof(
        rule="SB304",
        bad="torchrun 1+1+1+1 ARGUMENTS=--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n1: train.py",
        mended="torchrun 1+1+1+1 ARGUMENTS=--nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=n1: train.py",
        examples=(2, 0),
        fix=(("--nnodes=2", "--nnodes=$SLURM_NNODES"),),
        others=((" --nproc_per_node=4", ""), (' --nproc_per_node="$SLURM_GPUS_ON_NODE"', "")),
        see="ARGUMENTS",
    ),
    Proof(rule="SB321", bad="python 3+1", mended="python 2+2", fix=(("--ntasks=4", "--ntasks-per-node=2"),)),
    Proof(
        rule="SB322",
        bad="python 2+2 GPUS=4",
        mended="python 4+4 GPUS=4",
        fix=(("node=2", "node=4"),),
        see="GPUS",
    ),
    Proof(
        rule="SB327",
        bad="python 1",
        mended="python 3",
        fix=(("srun", "srun --input=none"),),
        others=(("*.tar", "a b c"),),
        files={"names.txt": "a\nb\nc\n"},
    ),
    Proof(rule="SB328", bad="samtools 8", mended="samtools 1", fix=(("srun", "srun --ntasks=1"),)),
    Proof(
        rule="SB328",
        bad="python 4 rm 4",
        mended="python 4 rm 1",
        examples=(3, 4),
        fix=(("srun bash -c 'rm -rf out; ", "rm -rf out\nsrun bash -c '"),),
        first="ln -s program ../bin/rm",
    ),
    Proof(
        rule="SB353",
        bad="nothing; FAILED 1",
        mended="model 4+4",
        fix=(("srun --ntasks-per-node=1 bash -c 'srun --overlap --ntasks=8 model'", _EIGHT),),
        others=(("--gpus-per-node=4", "--exclusive"), ("./all_reduce_perf -b 8", "model")),
    ),
    Proof(
        rule="SB331",
        bad="nothing; FAILED 1",
        mended="host.sh 1",
        others=(("./head.sh", "host.sh"), ("./worker.sh", "host.sh")),
    ),
    Proof(
        rule="SB331",
        bad="nothing; FAILED 1",
        mended="host.sh 1",
        examples=(1, 0),
        good="",
        others=(("./worker.sh", "host.sh"),),
    ),
    Proof(rule="SB332", bad="python 1", mended="python 1+1", fix=(("verbose\n", "verbose \\\n"),)),
    Proof(rule="SB814", bad="nothing; FAILED 2", mended="python 3", fix=(("$seed\n", "$seed\ndone\n"),)),
    Proof(rule="SB815", bad="nothing", mended="python 1", fix=(("  EOF", "EOF"),)),
)
_GETS = (
    Proof(
        rule="SB307",
        bad="python 4+4 MASTER=127.0.0.1",
        mended="python 4+4 MASTER=first",
        good="python 4+4 MASTER=first",
        examples=(1, 0),
        fix=(("export MASTER_ADDR=127.0.0.1", _HEAD),),
        see="MASTER",
    ),
    Proof(
        rule="SB308",
        bad="python 4+4 RANK=0",
        mended="python 4+4 RANK=0,1,2,3,4,5,6,7",
        fix=(('"RANK=$SLURM_PROCID python train.py"', "'RANK=$SLURM_PROCID python train.py'"),),
        see="RANK",
    ),
    Proof(
        rule="SB308",
        bad="python 4+4 RANK=0",
        mended="python 4+4 RANK=0,1,2,3,4,5,6,7",
        examples=(2, 0),
        good="",
        fix=(
            ("RANK=$SLURM_PROCID LOCAL", "LOCAL"),
            ("srun python train.py", "srun bash -c 'export RANK=$SLURM_PROCID; exec python train.py'"),
        ),
        see="RANK",
    ),
    Proof(
        rule="SB310",
        bad="python 2 1 at once",
        mended="python 2 2 at once",
        fix=(("srun", "srun --exact --cpus-per-task=1 --gpus-per-node=1 --mem=1000M"),),
        others=(("--mem=4G", "--mem=1000M"),),
        at_once=True,
        seconds=(1, LONG_S),
    ),
    Proof(
        rule="SB310",
        bad="python 2 1 at once",
        mended="python 2 2 at once",
        examples=(2, 0),
        good="",
        fix=(("--exact", "--exact --gpus-per-node=1"),),
        others=(("--mem=4G", "--mem=1000M"),),
        at_once=True,
        seconds=(1, LONG_S),
    ),
    Proof(
        rule="SB315",
        bad="python 1 CUDA_VISIBLE_DEVICES=4,5 GPUS=2",
        mended="python 1 CUDA_VISIBLE_DEVICES=0,1,2,3 GPUS=4",
        good="",
        fix=(("export CUDA_VISIBLE_DEVICES=4,5\n", ""),),
        others=(("=2,3", "=4,5"), ("node=2", "node=4")),
        see="CUDA_VISIBLE_DEVICES GPUS",
    ),
    Proof(
        rule="SB316",
        bad="python 4+4 GPUS=1",
        mended="python 4+4 GPUS=4",
        fix=(("--gpus-per-task=1", "--gpus-per-node=4"),),
        see="GPUS",
    ),
    Proof(
        rule="SB316",
        bad="python 4+4 GPUS=1",
        mended=("python 4+4 GPUS=all", "python 4+4 GPUS=4"),
        examples=(0, 1),
        fix=(("=1\n", "=1 --gpu-bind=none\n"),),
        see="GPUS",
    ),
    Proof(
        rule="SB333",
        bad="python 1 ARGUMENTS=-u",
        mended="python 1 ARGUMENTS=-u train.py --epochs 3",
        good="",
        fix=(('CMD="', 'PYTHON_FILE=$SCRIPT ARGS=$SCRIPT_ARGS\nCMD="'),),
        see="ARGUMENTS",
    ),
    Proof(
        rule="SB401",
        bad="python 1 FOLDER=job",
        mended="python 1 FOLDER=submission",
        fix=(('"$(dirname "$0")"', '"$SLURM_SUBMIT_DIR"'),),
        see="FOLDER",
    ),
    # With --export, 26.05 asks a login shell for the environment, which the user of the tests' Slurm does not have.
    Proof(
        rule="SB404",
        bad=("nothing; FAILED 2", ""),
        mended=("python 1", ""),
        others=(("source /project/venv/bin/activate", "export PATH"),),
    ),
    Proof(
        rule="SB404",
        bad=("nothing; FAILED 2", ""),
        mended=("torchrun 1 OMP_NUM_THREADS=4 worker 1 OMP_NUM_THREADS=4", ""),
        good="",
        examples=(1, 0),
        see="OMP_NUM_THREADS",
    ),
    Proof(rule="SB404", bad=("nothing; FAILED 2", ""), mended=("python 1", ""), examples=(2, 1)),
    Proof(
        rule="SB404",
        bad="nothing; FAILED 2",
        mended="python 1",
        examples=(3, 3),
        fix=(("export=", "export=ALL,"),),
    ),
    Proof(
        rule="SB408",
        bad="python 1 OMP_NUM_THREADS=",
        mended="python 1 OMP_NUM_THREADS=1",
        examples=(0, 3),
        fix=(("$SLURM_CPUS_PER_TASK", "${SLURM_CPUS_PER_TASK:-1}"),),
        see="OMP_NUM_THREADS",
    ),
    Proof(
        rule="SB408",
        bad="python 1 ARGUMENTS=train.py --workers ",
        mended="python 1 ARGUMENTS=train.py --workers 1",
        good="",
        examples=(1, 0),
        fix=(("=4\n", "=4 --ntasks-per-node=1\n"),),
        see="ARGUMENTS",
    ),
    Proof(
        rule="SB421",
        bad="python 1 ARGUMENTS=train.py --seed",
        mended="python 1 ARGUMENTS=train.py --seed 7",
        good="",
        examples=(1, 0),
        fix=(("$SLURM_TASK_ARRAY_ID", "$SLURM_ARRAY_TASK_ID"),),
        others=(("0-9", "7"),),
        see="ARGUMENTS",
    ),
    Proof(
        rule="SB423",
        bad="model 1 OMP_NUM_THREADS=",
        mended="model 1 OMP_NUM_THREADS=8",
        fix=(("OMP", "export OMP"),),
        others=(("./model", "model"),),
        see="OMP_NUM_THREADS",
    ),
    Proof(
        rule="SB424",
        bad="model 1 FOLDER=alice",
        mended="model 1 FOLDER=submission",
        fix=(("$PBS_O_WORKDIR", "$SLURM_SUBMIT_DIR"),),
        others=(("./model", "model"),),
        see="FOLDER",
    ),
    Proof(
        rule="SB425",
        bad="python 4+4 WORLD_SIZE=4",
        mended="python 4+4 WORLD_SIZE=8",
        fix=(("=4\nsrun", "=$SLURM_NTASKS\nsrun"),),
        see="WORLD_SIZE",
    ),
    Proof(
        rule="SB802",
        bad="python 1 NCCL_DEBUG=",
        mended="python 1 NCCL_DEBUG=INFO",
        fix=(("NCCL-DEBUG", "NCCL_DEBUG"),),
        others=(("[ ", "true || [ "), ("test a", "true || test a")),
        see="NCCL_DEBUG",
    ),
    Proof(
        rule="SB813",
        bad="python 1 ARGUMENTS=train.py --epochs=3; FAILED 127",
        mended="python 1 ARGUMENTS=train.py --epochs=3 --lr=0.1",
        fix=(("=3\n", "=3 \\\n"),),
        see="ARGUMENTS",
    ),
    Proof(
        rule="SB813",
        bad="python 1 ARGUMENTS=train.py  ; FAILED 127",
        mended="python 1 ARGUMENTS=train.py --lr 0.1 --epochs 3",
        good="",
        examples=(1, 0),
        see="ARGUMENTS",
    ),
)
_ENDS = (
    Proof(
        rule="SB309",
        bad="python 0",
        mended="python 1",
        examples=(1, 0),
        first="trap 'until [ -e ../bin/record ]; do sleep 0.1; done' EXIT",  # else it may not start
        seconds=(LONG_S, 1),
    ),
    Proof(rule="SB311", bad="python 1", mended="python 1; FAILED 3", status=3),
    Proof(
        rule="SB311",
        bad="python 1+1",
        mended="python 1+1; FAILED 3",
        examples=(2, 4),
        fix=(("bash -c", "bash -o pipefail -c"),),
        status=3,
    ),
    Proof(
        rule="SB312", bad="python 1", mended="python 1; FAILED 3", status=3, fix=(("srun", "set -e\nsrun"),)
    ),
    Proof(
        rule="SB312",
        bad="python 1",
        mended="python 1; FAILED 3",
        examples=(2, 1),
        status=3,
        fix=(("date\nstatus=$?", "status=$?\ndate"),),
    ),
    Proof(
        rule="SB312",
        bad="model 1",
        mended="model 1; FAILED 3",
        good="",
        examples=(4, 0),
        status=3,
        fix=(("model", "set -e\nmodel"),),
        others=(("mpirun ./solver", "model"),),
    ),
    Proof(
        rule="SB312",
        bad="python 1",
        mended="python 1; FAILED 3",
        good="",
        examples=(5, 0),
        status=3,
        fix=(("python", "set -e\npython"),),
    ),
    Proof(
        rule="SB329",
        bad="make 1 model 1; FAILED 2",
        mended="make 1; FAILED 1",
        status=2,
        fix=(("make", "set -o pipefail\nmake"),),
        others=(("./model", "model"),),
    ),
    # 26.05 is that of a Debian whose dash knows pipefail.
    Proof(
        rule="SB411", bad=("nothing; FAILED 2", ""), mended="python 1; FAILED 3", status=3, examples=(0, 1)
    ),
    Proof(
        rule="SB601",
        bad="python 0; FAILED by signal 10",
        mended="python on stop 1",
        fix=(("srun python train.py", f"{_TRAP}{_AWAITED}"),),
        seconds=(LONG_S, LONG_S),
        warned=True,
    ),
    Proof(
        rule="SB602",
        bad="python 1",
        mended="python on stop 1",
        fix=(("srun python train.py", _AWAITED),),
        seconds=(5, LONG_S),
        warned=True,
    ),
    Proof(
        rule="SB603",
        bad="python on USR1 1",
        mended="python on stop 1",
        fix=(("=USR1", "=B:USR1"),),
        seconds=(LONG_S, LONG_S),
        warned=True,
    ),
    Proof(
        rule="SB603",
        bad="python 1",
        mended="python on USR1 1",
        examples=(1, 1),
        fix=(("python", "srun python"),),
        seconds=(5, LONG_S),
        warned=True,
    ),
    Proof(
        rule="SB614",
        bad="torchrun 0 worker 1; FAILED 138",
        mended="torchrun on stop 1 worker 1",
        good="torchrun on stop 1",
        fix=(("=USR1", "=B:USR1"), ("srun", f"{_TRAP}srun"), ("auto\n", f"auto &\n{_LOOP}\n")),
        seconds=(LONG_S, LONG_S),
        warned=True,
    ),
    Proof(
        rule="SB615",
        bad="python on USR1 1; FAILED 138",
        mended="python on USR1 1",
        fix=(("python", "exec python"),),
        seconds=(LONG_S, LONG_S),
        warned=True,
    ),
    Proof(
        rule="SB617",
        bad="python 4+4; FAILED 3",
        mended="python 1+0; FAILED 143",
        fix=(("srun", "srun --kill-on-bad-exit=1"),),
        seconds=(5, LONG_S),
        status=3,
        failing_rank="0",
    ),
    Proof(
        rule="SB626",
        bad="python 0; FAILED 138",
        mended="python on USR1 1",
        examples=(1, 0),
        fix=(('wait "$pid"', "while kill -0 $pid 2>/dev/null; do wait $pid; done; wait $pid"),),
        seconds=(LONG_S, LONG_S),
        saves=8,
        warned=True,
    ),
    Proof(
        rule="SB346",
        bad=("python 1", "nothing; REFUSED"),
        mended="python 2",
        fix=((" --ntasks=1", ""),),
    ),
)
_REFUSED = "nothing; REFUSED"
_READ = (
    Proof(
        rule="SB101",
        bad=_REFUSED,
        mended="python 1",
        examples=(1, 0),
        fix=(("#SBATCH", "#!/bin/bash\n#SBATCH"),),
    ),
    Proof(rule="SB102", bad=_REFUSED, mended="python 1"),
    Proof(
        rule="SB104",
        bad="python 1",
        mended="python 1+1",
        good="",
        fix=(("set -euo pipefail\n#SBATCH --nodes=2", "#SBATCH --nodes=2\nset -euo pipefail"),),
    ),
    Proof(rule="SB105", bad="python 1", mended="python 1+1", examples=(1, 0), fix=(("# SBATCH", "#SBATCH"),)),
    Proof(rule="SB107", bad=_REFUSED, mended="python 1", fix=(("my run", '"my run"'),)),
    Proof(rule="SB108", bad=_REFUSED, mended="python 1", fix=(("it's", r"it\'s"),)),
    Proof(
        rule="SB110",
        bad="python 1",
        mended="python 2",
        fix=(("-J\n", "-J name\n"),),
        others=(("-n1", "-n2"),),
    ),
    Proof(rule="SB111", bad=_REFUSED, mended="python 1+1", examples=(1, 0), fix=(("-N=2", "-N2"),)),
    Proof(rule="SB112", bad=_REFUSED, mended="python 1+1", fix=(("nodes = 2", "nodes=2"),)),
    Proof(
        rule="SB113",
        bad=_REFUSED,
        mended="python 1+1",
        fix=(("--node=2", "--nodes=2"), ("#SBATCH --foo=1\n", "")),
    ),
    Proof(
        rule="SB114",
        bad=_REFUSED,
        mended="python 1",
        good="",
        examples=(1, 0),
        fix=((" --cpu-bind=cores", ""), ("srun", "srun --cpu-bind=cores")),
    ),
    Proof(rule="SB126", bad=_REFUSED, mended="python 1+1", good="", fix=(("=two", "=2"),)),
    Proof(
        rule="SB131",
        bad=_REFUSED,
        mended="python 1",
        fix=((" --mem-per-gpu=16G", ""),),
        others=(("=64G", "=1000M"),),
    ),
    Proof(
        rule="SB135",
        bad=_REFUSED,
        mended="python 2",
        examples=(1, 1),
        fix=(("task=1", "task=1 --ntasks=2 --nodes=1"),),
    ),
    Proof(
        rule="SB140",
        bad=_REFUSED,
        mended="model 1",
        examples=(10, 6),
        fix=(("--time=5", "--time=10"),),
        others=(("./model", "model"),),
    ),
    Proof(
        rule="SB142",
        bad=_REFUSED,
        mended="model 8",
        good="",
        examples=(1, 0),
        fix=(("--ntasks=8", "--ntasks=8 --ignore-pbs"),),
        others=(("./model", "model"),),
    ),
)
_MORE_STARTS = (
    Proof(
        rule="SB335",
        bad="python 1 ARGUMENTS=--epochs 3",
        mended="python 1 ARGUMENTS=train.py --epochs 3",
        good="",
        examples=(3, 0),
        fix=(("EPOCHS=3", "EPOCHS=3 SCRIPT=train.py"),),
        see="ARGUMENTS",
    ),
    Proof(
        rule="SB340",
        bad="nothing; FAILED 1",
        mended="python 1+1",
        fix=(("--nodes=4 --ntasks=4", "--nodes=2 --ntasks=2"),),
    ),
    Proof(
        rule="SB350",
        bad="python 16",
        mended="python 1",
        good="",
        examples=(1, 0),
        fix=(("srun", "srun --ntasks=1"),),
    ),
    Proof(
        rule="SB351",
        bad=("python 1 GPUS=2", "nothing; FAILED 1"),
        mended="python 1 GPUS=2",
        examples=(1, 0),
        fix=(("--gres=gpu:2", "--gpus-per-node=2"),),
        see="GPUS",
    ),
    Proof(
        rule="SB430",
        bad="python 1 TORCH_HOME=",
        mended="python 1 TORCH_HOME=/models",
        good="",
        examples=(1, 0),
        fix=(("bash venv", "source venv"),),
        see="TORCH_HOME",
        files={"venv/bin/activate": "export TORCH_HOME=/models\n"},
    ),
    Proof(
        rule="SB432",
        bad="python 4 GPUS=1",
        mended="python 4 GPUS=4",
        fix=((" CUDA_VISIBLE_DEVICES=$SLURM_LOCALID", ""),),
        see="GPUS",
    ),
    Proof(
        rule="SB803",
        bad="nothing; FAILED 127",
        mended="python 1",
        good="",
        fix=(("torch/bin", "torch/bin:$PATH"),),
    ),
    Proof(
        rule="SB819",
        bad="nothing; FAILED 1",
        mended="python 1",
        good="",
        examples=(1, 0),
        fix=(("let n++", "n=$((n + 1))"),),
    ),
    Proof(
        rule="SB904",
        bad="python 1 RATES=0.1",
        mended="python 1 RATES=0.1,0.2",
        examples=(3, 2),
        fix=(("srun --export=ALL,RATES=0.1,0.2", "export RATES=0.1,0.2\nsrun"),),
        see="RATES",
    ),
)
_TORCHRUN = Proof(
    rule="SB324",
    bad="worker 2+2 WORLD_SIZE=2",
    mended="worker 2+2 WORLD_SIZE=4",
    good="worker 2 WORLD_SIZE=2",
    fix=(("--standalone", "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29400"),),
    others=(("node=4", "node=2"),),
    first=f"rm ../bin/torchrun; PATH+=:{Path(sys.prefix) / 'bin'}; {_HEAD}",
    see="WORLD_SIZE",
    files={"train.py": "import os\nos.execv('../bin/worker', ['worker'])\n"},
)
# The static one hangs until its limit, so it does not run.
_STATIC = replace(_TORCHRUN, rule="SB355", bad="", good=None, fix=(), others=_TORCHRUN.others[:1])
_STATIC = replace(_STATIC, first=f"rm ../bin/torchrun ../bin/python; PATH+=:{Path(sys.prefix) / 'bin'}")
_TO_ALL = replace(_STATIC, rule="SB303", bad="", good="", examples=(3, 0))
PROOFS = (
    *_TASKS,
    *_GETS,
    *_ENDS,
    *_READ,
    *_MORE_STARTS,
    *[_TORCHRUN, _STATIC, _TO_ALL] * bool(find_spec("torch")),
)
_TWO_CPUS = (("=8", "=2"), ("-c 32", "-c 2"), ("=32", "=2"))
_BOUND = "export SLURM_CPU_BIND=cores"  # else a task alone on a socket gets all CPUs of it
BINDINGS = (
    Proof(
        rule="SB305",
        bad=("python 1 CPUS=1", "python 1 CPUS=2"),
        mended="python 1 CPUS=2",
        others=_TWO_CPUS,
        first=_BOUND,
        see="CPUS",
    ),
    Proof(
        rule="SB305",
        bad=("python 1 CPUS=1", "python 1 CPUS=2"),
        mended="python 1 CPUS=2",
        examples=(0, 1),
        fix=(("srun", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun"),),
        others=(*_TWO_CPUS, ("srun hostname\n", "")),
        first=_BOUND,
        see="CPUS",
    ),
)
