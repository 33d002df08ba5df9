#!/bin/bash
# Campaign widths, evaluate: 1 node × 1 CPU rank each, profile plain.
#SBATCH --job-name=widths-3-evaluate-2
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=00:10:00
#SBATCH --partition=main
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/project/work/widths.campaign/arrays/3-evaluate-2-%A_%a.out
#SBATCH --array=1-2%1
#SBATCH --kill-on-invalid-dep=yes

set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
export OMP_NUM_THREADS=$cpus

# Which experiment: the line of this task.
tasks=/project/work/widths.campaign/arrays/3-evaluate-2.tasks
IFS=$'\t' read -r name needs _ words < <(sed -n "${SLURM_ARRAY_TASK_ID}p" "$tasks")
command=()
eval "command=($words)"
experiments=/project/work/widths.campaign/experiments
for need in ${needs//:/ }; do
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
        "$(date +%s)" "$(hostname)" "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" "$2" >"$attempt.part"
    mv "$attempt.part" "$attempt.$1"
}
note begun null
status=0
cancelled=
trap 'cancelled=yes' TERM
again=$attempts/again-$SLURM_ARRAY_JOB_ID
trap '
    status=$?
    note ended "$status"
    if ((status != 0 && status != 143)) && [[ -z $cancelled && ! -e $again ]]; then
        touch "$again"
        scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    fi
' EXIT
exec >"$attempt.log" 2>&1

# How.
launcher=(/opt/python -m heartlm)

srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" "${launcher[@]}" "${command[@]}"
