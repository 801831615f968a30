#!/bin/bash
# Rendered by sbatchgen 0.1.0 (12c3195b0b33): sbatchgen render single
#SBATCH --job-name=single
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:1
#SBATCH --mem=2G
#SBATCH --time=0-01:00:00
#SBATCH --array=0-9%2
#SBATCH --requeue
#SBATCH --signal=B:USR1@300

umask 027
set -o pipefail

die() {
    echo "error: $*" >&2
    exit 1
}

# --- The allocation ---
[[ -n ${SLURM_JOB_ID:-} ]] || die "this script runs under Slurm: start it with sbatch"
command -v srun scontrol >/dev/null || die "no srun and scontrol on PATH: $PATH"
NNODES=1
RESTARTS=${SLURM_RESTART_COUNT:-0} # how often Slurm has started this job again
MAX_RESTARTS=10
SUBMIT_DIR=${SLURM_SUBMIT_DIR:-$PWD}

mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
((${#HOSTS[@]} == NNODES)) ||
    die "the job has ${#HOSTS[@]} nodes, this script is for $NNODES: render it again with --nodes ${#HOSTS[@]}"
if [[ -n ${SLURM_GPUS_ON_NODE:-} ]] && ((SLURM_GPUS_ON_NODE != 1)); then
    die "the job has $SLURM_GPUS_ON_NODE GPUs a node, this script is for 1: render it again"
fi
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT # of a shell that torchrun started
echo "Job $SLURM_JOB_ID on ${HOSTS[*]}, restart $RESTARTS, submitted in $SUBMIT_DIR"

# --- Folders of the run ---
RUN_DIR="$SUBMIT_DIR/runs/single"/$SLURM_ARRAY_TASK_ID # each element of the array is a run of its own
DATA_DIR="$SUBMIT_DIR/data"
export SBATCHGEN_STOP_FILE=$RUN_DIR/stop SBATCHGEN_STATUS_FILE=$RUN_DIR/status.json
mkdir -p -- "$RUN_DIR" || die "can't make the run folder $RUN_DIR"

# A field of the status that the trainer keeps in the run folder; nothing where there is none.
status_field() {
    local status
    status=$(cat -- "$SBATCHGEN_STATUS_FILE" 2>/dev/null) &&
        [[ $status =~ \"$1\":\ \"?([^\",}]+) ]] && echo "${BASH_REMATCH[1]}"
}

# A restarted job, or a later element of an array of equal jobs, may find the work done.
if [[ $(status_field state) == "done" ]] && ((RESTARTS > 0)); then
    echo "The run in $RUN_DIR is done: nothing left to do"
    exit 0
fi
STATUS_BEFORE=$(stat --format="%i %y" -- "$SBATCHGEN_STATUS_FILE" 2>/dev/null)
STEP_BEFORE=$(status_field step)
rm -f -- "$SBATCHGEN_STOP_FILE"

# --- Signals ---
WARNED=no
trap 'WARNED=yes; touch -- "$SBATCHGEN_STOP_FILE"; echo "Near the time limit: asking the trainer to stop"' USR1
# Cancelled or preempted: whether to start again is not ours to decide.
trap 'WARNED=never; touch -- "$SBATCHGEN_STOP_FILE"; echo "Terminated: asking the trainer to stop"' TERM

# --- Conda environment ---
unset PYTHONPATH PYTHONHOME
CONDA="${HOME}/anaconda3"/bin/conda
CONDA_ENV="pytorch"
[[ -x $CONDA ]] || die "no conda at '$CONDA'"
eval "$("$CONDA" shell.bash hook)" || die "conda's shell hook failed"
conda activate "$CONDA_ENV" || die "can't activate the conda environment $CONDA_ENV"
[[ $(command -v python3) == "$CONDA_PREFIX"/bin/python3 ]] ||
    die "python3 is $(command -v python3), not that of $CONDA_PREFIX"

# --- Environment ---
export PYTHONUNBUFFERED=1
export PYTHONNOUSERSITE=1
export PYTHONFAULTHANDLER=1
export OMP_NUM_THREADS=4
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
[[ -d $CODE_DIR/training ]] || die "no training package in $CODE_DIR"
export PYTHONPATH=$CODE_DIR:$PWD
export PYTHONSAFEPATH=1 # a folder `training` of your own must not take its place

# --- Training ---
RESUME=auto
trainer=(
    -m training
    --data-dir "$DATA_DIR"
    --run-dir "$RUN_DIR"
    --resume "$RESUME"
    --device cuda
    --launcher none
    --dataset mnist
    --epochs 10
)
command=(python3 -u "${trainer[@]}")
srun=(
    srun --ntasks-per-node=1 --cpus-per-task=4
    --kill-on-bad-exit=1 --wait=60
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
again="" # why the job is to start once more
# By Slurm's warning, or because the trainer saw the end of its time come.
if [[ $state == preempted && ($WARNED == yes || $(status_field reason) == deadline) ]]; then
    if ((step > ${STEP_BEFORE:-0})); then
        again="Stopped at step $step"
    else
        echo "Not restarted: nothing was gained since the start" >&2
    fi
fi
if [[ -n $again ]]; then
    if ((RESTARTS >= MAX_RESTARTS)); then
        echo "Not restarted: the job has had all of its $MAX_RESTARTS restarts" >&2
    else
        # Said before: the requeue may end this script at once.
        echo "$again: requeueing, restart $((RESTARTS + 1)) of at most $MAX_RESTARTS"
        scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" && exit 0
        echo "Not restarted: Slurm refused to requeue the job" >&2
    fi
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
