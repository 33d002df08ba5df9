"""`heartlm data show`: draw part of a recording on ECG paper, with its annotated beats and rhythms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heartlm.cli.options import parse, seconds
from heartlm.errors import HeartlmError

LONGEST_S = 300.0


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
    from heartlm.ecg.database import locate
    from heartlm.ecg.recording import BEAT_CLASSES, UNLABELLED
    from heartlm.report.figures import save_strip
    from heartlm.report.strip import Beat, Strip

    database, record_id = locate(options.record, repaired="refuse" if options.strict else "warn")
    recording = database.recording(record_id)
    if not recording.has_signal:
        raise HeartlmError(f"{recording.path}: this recording has annotations only, no signal to draw")
    start_s, end_s, rate_hz = seconds(options.start, "--start"), recording.duration_s, recording.rate_hz
    if not 0 <= start_s < end_s:
        raise HeartlmError(f"--start is {start_s:g} s; {recording.path} lasts from 0 to {end_s:g} s")
    stop_s = min(start_s + 10.0, end_s) if options.stop is None else seconds(options.stop, "--stop")
    if not start_s < stop_s <= end_s:
        raise HeartlmError(f"--stop is {stop_s:g} s; expected more than --start, {start_s:g}, and at most {end_s:g} s")
    if stop_s - start_s > LONGEST_S:
        raise HeartlmError(f"--start to --stop are {stop_s - start_s:g} s; a picture holds at most {LONGEST_S:g} s")
    annotations, leads = database.annotations(record_id, recording), list(range(recording.num_leads))
    if options.leads is not None:
        leads = [recording.lead_index(name.strip()) for name in options.leads.split(",")]
    for lead in leads:
        recording.signal(leads=[lead])  # reading a whole lead verifies its checksum
    if options.damaged == "refuse":
        recording.refuse_if_damaged()
    recording.warn_if_damaged()
    first, last = round(start_s * rate_hz), round(stop_s * rate_hz)
    beats, rhythms = None, list[tuple[float, float, str]]()
    if annotations is not None:
        shown = (annotations.sample >= first) & (annotations.sample < last)
        classes = annotations.beat_classes()[shown]
        names = [None if index == UNLABELLED else BEAT_CLASSES[index] for index in classes]
        times_s = (annotations.sample[shown] / rate_hz).tolist()
        beats = [Beat(time_s, name) for time_s, name in zip(times_s, names, strict=True)]
        rhythms = [(span.start / rate_hz, span.stop / rate_hz, span.name) for span in annotations.rhythms]
    signal_mv, lead_names = recording.signal(first, last, leads), [recording.lead_names[lead] for lead in leads]
    strip = Strip(signal_mv, rate_hz, lead_names, first / rate_hz, beats=beats, rhythms=rhythms)
    out = options.out or Path(f"{Path(record_id).name}-{start_s:g}-{stop_s:g}.svg")
    print(save_strip(strip, f"{database.name} {record_id}", out))
    for note in annotations.notes if annotations is not None else ():
        if note.start < last and max(note.stop, note.start + 1) > first:
            text = "".join(character if character.isprintable() else "?" for character in note.text)
            print(f"note at {note.start / rate_hz:,.1f} s: {text}")
    return 0
