# How: one torchrun a node starts the ranks there.
launcher=(
    @python@ -m heartlm.cluster.torchrun
    --standalone "--nproc-per-node=$ranks"
    -m heartlm
)
