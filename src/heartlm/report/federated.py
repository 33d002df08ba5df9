"""The report of a sweep over federated studies: one page, and its figures as PNG, next to the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heartlm.files import atomic_file, read_json
from heartlm.report.federated_charts import (
    Group,
    charts_of,
    exposed_ms,
    groups_of,
    local_ms,
    read_table,
    share,
    throughput,
)
from heartlm.report.figures import save_charts
from heartlm.report.numbers import percent, significant
from heartlm.report.page import render
from heartlm.report.scaling_charts import curves_chart
from heartlm.scaling.equations import Interval


def write_sweep_report(folder: Path) -> list[Path]:
    """Write the page and the figures of the sweep in `folder` next to its table; return the files.

    Raises:
        HeartlmError: there is no table, an optional package is missing, or the folder cannot be written.
    """
    groups = groups_of(read_table(folder / "table.csv"))
    charts = charts_of(groups)
    page = folder / "report.html"
    text = render("federated.html", _shown(folder, groups, [curves_chart(chart) for chart in charts.values()]))
    with atomic_file(page) as stream:
        stream.write(text)
    return [page, *save_charts({name: [(chart.title, chart)] for name, chart in charts.items()}, folder)]


def _shown(folder: Path, groups: list[Group], drawings: list[Any]) -> dict[str, Any]:
    skipped = folder / "skipped.json"
    most = max(ranks for group in groups for ranks in group.of)
    return {
        "name": folder.resolve().name,
        "path": str(folder),
        "title": f"Federated rounds on 1 to {most} ranks" if most > 1 else "Federated rounds on one rank",
        "num_studies": sum(len(repeats) for group in groups for repeats in group.of.values()),
        "drawings": drawings,
        "rows": [row for group in groups for row in _rows(group)],
        "skipped": read_json(skipped, list[tuple[str, str]]) if skipped.exists() else [],
    }


def _rows(group: Group) -> list[list[str]]:
    columns = [group.over(value) for value in (throughput, local_ms, exposed_ms, share)]
    return [
        [group.name, str(ranks), str(len(group.of[ranks])), *(_written(column[ranks]) for column in columns)]
        for ranks in group.of
    ] + ([] if len(group.of) < 2 else [_gain(group, columns[0])])


def _written(value: Interval) -> str:
    text = significant(value.value)
    return text if value.low is None else f"{text} [{significant(value.low)}, {significant(value.high)}]"


def _gain(group: Group, rates: dict[int, Interval]) -> list[str]:
    """How much of the ranks the throughput of the most of them is worth."""
    first, last = min(rates), max(rates)
    gain = rates[last].value / rates[first].value
    efficiency = gain * first / last
    words = f"{first} → {last}", "", f"× {gain:.2f}, efficiency {percent(efficiency)}"
    return [group.name, *words, "", "", ""]
