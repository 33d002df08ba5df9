"""Versions that have to fit each other: heartlm, torch, the driver's CUDA, NCCL; and what is not installed."""

from __future__ import annotations

import importlib.util
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from heartlm import __version__
from heartlm.cluster.doctor.section import Advice, Context, Section

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
    required = _required()
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


def _required() -> list[str]:
    """What heartlm asks for, in the words of its metadata; nothing where it was not installed."""
    try:
        return metadata.requires("heartlm") or []
    except metadata.PackageNotFoundError:
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
    return [name for name in names if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
