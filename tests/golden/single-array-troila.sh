#!/bin/bash
# sbatchgen 0.3.0 (38e433b19eb0): sbatchgen render single
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

RUN_DIR="${SLURM_SUBMIT_DIR}/runs/single"/$SLURM_ARRAY_TASK_ID # each element of the array is a run of its own
DATA_DIR="${SLURM_SUBMIT_DIR}/data"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
conda_root="${HOME}/anaconda3"
conda_env="pytorch"
max_restarts=10

environment() {
    activate_conda
    export PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=4
}

train() { # one process
    exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
        python3 "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume auto --device cuda \
        --launcher none \
        --dataset mnist --epochs 10
}

# === The same in every job of this kind, with the runtime conda and restarts: sbatchgen help script

die() {
    echo "error: $*" >&2
    exit 1
}

make_run_folder() {
    umask go-w
    mkdir -p -- "$RUN_DIR" || die "can't make the run folder $RUN_DIR"
    chmod go-w -- "$RUN_DIR"
    [[ -O $RUN_DIR && ! -L $RUN_DIR ]] || die "not a folder of your own: $RUN_DIR"
    # Others could replace this folder below one with the mode drwxrwxrwx, but not below drwxrwxrwt.
    if namei -m "$RUN_DIR" | grep '^ d.......w[^tT]'; then
        die "others may replace $RUN_DIR"
    fi
    rm -f -- "$RUN_DIR/stop" "$RUN_DIR/again" # left by an earlier start
}

activate_conda() {
    forget_shell
    eval "$("$conda_root/bin/conda" shell.bash hook)"
    conda activate "$conda_env" || die "can't activate the conda environment $conda_env"
    PATH=$CONDA_PREFIX/bin:$PATH # conda leaves an environment that was active behind the modules
    [[ -x $CONDA_PREFIX/bin/python3 ]] || die "no python3 in $CONDA_PREFIX"
}

forget_shell() { # what the submitting shell had set for its own Python
    unset PYTHONHOME PYTHONPATH
}

on_time_limit() { # --signal sends USR1: the trainer saves and ends when it sees the file
    echo limit >"$RUN_DIR/stop"
}

on_cancel() { # scancel and preemption send TERM
    echo cancelled >"$RUN_DIR/stop"
    max_restarts=0
}

wait_for_training() {
    while kill -0 $! 2>/dev/null; do
        wait $! # a signal ends this wait, not the training
    done
    wait $!
    status=$?
}

start_again() { # the trainer leaves RUN_DIR/again if it has saved, and has more to do
    if [[ -e $RUN_DIR/stop ]] && ! grep -qx limit "$RUN_DIR/stop"; then
        return # stopped by hand, or cancelled
    fi
    if [[ -e $RUN_DIR/again ]] && ((restarts < max_restarts)); then
        echo "Requeueing: restart $((restarts + 1)) of at most $max_restarts"
        scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" && exit 0
    fi
}

# --- What happens, in this order ---
[[ $SLURM_JOB_ID ]] || die "this script is a job: submit it with sbatch"
make_run_folder
environment
export SBATCHGEN_AGAIN_FILE=$RUN_DIR/again
restarts=${SLURM_RESTART_COUNT:-0}
echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart $restarts of at most $max_restarts"
trap on_time_limit USR1
trap on_cancel TERM
train & # becomes the program itself, by exec: this shell stays for the signals
wait_for_training
start_again
[[ $status == 0 ]] || exit "$status"
