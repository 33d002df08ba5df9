#!/bin/bash
# Campaign small, pretrain: 1 node × 1/4 GPU each, profile mps-site. 4 share a GPU.
#SBATCH --job-name=small-1-pretrain
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/project/work/small.campaign/arrays/1-pretrain-%A_%a.out
#SBATCH --array=1-2
#SBATCH --kill-on-invalid-dep=yes

set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
export OMP_NUM_THREADS=$cpus

# Which experiment: the line of this task.
tasks=/project/work/small.campaign/arrays/1-pretrain.tasks
IFS=$'\t' read -r _ words < <(sed -n "${SLURM_ARRAY_TASK_ID}p" "$tasks")
command=()
eval "command=($words)"

# How.
launcher=(python -m heartlm)
launcher=(
    apptainer exec --nv --pwd "$PWD"
    --bind "$PWD"
    heartlm.sif
    "${launcher[@]}"
)

# 4 runs share a GPU through NVIDIA MPS. Its daemon belongs to this job and ends with it.
# GPUs are named by UUID, as the daemon numbers those of its own mask again.
mps=$(mktemp -d /tmp/heartlm-mps-XXXXXX)
mkdir "$mps/pipe" "$mps/log"
export CUDA_MPS_PIPE_DIRECTORY="$mps/pipe" CUDA_MPS_LOG_DIRECTORY="$mps/log"
export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25
export APPTAINER_BIND="${APPTAINER_BIND:+$APPTAINER_BIND,}$mps"
ask=(nvidia-smi --query-gpu=uuid "--format=csv,noheader")
if uuids=$("${ask[@]}" ${CUDA_VISIBLE_DEVICES:+"--id=$CUDA_VISIBLE_DEVICES"} | paste -sd,); then
    export CUDA_VISIBLE_DEVICES="$uuids"
    launcher=(env "CUDA_VISIBLE_DEVICES=$uuids" "${launcher[@]}") # srun sets indices again
fi
trap 'echo quit | nvidia-cuda-mps-control || true; rm -rf "$mps"' EXIT
nvidia-cuda-mps-control -d || echo "MPS did not start: runs take turns on the GPU"

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
