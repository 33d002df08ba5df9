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

from heartlm.ecg.leads import is_ecg_name, is_usual_name
from heartlm.ecg.recording import Annotations, Patient, Recording
from heartlm.errors import HeartlmError

# Dates move back by up to this number of days. Higher ages identify (45 CFR 164.514) and are dropped.
_MOST_DAYS, _OLDEST = 3650, 89


# Units of signals of a bedside, a sleep laboratory or a wearable device; another unit is a text that somebody typed.
_UNITS = """
    mv uv µv μv nv v mmhg kpa hpa cmh2o bpm 1/min /min % percent °c degc c k l/min l/s ml l g mg m/s^2 m/s2 m/s² dps
    deg/s rad/s deg ° ut µt s ms us hz ohm ohms kohm µs nu nd pm adu au a.u. db lux na ua ma
"""


def without_texts(recording: Recording) -> tuple[Recording, list[str]]:
    """Return a recording without texts that may identify the patient, and what was dropped, one line each.

    These are patient data, comments, notes, repairs (which quote the file), the names of patient, database and
    annotation file, and names and units of leads that are not usual ones.
    """
    leads, units, dropped = list(recording.lead_names), list(recording.units), list[str]()
    for place, name in enumerate(recording.lead_names):
        if not is_usual_name(name):
            leads[place] = f"{'ECG' if is_ecg_name(name) else 'lead'} {place + 1}"
            dropped.append(f"name of {leads[place]}")
        if place < len(units) and units[place].lower() not in _UNITS.split():
            units[place] = "NU"
            dropped.append(f"unit of {leads[place]}")
    number = len(recording.repairs)
    comments, repairs = len(recording.comments), (f"{number} repair{'s' * (number > 1)}, not quoted",) * (number > 0)
    dropped += [f"{comments} comments"] if comments else []
    cart = recording.cart and recording.cart.anonymous()
    if recording.cart and recording.cart != cart:
        dropped.append("statements of the machine, and who confirmed them")

    def without_notes(_: Recording) -> Annotations | None:  # of the original, whose comments may state its rhythm
        try:
            annotations = recording.annotations
        except HeartlmError:  # names the file
            raise HeartlmError("a file of annotations is not readable") from None
        return annotations and replace(annotations, notes=(), source="", faults=())

    hidden = replace(
        recording,
        patient_id="",
        database="",
        patient=Patient(),
        comments=(),
        lead_names=tuple(leads),
        units=tuple(units),
        repairs=repairs,
        cart=cart,
        read_annotations=without_notes,
    )
    return hidden, dropped


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
        hidden, dropped = without_texts(recording)
        dropped += [
            text
            for text, is_there in (
                ("name", patient.name),
                ("identifier", patient.identifier),
                ("birth date", patient.birth_date),
                (f"age above {_OLDEST}", age is not None and age > _OLDEST),
            )
            if is_there
        ]
        if isinstance(start, datetime):
            days = 1 + int(self.code("days", identity, 16), 16) % _MOST_DAYS
            start = start - timedelta(days=days) if start.year > _MOST_DAYS // 365 + 1 else start.time()
            dropped.append("date moved")
        if recording.annotations is not None and recording.annotations.notes:
            dropped.append(f"{len(recording.annotations.notes)} notes")
        record, who = self.code("record", recording.record_id), self.code("patient", identity)
        patient = Patient(identifier=who, sex=patient.sex, age=kept_age)
        return replace(hidden, record_id=record, patient_id=who, patient=patient, start=start), dropped


def _identity(recording: Recording) -> str:
    """Return what is the same in all recordings of a patient: as the database states it, else as the header does."""
    patient = recording.patient
    if recording.patient_id.split("/", 1)[-1] != recording.record_id:
        return recording.patient_id
    of_header = patient.identifier or (patient.name and f"{patient.name} {patient.birth_date}")
    return " ".join(of_header.casefold().split()) or recording.patient_id
