"""The image that clusters run: CUDA, PyTorch and heartlm at pinned versions, as an Apptainer definition.

post.sh (what is installed) ┐
check.sh (what must work)   ┼─► heartlm.def ─► apptainer build ─► heartlm.sif
constraints.txt (pins)      ┘
      └─► the same two files, in a clean virtual environment or a chroot: `heartlm image test`
"""
