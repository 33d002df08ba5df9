#!/bin/bash -l
# heartlm campaign on 1 node × 4 GPUs, profile meluxina.
#SBATCH --job-name=widths-finetune-mitdb-128@4
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=128
#SBATCH --time=00:30:00
#SBATCH --partition=gpu
#SBATCH --qos=default
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/project/work/widths.campaign/jobs/widths-finetune-mitdb-128@4-%j.out

module load Apptainer/1.2.4-GCCcore-12.3.0
set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
export OMP_NUM_THREADS=$cpus

# What to run.
command=(
    campaign
    run
    /project/work/widths.yaml
    --local
    --parallel=4
    '--only=finetune-mitdb-128 finetune-mitdb-256 finetune-mitdb-512 finetune-svdb-128'
)

# How.
launcher=(python -m heartlm)
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
