"""The table of a study as files: CSV for people, Parquet for programs; the same columns in both."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from heartlm.files import atomic_file
from heartlm.scaling.table import Row, flat


def write_csv(rows: Sequence[Row], path: Path) -> Path:
    """Write rows as CSV; what is not known is empty."""
    lines = [flat(row) for row in rows]
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return path


def write_parquet(rows: Sequence[Row], path: Path) -> Path:
    """Write rows as Parquet; what is not known is null, of the type of what is known."""
    import pyarrow
    from pyarrow import parquet  # slow to import

    table = pyarrow.Table.from_pylist([flat(row) for row in rows])
    unknown = [number for number, each in enumerate(table.schema) if pyarrow.types.is_null(each.type)]
    for number in unknown:
        name = table.schema.field(number).name
        table = table.set_column(number, name, table.column(number).cast(pyarrow.float64()))
    with atomic_file(path, "wb") as stream:
        parquet.write_table(table, stream)
        os.fsync(stream.fileno())
    return path
