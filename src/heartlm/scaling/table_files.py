"""The table of a study as files: CSV for people, Parquet for programs; the same columns in both."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heartlm.files import atomic_file


def write_csv(lines: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write lines of the same columns as CSV; what is not known is empty."""
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return path


def write_parquet(lines: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write lines of the same columns as Parquet; what is not known is null, of the type of what is known."""
    import pyarrow
    from pyarrow import parquet  # slow to import

    table = pyarrow.Table.from_pylist(list(lines))
    unknown = [number for number, each in enumerate(table.schema) if pyarrow.types.is_null(each.type)]
    for number in unknown:
        name = table.schema.field(number).name
        table = table.set_column(number, name, table.column(number).cast(pyarrow.float64()))
    with atomic_file(path, "wb") as stream:
        parquet.write_table(table, stream)
        os.fsync(stream.fileno())
    return path
