#!/bin/bash
# sbatchgen 0.3.0 (160b60eb8591): sbatchgen render ddp

RUN_DIR="${PWD}/runs/ddp"
DATA_DIR="${PWD}/data"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`

environment() {
    export PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1
}

train() { # one torchrun on each node
    exec python3 "$CODE_DIR/training/torchrun.py" --nproc-per-node=2 -- \
        "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume auto \
        --dataset mnist --epochs 10
}

# === The same in every job of this kind, with the runtime host: sbatchgen help script

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
    rm -f -- "$RUN_DIR/stop" "$RUN_DIR/exit" # left by an earlier start
}

on_cancel() { # kill sends TERM, and Ctrl-C INT
    echo cancelled >"$RUN_DIR/stop"
    kill $!
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

# --- What happens, in this order ---
make_run_folder
environment
export SBATCHGEN_EXIT_FILE=$RUN_DIR/exit
trap on_cancel TERM INT
train & # becomes the program itself, by exec: this shell stays for the signals
wait_for_training
read_exit
[[ $status == 0 ]] || exit "$status"
