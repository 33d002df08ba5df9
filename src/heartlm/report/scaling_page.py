"""The report of a study, next to its measurements: a page, figures as PNG, the table as CSV and Parquet."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.files import atomic_file, read_json, write_csv
from heartlm.report.figures import save_charts
from heartlm.report.numbers import MISSING, count, decimal, percent, plural, significant
from heartlm.report.page import plain, render
from heartlm.report.scaling_charts import PART_WORDS, curves_chart, parts_chart
from heartlm.report.scaling_model import CAPTIONS, STAGES, Panel, between, panels_of
from heartlm.scaling.cell import PARTS, load_measurements
from heartlm.scaling.equations import Interval, karp_flatt
from heartlm.scaling.fits import Fit, fit_amdahl, fit_usl
from heartlm.scaling.reference_marks import EFFICIENCY, SOURCE, SPEEDUP
from heartlm.scaling.table import Beside, CellRow, Table, flat, groups, table_of

FIGURE_NAMES = {
    3: "figure-3-time-cpus",
    4: "figure-4-time-speedup",
    5: "figure-5-efficiency",
    6: "figure-6-overhead",
}


def write_scaling_report(study: Path, out: Path | None = None) -> list[Path]:
    """Write the report of the study in `study` into the folder `out`, by default `report` in it; return the files.

    Raises:
        HeartlmError: there are no measurements that count, an optional package is missing, or `out` cannot be written.
    """
    folder = Path(out) if out else Path(study) / "report"
    table = table_of(load_measurements(study))
    if not table.rows:
        raise HeartlmError(
            f"{study}: none of {len(table.failed)} measurements passed its check: {table.failed[0].failed}"
        )
    page = folder / "report.html"
    skipped = Path(study) / "skipped.json"
    text = scaling_page(table, read_json(skipped, list[tuple[str, str]]) if skipped.exists() else [], Path(study))
    with atomic_file(page) as stream:
        stream.write(text)
    lines = [flat(row) for row in table.rows]
    files = [page, write_csv(lines, folder / "table.csv")]
    if table.beside:
        files.append(write_csv([flat(each) for each in table.beside], folder / "side-by-side.csv"))
    panels = panels_of(table)
    figures = {
        name: [(panel.title, chart) for panel in panels for chart in panel.figures.get(number, ())]
        for number, name in FIGURE_NAMES.items()
    }
    return files + save_charts({name: drawn for name, drawn in figures.items() if drawn}, folder)


def scaling_page(table: Table, skipped: Sequence[tuple[str, str]], folder: Path) -> str:
    """The HTML of the page about the study in `folder`.

    Raises:
        HeartlmError: Jinja is not installed.
    """
    panels = panels_of(table)
    revealed = {ranks: found for ranks in EFFICIENCY if (found := karp_flatt(SPEEDUP[ranks], ranks)) is not None}
    published = _law_row("published, A100 (no measurement of this study)", SPEEDUP, revealed)
    return render(
        "scaling.html",
        {
            "name": folder.resolve().name,
            "path": str(folder),
            **_head(table.rows),
            "num_measurements": sum(row.repeats for row in table.rows),
            "num_cells": len(table.rows),
            "repeats": max(row.repeats for row in table.rows),
            "source": SOURCE,
            "windows": sorted({row.cell.window for row in table.rows}),
            "panels": [_panel(panel) for panel in panels],
            "parts": [(name, PART_WORDS[name]) for name in PARTS],
            "laws": [published, *(line for panel in panels for line in _laws(panel))],
            "beside": [_beside_row(each) for each in table.beside],
            "moved": sum(row.num_moved for row in table.rows),
            "failed": [(f"{each.cell.name}, repeat {each.repeat + 1}", each.failed) for each in table.failed],
            "skipped": list(skipped),
            "environment": [(key, plain(value)) for key, value in table.environment.items()],
        },
    )


def _head(rows: Sequence[CellRow]) -> dict[str, Any]:
    """Title, lead and cards of the page: what most ranks reach, and key numbers of each rank count."""
    most = max((row.cell.ranks for row in rows if row.speedup is not None), default=1)
    widest = [row for row in rows if row.cell.ranks == most and row.speedup is not None]
    waiting = statistics.median(row.part_s["data"] / sum(row.part_s.values()) for row in rows)
    last = {"label": "waiting for data", "value": percent(waiting), "note": "of a step, median of all cells"}
    if most == 1:
        why = "There is nothing to compare yet: a study with more than one rank count shows speedups."
        return {"title": "What training takes on one rank", "lead": [why], "cards": [last]}
    values = sorted(row.speedup.value for row in widest if row.speedup is not None)
    lost = {name: statistics.median(row.part_s[name] / sum(row.part_s.values()) for row in widest) for name in PARTS}
    worst = max((name for name in PARTS if name != "compute"), key=lambda name: lost[name])
    lead = [
        f"Over {plural(len(widest), 'cell')} the speedup lies between {values[0]:.2f} and {values[-1]:.2f}.",
        f"Besides computing, most of a step goes to {PART_WORDS[worst]}: {percent(lost[worst])}.",
    ]
    cards = []
    known = [row for row in rows if row.cell.ranks > 1 and row.speedup is not None]
    for ranks, of_ranks in groups(known, lambda cell: cell.ranks).items():
        note = (
            f"median of {plural(len(of_ranks), 'cell')}, efficiency {_middle(row.efficiency for row in of_ranks):.2f}"
        )
        if ranks in SPEEDUP:
            note += f"; published {SPEEDUP[ranks]:g}x on {ranks} GPUs"
        value = f"{_middle(row.speedup for row in of_ranks):.2f}x"
        cards.append({"label": f"speedup of {plural(ranks, 'rank')}", "value": value, "note": note})
        limited = [row for row in of_ranks if row.efficiency_of_ceiling is not None]
        if limited:
            value = percent(_middle(row.efficiency_of_ceiling for row in limited), 0)
            note = f"trainings side by side reach {_middle(row.ceiling for row in limited):.2f}x"
            cards.append({"label": f"of what the machine allows {plural(ranks, 'rank')}", "value": value, "note": note})
    title = f"{plural(most, 'rank')} are {statistics.median(values):.2f} times as fast as one"
    return {"title": title, "lead": lead, "cards": [*cards, last][:5]}


def _middle(intervals: Iterable[Interval | None]) -> float:
    return statistics.median(interval.value for interval in intervals if interval is not None)


HEAD = (
    "window",
    "ranks × CPUs",
    "training, s",
    "step median, ms",
    "step 95 %, ms",
    "tokens/s",
    "speedup",
    "efficiency",
    "machine allows",
    "of that",
    "overhead, s",
    "Karp–Flatt",
    "hidden comm., ms",
    "memory, MB",
    "J per M tokens",
)


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "title": panel.title,
        "anchor": panel.anchor,
        "figures": [
            {"number": number, "caption": CAPTIONS[number], "drawings": [curves_chart(chart) for chart in charts]}
            for number, charts in panel.figures.items()
        ],
        "parts": parts_chart(panel.rows),
        "head": HEAD,
        "table": [_table_row(row) for row in panel.rows],
    }


def _table_row(row: CellRow) -> list[str]:
    cell, hidden_s = row.cell, row.detail_s["hidden_communication"]
    has_other_buckets = cell.ranks > 1 and cell.bucket_cap_mb != type(cell).bucket_cap_mb
    extra = f", {cell.bucket_cap_mb:g} MiB" if has_other_buckets else ""
    extra += f", {cell.nodes} nodes" if cell.nodes > 1 else ""
    return [
        str(cell.window),
        f"{cell.ranks} × {cell.cpus_per_task}{extra}",
        f"{significant(row.time_s.value)}{between(row.time_s)}",
        decimal(1000 * row.step_median_s, 1),
        decimal(1000 * row.step_p95_s, 1),
        count(row.tokens_per_s),
        _written(row.speedup, "x"),
        _written(row.efficiency),
        _written(row.ceiling, "x"),
        _written(row.efficiency_of_ceiling),
        _written(row.overhead_s),
        decimal(row.karp_flatt, 3),
        decimal(None if hidden_s is None else 1000 * hidden_s, 1),
        count(row.peak_memory_bytes / 1e6),
        count(row.energy_j_per_mtoken),
    ]


def _beside_row(beside: Beside) -> list[str]:
    cell, cpus = beside.cell, plural(beside.cell.cpus_per_task, "CPU")
    return [
        f"{STAGES[cell.stage]} on {cell.database}, {cell.window}, {cell.precision}, {cpus}",
        str(cell.copies),
        _written(beside.share),
        _written(beside.together, "x"),
        count(beside.tokens_per_s),
        count(beside.energy_j_per_mtoken),
    ]


def _written(interval: Interval | None, unit: str = "") -> str:
    return MISSING if interval is None else f"{decimal(interval.value, 2)}{unit}{between(interval)}"


def _laws(panel: Panel) -> list[list[str]]:
    lines = []
    for (window, cpus, cap), rows in groups(
        [row for row in panel.rows if row.speedup is not None and row.cell.ranks > 1],
        lambda cell: (cell.window, cell.cpus_per_task, cell.bucket_cap_mb),
    ).items():
        speedups = {row.cell.ranks: row.speedup.value for row in rows if row.speedup is not None}
        revealed = {row.cell.ranks: row.karp_flatt for row in rows if row.karp_flatt is not None}
        sizes = "" if cap == type(rows[0].cell).bucket_cap_mb else f", {cap:g} MiB"
        lines.append(_law_row(f"{panel.title}, {window}, {plural(cpus, 'CPU')}{sizes}", speedups, revealed))
    return lines


def _law_row(name: str, speedups: Mapping[int, float], revealed: Mapping[int, float]) -> list[str]:
    fractions = ", ".join(f"{ranks}: {decimal(fraction, 3)}" for ranks, fraction in revealed.items())
    usl = fit_usl(speedups)
    words = MISSING + " (needs two rank counts beyond one)" if usl is None else _fit_words(usl)
    amdahl = fit_amdahl(speedups)
    return [name, fractions, MISSING if amdahl is None else _fit_words(amdahl), words]


def _fit_words(fit: Fit) -> str:
    greek = {"serial": "serial", "sigma": "σ", "kappa": "κ"}
    parameters = ", ".join(f"{greek[name]} {decimal(value, 4)}" for name, value in fit.parameters.items())
    residuals = ", ".join(f"{ranks}: {100 * value:+.1f} %" for ranks, value in fit.residuals.items())
    free = "goes through its points" if fit.degrees_of_freedom == 0 else f"residuals {residuals}"
    best = f"; fastest at {fit.best_ranks:.0f} ranks" if fit.best_ranks is not None else ""
    return f"{parameters}; {free}{best}"
