# @runs@ runs share a GPU through NVIDIA MPS. Its daemon belongs to this job and ends with it.
# GPUs are named by UUID, as the daemon numbers those of its own mask again.
mps=$(mktemp -d /tmp/heartlm-mps-XXXXXX)
mkdir "$mps/pipe" "$mps/log"
export CUDA_MPS_PIPE_DIRECTORY="$mps/pipe" CUDA_MPS_LOG_DIRECTORY="$mps/log"
export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=@percent@
export APPTAINER_BIND="${APPTAINER_BIND:+$APPTAINER_BIND,}$mps"
ask=(nvidia-smi --query-gpu=uuid "--format=csv,noheader")
if uuids=$("${ask[@]}" ${CUDA_VISIBLE_DEVICES:+"--id=$CUDA_VISIBLE_DEVICES"} | paste -sd,); then
    export CUDA_VISIBLE_DEVICES="$uuids"
    launcher=(env "CUDA_VISIBLE_DEVICES=$uuids" "${launcher[@]}") # srun sets indices again
fi
trap 'echo quit | nvidia-cuda-mps-control || true; rm -rf "$mps"' EXIT
nvidia-cuda-mps-control -d || echo "MPS did not start: runs take turns on the GPU"
