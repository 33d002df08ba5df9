"""The table of a study: one row per cell, computed from all its repeats.

    measurements ─► those that passed ─► by cell ─► compared with the base, repeat by repeat ─► rows
                                                 └► compared with the copies (the machine's own ceiling)

T is the training time: the seconds of the counted steps.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from heartlm.extensions.scaling.cell import PARTS, Measurement, StudyCell
from heartlm.extensions.scaling.equations import geometric_interval, ideal_s, karp_flatt, overhead_interval
from heartlm.extensions.scaling.probe import moved, probes_of
from heartlm.report.numbers import Interval


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """Summary of the repeats of a cell; the table has its columns in this order.

    Attributes:
        cell: cell that was trained.
        repeats: number of counted measurements.
        num_moved: number of them during which the machine's speed changed.
        time_s: training time T, the geometric mean of the repeats.
        speedup: speedup over the base; None if the base was not measured.
        efficiency: efficiency of the ranks.
        overhead_s: time beyond the ideal time.
        ceiling: total speedup of independent trainings of the base that run concurrently on as many cores.
        efficiency_of_ceiling: speedup divided by the ceiling.
        karp_flatt: serial fraction.
        step_median_s: median time of all steps.
        step_p95_s: 95th percentile of the time of all steps.
        tokens_per_s: tokens per second, mean over repeats.
        part_s: mean seconds per step of every part; they add up to the mean step.
        peak_memory_bytes: maximum memory of a rank.
        energy_j_per_mtoken: joules per million tokens; None without a counter.
    """

    cell: StudyCell
    repeats: int
    num_moved: int
    time_s: Interval
    speedup: Interval | None = None
    efficiency: Interval | None = None
    overhead_s: Interval | None = None
    ceiling: Interval | None = None
    efficiency_of_ceiling: Interval | None = None
    karp_flatt: float | None = None
    step_median_s: float
    step_p95_s: float
    tokens_per_s: float
    part_s: dict[str, float]
    peak_memory_bytes: int
    energy_j_per_mtoken: float | None = None


@dataclass
class StudyTable:
    """All rows of a study, and the measurements that are excluded.

    Attributes:
        rows: rows, sorted by stage, database, window, CPUs and ranks.
        failed: measurements that did not pass their check.
        environment: environment of the first measurement.
    """

    rows: list[CellRow]
    failed: list[Measurement] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)


Repeats = dict[int, Measurement]


def table_of(measurements: Iterable[Measurement]) -> StudyTable:
    """Return the table of a study's measurements."""
    passed: dict[StudyCell, Repeats] = defaultdict(dict)
    failed = []
    for each in measurements:
        if each.failed is None:
            passed[each.cell][each.repeat] = each
        else:
            failed.append(each)
    compared = [cell for cell in passed if cell.copies == 1 and not _is_reference(cell, passed)]
    compared.sort(key=lambda cell: (cell.stage != "pretrain", *asdict(cell).values()))
    rows = [_row(cell, passed) for cell in compared]
    environment = next((each.environment for cell in compared for each in passed[cell].values()), {})
    return StudyTable(rows, failed, environment)


def _is_reference(cell: StudyCell, passed: dict[StudyCell, Repeats]) -> bool:
    """Return whether a one-rank cell serves a check or a prediction instead of being a base of comparison."""
    if cell.ranks > 1 or any(other.base == cell for other in passed if other.ranks > 1):
        return False

    def layout(each: StudyCell) -> StudyCell:
        return replace(each.base, global_batch=0, accumulation=1)

    return any(layout(other) == layout(cell) for other in passed if other.ranks > 1)


def _row(cell: StudyCell, passed: dict[StudyCell, Repeats]) -> CellRow:
    repeats = passed[cell]
    every = list(repeats.values())
    steps_s = [step for each in every for step in each.step_s]
    energies = [
        1e6 * each.energy_j / each.tokens_per_s / each.training_s for each in every if each.energy_j is not None
    ]
    return CellRow(
        cell=cell,
        repeats=len(every),
        num_moved=sum(len(probes) == 2 and moved(*probes) for probes in map(probes_of, every)),
        time_s=geometric_interval([each.training_s for each in every]),
        step_median_s=statistics.median(steps_s),
        step_p95_s=float(np.quantile(steps_s, 0.95)),
        tokens_per_s=statistics.fmean(each.tokens_per_s for each in every),
        part_s={name: statistics.fmean(each.part_s[name] for each in every) for name in PARTS},
        peak_memory_bytes=max(each.peak_memory_bytes for each in every),
        energy_j_per_mtoken=statistics.fmean(energies) if len(energies) == len(every) else None,
        **_against(cell, repeats, passed),
    )


def _against(cell: StudyCell, repeats: Repeats, passed: dict[StudyCell, Repeats]) -> dict[str, Any]:
    """Return the values of a cell relative to its base, repeat by repeat."""
    if cell == cell.base:
        return {"speedup": Interval(1.0), "efficiency": Interval(1.0), "overhead_s": Interval(0.0)}
    bases, copies = passed.get(cell.base, {}), passed.get(cell.ceiling, {})
    pairs = [(bases[repeat].training_s, repeats[repeat].training_s) for repeat in sorted(bases.keys() & repeats.keys())]
    if not pairs:
        return {}
    whole = 1 if cell.scaling == "strong" else cell.ranks  # multiple of the base's work
    best_s = statistics.geometric_mean([ideal_s(base, cell.ranks, cell.scaling) for base, _ in pairs])
    gained = geometric_interval([whole * base / test for base, test in pairs])
    efficiency = gained.scaled(1 / cell.ranks)
    relative: dict[str, Any] = {
        "speedup": gained,
        "efficiency": efficiency,
        "overhead_s": overhead_interval(best_s, efficiency),
        "karp_flatt": karp_flatt(gained.value, cell.ranks),
    }
    at_once = sorted(bases.keys() & copies.keys())
    if cell.ranks > 1 and at_once:
        # Total throughput of its copies relative to a single one alone.
        together = [cell.ranks * bases[each].training_s / copies[each].training_s for each in at_once]
        relative["ceiling"] = geometric_interval(together)
        ratios = [
            ideal_s(copies[each].training_s, cell.ranks, cell.scaling) / repeats[each].training_s
            for each in sorted(copies.keys() & repeats.keys())
        ]
        if ratios:  # a repeat of either may have failed
            relative["efficiency_of_ceiling"] = geometric_interval(ratios)
    return relative


def groups(rows: Iterable[CellRow], key: Callable[[StudyCell], Any]) -> dict[Any, list[CellRow]]:
    """Group rows by the `key` of their cells, in order."""
    grouped: dict[Any, list[CellRow]] = {}
    for row in rows:
        grouped.setdefault(key(row.cell), []).append(row)
    return grouped


def flat(row: CellRow) -> dict[str, Any]:
    """Return a row as plain columns: three per interval, one per part of a step."""
    columns = asdict(row.cell)
    for name, value in vars(row).items():
        if isinstance(value, Interval) or name in _INTERVALS:
            low, high = (None, None) if value is None else (value.low, value.high)
            columns |= {name: value and value.value, f"{name}_low": low, f"{name}_high": high}
        elif isinstance(value, dict):
            columns |= {f"{part}_s": seconds for part, seconds in value.items()}
        elif name != "cell":
            columns[name] = value
    return columns


# Fields that may be None and always have three columns.
_INTERVALS = ("speedup", "efficiency", "overhead_s", "ceiling", "efficiency_of_ceiling")
