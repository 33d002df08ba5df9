"""Several runs on one GPU: each on a MIG slice if the site has slices, otherwise concurrently through NVIDIA MPS.

    runs_per_gpu: 4 ─┬─ the profile has gpu_slices ─► one job per run, which requests one slice as its GPU
                     └─ it has none ─► one job for 4 runs: control daemon ─► runs on equal parts of the GPU ─► quit

A process can use only one MIG slice, and collectives over several slices are not supported, so a run that shares a
GPU has one rank (docs.nvidia.com/datacenter/tesla/mig-user-guide, "CUDA Visible Devices"). SLURM provides slices as
GPUs of a separate type (slurm.schedmd.com/gres.html, "MIG Management").
"""

from __future__ import annotations

from heartlm.cluster.fragment import fragment
from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.topology import Topology
from heartlm.errors import HeartlmError


def gpu_option(topology: Topology, profile: SiteProfile) -> str:
    """Return the sbatch option that requests the GPUs of a node, or the smallest slice that is large enough for a run.

    Raises:
        HeartlmError: the profile has no slice that is large enough.
    """
    runs = topology.runs_per_gpu
    if runs == 1:
        return profile.gpu_option.replace("{gpus}", str(topology.gpus_per_node))
    if not profile.gpu_slices:
        raise HeartlmError(
            f"runs_per_gpu: {runs} found, but profile {profile.name} has no gpu_slices: leave it out, or use heartlm "
            "campaign, which starts several runs in one job"
        )
    large_enough = [slices for slices in profile.gpu_slices if slices <= runs]
    if not large_enough:
        raise HeartlmError(
            f"runs_per_gpu: {runs} found, at least {min(profile.gpu_slices)} expected: the largest slice of profile "
            f"{profile.name} is one of {min(profile.gpu_slices)} on a GPU"
        )
    return profile.gpu_slices[max(large_enough)]


def mps_lines(runs_per_gpu: int, profile: SiteProfile) -> list[str]:
    """Return script lines that let the runs of `launcher` share GPUs; the daemon stops when the script ends.

    Source: NVIDIA's documentation, docs.nvidia.com/deploy/mps. The pipe directory must be local and not accessible to
    other users. If the daemon's mask has indices, its clients see renumbered devices; with UUIDs they do not.
    `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of 100 % / n gives n clients equal parts. Without a daemon a client runs without
    MPS, time-sliced with the others.
    """
    lines = fragment("mps", runs=runs_per_gpu, percent=max(1, 100 // runs_per_gpu))
    return [line for line in lines if profile.container != "none" or "APPTAINER_BIND" not in line]
