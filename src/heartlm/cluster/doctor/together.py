"""What ranks do together: an all-reduce, and, where torchrun started some, whether they are alike."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from heartlm import __version__
from heartlm.cluster.doctor.section import Context, Section
from heartlm.distributed.allreduce import (
    QUICK_SIZES_BYTES,
    SIZES_BYTES,
    AllReduceFit,
    measure_all_reduce,
    measure_in_group,
    process_group,
)
from heartlm.distributed.ranks import Ranks
from heartlm.kernels.library import variants

ROUNDS, QUICK_ROUNDS = 9, 5
ABOUT_BYTES = 1024


def check_all_reduce(context: Context) -> Section:
    """Measure and fit an all-reduce among the ranks there are, or among some started on this machine."""
    sizes, rounds = (QUICK_SIZES_BYTES, QUICK_ROUNDS) if context.quick else (SIZES_BYTES, ROUNDS)
    ranks = Ranks.from_environment()
    if ranks.world_size == 1:
        fit = measure_all_reduce(sizes_bytes=sizes, rounds=rounds)
        over_gloo = (
            ["over gloo, as there is no room in /dev/shm"] if fit.backend == "gloo" else []
        )
        return Section([*_lines(fit), *over_gloo], _facts(fit))
    with process_group(ranks):
        fit = measure_in_group(sizes, rounds)
        found = gathered(about_this_rank())
    return Section([*_lines(fit), *likeness(found)], _facts(fit) | {"ranks": found})


def about_this_rank() -> dict[str, Any]:
    """What ranks that train together should have in common, and where this one is."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "node": platform.node()[:64],
        "cores": len(os.sched_getaffinity(0)),
        "GPUs": f"{len(gpus)} × {gpus[0]}" if gpus else "none",
        "torch": str(torch.__version__),
        "heartlm": __version__,
        "kernels": variants()[-1],
    }


def gathered(about: dict[str, Any]) -> list[dict[str, Any]]:
    """What every rank of the default group says `about` itself, by rank."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    text = json.dumps(about).encode().ljust(ABOUT_BYTES)
    assert len(text) == ABOUT_BYTES
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, mine)
    return [json.loads(bytes(one.tolist())) for one in all_of_them]


def likeness(found: Sequence[dict[str, Any]]) -> list[str]:
    """Where ranks are, and in what they differ; the slowest of them sets the speed of all."""
    nodes = sorted({about["node"] for about in found})
    told = (f"{node} ({sum(about['node'] == node for about in found)} rank(s))" for node in nodes)
    lines = [f"{len(nodes)} node(s): {', '.join(told)}"]
    for name in found[0]:
        values = {str(about[name]) for about in found}
        if name != "node" and len(values) > 1:
            whose = (f"{about[name]} on rank {rank}" for rank, about in enumerate(found))
            lines.append(f"ranks differ in {name}: {', '.join(whose)}")
    return lines


def _facts(fit: AllReduceFit) -> dict[str, Any]:
    return {"fit": asdict(fit), "median_error": fit.median_error}


def _lines(fit: AllReduceFit) -> list[str]:
    table = ", ".join(f"{_size(size)} {_time(taken_s)}" for size, taken_s in fit.points)
    return [
        f"{fit.world_size} ranks, {fit.backend}: {_time(fit.latency_s)} + message at {fit.bytes_per_s / 1e9:.2f} GB/s "
        f"(median error {100 * fit.median_error:.0f} %)",
        f"measured: {table}",
    ]


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"


def _time(taken_s: float) -> str:
    if taken_s < 1e-4:
        return f"{taken_s * 1e6:.0f} µs"
    return f"{taken_s * 1e3:.2f} ms" if taken_s < 1e-2 else f"{taken_s * 1e3:.0f} ms"
