"""Files that hold tables of samples: text (CSV, TSV, OpenSignals), Parquet, MATLAB; also compressed by gzip.

    text ─► how it is written ─► Arrow table ─┐
    Parquet ─► Arrow table ───────────────────┼─► columns, and facts such as the rate ─► `table_recording`
    MATLAB ─► variables ──────────────────────┘

`is_…_recording` tells from the first rows whether a file of a folder is a recording, `read_…` reads it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from heartlm.ecg.recording import Patient, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.arrays import array_recording, is_array_recording, settings_of, sidecar_of, start_of
from heartlm.formats.clock import UnusableClockError, regular_grid
from heartlm.formats.matlab import is_hdf5, matlab_variables, variable_names
from heartlm.formats.plausible import check_rate
from heartlm.formats.sample_table import (
    LEAST_RATE_HZ,
    MOST_COLUMNS,
    MOST_RATE_HZ,
    Column,
    Facts,
    check_width,
    clock_column,
    could_be_ecg,
    facts_of,
    is_time_name,
    local_clock,
    sort_columns,
    table_recording,
)
from heartlm.formats.stated import Stated
from heartlm.formats.text_table import TextTable, arrow_buffer, is_gzip, read_columns, sniff, unpacked
from heartlm.formats.units import Unit, split_name
from heartlm.storage.foreign import ending_of, first_bytes, is_there, one_line, open_file, size_of
from heartlm.storage.limits import check_samples
from heartlm.storage.reading import parse_json
from heartlm.storage.typed import typed

_FEWEST_ROWS = 200
_SAMPLED_ROWS = 5000
# Bytes of memory for each value of a Parquet file: as stored, float64 of the column and float32 of the recording.
_HELD_BYTES = 20
# Bytes of a text that may be a time, with its offset.
_LONGEST_TIME = 100
# Supply in V and gain of the ECG sensors of BITalino and biosignalsplux, from their transfer functions.
_SUPPLY_AND_GAIN = {"bitalino": (3.3, 1100.0), "plux": (3.0, 1000.0)}
METADATA = b"heartlm"
"""Field of a Parquet file's metadata, see `ParquetMetadata`."""
_TICKS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_RATE_VARIABLE = re.compile(
    r"f_?s|fsamp|fsample|srate|sr|sfreq|freq|frequency|rate|rate_hz|hz|sampl(e|ing)_?(rate|freq|frequency)(_?hz)?",
    re.IGNORECASE,
)
HDF5_ENDINGS = (".h5", ".hdf5")
# Rate and name of the databases whose HDF5 files state neither rate nor unit, by the name of their array: that of
# Shandong Provincial Hospital (Liu et al., Sci. Data 9:272, 2022) and CODE-15 % (Ribeiro et al., Zenodo 4916206).
_DATABASES = {"ecg": (500.0, "SPH"), "tracings": (400.0, "CODE-15 %")}
_TWELVE_LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
_UNIT_VARIABLES = frozenset(("unit", "units"))
_NAME_VARIABLES = frozenset(
    ("lead", "leads", "lead_names", "leadnames", "labels", "label", "channels", "channel_names", "chan_names",
     "sig_name")
)  # fmt: skip
# Names of arrays that say nothing about their leads.
_PLAIN_VARIABLES = frozenset(("val", "data", "x", "y", "signal", "signals", "sig", "samples", "values"))


def is_text_recording(path: Path) -> bool:
    """Return whether a text file is a recording by its content: a table with a possible ECG lead and a known rate."""
    table = sniff(path)
    if table is None or len(table.kinds) > MOST_COLUMNS:
        return is_there(sidecar_of(path))  # the reader then says what is wrong
    is_stated = _opensignals(table) is not None or facts_of(table.preamble).rate_hz is not None
    return _is_recording(path, _sampled_columns(table), is_stated)


def _is_recording(path: Path, columns: list[Column], is_stated: bool) -> bool:
    clocks, _, leads = sort_columns(columns)
    if not any(could_be_ecg(lead.name, lead.unit) for lead in leads):
        return False
    if is_stated or is_there(sidecar_of(path)):
        return True
    # with a rate for a whole folder, other tables in it must not become recordings
    if (rate_hz := Stated.current().rate_hz) is not None and len(leads[0].values) >= min(rate_hz, _FEWEST_ROWS):
        return any(_is_smooth(lead.values) for lead in leads)
    for clock in clocks:
        with suppress(UnusableClockError):
            if LEAST_RATE_HZ <= regular_grid(clock.values).rate_hz <= MOST_RATE_HZ:
                return True
    return False


def _is_smooth(values: NDArray[np.float64]) -> bool:
    """Return whether values resemble those before them, as samples of a signal do."""
    values = values[np.isfinite(values)]
    return len(values) > 2 and float(np.diff(values).var()) < float(values.var())


def read_text(path: Path) -> Recording:
    """Read a text table: one row a sample, one column a lead, empty where invalid.

    Raises:
        HeartlmError: the file is no table of numbers, or its rate or unit is unknown.
    """
    table = sniff(path)
    if table is None:
        with open_file(path) as stream:
            what = "is empty" if not stream.read(1) else "is no table of numbers with one row a sample"
        raise HeartlmError(f"{path}: {what}; export the samples as CSV")
    check_width(path, len(table.kinds))
    if (opensignals := _opensignals(table)) is not None:
        facts, layout = opensignals
    else:
        facts = facts_of(table.preamble)
        layout = {index: Source(*pair) for index, pair in enumerate(zip(table.names, table.units, strict=True))}
    layout = {index: source for index, source in layout.items() if table.kinds[index] != "text"}
    texts = [index for index in layout if table.kinds[index] != "number"]
    may_skip = any(
        table.kinds[index] == "time" or is_time_name(split_name(source.name)[0]) for index, source in layout.items()
    )
    parsed, repairs = read_columns(path, table, list(layout), texts, may_skip)
    columns = list[Column]()
    for index, source in layout.items():
        values = parsed[str(index)]
        if index in texts and table.kinds[index] != "time":  # without a value in the first rows
            with suppress(pa.ArrowInvalid):
                values = pc.replace_substring(pc.utf8_trim_whitespace(values), table.decimal, ".").cast(pa.float64())
            if values.null_count == len(values) or values.type != pa.float64():
                continue
        if (column := _column(source.name, values, source.unit)) is not None:
            if source.factor:
                column.values = (column.values - source.baseline) * source.factor
            columns.append(column)
    others = [name for name, kind in zip(table.names, table.kinds, strict=True) if kind == "text"]
    recording = table_recording(path, columns, facts, others)
    return replace(recording, repairs=(*repairs, *recording.repairs))


def _sampled_columns(table: TextTable) -> list[Column]:
    """Return the columns of the first rows of a table."""
    columns = list[Column]()
    for place, (name, unit, kind) in enumerate(zip(table.names, table.units, table.kinds, strict=True)):
        if kind == "number":
            columns.append(Column(name, table.numbers(place), unit))
        elif kind == "time":
            clock = clock_column(name, pa.chunked_array([[row[place] or None for row in table.rows]], pa.string()))
            columns += [] if clock is None else [clock]
    return columns


class Source(NamedTuple):
    """Name and unit of a column of a file, and how its values become values in the unit, which they are at factor 0."""

    name: str
    unit: str
    factor: float = 0.0
    baseline: float = 0.0


def _opensignals(table: TextTable) -> tuple[Facts, dict[int, Source]] | None:
    """Return what the JSON header of OpenSignals states: rate, start, and the channels by column; None without one."""
    if not any("OpenSignals" in line for line in table.preamble[:1]):
        return None
    layout, first, facts = dict[int, Source](), 0, Facts()
    try:
        devices = parse_json(next(line for line in table.preamble if "{" in line).lstrip("# "))
        for device in devices.values():
            names, sensors = device["column"], device["sensor"]
            labels, resolutions = device.get("label", []), device["resolution"]
            facts.rate_hz = float(device["sampling rate"])
            if facts.start is None:
                (year, month, day), clock = map(int, device["date"].split("-")), device["time"].split(":")
                facts.start = datetime(year, month, day, int(clock[0]), int(clock[1])) + timedelta(
                    seconds=float(clock[2])
                )
            if names and names[0].casefold() == "nseq" and not layout:
                layout[first] = Source("nSeq", "")
            for place, sensor in enumerate(sensors, len(names) - len(sensors)):
                index = place - len(names) + len(sensors)
                label = str(labels[index]) if index < len(labels) else str(names[place])
                bits = int(resolutions[index - len(sensors)])
                kind = "bitalino" if "bitalino" in str(device.get("device", "")).casefold() else "plux"
                if str(sensor).upper().startswith("ECG"):
                    volts, gain = _SUPPLY_AND_GAIN[kind]
                    name = "ECG" if sensors.count(sensor) == 1 else f"ECG {label}"
                    layout[first + place] = Source(name, "mV", 1e3 * volts / gain / 2**bits, 2 ** (bits - 1))
                else:
                    is_raw = str(sensor).upper() in ("RAW", "CUSTOM", "OTHER")
                    layout[first + place] = Source(label if is_raw else f"{sensor} {label}", "adu")
            first += len(names)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, StopIteration):
        return None
    if first < len(table.kinds) or max(layout, default=0) >= len(table.kinds):
        return None
    return facts, layout


def read_parquet(path: Path) -> Recording:
    """Read a Parquet file: one row a sample, one column a lead.

    The field `heartlm` of its metadata, JSON, may state what the columns do not, see `ParquetMetadata`.

    Raises:
        HeartlmError: there is no column of numbers, or its rate or unit is unknown.
    """
    source = pa.BufferReader(arrow_buffer(unpacked(path))) if is_gzip(path) else str(path)
    with _parquet_file(source) as file:
        about, names = _about(path, file.schema_arrow.metadata), file.schema_arrow.names
        columns = names[1:] if "lead_names" in about else _columns_used(file.schema_arrow)
        metadata = file.metadata
        num_rows = max(metadata.num_rows, sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))
        if "lead_names" not in about:
            check_width(path, len(names))
        # before any page is unpacked: a row of equal values takes no byte
        check_samples(path, num_rows * len(columns), size_of(path), _HELD_BYTES)
        if "lead_names" not in about:
            return arrow_recording(path, file.read(columns, use_threads=False))
        return _own_recording(path, about, file.read(columns, use_threads=False))


def _parquet_file(source: Any) -> Any:
    """Open a Parquet file whose texts are read as the different ones and their places: one may stand in all rows."""
    import pyarrow.parquet as pq

    texts = [field.name for field in pq.read_schema(source, memory_map=True) if _is_text(field.type)]
    return pq.ParquetFile(source, memory_map=True, read_dictionary=texts)


def _columns_used(schema: Any) -> list[str]:
    """Return the names of the columns that may be leads or times."""
    return [field.name for field in schema if pa.types.is_primitive(field.type) or _is_text(field.type)
            or pa.types.is_decimal(field.type) or pa.types.is_dictionary(field.type)]  # fmt: skip


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
    recording = array_recording(
        path,
        signal,
        names,
        [Unit(units[column]) for column in table.column_names],
        check_rate(path, about.get("rate_hz"), "rate_hz in its metadata"),
    )
    facts = _facts_of(path, about)
    recording = replace(recording, start=facts.start, patient=facts.patient, comments=facts.comments)
    return Stated.current().of_complete_file(recording)


def is_parquet_recording(path: Path) -> bool:
    """Return whether a Parquet file has a possible ECG lead and a known rate."""
    if is_gzip(path):
        return is_array_recording(path)
    try:
        with _parquet_file(path) as file:
            if "lead_names" in _about(path, file.schema_arrow.metadata):
                return True
            if len(file.schema_arrow.names) > MOST_COLUMNS:
                return False
            names = _columns_used(file.schema_arrow)
            batch = next(file.iter_batches(_SAMPLED_ROWS, columns=names, use_threads=False), None)
            schema = pa.schema([file.schema_arrow.field(name) for name in names], file.schema_arrow.metadata)
        table = schema.empty_table() if batch is None else pa.Table.from_batches([batch])
        columns, facts = _arrow_columns(path, table)
        return _is_recording(path, columns, facts.rate_hz is not None)
    except (HeartlmError, pa.ArrowException, OSError, ValueError):
        return is_array_recording(path)


def arrow_recording(path: Path, table: Any) -> Recording:
    """Return the recording of an Arrow table whose rows are samples; see `read_parquet`."""
    return table_recording(path, *_arrow_columns(path, table))


def _arrow_columns(path: Path, table: Any) -> tuple[list[Column], Facts]:
    about = _about(path, table.schema.metadata)
    units = about.get("units", {})
    columns = (_column(name, table[place], units.get(name, "")) for place, name in enumerate(table.column_names))
    return [column for column in columns if column is not None], _facts_of(path, about)


def _column(name: str, values: Any, unit: str) -> Column | None:
    """Return a column of an Arrow table; None if it holds neither numbers nor times."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        if any(chunk.dictionary.nbytes > _LONGEST_TIME * (len(chunk.dictionary) + 8) for chunk in values.chunks):
            return None  # texts longer than times, each of which may stand in all rows
        values, kind = values.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return clock_column(name, values.cast(pa.string()))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        ticks = values.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(pa.int64())
        origin = next((tick.as_py() for tick in ticks if tick.is_valid), 0)
        # Safe casts of Arrow refuse what the target rounds: differences above 2^53, of a wrong time far away, and
        # nanoseconds as microseconds.
        seconds = pc.subtract(ticks, origin).cast(pa.float64(), safe=False).to_numpy() / _TICKS_PER_S[kind.unit]
        start = None
        if pa.types.is_timestamp(kind) and len(values) and values[0].is_valid:
            start = values[:1].cast(pa.timestamp("us", kind.tz), safe=False)[0].as_py().replace(tzinfo=None)
        return (
            local_clock(name, seconds, start)
            if getattr(kind, "tz", None) is None
            else Column(name, seconds, is_clock=True, start=start)
        )
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Column(name, values.cast(pa.float64(), safe=False).to_numpy(), unit)
    return None


def _facts_of(path: Path, about: ParquetMetadata) -> Facts:
    return Facts(
        rate_hz=about.get("rate_hz"),
        start=start_of(path, about["start"]) if "start" in about else None,
        patient=about.get("patient", Patient()),
        comments=tuple(about.get("comments", ())),
    )


def is_matlab_recording(path: Path) -> bool:
    """Return whether a MATLAB file states its rate, or the user does."""
    if is_array_recording(path):
        return True
    begin = first_bytes(path, 4096) or b""
    if begin.startswith(b"MATLAB 5.0"):
        with suppress(HeartlmError):
            return any(_RATE_VARIABLE.fullmatch(name) for name in variable_names(path))
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
    facts, names, units = Facts(), list[str](), list[str]()
    arrays = dict[str, NDArray[Any]]()
    for name, value in variables.items():
        last = name.rpartition(".")[2].casefold()
        if isinstance(value, list):  # texts
            if last in _UNIT_VARIABLES:
                units = value
            elif last in _NAME_VARIABLES:
                names = value
        elif value.size == 1 and _RATE_VARIABLE.fullmatch(last):
            facts.rate_hz = float(value.ravel()[0])
        elif value.size == 1 and last in ("dt", "ts", "period") and float(value.ravel()[0]) > 0:
            facts.rate_hz = 1 / float(value.ravel()[0])
        elif value.size > 1 and value.ndim == 2:
            arrays[name] = value
    if not arrays:
        raise HeartlmError(
            f"{path}: has no array of numbers [num_leads, num_samples], only {', '.join(variables) or 'nothing'}"
        )
    repairs = list[str]()
    is_database = ending_of(path) in HDF5_ENDINGS and facts.rate_hz is None
    if is_database and (known := next((each for each in _DATABASES if each in arrays), None)):
        rate_hz, database = _DATABASES[known]
        array = arrays[known]
        if len(_TWELVE_LEADS) in array.shape:
            arrays = {known: _without_filling(array if len(array) == len(_TWELVE_LEADS) else array.T)}
            names, units = list(_TWELVE_LEADS), ["mV"]
            if (Stated.current().rate_hz or settings_of(path).get("rate_hz")) is None:
                facts.rate_hz = rate_hz
                repairs.append(f"states no rate, unit or leads; {rate_hz:g} Hz, mV and 12 leads, as {database} has")
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
        elif bare.casefold() in _PLAIN_VARIABLES:
            lead_names = [""] * len(leads)
        else:
            lead_names = [bare] if len(leads) == 1 else [f"{name} {place}" for place in range(1, len(leads) + 1)]
        texts = units * len(leads) if len(units) == 1 else units if len(units) == len(leads) else [""] * len(leads)
        columns += [
            Column(column, np.asarray(lead, np.float64), unit if not is_time_name(column) else "")
            for column, lead, unit in zip(lead_names, leads, texts, strict=True)
        ]
    recording = table_recording(path, columns, facts)
    return replace(recording, repairs=(*repairs, *recording.repairs))


def _without_filling(signal: NDArray[Any]) -> NDArray[np.float64]:
    """Return samples `[num_leads, num_samples]` with NaN for the zeros of all leads at both ends."""
    filled = np.flatnonzero(np.asarray(signal != 0).any(axis=0))
    values = np.asarray(signal, np.float64).copy()
    if len(filled):
        values[:, : filled[0]] = values[:, filled[-1] + 1 :] = np.nan
    return values
