"""Output files of findings: an annotation file, tables of events and hours, a summary, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heartlm.analysis.findings import Findings
from heartlm.ecg.write_annotations import write_annotations
from heartlm.files import atomic_file, write_csv

SCHEMA_VERSION = 2


def write_findings(findings: Findings, folder: Path, page: str | None = None) -> dict[str, Any]:
    """Write the findings of a recording to `folder`, and return the summary.

    RECORD.hlm has beats and rhythms in WFDB format, RECORD.events.csv one event per row, RECORD.hours.csv one hour per
    row, RECORD.html the page. RECORD.json, the summary, is written last: if it exists, the other files are complete.

    Raises:
        HeartlmError: a file cannot be written.
    """
    record = findings.recording.record_id
    folder, name = Path(folder) / Path(record).parent, Path(record).name
    folder.mkdir(parents=True, exist_ok=True)
    write_annotations(folder, name, findings.annotations())
    events = findings.event_rows()
    for event in events:
        event |= {name: round(event[name], 3) for name in ("start_s", "duration_s")}
    columns = ("start_s", "duration_s", "kind", "confidence", "num_beats", "rate_bpm")
    write_csv(events, folder / f"{name}.events.csv", columns, digits=4)
    write_csv(findings.hours(), folder / f"{name}.hours.csv", digits=4)
    if page is not None:
        with atomic_file(folder / f"{name}.html") as stream:
            stream.write(page)
    summary = findings.summary()
    described = {"schema_version": SCHEMA_VERSION, "made_by": findings.made_by, "summary": summary}
    with atomic_file(folder / f"{name}.json") as stream:
        # NaN, which is not equal to itself, becomes None
        plain = [{key: None if value != value else value for key, value in event.items()} for event in events]
        json.dump(described | {"notes": findings.notes, "events": plain}, stream, indent=1)
    return summary
