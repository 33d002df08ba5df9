"""Properties of published databases that their files do not state.

They are the annotation files with beats and with rhythms, whether the beats were classified, the rate of records
without a header, and the recordings that share a patient, including recordings republished from mitdb. For edb no such
mapping is known, so each of its recordings counts as one patient. The file `databases_known.json` holds all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from heartlm.databases.splits import de_chazal_split
from heartlm.storage.reading import read_json


@dataclass(frozen=True)
class KnownDatabase:
    """Properties needed to read one database.

    Attributes:
        beat_annotators: extensions of annotation files with beats. The first one that a record has is read.
        rhythm_annotators: extensions of annotation files with rhythm changes. The first one that a record has is read.
        beats_labelled: whether an annotator assigned the beat codes; false if all beats are marked N.
        unlabelled_annotators: members of `beat_annotators` with unreviewed codes; the codes of the others are labels.
        whole_rhythm: rhythm of all recordings if no file states one.
        bracketed_rhythm: rhythm between `[` and `]`; None if `+` annotations already state it.
        rate_hz: sampling rate in Hz of records without a header; None if every record has a header.
        uncalibrated: whether headers state gain 0. The reader then assumes 200 adu/mV, like the WFDB library.
        patient_in_comment: pattern to search in the header's comments, ignoring case. Its first group is the patient.
        patient_in_name: pattern to match at the start of the record name. Its first group is the patient.
        patients: patient of each record that shares one; any other record is its own patient. challenge-2017 states no
            patients, but contains some samples twice.
        mitdb_record_in_name: pattern to match at the start of the record name. Its first group is the record number in
            mitdb if the recording was republished from mitdb. A number that mitdb lacks means another recording.
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

UNKNOWN = KnownDatabase(
    beat_annotators=("atr", "ann", *_DETECTORS),
    rhythm_annotators=("atr", *_DETECTORS),
    unlabelled_annotators=_DETECTORS,
)
"""Properties of a folder that is not in the catalogue: reviewed `atr` annotations if present, else those of ISHNE
(`ann`), else detected beats."""

KNOWN_DATABASES = read_json(Path(__file__).with_suffix(".json"), dict[str, KnownDatabase])

_NAME_OF = {alias: name for name, known in KNOWN_DATABASES.items() for alias in known.aliases}


def same_recording_in_mitdb(database: str, record_id: str) -> str | None:
    """Return the mitdb record of the same recording, possibly shortened or with added noise; None if there is none.

    A record of mitdb maps to itself, `sel100` of qtdb to `100`, and `118e06` of nstdb to `118`.
    """
    pattern = KNOWN_DATABASES.get(database, UNKNOWN).mitdb_record_in_name
    match = re.match(pattern, record_id) if pattern is not None else None
    return match[1] if match and de_chazal_split(match[1]) is not None else None


def database_name(folder_name: str) -> str:
    """Return the catalogue name of a folder: in lower case, without PhysioNet's version suffix, aliases resolved."""
    name = re.sub(r"-\d+(\.\d+)+$", "", folder_name.lower())
    return "challenge-2017" if "challenge-2017" in name else _NAME_OF.get(name, name)
