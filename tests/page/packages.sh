#!/bin/bash
# npm's packages for the page and for its tests, in a folder: `packages.sh FOLDER`. Nothing of them is run here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v npm >/dev/null || { echo 'no npm: the page is not made, and its tests are left out'; exit 0; }
for part in "page:$here/../../sbatchgen/lab/page/files" "tests:$here"; do
    folder=$1/${part%%:*}
    mkdir -p "$folder"
    ! cmp -s "${part#*:}/package-lock.json" "$folder/complete" || continue
    cp "${part#*:}"/package.json "${part#*:}"/package-lock.json "$folder"
    npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel=error
    cp "$folder/package-lock.json" "$folder/complete"
done
