"""Measurements of one rank at any batch size, the basis of every prediction.

    one-rank measurements of a (stage, database, window, …) ─► seconds of each part by tokens of a micro-batch
    copies side by side                                     ─► slowdown of computing next to other ranks
    seconds of single steps                                 ─► jitter

Times between measured batch sizes are interpolated. Below the smallest batch they are extrapolated along the line
through the two smallest. If only one batch was measured, times are taken as proportional, which is a lower bound
because small batches are less efficient. `Range` has both bounds.

Machines may be shared, so only the typical steps of a measurement count (the middle half), and its parts are scaled
to them. A measurement at unusual machine speed counts only if the cell has no other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heartlm.extensions.scaling.cell import Measurement, StudyCell
from heartlm.extensions.scaling.hardware import bucket_bytes
from heartlm.extensions.scaling.probe import probes_of
from heartlm.extensions.scaling.simulate import RankWork, typical_s
from heartlm.system.progress import plural

MOST_JITTER = 64

UNUSUAL = 0.15
"""If a probe differs by more than this fraction from the median of all probes, the machine had an unusual speed."""

NORMAL = 1.4826
"""Standard deviation of a normal distribution divided by the median of its absolute deviations."""


def kind_of(cell: StudyCell) -> str:
    """Return the fields of a cell that two measurements must share to be comparable, for display."""
    cpus = plural(cell.cpus_per_task, "core")
    return f"{cell.stage} {cell.database} {cell.window}, {cpus} a rank, {cell.precision}"


@dataclass(frozen=True)
class Range:
    """A number with its lower and upper bound."""

    value: float
    low: float
    high: float


class OneRank:
    """Measurements of one kind with one rank, without failed ones."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self.alone = [each for each in measurements if each.cell.copies == 1]
        self.beside = [each for each in measurements if each.cell.copies > 1]
        assert self.alone, "a kind without one-rank measurements"
        self.on_gpu = any(each.peak_device_memory_bytes is not None for each in self.alone)
        self.gradient_bytes = statistics.median(each.num_parameters * 4 for each in self.alone)

    def largest(self, bucket_cap_mb: float) -> StudyCell:
        """Return the one-rank cell with the largest batch, with the given bucket size."""
        cells = [each.cell for each in self.alone]
        return replace(max(cells, key=lambda cell: cell.global_batch), bucket_cap_mb=bucket_cap_mb)

    def work(self, cell: StudyCell, pick: Callable[[Range], float]) -> RankWork:
        """Return the work of a rank of `cell` in a step; `pick` chooses a value from the range of each part."""
        micro_batches = cell.accumulation
        tokens = tokens_of(cell)
        compute_s = pick(self._seconds(tokens, lambda each: _scaled(each, "compute") / each.cell.accumulation))
        # By operation count: each matrix product has two in the backward pass, for its input and for its weights.
        backward_s = compute_s * (2 / 3)
        optimizer_s = statistics.median(_scaled(each, "optimizer") for each in self.alone)
        return RankWork(
            forward_s=compute_s - backward_s,
            backward_s=backward_s,
            optimizer_s=optimizer_s,
            data_s=micro_batches
            * pick(self._seconds(tokens, lambda each: _scaled(each, "data") / each.cell.accumulation)),
            other_s=statistics.median(_scaled(each, "other") for each in self.alone),
            micro_batches=micro_batches,
            bucket_bytes=bucket_bytes(self.gradient_bytes, cell.bucket_cap_mb),
        )

    def jitter(self) -> list[float]:
        """Return relative times of single steps with typical value 1, of ranks next to others if those were measured.

        More steps than `MOST_JITTER` are reduced to that number of quantiles.
        """
        counting = self.beside or self.alone
        values = np.array([step_s / typical_s(each.step_s) for each in counting for step_s in each.step_s])
        if len(values) > MOST_JITTER:
            values = np.quantile(values, (np.arange(MOST_JITTER) + 0.5) / MOST_JITTER)
        return [float(each) for each in values / typical_s(values)]

    def slowdown(self, ranks_on_node: int, tokens: float) -> Range | None:
        """Return the slowdown of computing on `tokens` next to `ranks_on_node` - 1 other ranks, or None if unknown.

        A value from another batch size may be too large; the lower bound is then 1.
        """
        if ranks_on_node == 1:
            return Range(1.0, 1.0, 1.0)
        beside = [each for each in self.beside if each.cell.copies <= ranks_on_node]
        same_size = [each for each in beside if tokens_of(each.cell) == tokens]
        ratios = list[float]()
        for each in same_size or beside:  # relative to computing alone, in the same repeat if measured
            lone = [one for one in self.alone if tokens_of(one.cell) == tokens_of(each.cell)]
            lone = [one for one in lone if one.repeat == each.repeat] or lone
            if lone:
                alone_s = statistics.median(_scaled(one, "compute") for one in lone)
                ratios.append(_scaled(each, "compute") / alone_s)
        if not ratios:
            return None
        value = max(1.0, statistics.median(ratios))
        return Range(value, value if same_size else 1.0, value)

    def _seconds(self, tokens: float, seconds_of: Callable[[Measurement], float]) -> Range:
        points: dict[float, list[float]] = {}
        for each in self.alone:
            points.setdefault(tokens_of(each.cell), []).append(seconds_of(each))
        sizes = sorted(points)
        return at(tokens, [(size, statistics.median(points[size])) for size in sizes])


def by_kind(measurements: Iterable[Measurement]) -> dict[str, OneRank]:
    """Group measurements by kind; keep kinds with at least one measurement of a single rank alone."""
    kinds: dict[str, list[Measurement]] = {}
    for each in measurements:
        kinds.setdefault(kind_of(each.cell), []).append(each)
    return {
        kind: OneRank(each)
        for kind, each in kinds.items()
        if any(one.cell.ranks == 1 and one.cell.copies == 1 for one in each)
    }


def at(tokens: float, points: Sequence[tuple[float, float]]) -> Range:
    """Return the seconds at `tokens`, from measured `(tokens, seconds)` in ascending order of tokens."""
    sizes, seconds = zip(*points, strict=True)
    if sizes[0] <= tokens <= sizes[-1]:
        value = float(np.interp(tokens, sizes, seconds))
        return Range(value, value, value)
    near = 0 if tokens < sizes[0] else -1
    proportional = seconds[near] * tokens / sizes[near]
    bounds = sorted((proportional, seconds[near]))
    if len(points) == 1:
        return Range(proportional, *bounds)
    (first, first_s), (second, second_s) = points[:2] if near == 0 else points[-2:]
    line = first_s + (second_s - first_s) / (second - first) * (tokens - first)
    value = float(np.clip(line, *bounds))
    return Range(value, *sorted((proportional, value)))


def steady(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return good measurements at usual machine speed, the median of all probes.

    If a cell has none, its measurement closest to the usual speed is used.
    """
    good = [each for each in measurements if each.failed is None]
    probes = [probe for each in good for probe in probes_of(each)]
    usual = statistics.median(probes) if probes else 1.0

    def unusual(measurement: Measurement) -> float:
        return max((abs(probe / usual - 1) for probe in probes_of(measurement)), default=0.0)

    cells: dict[StudyCell, list[Measurement]] = {}
    for each in good:
        cells.setdefault(each.cell, []).append(each)
    kept = list[Measurement]()
    for repeats in cells.values():
        kept += [one for one in repeats if unusual(one) <= UNUSUAL] or [min(repeats, key=unusual)]
    return kept


def repeat_noise(measurements: Iterable[Measurement]) -> tuple[float, int]:
    """Return the relative standard deviation of a typical step between repeats, and its degrees of freedom.

    It is pooled over all repeated cells by the median of their deviations; without any, there are 0 degrees of freedom.
    """
    cells: dict[StudyCell, list[float]] = {}
    for each in measurements:
        cells.setdefault(each.cell, []).append(typical_s(each.step_s))
    deviations, freedom = list[float](), 0
    for times in cells.values():
        if len(times) > 1:
            # The mean is of the same repeats, which makes deviations too small by the square root of (n - 1) / n.
            relative = np.abs(np.asarray(times) / np.mean(times) - 1) * (len(times) / (len(times) - 1)) ** 0.5
            deviations += relative.tolist()
            freedom += len(times) - 1
    return (NORMAL * statistics.median(deviations) if deviations else 0.0), freedom


def _scaled(measurement: Measurement, part: str) -> float:
    """Scale the mean seconds of a part to a typical step."""
    return measurement.part_s[part] * typical_s(measurement.step_s) / measurement.mean_step_s


def tokens_of(cell: StudyCell) -> float:
    """Return the number of tokens in a micro-batch of one rank."""
    return cell.tokens_per_step / cell.ranks / cell.accumulation
