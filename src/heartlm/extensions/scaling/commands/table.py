"""Predictions, comparisons and machines as text tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heartlm.cli.score_table import aligned
from heartlm.system.progress import plural

if TYPE_CHECKING:
    from heartlm.extensions.scaling.predict import Prediction, Validation


def prediction_table(predictions: Sequence[Prediction], tokens: float | None = None) -> list[str]:
    """Return a heading and one line per prediction, for predictions of one kind of training."""
    cell = predictions[0].cell
    rows = [["ranks", "nodes", "ms a step", "95 %", "tokens/s", "speedup", "efficiency", "bottleneck"]]
    rows[0] += ["hours", "node-hours"] if tokens else []
    for each in predictions:
        interval = f"{1e3 * each.low_s:.1f}–{1e3 * each.high_s:.1f}"
        sizes = [str(each.cell.ranks), str(each.cell.nodes), f"{1e3 * each.step_s:.1f}", interval]
        rates = [f"{each.tokens_per_s:,.0f}", f"{each.speedup:.2f}x", f"{each.efficiency:.2f}", each.bottleneck]
        hours = tokens / each.tokens_per_s / 3600 if tokens else 0.0
        rows.append([*sizes, *rates, *([f"{hours:.2f}", f"{hours * each.cell.nodes:.2f}"] if tokens else [])])
    share = "shared by the ranks" if cell.scaling == "strong" else "on each rank"
    windows = cell.global_batch if cell.scaling == "strong" else cell.global_batch // cell.ranks
    cores = plural(cell.cpus_per_task, "core")
    what = f"{cell.stage} {cell.database}, width {cell.window}, {cell.precision}, {cores} a rank"
    return [f"{what}: {windows} windows a step {share}", *aligned(rows)]


def validation_table(validation: Validation) -> list[str]:
    """Compare predicted and measured values: one line per cell, then a summary."""
    rows = [["cell", "predicted ms", "95 %", "measured ms", "error", "outside", "bottleneck"]]
    for each in validation.cells:
        predicted = each.predicted
        interval = f"{1e3 * predicted.low_s:.1f}–{1e3 * predicted.high_s:.1f}"
        outside = f"{100 * each.outside:.1f} %" if each.outside else ""
        times = [f"{1e3 * predicted.step_s:.1f}", interval, f"{1e3 * each.step_s:.1f}"]
        rows.append([predicted.cell.name, *times, f"{100 * each.error:+.1f} %", outside, predicted.bottleneck])
    lines = aligned(rows)
    lines.append(f"median error {100 * validation.median_error:.1f} % over {plural(len(validation.cells), 'cell')}")
    worst = max((each.outside for each in validation.cells), default=0.0)
    beyond = f", by at most {100 * worst:.1f} % of the measured time" if worst else ""
    lines.append(f"measured outside their interval: {validation.num_outside}{beyond}")
    lines += [f"not checked, one rank was not measured: {name}" for name in validation.not_checked]
    warnings = dict.fromkeys(text for each in validation.cells for text in each.predicted.warnings)
    return lines + [f"warning: {text}" for text in warnings]
