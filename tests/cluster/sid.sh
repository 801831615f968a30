#!/bin/bash
# A folder with Debian unstable and its Slurm, whose sbatch and slurmctld tests can ask: sid.sh FOLDER. About 30 s
# and 180 MB, as root. The mirror is that of this machine's own apt.
set -euo pipefail
folder=$1
[[ -x $folder/usr/bin/sbatch && -x $folder/usr/sbin/slurmctld ]] && exit 0
command -v mmdebstrap >/dev/null || { echo "error: needs the Debian package mmdebstrap" >&2; exit 1; }
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/\?$') ||
    { echo 'error: apt on this machine has no Debian mirror' >&2; exit 1; }
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false"' --variant=minbase \
    --include=slurm-client,slurmctld,slurm-wlm-basic-plugins,munge sid "$folder" "deb $mirror sid main"
touch "$folder/etc/hosts" # a place for that of a test's network
