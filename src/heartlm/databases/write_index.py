"""Write an index: the headers of all recordings of a source in one Parquet file, for choosing, splitting and sampling.

listing ─► records ─► headers ─► rows ─► row groups of a Parquet file
                                          └─ where, sample ─► another one
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.databases import discovery
from heartlm.databases.database import Database
from heartlm.databases.discovery import RecordFiles, printable, records_by_folder
from heartlm.databases.index import METADATA, ROWS, SEPARATOR, VERSION, about_index, is_index, readable, schema
from heartlm.databases.statements import stated_labels
from heartlm.databases.where import parse_where
from heartlm.errors import HeartlmError
from heartlm.sources import store
from heartlm.storage.atomic import atomic_file
from heartlm.storage.foreign import RemotePath, is_there, one_line, read_ahead
from heartlm.system.progress import track


@dataclass(frozen=True)
class Indexed:
    """What was written.

    Attributes:
        num_records: number of recordings in the index.
        num_left_out: number of recordings whose header cannot be read.
    """

    num_records: int
    num_left_out: int


def write_index(
    source: Path,
    out: Path,
    *,
    where: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    left_out: Callable[[str], object] = lambda line: None,
) -> Indexed:
    """Write an index of the recordings of a folder, or of those of another index.

    Args:
        source: folder or address of a folder, or an index.
        out: Parquet file to write.
        where: condition on the rows, see `heartlm.databases.where`.
        sample: number of recordings to draw of those that fulfil it; fewer if there are fewer.
        seed: seed of the drawing.
        left_out: is called with a line for each recording that is left out.

    Raises:
        HeartlmError: there is no such source, it has no recording, `where` is malformed, none fulfils it, or the file
            cannot be written.
    """
    import pyarrow.parquet as pq

    if sample is not None and sample < 1:
        raise HeartlmError(f"sample: {sample} found, at least 1 expected")
    condition = None if not where else parse_where(where, schema())
    num_left_out = 0

    def note(line: str) -> None:
        nonlocal num_left_out
        num_left_out += 1
        left_out(line)

    tables, about = _of_index(source) if is_index(source) else _of_folder(source, note)
    with atomic_file(out, "wb") as stream:
        names, num_records = _Names(), 0
        with pq.ParquetWriter(stream, schema(), compression="zstd") as writer:
            for table in tables:
                kept = table if condition is None else table.filter(condition)
                names.add(kept["record"].to_pylist())
                num_records += kept.num_rows
                if kept.num_rows:
                    writer.write_table(kept)
            are_short = names.are_unique() and num_records + num_left_out <= discovery.HELD
            about = {"unique_names": are_short} | about  # of the whole source: a choice keeps the names
            writer.add_key_value_metadata({METADATA.decode(): json.dumps(about)})
        if not num_records:
            what = "has no recording that can be read" if condition is None else f"no recording with {where}"
            raise HeartlmError(f"{source}: {what}; {num_left_out} were left out")
    if sample is not None and sample < num_records:
        chosen = np.sort(np.random.default_rng(seed).choice(num_records, sample, replace=False))
        _keep(out, chosen, about)
        num_records = sample
    return Indexed(num_records, num_left_out)


def _keep(path: Path, rows: NDArray[np.int64], about: dict[str, Any]) -> None:
    """Write the index again with some of its rows, ascending."""
    import pyarrow.parquet as pq

    with (
        pq.ParquetFile(path) as file,
        atomic_file(path, "wb") as stream,
        pq.ParquetWriter(stream, schema(), compression="zstd") as writer,
    ):
        first = 0
        for batch in file.iter_batches(ROWS):
            inside = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + batch.num_rows)] - first
            first += batch.num_rows
            if len(inside):
                writer.write_batch(batch.take(inside))
        writer.add_key_value_metadata({METADATA.decode(): json.dumps(about)})


class _Names:
    """The names of records so far, as 64-bit digests: 80 MB for ten million."""

    def __init__(self) -> None:
        self._digests = list[NDArray[np.int64]]()

    def add(self, records: Sequence[str]) -> None:
        self._digests.append(np.fromiter((hash(each.rpartition("/")[2]) for each in records), np.int64, len(records)))

    def are_unique(self) -> bool:
        digests = np.concatenate(self._digests) if self._digests else np.empty(0, np.int64)
        return len(np.unique(digests)) == len(digests)


def _of_index(source: Path) -> tuple[Iterator[Any], dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = about_index(source)
    assert about is not None

    def tables() -> Iterator[Any]:
        with one_line(source, "an index of recordings"), pq.ParquetFile(readable(source)) as file:
            for batch in file.iter_batches(ROWS):
                yield pa.Table.from_batches([batch], schema())

    return tables(), about


def _of_folder(source: Path, left_out: Callable[[str], object]) -> tuple[Iterator[Any], dict[str, Any]]:
    import pyarrow as pa

    if not source.is_dir():
        raise HeartlmError(f"{source}: no such folder or index; give a folder of recordings")
    source = source.absolute()
    database = Database(source, files={}, repaired="accept")
    rows_of = _row_of(database)

    def tables() -> Iterator[Any]:
        rows = list[dict[str, Any]]()
        found = read_ahead(records_by_folder(source), lambda files: files.signal)
        for files in track(found, None, "index"):
            try:
                rows.append(rows_of(files))
            except HeartlmError as error:
                left_out(f"{files.stem.relative_to(source).as_posix()}: {error}")
            if len(rows) == ROWS:
                yield pa.Table.from_pylist(rows, schema())
                rows = []
        yield pa.Table.from_pylist(rows, schema())

    return tables(), {"version": VERSION, "source": str(source)}


def _row_of(database: Database) -> Callable[[RecordFiles], dict[str, Any]]:
    """Return a function that reads the row of a record of a database."""
    folder = database.folder

    def row(files: RecordFiles) -> dict[str, Any]:
        record_id = printable(files.stem.name)
        one = database.with_files({record_id: files})
        recording = one.recording(record_id)
        start, age = recording.start, recording.age
        paths = {path for path in one.signal_paths(record_id) if is_there(path)} | {*one.annotation_paths(record_id)}
        return {
            "record": printable(files.stem.relative_to(folder).as_posix()),
            "path": files.signal and files.signal.relative_to(folder).as_posix(),
            "rate_hz": recording.rate_hz,
            "num_leads": recording.num_leads,
            "leads": SEPARATOR.join(recording.lead_names),
            "num_samples": recording.num_samples,
            "duration_s": recording.duration_s,
            "start": start if isinstance(start, datetime) else None,
            "patient": recording.patient_id,
            "age": age,
            "sex": recording.patient.sex or None,
            "split": one.split_of(record_id),
            "labels": SEPARATOR.join(stated_labels(one, recording)) or None,
            "files": [_file(path, folder) for path in sorted(paths)] if isinstance(folder, RemotePath) else None,
        }

    return row


def _file(path: Path, folder: Path) -> dict[str, Any]:
    found = store.existing(path)
    return {"name": path.relative_to(folder).as_posix(), "size": found.size, "version": found.version}
