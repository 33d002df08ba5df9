"""Report of a study, next to its measurements: a page, figures as SVG, and the table as CSV."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.files import atomic_file, read_json, write_csv
from heartlm.report.figures import save_drawings
from heartlm.report.numbers import MISSING, count, decimal, percent, plural, significant
from heartlm.report.page import plain, render
from heartlm.report.scaling_charts import CAPTIONS, charts_of
from heartlm.scaling.cell import PARTS, load_measurements
from heartlm.scaling.equations import Interval, karp_flatt
from heartlm.scaling.fits import Fit, fit_amdahl, fit_usl
from heartlm.scaling.reference_marks import EFFICIENCY, SOURCE, SPEEDUP
from heartlm.scaling.table import CellRow, Table, flat, groups, table_of

STAGES = {"pretrain": "Pretraining", "finetune": "Fine-tuning"}
PART_WORDS = {
    "data": "waiting for data",
    "compute": "forward and backward",
    "exposed_communication": "exposed communication",
    "straggler": "waiting for a slower rank",
    "optimizer": "the optimiser",
    "other": "all else",
}
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
    "memory, MB",
    "J per M tokens",
)


def write_scaling_report(study: Path, out: Path | None = None) -> list[Path]:
    """Write the report of `study` into the folder `out`, by default `report` in the study folder; return the files.

    Raises:
        HeartlmError: there are no valid measurements, an optional package is missing, or `out` cannot be written.
    """
    folder = Path(out) if out else Path(study) / "report"
    table = table_of(load_measurements(study))
    if not table.rows:
        raise HeartlmError(
            f"{study}: none of {len(table.failed)} measurements passed its check: {table.failed[0].failed}"
        )
    kinds = groups(table.rows, lambda cell: (cell.stage, cell.database, cell.precision, cell.scaling))
    panels = [_panel(kind, of_kind) for kind, of_kind in kinds.items()]
    page, skipped = folder / "report.html", Path(study) / "skipped.json"
    not_run = read_json(skipped, list[tuple[str, str]]) if skipped.exists() else []
    text = render("scaling.html", _context(table, panels, not_run, Path(study)))
    with atomic_file(page) as stream:
        stream.write(text)
    files = [page, write_csv([flat(row) for row in table.rows], folder / "table.csv")]
    for name in CAPTIONS:
        drawings = [(panel["title"], chart) for panel in panels for chart in panel["charts"].get(name, ())]
        if drawings:
            files += [save_drawings(drawings, folder / f"{name}{suffix}") for suffix in (".svg", ".png")]
    return files


def _context(
    table: Table, panels: Sequence[Mapping[str, Any]], skipped: Sequence[tuple[str, str]], folder: Path
) -> dict[str, Any]:
    """Return all values of the template."""
    revealed = {ranks: found for ranks in EFFICIENCY if (found := karp_flatt(SPEEDUP[ranks], ranks)) is not None}
    published = _law_row("published, A100 (no measurement of this study)", SPEEDUP, revealed)
    return {
        "name": folder.resolve().name,
        "path": str(folder),
        **_head(table.rows),
        "num_measurements": sum(row.repeats for row in table.rows),
        "num_cells": len(table.rows),
        "repeats": max(row.repeats for row in table.rows),
        "source": SOURCE,
        "panels": panels,
        "captions": CAPTIONS,
        "head": HEAD,
        "parts": PART_WORDS,
        "laws": [published, *(line for panel in panels for line in panel["laws"])],
        "moved": sum(row.num_moved for row in table.rows),
        "failed": [(f"{each.cell.name}, repeat {each.repeat + 1}", each.failed) for each in table.failed],
        "skipped": skipped,
        "environment": [(key, plain(value)) for key, value in table.environment.items()],
    }


def _head(rows: Sequence[CellRow]) -> dict[str, Any]:
    """Return the title, lead and cards of the page: results at the highest rank count, and each speedup."""
    waiting = percent(statistics.median(row.part_s["data"] / sum(row.part_s.values()) for row in rows))
    last = {"label": "waiting for data", "value": waiting, "note": "of a step, median of all cells"}
    known = [row for row in rows if row.cell.ranks > 1 and row.speedup is not None]
    if not known:
        why = "There is nothing to compare yet: a study with more than one rank count shows speedups."
        return {"title": "What training takes on one rank", "lead": why, "cards": [last]}
    cards = []
    for ranks, of_ranks in groups(known, lambda cell: cell.ranks).items():
        notes = [f"median of {plural(len(of_ranks), 'cell')}, efficiency {_median(row.efficiency for row in of_ranks)}"]
        if any(row.ceiling for row in of_ranks):
            notes.append(f"trainings side by side reach {_median(row.ceiling for row in of_ranks)}x")
        if ranks in SPEEDUP:
            notes.append(f"published {SPEEDUP[ranks]:g}x on {ranks} GPUs")
        value = f"{_median(row.speedup for row in of_ranks)}x"
        cards.append({"label": f"speedup of {plural(ranks, 'rank')}", "value": value, "note": "; ".join(notes)})
    most = max(row.cell.ranks for row in known)
    widest = [row for row in known if row.cell.ranks == most]
    lost = {name: statistics.median(row.part_s[name] / sum(row.part_s.values()) for row in widest) for name in PARTS}
    worst = max((name for name in PARTS if name != "compute"), key=lambda name: lost[name])
    values = [row.speedup.value for row in widest if row.speedup is not None]
    lead = (
        f"Over {plural(len(widest), 'cell')} the speedup lies between {min(values):.2f} and {max(values):.2f}. "
        f"Besides computing, most of a step goes to {PART_WORDS[worst]}: {percent(lost[worst])}."
    )
    title = f"{plural(most, 'rank')} are {statistics.median(values):.2f} times as fast as one"
    return {"title": title, "lead": lead, "cards": [*cards[:4], last]}


def _median(intervals: Iterable[Interval | None]) -> str:
    return f"{statistics.median(interval.value for interval in intervals if interval is not None):.2f}"


def _panel(kind: tuple[str, str, str, str], rows: Sequence[CellRow]) -> dict[str, Any]:
    """Return the panel of one stage, database, precision and scaling mode: charts, table and fitted laws."""
    stage, database, precision, scaling = kind
    title = f"{STAGES[stage]} on {database}"
    title += "" if (precision, scaling) == ("fp32", "strong") else f", {precision}, {scaling} scaling"
    longest_s = max(sum(row.part_s.values()) for row in rows)
    bars = [
        [
            (name, 100 * seconds / longest_s, f"{PART_WORDS[name]} {significant(1000 * seconds)} ms")
            for name, seconds in ((name, max(0.0, row.part_s[name])) for name in PARTS)
        ]
        for row in rows
    ]
    return {
        "title": title,
        "anchor": "-".join(kind).lower(),
        "charts": charts_of(rows),
        "table": list(zip(map(_table_row, rows), bars, strict=True)),
        "laws": _laws(title, rows),
    }


def _table_row(row: CellRow) -> list[str]:
    cell = row.cell
    has_other_buckets = cell.ranks > 1 and cell.bucket_cap_mb != type(cell).bucket_cap_mb
    extra = f", {cell.bucket_cap_mb:g} MiB" if has_other_buckets else ""
    extra += f", {cell.nodes} nodes" if cell.nodes > 1 else ""
    return [
        str(cell.window),
        f"{cell.ranks} × {cell.cpus_per_task}{extra}",
        f"{significant(row.time_s.value)}{_between(row.time_s)}",
        decimal(1000 * row.step_median_s, 1),
        decimal(1000 * row.step_p95_s, 1),
        count(row.tokens_per_s),
        _written(row.speedup, "x"),
        _written(row.efficiency),
        _written(row.ceiling, "x"),
        _written(row.efficiency_of_ceiling),
        _written(row.overhead_s),
        decimal(row.karp_flatt, 3),
        count(row.peak_memory_bytes / 1e6),
        count(row.energy_j_per_mtoken),
    ]


def _written(interval: Interval | None, unit: str = "") -> str:
    return MISSING if interval is None else f"{decimal(interval.value, 2)}{unit}{_between(interval)}"


def _between(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f" ({decimal(interval.low, 2)} to {decimal(interval.high, 2)})"


def _laws(title: str, rows: Sequence[CellRow]) -> list[list[str]]:
    lines = []
    for (window, cpus, cap), some in groups(
        [row for row in rows if row.speedup is not None and row.cell.ranks > 1],
        lambda cell: (cell.window, cell.cpus_per_task, cell.bucket_cap_mb),
    ).items():
        speedups = {row.cell.ranks: row.speedup.value for row in some if row.speedup is not None}
        revealed = {row.cell.ranks: row.karp_flatt for row in some if row.karp_flatt is not None}
        sizes = "" if cap == type(some[0].cell).bucket_cap_mb else f", {cap:g} MiB"
        lines.append(_law_row(f"{title}, {window}, {plural(cpus, 'CPU')}{sizes}", speedups, revealed))
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
