#!/bin/bash
# Rendered by sbatchgen 0.1.0 (3c9200b39b0f): sbatchgen render ddp

umask 027
set -o pipefail

die() {
    echo "error: $*" >&2
    exit 1
}

# --- The allocation ---
NPROC_PER_NODE=2
SUBMIT_DIR=$PWD
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT # of a shell that torchrun started
echo "Running on $(uname -n), 2 processes, in $SUBMIT_DIR"

# --- Folders of the run ---
RUN_DIR="$SUBMIT_DIR/runs/ddp"
DATA_DIR="$SUBMIT_DIR/data"
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

# --- Environment ---
cores=$(nproc)
export OMP_NUM_THREADS=$((cores > 2 ? cores / 2 : 1))
export PYTHONUNBUFFERED=1
export PYTHONNOUSERSITE=1
export PYTHONFAULTHANDLER=1
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
[[ -d $CODE_DIR/training ]] || die "no training package in $CODE_DIR"
export PYTHONPATH=$CODE_DIR:$PWD${PYTHONPATH:+:$PYTHONPATH}
export PYTHONSAFEPATH=1 # a folder `training` of your own must not take its place

# --- Training ---
RESUME=auto
# The -- ends torchrun's own options: it would take a trainer's --n or --log for short forms of them.
trainer=(
    -m -- training
    --data-dir "$DATA_DIR"
    --run-dir "$RUN_DIR"
    --resume "$RESUME"
    --device auto
    --preempted-status 0 # torchrun would report a stop as a failure; the status file tells it below
    --dataset mnist
    --epochs 10
)
command=(torchrun --standalone --nproc-per-node="$NPROC_PER_NODE" --max-restarts=0 "${trainer[@]}")
command -v torchrun >/dev/null || die "no torchrun on PATH: install torch for $(command -v python3), or choose another Python"
"${command[@]}" &
child=$!
# Slurm would send the signal to every process; here only this script gets it.
trap 'touch -- "$SBATCHGEN_STOP_FILE"; kill -TERM "$child" 2>/dev/null' TERM INT
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
