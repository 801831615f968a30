#!/bin/bash
# Rendered by sbatchgen 0.1.0 (1232331ada61): sbatchgen render ddp
#SBATCH --job-name=ddp
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --partition=sdcshare_v100_32g
#SBATCH --comment=wbsM-SC230825.001
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=4
#SBATCH --time=0-01:00:00
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
NNODES=2
NPROC_PER_NODE=4
RESTARTS=${SLURM_RESTART_COUNT:-0} # how often Slurm has started this job again
MAX_RESTARTS=10
SUBMIT_DIR=${SLURM_SUBMIT_DIR:-$PWD}

mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
((${#HOSTS[@]} == NNODES)) ||
    die "the job has ${#HOSTS[@]} nodes, this script is for $NNODES: render it again with --nodes ${#HOSTS[@]}"
if [[ -n ${SLURM_GPUS_ON_NODE:-} ]] && ((SLURM_GPUS_ON_NODE != 4)); then
    die "the job has $SLURM_GPUS_ON_NODE GPUs a node, this script is for 4: render it again"
fi
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT # of a shell that torchrun started

# Processes meet on the first node, at a port of this job's own: two jobs on a node must not share one.
export MASTER_ADDR=${HOSTS[0]}
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
echo "Job $SLURM_JOB_ID on ${HOSTS[*]}, restart $RESTARTS, submitted in $SUBMIT_DIR"

# --- Folders of the run ---
RUN_DIR="$SUBMIT_DIR/runs/ddp"
DATA_DIR="/mnt/cache/share/images"
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

# --- Environment ---
export PYTHONUNBUFFERED=1
export PYTHONNOUSERSITE=1
export PYTHONFAULTHANDLER=1
export OMP_NUM_THREADS=1
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
# Each node runs this; its variables are the node's own. The agent of the first node holds the meeting
# point: left to torchrun, a node whose name has several addresses would never know that it is the one.
agent=$(
    cat <<'SH'
if [ "$SLURMD_NODENAME" = "$MASTER_ADDR" ]; then is_host=1; else is_host=0; fi
exec torchrun --rdzv-conf="is_host=$is_host,read_timeout=600" --local-addr="$SLURMD_NODENAME" "$@"
SH
)
command=(
    /bin/sh -c "$agent" sh
    --nnodes="$NNODES" --nproc-per-node="$NPROC_PER_NODE" --max-restarts=0
    --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$SLURM_JOB_ID.$RESTARTS"
    "${trainer[@]}"
)
command -v torchrun >/dev/null || die "no torchrun on PATH: install torch for $(command -v python3), or choose another Python"
srun=(
    srun --ntasks-per-node=1 --cpus-per-task=8
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
# A training fails as soon as one of its nodes dies. Slurm misses a node only minutes later: a job that has failed by
# then stays so, one that is still there it starts again. The star is sinfo's for a node that does not answer.
silent() { [[ $(sinfo --all --noheader --nodes="$SLURM_JOB_NODELIST" --format=%t 2>/dev/null) == *[*]* ]]; }
if ((rc != 0)) && [[ $state != preempted && $WARNED == no ]] && silent; then
    echo "A node of $SLURM_JOB_NODELIST does not answer: waiting for Slurm to start the job again"
    while [[ $WARNED == no ]] && silent; do
        sleep 10 &
        wait "$!" # a signal ends the wait, not the sleep
    done
    [[ $WARNED == never ]] || again="A node of $SLURM_JOB_NODELIST did not answer"
fi
if [[ -n $again ]]; then
    if ((RESTARTS >= MAX_RESTARTS)); then
        echo "Not restarted: the job has had all of its $MAX_RESTARTS restarts" >&2
    else
        # Said before: the requeue may end this script at once.
        echo "$again: requeueing, restart $((RESTARTS + 1)) of at most $MAX_RESTARTS"
        scontrol requeue "$SLURM_JOB_ID" && exit 0
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
