#!/bin/bash -l
# Campaign widths, finetune: 1 node × 1 GPU each, profile meluxina. 4 share a node.
#SBATCH --job-name=widths-2-finetune
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
#SBATCH --output=/project/work/widths.campaign/arrays/2-finetune-%A_%a.out
#SBATCH --array=1-2
#SBATCH --kill-on-invalid-dep=yes

module load Apptainer/1.2.4-GCCcore-12.3.0
set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
export OMP_NUM_THREADS=$cpus

# Which experiment: the line of this task.
tasks=/project/work/widths.campaign/arrays/2-finetune.tasks
IFS=$'\t' read -r _ words < <(sed -n "${SLURM_ARRAY_TASK_ID}p" "$tasks")
command=()
eval "command=($words)"

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
# Asked to stop, 120 s before the time limit, runs save checkpoints; then this task
# queues again and they continue. What failed was tried again and is noted: what needs it finds out.
trap 'asked=yes; kill -USR1 "$step" || true' USR1
trap 'asked=yes cancelled=yes' TERM
srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" "${launcher[@]}" "${command[@]}" &
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
exit "$((status == 1 ? 0 : status))"
