#!/bin/bash
# sbatchgen 0.1.0 (617ef94b89c7): sbatchgen render ddp

die() { echo "error: $*" >&2; exit 1; }

# --- Paths ---
RUN_DIR="${PWD}/runs/ddp"
DATA_DIR="${PWD}/data"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
mkdir -p -- "$RUN_DIR" || die "can't make the run folder $RUN_DIR"
rm -f -- "$RUN_DIR/stop" "$RUN_DIR/exit" # left by an earlier start

# --- Environment ---
export PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=2
export SBATCHGEN_EXIT_FILE=$RUN_DIR/exit

# --- Stop: the trainer saves and ends when it sees RUN_DIR/stop ---
trap 'echo cancelled >"$RUN_DIR/stop"; kill $!' TERM INT

# --- Training: one torchrun on each node ---
python3 "$CODE_DIR/training/torchrun.py" --nnodes="$WORLD_SIZE" --node-rank="$RANK" --nproc-per-node=4 -- \
    "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume auto --device cuda \
    --dataset mnist --epochs 10 &
while kill -0 $! 2>/dev/null; do wait $!; done # a signal ends the wait, not the training
wait $!
rc=$?
[[ -s $RUN_DIR/exit ]] && rc=$(<"$RUN_DIR/exit") # the trainer's own status: srun and torchrun report another
exit "$rc"
