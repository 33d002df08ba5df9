#!/bin/bash -l
# heartlm finetune on 3 nodes × 2 GPUs, profile own.
#SBATCH --job-name=beats
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=16
#SBATCH --time=25:00:00
#SBATCH --account=p1
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=logs/beats-%j.out
#SBATCH --mem=0
#SBATCH --hint=nomultithread

module load Apptainer
set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
ranks=2 # on each
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(scontrol --oneliner show node "${hosts[0]}" | grep -o 'NodeAddr=[^ ]*')
rendezvous="${address#NodeAddr=}:$((10000 + SLURM_JOB_ID % 20000))"
export OMP_NUM_THREADS=$((cpus > ranks ? cpus / ranks : 1))
export NCCL_DEBUG=WARN
export NCCL_SOCKET_IFNAME=ib0
export HEARTLM_HOSTS="${hosts[*]}"
echo "nodes: $nodes, ranks on each: $ranks, they meet at $rendezvous"

# What to run.
command=(
    finetune
    '--run=runs/it'"'"'s mine'
    '--corpus=corpora/mit bih'
    --out=runs/beats
    --task=beats
)
run_folder=runs/beats
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
    'images/heart lm.sif'
    "${launcher[@]}"
)

step=
asked=
cancelled=
# Asked to stop, 300 s before the time limit, a training saves a checkpoint and ends with status 143; then
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
