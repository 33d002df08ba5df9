"""The report of a study: the page, the figures as PNG, the table as CSV and Parquet, all beside its measurements."""

from __future__ import annotations

from pathlib import Path

from heartlm.errors import HeartlmError
from heartlm.files import atomic_file, read_json
from heartlm.report.scaling_figures import save_scaling_figures
from heartlm.report.scaling_model import panels_of
from heartlm.report.scaling_page import scaling_page
from heartlm.scaling.cell import load_measurements
from heartlm.scaling.table import flat, flat_beside, table_of, write_csv, write_parquet


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
    text = scaling_page(table, skipped_cells(study), Path(study))
    with atomic_file(page) as stream:
        stream.write(text)
    lines = [flat(row) for row in table.rows]
    files = [page, write_csv(lines, folder / "table.csv"), write_parquet(lines, folder / "table.parquet")]
    if table.beside:
        files.append(write_csv([flat_beside(each) for each in table.beside], folder / "side-by-side.csv"))
    return files + save_scaling_figures(panels_of(table), folder)


def skipped_cells(study: Path) -> list[tuple[str, str]]:
    """Cells of the study that were not measured, with the reason."""
    path = study / "skipped.json"
    return read_json(path, list[tuple[str, str]]) if path.exists() else []
