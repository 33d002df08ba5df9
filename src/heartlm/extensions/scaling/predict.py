"""Predict the step time of DDP on any number of ranks and nodes from one-rank measurements.

    one-rank measurements ─► work of a rank at its batch ┐
    all-reduce fit or vendor rates ─► network            ┼─► simulated steps ─► seconds, interval, bottleneck
    copies side by side ─► slowdown; steps ─► jitter     ┘

The interval covers 95 %. It includes the variation between repeats (a Student interval for one further run, pooled
over all cells) and the error of the all-reduce fit. Unknown quantities, such as the share of a core that communication
uses or the cost of an unmeasured batch size, are simulated at both bounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from heartlm.errors import HeartlmError
from heartlm.extensions.scaling.cell import PARTS, Measurement, StudyCell
from heartlm.extensions.scaling.hardware import Interconnect
from heartlm.extensions.scaling.one_rank import OneRank, Range, by_kind, kind_of, repeat_noise, steady, tokens_of
from heartlm.extensions.scaling.simulate import Simulated, Surroundings, simulate, typical_s

TOO_FAR = 8
"""Predictions for more than this many times the largest measured number of ranks carry a warning."""

COVERAGE = 0.95
NOTHING_LOST = 0.05
"""If no other cost exceeds this fraction of a step, computing is the bottleneck."""


@dataclass(frozen=True)
class Prediction:
    """Predicted values of a cell.

    Attributes:
        cell: predicted cell.
        step_s: time of a typical step in seconds.
        low_s: lower end of the interval.
        high_s: upper end of the interval.
        tokens_per_s: token positions per second of all ranks, at `step_s`.
        speedup: tokens per second relative to one rank with all the work (strong) or with one rank's work (weak).
        part_s: seconds of a typical step by part, see `cell.PARTS`.
        efficiency: speedup divided by the number of ranks.
        bottleneck: part with the largest cost.
        warnings: reasons to doubt the prediction.
    """

    cell: StudyCell
    step_s: float
    low_s: float
    high_s: float
    tokens_per_s: float
    speedup: float
    efficiency: float
    part_s: dict[str, float]
    bottleneck: str
    warnings: list[str] = field(default_factory=list)


class Predictor:
    """Predictor of cells from one-rank measurements.

    Args:
        measurements: measurements of a study; only those of one rank are used.
        network: network between ranks.
        fit_error: relative error of the all-reduce times.
        most_measured: largest number of ranks measured together, in an all-reduce or a training.
        most_per_node: maximum number of ranks per node; None for no limit.
        notes: notes that apply to all predictions.
    """

    def __init__(
        self,
        measurements: Iterable[Measurement],
        network: Interconnect,
        *,
        fit_error: float = 0.0,
        most_measured: int = 1,
        most_per_node: int | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        known = steady(each for each in measurements if each.cell.ranks == 1)
        self.kinds = by_kind(known)
        if not self.kinds:
            raise HeartlmError("no good measurement of one rank found: predictions start from those")
        self.noise, self.freedom = repeat_noise(known)
        self.network, self.fit_error, self.most_measured = network, fit_error, most_measured
        self.most_per_node, self.notes = most_per_node, list(notes)

    def predict(self, cell: StudyCell) -> Prediction:
        """Predict a cell.

        Raises:
            HeartlmError: its kind was not measured, ranks do not fill the nodes or divide the batch evenly, or the
                network is unknown.
        """
        if (kind := kind_of(cell)) not in self.kinds:
            raise HeartlmError(f"{kind}: one rank was not measured; measured are {'; '.join(self.kinds)}")
        if reason := self.unfit(cell):
            raise HeartlmError(reason)
        one = self.kinds[kind]
        # Fraction of a rank's computing that communication uses: none on a GPU; all if CPU ranks add up through shared
        # memory and then continue computing; one core if a rank sends to other nodes.
        core_share = 0.0 if one.on_gpu else 1.0 if cell.nodes == 1 else 1 / cell.cpus_per_task
        middle = self._simulated(one, cell, lambda each: each.value, 1.0, core_share)
        part_s = middle.typical_part_s()
        step_s = sum(part_s.values())
        low_s, high_s = self._bounds(one, cell, step_s)
        alone_s = one.work(cell.base, lambda each: each.value).alone_s
        base_rate, rate = cell.base.tokens_per_step / alone_s, cell.tokens_per_step / step_s
        return Prediction(
            cell=cell,
            step_s=step_s,
            low_s=low_s,
            high_s=high_s,
            tokens_per_s=rate,
            speedup=rate / base_rate,
            efficiency=rate / base_rate / cell.ranks,
            part_s=part_s,
            bottleneck=_bottleneck(one, cell, part_s),
            warnings=self._warnings(one, cell),
        )

    def unfit(self, cell: StudyCell) -> str | None:
        """Return the reason why the cell is impossible, or None."""
        per_node = -(-cell.ranks // cell.nodes)
        if cell.ranks % cell.nodes:
            return f"{cell.ranks} ranks on {cell.nodes} nodes: expected as many ranks on each node"
        if self.most_per_node is not None and per_node > self.most_per_node:
            return f"{per_node} ranks on a node that has devices for {self.most_per_node}"
        if cell.global_batch % (cell.ranks * cell.accumulation):
            return (
                f"a global batch of {cell.global_batch} windows of {cell.window} cannot be shared by {cell.ranks} "
                f"ranks in {cell.accumulation} micro-batches: choose ranks that divide it, or --scaling weak"
            )
        return None

    def _simulated(
        self, one: OneRank, cell: StudyCell, pick: Callable[[Range], float], longer: float, core_share: float
    ) -> Simulated:
        slowdown = one.slowdown(cell.ranks // cell.nodes, tokens_of(cell))
        factor = pick(slowdown) if slowdown else 1.0
        by_node = not one.on_gpu  # NCCL chooses its own algorithm
        network = self.network.slowed(longer)
        around = Surroundings(cell.ranks, cell.nodes, network, factor, core_share, one.jitter(), by_node)
        return simulate(one.work(cell, pick), around)

    def _bounds(self, one: OneRank, cell: StudyCell, step_s: float) -> tuple[float, float]:
        """Return the shortest and longest step: unknown quantities at both bounds, and variation of repeats."""
        from scipy.stats import t

        longer = 1 + self.fit_error
        low = self._simulated(one, cell, lambda each: each.low, 1 / longer, 0.0)
        high = self._simulated(one, cell, lambda each: each.high, longer, 0.0 if one.on_gpu else 1.0)
        if self.freedom:
            # Half-width of a Student interval of one further run, given the means of one-rank runs and of the slowdown:
            # variances of 1 for the run, 1 / repeats for a mean, two of these for the slowdown, a ratio of two means.
            repeats = 1 + max(each.repeat for each in one.alone)
            terms = 1 + 1 / repeats + (2 / repeats if one.beside else 0)
            spread = float(t.ppf((1 + COVERAGE) / 2, self.freedom) * self.noise * terms**0.5)
        else:
            spreads = [statistics.stdev(each.step_s) / each.mean_step_s for each in one.alone if len(each.step_s) > 1]
            spread = 2 * max(spreads, default=0.0)
        low_s, high_s = min(typical_s(low.step_s), step_s), max(typical_s(high.step_s), step_s)
        return low_s * max(0.0, 1 - spread), high_s * (1 + spread)

    def _warnings(self, one: OneRank, cell: StudyCell) -> list[str]:
        warnings = list(self.notes)
        if cell.ranks > TOO_FAR * self.most_measured:
            warnings.append(
                f"{cell.ranks} ranks are more than {TOO_FAR} times the {self.most_measured} that were measured together"
            )
        if not any(tokens_of(each.cell) == tokens_of(cell) for each in one.alone):
            num_batches = len({tokens_of(each.cell) for each in one.alone})
            known = "interpolated" if num_batches > 1 else "taken as proportional"
            warnings.append(
                f"one rank was not measured at {tokens_of(cell):.0f} tokens a micro-batch: {known}; a study with "
                "prediction: true does"
            )
        if not one.on_gpu and one.slowdown(cell.ranks // cell.nodes, tokens_of(cell)) is None:
            beside = cell.ranks // cell.nodes
            warnings.append(f"{beside} ranks side by side were not measured: they are taken not to slow each other")
        return warnings


def _bottleneck(one: OneRank, cell: StudyCell, part_s: Mapping[str, float]) -> str:
    """Return the largest loss of `cell` compared with ideal scaling of one rank."""
    alone, scaled = one.work(cell.base, lambda each: each.value), one.work(cell, lambda each: each.value)
    fraction = cell.tokens_per_step / cell.ranks / cell.base.tokens_per_step
    compute_s = scaled.micro_batches * (scaled.forward_s + scaled.backward_s)
    even_s = fraction * alone.micro_batches * (alone.forward_s + alone.backward_s)
    costs = {  # seconds of a step lost to each cause
        "data supply": part_s["data"],
        "communication": part_s["exposed_communication"],
        "stragglers": part_s["straggler"],
        "shared memory": max(0.0, part_s["compute"] - compute_s),
        "small batches": max(0.0, compute_s - even_s),
        "optimizer": (scaled.optimizer_s + scaled.other_s) * (1 - fraction),
    }
    worst = max(costs, key=lambda name: costs[name])
    return worst if costs[worst] > NOTHING_LOST * sum(part_s.values()) else "compute"


def scaled(base: StudyCell, ranks: int, nodes: int, scaling: Literal["strong", "weak"]) -> StudyCell:
    """Scale a one-rank cell to `ranks` on `nodes`: the same work (strong), or the same work per rank (weak)."""
    batch = base.global_batch * (ranks if scaling == "weak" else 1)
    return replace(base, ranks=ranks, nodes=nodes, scaling=scaling, global_batch=batch)


# --- validation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedCell:
    """A cell that was predicted and measured.

    Attributes:
        predicted: prediction from one-rank measurements.
        repeats_s: measured time of a typical step in each repeat.
        part_s: measured parts: medians of the means over all steps.
        step_s: median of the repeats.
        error: relative error of the prediction; negative if the prediction is too short.
        outside: relative distance of the measured time from the interval; 0 inside.
    """

    predicted: Prediction
    repeats_s: list[float]
    part_s: dict[str, float]
    step_s: float
    error: float
    outside: float


@dataclass(frozen=True)
class Validation:
    """All cells of a study that could be checked.

    Attributes:
        cells: cells with more than one rank.
        not_checked: names of cells without a good one-rank measurement of their kind, and cells of FSDP2.
        median_error: median of the absolute errors.
        num_outside: number of cells measured outside their interval.
    """

    cells: list[CheckedCell]
    not_checked: list[str]
    median_error: float
    num_outside: int


def validate(measurements: Iterable[Measurement], predictor: Predictor) -> Validation:
    """Predict every cell with more than one rank and compare it with its measurement.

    Raises:
        HeartlmError: there is no such cell, or one cannot be predicted.
    """
    cells: dict[StudyCell, list[Measurement]] = {}
    for each in steady(measurements):
        if each.cell.ranks > 1:
            cells.setdefault(each.cell, []).append(each)
    if not cells:
        raise HeartlmError("no good measurement of more than one rank found: there is nothing to compare with")
    predictable = {cell: cells[cell] for cell in cells if kind_of(cell) in predictor.kinds and cell.parallel == "ddp"}
    if not predictable:
        raise HeartlmError("no cell with more than one rank has a one-rank cell of its kind: nothing can be predicted")
    checked = list[CheckedCell]()
    for cell, repeats in predictable.items():
        predicted, repeats_s = predictor.predict(cell), [typical_s(each.step_s) for each in repeats]
        part_s = {name: statistics.median(each.part_s[name] for each in repeats) for name in PARTS}
        step_s = statistics.median(repeats_s)
        outside = max(0.0, step_s - predicted.high_s, predicted.low_s - step_s) / step_s
        checked.append(CheckedCell(predicted, repeats_s, part_s, step_s, predicted.step_s / step_s - 1, outside))
    return Validation(
        checked,
        not_checked=[cell.name for cell in cells if cell not in predictable],
        median_error=statistics.median(abs(each.error) for each in checked),
        num_outside=sum(each.outside > 0 for each in checked),
    )
