"""`records.parquet`: the rows of a corpus, written and read a row group at a time.

An archive has tens of millions of rows, so only the columns of `RecordTable` are held in memory.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.schema import ROW_FIELDS, LeadRow, row_schema

ROWS_AT_ONCE = 1 << 16
"""Number of rows in a row group."""

TEXT = np.dtypes.StringDType()
"""Type of the columns of texts: 16 bytes for each, and more for texts of more than 15."""


class RowWriter:
    """Writer of `records.parquet`, to be closed at the end."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self._text, self._num_rows = BytesIO(), 0
        self._writer = parquet.ParquetWriter(path, row_schema())

    def add(self, row: LeadRow) -> None:
        """Add the next row."""
        self._text.write(json.dumps(vars(row)).encode() + b"\n")
        self._num_rows += 1
        if self._num_rows == ROWS_AT_ONCE:
            self._write()

    def close(self) -> None:
        """Write the last rows."""
        if self._num_rows:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        # By way of JSON, because pyarrow imports pandas to convert lists of Python objects.
        from pyarrow import json as arrow_json

        self._text.seek(0)
        options = arrow_json.ParseOptions(explicit_schema=row_schema())
        table = arrow_json.read_json(self._text, parse_options=options)
        self._writer.write_table(table.combine_chunks(), row_group_size=ROWS_AT_ONCE)
        self._text, self._num_rows = BytesIO(), 0


class _Rows(Sequence[LeadRow]):
    """Rows that are made when they are asked for."""

    @abstractmethod
    def _row(self, index: int) -> LeadRow:
        """Return a row by its index, from 0."""

    @overload
    def __getitem__(self, place: int) -> LeadRow: ...
    @overload
    def __getitem__(self, place: slice) -> list[LeadRow]: ...
    def __getitem__(self, place: int | slice) -> LeadRow | list[LeadRow]:
        if isinstance(place, slice):
            return [self._row(index) for index in range(len(self))[place]]
        return self._row(range(len(self))[place])


class StoredRows(_Rows):
    """Rows of a file, each read with its row group when it is asked for."""

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            OSError, pyarrow.ArrowException: the file is not readable, or has other columns.
        """
        from pyarrow import parquet

        self._file = parquet.ParquetFile(path)  # read_table would import pandas
        self._path, names = path, self._file.schema_arrow.names
        self._known = [name for name in ROW_FIELDS if name != "statements" or name in names]
        groups = range(self._file.num_row_groups)
        self._ends = np.cumsum([self._file.metadata.row_group(group).num_rows for group in groups], dtype=np.int64)
        self._group, self._rows = -1, list[LeadRow]()

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def _row(self, index: int) -> LeadRow:
        group = int(np.searchsorted(self._ends, index, "right"))
        return self._of_group(group)[index - (self._ends[group - 1] if group else 0)]

    def __iter__(self) -> Iterator[LeadRow]:
        for group in range(len(self._ends)):
            yield from self._of_group(group)

    def __reduce__(self) -> Any:
        return StoredRows, (self._path,)

    def _of_group(self, group: int) -> list[LeadRow]:
        if group != self._group:
            rows = self._read(group, self._known).to_pylist()
            self._group, self._rows = group, [LeadRow(**row) for row in rows]
        return self._rows

    def _read(self, group: int, names: Sequence[str]) -> Any:
        return self._file.read_row_group(group, columns=[*names]).cast(row_schema(names))

    def column(self, name: str, kind: Any) -> NDArray[Any]:
        """Return the values of a column, `[num_rows]`.

        Raises:
            OSError, pyarrow.ArrowException: the file is damaged.
            TypeError: a value is missing.
        """
        values = np.empty(len(self), kind)
        for group, end in enumerate(self._ends.tolist()):
            column = self._read(group, [name]).column(name)
            if column.null_count:
                raise TypeError("a value is missing")
            values[end - len(column) : end] = column.to_pylist() if kind is TEXT else column.to_numpy()
        return values

    def check(self) -> None:
        """Raise what `column` raises for any column."""
        for group in range(len(self._ends)):
            if any(column.null_count for column in self._read(group, self._known).columns):
                raise TypeError("a value is missing")


class RecordTable:
    """All rows of a corpus, and the columns by which they are selected, each an array `[num_rows]`.

    Attributes:
        rows: the rows; those of a corpus on disk are read from its file when they are asked for.
        split: text, see `LeadRow`.
        first_token, num_tokens: int64.
    """

    def __init__(self, rows: Sequence[LeadRow]) -> None:
        self.rows = rows
        self.split = _column(rows, "split", TEXT)
        self.first_token, self.num_tokens = (_column(rows, name, np.int64) for name in ("first_token", "num_tokens"))

    # Read when they are first asked for: most trainings need none of them.

    @cached_property
    def database(self) -> NDArray[Any]:
        """Names of the databases, texts."""
        return _column(self.rows, "database", TEXT)

    @cached_property
    def record_id(self) -> NDArray[Any]:
        """Names of the recordings, texts."""
        return _column(self.rows, "record_id", TEXT)

    @cached_property
    def patient_id(self) -> NDArray[Any]:
        """Patients, texts."""
        return _column(self.rows, "patient_id", TEXT)

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, split: str) -> NDArray[np.int64]:
        """Return the indices of the rows of `split` that have tokens."""
        return np.flatnonzero((self.split == split) & (self.num_tokens > 0))

    def with_splits(self, splits: NDArray[Any]) -> RecordTable:
        """Return the same rows in other splits, of which `splits` has one for each row."""
        other = copy(self)
        other.rows, other.split = _InSplits(self.rows, splits), splits
        return other


def _column(rows: Sequence[LeadRow], name: str, kind: Any) -> NDArray[Any]:
    if isinstance(rows, StoredRows):
        return rows.column(name, kind)
    return np.array([getattr(row, name) for row in rows], kind)


class _InSplits(_Rows):
    """Rows with other splits."""

    def __init__(self, rows: Sequence[LeadRow], splits: NDArray[Any]) -> None:
        self._rows, self._splits = rows, splits

    def __len__(self) -> int:
        return len(self._rows)

    def _row(self, index: int) -> LeadRow:
        return replace(self._rows[index], split=str(self._splits[index]))

    def __iter__(self) -> Iterator[LeadRow]:
        for row, split in zip(self._rows, self._splits, strict=True):
            yield replace(row, split=str(split))
