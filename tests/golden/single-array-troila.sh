#!/bin/bash
# sbatchgen 0.3.0 (b6e15fa337af): sbatchgen render single
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

die() { echo "error: $*" >&2; exit 1; }; [[ $SLURM_JOB_ID ]] || die "this script is a job: submit it with sbatch"

# --- Paths ---
RUN_DIR="${SLURM_SUBMIT_DIR}/runs/single"/$SLURM_ARRAY_TASK_ID # each element of the array is a run of its own
DATA_DIR="${SLURM_SUBMIT_DIR}/data"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
umask go-w; mkdir -p -- "$RUN_DIR" || die "can't make the run folder $RUN_DIR"; chmod go-w -- "$RUN_DIR"
[[ -O $RUN_DIR && ! -L $RUN_DIR ]] || die "not a folder of your own: $RUN_DIR"
! namei -m "$RUN_DIR" | grep '^ d.......w[^tT]' || die "others may replace $RUN_DIR" # drwxrwxrwx: all may write
rm -f -- "$RUN_DIR/stop" "$RUN_DIR/again" # left by an earlier start

# --- Environment ---
unset PYTHONPATH PYTHONHOME # yours
eval "$("${HOME}/anaconda3"/bin/conda shell.bash hook)"
conda activate "pytorch" || die "can't activate the conda environment" "pytorch"
PATH=$CONDA_PREFIX/bin:$PATH # one that was active already keeps its place, behind the modules
[[ -x $CONDA_PREFIX/bin/python3 ]] || die "no python3 in $CONDA_PREFIX"
export PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=4 SBATCHGEN_AGAIN_FILE=$RUN_DIR/again

# --- Stop: the trainer saves and ends when it sees RUN_DIR/stop ---
restarts=${SLURM_RESTART_COUNT:-0} max_restarts=10
echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart $restarts of at most $max_restarts"
trap 'echo limit >"$RUN_DIR/stop"' USR1 # sent by --signal, shortly before the time limit
trap 'echo cancelled >"$RUN_DIR/stop"; max_restarts=0' TERM # sent by scancel and preemption

# --- Training: one process ---
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    python3 "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume auto --device cuda \
    --launcher none \
    --dataset mnist --epochs 10 &
while kill -0 $! 2>/dev/null; do wait $!; done; wait $! # a signal ends `wait`: repeat it while the process is there
rc=$?

# --- Start again: the trainer leaves RUN_DIR/again if it was stopped, has saved, and has more to do ---
if [[ -e $RUN_DIR/stop ]] && ! grep -qx limit "$RUN_DIR/stop"; then max_restarts=0; fi # stopped by hand, or cancelled
if [[ -e $RUN_DIR/again ]] && ((restarts < max_restarts)); then
    echo "Requeueing: restart $((restarts + 1)) of at most $max_restarts"
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" && exit 0; fi
exit "$rc"
