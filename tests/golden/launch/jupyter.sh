#!/bin/bash -l
# JupyterLab on 1 node × 1 GPU, profile meluxina.
#SBATCH --job-name=jupyter
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=01:00:00
#SBATCH --account=p200000
#SBATCH --partition=gpu
#SBATCH --qos=default
#SBATCH --output=logs/jupyter-%j.out

module load Apptainer/1.2.4-GCCcore-12.3.0
set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
export OMP_NUM_THREADS=$cpus

# What to run; the token in the address it prints keeps others out.
chmod go= /dev/stdout || true # the job's output, whatever the umask
command=(
    --no-browser
    "--ip=$(hostname)"
    --port=8888
    --port-retries=0
)
echo "JupyterLab will be at $(hostname):8888"

# How.
launcher=(python -m jupyterlab)
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

exec srun --nodes="$nodes" --ntasks="$nodes" --cpus-per-task="$cpus" "${launcher[@]}" "${command[@]}"
