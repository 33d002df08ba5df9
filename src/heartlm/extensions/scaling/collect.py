"""Combine the records of the ranks of a training into one measurement, and check it. Imports no torch.

A rank cannot observe which rank it waits for. Between two sums over ranks, each rank works independently: it runs the
optimiser (of the step before), loads data and computes. The slowest rank arrives last. Each other rank waits at least
for the difference, and this part of the waiting time belongs to the straggler, not to the network.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.extensions.scaling.cell import PARTS, Measurement, StudyCell
from heartlm.instrumentation.meters import Meters
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.reading import read_json

Rank = Mapping[str, Any]
"""Record of one rank: see `training.measured`."""


def read_ranks(run: Path, num_ranks: int) -> list[Rank]:
    """Return the records of all ranks of the training in the folder `run`.

    Raises:
        HeartlmError: a rank is missing, or has another number of steps than the others.
    """
    ranks = [read_json(RunFolder(run).measured(rank)) for rank in range(num_ranks)]
    counts = {len(rank["steps"]) for rank in ranks}
    if len(counts) != 1 or any(rank["world_size"] != num_ranks for rank in ranks):
        raise HeartlmError(f"{run}: {num_ranks} ranks that went the same way expected: measure it again")
    return ranks


def measured(
    cell: StudyCell,
    repeat: int,
    trainings: Sequence[Sequence[Rank]],
    *,
    warm_up: int,
    wall_s: float,
    environment: Mapping[str, Any],
) -> Measurement:
    """Return the measurement of a cell from the records of its training, or of its copies.

    Args:
        cell: cell that was trained.
        repeat: index of the repeat, from 0.
        trainings: records of the ranks of each training.
        warm_up: number of first steps that are not counted.
        wall_s: duration from start to end in seconds.
        environment: machine and versions.
    """
    parts = [_parts(ranks, warm_up) for ranks in trainings]
    part_s = {name: statistics.fmean(part[name] for part in parts) for name in PARTS}
    # [num_counted_steps]: the mean over ranks, then over copies.
    steps_s = np.mean([_of_ranks(ranks, "step_s")[:, warm_up:].mean(axis=0) for ranks in trainings], axis=0)
    every, firsts = [rank for ranks in trainings for rank in ranks], [ranks[0] for ranks in trainings]
    rates = [sum(step["num_tokens"] for step in first["steps"][warm_up:]) for first in firsts]
    # Use the losses of the copy that differs most from the first, so that its check fails if any copy is wrong.
    losses = _of_ranks(firsts, "loss")
    farthest = int(np.nan_to_num(np.abs(losses - losses[0]), nan=np.inf).max(axis=1).argmax())
    energy_j = None
    if all(rank["energy_j"] is not None for rank in firsts):  # meters count all steps after their own warm-up
        counted = len(firsts[0]["steps"]) - Meters.WARM_UP_STEPS
        energy_j = sum(float(rank["energy_j"]) for rank in firsts) / counted * len(steps_s)
    return Measurement(
        cell=cell,
        repeat=repeat,
        step_s=steps_s.tolist(),
        tokens_per_s=sum(rates) / float(steps_s.sum()),
        part_s=part_s,
        num_parameters=every[0]["num_parameters"],
        peak_memory_bytes=max(rank["peak_memory_bytes"] for rank in every),
        peak_device_memory_bytes=max(rank["peak_device_memory_bytes"] or 0 for rank in every) or None,
        energy_j=energy_j,
        losses=losses[farthest].tolist(),
        wall_s=wall_s,
        environment=dict(environment),
    )


def _parts(ranks: Sequence[Rank], warm_up: int) -> dict[str, float]:
    """Return the mean seconds of every part of a step of one training, over ranks and counted steps."""
    # Working time of each rank before the ranks synchronise in a step, `[num_ranks, num_steps]`. The optimiser part of
    # a step follows the synchronisation, so the optimiser part of the previous step is used.
    optimizer_s = _of_ranks(ranks, "optimizer_s")
    before_s = np.concatenate([np.zeros((len(ranks), 1)), optimizer_s[:, :-1]], axis=1)
    work_s = _of_ranks(ranks, "step_s") - _of_ranks(ranks, "communication_s") - optimizer_s + before_s
    lead_s = work_s.max(axis=0, keepdims=True) - work_s  # how much earlier each rank is ready than the slowest
    waited_s = _of_ranks(ranks, "communication_s")[:, warm_up:]
    behind_s = np.minimum(waited_s, lead_s[:, warm_up:])

    def mean(name: str) -> float:
        return float(_of_ranks(ranks, name)[:, warm_up:].mean())

    return {
        "data": mean("data_s"),
        "compute": mean("forward_backward_s"),
        "exposed_communication": float((waited_s - behind_s).mean()),
        "straggler": float(behind_s.mean()),
        "optimizer": mean("optimizer_s"),
        "other": mean("other_s"),
    }


def _of_ranks(ranks: Sequence[Rank], name: str) -> NDArray[np.float64]:
    return np.array([[step[name] for step in rank["steps"]] for rank in ranks], dtype=np.float64)


def checked(measurement: Measurement, reference: Sequence[float], tolerance: float) -> Measurement:
    """Return the measurement, marked as failed if its losses differ from `reference`.

    Args:
        measurement: measurement to check.
        reference: losses of one rank, by step.
        tolerance: maximum relative difference.
    """
    losses = np.array(measurement.losses)
    if not len(losses) or len(losses) != len(reference):
        return replace(measurement, failed=f"{len(losses)} losses found, {len(reference)} expected as of one rank")
    deviation = np.abs(losses - reference) / np.maximum(np.abs(reference), 1e-12)
    step = int(np.nan_to_num(deviation, nan=np.inf).argmax())
    if deviation[step] <= tolerance:
        return measurement
    losses_differ = f"loss {losses[step]:.6g} in step {step + 1}, {reference[step]:.6g} expected as of one rank"
    return replace(measurement, failed=f"{losses_differ}: {deviation[step]:.1e} apart, {tolerance:g} allowed")
