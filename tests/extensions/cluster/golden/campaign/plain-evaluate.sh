#!/bin/bash
# heartlm evaluate on 1 node × 1 CPU rank, profile plain.
#SBATCH --job-name=widths-evaluate-svdb-256
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=00:10:00
#SBATCH --partition=main
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/project/work/widths.campaign/jobs/widths-evaluate-svdb-256-%j.out

set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
export OMP_NUM_THREADS=$cpus

name=evaluate-svdb-256
experiments=/project/work/widths.campaign/experiments
needs=(finetune-svdb-256)
for need in "${needs[@]}"; do
    if ! grep -qs '"status": 0' "$experiments/$need"/attempt-*.ended; then
        echo "$name is not run: it needs $need, which is not done"
        exit 1
    fi
done

# Each attempt leaves a log and notes of how it began and ended. After a first failure it queues again.
attempts=$experiments/$name
mkdir -p "$attempts"
number=1
while [[ -e $attempts/attempt-$number.begun ]]; do
    number=$((number + 1))
done
attempt=$attempts/attempt-$number
note() {
    printf '{"at": %d, "host": "%s", "job": "%s", "status": %s}\n' \
        "$(date +%s)" "$(hostname)" "$SLURM_JOB_ID" "$2" >"$attempt.part"
    mv "$attempt.part" "$attempt.$1"
}
note begun null
status=0
cancelled=
trap 'cancelled=yes' TERM
again=$attempts/again-$SLURM_JOB_ID
trap '
    status=$?
    note ended "$status"
    if ((status != 0 && status != 143)) && [[ -z $cancelled && ! -e $again ]]; then
        touch "$again"
        scontrol requeue "$SLURM_JOB_ID"
    fi
' EXIT
exec >"$attempt.log" 2>&1

# What to run.
command=(
    evaluate
    runs/svdb-w256
    --on=corpora/svdb
    --name=evaluate-svdb-256
)

# How.
launcher=(/opt/python -m heartlm)

step=
asked=
cancelled=
# Asked to stop, 120 s before the time limit, a training saves a checkpoint and ends with status 143; then
# this job queues again and continues where it was. Cancelled, it does not.
trap 'asked=yes; kill -USR1 "$step" || true' USR1
trap 'asked=yes cancelled=yes' TERM
srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpus-per-task="$cpus" --cpu-bind=cores \
    --kill-on-bad-exit=0 --wait=60 \
    "${launcher[@]}" "${command[@]}" &
step=$!
status=0
wait "$step" || status=$?
while [[ -n $asked ]]; do # a signal ended the waiting, not the run
    asked=
    status=0
    wait "$step" || status=$?
done
if ((status == 143)) && [[ -z $cancelled ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
