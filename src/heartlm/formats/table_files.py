"""Files that hold tables of samples: text (CSV, TSV, OpenSignals), Parquet, MATLAB; also compressed by gzip.

    text ─► how it is written ─► Arrow table ─┐
    Parquet ─► Arrow table ───────────────────┼─► `Table`: columns, and facts such as the rate ─► recording
    MATLAB ─► variables ──────────────────────┘

`is_…_recording` tells from the first rows whether a file of a folder is a recording, `read_…` reads it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from heartlm.ecg.recording import Patient, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.arrays import Given, array_recording, is_array_recording, sidecar_of, start_of
from heartlm.formats.matlab import is_hdf5, matlab_variables, variable_names
from heartlm.formats.moments import clock, clock_of_texts
from heartlm.formats.plausible import check_rate
from heartlm.formats.preamble import Source, facts_of, opensignals
from heartlm.formats.sample_table import MOST_COLUMNS, Column, Table, check_width, is_time_name
from heartlm.formats.stated import Stated
from heartlm.formats.text_bytes import arrow_buffer, is_gzip, unpacked
from heartlm.formats.text_table import TextTable, read_columns, sniff
from heartlm.formats.units import Unit, split_name
from heartlm.formats.words import INTERVAL_VARIABLES, LEAD_VARIABLES, PLAIN_VARIABLES, RATE_VARIABLE, UNIT_VARIABLES
from heartlm.storage.foreign import RemotePath, ending_of, first_bytes, is_there, one_line, open_file, size_of
from heartlm.storage.limits import check_samples
from heartlm.storage.reading import parse_json
from heartlm.storage.typed import typed

# Rows of a Parquet file by which it is a recording.
_SAMPLED_ROWS = 5000
# Bytes of memory for each value of a Parquet file: as stored, float64 of the column and float32 of the recording.
_HELD_BYTES = 20
# Bytes of a text that may be a time, with its offset.
_LONGEST_TIME = 100
METADATA = b"heartlm"
"""Field of a Parquet file's metadata, see `ParquetMetadata`."""
_TICKS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# Columns that heartlm's tables of many recordings have: those of results, of a corpus, and an index.
_OF_MANY = ({"database", "record"}, {"database", "record_id"}, {"record", "path"})
HDF5_ENDINGS = (".h5", ".hdf5")
# Rate and name of the databases whose HDF5 files state neither rate nor unit, by the name of their array: that of
# Shandong Provincial Hospital (Liu et al., Sci. Data 9:272, 2022) and CODE-15 % (Ribeiro et al., Zenodo 4916206).
_DATABASES = {"ecg": (500.0, "SPH"), "tracings": (400.0, "CODE-15 %")}
_TWELVE_LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")


def is_text_recording(path: Path) -> bool:
    """Return whether a text file is a recording by its content: a table with a possible ECG lead and a known rate."""
    text = sniff(path)
    if text is None or len(text.kinds) > MOST_COLUMNS:
        return is_there(sidecar_of(path))  # the reader then says what is wrong
    table, _ = _described(text)
    columns = list[Column]()
    for place, (name, unit, kind) in enumerate(zip(text.names, text.units, text.kinds, strict=True)):
        fields = [row[place] for row in text.rows]
        if kind == "number":
            columns.append(Column(name, np.array([text.marks.number(field) for field in fields], np.float64), unit))
        elif kind == "time":
            texts = pa.chunked_array([[field or None for field in fields]], pa.string())
            columns += filter(None, [clock_of_texts(name, texts)])
    return replace(table, columns=columns).is_recording(path)


def _described(text: TextTable) -> tuple[Table, dict[int, Source]]:
    """Return what is stated before the rows of a text, and what its columns are."""
    sources = {place: Source(*pair) for place, pair in enumerate(zip(text.names, text.units, strict=True))}
    return opensignals(text.preamble, len(text.kinds)) or (facts_of(text.preamble), sources)


def read_text(path: Path) -> Recording:
    """Read a text table: one row a sample, one column a lead, empty where invalid.

    Raises:
        HeartlmError: the file is no table of numbers, or its rate or unit is unknown.
    """
    text = sniff(path)
    if text is None:
        with open_file(path) as stream:
            what = "is empty" if not stream.read(1) else "is no table of numbers with one row a sample"
        raise HeartlmError(f"{path}: {what}; export the samples as CSV")
    check_width(path, len(text.kinds))
    table, sources = _described(text)
    sources = {place: source for place, source in sources.items() if text.kinds[place] != "text"}
    texts = [place for place in sources if text.kinds[place] != "number"]
    has_times = any(
        text.kinds[place] == "time" or is_time_name(split_name(each.name)[0]) for place, each in sources.items()
    )
    parsed, repairs = read_columns(path, text, sources, texts, may_skip=has_times)
    columns = list[Column]()
    for place, source in sources.items():
        values = parsed[str(place)]
        if text.kinds[place] == "empty":  # without a value in the first rows
            trimmed = pc.utf8_trim_whitespace(values)
            with suppress(pa.ArrowInvalid):
                values = pc.replace_substring(trimmed, text.marks.decimal, ".").cast(pa.float64())
            if values.null_count == len(values) or values.type != pa.float64():
                continue
        if (column := _column(source.name, values, source.unit)) is not None:
            if source.factor:
                column.values = (column.values - source.baseline) * source.factor
            columns.append(column)
    others = [name for name, kind in zip(text.names, text.kinds, strict=True) if kind == "text"]
    return replace(table, columns=columns, others=others, repairs=tuple(repairs)).recording(path)


def read_parquet(path: Path) -> Recording:
    """Read a Parquet file: one row a sample, one column a lead.

    The field `heartlm` of its metadata, JSON, may state what the columns do not, see `ParquetMetadata`.

    Raises:
        HeartlmError: there is no column of numbers, or its rate or unit is unknown.
    """
    source = pa.BufferReader(arrow_buffer(unpacked(path))) if is_gzip(path) else path
    with _parquet_file(source) as file:
        about, names = _about(path, file.schema_arrow.metadata), file.schema_arrow.names
        is_own = "lead_names" in about
        if not is_own and (of_many := _of_many(file.schema_arrow)):
            raise HeartlmError(
                f"{path}: is no recording, but a table about recordings, which its columns {' and '.join(of_many)} "
                "name; give one of them"
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise HeartlmError(f"{path}: has two columns called {twice[0]!r}; rename one")
        columns = names[1:] if is_own else _columns_used(file.schema_arrow)
        metadata = file.metadata
        num_rows = max(metadata.num_rows, sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))
        if not is_own:
            check_width(path, len(names))
        # before any page is unpacked: a row of equal values takes no byte
        check_samples(path, num_rows * len(columns), size_of(path), _HELD_BYTES)
        table = file.read(columns, use_threads=False)
    return _own_recording(path, about, table) if is_own else arrow_recording(path, table)


def _parquet_file(source: Any) -> Any:
    """Open a Parquet file whose texts are read as the different ones and their places: one may stand in all rows."""
    import pyarrow.parquet as pq

    if isinstance(source, RemotePath):
        source = pa.PythonFile(source.stream(), "r")
    texts = [field.name for field in pq.read_schema(source, memory_map=True) if _is_text(field.type)]
    return pq.ParquetFile(source, memory_map=True, read_dictionary=texts)


def _columns_used(schema: Any) -> list[str]:
    """Return the names of the columns that may be leads or times."""
    return [field.name for field in schema if pa.types.is_primitive(field.type) or _is_text(field.type)
            or pa.types.is_decimal(field.type) or pa.types.is_dictionary(field.type)]  # fmt: skip


def _of_many(schema: Any) -> list[str]:
    """Return the columns that tell of which recording each row is; empty if there are none."""
    return next((sorted(names) for names in _OF_MANY if names <= set(schema.names)), [])


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


class ParquetMetadata(TypedDict, total=False):
    """Field `heartlm` of the metadata of a Parquet file.

    With `lead_names`, the first column has the times, the others are the leads in `units`, and there is a rate.
    """

    rate_hz: float
    units: dict[str, str]
    start: str
    patient: Patient
    comments: list[str]
    lead_names: list[str]


def _about(path: Path, metadata: dict[bytes, bytes] | None) -> ParquetMetadata:
    with one_line(path, "a Parquet file with metadata of heartlm"):
        return typed(ParquetMetadata, parse_json((metadata or {}).get(METADATA, b"{}")), path)


def _own_recording(path: Path, about: ParquetMetadata, table: Any) -> Recording:
    """Return the recording of a file that heartlm wrote: its metadata state everything, so nothing is guessed."""
    names, units = about["lead_names"], about.get("units", {})
    if len(names) != table.num_columns or not set(table.column_names) <= set(units):
        raise HeartlmError(
            f"{path}: its metadata name {len(names)} leads, it has {table.num_columns}; convert it again"
        )
    with one_line(path, "a Parquet file of samples"):
        columns = [column.cast(pa.float32()).to_numpy() for column in table.columns]
    signal = np.stack(columns) if columns else np.empty((0, 0), np.float32)
    lead_units = [Unit(units[column]) for column in table.column_names]
    rate_hz = check_rate(path, about.get("rate_hz"), "rate_hz in its metadata")
    facts = _facts_of(path, about)
    recording = replace(
        array_recording(path, signal, names, lead_units, rate_hz),
        start=facts.start,
        patient=facts.patient,
        comments=facts.comments,
    )
    return Stated.current().of_complete_file(recording)


def is_parquet_recording(path: Path) -> bool:
    """Return whether a Parquet file has a possible ECG lead and a known rate."""
    if is_gzip(path):
        return is_array_recording(path)
    try:
        with _parquet_file(path) as file:
            if "lead_names" in _about(path, file.schema_arrow.metadata):
                return True
            if len(file.schema_arrow.names) > MOST_COLUMNS or _of_many(file.schema_arrow):
                return False
            names = _columns_used(file.schema_arrow)
            batch = next(file.iter_batches(_SAMPLED_ROWS, columns=names, use_threads=False), None)
            fields = [field for field in file.schema_arrow if field.name in names]
            schema = pa.schema(fields, file.schema_arrow.metadata)
        table = schema.empty_table() if batch is None else pa.Table.from_batches([batch])
        return _arrow_table(path, table).is_recording(path)
    except (HeartlmError, pa.ArrowException, OSError, ValueError):
        return is_array_recording(path)


def arrow_recording(path: Path, table: Any) -> Recording:
    """Return the recording of an Arrow table whose rows are samples; see `read_parquet`."""
    return _arrow_table(path, table).recording(path)


def _arrow_table(path: Path, table: Any) -> Table:
    about = _about(path, table.schema.metadata)
    units = about.get("units", {})
    columns = (_column(name, table[place], units.get(name, "")) for place, name in enumerate(table.column_names))
    return replace(_facts_of(path, about), columns=[column for column in columns if column is not None])


def _facts_of(path: Path, about: ParquetMetadata) -> Table:
    return Table(
        rate_hz=about.get("rate_hz"),
        start=start_of(path, about["start"]) if "start" in about else None,
        patient=about.get("patient", Patient()),
        comments=tuple(about.get("comments", ())),
    )


def _column(name: str, values: Any, unit: str) -> Column | None:
    """Return a column of an Arrow array; None if it holds neither numbers nor times."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        if any(chunk.dictionary.nbytes > _LONGEST_TIME * (len(chunk.dictionary) + 8) for chunk in values.chunks):
            return None  # texts longer than times, each of which may stand in all rows
        values, kind = values.cast(kind.value_type), kind.value_type
    if _is_text(kind):
        return clock_of_texts(name, values.cast(pa.string()))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        ticks = values.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(pa.int64())
        origin = next((tick.as_py() for tick in ticks if tick.is_valid), 0)
        # Safe casts of Arrow refuse what the target rounds: differences above 2^53, of a wrong time far away, and
        # nanoseconds as microseconds.
        seconds = pc.subtract(ticks, origin).cast(pa.float64(), safe=False).to_numpy() / _TICKS_PER_S[kind.unit]
        zone, start = getattr(kind, "tz", None), None
        if pa.types.is_timestamp(kind) and len(values) and values[0].is_valid:
            start = values[:1].cast(pa.timestamp("us", zone), safe=False)[0].as_py().replace(tzinfo=None)
        return clock(name, seconds, start, is_local=zone is None)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Column(name, values.cast(pa.float64(), safe=False).to_numpy(), unit)
    return None


def is_matlab_recording(path: Path) -> bool:
    """Return whether a MATLAB file states its rate, or the user does."""
    if is_array_recording(path):
        return True
    begin = first_bytes(path, 4096) or b""
    if begin.startswith(b"MATLAB 5.0"):
        with suppress(HeartlmError):
            return any(map(RATE_VARIABLE.fullmatch, variable_names(path)))
    if not is_hdf5(begin) or ending_of(path) not in HDF5_ENDINGS:
        return is_hdf5(begin)
    return any(name.encode() in (first_bytes(path, 1 << 16) or b"") for name in _DATABASES)


def read_matlab(path: Path) -> Recording:
    """Read a MATLAB file of version 5 or 7.3: arrays of samples, and variables with their rate, times, units and names.

    Arrays `[num_leads, num_samples]`, or the reverse, with the longest number of samples are leads; vectors of that
    length may be times. A scalar called `fs`, `rate` or similar is the rate. Fields of a structure are variables too.

    Raises:
        HeartlmError: there is no array of samples, or its rate or unit is unknown.
    """
    variables = dict(matlab_variables(path, unpacked(path) if is_gzip(path) else None))
    table, names, units = Table(), list[str](), list[str]()
    arrays = dict[str, NDArray[Any]]()
    for name, value in variables.items():
        last = name.rpartition(".")[2].casefold()
        if isinstance(value, list):  # texts
            units = value if last in UNIT_VARIABLES else units
            names = value if last in LEAD_VARIABLES else names
        elif value.size == 1 and RATE_VARIABLE.fullmatch(last):
            table.rate_hz = float(value.item())
        elif value.size == 1 and last in INTERVAL_VARIABLES and float(value.item()) > 0:
            table.rate_hz = 1 / float(value.item())
        elif value.size > 1 and value.ndim == 2:
            arrays[name] = value
    if not arrays:
        raise HeartlmError(
            f"{path}: has no array of numbers [num_leads, num_samples], only {', '.join(variables) or 'nothing'}"
        )
    is_database = ending_of(path) in HDF5_ENDINGS and table.rate_hz is None
    known = next((name for name in _DATABASES if is_database and name in arrays), None)
    if known is not None and len(_TWELVE_LEADS) in arrays[known].shape:
        array = arrays[known] if len(arrays[known]) == len(_TWELVE_LEADS) else arrays[known].T
        arrays, names, units = {known: _without_filling(array)}, list(_TWELVE_LEADS), ["mV"]
        if Given.of(path).rate_hz is None:
            table.rate_hz, database = _DATABASES[known]
            about = f"{table.rate_hz:g} Hz, mV and 12 leads, as {database} has"
            table.repairs = (f"states no rate, unit or leads; {about}",)
    length = max(max(array.shape) for array in arrays.values())
    columns = list[Column]()
    for name, array in arrays.items():
        if length not in array.shape:
            continue
        leads = array if array.shape[1] == length else array.T
        check_width(path, len(leads))
        bare = name.rpartition(".")[2]
        if len(names) == len(leads):
            lead_names = names
        elif bare.casefold() in PLAIN_VARIABLES:
            lead_names = [""] * len(leads)
        else:
            lead_names = [bare] if len(leads) == 1 else [f"{name} {place}" for place in range(1, len(leads) + 1)]
        texts = units * len(leads) if len(units) == 1 else units if len(units) == len(leads) else [""] * len(leads)
        columns += [
            Column(column, np.asarray(lead, np.float64), unit if not is_time_name(column) else "")
            for column, lead, unit in zip(lead_names, leads, texts, strict=True)
        ]
    return replace(table, columns=columns).recording(path)


def _without_filling(signal: NDArray[Any]) -> NDArray[np.float64]:
    """Return samples `[num_leads, num_samples]` with NaN for the zeros of all leads at both ends."""
    filled = np.flatnonzero(np.asarray(signal != 0).any(axis=0))
    values = np.asarray(signal, np.float64).copy()
    if len(filled):
        values[:, : filled[0]] = values[:, filled[-1] + 1 :] = np.nan
    return values
