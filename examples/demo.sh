#!/bin/bash
# The main job in small: two processes train on drawn digits, are stopped half way, and go on from there.
# Usage: bash examples/demo.sh FOLDER
set -euo pipefail

mkdir -p "$1"
cd "$1"
run=runs/ddp
started=$SECONDS
rm -rf "$run"
say() { printf '\n=== %s\n' "$*"; }

if [[ ! -e data/train-images-idx3-ubyte ]]; then
    say "A data set, drawn: sbatchgen data mnist --to data --synthetic"
    sbatchgen data mnist --to data --synthetic
fi

submit=(sbatchgen submit ddp --profile local --yes -- --epochs 2 --save-every 20)
say "Training, to be stopped half way: ${submit[*]}"
"${submit[@]}" 2>/dev/null &
job=$!
until [[ -e $run/checkpoints/step-00000060.pt ]]; do
    kill -0 "$job" 2>/dev/null || { echo "error: the training ended before its step 60" >&2; exit 1; }
    sleep 0.2
done
touch "$run/stop"
status=0
wait "$job" || status=$?
((status == 75)) || { echo "error: the stopped job should end with 75, not $status" >&2; exit 1; }

say "Stopped, with a checkpoint (exit status 75). The same command continues: ${submit[*]}"
"${submit[@]}" 2>/dev/null
grep -q '"state": "done"' "$run/status.json"

say "Done in $((SECONDS - started)) s. Checkpoints: $PWD/$run/checkpoints; loss and accuracy: $PWD/$run/events.jsonl"
