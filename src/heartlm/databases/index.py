"""An index: the headers of all recordings of a source in one Parquet file, for choosing, splitting and sampling.

    listing ─► records ─► headers ─► rows ─► row groups of a Parquet file
                                              └─ where, sample ─► another one

An index stands for the folder it was made of: every command that takes a folder takes it, with the recordings that it
has. Of an address it also has sizes and versions of the files, so nothing is listed again.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heartlm.databases.discovery import RecordFiles, printable, records_by_folder
from heartlm.databases.where import parse_where
from heartlm.errors import HeartlmError
from heartlm.sources import store
from heartlm.sources.address import SourcePath, source_path
from heartlm.storage.atomic import atomic_file
from heartlm.storage.foreign import RemotePath, first_bytes, is_there, one_line, read_ahead
from heartlm.system.progress import track

if TYPE_CHECKING:
    from heartlm.databases.database import Database

METADATA = b"heartlm.index"
"""Key of the metadata of an index: JSON with its version, its source, and whether names of records are unique."""
VERSION = 1
VARIABLE = "HEARTLM_WHERE"
"""Variable of the environment with the condition of the command, see `heartlm.databases.where`."""

_ROWS = 4096
# Records of an index whose files are known to this process.
_KNOWN_RECORDS = 10_000
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


@dataclass(frozen=True)
class Indexed:
    """What was written.

    Attributes:
        num_records: number of recordings in the index.
        num_left_out: number of recordings whose header cannot be read.
    """

    num_records: int
    num_left_out: int


def is_index(path: Path) -> bool:
    """Return whether a file is an index."""
    return path.suffix == ".parquet" and (first_bytes(path, 4) == b"PAR1") and _about(path) is not None


def holds_recordings(path: Path) -> bool:
    """Return whether a path has several recordings: it is a folder or an index."""
    return path.is_dir() or is_index(path)


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
    lines = list[str]()

    def note(line: str) -> None:
        lines.append("")
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
            if not about.get("unique_names"):
                about |= {"unique_names": names.are_unique()}
            writer.add_key_value_metadata({METADATA.decode(): json.dumps(about)})
        if not num_records:
            what = "has no recording that can be read" if condition is None else f"no recording with {where}"
            raise HeartlmError(f"{source}: {what}; {len(lines)} were left out")
    if sample is not None and sample < num_records:
        chosen = np.sort(np.random.default_rng(seed).choice(num_records, sample, replace=False))
        _keep(out, chosen, about)
        num_records = sample
    return Indexed(num_records, len(lines))


def _keep(path: Path, rows: NDArray[np.int64], about: dict[str, Any]) -> None:
    """Write the index again with some of its rows, ascending."""
    import pyarrow.parquet as pq

    with (
        pq.ParquetFile(path) as file,
        atomic_file(path, "wb") as stream,
        pq.ParquetWriter(stream, schema(), compression="zstd") as writer,
    ):
        first = 0
        for batch in file.iter_batches(_ROWS):
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
        self._digests.append(np.fromiter((hash(PurePosixPath(each).name) for each in records), np.int64, len(records)))

    def are_unique(self) -> bool:
        digests = np.concatenate(self._digests) if self._digests else np.empty(0, np.int64)
        return len(np.unique(digests)) == len(digests)


def _of_index(source: Path) -> tuple[Iterator[Any], dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = _about(source)
    assert about is not None

    def tables() -> Iterator[Any]:
        with one_line(source, "an index of recordings"), pq.ParquetFile(_readable(source)) as file:
            for batch in file.iter_batches(_ROWS):
                yield pa.Table.from_batches([batch], schema())

    return tables(), about


def _of_folder(source: Path, left_out: Callable[[str], object]) -> tuple[Iterator[Any], dict[str, Any]]:
    import pyarrow as pa

    from heartlm.databases.database import Database

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
            if len(rows) == _ROWS:
                yield pa.Table.from_pylist(rows, schema())
                rows = []
        yield pa.Table.from_pylist(rows, schema())

    return tables(), {"version": VERSION, "source": str(source)}


def _row_of(database: Database) -> Callable[[RecordFiles], dict[str, Any]]:
    """Return a function that reads the row of a record of a database."""
    from heartlm.databases.statements import stated_labels

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


def _readable(path: Path) -> Any:
    import pyarrow as pa

    return pa.PythonFile(path.stream(), "r") if isinstance(path, RemotePath) else path


def _about(path: Path) -> dict[str, Any] | None:
    """Return the metadata of an index; None for another file.

    Raises:
        HeartlmError: the index is of another version, or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(pa.ArrowException, OSError):
        text = (pq.read_metadata(_readable(path)).metadata or {}).get(METADATA)
        if text is None:
            return None
        about: dict[str, Any] = {}
        with one_line(path, "an index of recordings"):
            about = json.loads(text)
        if about.get("version") != VERSION:
            raise HeartlmError(f"{path}: index of version {about.get('version')}, {VERSION} expected; make it again")
        return about
    return None


def indexed_files(path: Path) -> tuple[Path, Mapping[str, RecordFiles]]:
    """Return the source of an index, and the files of its records that fulfil the condition of the command.

    Raises:
        HeartlmError: the file cannot be read, the condition is malformed, or no record fulfils it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = _about(path)
    if about is None:
        raise HeartlmError(f"{path}: no index of recordings; make one with  heartlm data index")
    where = the_where()
    condition = parse_where(where, schema()) if where else None
    columns = ["record", "path", "files"]
    with one_line(path, "an index of recordings"), pq.ParquetFile(_readable(path)) as file:
        kept = list[Any]()
        for batch in file.iter_batches(_ROWS * 4):
            table = pa.Table.from_batches([batch])
            kept.append((table if condition is None else table.filter(condition)).select(columns))
    table = pa.concat_tables(kept) if kept else schema().empty_table().select(columns)
    if not table.num_rows:
        raise HeartlmError(f"{path}: {f'no recording with {where}' if where else 'has no recordings'}")
    folder = source_path(about["source"])
    return folder, IndexedFiles(folder, table, bool(about["unique_names"]))


class IndexedFiles(Mapping[str, RecordFiles]):
    """Files of the records of an index, by their names; a table of Arrow, not an object for each."""

    def __init__(self, folder: Path, table: Any, unique_names: bool) -> None:
        records = table["record"].to_pylist()
        names = [PurePosixPath(each).name for each in records] if unique_names else records
        order = sorted(range(len(names)), key=names.__getitem__)
        self._folder, self._table = folder, table.take(order).combine_chunks()
        self._names = [names[place] for place in order]
        self._known = deque[tuple[list[str], str]]()

    def versions(self) -> Iterator[str]:
        """Yield a line for each file at an address, with its size and version."""
        for files in self._table["files"] if isinstance(self._folder, SourcePath) else ():
            for each in files.as_py() or ():
                yield f"{each['name']}\0{each['size']} {each['version']}\n"

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> RecordFiles:
        place = bisect_left(self._names, name)
        if place == len(self._names) or self._names[place] != name:
            raise KeyError(name)
        path, stem = self._table["path"][place].as_py(), self._folder / self._table["record"][place].as_py()
        if isinstance(self._folder, SourcePath):
            files = self._table["files"][place].as_py() or []
            entries = {f"{self._folder}/{each['name']}": store.Entry(each["size"], each["version"]) for each in files}
            store.remember(entries, [f"{stem}."])
            self._known.append((list(entries), f"{stem}."))
            if len(self._known) > _KNOWN_RECORDS:
                texts, prefix = self._known.popleft()
                store.drop(texts, [prefix])
        return RecordFiles(stem, path and self._folder / path)


def the_where() -> str | None:
    """Return the condition of the command, `--where`."""
    return os.environ.get(VARIABLE)
