#!/bin/bash
# sbatchgen 0.3.0 (256546d93b3d): sbatchgen render ddp

die() { echo "error: $*" >&2; exit 1; }

# --- Paths ---
RUN_DIR="${PWD}/runs/ddp"
DATA_DIR="${PWD}/data"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
umask go-w; mkdir -p -- "$RUN_DIR" || die "can't make the run folder $RUN_DIR"; chmod go-w -- "$RUN_DIR"
[[ -O $RUN_DIR && ! -L $RUN_DIR ]] || die "not a folder of your own: $RUN_DIR"
! namei -m "$RUN_DIR" | grep '^ d.......w[^tT]' || die "others may replace $RUN_DIR" # drwxrwxrwx: all may write
rm -f -- "$RUN_DIR/stop" "$RUN_DIR/exit" # left by an earlier start

# --- Environment ---
export PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 SBATCHGEN_EXIT_FILE=$RUN_DIR/exit

# --- Stop: the trainer saves and ends when it sees RUN_DIR/stop ---
trap 'echo cancelled >"$RUN_DIR/stop"; kill $!' TERM INT

# --- Training: one torchrun on each node ---
python3 "$CODE_DIR/training/torchrun.py" --nproc-per-node=2 -- \
    "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume auto \
    --dataset mnist --epochs 10 &
while kill -0 $! 2>/dev/null; do wait $!; done; wait $! # a signal ends `wait`: repeat it while the process is there
rc=$?
[[ -f $RUN_DIR/exit && $(<"$RUN_DIR/exit") =~ ^[0-9]{1,3}$ ]] && rc=${BASH_REMATCH[0]} # the trainer's own status
exit "$rc"
