"""Installed versions and their compatibility, kernels, and the environment variables of the allocation."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from heartlm import __version__
from heartlm.extensions.cluster.doctor.section import Advice, Section
from heartlm.kernels.library import VARIANTS, variants


def check_versions(known: Mapping[str, Any]) -> Section:
    """List versions and report incompatible ones."""
    facts: dict[str, Any] = {"heartlm": __version__, "python": platform.python_version()}
    line = f"heartlm {__version__}, Python {facts['python']}"
    if importlib.util.find_spec("torch") is None:
        missing = "torch is not installed, so nothing that trains was measured: pip install 'heartlm[train]'"
        return Section([line, missing], facts)
    import torch

    nccl = torch.cuda.nccl.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    facts |= {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "torch_sees_gpus": torch.cuda.device_count(),
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }
    line += f", torch {facts['torch']} (CUDA {facts['torch_cuda'] or 'none'}"
    line += f", NCCL {facts['nccl']})" if facts["nccl"] else ")"
    advice = mismatches(facts, known.get("gpus", []), known.get("driver_cuda"))
    return Section([line, *(f"{note.because}: {note.what}" for note in advice)], facts, advice)


def mismatches(facts: dict[str, Any], gpus: Sequence[Any], driver_cuda: Sequence[int] | None) -> list[Advice]:
    """Return the reasons why torch cannot use the GPUs of the driver."""
    if not gpus or driver_cuda is None:
        return []
    cuda = facts["torch_cuda"]
    driver = ".".join(map(str, driver_cuda))
    if cuda is None:
        because = f"there are {len(gpus)} GPU(s), but torch {facts['torch']} is built without CUDA"
        return [Advice("install a torch built for CUDA", "pip install --force-reinstall torch", None, because)]
    # Within a major version of CUDA, a driver also runs what was built for a later minor one.
    if int(cuda.partition(".")[0]) > driver_cuda[0]:
        because = f"torch is built for CUDA {cuda}, the driver knows CUDA {driver} at most"
        return [Advice("install a torch for the driver's CUDA, or a newer driver", f"CUDA {driver}", None, because)]
    if not facts["torch_sees_gpus"]:
        because = f"there are {len(gpus)} GPU(s), torch sees none"
        return [Advice("see which GPUs this process may use", "echo $CUDA_VISIBLE_DEVICES", None, because)]
    return []


def check_kernels(known: Mapping[str, Any]) -> Section:
    """Report which kernels are used."""
    setting, supported = os.environ.get("HEARTLM_KERNELS", ""), list(variants())
    best = setting if setting in VARIANTS else supported[-1]
    line = f"compiled, {best} is used; this processor runs {', '.join(supported)}"
    facts = {"setting": setting or None, "variants": supported}
    return Section([line + (f" (HEARTLM_KERNELS={setting})" if setting else "")], facts)


def check_allocation(known: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Section:
    """Report the allocation of SLURM, and whether this process has all its cores."""
    usable_cores = int(known.get("usable_cores", 1))
    safe = ("SLURM_JOB_", "SLURM_CPUS_", "SLURM_GPUS_", "SLURM_NTASKS", "SLURM_MEM_", "SLURM_PROCID")  # excludes tokens
    slurm = {name: environment[name] for name in sorted(environment) if name.startswith(safe)}
    facts: dict[str, Any] = {"slurm": slurm}
    if "SLURM_JOB_ID" not in slurm:
        return Section(["not in a SLURM allocation"], facts)
    given, per_task = slurm.get("SLURM_CPUS_ON_NODE", ""), slurm.get("SLURM_CPUS_PER_TASK")
    lines = [
        f"SLURM job {slurm['SLURM_JOB_ID']} on {slurm.get('SLURM_JOB_NODELIST', 'this node')}: "
        f"{given or '?'} CPUs here, {per_task or 'no given number'} for each task"
    ]
    if not given.isdigit() or per_task is not None or int(given) <= usable_cores:
        return Section(lines, facts)
    lines.append(f"a task runs on {usable_cores} core(s), the job has {given} on this node")
    how = f"#SBATCH --cpus-per-task={given}   and   srun --cpus-per-task={given} …"
    because = "SLURM_CPUS_PER_TASK is not set, so a task got fewer cores than the job holds"
    return Section(lines, facts, [Advice("give each task its cores", how, None, because)])
