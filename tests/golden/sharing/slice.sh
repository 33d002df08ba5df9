#!/bin/bash
# Campaign small, pretrain: 1 node × 1/4 GPU each, profile mig-site.
#SBATCH --job-name=small-1-pretrain
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100_2g.10gb:1
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/project/work/small.campaign/arrays/1-pretrain-%A_%a.out
#SBATCH --array=1-5
#SBATCH --kill-on-invalid-dep=yes

set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
ranks=1 # on each
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(scontrol --oneliner show node "${hosts[0]}" | grep -o 'NodeAddr=[^ ]*')
rendezvous="${address#NodeAddr=}:$((10000 + SLURM_JOB_ID % 20000))"
export OMP_NUM_THREADS=$((cpus > ranks ? cpus / ranks : 1))
export NCCL_DEBUG=WARN
export HEARTLM_HOSTS="${hosts[*]}"
echo "nodes: $nodes, ranks on each: $ranks, they meet at $rendezvous"

# Which experiment: the line of this task.
tasks=/project/work/small.campaign/arrays/1-pretrain.tasks
IFS=$'\t' read -r name needs run_folder words < <(sed -n "${SLURM_ARRAY_TASK_ID}p" "$tasks")
command=()
eval "command=($words)"
experiments=/project/work/small.campaign/experiments
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
if grep -qs '"finished": null' "$run_folder/run.json"; then
    echo "$run_folder was started and is not finished: it continues"
    command=("${command[0]}" "--resume=$run_folder")
fi

# How: one torchrun a node starts the ranks there.
launcher=(
    python -m heartlm.cluster.torchrun
    "--nnodes=$nodes" "--nproc-per-node=$ranks"
    --rdzv-backend=c10d "--rdzv-endpoint=$rendezvous"
    "--rdzv-id=$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
    -m heartlm
)

step=
asked=
cancelled=
# Asked to stop, 120 s before the time limit, ranks save a checkpoint and end with status 143; then
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
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$status"
