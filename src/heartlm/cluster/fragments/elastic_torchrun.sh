# How: one torchrun a node starts the ranks there.
launcher=(
    @python@ -m heartlm.cluster.torchrun
    --nnodes=@nodes@ "--nproc-per-node=$ranks" --max-restarts=@restarts@
    --rdzv-backend=c10d "--rdzv-endpoint=$rendezvous" "--rdzv-id=$meeting"
    -m heartlm
)
