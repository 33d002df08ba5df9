"""Recordings without what identifies their patients.

Names, identifiers, birth dates and free text are dropped. Record names and patients become codes, and dates move by a
number of days that is constant for a patient, so that the time of day and the days between recordings stay. Codes and
shifts follow from a random key, which is kept only while a conversion is not finished.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from heartlm.ecg.recording import Annotations, Patient, Recording

# Dates move back by up to this number of days. Higher ages identify (45 CFR 164.514) and are dropped.
_MOST_DAYS, _OLDEST = 3650, 89


@dataclass(frozen=True)
class Anonymizer:
    """Replace what identifies patients, by a secret `key`."""

    key: bytes

    def code(self, kind: str, name: str, length: int = 10) -> str:
        """Return the code of a patient or record, hexadecimal digits."""
        return hmac.new(self.key, f"{kind} {name}".encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[
            :length
        ]

    def anonymous(self, recording: Recording) -> tuple[Recording, list[str]]:
        """Return a recording without identifying data, and what was dropped or changed, one line each."""
        patient, start, age = recording.patient, recording.start, recording.age
        kept_age = age if age is not None and age <= _OLDEST else None
        identity = _identity(recording)
        dropped = [
            text
            for text, is_there in (
                ("name", patient.name),
                ("identifier", patient.identifier),
                ("birth date", patient.birth_date),
                (f"{len(recording.comments)} comments", recording.comments),
                (f"age above {_OLDEST}", age is not None and age > _OLDEST),
            )
            if is_there
        ]
        if isinstance(start, datetime):
            days = 1 + int(self.code("days", identity, 16), 16) % _MOST_DAYS
            start = start - timedelta(days=days) if start.year > _MOST_DAYS // 365 + 1 else start.time()
            dropped.append("date moved")
        annotations = recording.annotations
        if annotations is not None and annotations.notes:
            dropped.append(f"{len(annotations.notes)} notes")
        record, who = self.code("record", recording.record_id), self.code("patient", identity)

        def without_notes(_: Recording) -> Annotations | None:
            return annotations and replace(annotations, notes=(), source="")

        return (
            replace(
                recording,
                record_id=record,
                patient_id=who,
                patient=Patient(identifier=who, sex=patient.sex, age=kept_age),
                start=start,
                comments=(),
                read_annotations=without_notes,
            ),
            dropped,
        )


def _identity(recording: Recording) -> str:
    """Return what is the same in all recordings of a patient: as the database states it, else as the header does."""
    patient = recording.patient
    if recording.patient_id.split("/", 1)[-1] != recording.record_id:
        return recording.patient_id
    of_header = patient.identifier or (patient.name and f"{patient.name} {patient.birth_date}")
    return " ".join(of_header.casefold().split()) or recording.patient_id
