"""Checks over several ranks: an all-reduce, and, under torchrun, whether the ranks are alike."""

from __future__ import annotations

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
    measure_all_reduce,
    measure_in_group,
    process_group,
)
from heartlm.distributed.ranks import Ranks
from heartlm.kernels.library import variants

ROUNDS, QUICK_ROUNDS = 9, 5


def check_all_reduce(context: Context) -> Section:
    """Measure and fit an all-reduce among the existing ranks, or among ranks started on this machine."""
    sizes, rounds = (QUICK_SIZES_BYTES, QUICK_ROUNDS) if context.quick else (SIZES_BYTES, ROUNDS)
    ranks, more, found = Ranks.from_environment(), list[str](), list[Any]()
    if ranks.world_size == 1:
        fit = measure_all_reduce(sizes_bytes=sizes, rounds=rounds)
        more += ["over gloo: no room in /dev/shm"] if fit.backend == "gloo" else []
    else:
        with process_group(ranks):
            import torch.distributed as dist

            fit, found = measure_in_group(sizes, rounds), [None] * ranks.world_size
            dist.all_gather_object(found, about_this_rank())
        more += likeness(found)
    table = ", ".join(f"{size >> 10} KiB {1e3 * taken_s:.3g} ms" for size, taken_s in fit.points)
    lines = [
        f"{fit.world_size} ranks, {fit.backend}: {1e3 * fit.latency_s:.3g} ms + message at "
        f"{fit.bytes_per_s / 1e9:.2f} GB/s (median error {100 * fit.median_error:.0f} %)",
        f"measured: {table}",
    ]
    facts = {"fit": asdict(fit), "median_error": fit.median_error}
    return Section([*lines, *more], facts | ({"ranks": found} if found else {}))


def about_this_rank() -> dict[str, Any]:
    """Return the properties that ranks should have in common, and the location of this rank."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "node": platform.node(),
        "cores": len(os.sched_getaffinity(0)),
        "GPUs": f"{len(gpus)} × {gpus[0]}" if gpus else "none",
        "torch": str(torch.__version__),
        "heartlm": __version__,
        "kernels": variants()[-1],
    }


def likeness(found: Sequence[dict[str, Any]]) -> list[str]:
    """Report the locations and differences of ranks; the slowest rank sets the speed of all."""
    nodes = sorted({about["node"] for about in found})
    told = (f"{node} ({sum(about['node'] == node for about in found)} rank(s))" for node in nodes)
    lines = [f"{len(nodes)} node(s): {', '.join(told)}"]
    for name in found[0]:
        values = {str(about[name]) for about in found}
        if name != "node" and len(values) > 1:
            whose = (f"{about[name]} on rank {rank}" for rank, about in enumerate(found))
            lines.append(f"ranks differ in {name}: {', '.join(whose)}")
    return lines
