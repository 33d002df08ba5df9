"""Several runs on one GPU: each on a MIG slice where a site has slices, otherwise side by side through NVIDIA MPS.

    runs_per_gpu: 4 ─┬─ the profile has gpu_slices ─► one job a run, which asks for one slice as its GPU
                     └─ it has none ─► one job for 4 runs: control daemon ─► runs on equal parts of the GPU ─► quit

A process can use one MIG slice only, and several slices do no collectives together, so a run that shares a GPU has one
rank (docs.nvidia.com/datacenter/tesla/mig-user-guide, "CUDA Visible Devices"). SLURM gives slices as GPUs of a type of
their own (slurm.schedmd.com/gres.html, "MIG Management").
"""

from __future__ import annotations

from heartlm.cluster.fragment import fragment
from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.topology import Topology
from heartlm.errors import HeartlmError


def gpu_option(topology: Topology, profile: SiteProfile) -> str:
    """The option of sbatch that asks for the GPUs of a node, or for the smallest slice that is a run's part of one.

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
    """Lines of a batch script that let the runs of `launcher` share GPUs, until the script ends in whatever way.

    What they rest on is in NVIDIA's documentation, docs.nvidia.com/deploy/mps. Pipes belong into a local folder that no
    other user has. An indexed mask set for the daemon numbers devices again for its clients, a mask of UUIDs does not.
    `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of 100 % / n gives n clients equal parts. A client that finds no daemon runs
    without MPS, taking turns with the others.
    """
    lines = fragment("mps", runs=runs_per_gpu, percent=max(1, 100 // runs_per_gpu))
    return [line for line in lines if profile.container != "none" or "APPTAINER_BIND" not in line]
