#!/bin/bash
# Rendered by sbatchgen 0.1.0 (858af962e094): sbatchgen render ddp

umask 027
set -o pipefail

die() {
    echo "error: $*" >&2
    exit 1
}

# --- The allocation ---
NNODES=2
NPROC_PER_NODE=4
SUBMIT_DIR=$PWD
NODE_RANK=${RANK:?the platform should set RANK, the rank of this node}
: "${MASTER_ADDR:?the platform should set MASTER_ADDR}" "${MASTER_PORT:?the platform should set MASTER_PORT}"
((${WORLD_SIZE:?the platform should set WORLD_SIZE, the number of nodes} == NNODES)) ||
    die "the job has $WORLD_SIZE nodes, this script is for $NNODES: render it again with --nodes $WORLD_SIZE"
# For torch these two count processes, not nodes: each process gets its own.
unset RANK WORLD_SIZE
echo "Running on $(uname -n), 4 processes, in $SUBMIT_DIR"

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
export PYTHONUNBUFFERED=1
export PYTHONNOUSERSITE=1
export PYTHONFAULTHANDLER=1
export OMP_NUM_THREADS=2
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
    --device cuda
    --preempted-status 0 # torchrun would report a stop as a failure; the status file tells it below
    --dataset mnist
    --epochs 10
)
command=(
    torchrun --nnodes="$NNODES" --node-rank="$NODE_RANK" --nproc-per-node="$NPROC_PER_NODE" --max-restarts=0
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "${trainer[@]}"
)
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
