"""Statements about whole recordings: from a table of the user, the table of PTB-XL, or SNOMED CT codes in comments."""

from __future__ import annotations

import csv
import re
from pathlib import Path, PurePath

from heartlm.databases.database import Database
from heartlm.databases.tables import PTB_XL, ptb_xl_codes, table_lines, whole_record_rhythm
from heartlm.ecg.recording import Recording
from heartlm.ecg.statements import OF_SNOMED, STATEMENTS, SUPERCLASSES, with_superclasses
from heartlm.errors import HeartlmError
from heartlm.storage.foreign import is_there, one_line
from heartlm.system.progress import track

StatementsByRecord = dict[str, dict[str, bool]]
"""Whether each statement is present, of each recording by its name; a statement that is missing is not known."""

_CODES = re.compile(r"\s*dx\s*:\s*([\d,\s]*)", re.IGNORECASE)
_VALUES = {"1": True, "1.0": True, "true": True, "yes": True, "0": False, "0.0": False, "false": False, "no": False}


def statements_of(database: Database, table: Path | None = None) -> StatementsByRecord:
    """Return what is stated about the recordings of `database`; those about which nothing is stated are missing.

    In PTB-XL a code of SCP-ECG that is not in the row of a recording is absent. Databases of the PhysioNet/CinC
    challenges each use some codes only, so a statement is absent where it is not stated and another recording of the
    folder has it.

    Args:
        database: the database.
        table: CSV with a row a recording: its name, then a column for each statement: 1, 0, or empty if not known.

    Raises:
        HeartlmError: a table is unreadable, or has no row for any recording.
    """
    if table is not None:
        return _of_table(database, table)
    if is_there(database.folder / PTB_XL):
        known = [name for name in STATEMENTS if name == "NORM" or name not in SUPERCLASSES]  # NORM is a code too
        codes = ptb_xl_codes(database.folder / PTB_XL)
        return {
            name: with_superclasses({each: each in codes[stem] for each in known})
            for name in database.record_ids
            if (stem := PurePath(name).name) in codes
        }
    return _of_comments(database)


def stated_labels(database: Database, recording: Recording) -> list[str]:
    """Return the statements about a recording that its header or the table of PTB-XL has, or its whole rhythm."""
    if is_there(table := database.folder / PTB_XL):
        return sorted(ptb_xl_codes(table).get(recording.path.stem, ()))
    if (codes := _codes_of(recording)) is not None:
        return sorted(codes)
    rhythm = whole_record_rhythm(database.name, database.folder, recording)
    return [] if rhythm is None else [rhythm[0]]


def _codes_of(recording: Recording) -> set[str] | None:
    """Return the statements that the comments of a header have as codes of SNOMED CT; None if they have no codes."""
    for comment in recording.comments:
        if match := _CODES.match(comment):
            codes = (int(code) for code in re.findall(r"\d+", match[1]))
            return {OF_SNOMED[code] for code in codes if code in OF_SNOMED}
    return None


def _of_comments(database: Database) -> StatementsByRecord:
    found: dict[str, set[str]] = {}
    for name in track(database.record_ids, len(database.record_ids), "read statements"):
        signal = database.files(name).signal
        if signal is None or signal.suffix != ".hea":
            continue
        if (codes := _codes_of(database.recording(name))) is not None:
            found[name] = codes
    known = set[str]().union(*found.values())
    return {name: {each: each in stated for each in STATEMENTS if each in known} for name, stated in found.items()}


def _of_table(database: Database, path: Path) -> StatementsByRecord:
    with one_line(path, "a table with the name of a recording and a column for each statement"):
        rows = list(csv.reader(table_lines(path)))
    if not rows or len(rows[0]) < 2:
        raise HeartlmError(f"{path}: a first row of names found missing: record, then one statement a column")
    by_name: StatementsByRecord = {}
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(rows[0]):
            raise HeartlmError(f"{path}: row {number} has {len(row)} cells, {len(rows[0])} expected")
        stated = {}
        for name, cell in zip(rows[0][1:], row[1:], strict=True):
            value = cell.strip().lower()
            if value and value not in _VALUES:
                raise HeartlmError(f"{path}: row {number}, {name}: {cell!r} found; 1, 0 or empty (not known) expected")
            if value:
                stated[name.strip()] = _VALUES[value]
        by_name[row[0].strip()] = stated
    stems = {PurePath(name).stem: name for name in by_name}
    found = {
        name: by_name[key]
        for name in database.record_ids
        if (key := name if name in by_name else stems.get(PurePath(name).name, "")) in by_name
    }
    if not found:
        raise HeartlmError(
            f"{path}: no row is of a recording of {database.folder}: the first column must have names such as "
            f"{', '.join(database.record_ids[:3])}"
        )
    return found
