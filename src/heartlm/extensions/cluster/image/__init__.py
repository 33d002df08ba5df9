"""The container image for clusters: CUDA, PyTorch and heartlm at pinned versions, as an Apptainer definition.

post.sh (installation)     ┐
check.sh (tests)           ┼─► heartlm.def ─► apptainer build ─► heartlm.sif
constraints.txt (pins)     ┘
"""
