#!/bin/bash
# A folder with Debian's two systems of modules, environment-modules and lmod, of which it lets one be installed:
# modules.sh FOLDER. A second and 3 MB. They need the packages tcl, lua5.3, lua-filesystem, lua-json, lua-posix and lua-term.
set -euo pipefail
folder=$(realpath -m "$1")
[[ -e $folder/ready ]] && exit 0
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
apt-get download --quiet --quiet environment-modules lmod 2>/dev/null ||
    { echo 'error: apt on this machine has no environment-modules and lmod' >&2; exit 1; }
for system in environment-modules lmod; do
    dpkg --extract "$system"_*.deb "$system"
    # their scripts name files by where the package puts them
    grep --recursive --binary-files=without-match --files-with-matches '/usr/\|/etc/' "$system" |
        xargs sed --in-place --regexp-extended \
            "s#(/usr/share/(lmod|modules)|/usr/lib/(x86_64-linux-gnu/)?modulecmd|/etc/(environment-modules|lmod))#$folder/$system\1#g"
done
chmod -R go+rX .
touch ready
