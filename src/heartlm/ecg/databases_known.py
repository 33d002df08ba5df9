"""What reading a published database needs to know and its files do not say.

Which annotator's file holds the beats and which the rhythms, whether anybody classified the beats, the rate of records
without a header, and which recordings are of one patient, also where a database gives out those of mitdb again. Of
edb no such mapping is known, so that each of its recordings counts as a patient. All of it is in
`databases_known.json`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from heartlm.ecg.splits import de_chazal_split
from heartlm.files import read_json


@dataclass(frozen=True)
class KnownDatabase:
    """How to read one database.

    Attributes:
        beat_annotators: extensions of the files with beats; the first that a record has is read.
        rhythm_annotators: the same for rhythm changes.
        beats_labelled: whether the beats' codes were assigned by an annotator, or all say N.
        unlabelled_annotators: those of `beat_annotators` whose codes were not reviewed, where others' are labels.
        whole_rhythm: the rhythm of all recordings, where no file tells one.
        bracketed_rhythm: the rhythm between `[` and `]`; None where `+` annotations tell it already.
        rate_hz: rate of records without a header; None where every record has one.
        uncalibrated: headers state gain 0, so that 200 adu/mV is assumed, as the WFDB library does.
        patient_in_comment: pattern whose first group is the patient, searched in the header's comments, case ignored.
        patient_in_name: the same, for the begin of the record's name.
        patients: patients of records that share one; a record not named is its own patient. challenge-2017 names no
            patients, but gives out the same samples twice.
        mitdb_record_in_name: pattern for the record's name, whose first group is the number mitdb would give a record
            that is one of its own, given out again; a number that mitdb does not have says that it is another.
        aliases: other names of the database's folder.
    """

    beat_annotators: tuple[str, ...] = ("atr",)
    rhythm_annotators: tuple[str, ...] = ("atr",)
    beats_labelled: bool = True
    unlabelled_annotators: tuple[str, ...] = ()
    whole_rhythm: str | None = None
    bracketed_rhythm: str | None = None
    rate_hz: float | None = None
    uncalibrated: bool = False
    patient_in_comment: str | None = None
    patient_in_name: str | None = None
    patients: dict[str, str] = field(default_factory=dict)
    mitdb_record_in_name: str | None = None
    aliases: tuple[str, ...] = ()


_DETECTORS = ("qrsc", "qrs", "wqrs", "ecg")

UNKNOWN = KnownDatabase(beat_annotators=("atr", *_DETECTORS), unlabelled_annotators=_DETECTORS)
"""A folder that no catalogue knows: reviewed `atr` annotations where there are any, else detected beats."""

KNOWN_DATABASES = read_json(Path(__file__).with_suffix(".json"), dict[str, KnownDatabase])

_NAME_OF = {alias: name for name, known in KNOWN_DATABASES.items() for alias in known.aliases}


def same_recording_in_mitdb(database: str, record_id: str) -> str | None:
    """The mitdb record that is the same recording, perhaps cut or with noise added; None where there is none.

    mitdb's own records are themselves; `sel100` of qtdb is `100`, and `118e06` of nstdb is `118`.
    """
    pattern = KNOWN_DATABASES.get(database, UNKNOWN).mitdb_record_in_name
    found = re.match(pattern, record_id) if pattern is not None else None
    return found[1] if found and de_chazal_split(found[1]) is not None else None


def database_name(folder_name: str) -> str:
    """The catalogue's name of a folder: lower case, PhysioNet's trailing version taken off, aliases resolved."""
    name = re.sub(r"-\d+(\.\d+)+$", "", folder_name.lower())
    return "challenge-2017" if "challenge-2017" in name else _NAME_OF.get(name, name)
