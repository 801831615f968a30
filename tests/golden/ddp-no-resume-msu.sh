#!/bin/bash
# sbatchgen 0.3.0 (7b7a9c330a54): sbatchgen render ddp
#SBATCH --job-name=ddp
#SBATCH --output=%x-%j.out
#SBATCH --partition=batch
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=0-02:00:00
#SBATCH --no-requeue

RUN_DIR="/scratch/${USER}/runs/ddp"
DATA_DIR="/scratch/${USER}/datasets/mnist"
CODE_DIR="/opt/sbatchgen/code" # holds the package `training`
IMAGE="/scratch/${USER}/nvcr.io+nvidia+pytorch+24.04-py3.sqsh"

environment() {
    check_enroot "$PWD" "$CODE_DIR" "/scratch/${USER}"
    find_first_node # and a port of this job
    export PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 OMP_NUM_THREADS=4 NVIDIA_VISIBLE_DEVICES=all ENROOT_FORCE_OVERRIDE=yes
}

train() { # one torchrun on each node
    exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --distribution=block --kill-on-bad-exit=1 --wait=0 \
        --container-image="$IMAGE" --container-workdir="$PWD" --no-container-mount-home \
        --container-env="MASTER_ADDR,MASTER_PORT,PYTHONUNBUFFERED,PYTHONNOUSERSITE,OMP_NUM_THREADS,NVIDIA_VISIBLE_DEVICES,PWD" \
        --container-mounts="$PWD:$PWD,$CODE_DIR:$CODE_DIR,/scratch/${USER}:/scratch/${USER}" env HOME="$RUN_DIR" \
        python3 "$CODE_DIR/training/torchrun.py" --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_GPUS_ON_NODE" -- \
        "$CODE_DIR/training" --run-dir "$RUN_DIR" --data-dir "$DATA_DIR" --resume off --device cuda \
        --dataset mnist --epochs 10
}

# === The same in every job of this kind, with the runtime enroot: sbatchgen help script

die() {
    echo "error: $*" >&2
    exit 1
}

check_pyxis() {
    if [[ $(srun --help) != *--container-env* ]]; then
        die "no pyxis 0.15: not installed, or PYXIS_CONTAINER_IMAGE is set"
    fi
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
}

check_enroot() { # MOUNT...: SOURCE[:TARGET[:OPTIONS]]
    forget_shell
    forget_host
    if [[ $IMAGE == /* && ! -r $IMAGE ]]; then
        die "can't read the image $IMAGE: see sbatchgen image --help"
    fi
    [[ -d $DATA_DIR ]] || die "no data folder $DATA_DIR"
    local mount name of_image
    for mount in "$@"; do
        case $mount in
            "$PWD" | "$RUN_DIR" | "$DATA_DIR" | "$CODE_DIR")
                if [[ $mount == *[,:\"\$\`]* ]]; then
                    die "can't mount a folder with , : \" \$ or \` in its name"
                fi
                ;;
        esac
        [[ -e ${mount%%:*} ]] || die "can't mount ${mount%%:*}: it does not exist"
    done
    of_image=$(unsquashfs -cat "$IMAGE" etc/environment 2>/dev/null)
    if [[ $of_image != *NVIDIA_DRIVER_CAPABILITIES=* ]]; then
        export NVIDIA_DRIVER_CAPABILITIES=compute,utility # an image without it would get no CUDA
    fi
    unset LC_ALL LD_PRELOAD # of your shell: a locale that the node lacks ends Enroot
    unset "${!PYXIS_CONTAINER_@}" # options of srun
    for name in HF_HOME MPLCONFIGDIR TORCH_HOME TRITON_CACHE_DIR WANDB_DIR XDG_CACHE_HOME; do
        is_mounted "${!name}" "$@" || unset "$name" # a folder of your shell
    done
}

is_mounted() { # FOLDER MOUNT...: whether the container has the folder
    local folder=$1 mount
    for mount in "${@:2}"; do
        mount=${mount#*:}
        if [[ $folder/ == "${mount%%:*}"/* ]]; then
            return
        fi
    done
    return 1
}

forget_shell() { # what the submitting shell had set for its own Python
    unset PYTHONHOME PYTHONPATH
}

forget_host() { # the same shell's paths, which a container does not have
    unset BASH_ENV CONDA_PREFIX CURL_CA_BUNDLE REQUESTS_CA_BUNDLE SSL_CERT_FILE VIRTUAL_ENV
}

find_first_node() { # and a port there, for all processes of the job
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    # The kernel gives the ports from this one on to any program. Each job has another one below.
    local above
    read -r above _ </proc/sys/net/ipv4/ip_local_port_range
    if ((above <= 8200)); then
        above=30000 # on some nodes with GPUs the kernel gives nearly all ports
    fi
    MASTER_PORT=$((above - 8 - SLURM_JOB_ID % 875 * 8))
    export MASTER_ADDR MASTER_PORT
}

watch_steps() { # ends a step of which a task has failed while the others wait
    if type -P python3 >/dev/null; then
        python3 "$CODE_DIR/training/step_end.py" &
        disown
    fi
}

# --- What happens, in this order ---
[[ $SLURM_JOB_ID ]] || die "this script is a job: submit it with sbatch"
check_pyxis
make_run_folder
environment
watch_steps
(train)
