#!/bin/bash
# heartlm pretrain on 1 node × 2 CPU ranks, profile local.

set -euo pipefail

# Where: on this machine.
cpus=4
ranks=2
export OMP_NUM_THREADS=$((cpus > ranks ? cpus / ranks : 1))

# What to run.
command=(
    pretrain
    --corpus=corpora/many
    --out=runs/foundation
    '--weights={"mitdb": 2}'
    --no-pin
    --steps=5000
)
run_folder=runs/foundation
if grep -qs '"finished": null' "$run_folder/run.json"; then
    echo "$run_folder was started and is not finished: it continues"
    command=("${command[0]}" "--resume=$run_folder")
fi

# How: one torchrun a node starts the ranks there.
launcher=(
    python -m heartlm.cluster.torchrun
    --standalone "--nproc-per-node=$ranks"
    -m heartlm
)

step=
asked=
# Asked to stop, ranks save a checkpoint and end with 143; the same command continues.
trap 'asked=yes; kill -USR1 "$step" || true' USR1 INT TERM
"${launcher[@]}" "${command[@]}" &
step=$!
status=0
wait "$step" || status=$?
while [[ -n $asked ]]; do # a signal ended the waiting, not the run
    asked=
    status=0
    wait "$step" || status=$?
done
exit "$status"
