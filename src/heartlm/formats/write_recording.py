"""Write recordings as WFDB records and Parquet files, with their annotations in WFDB files next to them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from heartlm.ecg.recording import Annotations, Recording
from heartlm.formats.wfdb import patient_in
from heartlm.formats.whole_steps import LeadSteps, whole_numbers
from heartlm.formats.write_annotations import write_annotations
from heartlm.formats.write_wfdb import SignalFormat, write_signals

REVIEWED, DETECTED = "atr", "qrs"
"""Annotators of files whose beats were classified, and whose beats were only detected."""
# Rows of a group in Parquet files.
_ROWS = 1 << 18


def write_wfdb(
    recording: Recording,
    folder: Path,
    name: str,
    steps: Sequence[LeadSteps],
    *,
    flac: bool = False,
    others: Sequence[tuple[int, str, str]] = (),
) -> list[Path]:
    """Write a WFDB record to an existing folder, and return its files, the header last.

    Patient data become comments such as `<age>: 71`, which heartlm reads.

    Args:
        recording: recording with samples.
        folder: an existing folder.
        name: name of the record.
        steps: how the leads are written as whole numbers, with a whole number of the value 0.
        flac: whether to compress the signals.
        others: position, WFDB code and text of annotations that are no beat, rhythm or note.

    Raises:
        HeartlmError: the recording cannot be read, or FLAC is asked for and needs a package.
        OSError: a file cannot be written.
    """
    bits = max(each.bits() for each in steps)
    kind: SignalFormat = "16" if bits == 16 else "24" if bits == 24 else "32"
    if flac and bits <= 24:
        kind = "516" if bits == 16 else "524"
    annotations = write_annotation_file(recording, folder, name, others)
    signals = write_signals(
        folder,
        name,
        whole_numbers(recording, steps, -(1 << bits - 1)),
        signal_format=kind,
        rate_hz=recording.rate_hz,
        leads=[" ".join(lead.split()) for lead in recording.lead_names],
        gain=[each.gain for each in steps],
        baseline=[round(each.zero) for each in steps],
        units=recording.units,
        start=recording.start,
        comments=[*(re.sub(r"[\s\0]", " ", comment) for comment in recording.comments), *_patient_lines(recording)],
    )
    return [*annotations, *signals]


def _patient_lines(recording: Recording) -> list[str]:
    """Return comments with the patient data that the other comments do not state."""
    stated, patient = patient_in(recording.comments), replace(recording.patient, age=recording.age)
    return [
        f"<{key.replace('_', ' ')}>: {' '.join(str(value).replace('<', ' ').split())}"
        for key, value in vars(patient).items()
        if value not in (None, "", getattr(stated, key))
    ]


def write_annotation_file(
    recording: Recording, folder: Path, name: str, others: Sequence[tuple[int, str, str]] = ()
) -> list[Path]:
    """Write the annotations of a recording, if it has any, to one file whose extension tells if beats were classified.

    Args:
        recording: recording.
        folder: an existing folder.
        name: name of the record.
        others: position, WFDB code and text of annotations that are no beat, rhythm or note.

    Raises:
        HeartlmError: the annotations cannot be read or written.
    """
    annotations: Annotations | None = recording.annotations
    if annotations is None or not (annotations.num_beats or annotations.rhythms or annotations.notes or others):
        return []
    annotator = DETECTED if annotations.num_beats and not annotations.beats_labelled else REVIEWED
    return [write_annotations(folder, name, annotations, annotator, recording.num_samples, others)]


def write_parquet(
    recording: Recording, folder: Path, name: str, *, others: Sequence[tuple[int, str, str]] = ()
) -> list[Path]:
    """Write the samples to `name.parquet`: one row a sample, with its time, one column a lead, null where invalid.

    The field `heartlm` of the file's metadata has the rate, the units, the start, the patient and the comments.
    Annotations are written to a WFDB file next to it, also `others`: position, code and text of annotations that are no
    beat, rhythm or note.

    Raises:
        HeartlmError: the recording cannot be read.
        OSError: a file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = list[str]()
    for lead in recording.lead_names:
        numbered = (f"{lead} {number}" for number in range(2, recording.num_leads + 2))
        columns.append(
            lead if lead not in columns and lead != _TIME else next(each for each in numbered if each not in columns)
        )
    about = {
        "rate_hz": recording.rate_hz,
        "lead_names": list(recording.lead_names),
        "units": dict(zip(columns, recording.units, strict=True)),
        "start": recording.start and recording.start.isoformat(),
        "patient": asdict(replace(recording.patient, age=recording.age)),
        "comments": list(recording.comments),
    }
    about = {key: value for key, value in about.items() if value}
    fields = [pa.field(_TIME, pa.float64()), *(pa.field(column, pa.float32()) for column in columns)]
    schema = pa.schema(fields, metadata={"heartlm": json.dumps(about, default=str)})
    path = folder / f"{name}.parquet"
    plain = {"use_dictionary": False, "column_encoding": dict.fromkeys([_TIME, *columns], "BYTE_STREAM_SPLIT")}
    annotations = write_annotation_file(recording, folder, name, others)
    with pq.ParquetWriter(path, schema, compression="zstd", **plain) as writer:
        for start in range(0, recording.num_samples, _ROWS):
            signal = recording.signal(start, min(start + _ROWS, recording.num_samples))
            times = np.arange(start, start + signal.shape[1]) / recording.rate_hz
            arrays = [pa.array(times), *(pa.array(lead, mask=np.isnan(lead)) for lead in signal)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return [*annotations, path]


_TIME = "time_s"
