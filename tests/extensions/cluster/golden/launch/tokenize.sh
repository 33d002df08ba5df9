#!/bin/bash
# heartlm tokenize on 1 node × 1 CPU rank, profile generic.
#SBATCH --job-name=tokens
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=01:00:00
#SBATCH --output=logs/tokens-%j.out

set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
export OMP_NUM_THREADS=$cpus

# What to run.
command=(
    tokenize
    data/mitdb
    'data/my own'
    --out=corpora/many
    "--processes=$((cpus < 64 ? cpus : 64))"
)

# How.
launcher=(python -m heartlm)

exec srun --nodes="$nodes" --ntasks="$nodes" --cpus-per-task="$cpus" "${launcher[@]}" "${command[@]}"
