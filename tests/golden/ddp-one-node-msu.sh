#!/bin/bash
# sbatchgen 0.3.0 (13672189deb4): sbatchgen render ddp
#SBATCH --job-name=ddp
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --partition=batch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=0-02:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300

die() { echo "error: $*" >&2; exit 1; }; [[ $SLURM_JOB_ID ]] || die "this script is a job: submit it with sbatch"
[[ $(srun --help) == *--container-env* ]] || die "no pyxis 0.15: not installed, or PYXIS_CONTAINER_IMAGE is set"

# --- Paths ---
RUN_DIR="/scratch/${USER}/runs/ddp"
DATA_DIR="/scratch/${USER}/datasets/mnist"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
umask go-w; mkdir -p -- "$RUN_DIR" || die "can't make the run folder $RUN_DIR"; chmod go-w -- "$RUN_DIR"
[[ -O $RUN_DIR && ! -L $RUN_DIR ]] || die "not a folder of your own: $RUN_DIR"
! namei -m "$RUN_DIR" | grep '^ d.......w[^tT]' || die "others may replace $RUN_DIR" # drwxrwxrwx: all may write
rm -f -- "$RUN_DIR/stop" "$RUN_DIR/again" "$RUN_DIR/exit" # left by an earlier start

# --- Environment ---
unset PYTHONPATH PYTHONHOME BASH_ENV CONDA_PREFIX CURL_CA_BUNDLE REQUESTS_CA_BUNDLE SSL_CERT_FILE VIRTUAL_ENV # yours
IMAGE="/scratch/${USER}/nvcr.io+nvidia+pytorch+24.04-py3.sqsh"
[[ -r $IMAGE ]] || die "can't read the image $IMAGE: see sbatchgen image --help"
[[ -d $DATA_DIR ]] || die "no data folder $DATA_DIR"
for folder in "$PWD" "$CODE_DIR"; do [[ -e $folder ]] || die "can't mount $folder: it does not exist"; done
[[ $PWD$CODE_DIR != *[,:\"\$\`]* ]] || die "can't mount a folder with , : \" \$ or \` in its name"
for name in HF_HOME MPLCONFIGDIR TORCH_HOME TRITON_CACHE_DIR WANDB_DIR XDG_CACHE_HOME; do # of your shell
    case ${!name}/ in "$PWD"/*|"$CODE_DIR"/*|"/scratch/${USER}"/*) ;; *) unset "$name" ;; esac; done # not mounted
[[ $(unsquashfs -cat "$IMAGE" etc/environment 2>/dev/null) == *NVIDIA_DRIVER_CAPABILITIES=* ]] ||
    export NVIDIA_DRIVER_CAPABILITIES=compute,utility # an image without it would get no CUDA
unset LC_ALL LD_PRELOAD "${!PYXIS_CONTAINER_@}" # a locale that the node lacks ends Enroot; options of srun
export PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=4 NVIDIA_VISIBLE_DEVICES=all
export SBATCHGEN_AGAIN_FILE=$RUN_DIR/again SBATCHGEN_EXIT_FILE=$RUN_DIR/exit ENROOT_FORCE_OVERRIDE=yes

# --- Stop: the trainer saves and ends when it sees RUN_DIR/stop ---
restarts=${SLURM_RESTART_COUNT:-0} max_restarts=10 saved=0
echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart $restarts of at most $max_restarts"
trap 'echo limit >"$RUN_DIR/stop"' USR1 # sent by --signal, shortly before the time limit
trap 'echo cancelled >"$RUN_DIR/stop"; max_restarts=0' TERM # sent by scancel and preemption

# --- Training: one torchrun on each node ---
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    --container-image="$IMAGE" --container-workdir="$PWD" --no-container-mount-home \
    --container-env="PYTHONUNBUFFERED,PYTHONNOUSERSITE,OMP_NUM_THREADS,NVIDIA_VISIBLE_DEVICES,PWD" \
    --container-mounts="$PWD:$PWD,$CODE_DIR:$CODE_DIR,/scratch/${USER}:/scratch/${USER}" env HOME="$RUN_DIR" \
    python3 "$CODE_DIR/training/torchrun.py" --nproc-per-node="$SLURM_GPUS_ON_NODE" -- \
    "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume auto --device cuda \
    --dataset mnist --epochs 10 &
while kill -0 $! 2>/dev/null && ((saved < 20 || restarts >= max_restarts)); do # as long as the process is there
    sleep 1; [[ ! -e $RUN_DIR/again ]] || ((++saved)) # seconds: a limit may be near while containers are removed
done
kill -0 $! 2>/dev/null || wait $! # its status
rc=$?
[[ -f $RUN_DIR/exit && $(<"$RUN_DIR/exit") =~ ^[0-9]{1,3}$ ]] && rc=${BASH_REMATCH[0]} # the trainer's own status

# --- Start again: the trainer leaves RUN_DIR/again if it was stopped, has saved, and has more to do ---
if [[ -e $RUN_DIR/stop ]] && ! grep -qx limit "$RUN_DIR/stop"; then max_restarts=0; fi # stopped by hand, or cancelled
if [[ -e $RUN_DIR/again ]] && ((restarts < max_restarts)); then
    echo "Requeueing: restart $((restarts + 1)) of at most $max_restarts"
    scontrol requeue "$SLURM_JOB_ID" && exit 0; fi
exit "$rc"
