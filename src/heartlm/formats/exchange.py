"""Recordings from and to other programs: arrays and frames in memory, WFDB records, MNE."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import (
    ARTEFACT,
    CLASS_OF_SYMBOL,
    RHYTHMS,
    Annotations,
    Note,
    Patient,
    Recording,
    RhythmSpan,
    rhythm_index,
    rhythm_named,
)
from heartlm.errors import HeartlmError, needs
from heartlm.formats.annotation_file import SYMBOL_OF_CODE, AnnotationFile, beats_of, notes_of, rhythms_of
from heartlm.formats.arrays import array_recording, checked_leads
from heartlm.formats.plausible import check_rate
from heartlm.formats.stated import Stated, rate_argument
from heartlm.formats.units import Unit
from heartlm.formats.whole_steps import lead_steps
from heartlm.formats.write_recording import write_wfdb
from heartlm.system.frames import pandas
from heartlm.system.progress import say_once

# Name of an array in messages.
_ARRAY = Path("array")
_TYPES_IN_VOLTS = frozenset(("ecg", "eeg", "eog", "emg", "bio", "ecog", "seeg", "dbs"))


def recording_of_array(
    x: Any,
    rate_hz: float | None,
    leads: str | Sequence[str] | None,
    units: str | Sequence[str] | None,
    start: datetime | time | None,
    record_id: str,
) -> Recording:
    """Return the recording of an array, pandas frame or Arrow table; see `Recording.from_array`."""
    stated = Stated.of(rate_hz, units, leads) or Stated()
    if start is not None and not isinstance(start, datetime | time):
        raise HeartlmError(f"start: {start!r} found, a datetime or a time expected")
    if not isinstance(record_id, str) or not record_id.isprintable():
        raise HeartlmError(f"record_id: {record_id!r} found, a text expected")
    module = type(x).__module__.partition(".")[0]
    if module in ("pandas", "pyarrow"):
        recording = _recording_of_frame(x, stated)
    else:
        signal, repairs = checked_leads("x", x)
        for repair in repairs:
            say_once(f"warning: x: {repair}")
        if stated.rate_hz is None:
            raise HeartlmError("rate_hz: not given, and an array does not state it; give the samples per second")
        numbered = [f"lead {place}" for place in range(1, len(signal) + 1)]
        _, names = stated.leads_of(numbered, "x")
        if len(names) != len(signal):
            raise HeartlmError(f"leads: {len(names)} names for {len(signal)} leads")
        lead_units = stated.units_of(len(signal)) or [Unit("mV")] * len(signal)
        recording = replace(array_recording(_ARRAY, signal, names, lead_units, stated.rate_hz), repairs=repairs)
    return replace(recording, start=start or recording.start, record_id=record_id, patient_id=record_id)


def recording_of(source: Any, rate_hz: float | None) -> Recording:
    """Return the recording of what another program has in memory.

    Raises:
        HeartlmError: it is none of these, or an array without a rate.
    """
    module = type(source).__module__.partition(".")[0]
    if module in ("wfdb", "mne"):
        if rate_hz is not None:
            raise HeartlmError(f"rate_hz: {rate_hz:g} given, but a {type(source).__name__} states its own")
        return recording_of_wfdb(source, None) if module == "wfdb" else recording_of_mne(source, "raw")
    if module in ("numpy", "pandas", "pyarrow", "torch") or (isinstance(source, list) and source):
        return recording_of_array(source, rate_hz, None, None, None, "array")
    raise HeartlmError(
        f"recording: {type(source).__name__} found; a path, a Recording, an array with rate_hz, a frame, a wfdb.Record "
        "or an mne.io.Raw expected"
    )


def _recording_of_frame(frame: Any, stated: Stated) -> Recording:
    import pyarrow as pa

    from heartlm.formats.table_files import METADATA, arrow_recording

    attributes: dict[str, Any] = {}
    if not isinstance(frame, pa.Table):
        frame = frame.to_frame() if frame.ndim == 1 else frame
        attributes = dict(frame.attrs)
        frame = frame.rename(columns=str)
        if frame.columns.has_duplicates:
            name = frame.columns[frame.columns.duplicated()][0]
            raise HeartlmError(f"column {name}: there are several of this name; rename them")
        only_counts = type(frame.index).__name__ == "RangeIndex"  # the numbers of the rows, no column of times
        table = pa.Table.from_pandas(frame, preserve_index=not only_counts)
        about = {key: attributes[key] for key in ("units", "start") if isinstance(attributes.get(key), dict | str)}
        table = table.replace_schema_metadata({METADATA: json.dumps(about)})
    else:
        table = frame
    with replace(stated, rate_hz=stated.rate_hz or attributes.get("rate_hz")).used():
        return arrow_recording(_ARRAY, table)


def frame_of(recording: Recording, start: int, stop: int | None, leads: Sequence[int | str] | None) -> Any:
    """Return samples as a pandas frame; see `Recording.to_frame`."""
    signal = recording.signal(start, stop, leads)
    chosen = [recording.lead_index(lead) for lead in (range(recording.num_leads) if leads is None else leads)]
    index = pandas().Index((start + np.arange(signal.shape[1])) / recording.rate_hz, name="time_s")
    names = [recording.lead_names[lead] for lead in chosen]
    frame = pandas().DataFrame(signal.T, index=index, columns=names)
    frame.attrs = {
        "rate_hz": recording.rate_hz,
        "units": {name: recording.units[lead] for name, lead in zip(names, chosen, strict=True)},
    }
    if recording.start is not None and start == 0:
        frame.attrs["start"] = recording.start.isoformat()
    return frame


def annotations_of_frames(beats: Any, rate_hz: float, rhythms: Any) -> Annotations:
    """Return annotations of pandas frames; see `Annotations.from_frame`."""
    rate_hz = rate_argument(rate_hz)
    for argument, frame in (("beats", beats), ("rhythms", {} if rhythms is None else rhythms)):
        if not hasattr(frame, "keys"):
            raise HeartlmError(f"{argument}: {type(frame).__name__} found, a pandas frame expected")
    sample = _places(beats, "sample", "time_s", rate_hz)
    order = np.argsort(sample, kind="stable")
    symbol = np.asarray(beats["symbol"] if "symbol" in beats else ["Q"] * len(sample), np.str_)[order]
    for unknown in sorted({*symbol.tolist()} - {*CLASS_OF_SYMBOL, ARTEFACT}):
        raise HeartlmError(f"symbol: {unknown!r} found; WFDB codes of beats expected: {' '.join(CLASS_OF_SYMBOL)}")
    spans = list[RhythmSpan]()
    if rhythms is not None:
        start = _places(rhythms, "start", "start_s", rate_hz)
        if "stop" in rhythms:
            stop = _places(rhythms, "stop", "stop", rate_hz)
        else:
            stop = start + _places(rhythms, "duration_s", "duration_s", rate_hz)
        for first, last, text in sorted(
            zip(start.tolist(), stop.tolist(), map(str, _column(rhythms, "name")), strict=True)
        ):
            name = RHYTHMS[rhythm_index(text)] if rhythm_index(text) != rhythm_index("OTHER") else rhythm_named(text)
            if name is None:
                raise HeartlmError(f"name: {text!r} found; a rhythm expected: {' '.join(RHYTHMS)}")
            if not (spans[-1].stop if spans else 0) <= first < last:
                raise HeartlmError(f"rhythms: {name} from {first} to {last}: empty, or starts before the last one ends")
            spans.append(RhythmSpan(first, last, name))
    return Annotations(rate_hz, sample[order], symbol.astype("<U1"), tuple(spans), "symbol" in beats, source="frame")


def _column(frame: Any, name: str) -> Any:
    if name not in frame:
        raise HeartlmError(f"column {name}: missing; there are {', '.join(map(str, frame)) or 'none'}")
    return frame[name]


def _places(frame: Any, in_samples: str, in_seconds: str, rate_hz: float) -> NDArray[np.int64]:
    """Return positions given in samples, or else in seconds, int64 `[num_rows]`."""
    name = in_samples if in_samples in frame else in_seconds
    try:
        values = np.asarray(_column(frame, name), np.float64) * (rate_hz if name.endswith("_s") else 1)
    except (TypeError, ValueError):
        raise HeartlmError(f"column {name}: numbers expected") from None
    if not np.all((values >= 0) & (values < 2**53)):  # false for NaN too; above, float64 skips integers
        raise HeartlmError(f"column {name}: a value is missing, negative or too large")
    return np.rint(values).astype(np.int64)


def write_record(recording: Recording, folder: Path, name: str) -> Path:
    """Write a WFDB record; see `Recording.to_wfdb`."""
    if not re.fullmatch(r"[\w-]+", name, re.ASCII):
        raise HeartlmError(f"name: {name!r} found; letters, digits, - and _ expected")
    header = folder / f"{name}.hea"
    if header.exists():
        raise HeartlmError(f"{header} exists already and is not replaced: choose another name or folder")
    if not recording.num_samples:
        raise HeartlmError(f"{recording.path}: has no samples to write")
    steps = lead_steps(recording, whole_zero=True)
    about = replace(recording, patient=Patient(sex=recording.patient.sex, age=recording.age))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{name}-", dir=folder) as temporary:
            files = write_wfdb(about, Path(temporary), name, steps)
            if existing := [path.name for path in files if (folder / path.name).exists()]:
                raise HeartlmError(f"{folder / existing[0]} exists already and is not replaced: choose another name")
            for path in files:  # the header last: with it the record is complete
                path.replace(folder / path.name)
    except OSError as error:
        raise HeartlmError(f"{folder}: cannot be written ({error.strerror})") from error
    return header


def mne_of(recording: Recording) -> Any:
    """Return the recording as `mne.io.RawArray`; see `Recording.to_mne`."""
    with needs("mne"):
        import mne

    signal = recording.signal().astype(np.float64)
    is_voltage = [unit == "mV" for unit in recording.units]
    signal[is_voltage] *= 1e-3
    kinds = ["ecg" if each else "misc" for each in is_voltage]
    info = mne.create_info(list(recording.lead_names), recording.rate_hz, kinds)
    raw = mne.io.RawArray(signal, info, verbose="error")
    if isinstance(recording.start, datetime):
        raw.set_meas_date(recording.start.replace(tzinfo=UTC))
    return raw


def recording_of_wfdb(record: Any, annotation: Any) -> Recording:
    """Return the recording of a `wfdb.Record` and a `wfdb.Annotation`; see `Recording.from_wfdb`."""
    if not hasattr(record, "p_signal"):
        raise HeartlmError(f"record: {type(record).__name__} found, a wfdb.Record expected, as wfdb.rdrecord returns")
    name, rate_hz = str(record.record_name or "record"), rate_argument(record.fs)
    physical = record.dac() if record.p_signal is None and record.d_signal is not None else record.p_signal
    if physical is None:
        raise HeartlmError(f"{name}: has no samples: read it with wfdb.rdrecord, with smooth_frames")
    units, start = [str(unit or "mV") for unit in record.units], record.base_time
    recording = array_recording(Path(name), np.ascontiguousarray(physical.T), record.sig_name, units, rate_hz)
    if start is not None and record.base_date is not None:
        start = datetime.combine(record.base_date, start)
    annotations = None if annotation is None else _annotations_of_wfdb(annotation, rate_hz, recording.num_samples)
    return replace(
        recording,
        record_id=name,
        patient_id=name,
        start=start,
        comments=tuple(map(str, record.comments or ())),
        read_annotations=lambda _: annotations,
    )


def _annotations_of_wfdb(annotation: Any, rate_hz: float, num_samples: int) -> Annotations:
    known, sample = SYMBOL_OF_CODE.tolist(), np.asarray(annotation.sample, np.int64)
    codes = [known.index(symbol) if symbol in known else 0 for symbol in annotation.symbol]
    texts = {place: text.rstrip("\0") for place, text in enumerate(annotation.aux_note or ()) if text}
    file = AnnotationFile(
        *(Path(str(annotation.extension or "atr")), sample, np.array(codes, np.uint8)),
        *(np.zeros(len(codes), np.int8), texts, annotation.fs),
    )
    places, symbol, ignored = beats_of(file, rate_hz, num_samples)
    rhythms, others = rhythms_of(file, rate_hz, num_samples)
    notes = notes_of(file, rate_hz, num_samples)
    return Annotations(rate_hz, places, symbol, rhythms, source=file.path.name, ignored=ignored | others, notes=notes)


def recording_of_mne(raw: Any, record_id: str) -> Recording:
    """Return the recording of an `mne.io.Raw`; see `Recording.from_mne`."""
    kinds, names = raw.get_channel_types(), list(raw.ch_names)
    in_volts = np.array([kind in _TYPES_IN_VOLTS for kind in kinds])
    rate_hz = check_rate(Path(record_id), float(raw.info["sfreq"]))
    # Of a cropped recording, MNE keeps `meas_date` and the onsets of annotations as they were before.
    moment, cropped_s = raw.info["meas_date"], float(raw.first_time)

    def samples(start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        picks = np.array(leads, np.int64)
        part: NDArray[np.float64] = raw.get_data(picks, start, stop)
        return (part * np.where(in_volts[picks], 1e3, 1.0)[:, np.newaxis]).astype(np.float32)

    def annotations(recording: Recording) -> Annotations | None:
        notes = []
        for onset_s, duration_s, text in zip(
            raw.annotations.onset, raw.annotations.duration, raw.annotations.description, strict=True
        ):
            begin_s = float(onset_s) - cropped_s
            first = min(max(0, round(begin_s * rate_hz)), recording.num_samples)
            last = min(max(first, round((begin_s + float(duration_s)) * rate_hz)), recording.num_samples)
            notes.append(Note(first, last, str(text)))
        if not notes:
            return None
        return Annotations(rate_hz, np.zeros(0, np.int64), np.zeros(0, "<U1"), source=record_id, notes=tuple(notes))

    return Recording(
        record_id=record_id,
        patient_id=record_id,
        rate_hz=rate_hz,
        num_samples=int(raw.n_times),
        lead_names=tuple(names),
        units=tuple("mV" if each else "" for each in in_volts),
        path=Path(record_id),
        start=None if moment is None else moment.astimezone(UTC).replace(tzinfo=None) + timedelta(seconds=cropped_s),
        samples=samples,
        read_annotations=annotations,
    )
