#!/bin/bash -l
# heartlm pretrain on 2 nodes × 4 GPUs, profile meluxina.
#SBATCH --job-name=widths-pretrain-128
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=64
#SBATCH --time=02:00:00
#SBATCH --partition=gpu
#SBATCH --qos=default
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/project/work/widths.campaign/jobs/widths-pretrain-128-%j.out

module load Apptainer/1.2.4-GCCcore-12.3.0
set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
ranks=4 # on each
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(scontrol --oneliner show node "${hosts[0]}" | grep -o 'NodeAddr=[^ ]*')
rendezvous="${address#NodeAddr=}:$((10000 + SLURM_JOB_ID % 20000))"
export OMP_NUM_THREADS=$((cpus > ranks ? cpus / ranks : 1))
export NCCL_DEBUG=WARN
export HEARTLM_HOSTS="${hosts[*]}"
echo "nodes: $nodes, ranks on each: $ranks, they meet at $rendezvous"

name=pretrain-128
experiments=/project/work/widths.campaign/experiments
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
    pretrain
    --corpus=corpora/all
    --window=128
    --out=runs/w128
    --device=cuda
)
run_folder=runs/w128
if grep -qs '"finished": null' "$run_folder/run.json"; then
    echo "$run_folder was started and is not finished: it continues"
    command=("${command[0]}" "--resume=$run_folder")
fi

# How: one torchrun a node starts the ranks there.
launcher=(
    python -m heartlm.extensions.cluster.torchrun
    "--nnodes=$nodes" "--nproc-per-node=$ranks"
    --rdzv-backend=c10d "--rdzv-endpoint=$rendezvous"
    "--rdzv-id=$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
    -m heartlm
)
launcher=(
    apptainer exec --nv --pwd "$PWD"
    --bind "$PWD"
    --bind /mnt/tier1
    --bind /mnt/tier2
    --bind /project/home
    --bind /project/scratch
    heartlm.sif
    "${launcher[@]}"
)

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
