#!/bin/bash
# The real pyxis and Enroot in place of the stand-in: builds them of their sources into build/pyxis, and runs
# tests/jobs/test_containers.py and tests/cluster/pyxis_saves.py with them. As root; installs Debian packages. Two to five minutes.
# PYXIS and ENROOT name clones of their repositories; more arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
built=$PWD/build/pyxis
if [[ ! -x $built/bin/enroot ]]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends git make gcc libc6-dev libbsd-dev libslurm-dev \
        squashfs-tools squashfuse fuse3 jq curl parallel zstd >/dev/null
    sources=$(mktemp -d)
    trap 'rm -rf "$sources"' EXIT
    git -c advice.detachedHead=false clone --quiet --depth 1 --branch "${PYXIS_TAG:-v0.24.0}" \
        "${PYXIS:-https://github.com/NVIDIA/pyxis}" "$sources/pyxis"
    git -c advice.detachedHead=false clone --quiet --depth 1 --branch "${ENROOT_TAG:-v4.1.2}" \
        "${ENROOT:-https://github.com/NVIDIA/enroot}" "$sources/enroot"
    mkdir -p "$built"
    make -C "$sources/pyxis" >"$built/log" 2>&1
    # not its own musl, headers and maker of bundles, which are submodules
    cd "$sources/enroot"
    mkdir -p deps/dist/makeself/bin
    install -m 755 /bin/false deps/dist/makeself/bin/enroot-makeself
    {
        make -C deps FORCE_GLIBC=1 libbsd
        make -o deps FORCE_GLIBC=1 LDLIBS="-l:libbsd.a $(gcc -print-file-name=libbsd.so)" prefix="$built" install
    } >>"$built/log" 2>&1
    install -m 755 "$sources/pyxis/spank_pyxis.so" "$built/pyxis.so"
    cd - >/dev/null
fi
export PYXIS_BUILT=$built
.venv/bin/python -m pytest tests/jobs/test_containers.py -q "$@"
.venv/bin/python -m pytest tests/cluster/pyxis_saves.py -q  # with torch in the image, on a Slurm of its own
