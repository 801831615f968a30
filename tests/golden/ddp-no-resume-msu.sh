#!/bin/bash
# Rendered by sbatchgen 0.1.0 (3ac4de4a7454): sbatchgen render ddp
#SBATCH --job-name=ddp
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --partition=batch
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=0-02:00:00
#SBATCH --no-requeue

umask 027
set -o pipefail

die() {
    echo "error: $*" >&2
    exit 1
}

# --- The allocation ---
[[ -n ${SLURM_JOB_ID:-} ]] || die "this script runs under Slurm: start it with sbatch"
command -v srun scontrol >/dev/null || die "no srun and scontrol on PATH: $PATH"
NNODES=2
NPROC_PER_NODE=4
RESTARTS=${SLURM_RESTART_COUNT:-0} # how often Slurm has started this job again
SUBMIT_DIR=${SLURM_SUBMIT_DIR:-$PWD}

mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
((${#HOSTS[@]} == NNODES)) ||
    die "the job has ${#HOSTS[@]} nodes, this script is for $NNODES: render it again with --nodes ${#HOSTS[@]}"
if [[ -n ${SLURM_GPUS_ON_NODE:-} ]] && ((SLURM_GPUS_ON_NODE != 4)); then
    die "the job has $SLURM_GPUS_ON_NODE GPUs a node, this script is for 4: render it again"
fi
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT # of a shell that torchrun started

# Processes meet on the first node, at a port of this job's own: two jobs on a node must not share one.
export MASTER_ADDR=${HOSTS[0]}
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
echo "Job $SLURM_JOB_ID on ${HOSTS[*]}, restart $RESTARTS, submitted in $SUBMIT_DIR"

# --- Folders of the run ---
RUN_DIR="/scratch/${USER}/runs/ddp"
DATA_DIR="/scratch/${USER}/datasets/mnist"
export SBATCHGEN_STOP_FILE=$RUN_DIR/stop SBATCHGEN_STATUS_FILE=$RUN_DIR/status.json
mkdir -p -- "$RUN_DIR" || die "can't make the run folder $RUN_DIR"

# A field of the status that the trainer keeps in the run folder; nothing where there is none.
status_field() {
    local status
    status=$(cat -- "$SBATCHGEN_STATUS_FILE" 2>/dev/null) &&
        [[ $status =~ \"$1\":\ \"?([^\",}]+) ]] && echo "${BASH_REMATCH[1]}"
}
STATUS_BEFORE=$(stat --format="%i %y" -- "$SBATCHGEN_STATUS_FILE" 2>/dev/null)
rm -f -- "$SBATCHGEN_STOP_FILE"

# --- Signals ---
trap 'touch -- "$SBATCHGEN_STOP_FILE"; echo "Terminated: asking the trainer to stop"' TERM

# --- Enroot image ---
unset PYTHONPATH PYTHONHOME
IMAGE="/scratch/${USER}/nvcr.io+nvidia+pytorch+24.04-py3.sqsh"
[[ -r $IMAGE ]] || die "can't read the image $IMAGE"

# --- Environment ---
export PYTHONUNBUFFERED=1
export PYTHONNOUSERSITE=1
export PYTHONFAULTHANDLER=1
export OMP_NUM_THREADS=4
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2
export NVIDIA_VISIBLE_DEVICES=all
export NVIDIA_DRIVER_CAPABILITIES=compute,utility
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
[[ -d $CODE_DIR/training ]] || die "no training package in $CODE_DIR"
export PYTHONPATH=$CODE_DIR:$PWD
export PYTHONSAFEPATH=1 # a folder `training` of your own must not take its place

# --- Training ---
RESUME=off
# The -- ends torchrun's own options: it would take a trainer's --n or --log for short forms of them.
trainer=(
    -m -- training
    --data-dir "$DATA_DIR"
    --run-dir "$RUN_DIR"
    --resume "$RESUME"
    --device cuda
    --preempted-status 0 # torchrun would report a stop as a failure; the status file tells it below
    --dataset mnist
    --epochs 10
)
# Each node runs this; its variables are the node's own. The agent of the first node holds the meeting
# point: left to torchrun, a node whose name has several addresses would never know that it is the one.
agent=$(
    cat <<'SH'
if [ "$SLURMD_NODENAME" = "$MASTER_ADDR" ]; then is_host=1; else is_host=0; fi
exec torchrun --rdzv-conf="is_host=$is_host,read_timeout=600" --local-addr="$SLURMD_NODENAME" "$@"
SH
)
command=(
    /bin/sh -c "$agent" sh
    --nnodes="$NNODES" --nproc-per-node="$NPROC_PER_NODE" --max-restarts=0
    --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$SLURM_JOB_ID.$RESTARTS"
    "${trainer[@]}"
)
# What the container sees of the cluster, at the same paths as outside.
folders=("$PWD" "$RUN_DIR")
[[ -d $DATA_DIR ]] && folders+=("$DATA_DIR")
folders+=("$CODE_DIR")
for folder in "${folders[@]}"; do
    [[ $folder != *[,:]* ]] || die "a comma or a colon in its name keeps $folder out of the container"
done
mounts=()
for folder in "${folders[@]}"; do
    mounts+=("$folder:$folder")
done
mounts+=("/scratch/${USER}:/scratch/${USER}")
srun=(
    srun --ntasks-per-node=1 --cpus-per-task=16
    --kill-on-bad-exit=1 --wait=60
    --container-image="$IMAGE" --container-mounts="$(IFS=, && echo "${mounts[*]}")"
    --container-workdir="$PWD" --no-container-mount-home
    --container-env="PYTHONUNBUFFERED,PYTHONNOUSERSITE,PYTHONFAULTHANDLER,OMP_NUM_THREADS,PET_SIGNALS_TO_HANDLE,NVIDIA_VISIBLE_DEVICES,NVIDIA_DRIVER_CAPABILITIES,MASTER_ADDR,MASTER_PORT,PYTHONPATH,PYTHONSAFEPATH,SBATCHGEN_STOP_FILE,SBATCHGEN_STATUS_FILE"
)
"${srun[@]}" "${command[@]}" &
child=$!
while kill -0 "$child" 2>/dev/null; do
    wait "$child" # a signal ends the wait, not the training
done
wait "$child"
rc=$?

# --- Outcome ---
state="" step=0
if [[ $(stat --format="%i %y" -- "$SBATCHGEN_STATUS_FILE" 2>/dev/null) != "$STATUS_BEFORE" ]]; then
    state=$(status_field state)
    step=$(status_field step)
fi
if [[ $state == preempted ]]; then
    echo "Stopped at step $step, saved in $RUN_DIR: the same command goes on from there"
    exit 75 # sysexits' EX_TEMPFAIL: not done, but nothing is wrong
fi
if ((rc != 0)); then
    status=$(status_field exit)
    [[ $state == failed && -n $status ]] && rc=$status # torchrun turns every exit status into 1
    echo "The training ended with exit status $rc" >&2
fi
exit "$rc"
