r"""Train a classifier under any launcher, stop it at any moment, and go on without losing a sample.

    # one process, alone; then the same with all its GPUs
    python -m training --dataset mnist --data-dir data --run-dir runs/one
    python -m training --dataparallel

    # one node; then two nodes, one task a node
    torchrun --standalone --nproc-per-node 4 -m training --batch-size 256
    srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d \
        --rdzv-endpoint "$HEAD:$PORT" --rdzv-id "$SLURM_JOB_ID" -m training

    # without torchrun: one task a GPU; or one task a node
    srun --ntasks-per-node 4 python -m training
    srun --ntasks-per-node 1 python -m training --launcher spawn --nproc-per-node 4

srun and spawn want MASTER_ADDR and MASTER_PORT (spawn on one node does not). The run folder is the interface:

    config.json     what this start was asked for
    status.json     one line: {"state": "running|preempted|done|failed", "step", "epoch", "checkpoint", ...}
    events.jsonl    one JSON object a line: starts, losses, epochs, saves, stops
    checkpoints/    step-00001200.pt ... and best.pt
    lock.json       which job has the folder; what a dead one left is taken over
    stop            touch it to stop the run; remove it before the next start

Exit status: 0 done, 75 stopped and saved, 3 the loss is not finite, 1 failed.
"""
