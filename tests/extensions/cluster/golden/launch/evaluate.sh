#!/bin/bash -l
# heartlm evaluate on 1 node × 1 GPU, profile own.
#SBATCH --job-name=scores
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --account=p1
#SBATCH --output=logs/scores-%j.out
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
    evaluate
    runs/beats
    --on=corpora/mitdb
)

# How.
launcher=(python -m heartlm)
launcher=(
    apptainer exec --nv --pwd "$PWD"
    --bind "$PWD"
    'images/heart lm.sif'
    "${launcher[@]}"
)

exec srun --nodes="$nodes" --ntasks="$nodes" --cpus-per-task="$cpus" "${launcher[@]}" "${command[@]}"
