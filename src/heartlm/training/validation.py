"""Losses on the validation split, each rank its part."""

from __future__ import annotations

from heartlm.corpus.windows import Windows
from heartlm.distributed.parallel import HostAllReduce
from heartlm.training.job import Job
from heartlm.training.learner import Learner


def validation_losses(job: Job, windows: Windows, learner: Learner, sums: HostAllReduce) -> dict[str, float]:
    """Mean loss over the counting tokens of `windows`, and the same part by part; on every rank."""
    totals, size = dict[str, float](), job.sampler.batch_size
    for begin in range(0, len(windows), size):
        for name, value in _sums_of_rank(job, windows[begin : begin + size], learner).items():
            totals[name] = totals.get(name, 0.0) + value
    numbers = dict(zip(totals, sums(*totals.values()), strict=True))
    counted = max(1.0, numbers.pop("counted"))
    return {name if name == "loss" else f"loss/{name}": value / counted for name, value in numbers.items()}


def _sums_of_rank(job: Job, windows: Windows, learner: Learner) -> dict[str, float]:
    """This rank's part of the sums over `windows`; every rank computes something, as sharded weights demand."""
    rank, of, num = job.ranks.rank, job.ranks.world_size, len(windows)
    first, stop = rank * num // of, (rank + 1) * num // of
    batch = job.make_batch(windows[first : max(stop, first + 1)], None, first, num)
    numbers = {"counted": float(batch.num_counted), **learner.evaluate(batch)}
    return numbers if stop > first else dict.fromkeys(numbers, 0.0)
