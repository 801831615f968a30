#!/bin/bash
# sbatchgen 0.3.0 (d538961bd959): sbatchgen render ddp
#SBATCH --job-name=ddp
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=40
#SBATCH --gres=gpu:8
#SBATCH --time=0-00:05:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@75

die() { echo "error: $*" >&2; exit 1; }; [[ $SLURM_JOB_ID ]] || die "this script is a job: submit it with sbatch"

# --- Paths ---
RUN_DIR="${SLURM_SUBMIT_DIR}/runs/ddp"
DATA_DIR="${SLURM_SUBMIT_DIR}/data"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
umask go-w; mkdir -p -- "$RUN_DIR" || die "can't make the run folder $RUN_DIR"; chmod go-w -- "$RUN_DIR"
[[ -O $RUN_DIR && ! -L $RUN_DIR ]] || die "not a folder of your own: $RUN_DIR"
! namei -m "$RUN_DIR" | grep '^ d.......w[^tT]' || die "others may replace $RUN_DIR" # drwxrwxrwx: all may write
rm -f -- "$RUN_DIR/stop" "$RUN_DIR/again" "$RUN_DIR/exit" # left by an earlier start

# --- Environment ---
unset PYTHONPATH PYTHONHOME # yours
eval "$("${HOME}/anaconda3"/bin/conda shell.bash hook)"
conda activate "base" || die "can't activate the conda environment" "base"
PATH=$CONDA_PREFIX/bin:$PATH # one that was active already keeps its place, behind the modules
[[ -x $CONDA_PREFIX/bin/python3 ]] || die "no python3 in $CONDA_PREFIX"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) # the first node
MASTER_PORT=$(awk "{print (\$1 > 8200 ? \$1 : 30000) - 8 - $SLURM_JOB_ID%875*8}" /proc/sys/net/ipv4/ip_local_port_range)
export MASTER_ADDR MASTER_PORT PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=5
export SBATCHGEN_AGAIN_FILE=$RUN_DIR/again SBATCHGEN_EXIT_FILE=$RUN_DIR/exit

# --- Stop: the trainer saves and ends when it sees RUN_DIR/stop ---
restarts=${SLURM_RESTART_COUNT:-0} max_restarts=10
echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart $restarts of at most $max_restarts"
trap 'echo limit >"$RUN_DIR/stop"' USR1 # sent by --signal, shortly before the time limit
trap 'echo cancelled >"$RUN_DIR/stop"; max_restarts=0' TERM # sent by scancel and preemption

if type -P python3 >/dev/null; then python3 "$CODE_DIR/training/step_end.py" & disown; fi # ends a step that has failed
# --- Training: one torchrun on each node ---
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --distribution=block --kill-on-bad-exit=1 --wait=0 \
    python3 "$CODE_DIR/training/torchrun.py" --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_GPUS_ON_NODE" -- \
    "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume auto --device cuda \
    --dataset mnist --epochs 10 &
while kill -0 $! 2>/dev/null; do wait $!; done; wait $! # a signal ends `wait`: repeat it while the process is there
rc=$?
[[ -f $RUN_DIR/exit && $(<"$RUN_DIR/exit") =~ ^[0-9]{1,3}$ ]] && rc=${BASH_REMATCH[0]} # the trainer's own status

# --- Start again: the trainer leaves RUN_DIR/again if it was stopped, has saved, and has more to do ---
if [[ -e $RUN_DIR/stop ]] && ! grep -qx limit "$RUN_DIR/stop"; then max_restarts=0; fi # stopped by hand, or cancelled
if [[ -e $RUN_DIR/again ]] && ((restarts < max_restarts)); then
    echo "Requeueing: restart $((restarts + 1)) of at most $max_restarts"
    scontrol requeue "$SLURM_JOB_ID" && exit 0; fi
exit "$rc"
