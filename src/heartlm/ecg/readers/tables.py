"""What some databases keep outside of annotation files: a rhythm for a whole recording, and whose it is.

The CinC 2017 challenge lists a label for each record in a table, LUDB writes the rhythm into the header's comments, and
PTB-XL's table names the patient of each record.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from heartlm.ecg.readers.annotation_file import canonical_rhythm
from heartlm.ecg.readers.foreign import LIST_BYTES, is_there, one_line, read_bytes
from heartlm.ecg.recording import Recording


class StatedRhythm(NamedTuple):
    """A rhythm's name and the file that states it."""

    name: str
    source: str


def whole_record_rhythm(database: str, folder: Path, recording: Recording) -> StatedRhythm | None:
    """The rhythm that `database` states for all of `recording`; None where it states none."""
    reader = _READERS.get(database)
    return None if reader is None else reader(folder, recording)


def stated_patients(database: str, folder: Path) -> dict[str, str]:
    """Record to patient as a table in `folder` says; empty where the database has no such table."""
    table = folder / "ptbxl_database.csv"
    if database != "ptb-xl" or not is_there(table):
        return {}
    with one_line(table, "a table of recordings with the columns filename_lr, filename_hr and patient_id"):
        return {
            Path(row[column]).name: row["patient_id"].removesuffix(".0")
            for row in csv.DictReader(_lines(table))
            for column in ("filename_lr", "filename_hr")
        }


def _challenge_2017(folder: Path, recording: Recording) -> StatedRhythm | None:
    for name in ("REFERENCE-v3-train.csv", "REFERENCE-v3.csv", "REFERENCE.csv"):
        path = folder / name
        if is_there(path):
            label = _reference_table(path).get(recording.record_id)
            return None if label is None else StatedRhythm(canonical_rhythm(label), name)
    return None


@lru_cache(maxsize=4)
def _reference_table(path: Path) -> dict[str, str]:
    with one_line(path, "a table of recordings and labels"):
        return {row[0]: row[1] for row in csv.reader(_lines(path)) if len(row) >= 2}


def _lines(path: Path) -> StringIO:
    return StringIO(read_bytes(path, LIST_BYTES).decode("utf-8", "replace"), newline="")


def _ludb(folder: Path, recording: Recording) -> StatedRhythm | None:
    for comment in recording.comments:
        field, _, text = comment.partition(":")
        if field.strip().lower() == "rhythm":
            return StatedRhythm(_named_in_words(text), recording.path.name)
    return None


def _named_in_words(text: str) -> str:
    words = text.lower()
    for phrase, name in (("atrial fibrillation", "AFIB"), ("atrial flutter", "AFL"), ("sinus", "N")):
        if phrase in words:
            return name
    return "OTHER"


def _nstdb(folder: Path, recording: Recording) -> StatedRhythm | None:
    """The noise of electrodes that see no heart; the recordings of mitdb with noise added have annotations."""
    return StatedRhythm("NOISE", recording.path.name) if recording.record_id in ("bw", "em", "ma") else None


_READERS: dict[str, Callable[[Path, Recording], StatedRhythm | None]] = {
    "challenge-2017": _challenge_2017,
    "ludb": _ludb,
    "nstdb": _nstdb,
}
