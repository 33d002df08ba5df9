"""What one rank was measured to do, at any batch: the starting point of every prediction.

    one-rank measurements of a (stage, database, window, …) ─► seconds of each part by tokens of a micro-batch
    copies side by side                                     ─► how much computing slows down next to others
    seconds of single steps                                 ─► jitter

Between measured batches seconds are interpolated. Below the smallest they follow the line through the two smallest,
and where only one was measured they are taken as proportional, which is a lower bound: small batches are less
efficient. `Range` carries both bounds.

Machines are shared, so the typical steps of a measurement count (the middle half), and its parts scaled to them.
Measurements during which the machine did not have its usual speed count only where there is no other of the cell.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from heartlm.cluster.topology import counted
from heartlm.scaling.cell import Measurement, StudyCell
from heartlm.scaling.hardware import bucket_bytes
from heartlm.scaling.probe import UNUSUAL, probes_of, unusual
from heartlm.scaling.simulate import RankWork, typical_s

MOST_JITTER = 64

NORMAL = 1.4826
"""The standard deviation of a normal distribution over the median of its absolute deviations."""


@dataclass(frozen=True)
class Kind:
    """What two measurements must have in common to be compared."""

    stage: str
    database: str
    window: int
    cpus_per_task: int
    precision: str

    @classmethod
    def of(cls, cell: StudyCell) -> Kind:
        """The kind of a cell."""
        return cls(cell.stage, cell.database, cell.window, cell.cpus_per_task, cell.precision)

    @property
    def name(self) -> str:
        """For people."""
        cpus = counted(self.cpus_per_task, "core")
        return f"{self.stage} {self.database} {self.window}, {cpus} a rank, {self.precision}"


@dataclass(frozen=True)
class Range:
    """A number, and between what it may lie."""

    value: float
    low: float
    high: float


class OneRank:
    """The measurements of one kind made with one rank, none of them failed."""

    def __init__(self, kind: Kind, measurements: Sequence[Measurement]) -> None:
        self.kind = kind
        self.alone = [each for each in measurements if each.cell.copies == 1]
        self.beside = [each for each in measurements if each.cell.copies > 1]
        assert self.alone, "a kind without one-rank measurements"
        self.on_gpu = any(each.peak_device_memory_bytes is not None for each in self.alone)
        self.num_blocks = max(each.num_blocks for each in self.alone)
        self.gradient_bytes = statistics.median(each.num_parameters * 4 for each in self.alone)

    def largest(self, bucket_cap_mb: float, parallel: Literal["ddp", "fsdp"] = "ddp") -> StudyCell:
        """The measured one-rank cell with the largest batch, for gradients shared that way, in buckets of that size."""
        cells = [each.cell for each in self.alone]
        return replace(max(cells, key=lambda cell: cell.global_batch), bucket_cap_mb=bucket_cap_mb, parallel=parallel)

    def work(self, cell: StudyCell, pick: Callable[[Range], float]) -> RankWork:
        """What a rank of `cell` does in a step; `pick` chooses within the range of each part."""
        micro_batches = cell.accumulation
        tokens = tokens_of(cell)
        compute_s = pick(self._seconds(tokens, lambda each: _scaled(each, each.compute_s) / each.cell.accumulation))
        # Two thirds, from counting operations, where the backward pass was not timed.
        fractions = [each.backward_s / each.compute_s for each in self.alone if each.backward_s and each.compute_s]
        backward_s = compute_s * (statistics.median(fractions) if fractions else 2 / 3)
        optimizer_s = statistics.median(_scaled(each, each.optimizer_s) for each in self.alone)
        blocks = self.num_blocks if cell.parallel == "fsdp" else 0
        return RankWork(
            forward_s=compute_s - backward_s,
            backward_s=backward_s,
            optimizer_s=optimizer_s / cell.ranks if cell.parallel == "fsdp" else optimizer_s,  # of its shard
            data_s=micro_batches
            * pick(self._seconds(tokens, lambda each: _scaled(each, each.data_s) / each.cell.accumulation)),
            other_s=statistics.median(_scaled(each, each.other_s) for each in self.alone),
            micro_batches=micro_batches,
            bucket_bytes=bucket_bytes(self.gradient_bytes, cell.bucket_cap_mb),
            block_bytes=[self.gradient_bytes / max(1, blocks)] * blocks,
        )

    def jitter(self) -> list[float]:
        """Relative seconds of single steps, their typical one 1; of ranks next to others, where those were measured.

        More steps than `MOST_JITTER` are represented by as many quantiles.
        """
        counting = self.beside or self.alone
        values = np.array([step_s / typical_s(each.step_s) for each in counting for step_s in each.step_s])
        if len(values) > MOST_JITTER:
            values = np.quantile(values, (np.arange(MOST_JITTER) + 0.5) / MOST_JITTER)
        return [float(each) for each in values / typical_s(values)]

    def slowdown(self, ranks_on_node: int, tokens: float) -> Range | None:
        """How many times as long computing on `tokens` takes next to `ranks_on_node` - 1 others; None if nothing tells.

        Measured at another batch it may be too much, so not at all is the lower bound then.
        """
        if ranks_on_node == 1:
            return Range(1.0, 1.0, 1.0)
        beside = [each for each in self.beside if each.cell.copies <= ranks_on_node]
        alike = [each for each in beside if tokens_of(each.cell) == tokens]
        ratios = list[float]()
        for each in alike or beside:  # next to computing alone, in the same repeat where that was measured
            lone = [one for one in self.alone if tokens_of(one.cell) == tokens_of(each.cell)]
            lone = [one for one in lone if one.repeat == each.repeat] or lone
            if lone:
                alone_s = statistics.median(_scaled(one, one.compute_s) for one in lone)
                ratios.append(_scaled(each, each.compute_s) / alone_s)
        if not ratios:
            return None
        value = max(1.0, statistics.median(ratios))
        return Range(value, value if alike else 1.0, value)

    def _seconds(self, tokens: float, of: Callable[[Measurement], float]) -> Range:
        points: dict[float, list[float]] = {}
        for each in self.alone:
            points.setdefault(tokens_of(each.cell), []).append(of(each))
        sizes = sorted(points)
        return at(tokens, [(size, statistics.median(points[size])) for size in sizes])


def by_kind(measurements: Iterable[Measurement]) -> dict[Kind, OneRank]:
    """The kinds with at least one measurement of one rank alone."""
    kinds: dict[Kind, list[Measurement]] = {}
    for each in measurements:
        kinds.setdefault(Kind.of(each.cell), []).append(each)
    return {
        kind: OneRank(kind, each)
        for kind, each in kinds.items()
        if any(one.cell.ranks == 1 and one.cell.copies == 1 for one in each)
    }


def at(tokens: float, points: Sequence[tuple[float, float]]) -> Range:
    """Seconds at `tokens`, from measured `(tokens, seconds)` with rising tokens."""
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
    """Good measurements before and after which the machine had its usual speed, the median of all probes.

    Of a cell that has none such, the one that was nearest to it.
    """
    good = [each for each in measurements if each.failed is None]
    probes = [probe for each in good for probe in probes_of(each)]
    usual = statistics.median(probes) if probes else None

    cells: dict[StudyCell, list[Measurement]] = {}
    for each in good:
        cells.setdefault(each.cell, []).append(each)
    kept = list[Measurement]()
    for found in cells.values():
        nearest = min(found, key=lambda one: unusual(one, usual))
        kept += [one for one in found if unusual(one, usual) <= UNUSUAL] or [nearest]
    return kept


def repeat_noise(measurements: Iterable[Measurement]) -> tuple[float, int]:
    """Relative standard deviation of a typical step between repeats of a cell, and its degrees of freedom.

    All cells that were measured more than once are pooled, by the median of their deviations; 0 degrees where none was.
    """
    cells: dict[StudyCell, list[float]] = {}
    for each in measurements:
        cells.setdefault(each.cell, []).append(typical_s(each.step_s))
    deviations, freedom = list[float](), 0
    for times in cells.values():
        if len(times) > 1:
            relative = np.abs(np.asarray(times) / np.mean(times) - 1) * (len(times) / (len(times) - 1)) ** 0.5
            deviations += relative.tolist()
            freedom += len(times) - 1
    return (NORMAL * statistics.median(deviations) if deviations else 0.0), freedom


def _scaled(measurement: Measurement, seconds: float) -> float:
    """Mean seconds of a part, as they are in a typical step."""
    return seconds * typical_s(measurement.step_s) / measurement.mean_step_s


def tokens_of(cell: StudyCell) -> float:
    """Of a micro-batch of one rank."""
    return cell.tokens_per_step / cell.ranks / cell.accumulation
