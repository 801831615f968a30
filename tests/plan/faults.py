"""Planted faults for `sbatchgen plan`: what is changed in a healthy script, and what the plan must say of it."""

from __future__ import annotations

from typing import NamedTuple

PROFILE = """
name: here
url: https://example.org
checked: 2026-01-01
network: {nccl_socket_ifname: hsn}
default_partition: gpu
partitions: {gpu: {gpus_per_node: 4, cpus_per_node: 64}}
runtime: host
"""
GIVEN = (
    "/project/train/",
    "/project/train/venv/bin/activate",
    "/project/train/prepare.sh",
    "/images/torch.sif",
)
SCRIPTS = {
    "torchrun": """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=8 --time=1:00:00
set -e
cd /project/train
source venv/bin/activate
if [ "$SLURM_NNODES" -gt 1 ]; then
    nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
    head=${nodes[0]}
fi
export NCCL_SOCKET_IFNAME=hsn0
SCRIPT="train.py --data /data"
srun -N1 -n1 -w "$head" ./prepare.sh
srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$head:29500 $SCRIPT
""",
    "static": """\
#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=4 --time=1:00:00
export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
srun bash -c 'torchrun --nnodes=$SLURM_NNODES --node-rank=$SLURM_NODEID --nproc-per-node=4 \\
    --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train.py'
""",
    "ranks": """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --time=1:00:00
export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=29500
export WORLD_SIZE=$((SLURM_NNODES * 4))
srun apptainer exec --nv /images/torch.sif bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train.py'
""",
    "several": """\
#!/bin/bash
#SBATCH --ntasks=2 --gpus-per-node=4 --cpus-per-task=4 --time=1:00:00
CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=2 --master-port=29501 a.py & first=$!
CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node=2 --master-port=29502 b.py & second=$!
wait $first && wait $second || exit
srun --exact -n1 --gpus-per-node=1 python a.py & first=$!
srun --exact -n1 --gpus-per-node=1 python b.py & second=$!
wait $first && wait $second || exit
CUDA_VISIBLE_DEVICES=0 python c.py & first=$!
CUDA_VISIBLE_DEVICES=1 python d.py & second=$!
wait $first && wait $second
""",
    "ray": """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-task=4 --cpus-per-task=8 --time=1:00:00
set -e
nodes=($(scontrol show hostnames))
for node in "${nodes[@]}"; do
    srun -N1 -n1 -w "$node" ray start --address="${nodes[0]}:6379" --num-gpus "$SLURM_GPUS_PER_TASK" --block &
done
srun --overlap -N1 -n1 python train.py
""",
}


class Fault(NamedTuple):
    """A mistake, and what the plan says of it.

    Attributes:
        name: What is wrong.
        script: The healthy script.
        old: What is taken out of it.
        new: What comes in its place.
        says: What a finding or a line of what is needed says.
        line: The line that it names.
    """

    name: str
    script: str
    old: str
    new: str
    says: str
    line: int


_NNODES = "--nnodes=$SLURM_NNODES"
FAULTS = (
    Fault("a launcher for more nodes than the job has", "torchrun", _NNODES, "--nnodes=4",
          "torchrun waits for 4 nodes (--nnodes), and starts on 2", 13),
    Fault("a launcher for fewer nodes than the job has", "static", _NNODES, "--nnodes=2",
          "torchrun is for 2 nodes (--nnodes), and starts 4 times", 4),
    Fault("a launcher of several nodes without srun", "torchrun", "srun torchrun", "torchrun",
          "torchrun waits for 2 nodes (--nnodes), and starts on 1", 13),
    Fault("more processes than GPUs", "torchrun", "--nproc-per-node=4", "--nproc-per-node=8",
          "--nproc-per-node 8, but a process has 4 GPUs", 13),
    Fault("a quoted list of nodes", "torchrun", '($(scontrol show hostnames "$SLURM_JOB_NODELIST"))',
          '("$(scontrol show hostnames "$SLURM_JOB_NODELIST")")',
          "srun -w has a value of several lines: 'node1', then 'node2'", 12),
    Fault("an empty option", "torchrun", "head=${nodes[0]}", "head=$(scontrol show hostnames | grep gpu | head -n 1)",
          "srun -w has no value: the variable in it is empty here", 12),
    Fault("a search that ends the script", "torchrun", "head=${nodes[0]}", "head=$(scontrol show hostnames | grep gpu)",
          "the script ends with 1 before it starts a program", 8),
    Fault("an empty address", "static", "| head -n 1)", "| sed -n 9p)",
          "--master-addr has no value: MASTER_ADDR is empty here", 4),
    Fault("a variable of Slurm without its option", "ray", "--gpus-per-task=4", "--gpus-per-node=4",
          "--num-gpus has no value: SLURM_GPUS_PER_TASK is empty, because the job has no --gpus-per-task", 6),
    Fault("a variable that nothing sets", "torchrun", "--data /data", "--data $DATA", "variable DATA", 11),
    Fault("an argument that is not given", "torchrun", "--data /data", "--data $1", "1 argument of the script", 11),
    Fault("a missing file", "torchrun", "venv/bin/activate", "env/bin/activate",
          "file /project/train/env/bin/activate", 5),
    Fault("a missing folder", "torchrun", "cd /project/train", "cd /project/trian", "folder /project/trian", 4),
    Fault("a missing program", "torchrun", "./prepare.sh", "./prepare_data.sh",
          "program /project/train/prepare_data.sh", 12),
    Fault("a missing file of the tasks", "static", "bash -c 'torchrun", "bash -c '. ./env.sh; torchrun",
          "/env.sh", 4),
    Fault("a file beside the script", "torchrun", "source venv", 'source "$(dirname "$0")"/venv',
          "Slurm runs a copy of the script in its spool folder, where there is no", 5),
    Fault("a port that differs between nodes", "static", "--master-port=$MASTER_PORT",
          "--master-port=$((20000 + SLURM_PROCID))",
          "the nodes don't meet: --master-port is 20000 on node1, and 20001 on node2", 4),
    Fault("an address that differs between nodes", "static", "--master-addr=$MASTER_ADDR",
          "--master-addr=$(hostname)", "the nodes don't meet: --master-addr is node1 on node1, and node2 on node2", 4),
    Fault("a node of another job", "static", "$(scontrol show hostnames | head -n 1)", "$(ssh gpu0123 hostname -I)",
          "ssh goes to gpu0123, which the script names: the job may run on other nodes", 3),
    Fault("the same rank on all nodes", "static", "=$SLURM_NODEID", "='$SLURM_NODEID'",
          "all 4 nodes get --node-rank 0: the batch script expands it, not the tasks", 4),
    Fault("the same rank in all processes", "ranks", "'RANK=$SLURM_PROCID", "'RANK='$SLURM_PROCID'",
          "all 8 processes get RANK=0: the batch script expands it, not the tasks", 5),
    Fault("a world of another size", "ranks", "SLURM_NNODES * 4", "SLURM_NNODES * 2",
          "WORLD_SIZE is 4, and this step starts 8 processes", 5),
    Fault("a port of its own for each process", "ranks", "'RANK=", "'MASTER_PORT=$((29500 + SLURM_PROCID)) RANK=",
          "the nodes don't meet: MASTER_PORT is 29500 on rank 0, and 29501 on rank 1", 5),
    Fault("a variable that no shell expands", "static", "=$SLURM_NNODES", "=\\$SLURM_NNODES",
          "torchrun gets --nnodes $SLURM_NNODES as it is: no shell expands the variable", 4),
    Fault("two launchers on the same GPUs", "several", "DEVICES=2,3", "DEVICES=1,2",
          "this torchrun and that of line 3 want GPU 1 of node1 at once", 4),
    Fault("two launchers on the same port", "several", "29502", "29501",
          "this torchrun and that of line 3 listen on port 29501 of a node at once", 4),
    Fault("two programs on the same GPU", "several", "DEVICES=1 ", "DEVICES=0 ",
          "this program and that of line 9 want GPU 0 at once", 10),
    Fault("two steps that each take the node", "several", "--exact -n1 --gpus-per-node=1 python", "-n1 python",
          "this step waits until that of line 6 ends: each takes all of node1", 7),
    Fault("two steps that each get all GPUs", "several", "--gpus-per-node=1 python", "--gpus-per-task=1 python",
          "this step waits until that of line 6 ends: each gets 4 GPUs of node1", 7),
    Fault("a step of more tasks than CPUs", "several", "--exact -n1", "--exact -n64",
          "Slurm refuses this step: Unable to create step for job: More processors requested than permitted", 6),
    Fault("a step of more nodes than the job has", "torchrun", "srun torchrun", "srun -N3 -n3 torchrun",
          "Slurm refuses this step: Only allocated 2 nodes asked for 3", 13),
    Fault("a container without an image", "ranks", "/images/torch.sif", "$(find /images -name none.sif)",
          "the container takes 'bash' for its image: the variable before it is empty", 5),
    Fault("a launcher without a program", "torchrun", " $SCRIPT", " $PROGRAM",
          "torchrun has no program: its command ends with its options", 13),
    Fault("a program that is never reached", "torchrun", "-gt 1 ]; then", "-gt 2 ]; then exit 1; else exit 0; fi; if true; then",
          "train.py is never reached: the script ends with 0 at line 6", 13),
    Fault("a mistake that bash reads late", "torchrun", "srun torchrun", "echo 'start\nsrun torchrun",
          "before its end: line 13: unexpected EOF while looking for matching", 13),
    Fault("a mistake that the shell of tasks reads", "static", "train.py'", "train.py <config>'",
          "no task of this step starts a program: bash: -c: line 2: syntax error near", 4),
    Fault("a sum with an empty value", "ranks", "SLURM_NNODES * 4", "SLURM_NNODES * $(nvidia-smi -x | wc -w | tr -d 0)",
          "bash can't compute this: SLURM_NNODES * : syntax error: operand expected", 4),
    Fault("a status that is lost", "static", "train.py'\n", "train.py'\necho done\n",
          "the job ends with 0 even if every program in it fails: echo comes last", 6),
    Fault("a status that a pipe hides", "static", "train.py'\n", "train.py' | tee log.txt\n",
          "the job ends with 0 even if every program in it fails: the pipe to tee hides it", 5),
    Fault("a network interface of another cluster", "torchrun", "IFNAME=hsn0", "IFNAME=ib0",
          "NCCL_SOCKET_IFNAME is ib0, but the profile 'here' says hsn", 12),
)  # fmt: skip
