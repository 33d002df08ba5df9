"""Metadata that some databases store outside annotation files: whole-recording rhythms, and patients.

The CinC 2017 challenge has a table with a label for each record. LUDB states the rhythm in the header's comments.
PTB-XL has a table with the patient and the statements of each record.
"""

from __future__ import annotations

import csv
from ast import literal_eval
from functools import lru_cache
from io import StringIO
from pathlib import Path

from heartlm.ecg.recording import Recording
from heartlm.formats.annotation_file import canonical_rhythm
from heartlm.storage.foreign import LIST_BYTES, is_there, one_line, read_bytes

PTB_XL = "ptbxl_database.csv"


def whole_record_rhythm(database: str, folder: Path, recording: Recording) -> tuple[str, str] | None:
    """Return the rhythm that `database` states for the whole `recording`, and the source file; None if not stated."""
    if database == "challenge-2017":
        tables = ("REFERENCE-v3-train.csv", "REFERENCE-v3.csv", "REFERENCE.csv")
        table = next((name for name in tables if is_there(folder / name)), None)
        label = _reference_table(folder / table).get(recording.record_id) if table else None
        return (canonical_rhythm(label), table) if table and label is not None else None
    if database == "ludb":
        for comment in recording.comments:
            field, _, text = comment.lower().partition(":")
            if field.strip() == "rhythm":
                names = (("atrial fibrillation", "AFIB"), ("atrial flutter", "AFL"), ("sinus", "N"))
                return next((name for phrase, name in names if phrase in text), "OTHER"), recording.path.name
    if database == "ptb-xl" and is_there(folder / PTB_XL):
        codes = ptb_xl_codes(folder / PTB_XL).get(recording.path.stem)
        return None if codes is None else (_rhythm_of(codes), PTB_XL)
    if database == "nstdb" and recording.record_id in ("bw", "em", "ma"):
        return "NOISE", recording.path.name  # electrode noise without an ECG; noisy mitdb records have annotations
    return None


def stated_patients(database: str, folder: Path) -> dict[str, str]:
    """Return the patient of each record from a table in `folder`; empty if the database has no such table."""
    table = folder / PTB_XL
    if database != "ptb-xl" or not is_there(table):
        return {}
    with one_line(table, "a table of recordings with the columns filename_lr, filename_hr and patient_id"):
        return {
            Path(row[column]).name: row["patient_id"].removesuffix(".0")
            for row in csv.DictReader(table_lines(table))
            for column in ("filename_lr", "filename_hr")
        }


def _rhythm_of(codes: frozenset[str]) -> str:
    """Return the rhythm by SCP codes: sinus rhythms without ectopic beats are N."""
    if codes & {"AFIB", "AFLT", "PACE"}:
        return "AFIB" if "AFIB" in codes else "AFL" if "AFLT" in codes else "P"
    ectopic = {"PVC", "PAC", "PRC(S)", "BIGU", "TRIGU", "SVARR", "SVTAC", "PSVT", "WPW"}
    return "N" if codes & {"SR", "SBRAD", "STACH", "SARRH"} and not codes & ectopic else "OTHER"


@lru_cache(maxsize=4)
def ptb_xl_codes(path: Path) -> dict[str, frozenset[str]]:
    """Return the SCP codes of each record."""
    with one_line(path, "a table of recordings with the columns filename_lr, filename_hr and scp_codes"):
        return {
            Path(row[column]).name: frozenset(literal_eval(row["scp_codes"]))
            for row in csv.DictReader(table_lines(path))
            if row.get("scp_codes")
            for column in ("filename_lr", "filename_hr")
        }


@lru_cache(maxsize=4)
def _reference_table(path: Path) -> dict[str, str]:
    with one_line(path, "a table of recordings and labels"):
        return {row[0]: row[1] for row in csv.reader(table_lines(path)) if len(row) >= 2}


def table_lines(path: Path) -> StringIO:
    """Return the lines of a small text file."""
    return StringIO(read_bytes(path, LIST_BYTES).decode("utf-8", "replace"), newline="")
