r"""Train a classifier under any launcher; stop it at any moment and resume without losing a sample.

    # one process; then one with all GPUs of the machine
    python -m training --dataset mnist --data-dir data --run-dir runs/one
    python -m training --dataparallel --run-dir runs/all

    # one machine, 2 processes, with a GPU each if there are GPUs
    torchrun --standalone --nproc-per-node 2 -m -- training --batch-size 256
    python -m training --launcher spawn --nproc-per-node 2

    # 2 machines, 4 processes, in a job with: sbatch --nodes 2 --ntasks-per-node 2
    export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500
    srun python -m training
    srun --ntasks 2 --ntasks-per-node 1 python -m training --launcher spawn --nproc-per-node 2
    srun --ntasks 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d \
        --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" --rdzv-id "$SLURM_JOB_ID" -m -- training

The folder that holds `training` is the current one, or on PYTHONPATH. `sbatchgen render` writes such a job as
a complete script. Everything about a run is in its folder (--run-dir):

    config.json     the configuration of the last start
    status.json     one line: {"state": "running|preempted|done|failed", "step", "epoch", "checkpoint", ...}
    events.jsonl    one JSON object per line: starts, losses, epochs, saves, stops
    checkpoints/    step-00001200.pt ... and best.pt; with --keep-epochs checkpoint_epoch_1.pt ... too
    model.pt        only the weights, written at the end: model.load_state_dict(torch.load(...))
    evaluations.csv a row for each start with --evaluate
    tensorboard/    curves for TensorBoard, if it is installed
    lock.json       which job is using the folder; the lock of a dead job is taken over
    stop            touch it to stop the run; remove it before the next start
    again, exit     for the job script: start the job again; the exit status

Exit status: 0 done, 75 stopped and saved, 3 loss not finite, 1 failed.
"""
