#!/bin/bash
# heartlm data convert on 1 node × 1 CPU rank, profile generic.
#SBATCH --job-name=copies
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
#SBATCH --array=1-8
#SBATCH --output=logs/copies-%A_%a.out

set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
export OMP_NUM_THREADS=$cpus

# What to run.
command=(
    data
    convert
    /archive
    'my copies'
    --to=edf
    --anonymize
    "--processes=$cpus"
    "--part=$SLURM_ARRAY_TASK_ID/8"
)

# How.
launcher=(python -m heartlm)

exec srun --nodes="$nodes" --ntasks="$nodes" --cpus-per-task="$cpus" "${launcher[@]}" "${command[@]}"
