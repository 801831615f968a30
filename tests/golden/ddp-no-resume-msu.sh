#!/bin/bash
# sbatchgen 0.3.0 (b1d7a7074bf4): sbatchgen render ddp
#SBATCH --job-name=ddp
#SBATCH --output=%x-%j.out
#SBATCH --partition=batch
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=0-02:00:00
#SBATCH --no-requeue

die() { echo "error: $*" >&2; exit 1; }; [[ $SLURM_JOB_ID ]] || die "this script is a job: submit it with sbatch"
[[ $(srun --help) == *--container-env* ]] || die "no pyxis 0.15: not installed, or PYXIS_CONTAINER_IMAGE is set"

# --- Paths ---
RUN_DIR="/scratch/${USER}/runs/ddp"
DATA_DIR="/scratch/${USER}/datasets/mnist"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
umask go-w; mkdir -p -- "$RUN_DIR" || die "can't make the run folder $RUN_DIR"; chmod go-w -- "$RUN_DIR"
[[ -O $RUN_DIR && ! -L $RUN_DIR ]] || die "not a folder of your own: $RUN_DIR"
! namei -m "$RUN_DIR" | grep '^ d.......w[^tT]' || die "others may replace $RUN_DIR" # drwxrwxrwx: all may write

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
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) # the first node
MASTER_PORT=$(awk "{print (\$1 > 8200 ? \$1 : 30000) - 8 - $SLURM_JOB_ID%875*8}" /proc/sys/net/ipv4/ip_local_port_range)
export MASTER_ADDR MASTER_PORT PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=4 NVIDIA_VISIBLE_DEVICES=all
export ENROOT_FORCE_OVERRIDE=yes

if type -P python3 >/dev/null; then python3 "$CODE_DIR/training/step_end.py" & disown; fi # ends a step that has failed
# --- Training: one torchrun on each node ---
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --distribution=block --kill-on-bad-exit=1 --wait=0 \
    --container-image="$IMAGE" --container-workdir="$PWD" --no-container-mount-home \
    --container-env="MASTER_ADDR,MASTER_PORT,PYTHONUNBUFFERED,PYTHONNOUSERSITE,OMP_NUM_THREADS,NVIDIA_VISIBLE_DEVICES,PWD" \
    --container-mounts="$PWD:$PWD,$CODE_DIR:$CODE_DIR,/scratch/${USER}:/scratch/${USER}" env HOME="$RUN_DIR" \
    python3 "$CODE_DIR/training/torchrun.py" --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_GPUS_ON_NODE" -- \
    "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume off --device cuda \
    --dataset mnist --epochs 10
