#!/bin/bash
# sbatchgen 0.3.0 (d28f8975ad3d): sbatchgen render ddp
#SBATCH --job-name=ddp
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=0-02:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300

RUN_DIR="${SLURM_SUBMIT_DIR}/runs/ddp"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
VIRTUAL_ENV="${HOME}/venv"
max_restarts=10

environment() {
    check_modules
    module purge
    module load python/3.10 cuda/11.8 nccl/2.15 || die "can't load the modules"
    activate_venv
    find_first_node # and a port of this job
    export PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=4 RUN_DIR
    export NCCL_DEBUG=WARN NCCL_IB_DISABLE=0 NCCL_NET_GDR_LEVEL=2 NCCL_SOCKET_IFNAME='^docker,lo'
}

train() { # one torchrun on each node
    exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --distribution=block --kill-on-bad-exit=1 --wait=0 \
        python3 "$CODE_DIR/training/torchrun.py" --nnodes="$SLURM_NNODES" --nproc-per-node=8 -- \
        train.py \
        --lr 0.1 'a b'
}

# === The same in every job of this kind, with the runtime venv and restarts: sbatchgen help script

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
    rm -f -- "$RUN_DIR/stop" "$RUN_DIR/again" "$RUN_DIR/exit" # left by an earlier start
}

check_modules() {
    type -t module >/dev/null || die "no command 'module' here"
}

activate_venv() {
    forget_shell
    export VIRTUAL_ENV
    PATH=$VIRTUAL_ENV/bin:$PATH
    [[ -x $VIRTUAL_ENV/bin/python3 ]] || die "no virtual environment at $VIRTUAL_ENV"
}

forget_shell() { # what the submitting shell had set for its own Python
    unset PYTHONHOME
}

find_first_node() { # and a port there, for all processes of the job
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    # The kernel gives the ports from this one on to any program. Each job has another one below.
    local above
    read -r above _ </proc/sys/net/ipv4/ip_local_port_range
    if ((above <= 8200)); then
        above=30000 # on some nodes with GPUs the kernel gives nearly all ports
    fi
    MASTER_PORT=$((above - 8 - SLURM_JOB_ID % 875 * 8))
    export MASTER_ADDR MASTER_PORT
}

on_time_limit() { # --signal sends USR1: the trainer saves and ends when it sees the file
    echo limit >"$RUN_DIR/stop"
}

on_cancel() { # scancel and preemption send TERM
    echo cancelled >"$RUN_DIR/stop"
    max_restarts=0
}

watch_steps() { # ends a step of which a task has failed while the others wait
    if type -P python3 >/dev/null; then
        python3 "$CODE_DIR/training/step_end.py" &
        disown
    fi
}

wait_for_training() {
    while kill -0 $! 2>/dev/null; do
        wait $! # a signal ends this wait, not the training
    done
    wait $!
    status=$?
}

read_exit() { # the trainer leaves its own status in RUN_DIR/exit: srun and torchrun change it
    local own=
    if [[ -f $RUN_DIR/exit ]]; then
        own=$(<"$RUN_DIR/exit")
    fi
    if [[ $own =~ ^[0-9]{1,3}$ ]]; then
        status=$own
    fi
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
make_run_folder
unset PYTHONPATH # of your shell: modules and setup may set another
environment
export SBATCHGEN_STOP_FILE=$RUN_DIR/stop
export SBATCHGEN_AGAIN_FILE=$RUN_DIR/again
export SBATCHGEN_EXIT_FILE=$RUN_DIR/exit
restarts=${SLURM_RESTART_COUNT:-0}
echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart $restarts of at most $max_restarts"
trap on_time_limit USR1
trap on_cancel TERM
watch_steps
train & # becomes the program itself, by exec: this shell stays for the signals
wait_for_training
read_exit
start_again
[[ $status == 0 ]] || exit "$status"
