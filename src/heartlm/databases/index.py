"""An index: the headers of all recordings of a source in one Parquet file, which `write_index` writes.

An index stands for the folder it was made of: every command that takes a folder takes it, with the recordings that it
has. Of an address it also has sizes and versions of the files, so nothing is listed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from heartlm.databases.discovery import RecordFiles, beginning_of
from heartlm.databases.where import parse_where
from heartlm.errors import HeartlmError
from heartlm.sources import store
from heartlm.sources.address import SourcePath, source_path
from heartlm.storage.foreign import RemotePath, first_bytes, one_line

METADATA = b"heartlm.index"
"""Key of the metadata of an index: JSON with its version, its source, and whether names of records are unique."""
VERSION = 1
VARIABLE = "HEARTLM_WHERE"
"""Variable of the environment with the condition of the command, see `heartlm.databases.where`."""

ROWS = 4096
"""Rows of a row group."""
_COLUMNS = ["record", "path", "files"]
SEPARATOR = "; "
"""Between the values of a column with several."""


def schema() -> Any:
    """Return the columns of an index, as of Arrow."""
    import pyarrow as pa

    file = pa.struct([("name", pa.string()), ("size", pa.int64()), ("version", pa.string())])
    return pa.schema(
        [
            ("record", pa.string()),
            ("path", pa.string()),
            ("rate_hz", pa.float64()),
            ("num_leads", pa.int32()),
            ("leads", pa.string()),
            ("num_samples", pa.int64()),
            ("duration_s", pa.float64()),
            ("start", pa.timestamp("us")),
            ("patient", pa.string()),
            ("age", pa.int32()),
            ("sex", pa.string()),
            ("split", pa.string()),
            ("labels", pa.string()),
            ("files", pa.list_(file)),
        ]
    )


def is_index(path: Path) -> bool:
    """Return whether a file is an index."""
    return path.suffix == ".parquet" and (first_bytes(path, 4) == b"PAR1") and about_index(path) is not None


def holds_recordings(path: Path) -> bool:
    """Return whether a path has several recordings: it is a folder or an index."""
    return path.is_dir() or is_index(path)


def readable(path: Path) -> Any:
    """Return what Arrow opens for a path, also of an address."""
    import pyarrow as pa

    return pa.PythonFile(path.stream(), "r") if isinstance(path, RemotePath) else path


def about_index(path: Path) -> dict[str, Any] | None:
    """Return the metadata of an index; None for another file.

    Raises:
        HeartlmError: the index is of another version, or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(pa.ArrowException, OSError):
        text = (pq.read_metadata(readable(path)).metadata or {}).get(METADATA)
        if text is None:
            return None
        about: dict[str, Any] = {}
        with one_line(path, "an index of recordings"):
            about = json.loads(text)
        if about.get("version") != VERSION:
            raise HeartlmError(f"{path}: index of version {about.get('version')}, {VERSION} expected; make it again")
        return about
    return None


def stream_index(path: Path) -> tuple[Path, Iterator[tuple[str, RecordFiles]]]:
    """Return the source of an index, and id and files of its records that fulfil the condition of the command.

    They are in the order of their ids, more than `HELD` in that of the index, which is read while they are yielded.

    Raises:
        HeartlmError: the file cannot be read, the condition is malformed, or no record fulfils it.
    """
    folder, is_short, tables = _chosen(path)

    def records() -> Iterator[tuple[str, RecordFiles]]:
        for table in tables:
            for row in table.to_pylist():
                yield row["record"].rpartition("/")[2] if is_short else row["record"], _files_of(folder, row)

    def in_order() -> Iterator[tuple[str, RecordFiles]]:
        each = records()
        first, are_all = beginning_of(each)
        yield from sorted(first) if are_all else chain(first, each)

    return folder, in_order()


def _chosen(path: Path) -> tuple[Path, bool, Iterator[Any]]:
    """Return the source of an index, whether its records have short names, and tables of the rows that are chosen."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = about_index(path)
    if about is None:
        raise HeartlmError(f"{path}: no index of recordings; make one with  heartlm data index")
    where = the_where()
    condition = parse_where(where, schema()) if where else None

    def tables() -> Iterator[Any]:
        num_rows = 0
        with one_line(path, "an index of recordings"), pq.ParquetFile(readable(path)) as file:
            for batch in file.iter_batches(ROWS * 4, columns=None if condition is not None else _COLUMNS):
                table = pa.Table.from_batches([batch])
                table = (table if condition is None else table.filter(condition)).select(_COLUMNS)
                num_rows += table.num_rows
                yield table
        if not num_rows:
            raise HeartlmError(f"{path}: {f'no recording with {where}' if where else 'has no recordings'}")

    return source_path(about["source"]), bool(about["unique_names"]), tables()


def _files_of(folder: Path, row: dict[str, Any]) -> RecordFiles:
    entries = None
    if isinstance(folder, SourcePath):
        files = row["files"] or ()
        entries = {f"{folder}/{each['name']}": store.Entry(each["size"], each["version"]) for each in files}
    return RecordFiles(folder / row["record"], row["path"] and folder / row["path"], entries)


def the_where() -> str | None:
    """Return the condition of the command, `--where`."""
    return os.environ.get(VARIABLE)
