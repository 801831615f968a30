#!/bin/bash
# sbatchgen 0.3.0 (5fe0a25ebffb): sbatchgen render cpu
#SBATCH --job-name=cpu
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --partition=batch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=0-02:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300

RUN_DIR="/scratch/${USER}/runs/cpu"
DATA_DIR="/scratch/${USER}/datasets/mnist"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
IMAGE="/scratch/${USER}/nvcr.io+nvidia+pytorch+24.04-py3.sqsh"
max_restarts=10

environment() {
    check_enroot "$PWD" "$CODE_DIR" "/scratch/${USER}"
    export PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=8 NVIDIA_VISIBLE_DEVICES=void ENROOT_FORCE_OVERRIDE=yes
}

train() { # one process
    exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
        --container-image="$IMAGE" --container-workdir="$PWD" --no-container-mount-home \
        --container-env="PYTHONUNBUFFERED,PYTHONNOUSERSITE,OMP_NUM_THREADS,NVIDIA_VISIBLE_DEVICES,PWD" \
        --container-mounts="$PWD:$PWD,$CODE_DIR:$CODE_DIR,/scratch/${USER}:/scratch/${USER}" env HOME="$RUN_DIR" \
        python3 "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume auto --device cpu \
        --launcher none \
        --dataset mnist --epochs 10
}

# === The same in every job of this kind, with the runtime enroot and restarts: sbatchgen help script

die() {
    echo "error: $*" >&2
    exit 1
}

check_pyxis() {
    if [[ $(srun --help) != *--container-env* ]]; then
        die "no pyxis 0.15: not installed, or PYXIS_CONTAINER_IMAGE is set"
    fi
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

check_enroot() { # MOUNT...: SOURCE[:TARGET[:OPTIONS]]
    forget_shell
    forget_host
    if [[ $IMAGE == /* && ! -r $IMAGE ]]; then
        die "can't read the image $IMAGE: see sbatchgen image --help"
    fi
    [[ -d $DATA_DIR ]] || die "no data folder $DATA_DIR"
    local mount name
    for mount in "$@"; do
        case $mount in
            "$PWD" | "$RUN_DIR" | "$DATA_DIR" | "$CODE_DIR")
                if [[ $mount == *[,:\"\$\`]* ]]; then
                    die "can't mount a folder with , : \" \$ or \` in its name"
                fi
                ;;
        esac
        [[ -e ${mount%%:*} ]] || die "can't mount ${mount%%:*}: it does not exist"
    done
    unset LC_ALL LD_PRELOAD # of your shell: a locale that the node lacks ends Enroot
    unset "${!PYXIS_CONTAINER_@}" # options of srun
    for name in HF_HOME MPLCONFIGDIR TORCH_HOME TRITON_CACHE_DIR WANDB_DIR XDG_CACHE_HOME; do
        is_mounted "${!name}" "$@" || unset "$name" # a folder of your shell
    done
}

is_mounted() { # FOLDER MOUNT...: whether the container has the folder
    local folder=$1 mount
    for mount in "${@:2}"; do
        mount=${mount#*:}
        if [[ $folder/ == "${mount%%:*}"/* ]]; then
            return
        fi
    done
    return 1
}

forget_shell() { # what the submitting shell had set for its own Python
    unset PYTHONHOME PYTHONPATH
}

forget_host() { # the same shell's paths, which a container does not have
    unset BASH_ENV CONDA_PREFIX CURL_CA_BUNDLE REQUESTS_CA_BUNDLE SSL_CERT_FILE VIRTUAL_ENV
}

on_time_limit() { # --signal sends USR1: the trainer saves and ends when it sees the file
    echo limit >"$RUN_DIR/stop"
}

on_cancel() { # scancel and preemption send TERM
    echo cancelled >"$RUN_DIR/stop"
    max_restarts=0
}

wait_for_training() {
    # The trainer has saved once RUN_DIR/again is there. Its containers may take minutes to end:
    # after 20 s the job is requeued, which ends them.
    local saved=0
    while kill -0 $! 2>/dev/null && ((saved < 20 || restarts >= max_restarts)); do
        sleep 1
        if [[ -e $RUN_DIR/again ]]; then
            ((++saved))
        fi
    done
    if kill -0 $! 2>/dev/null; then
        status=0
        return
    fi
    wait $!
    status=$?
}

start_again() { # the trainer leaves RUN_DIR/again if it has saved, and has more to do
    if [[ -e $RUN_DIR/stop ]] && ! grep -qx limit "$RUN_DIR/stop"; then
        return # stopped by hand, or cancelled
    fi
    if [[ -e $RUN_DIR/again ]] && ((restarts < max_restarts)); then
        echo "Requeueing: restart $((restarts + 1)) of at most $max_restarts"
        scontrol requeue "$SLURM_JOB_ID" && exit 0
    fi
}

# --- What happens, in this order ---
[[ $SLURM_JOB_ID ]] || die "this script is a job: submit it with sbatch"
check_pyxis
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
