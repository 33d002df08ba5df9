"""`heartlm data show`: draw part of a recording on ECG paper, with its annotated beats and rhythms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heartlm.cli.options import parse, seconds


@dataclass(frozen=True)
class ShowOptions:
    """Options of `heartlm data show`.

    Attributes:
        record: a WFDB recording, DATABASE/RECORD; a file ending is ignored.
        start: start time since the start of the recording, in seconds, m:ss or h:mm:ss.
        stop: end time, likewise; by default 10 s after the start.
        out: output file, .svg or .png; by default RECORD-START-STOP.svg in the current folder.
        leads: comma-separated names of the leads to draw; by default all.
        damaged: action for a recording that shows damage: warn draws it with a warning, refuse stops.
        strict: refuse a recording whose file must be repaired to be read, instead of drawing it with a warning.
    """

    record: Path
    start: str = "0"
    stop: str | None = None
    out: Path | None = None
    leads: str | None = None
    damaged: Literal["refuse", "warn"] = "warn"
    strict: bool = False


def run(argv: Sequence[str]) -> int:
    """Draw a recording on ECG paper (25 mm/s, 10 mm/mV) with its beats by AAMI class and its rhythms.

    Examples:
        heartlm data show data/mitdb/208 --start 60 --stop 70
        heartlm data show data/mitdb/203 --start 0:24:45
        heartlm data show data/mitdb/203 --start 100 --stop 130 --leads MLII --out vt.svg
    """
    options = parse(ShowOptions, argv, "data show", run, positionals=["record"])
    from heartlm.databases.database import locate
    from heartlm.report.figures import save_strip
    from heartlm.report.plots import recording_strip

    database, record_id = locate(options.record, repaired="refuse" if options.strict else "warn")
    recording = database.recording(record_id)
    start_s = seconds(options.start, "--start")
    stop_s = None if options.stop is None else seconds(options.stop, "--stop")
    leads = None if options.leads is None else [name.strip() for name in options.leads.split(",")]
    strip = recording_strip(recording, start_s, stop_s, leads)
    for name in strip.lead_names:
        recording.signal(leads=[name])  # reading a whole lead verifies its checksum
    if options.damaged == "refuse":
        recording.refuse_if_damaged()
    recording.warn_if_damaged()
    stop_s, rate_hz, annotations = start_s + strip.duration_s, recording.rate_hz, recording.annotations
    first, last = round(start_s * rate_hz), round(stop_s * rate_hz)
    out = options.out or Path(f"{Path(record_id).name}-{start_s:g}-{stop_s:g}.svg")
    print(save_strip(strip, f"{database.name} {record_id}", out))
    for note in annotations.notes if annotations is not None else ():
        if note.start < last and max(note.stop, note.start + 1) > first:
            text = "".join(character if character.isprintable() else "?" for character in note.text)
            print(f"note at {note.start / rate_hz:,.1f} s: {text}")
    return 0
