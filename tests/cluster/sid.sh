#!/bin/bash
# A folder with Debian unstable, whose Slurm and Apptainer tests run: sid.sh FOLDER. About 40 s and 330 MB, as root.
# The mirror is that of this machine's own apt.
set -euo pipefail
folder=$1
# the last of what the list below brings, so that a folder of an earlier list is made anew
[[ -x $folder/usr/sbin/slurmd && -x $folder/usr/bin/apptainer && -x $folder/usr/sbin/slurmdbd ]] && exit 0
command -v mmdebstrap >/dev/null || { echo "error: needs the Debian package mmdebstrap" >&2; exit 1; }
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/\?$') ||
    { echo 'error: apt on this machine has no Debian mirror' >&2; exit 1; }
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false"' --variant=minbase \
    --include=slurm-client,slurmctld,slurmd,slurmdbd,slurm-wlm-basic-plugins,libslurm-dev,munge,apptainer,squashfuse \
    sid "$folder" "deb $mirror sid main"
