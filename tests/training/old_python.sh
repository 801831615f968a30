#!/bin/bash
# A folder with the Python 3.9 of Debian 11, for the programs that take old ones: old_python.sh FOLDER. 20 s, 30 MB.
# The mirror is that of this machine's own apt.
set -euo pipefail
folder=$1
[[ -x $folder/usr/bin/python3.9 ]] && exit 0
command -v mmdebstrap >/dev/null || { echo "error: needs the Debian package mmdebstrap" >&2; exit 1; }
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/\?$') ||
    { echo 'error: apt on this machine has no Debian mirror' >&2; exit 1; }
whole=$(mktemp -d)
trap 'rm -rf "$whole"' EXIT
mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false"' --variant=extract \
    --include=libpython3.9-stdlib,python3.9-minimal bullseye "$whole" "deb $mirror bullseye main"
# It finds its modules by where it is. All libraries but one are this machine's own.
mkdir -p "$folder/lib" "$folder/usr/bin" "$folder/usr/lib"
cp -a "$whole"/usr/lib/*/libffi.so.* "$folder/lib"
cp -a "$whole/usr/lib/python3.9" "$folder/usr/lib"
cp -a "$whole/usr/bin/python3.9" "$folder/usr/bin"
