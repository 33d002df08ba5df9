"""Write recordings as ISHNE Holter files, with their annotations in WFDB files next to them.

The format has whole sampling rates, 12 leads by number of a list of names, 16 bits a sample and, for each lead, a
resolution in whole nanovolts without an offset. What does not fit is refused or told as a change.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from heartlm.ecg.leads import canonical_lead
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.ishne import CHECKED_FROM, HEADER, HEADER_BYTES, LEADS, MAGIC, MOST_LEADS, NV_PER_MV, SEX
from heartlm.formats.stated import of_leads
from heartlm.formats.whole_steps import LeadSteps, measured_steps, whole_numbers
from heartlm.formats.write_recording import write_annotation_file

_INVALID, _MOST = -32768, 32767
_ABSENT = (-9,) * 3


class WrittenIshne(NamedTuple):
    """What was written.

    Attributes:
        recording: the leads that were written.
        files: annotation file and ISHNE file.
        steps: how each lead is written as whole numbers.
        changes: what the format does not hold, one line each.
    """

    recording: Recording
    files: list[Path]
    steps: list[LeadSteps]
    changes: list[str]


def write_ishne(
    recording: Recording,
    folder: Path,
    name: str,
    steps: Sequence[LeadSteps],
    *,
    others: Sequence[tuple[int, str, str]] = (),
) -> WrittenIshne:
    """Write the leads in mV to `name.ecg`, and an annotation file next to it.

    Args:
        recording: recording with samples.
        folder: an existing folder.
        name: name of the record.
        steps: how the leads would be written exactly; the same integers are written where they fit.
        others: position, WFDB code and text of annotations that are no beat, rhythm or note.

    Raises:
        HeartlmError: the recording has more leads, other channels or a rate that the format has no place for.
        OSError: a file cannot be written.
    """
    ecg = [lead for lead, unit in enumerate(recording.units) if unit == "mV"]
    changes = [
        f"{name} left out: ISHNE has leads in mV alone"
        for name, unit in zip(recording.leads, recording.units, strict=True)
        if unit != "mV"
    ]
    if not 1 <= len(ecg) <= MOST_LEADS:
        number = f"{len(ecg)} leads in mV"
        raise HeartlmError(f"{recording.path}: {number}, 1 to {MOST_LEADS} in an ISHNE file: give --leads, or --units")
    recording = of_leads(recording, ecg)
    if recording.rate_hz != round(recording.rate_hz) or recording.rate_hz > _MOST:
        raise HeartlmError(f"{recording.path}: {recording.rate_hz:g} Hz, ISHNE has whole rates: write WFDB or EDF")
    resolution_nv = [_resolution_nv(steps[lead]) for lead in ecg]
    written = [
        measured_steps(recording.signal(leads=[lead])[0], NV_PER_MV / each, 0.0)
        for lead, each in enumerate(resolution_nv)
    ]
    kinds = list[int]()
    for lead in recording.leads:
        known = next((place for place, each in enumerate(LEADS) if each.lower() == canonical_lead(lead)), None)
        kinds.append(0 if known is None else known + 2)
        if known is None or LEADS[known] != lead:
            changes.append(f"lead {lead} is written as {'unknown' if known is None else LEADS[known]}")
    annotations = write_annotation_file(recording, folder, name, others)
    path, text = folder / f"{name}.ecg", "\n".join(recording.comments).encode("latin-1", "replace")
    with path.open("wb") as stream:
        stream.write(_header(recording, kinds, resolution_nv, text))
        for numbers in whole_numbers(recording, written, _INVALID):
            stream.write(np.ascontiguousarray(numbers.T).astype("<i2").tobytes())
    return WrittenIshne(recording, [*annotations, path], written, changes)


def _resolution_nv(steps: LeadSteps) -> int:
    """Return the resolution of a lead: that of its integers if it is whole and they fit, else the finest that does."""
    nv = NV_PER_MV / steps.gain
    low, high = steps.low - steps.zero, steps.high - steps.zero
    if abs(nv - round(nv)) < 1e-9 * nv and steps.zero == round(steps.zero) and max(-low, high) <= _MOST and nv <= _MOST:
        return round(nv)
    return min(_MOST, max(1, math.ceil(max(-low, high, 0.0) * nv / _MOST)))


def _header(recording: Recording, kinds: list[int], resolution_nv: list[int], text: bytes) -> bytes:
    patient, start = recording.patient, recording.start
    first, _, last = patient.name.partition(" ")
    names = [each.encode("latin-1", "replace") for each in (first, last, patient.identifier)]
    day = _triplet(start if isinstance(start, datetime) else None)
    clock = _ABSENT if start is None else (start.hour, start.minute, start.second)
    sex = next((number for number, each in SEX.items() if each == patient.sex), 0)
    absent = (-9,) * (MOST_LEADS - len(kinds))
    header = HEADER.pack(
        *(MAGIC, 0, len(text), recording.num_samples, HEADER_BYTES, HEADER_BYTES + len(text), 1, *names),
        *(sex, 0, *_triplet(patient.birth_date), *day, *day, *clock, len(kinds), *kinds, *absent),
        *(*(0 for _ in kinds), *absent, *resolution_nv, *absent, 0, b"heartlm", round(recording.rate_hz)),
    )
    header = header.ljust(HEADER_BYTES, b"\0") + text
    checksum = binascii.crc_hqx(header[CHECKED_FROM:], 0xFFFF)
    return header[:8] + checksum.to_bytes(2, "little") + header[10:]


def _triplet(day: date | None) -> tuple[int, int, int]:
    return _ABSENT if day is None else (day.day, day.month, day.year)
