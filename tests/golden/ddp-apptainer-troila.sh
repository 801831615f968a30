#!/bin/bash
# sbatchgen 0.3.0 (37f4fa95966c): sbatchgen render ddp
#SBATCH --job-name=ddp
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:1
#SBATCH --mem=4G
#SBATCH --time=0-01:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300

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
unset PYTHONPATH PYTHONHOME BASH_ENV CONDA_PREFIX CURL_CA_BUNDLE REQUESTS_CA_BUNDLE SSL_CERT_FILE VIRTUAL_ENV # yours
IMAGE="${SLURM_SUBMIT_DIR}/pytorch-24.01.sif"
[[ -r $IMAGE ]] || die "can't read the image $IMAGE: see sbatchgen image --help"
[[ -d $DATA_DIR ]] || die "no data folder $DATA_DIR"
[[ $PWD$RUN_DIR$DATA_DIR$CODE_DIR != *[,:]* ]] || die "a folder with a comma or a colon in its name can't be mounted"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) # the first node
MASTER_PORT=$(awk "{print (\$1 > 8200 ? \$1 : 30000) - 8 - $SLURM_JOB_ID%875*8}" /proc/sys/net/ipv4/ip_local_port_range)
export MASTER_ADDR MASTER_PORT PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=4
export SBATCHGEN_AGAIN_FILE=$RUN_DIR/again SBATCHGEN_EXIT_FILE=$RUN_DIR/exit APPTAINER_NO_EVAL=1
for name in MASTER_ADDR MASTER_PORT PYTHONUNBUFFERED PYTHONNOUSERSITE OMP_NUM_THREADS; do
    export "APPTAINERENV_$name=${!name}" # or the image's own value would win
done

# --- Stop: the trainer saves and ends when it sees RUN_DIR/stop ---
restarts=${SLURM_RESTART_COUNT:-0} max_restarts=10
echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart $restarts of at most $max_restarts"
trap 'echo limit >"$RUN_DIR/stop"' USR1 # sent by --signal, shortly before the time limit
trap 'echo cancelled >"$RUN_DIR/stop"; max_restarts=0' TERM # sent by scancel and preemption

if type -P python3 >/dev/null; then python3 "$CODE_DIR/training/step_end.py" & disown; fi # ends a step that has failed
# --- Training: one torchrun on each node ---
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --distribution=block --kill-on-bad-exit=1 --wait=0 \
    apptainer exec --nv --pwd "$PWD" --bind "$PWD,$RUN_DIR,$DATA_DIR,$CODE_DIR" "$IMAGE" \
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
