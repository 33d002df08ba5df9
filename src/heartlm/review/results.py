"""Files of a reviewed recording, next to those of the automatic analysis."""

from __future__ import annotations

from pathlib import Path

from heartlm.analysis.findings import EVENT_FIELDS, Findings
from heartlm.formats.write_annotations import write_annotations
from heartlm.report.holter import holter_page
from heartlm.storage.atomic import write_csv, write_text


def write_results(findings: Findings, folder: Path) -> list[Path]:
    """Write annotations, tables and page of corrected findings; see `Review.write`."""
    stem = folder / f"{findings.recording.record_id}.reviewed"
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("hlm", "events.csv", "hours.csv", "html")]
    page = holter_page(findings)
    write_annotations(folder, stem.name, findings.annotations())
    write_csv(findings.event_rows(), paths[1], EVENT_FIELDS, digits=4)
    write_csv(findings.hours(), paths[2], digits=4)
    write_text(paths[3], page)
    return paths
