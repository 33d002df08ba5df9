# How: one torchrun a node starts the ranks there.
launcher=(
    @python@ -m heartlm.extensions.cluster.torchrun
    "--nnodes=$nodes" "--nproc-per-node=$ranks"
    --rdzv-backend=c10d "--rdzv-endpoint=$rendezvous"
    "--rdzv-id=$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
    -m heartlm
)
