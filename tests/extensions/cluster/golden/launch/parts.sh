#!/bin/bash -l
# heartlm delineate on 1 node × 1 CPU rank, profile own.
#SBATCH --job-name=waves
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
#SBATCH --account=p1
#SBATCH --array=1-64
#SBATCH --output=logs/waves-%A_%a.out
#SBATCH --mem=0
#SBATCH --hint=nomultithread

module load Apptainer
set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
export OMP_NUM_THREADS=$cpus
export NCCL_SOCKET_IFNAME=ib0

# What to run.
command=(
    delineate
    /archive
    '/my own'
    --out=waves
    --tables=parquet
    "--processes=$cpus"
    "--part=$SLURM_ARRAY_TASK_ID/64"
)

# How.
launcher=(python -m heartlm)
launcher=(
    apptainer exec --pwd "$PWD"
    --bind "$PWD"
    'images/heart lm.sif'
    "${launcher[@]}"
)

exec srun --nodes="$nodes" --ntasks="$nodes" --cpus-per-task="$cpus" "${launcher[@]}" "${command[@]}"
