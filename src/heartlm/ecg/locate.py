"""Locate a recording by its path as in WFDB programs: `mitdb/100`, with or without an extension."""

from __future__ import annotations

import difflib
from pathlib import Path

from heartlm.ecg.database import Database, open_database
from heartlm.errors import HeartlmError

_LEVELS_UP = 4


def locate(path: Path) -> tuple[Database, str]:
    """Return the database that contains `path`, and the record id.

    The database is the nearest parent folder with RECORDS or `database.json`, so `ludb/data/1` belongs to `ludb`. If
    there is no such folder, the database is the folder of the recording.

    Raises:
        HeartlmError: there is no such recording. The message suggests similar names.
    """
    path = Path(path).absolute()
    stems = {path, path.with_suffix("")}
    marks = "RECORDS", "database.json"
    marked = [folder for folder in path.parents[:_LEVELS_UP] if any((folder / mark).is_file() for mark in marks)]
    known: dict[str, None] = {}
    for folder in dict.fromkeys((*marked[:1], path.parent)):
        if not folder.is_dir():
            continue
        database = open_database(folder)
        for record_id in database.record_ids:
            if database.files(record_id).stem in stems:
                return database, record_id
        known |= dict.fromkeys(database.record_ids)
    near = difflib.get_close_matches(path.stem, known, n=3, cutoff=0.3) or list(known)[:3]
    offer = f"; there are {len(known)}, for example {', '.join(near)}" if known else ": no such folder"
    raise HeartlmError(f"{path.parent if not known else path}: no such recording{offer}")
