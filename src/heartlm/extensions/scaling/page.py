"""Report of a study, next to its measurements: a page, figures as SVG, and the table as CSV."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.extensions.scaling.cell import PARTS, load_measurements
from heartlm.extensions.scaling.charts import CAPTIONS, charts_of
from heartlm.extensions.scaling.fits import fit_amdahl, fit_usl
from heartlm.extensions.scaling.marks import Marks, load_marks
from heartlm.extensions.scaling.table import CellRow, flat, groups, table_of
from heartlm.report.figures import save_drawings
from heartlm.report.numbers import Interval, percent
from heartlm.report.render import render
from heartlm.storage.atomic import write_csv, write_text
from heartlm.storage.reading import read_json
from heartlm.system.progress import plural

STAGES = {"pretrain": "Pretraining", "finetune": "Fine-tuning"}
PART_WORDS = {
    "data": "waiting for data",
    "compute": "forward and backward",
    "exposed_communication": "exposed communication",
    "straggler": "waiting for a slower rank",
    "optimizer": "the optimiser",
    "other": "all else",
}


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
    marks = load_marks(Path(study))
    kinds = groups(table.rows, lambda cell: (cell.stage, cell.database, cell.precision, cell.scaling))
    panels = [_panel(kind, kind_rows, marks) for kind, kind_rows in kinds.items()]
    curves = [(f"{marks.source} (no measurement of this study)", marks.speedup)] if marks.speedup else []
    curves += [curve for panel in panels for curve in panel["curves"]]
    skipped = Path(study) / "skipped.json"
    text = render(
        Path(__file__).with_name("scaling.html"),
        name=Path(study).resolve().name,
        path=str(study),
        **_head(table.rows, marks),
        rows=table.rows,
        source=marks.source,
        panels=panels,
        captions=CAPTIONS,
        parts=PART_WORDS,
        laws=[(name, fit_amdahl(speedups), fit_usl(speedups)) for name, speedups in curves],
        failed=table.failed,
        skipped=read_json(skipped, list[tuple[str, str]]) if skipped.exists() else [],
        environment=table.environment,
    )
    columns = [flat(row) for row in table.rows]
    files = [write_text(folder / "report.html", text), write_csv(columns, folder / "table.csv")]
    for name in CAPTIONS:
        drawings = [(panel["title"], chart) for panel in panels for chart in panel["charts"].get(name, ())]
        if drawings:
            files += [save_drawings(drawings, folder / f"{name}{suffix}") for suffix in (".svg", ".png")]
    return files


def _head(rows: Sequence[CellRow], marks: Marks) -> dict[str, Any]:
    """Return the title, lead and cards of the page: results at the highest rank count, and each speedup."""
    known = [row for row in rows if row.cell.ranks > 1 and row.speedup is not None]
    if not known:
        why = "There is nothing to compare yet: a study with more than one rank count shows speedups."
        return {"title": "What training takes on one rank", "lead": why, "cards": []}
    cards = []
    for ranks, group in groups(known, lambda cell: cell.ranks).items():
        note = f"median of {plural(len(group), 'cell')}, efficiency {_median(row.efficiency for row in group):.2f}"
        note += f"; of others {marks.speedup[ranks]:g}x" if ranks in marks.speedup else ""
        cards.append((f"speedup of {plural(ranks, 'rank')}", f"{_median(row.speedup for row in group):.2f}x", note))
    most = max(row.cell.ranks for row in known)
    widest = [row for row in known if row.cell.ranks == most]
    lost = {name: statistics.median(row.part_s[name] / sum(row.part_s.values()) for row in widest) for name in PARTS}
    worst = max((name for name in PARTS if name != "compute"), key=lambda name: lost[name])
    gain = _median(row.speedup for row in widest)
    lead = f"Besides computing, most of a step goes to {PART_WORDS[worst]}: {percent(lost[worst])}."
    return {"title": f"{plural(most, 'rank')} are {gain:.2f} times as fast as one", "lead": lead, "cards": cards[:5]}


def _median(intervals: Iterable[Interval | None]) -> float:
    return statistics.median(interval.value for interval in intervals if interval is not None)


def _panel(kind: tuple[str, str, str, str], rows: Sequence[CellRow], marks: Marks) -> dict[str, Any]:
    """Return the panel of one stage, database, precision and scaling mode: charts, rows, speedups of each curve."""
    stage, database, precision, scaling = kind
    title = f"{STAGES[stage]} on {database}"
    title += "" if (precision, scaling) == ("fp32", "strong") else f", {precision}, {scaling} scaling"
    several = [row for row in rows if row.speedup is not None and row.cell.ranks > 1]
    curves = list[tuple[str, dict[int, float]]]()
    by_curve = groups(several, lambda cell: (cell.window, cell.cpus_per_task, cell.sharing))
    for (window, cpus, sharing), group in by_curve.items():
        speedups = {row.cell.ranks: row.speedup.value for row in group if row.speedup is not None}
        curves.append((f"{title}, {window}, {plural(cpus, 'CPU')}, {sharing}", speedups))
    return {
        "title": title,
        "anchor": "-".join(kind).lower(),
        "charts": charts_of(rows, marks),
        "rows": rows,
        "longest_s": max(sum(row.part_s.values()) for row in rows),
        "curves": curves,
    }
