"""What is installed and which variables are set: versions that have to fit each other, kernels, the allocation."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any

from heartlm import __version__
from heartlm.cluster.doctor.section import Advice, Context, Section
from heartlm.errors import HeartlmError
from heartlm.kernels.library import VARIANTS, variants

EXTRAS_OF_USERS = ("train", "score", "report", "edf", "energy", "tensorboard", "wandb", "profile")


def check_versions(context: Context) -> Section:
    """List versions, and name what does not fit."""
    facts: dict[str, Any] = {"heartlm": __version__, "python": platform.python_version()}
    lines = [f"heartlm {__version__}, Python {facts['python']}"]
    advice: list[Advice] = []
    if importlib.util.find_spec("torch") is None:
        lines.append("torch is not installed, so nothing that trains was measured: pip install 'heartlm[train]'")
    else:
        facts |= _torch_facts()
        nccl = f", NCCL {facts['nccl']}" if facts["nccl"] else ""
        lines[0] += f", torch {facts['torch']} (CUDA {facts['torch_cuda'] or 'none'}{nccl})"
        advice = mismatches(facts, context.fact("devices", "gpus", []), context.fact("devices", "driver_cuda"))
    required: list[str] = []
    with suppress(metadata.PackageNotFoundError):  # run from a checkout that is not installed
        required = metadata.requires("heartlm") or []
    if (wrong := _outside(required, facts.get("torch"))) is not None:
        lines.append(wrong)
    facts["missing_extras"] = missing = {
        extra: names for extra in EXTRAS_OF_USERS if (names := _missing(required, extra))
    }
    lines += [f"{note.because}: {note.what}" for note in advice]
    if missing:
        told = ", ".join(f"{extra} ({', '.join(names)})" for extra, names in missing.items())
        lines.append(f"extras not installed: {told}: pip install 'heartlm[{','.join(missing)}]'")
    return Section(lines, facts, advice)


def _torch_facts() -> dict[str, Any]:
    import torch

    nccl = torch.cuda.nccl.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    return {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "torch_sees_gpus": torch.cuda.device_count(),
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }


def mismatches(facts: dict[str, Any], gpus: Sequence[Any], driver_cuda: Sequence[int] | None) -> list[Advice]:
    """What keeps torch from the GPUs that the driver has."""
    if not gpus or driver_cuda is None:
        return []
    cuda = facts["torch_cuda"]
    told = ".".join(map(str, driver_cuda))
    if cuda is None:
        because = f"there are {len(gpus)} GPU(s), but torch {facts['torch']} is built without CUDA"
        return [Advice("install a torch built for CUDA", "pip install --force-reinstall torch", None, because)]
    if int(cuda.partition(".")[0]) > driver_cuda[0]:
        because = f"torch is built for CUDA {cuda}, the driver knows CUDA {told} at most"
        return [Advice("install a torch for the driver's CUDA, or a newer driver", f"CUDA {told}", None, because)]
    if not facts["torch_sees_gpus"]:
        because = f"there are {len(gpus)} GPU(s), torch sees none"
        return [Advice("see which GPUs this process may use", "echo $CUDA_VISIBLE_DEVICES", None, because)]
    return []


def _outside(required: Sequence[str], torch: str | None) -> str | None:
    asked = next((line for line in required if re.match(r"torch\b", line)), None)
    if asked is None or torch is None:
        return None
    bounds = re.findall(r"(>=|<)\s*([\d.]+)", asked.partition(";")[0])
    fits = all((_numbers(torch) >= _numbers(bound)) == (sign == ">=") for sign, bound in bounds)
    return None if fits else f"torch {torch} is not one that heartlm was tried with: {asked.partition(';')[0].strip()}"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]


def _missing(required: Sequence[str], extra: str) -> list[str]:
    """Packages of `extra` that are not installed."""
    names = [re.split(r"[<>=;\[ ]", line)[0] for line in required if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return [name for name in names if not any(metadata.distributions(name=name))]


def check_kernels(context: Context) -> Section:
    """Say which kernels are used, and what keeps better ones away."""
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    setting = os.environ.get("HEARTLM_KERNELS", "")
    facts: dict[str, Any] = {"setting": setting or None, "compiler": compiler}
    try:
        facts["variants"] = list(variants())
    except HeartlmError as error:
        how = "pip install --force-reinstall --no-deps heartlm"
        return Section([str(error)], facts, [Advice("build the compiled kernels", how, None, str(error))])
    best = setting if setting in VARIANTS else variants()[-1]
    line = f"compiled, {best} is used; this processor runs {', '.join(variants())}"
    return Section([line + (f" (HEARTLM_KERNELS={setting})" if setting else "")], facts)


SLURM_NAMES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_MEM_PER_NODE",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
)
RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_allocation(context: Context) -> Section:
    """Say which variables of SLURM and torchrun are set."""
    return allocation(os.environ, int(context.fact("processors", "usable_cores", 1)))


def allocation(environment: Mapping[str, str], usable_cores: int) -> Section:
    """What `environment` says, and the cores that this process may really use."""
    slurm = {name: environment[name] for name in SLURM_NAMES if name in environment}
    ranks = {name: environment[name] for name in RANK_NAMES if name in environment}
    facts: dict[str, Any] = {"slurm": slurm, "ranks": ranks}
    lines = [", ".join(f"{name}={value}" for name, value in group.items()) for group in (slurm, ranks) if group]
    if not slurm:
        return Section([*lines, "not in a SLURM allocation"], facts)
    advice = []
    given = slurm.get("SLURM_CPUS_ON_NODE", "")
    if given.isdigit() and "SLURM_CPUS_PER_TASK" not in slurm and int(given) > usable_cores:
        lines.append(f"a task runs on {usable_cores} core(s), the job has {given} on this node")
        advice.append(
            Advice(
                "give each task its cores",
                f"#SBATCH --cpus-per-task={given}   and   srun --cpus-per-task={given} …",
                None,
                "SLURM_CPUS_PER_TASK is not set, so a task got fewer cores than the job holds",
            )
        )
    return Section(lines, facts, advice)
