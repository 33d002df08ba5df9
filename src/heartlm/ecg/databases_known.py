"""What reading a published database needs to know and its files do not say.

Which annotator's file holds the beats and which the rhythms, whether anybody classified the beats, the rate of records
without a header, and which recordings are of one patient, also where a database gives out those of mitdb again. Of
edb no such mapping is known, so that each of its recordings counts as a patient.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from heartlm.ecg.splits import de_chazal_split


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
        patient_in_comment: pattern whose first group is the patient, searched in the header's comments.
        patient_of: patient from the record's name, where names tell it.
        patients: patients of records that share one; a record not named is its own patient.
        mitdb_record_of: the number mitdb would give a record that is one of its own, given out again; a number that
            mitdb does not have says that it is another.
    """

    beat_annotators: tuple[str, ...] = ("atr",)
    rhythm_annotators: tuple[str, ...] = ("atr",)
    beats_labelled: bool = True
    unlabelled_annotators: tuple[str, ...] = ()
    whole_rhythm: str | None = None
    bracketed_rhythm: str | None = None
    rate_hz: float | None = None
    uncalibrated: bool = False
    patient_in_comment: re.Pattern[str] | None = None
    patient_of: Callable[[str], str] | None = None
    patients: dict[str, str] = field(default_factory=dict)
    mitdb_record_of: Callable[[str], str] | None = None


_DETECTORS = ("qrsc", "qrs", "wqrs", "ecg")

UNKNOWN = KnownDatabase(beat_annotators=("atr", *_DETECTORS), unlabelled_annotators=_DETECTORS)
"""A folder that no catalogue knows: reviewed `atr` annotations where there are any, else detected beats."""

KNOWN_DATABASES: dict[str, KnownDatabase] = {
    "mitdb": KnownDatabase(patients={"202": "201"}, mitdb_record_of=lambda record_id: record_id),
    "afdb": KnownDatabase(beat_annotators=("qrsc", "qrs"), beats_labelled=False, rate_hz=250.0, uncalibrated=True),
    "ltafdb": KnownDatabase(),
    "svdb": KnownDatabase(uncalibrated=True),
    "incartdb": KnownDatabase(patient_in_comment=re.compile(r"patient\s+(\d+)", re.IGNORECASE)),
    "edb": KnownDatabase(),
    "ltdb": KnownDatabase(uncalibrated=True),
    "ltstdb": KnownDatabase(patient_of=lambda record_id: record_id[:5]),
    "nsrdb": KnownDatabase(uncalibrated=True, rhythm_annotators=(), whole_rhythm="N"),
    "nsr2db": KnownDatabase(beat_annotators=("ecg",), rhythm_annotators=(), rate_hz=128.0, whole_rhythm="N"),
    "chfdb": KnownDatabase(beat_annotators=("ecg",), rhythm_annotators=(), beats_labelled=False, uncalibrated=True),
    "chf2db": KnownDatabase(beat_annotators=("ecg",), rhythm_annotators=(), rate_hz=128.0),
    "vfdb": KnownDatabase(beat_annotators=()),
    "cudb": KnownDatabase(beats_labelled=False, bracketed_rhythm="VFIB"),
    "qtdb": KnownDatabase(mitdb_record_of=lambda record_id: record_id.removeprefix("sel")),
    "sddb": KnownDatabase(beat_annotators=("atr", "ari"), unlabelled_annotators=("ari",)),
    "nstdb": KnownDatabase(uncalibrated=True, mitdb_record_of=lambda record_id: record_id[:3]),
    "vitaldb-arrhythmia": KnownDatabase(beat_annotators=("csv",), rhythm_annotators=("csv",)),
    "ludb": KnownDatabase(beat_annotators=("ii",), rhythm_annotators=(), beats_labelled=False),
    "challenge-2017": KnownDatabase(
        beat_annotators=(),
        rhythm_annotators=(),
        beats_labelled=False,
        patients={"A01176": "A00227", "A03123": "A02656"},  # the same samples twice; no patients are named
    ),
    "ptb-xl": KnownDatabase(
        beat_annotators=(),
        rhythm_annotators=(),
        beats_labelled=False,
        patient_of=lambda record_id: record_id.split("_")[0],
    ),
    "icentia11k-continuous-ecg": KnownDatabase(patient_of=lambda record_id: record_id.split("_")[0]),
}

_ALIASES = {
    "cinc2017": "challenge-2017",
    "training2017": "challenge-2017",
    "cinc-2017": "challenge-2017",
    "ptbxl": "ptb-xl",
    "vitaldb": "vitaldb-arrhythmia",
    "icentia11k": "icentia11k-continuous-ecg",
    "mit-bih-arrhythmia-database": "mitdb",
    "mit-bih-atrial-fibrillation-database": "afdb",
}


def same_recording_in_mitdb(database: str, record_id: str) -> str | None:
    """The mitdb record that is the same recording, perhaps cut or with noise added; None where there is none.

    mitdb's own records are themselves; `sel100` of qtdb is `100`, and `118e06` of nstdb is `118`.
    """
    known = KNOWN_DATABASES.get(database)
    if known is None or known.mitdb_record_of is None:
        return None
    number = known.mitdb_record_of(record_id)
    return number if de_chazal_split(number) is not None else None


def database_name(folder_name: str) -> str:
    """The catalogue's name of a folder: lower case, PhysioNet's trailing version taken off, aliases resolved."""
    name = re.sub(r"-\d+(\.\d+)+$", "", folder_name.lower())
    if "challenge-2017" in name:
        return "challenge-2017"
    return _ALIASES.get(name, name)
