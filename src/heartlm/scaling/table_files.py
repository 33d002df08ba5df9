"""The table of a study as files: CSV for people, Parquet for programs; the same columns in both."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heartlm.files import atomic_file
from heartlm.scaling.equations import Interval
from heartlm.scaling.table import Beside, Row


def flat(row: Row) -> dict[str, Any]:
    """A row as plain columns; intervals are three of them."""
    columns: dict[str, Any] = {**asdict(row.cell), "repeats": row.repeats, "num_moved": row.num_moved}
    for name in ("time_s", "speedup", "efficiency", "overhead_s", "ceiling", "efficiency_of_ceiling"):
        columns |= _three(name, getattr(row, name))
    for name in ("karp_flatt", "step_median_s", "step_p95_s", "tokens_per_s"):
        columns[name] = getattr(row, name)
    columns |= {f"{name}_s": value for name, value in row.part_s.items()}
    columns |= {f"{name}_s": value for name, value in row.detail_s.items()}
    return columns | {"peak_memory_bytes": row.peak_memory_bytes, "energy_j_per_mtoken": row.energy_j_per_mtoken}


def flat_beside(beside: Beside) -> dict[str, Any]:
    """Trainings side by side as plain columns."""
    columns = {**asdict(beside.cell), "repeats": beside.repeats}
    columns |= _three("together", beside.together) | _three("share", beside.share)
    return columns | {"tokens_per_s": beside.tokens_per_s, "energy_j_per_mtoken": beside.energy_j_per_mtoken}


def _three(name: str, interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


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
