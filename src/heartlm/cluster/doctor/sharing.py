"""GPU sharing between runs: whether it pays off, and whether the site offers MIG slices or MPS."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from heartlm.cluster.doctor.section import Advice, Context, Section, size_in_words
from heartlm.cluster.doctor.trials import AS_IT_IS, STEPS, WINDOWS, trained

LARGER = 4
"""Batch factor of the second training: as much work as this number of parallel runs."""

CONTROL = "nvidia-cuda-mps-control"


def check_sharing(context: Context) -> Section:
    """Check how runs can share a GPU here, and whether a small model leaves room for a second run."""
    gpus, mps = context.fact("devices", "gpus", []), shutil.which(CONTROL)
    num_slices = sum(len(gpu["mig_instances"] or []) for gpu in gpus)
    facts: dict[str, Any] = {"mps": mps}
    lines = offers(num_slices, mps)
    num_gpus = int(context.fact("versions", "torch_sees_gpus", 0))
    if not num_gpus or context.quick:
        because = "without --quick it is" if num_gpus else "no GPU here that a run could leave idle"
        return Section([*lines, f"whether sharing pays: not measured, {because}"], facts)
    small, large = (trained(AS_IT_IS, context.scratch, times * WINDOWS["gpu"], STEPS) for times in (1, LARGER))
    gain = room(small["step_s"], large["step_s"])
    facts |= {"gain": gain, "peak_device_memory_bytes": small["peak_device_memory_bytes"]}
    line, advice = verdict(gain, small["peak_device_memory_bytes"], bool(num_slices or mps), gpus)
    return Section([*lines, line], facts, advice)


def offers(num_slices: int, mps: str | None) -> list[str]:
    """Return one line on MIG and one on MPS."""
    divided = f"{num_slices} slice(s) on this machine: a profile's gpu_slices says how SLURM is asked for one"
    where = f"MPS: {mps}, a campaign with runs_per_gpu starts it in its jobs"
    return [
        f"MIG: {divided if num_slices else 'no slices on this machine; sinfo --format=%G lists those of SLURM'}",
        where if mps else f"MPS: {CONTROL} not found, so runs that share a GPU take turns",
    ]


def room(step_s: float, larger_step_s: float) -> float:
    """Return the gain in GPU throughput from `LARGER` times the work per step.

    A step that waits for kernel launches or data takes hardly longer with more work. Near `LARGER` the GPU is mostly
    idle; near 1 a single run fills it.
    """
    return LARGER * step_s / larger_step_s


def verdict(
    gain: float, memory_bytes: int | None, is_offered: bool, gpus: Sequence[Mapping[str, Any]]
) -> tuple[str, list[Advice]]:
    """Return a line on whether sharing pays off, and advice to share if it does and the site supports it."""
    runs = min(LARGER, int(gain))
    of_gpu = min((gpu["memory_bytes"] for gpu in gpus), default=0)
    seen = f"{LARGER} times the batch take {LARGER / gain:.1f} times as long"
    if runs < 2:
        return f"sharing does not pay: {seen}, so one run fills a GPU", []
    if memory_bytes is not None and of_gpu and runs * memory_bytes > of_gpu:
        fits = size_in_words(memory_bytes)
        return f"sharing does not pay: {seen}, but {runs} runs of {fits} do not fit into {size_in_words(of_gpu)}", []
    line = f"sharing pays: {seen}, so a step of a small model waits for launches or data; {runs} runs have room"
    if not is_offered:
        return line, []
    how = f"topology: {{gpus_per_node: 1, runs_per_gpu: {runs}}}   in the campaign's file"
    return line, [Advice(f"let {runs} small runs share a GPU", how, gain, seen)]
